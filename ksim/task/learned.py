"""A task with an algorithm: its learner, initial state and training step, for any on-policy algorithm."""

import functools
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray, PyTree

from ksim.errors import ConfigError
from ksim.learn.learner import AbstractLearner, LearnerInfo, initial_memories
from ksim.learn.train_step import TrainStep
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.parallel.collectives import mean_across_devices
from ksim.rollout.unroll import initial_next_starts
from ksim.task.returned import check_env_state, initial_model
from ksim.task.rl import RLConfig, RLTask
from ksim.types import EnvBatch, LearnerState, TrainState

ConfigT = TypeVar("ConfigT", bound=RLConfig)

_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""XLA options that cut compile time to a third, for a program that runs once."""


class LearnedTask(RLTask[ConfigT], Generic[ConfigT]):
    """A task trained by the algorithm of `get_learner`. Derive from it to use your own algorithm."""

    def get_learner(self, network: AbstractActorCritic, axis_name: str | None) -> AbstractLearner:
        """The algorithm.

        Args:
            network: The actor-critic before the first iteration. Its arrays are tracers while the initial state is
                computed, and shapes where only shapes are needed.
            axis_name: The mapped axis of devices; None on a single device.
        """
        raise ConfigError(f"{type(self).__name__} must define get_learner; PPOTask has one.")

    def learner_parts(self, network: AbstractActorCritic, axis_name: str | None) -> dict[str, Any]:
        """Values for the fields of `AbstractLearner`, which every learner has."""
        return {
            "env": self.environment,
            "rollout": self._rollout,
            "network": network,
            "obs_sizes": self.obs_sizes,
            "sync_gradients": self.sync_gradients,
            "axis_name": axis_name,
        }

    def sync_gradients(self, grads: PyTree) -> PyTree:
        """Averages gradients over devices, inside the step. Override it to synchronise in another way.

        Called on a single device as well, where a mean over `device_axis` changes nothing.
        """
        return mean_across_devices(grads, self.layout.axis_name)

    def network_sizes(self) -> tuple[str, ...]:
        """Options that make the networks smaller or larger."""
        return ()

    def initial_learner(self) -> tuple[LearnerState, AbstractActorCritic]:
        return self._initial_learner

    @functools.cached_property
    def _initial_learner(self) -> tuple[LearnerState, AbstractActorCritic]:
        model_key, _, learner_key = self._keys()
        _ = self.obs_sizes  # makes the environment, whose arrays must not be tracers: before the trace
        # One program that runs once: array by array, every shape would be compiled separately.
        init = eqx.filter_jit(self._init_learner, compiler_options=_QUICKLY)  # type: ignore[call-arg]
        return init(model_key, learner_key)

    def learner_shapes(self) -> tuple[LearnerState, AbstractActorCritic]:
        """The result of `initial_learner`, with shapes in place of arrays."""
        _ = self.obs_sizes
        key = jax.eval_shape(lambda: jax.random.key(0))
        return eqx.filter_eval_shape(self._init_learner, key, key)

    def _init_learner(
        self, model_key: PRNGKeyArray, learner_key: PRNGKeyArray
    ) -> tuple[LearnerState, AbstractActorCritic]:
        model = initial_model(self, model_key)
        return self.get_learner(model, None).init(learner_key), model

    def learner_info(self) -> LearnerInfo:
        return self.get_learner(self.learner_shapes()[1], None).info()

    def policy_of(self, learner: LearnerState) -> NormalizedActorCritic:
        return self.get_learner(self.initial_learner()[1], None).policy(learner)

    def initial_state(self) -> TrainState:
        learner, model = self.initial_learner()
        env_key, num_envs = self._keys()[1], self.config.num_envs
        env_state = self._get_initial_env_state(env_key)
        check_env_state(self, env_state)
        shapes = jax.eval_shape(lambda state: state, env_state)
        make_rest = lambda key, index_e: (
            *initial_memories(model, len(index_e)),
            initial_next_starts(shapes, key, index_e),
        )
        return TrainState(learner, EnvBatch(env_state, *self.layout.make_envs(make_rest, env_key, num_envs)))

    def make_train_step(self, axis_name: str | None) -> TrainStep:
        self.batch_figures()  # checked
        return TrainStep(self.get_learner(self.initial_learner()[1], axis_name))

    def _keys(self) -> tuple[PRNGKeyArray, PRNGKeyArray, PRNGKeyArray]:
        model_key, env_key, learner_key = jax.random.split(jax.random.key(self.config.seed), 3)
        return model_key, env_key, learner_key
