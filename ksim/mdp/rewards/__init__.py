"""Rewards, one file per theme."""

from ksim.mdp.rewards.base import AbstractReward as AbstractReward
from ksim.mdp.rewards.contacts import (
    Stumble as Stumble,
    UndesiredContact as UndesiredContact,
)
from ksim.mdp.rewards.effort import (
    ActionAcceleration as ActionAcceleration,
    ActionJerk as ActionJerk,
    ActionRate as ActionRate,
    CostOfTransport as CostOfTransport,
    JointAcceleration as JointAcceleration,
    JointLimits as JointLimits,
    JointVelocityEffort as JointVelocityEffort,
    JointVelocityLimits as JointVelocityLimits,
    MechanicalPower as MechanicalPower,
    TorqueEffort as TorqueEffort,
    TorqueLimits as TorqueLimits,
)
from ksim.mdp.rewards.feet import (
    AirTimeVariance as AirTimeVariance,
    FeetAirTime as FeetAirTime,
    FeetSlip as FeetSlip,
    ImpactForce as ImpactForce,
    SingleSupport as SingleSupport,
)
from ksim.mdp.rewards.gait import (
    FeetPhase as FeetPhase,
    FeetPhaseForce as FeetPhaseForce,
    FeetPhaseVelocity as FeetPhaseVelocity,
    FootSwingHeight as FootSwingHeight,
    SwingPose as SwingPose,
    Symmetry as Symmetry,
    TrackGait as TrackGait,
)
from ksim.mdp.rewards.motion import (
    TrackAnchorOrientation as TrackAnchorOrientation,
    TrackAnchorPosition as TrackAnchorPosition,
    TrackBodyAngularVelocities as TrackBodyAngularVelocities,
    TrackBodyOrientations as TrackBodyOrientations,
    TrackBodyPositions as TrackBodyPositions,
    TrackBodyVelocities as TrackBodyVelocities,
    TrackMotionJoints as TrackMotionJoints,
    TrackMotionJointVelocities as TrackMotionJointVelocities,
)
from ksim.mdp.rewards.posture import (
    Alive as Alive,
    BaseAngularAcceleration as BaseAngularAcceleration,
    BaseHeightError as BaseHeightError,
    BaseLinearAcceleration as BaseLinearAcceleration,
    BasePitch as BasePitch,
    BaseRoll as BaseRoll,
    BaseTilt as BaseTilt,
    JointDeviation as JointDeviation,
    RollPitchRate as RollPitchRate,
    TerminationPenalty as TerminationPenalty,
    Upright as Upright,
    VerticalVelocity as VerticalVelocity,
)
from ksim.mdp.rewards.swing import (
    FeetDistance as FeetDistance,
    FeetFlat as FeetFlat,
    FootApexHeight as FootApexHeight,
    FootClearance as FootClearance,
)
from ksim.mdp.rewards.tracking import (
    StandStill as StandStill,
    TrackHeading as TrackHeading,
    TrackHeight as TrackHeight,
    TrackJointPose as TrackJointPose,
    TrackLinearVelocity as TrackLinearVelocity,
    TrackPosition as TrackPosition,
    TrackRollPitch as TrackRollPitch,
    TrackYawRate as TrackYawRate,
)
from ksim.mdp.rewards.wrappers import Clipped as Clipped, Custom as Custom, ScaledByLevel as ScaledByLevel
