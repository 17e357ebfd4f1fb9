"""Observations, one file per theme."""

from ksim.mdp.observations.base import AbstractObservation as AbstractObservation
from ksim.mdp.observations.base_state import (
    BaseAngularVelocity as BaseAngularVelocity,
    BaseHeight as BaseHeight,
    BaseLinearVelocity as BaseLinearVelocity,
    ProjectedGravity as ProjectedGravity,
)
from ksim.mdp.observations.joints import (
    ActuatorForce as ActuatorForce,
    JointPosition as JointPosition,
    JointVelocity as JointVelocity,
)
from ksim.mdp.observations.sensors import FootContact as FootContact, SensorReading as SensorReading
from ksim.mdp.observations.task import (
    CommandValue as CommandValue,
    LastAction as LastAction,
    PhaseClock as PhaseClock,
)
