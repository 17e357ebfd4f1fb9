"""Training a student that observes less than its teacher: distillation first, then PPO with the same task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import jax
import numpy as np

from ksim.config import field
from ksim.errors import ConfigError
from ksim.learn.learner import AbstractLearner
from ksim.learn.teacher import TEACHER, Teacher
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.ppo.distillation import LINE, PLOTS, DistillationLoss
from ksim.ppo.losses import PPOHyperparameters
from ksim.ppo.ppo import PPO
from ksim.task.config import PRETRAINED, imported, made_once
from ksim.task.ppo import PPOConfig, PPOTask


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class DistillConfig(PPOConfig):
    """Options of a student."""

    teacher: str | None = field(
        None,
        group="PPO",
        kind="a path, pretrained or null",
        details="A run's directory or a checkpoint: its deterministic policy is imitated in the states that the "
        "student's own actions lead to (DAgger), while the value function learns the student's returns. Then train by "
        "PPO: load_weights=<the student's run> without teacher. The policy loss of PPO and what belongs to it "
        "(clip_param, entropy_coef, desired_kl) are not used while there is a teacher; the standard deviation stays "
        "at init_std.",
        help="imitate the policy of this run; null: learn from rewards by PPO",
        fixed=True,
    )

    def validate(self) -> None:
        super().validate()
        if self.teacher is not None and self.symmetry != "off":
            raise ConfigError(
                f"symmetry ({self.symmetry}) is for PPO, and teacher ({self.teacher}) is set. Set symmetry=off; a "
                "teacher that was trained with symmetry teaches it."
            )


ConfigT = TypeVar("ConfigT", bound=DistillConfig)


class DistillTask(PPOTask[ConfigT], Generic[ConfigT]):
    """A task that learns from a teacher if the option `teacher` is set, and by PPO otherwise.

    `get_observations` returns the student's observations as group `actor`. It returns the teacher's as group
    `teacher`: the same observations as group `actor` of the teacher's own task. The student's networks and statistics
    do not use group `teacher`.
    """

    pretrained_teacher: ClassVar[Path | None] = None
    """Directory of the policy for `teacher=pretrained`, as written by `run_mode=export`."""

    def get_learner(self, network: AbstractActorCritic, axis_name: str | None) -> AbstractLearner:
        if self.config.teacher is None:
            return super().get_learner(network, axis_name)
        # The teacher is loaded when training is traced: evaluating or exporting a student needs none.
        loss = DistillationLoss(lambda: self.teacher)
        return PPO(
            **self.learner_parts(network, axis_name),
            optimizer=self.checked_optimizer(network),
            hyper=self.hyperparameters(),
            loss=loss,
            loss_inputs=loss.loss_inputs,
            start=lambda: {"teacher": self.teacher.source},
            line=LINE,
            plots=PLOTS,
        )

    def learner_parts(
        self, network: AbstractActorCritic, axis_name: str | None, *, without: Sequence[str] = ()
    ) -> dict[str, Any]:
        return super().learner_parts(network, axis_name, without=(*without, TEACHER))

    def hyperparameters(self) -> PPOHyperparameters:
        hyper = super().hyperparameters()
        # desired_kl limits a policy gradient's step; a student may move to its teacher at once.
        return hyper if self.config.teacher is None else replace(hyper, desired_kl=None)

    @made_once
    def teacher(self) -> Teacher:
        """The policy given by the option `teacher`, checked against the environment.

        Raises:
            ConfigError: There is no such policy, or it does not fit the environment.
        """
        path = self.config.teacher
        if path == PRETRAINED:
            if self.pretrained_teacher is None:
                raise ConfigError(
                    f"teacher=pretrained is for tasks that come with a teacher, and {self.task_name} does not. Give "
                    "the directory of a run."
                )
            path = self.pretrained_teacher
        teacher = imported("ksim.policy.load:load_teacher")(self, path)
        teacher.check(self.obs_sizes, self.environment.action_size)
        return teacher

    def kept_arrays(self) -> Mapping[str, np.ndarray]:
        return {} if self.config.teacher is None else self.teacher.kept
