"""Hooks that define how a task learns. `PPOTask` implements them for PPO, `LearnedTask` for on-policy algorithms."""

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import equinox as eqx
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from ksim.errors import ConfigError
from ksim.learn.learner import LearnerInfo
from ksim.learn.train_step import TrainStep
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.types import LearnerState, TrainState


class LearningHooks:
    """The hooks through which the training loop, evaluations and checkpoints reach the algorithm."""

    reached_groups: ClassVar[tuple[str, ...]] = ()
    """Observation groups whose values in the states reached the algorithm needs too, in `Trajectory.reached`."""

    def _get_initial_model(self, rng: PRNGKeyArray) -> AbstractActorCritic | eqx.Module:
        """The actor-critic before the first iteration. Traced; `rng` is the only input that varies.

        It may also be a memoryless Equinox module that returns `(mean of the action, value)` for an observation.
        """
        raise ConfigError(f"{type(self).__name__} must define _get_initial_model; PPOTask has one.")

    def get_optimizer(self) -> optax.GradientTransformation:
        """The optimizer, with an injected `learning_rate`."""
        raise ConfigError(f"{type(self).__name__} must define get_optimizer; PPOTask has one.")

    def adapt_resumed(self, state: TrainState, changed: Mapping[str, tuple[Any, Any]]) -> TrainState:
        """A checkpoint's state, updated to changed options whose values are part of the state.

        Args:
            state: The state from the checkpoint.
            changed: Changed options by name: `(value in the checkpoint, value now)`.
        """
        return state

    def kept_arrays(self) -> Mapping[str, np.ndarray]:
        """Arrays that every checkpoint of the run holds besides the state.

        Their names must not begin with `learner.` or `envs.`, the prefixes of the state's arrays.
        """
        return {}

    def batch_figures(self) -> tuple[int | None, int | None]:
        """Global batch size and minibatches per pass; None for an algorithm without minibatches.

        Raises:
            ConfigError: They do not fit the number of environments or of devices.
        """
        return None, None

    def updates_per_iteration(self) -> int | None:
        """Minibatches of an iteration over all passes; None for an algorithm without minibatches."""
        return None

    def initial_learner(self) -> tuple[LearnerState, AbstractActorCritic]:
        """The learner's state before the first iteration, and the actor-critic whose arrays it holds."""
        self._refuse_to_learn()

    def learner_shapes(self) -> tuple[LearnerState, AbstractActorCritic]:
        """The result of `initial_learner`, with shapes in place of arrays."""
        self._refuse_to_learn()

    def initial_state(self) -> TrainState:
        """The global state before the first iteration, not yet placed on devices."""
        self._refuse_to_learn()

    def make_train_step(self, axis_name: str | None) -> TrainStep:
        """The training step, for a single device (None) or mapped over an axis of devices."""
        self._refuse_to_learn()

    def policy_of(self, learner: LearnerState) -> NormalizedActorCritic:
        """The policy and value function of a learner, on raw observations."""
        self._refuse_to_learn()

    def learner_info(self) -> LearnerInfo:
        """Information about the algorithm for the host's prints, plots and estimates."""
        self._refuse_to_learn()

    def _refuse_to_learn(self) -> NoReturn:
        raise ConfigError(f"{type(self).__name__} must derive from PPOTask, which knows how to learn.")
