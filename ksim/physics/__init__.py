"""Physics: the model, the engines that step it, and the actuators."""

from ksim.physics.actuators import (
    AbstractActuators as AbstractActuators,
    DcMotorActuators as DcMotorActuators,
    ModelActuators as ModelActuators,
    PositionActuators as PositionActuators,
    PositionVelocityActuators as PositionVelocityActuators,
    TorqueActuators as TorqueActuators,
)
from ksim.physics.engine import AbstractEngine as AbstractEngine, control_step as control_step
from ksim.physics.model import (
    PhysicsModel as PhysicsModel,
    check_rates as check_rates,
    compile_model as compile_model,
    load_spec as load_spec,
)
from ksim.physics.terrain import (
    AbstractTile as AbstractTile,
    FlatTile as FlatTile,
    Ground as Ground,
    RoughTile as RoughTile,
    SlopeTile as SlopeTile,
    StairsTile as StairsTile,
    Terrain as Terrain,
)
