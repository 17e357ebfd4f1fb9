"""Training a task with REPPO: policy gradients through a learned Q function, in place of PPO's."""

from dataclasses import dataclass, fields
from typing import ClassVar, Generic, TypeVar

import jax
import optax
from jaxtyping import PRNGKeyArray

from ksim.config import field
from ksim.errors import ConfigError
from ksim.learn.learner import AbstractLearner
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.ppo.reppo import REPPO, REPPOHyperparameters, ReppoNetwork, clipped_by_part
from ksim.task.ppo import PPOConfig, PPOTask

PPO_ALONE = (
    *("clip_param", "value_clip", "value_loss_coef", "entropy_coef", "desired_kl", "min_learning_rate"),
    *("max_learning_rate", "normalize_values", "model", "memory_size", "activation", "std", "squash"),
    *("symmetry", "symmetry_coef", "remat"),
)
"""Options of PPO that REPPO has not."""


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class REPPOConfig(PPOConfig):
    """Options of REPPO, and those of PPO but `PPO_ALONE`.

    Put it after the options of a task: `class Mine(Theirs, REPPOConfig)`.
    """

    help_group: ClassVar[str] = "PPO"

    learning_rate: float = field(3e-4, above=0, help="step size of Adam")
    kl_bound: float = field(
        0.1, above=0, help="KL divergence from the acting policy at which a state no longer improves the policy"
    )
    entropy_target: float = field(
        -0.5,
        least=-10,
        most=0.68,
        details="Per component of the action, which is between -1 and 1: the policy can have 0.683, a Gaussian of "
        "standard deviation 0.15 has -0.5. The weight of the entropy adapts to it.",
        help="entropy of the policy per component of the action, in nats",
    )
    latent_loss_coef: float = field(
        1.0, least=0, help="weight with which the Q function learns to predict its own features a step later"
    )

    def validate(self) -> None:
        super().validate()
        defaults = {option.name: option.default for option in fields(self)}
        for name in PPO_ALONE:
            if getattr(self, name) != defaults[name]:
                raise ConfigError(
                    f"{name} ({getattr(self, name)}) is an option of PPO, and REPPO has no use for it. Leave it out."
                )
        if self.gamma == 1:
            raise ConfigError(f"gamma ({self.gamma}) must be below 1 for REPPO, which weighs the entropy by 1 - gamma.")


ConfigT = TypeVar("ConfigT", bound=REPPOConfig)


class REPPOTask(PPOTask[ConfigT], Generic[ConfigT]):
    """A task trained by REPPO. Put it before a task of PPO, whose hooks it keeps: `class Mine(REPPOTask, Theirs)`.

    Actions are between -1 and 1. The network is a `ksim.ppo.reppo.ReppoNetwork`.
    """

    reached_groups: ClassVar[tuple[str, ...]] = ("actor", "critic")

    def get_optimizer(self) -> optax.GradientTransformation:
        """Adam after clipping the gradients of the policy and of the Q function, each by its global norm."""
        make = lambda learning_rate: clipped_by_part(self.config.max_grad_norm, learning_rate)
        return optax.inject_hyperparams(make)(learning_rate=self.config.learning_rate)

    def _get_initial_model(self, rng: PRNGKeyArray) -> AbstractActorCritic:
        config = self.config
        return ReppoNetwork(
            self.obs_sizes,
            self.environment.action_size,
            actor_sizes=config.actor_sizes,
            critic_sizes=config.critic_sizes,
            init_std=config.init_std,
            min_std=config.min_std,
            key=rng,
        )

    def get_learner(self, network: AbstractActorCritic, axis_name: str | None) -> AbstractLearner:
        if not isinstance(network, ReppoNetwork):
            raise ConfigError(
                f"_get_initial_model must return a ksim.ppo.reppo.ReppoNetwork, or a subclass, for REPPO, but returned "
                f"{type(network).__name__}."
            )
        if super().get_learner.__func__ is not PPOTask.get_learner:
            raise ConfigError(
                f"{type(self).__name__}: REPPOTask must stand before a task of PPO, but the next has a learner of its "
                f"own ({super().get_learner.__qualname__}). Leave one of the two out."
            )
        parts = self.learner_parts(network, axis_name)
        return REPPO(
            **parts, optimizer=self.checked_optimizer(network), hyper=self.hyperparameters_of(REPPOHyperparameters)
        )
