"""Rewards, one file per theme."""

from ksim.mdp.rewards.base import AbstractReward as AbstractReward
from ksim.mdp.rewards.effort import (
    ActionAcceleration as ActionAcceleration,
    ActionRate as ActionRate,
    JointAcceleration as JointAcceleration,
    JointLimits as JointLimits,
    JointVelocityEffort as JointVelocityEffort,
    MechanicalPower as MechanicalPower,
    TorqueEffort as TorqueEffort,
)
from ksim.mdp.rewards.feet import (
    FeetAirTime as FeetAirTime,
    FeetPhase as FeetPhase,
    FeetSlip as FeetSlip,
    FootClearance as FootClearance,
    ImpactForce as ImpactForce,
    SwingPose as SwingPose,
)
from ksim.mdp.rewards.posture import (
    Alive as Alive,
    BaseHeightError as BaseHeightError,
    BaseTilt as BaseTilt,
    JointDeviation as JointDeviation,
    RollPitchRate as RollPitchRate,
    TerminationPenalty as TerminationPenalty,
    Upright as Upright,
    VerticalVelocity as VerticalVelocity,
)
from ksim.mdp.rewards.tracking import (
    StandStill as StandStill,
    TrackHeading as TrackHeading,
    TrackHeight as TrackHeight,
    TrackLinearVelocity as TrackLinearVelocity,
    TrackYawRate as TrackYawRate,
)
