"""A humanoid that walks at a commanded velocity in the style of reference motions, without a reward for its gait.

python -m examples.walking_amp
python -m examples.walking_amp style_clips=[my_walk.npz]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

import ksim
from ksim.config import field
from ksim.mdp import observations as obs, rewards

from .motions import STROLL
from .walking import FEET, HumanoidWalkingTask
from .walking_distributed import HumanoidWalkingDistributedConfig


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class HumanoidAMPConfig(HumanoidWalkingDistributedConfig, ksim.AMPConfig):
    """Options of the humanoid that walks in the style of reference motions."""

    num_envs: int = field(1024, help="parallel environments, over all devices")
    num_passes: int = field(4, help="passes over each rollout")
    symmetry: str = field("off", help="left and right learn from each other: off, augment or loss")
    max_iterations: int | None = field(700, help="stop after this many iterations; null: no limit")
    style_weight: float = field(4.0, help="weight of the style reward")
    standing_fraction: float = field(0.0, help="fraction of commands to stand still")


class HumanoidAMPTask(
    ksim.AMPTask[HumanoidAMPConfig],
    HumanoidWalkingTask[HumanoidAMPConfig],
    ksim.DistributedPPOTask[HumanoidAMPConfig],
):
    """A humanoid that learns to walk at a commanded velocity in the style of reference motions."""

    pretrained = None

    def get_style_clips(self) -> Sequence[str | Path]:
        return super().get_style_clips() or [STROLL]

    def get_observations(
        self, physics_model: ksim.PhysicsModel
    ) -> Mapping[str, Mapping[str, ksim.AbstractObservation]]:
        # There is no clock: when to step is learned from the reference.
        groups = {
            group: {name: term for name, term in terms.items() if name != "phase"}
            for group, terms in super().get_observations(physics_model).items()
        }
        style = {
            "joint_position": obs.JointPosition(),
            "joint_velocity": obs.JointVelocity(),
            "height": obs.BaseHeight(),
            "gravity": obs.ProjectedGravity(),
            "linear_velocity": obs.BaseLinearVelocity(),
            "angular_velocity": obs.BaseAngularVelocity(),
            "feet": obs.SitePosition(sites=FEET),
        }
        return {**groups, "style": style}

    def get_rewards(self, physics_model: ksim.PhysicsModel) -> list[ksim.AbstractReward]:
        return [
            rewards.TrackLinearVelocity(command="velocity", std=0.35, scale=2.5),
            rewards.TrackYawRate(command="velocity", std=0.5, scale=1.5),
            rewards.Alive(scale=1.0),
            rewards.JointLimits(scale=-1.0),
            rewards.ActionRate(scale=-0.01),
            rewards.TorqueEffort(scale=-5e-6),
            rewards.TerminationPenalty(scale=-100.0),
        ]


if __name__ == "__main__":
    HumanoidAMPTask.launch(HumanoidAMPConfig())
