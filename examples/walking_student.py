"""A humanoid that sees what a robot sees learns to walk from a teacher that sees more.

python -m examples.walking_student teacher=pretrained
python -m examples.walking_student teacher=runs/TEACHER model=gru
python -m examples.walking_student load_weights=runs/STUDENT init_std=0.2

The first two imitate a run of examples.walking_teacher. The third continues from the student by PPO.
"""

from dataclasses import dataclass

import jax

import ksim
from ksim.config import field

from .walking import HumanoidWalkingTask
from .walking_distributed import HumanoidWalkingDistributedConfig
from .walking_teacher import Groups, HumanoidTeacherTask, privileged


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class HumanoidStudentConfig(HumanoidWalkingDistributedConfig, ksim.DistillConfig):
    """Options of the humanoid that learns from a teacher."""

    num_envs: int = field(1024, help="parallel environments, over all devices")
    num_passes: int = field(4, help="passes over each rollout")
    symmetry: str = field("off", help="left and right learn from each other: off, augment or loss")
    max_iterations: int | None = field(300, help="stop after this many iterations; null: no limit")
    init_std: float = field(0.2, help="initial standard deviation of the policy")


class HumanoidStudentTask(
    ksim.DistillTask[HumanoidStudentConfig],
    HumanoidWalkingTask[HumanoidStudentConfig],
    ksim.DistributedPPOTask[HumanoidStudentConfig],
):
    """A humanoid that sees what a robot sees, and learns from a teacher that sees more."""

    pretrained = None
    pretrained_teacher = HumanoidTeacherTask.pretrained

    def get_observations(self, physics_model: ksim.PhysicsModel) -> Groups:
        groups = super().get_observations(physics_model)
        return groups if self.config.teacher is None else {**groups, "teacher": privileged(groups)}


if __name__ == "__main__":
    HumanoidStudentTask.launch(HumanoidStudentConfig())
