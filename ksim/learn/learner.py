"""The interface to an algorithm: collection of a rollout, and the learner that uses it."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree

from ksim.learn.statistics import running_episodes
from ksim.nn.actor_critic import AbstractActorCritic, initial_carries
from ksim.nn.normalizer import NormalizedActorCritic, ObservationNormalizer
from ksim.rollout.environment import Environment
from ksim.types import EnvBatch, EnvState, LearnerState, Levels, Metrics, TrainState, Trajectory

Rollout = Callable[[AbstractActorCritic, EnvState, PyTree, Key[Array, ""]], tuple[Trajectory, EnvState, PyTree]]
"""`(model, env_state, model_carry, rng) -> (trajectory, env_state, model_carry)` for one device's envs.

`rng` is one key, the same on every device.
"""


class RolloutBatch(eqx.Module):
    """One device's rollout, passed from the first half of a training step to the second.

    Attributes:
        model_carry: The model's memory before the rollout, one row per env.
        episode_return: Undiscounted return of the running episode up to and including each step.
        episode_length: Length in steps of the running episode up to and including each step.
    """

    trajectory: Trajectory
    model_carry: PyTree
    episode_return: Float[Array, "*e_t"]
    episode_length: Int[Array, "*e_t"]


def initial_memories(model: AbstractActorCritic, num_envs: int) -> tuple[PyTree, Array, Array]:
    """The initial `model_carry`, `episode_return` and `episode_length` of `EnvBatch`."""
    return initial_carries(model, num_envs), jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32)


SyncGradients = Callable[[PyTree], PyTree]
"""Averages gradients over devices."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Memory that grows with an option of the algorithm.

    Attributes:
        bytes_per_env: Bytes on a device for each of its envs and each unit of the option.
        purpose: Use of the memory, such as `the order of the minibatches`.
    """

    option: str
    bytes_per_env: int
    purpose: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerInfo:
    """Information about an algorithm for the host's prints, plots and estimates.

    Attributes:
        hyper: The algorithm's hyperparameters, for the log.
        start: Entries of the start table, by name.
        line: Additional metrics on the line of each iteration, by label.
        plots: Metrics plotted with the learning curves, by the panel's title.
        memory: Memory that grows with options of the algorithm.
        syncs_per_iteration: Number of times that gradients are averaged over devices in an iteration.
    """

    hyper: Any = None
    start: Mapping[str, str] = dataclasses.field(default_factory=dict)
    line: Mapping[str, str] = dataclasses.field(default_factory=dict)
    plots: Mapping[str, str] = dataclasses.field(default_factory=dict)
    memory: tuple[MemoryUse, ...] = ()
    syncs_per_iteration: int = 1


# Compared by identity: networks hold arrays, and a mapped function must have a hash.
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AbstractLearner(ABC):
    """An algorithm: pure functions that run per device, and figures for the host.

    An algorithm defines `init`, `learn` and `info`. `collect` and `learn` are the two halves of a training step (see
    `TrainStep`), which a run compiles as two programs. They share the state `LearnerState`, or a subclass with more
    fields. Its `key`, `iteration` and `levels` belong to the training step.

    Attributes:
        rollout: Steps this device's envs under a policy.
        network: The actor-critic before the first iteration. Its arrays are shapes where only `info` is called.
        obs_sizes: The length of each observation group.
        sync_gradients: Averages gradients over devices.
        axis_name: The mapped axis of devices; None on a single device.
    """

    env: Environment
    rollout: Rollout
    network: AbstractActorCritic
    obs_sizes: dict[str, int]
    sync_gradients: SyncGradients
    axis_name: str | None

    @abstractmethod
    def init(self, key: PRNGKeyArray) -> LearnerState:
        """The learner before the first iteration. Traced, with the network's arrays; see `initial_learner_state`."""

    def collect(self, state: TrainState, key: PRNGKeyArray) -> tuple[RolloutBatch, EnvBatch]:
        """A rollout of this device's envs under the learner's policy, and the envs after it.

        Holds no collective over devices, so that no device waits for another while collecting, unless code of the
        user's own has some.

        Args:
            state: The state before the rollout. The environment's curricula are set to its levels.
            key: One key, the same on every device.
        """
        envs = state.envs
        env_state = jax.vmap(self.env.at_levels, in_axes=(0, None))(envs.env_state, state.learner.levels)
        env_state = dataclasses.replace(env_state, next_start=envs.next_start)
        trajectory, env_state, model_carry = self.rollout(self.policy(state.learner), env_state, envs.model_carry, key)
        # A task's own rollout may return states without next starts; the starts from before it are then still valid.
        next_start = envs.next_start if env_state.next_start is None else env_state.next_start
        env_state = dataclasses.replace(env_state, next_start=None)
        (return_et, length_et), (return_e, length_e) = running_episodes(
            trajectory.reward, trajectory.done, envs.episode_return, envs.episode_length
        )
        collected = RolloutBatch(trajectory, envs.model_carry, return_et, length_et)
        return collected, EnvBatch(env_state, model_carry, return_e, length_e, next_start)

    @abstractmethod
    def learn(
        self, learner: LearnerState, collected: RolloutBatch, key: PRNGKeyArray, is_usable: Bool[Array, ""]
    ) -> tuple[LearnerState, Metrics]:
        """The learner after learning from a rollout, the same on every device.

        Args:
            learner: The learner that collected the rollout.
            collected: This device's share of the rollout.
            key: One key, the same on every device.
            is_usable: Whether the rollout may be learned from; if not, skip and count every optimizer step.

        Returns:
            The learner, and metrics over all devices. They include `policy/bad_updates`, the number of steps skipped
            because of a non-finite gradient. `num_bad_updates` of the learner counts skipped steps in a row.
        """

    def policy(self, learner: LearnerState) -> NormalizedActorCritic:
        """The policy and value function of a learner, on raw observations: behind its observation statistics."""
        return NormalizedActorCritic(eqx.combine(learner.params, static_leaves(self.network)), learner.normalizer)

    @abstractmethod
    def info(self) -> LearnerInfo:
        """Information for the host's prints, plots and estimates of memory."""


def trainable_leaves(model: AbstractActorCritic) -> PyTree:
    """The floating-point arrays of a model, or their shapes; every other leaf is None."""
    return eqx.filter(model, _is_trainable)


def static_leaves(model: AbstractActorCritic) -> PyTree:
    """The leaves that `trainable_leaves` omits; `eqx.combine` joins the two."""
    return eqx.filter(model, _is_trainable, inverse=True)


def _is_trainable(x: Any) -> bool:
    is_shape = isinstance(x, jax.ShapeDtypeStruct) and jnp.issubdtype(x.dtype, jnp.inexact)
    return is_shape or eqx.is_inexact_array(x)


def initial_learner_state(
    model: AbstractActorCritic,
    obs_sizes: dict[str, int],
    optimizer: optax.GradientTransformation,
    key: PRNGKeyArray,
    levels: Levels,
    *,
    normalize_values: bool = False,
) -> LearnerState:
    """The learner before the first iteration."""
    params = trainable_leaves(model)
    return LearnerState(
        params=params,
        normalizer=ObservationNormalizer.init(obs_sizes, with_values=normalize_values),
        opt_state=optimizer.init(params),
        key=key,
        iteration=jnp.int32(0),
        num_bad_updates=jnp.int32(0),
        levels=levels,
    )
