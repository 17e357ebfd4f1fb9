"""Observations, one file per theme."""

from ksim.mdp.observations.accelerations import (
    BaseAngularAcceleration as BaseAngularAcceleration,
    BaseAngularAccelerationWorld as BaseAngularAccelerationWorld,
    BaseLinearAcceleration as BaseLinearAcceleration,
    BaseLinearAccelerationWorld as BaseLinearAccelerationWorld,
    JointAcceleration as JointAcceleration,
)
from ksim.mdp.observations.base import AbstractObservation as AbstractObservation
from ksim.mdp.observations.base_state import (
    BaseAngularVelocity as BaseAngularVelocity,
    BaseAngularVelocityWorld as BaseAngularVelocityWorld,
    BaseHeight as BaseHeight,
    BaseLinearVelocity as BaseLinearVelocity,
    BaseLinearVelocityWorld as BaseLinearVelocityWorld,
    BaseOrientation as BaseOrientation,
    BasePosition as BasePosition,
    ProjectedGravity as ProjectedGravity,
)
from ksim.mdp.observations.bodies import (
    BodyOrientation as BodyOrientation,
    BodyOrientationInBase as BodyOrientationInBase,
    BodyPosition as BodyPosition,
    BodyPositionWorld as BodyPositionWorld,
    CenterOfMassInertia as CenterOfMassInertia,
    CenterOfMassPosition as CenterOfMassPosition,
    CenterOfMassVelocity as CenterOfMassVelocity,
    HeightScan as HeightScan,
    SiteOrientation as SiteOrientation,
    SitePosition as SitePosition,
    SitePositionWorld as SitePositionWorld,
)
from ksim.mdp.observations.imu import ImuAccelerometer as ImuAccelerometer, ImuGyro as ImuGyro
from ksim.mdp.observations.joints import (
    ActuatorControl as ActuatorControl,
    ActuatorForce as ActuatorForce,
    JointPosition as JointPosition,
    JointTorque as JointTorque,
    JointVelocity as JointVelocity,
)
from ksim.mdp.observations.motion import (
    MotionBaseOrientation as MotionBaseOrientation,
    MotionBasePosition as MotionBasePosition,
    MotionJoints as MotionJoints,
    MotionJointVelocities as MotionJointVelocities,
    MotionPhase as MotionPhase,
)
from ksim.mdp.observations.sensors import (
    FootAirTime as FootAirTime,
    FootContact as FootContact,
    FootForce as FootForce,
    SensorReading as SensorReading,
)
from ksim.mdp.observations.task import (
    ActionHistory as ActionHistory,
    CommandValue as CommandValue,
    GaitClock as GaitClock,
    HeadingError as HeadingError,
    LastAction as LastAction,
    PhaseClock as PhaseClock,
    PreviousAction as PreviousAction,
    TimeLeft as TimeLeft,
)
from ksim.mdp.observations.velocities import (
    BodyAngularVelocity as BodyAngularVelocity,
    BodyAngularVelocityWorld as BodyAngularVelocityWorld,
    BodyLinearVelocity as BodyLinearVelocity,
    BodyLinearVelocityWorld as BodyLinearVelocityWorld,
    SiteAngularVelocity as SiteAngularVelocity,
    SiteAngularVelocityWorld as SiteAngularVelocityWorld,
    SiteLinearVelocity as SiteLinearVelocity,
    SiteLinearVelocityWorld as SiteLinearVelocityWorld,
)
from ksim.mdp.observations.wrappers import (
    Delayed as Delayed,
    History as History,
    Lagged as Lagged,
    Misaligned as Misaligned,
)
