"""Tasks trained with proximal policy optimization, on one device and on several."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray

from ksim.checks import check_batch, check_sizes, pick_num_batches
from ksim.config import field
from ksim.errors import ConfigError
from ksim.learn.learner import AbstractLearner, trainable_leaves
from ksim.mirror import Mirror, find_mirror
from ksim.nn import AbstractActorCritic, GruActorCritic, MlpActorCritic
from ksim.nn.networks import MIN_STD, Activation, StdKind
from ksim.ppo.losses import PPOHyperparameters
from ksim.ppo.minibatches import MinibatchHyperparameters
from ksim.ppo.ppo import PPO
from ksim.ppo.symmetry import SymmetricLoss, SymmetryMode, check_mirror, check_without_memory
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.task.config import made_once
from ksim.task.distributed import DistributedRLConfig, DistributedRLTask
from ksim.task.hook_checks import check_optimizer, check_own_optimizer, hook_name, is_overridden
from ksim.task.mdp import compile_robot
from ksim.task.rl import RLConfig, RLTask
from ksim.types import TrainState

MODELS = ("mlp", "gru")
SYMMETRIES = ("off", *get_args(SymmetryMode))
MIN_LEARNING_RATE, MAX_LEARNING_RATE = 1e-5, 3e-3
"""Default bounds of an adaptive learning rate."""


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class PPOConfig(RLConfig):
    """Options of PPO."""

    help_group: ClassVar[str] = "PPO"

    batch_size: int | None = field(
        None,
        least=1,
        details="Give batch_size or num_batches. Minibatches are made of whole environments with all their steps, and "
        "each device contributes an equal share to every minibatch.",
        help="environments per minibatch, over all devices; null: num_envs / num_batches",
    )
    num_batches: int | None = field(
        None, least=1, help="minibatches per pass; null: num_envs / batch_size, or 4 if batch_size is null too"
    )
    num_passes: int = field(4, least=1, help="passes over each rollout")
    learning_rate: float = field(1e-3, above=0, help="step size of Adam; the initial one if it is adaptive")
    desired_kl: float | None = field(
        0.02,
        above=0,
        details="After every iteration the learning rate is divided by 1.5 if the policy moved more than twice this "
        "far, and multiplied by 1.5 if it moved less than half as far (after Schulman et al. 2017).",
        help="target KL divergence of an adaptive learning rate; null: constant rate",
    )
    min_learning_rate: float | None = field(
        None, above=0, help="lower bound of an adaptive learning rate; null: 1e-5, or learning_rate if that is lower"
    )
    max_learning_rate: float | None = field(
        None, above=0, help="upper bound of an adaptive learning rate; null: 3e-3, or learning_rate if that is higher"
    )
    max_grad_norm: float = field(1.0, above=0, help="maximum norm of the gradients; larger ones are scaled down")
    gamma: float = field(
        0.99,
        least=0,
        most=1,
        details="Rewards count for about 1 / (1 - gamma) steps: 0.99 looks 100 steps ahead, 2 s with ctrl_dt=0.02.",
        help="discount per control step",
    )
    gae_lambda: float = field(0.95, least=0, most=1, help="decay of generalized advantage estimation")
    clip_param: float = field(0.2, above=0, help="PPO clips the probability ratio to 1 +- this")
    value_clip: float | None = field(
        None,
        above=0,
        help="the value loss clips value changes to +- this, in standard deviations with normalize_values; null: plain "
        "squared error",
    )
    value_loss_coef: float = field(1.0, least=0, help="weight of the value loss")
    entropy_coef: float = field(
        0.005,
        least=0,
        details="Larger values keep the policy exploring; a standard deviation above 1 earns no more than 1, unless "
        "actions are squashed. If the standard deviation does not fall, lower it; if it shrinks before the task is "
        "learned, raise it.",
        help="weight of the entropy bonus",
    )
    normalize_observations: bool = field(
        True,
        group="Network",
        help="learn and apply running statistics of the observations",
        network=True,
        fixed=True,
    )
    normalize_values: bool = field(
        True,
        details="The value function then learns targets of mean 0 and variance 1 (van Hasselt et al. 2016). Rewards "
        "ten times larger learn the same. Advantages are divided by no less than 0.03 standard deviations of all "
        "targets so far: smaller ones are mostly noise, which would move a policy away from its peak.",
        help="learn and apply running statistics of the value targets, so that the scale of rewards does not matter",
        fixed=True,
    )
    model: str = field(
        "mlp",
        group="Network",
        choices=MODELS,
        details="gru has a memory over time steps, for tasks in which one observation does not tell enough. A network "
        "of your own is made by the hook _get_initial_model.",
        help="default network: mlp, or gru (recurrent)",
        network=True,
    )
    actor_sizes: list[int] = field(
        [256, 128], group="Network", help="sizes of the hidden layers of the policy", network=True
    )
    critic_sizes: list[int] = field(
        [256, 128], group="Network", help="sizes of the hidden layers of the value function", network=True
    )
    memory_size: int = field(
        128, least=1, group="Network", help="size of the recurrent state with model=gru", network=True
    )
    activation: str = field(
        "elu",
        group="Network",
        choices=get_args(Activation),
        help="activation of the hidden layers: elu, relu, silu (swish) or tanh",
        network=True,
        fixed=True,
    )
    std: str = field(
        "state_independent",
        group="Network",
        choices=get_args(StdKind),
        help="standard deviation of the policy: state_independent, or learned per state",
        network=True,
    )
    init_std: float = field(
        1.0,
        above=0,
        group="Network",
        details="In units of actions. A robot with position servos falls at once under noise that moves its targets "
        "far: try 0.3 to 0.7 there.",
        help="initial standard deviation of the policy",
        fixed=True,
    )
    min_std: float = field(
        MIN_STD,
        above=0,
        group="Network",
        help="lower bound of the standard deviation of the policy, in units of actions",
    )
    squash: bool = field(
        False,
        group="Network",
        help="squash actions between -1 and 1 by tanh; standard deviations are those before it",
        network=True,
        fixed=True,
    )
    symmetry: str = field(
        "off",
        choices=SYMMETRIES,
        details="augment also learns from the mirror image of every step. loss adds symmetry_coef times the squared "
        "gap between the policy's action and the mirror image of its action for the mirror image of what it sees.",
        help="what makes the policy as good to the left as to the right: augment, loss, or off",
    )
    symmetry_coef: float = field(1.0, least=0, help="weight of the gap with symmetry=loss")
    remat: bool = field(
        False, help="save memory by gradient checkpointing: recompute activations, step by step (jax.checkpoint)"
    )

    def check_shares(self, num_devices: int) -> None:
        super().check_shares(num_devices)
        check_batch(self.num_envs, self.batch_size, self.num_batches, num_devices)

    def validate(self) -> None:
        super().validate()
        check_sizes("actor_sizes", self.actor_sizes)
        check_sizes("critic_sizes", self.critic_sizes)
        self._check_learning_rate_bounds()

    def learning_rate_bounds(self) -> tuple[float, float]:
        """The bounds of an adaptive learning rate."""
        lowest, highest = self.min_learning_rate, self.max_learning_rate
        return (
            min(MIN_LEARNING_RATE, self.learning_rate) if lowest is None else lowest,
            max(MAX_LEARNING_RATE, self.learning_rate) if highest is None else highest,
        )

    def _check_learning_rate_bounds(self) -> None:
        rate, (lowest, highest) = self.learning_rate, self.learning_rate_bounds()
        if lowest > highest:
            raise ConfigError(f"min_learning_rate ({lowest}) must be at most max_learning_rate ({highest}).")
        if self.desired_kl is not None and not lowest <= rate <= highest:
            bound = "min_learning_rate" if rate < lowest else "max_learning_rate"
            raise ConfigError(
                f"learning_rate ({rate}) is adaptive (desired_kl={self.desired_kl}) and must be from min_learning_rate "
                f"({lowest}) to max_learning_rate ({highest}). Change it, or set {bound}={rate}."
            )


ConfigT = TypeVar("ConfigT", bound=PPOConfig)
HyperT = TypeVar("HyperT", bound=MinibatchHyperparameters)


class PPOTask(RLTask[ConfigT], Generic[ConfigT]):
    """A task trained by PPO on one device. See `RLTask` for the hooks that describe the robot."""

    def batch_figures(self) -> tuple[int, int]:
        config = self.config
        config.check_shares(self.layout.num_devices)
        num_batches = pick_num_batches(config.num_envs, config.batch_size, config.num_batches)
        return config.num_envs // num_batches, num_batches

    def updates_per_iteration(self) -> int:
        return self.batch_figures()[1] * self.config.num_passes

    def hyperparameters(self) -> PPOHyperparameters:
        """Hyperparameters of PPO: options of the same name, and values derived from others."""
        return self.hyperparameters_of(PPOHyperparameters)

    def hyperparameters_of(self, kind: type[HyperT]) -> HyperT:
        """Hyperparameters of an algorithm: options of the same name, and values derived from others."""
        config = self.config
        lowest, highest = config.learning_rate_bounds()
        values = {
            **{"grad_sync_period": 1, "grad_sync_mode": "accumulate"},  # on one device, which has no such options
            **{option.name: getattr(config, option.name) for option in fields(config)},
            # Not by `batch_figures`, which checks them: a policy can be evaluated with any number of environments.
            "num_batches": pick_num_batches(config.num_envs, config.batch_size, config.num_batches),
            "min_learning_rate": lowest,
            "max_learning_rate": highest,
        }
        return kind(**{x.name: values[x.name] for x in fields(kind)})

    def get_optimizer(self) -> optax.GradientTransformation:
        """Adam after clipping by the global norm. An override must inject `learning_rate` as this one does."""

        def make(learning_rate: float) -> optax.GradientTransformation:
            return optax.chain(
                optax.clip_by_global_norm(self.config.max_grad_norm), optax.adam(learning_rate, eps=1e-5)
            )

        return optax.inject_hyperparams(make)(learning_rate=self.config.learning_rate)

    def checked_optimizer(self, network: AbstractActorCritic) -> optax.GradientTransformation:
        """The result of `get_optimizer`, checked for a network."""
        optimizer, hook = self.get_optimizer(), hook_name(self, "get_optimizer")
        check_optimizer(hook, optimizer)
        if is_overridden(self, "get_optimizer"):
            check_own_optimizer(hook, optimizer, trainable_leaves(network), self.shapes_of)
        return optimizer

    def _get_initial_model(self, rng: PRNGKeyArray) -> AbstractActorCritic:
        config = self.config
        names = ("actor_sizes", "critic_sizes", "activation", "std", "init_std", "min_std", "squash")
        options = {name: getattr(config, name) for name in names}
        sizes = self.obs_sizes, self.environment.action_size
        if config.model == "gru":
            return GruActorCritic(*sizes, memory_size=config.memory_size, **options, key=rng)
        return MlpActorCritic(*sizes, **options, key=rng)

    def get_learner(self, network: AbstractActorCritic, axis_name: str | None) -> AbstractLearner:
        parts = self.learner_parts(network, axis_name)
        if self.config.symmetry != "off":
            check_without_memory(network)
            # The mirror is found when a loss is traced or the start table is printed: the viewer needs none.
            loss = SymmetricLoss(lambda: self.mirror, self.config.symmetry, self.config.symmetry_coef)  # type: ignore[arg-type]
            start = lambda: {"mirror": self.mirror.describe()}
            parts |= {"loss": loss, "loss_inputs": loss.loss_inputs, "start": start}
        return PPO(**parts, optimizer=self.checked_optimizer(network), hyper=self.hyperparameters())

    def get_mirror(self) -> Mirror:
        """The robot's mirror image, for `symmetry`: by default found from its model and its terms.

        Raises:
            ConfigError: Something has no mirror image, or ksim does not know the environment.
        """
        env = self.environment
        if not isinstance(env, MdpEnvironment):
            raise ConfigError(
                f"The mirror image of {type(env).__name__} is not known: only of a robot with terms can ksim find it. "
                "Override get_mirror, or set symmetry=off."
            )
        return find_mirror(env.mdp, compile_robot(self, self.config, [env.mdp.edit_spec], on_terrain=False))

    @made_once
    def mirror(self) -> Mirror:
        """The checked result of `get_mirror`, computed once."""
        mirror = self.get_mirror()
        check_mirror(mirror, self.obs_sizes, self.environment.action_size)
        return mirror

    def network_sizes(self) -> tuple[str, ...]:
        return ("actor_sizes", "critic_sizes", *(("memory_size",) if self.config.model == "gru" else ()))

    def adapt_resumed(self, state: TrainState, changed: Mapping[str, tuple[Any, Any]]) -> TrainState:
        # An adaptive rate that becomes constant would stay at its last value.
        is_constant_now = "desired_kl" in changed and self.config.desired_kl is None
        if "learning_rate" not in changed and not is_constant_now:
            return state
        opt_state = optax.tree.set(state.learner.opt_state, learning_rate=jnp.float32(self.config.learning_rate))
        return eqx.tree_at(lambda state: state.learner.opt_state, state, opt_state)


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class DistributedPPOConfig(DistributedRLConfig, PPOConfig):
    """Options of PPO on several devices."""


ManyConfigT = TypeVar("ManyConfigT", bound=DistributedPPOConfig)


class DistributedPPOTask(DistributedRLTask[ManyConfigT], PPOTask[ManyConfigT], Generic[ManyConfigT]):
    """A task trained by PPO on every device. It has the hooks of `PPOTask`."""
