"""Observations, one file per theme."""

from ksim.mdp.observations.base import AbstractObservation as AbstractObservation
from ksim.mdp.observations.base_state import (
    BaseAngularVelocity as BaseAngularVelocity,
    BaseAngularVelocityWorld as BaseAngularVelocityWorld,
    BaseHeight as BaseHeight,
    BaseLinearAcceleration as BaseLinearAcceleration,
    BaseLinearVelocity as BaseLinearVelocity,
    BaseLinearVelocityWorld as BaseLinearVelocityWorld,
    BaseOrientation as BaseOrientation,
    BasePosition as BasePosition,
    ProjectedGravity as ProjectedGravity,
)
from ksim.mdp.observations.bodies import (
    BodyOrientation as BodyOrientation,
    BodyPosition as BodyPosition,
    CenterOfMassInertia as CenterOfMassInertia,
    CenterOfMassPosition as CenterOfMassPosition,
    CenterOfMassVelocity as CenterOfMassVelocity,
    HeightScan as HeightScan,
    SitePosition as SitePosition,
)
from ksim.mdp.observations.joints import (
    ActuatorForce as ActuatorForce,
    JointPosition as JointPosition,
    JointVelocity as JointVelocity,
)
from ksim.mdp.observations.sensors import (
    FootAirTime as FootAirTime,
    FootContact as FootContact,
    FootForce as FootForce,
    SensorReading as SensorReading,
)
from ksim.mdp.observations.task import (
    CommandValue as CommandValue,
    LastAction as LastAction,
    PhaseClock as PhaseClock,
    TimeLeft as TimeLeft,
)
from ksim.mdp.observations.wrappers import Delayed as Delayed, History as History
