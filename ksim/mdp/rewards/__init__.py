"""Rewards, one file per theme."""

from ksim.mdp.rewards.base import AbstractReward as AbstractReward
from ksim.mdp.rewards.effort import (
    ActionRate as ActionRate,
    JointLimits as JointLimits,
    JointVelocityEffort as JointVelocityEffort,
    TorqueEffort as TorqueEffort,
)
from ksim.mdp.rewards.feet import FeetAirTime as FeetAirTime, FeetPhase as FeetPhase, FeetSlip as FeetSlip
from ksim.mdp.rewards.posture import (
    Alive as Alive,
    BaseHeightError as BaseHeightError,
    BaseTilt as BaseTilt,
    JointDeviation as JointDeviation,
    RollPitchRate as RollPitchRate,
    TerminationPenalty as TerminationPenalty,
    VerticalVelocity as VerticalVelocity,
)
from ksim.mdp.rewards.tracking import TrackLinearVelocity as TrackLinearVelocity, TrackYawRate as TrackYawRate
