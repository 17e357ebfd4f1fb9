"""The interface between an MDP and the learner."""

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from ksim.errors import ConfigError
from ksim.parallel.collectives import DEVICE_AXIS, bind_axis
from ksim.physics import PhysicsModel
from ksim.types import EnvState, Levels, Metrics, PhysicsState, key_shape, tree_where

P = ParamSpec("P")
T = TypeVar("T")

QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""XLA options that cut compile time to a third, for a program that runs once or a few times."""


def traced_once(function: Callable[P, T]) -> Callable[P, T]:
    """A pure function of pytrees whose trace is cached: calls with tracers of the same shapes get the same operations.

    The start of a run traces a reset about eight times, for checks, shapes and programs. For a large robot under MJX
    each trace takes a second. Outside a trace the function is called as it is.
    """
    jitted = jax.jit(function, inline=True)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        is_traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs)))
        return (jitted if is_traced else function)(*args, **kwargs)

    return called


@dataclasses.dataclass(frozen=True)
class Shown:
    """An environment's content for videos, plots and the viewer.

    Attributes:
        model: The robot and its world.
        physics_of: The physics of a state. Of its fields `qpos`, `qvel` and `extra` are shown.
        ghost_of: Generalized positions in a state that the robot should have, which videos show beside it; None
            where there are none.
    """

    model: PhysicsModel
    physics_of: Callable[[EnvState], PhysicsState]
    ghost_of: Callable[[EnvState], Array | None] = lambda _: None


class Environment(eqx.Module):
    """One env, as two pure functions; ksim maps them over envs, resets finished episodes and shards the batch.

    ksim's MDP terms compose into one (`ksim.rollout.mdp_environment`). Any other simulator can be one too.
    """

    @property
    @abstractmethod
    def action_size(self) -> int:
        """Length of the action vector."""

    @property
    def engine_name(self) -> str | None:
        """Name of the physics engine: `mjx`, `mujoco` or another; None, the default, if unknown."""
        return None

    def problem(self, metrics: Mapping[str, float]) -> str:
        """A warning about the physics of an iteration with these metrics, with its fix; empty if there is none."""
        return ""

    @abstractmethod
    def reset(self, key: PRNGKeyArray) -> EnvState:
        """The start of an episode. `key` is the only source of randomness of the episode."""

    def first_episode(self, key: PRNGKeyArray) -> EnvState:
        """The first start in training, at the initial levels of the curricula; `reset` starts the full task."""
        return self.reset(key)

    def next_episode(self, state: EnvState, key: PRNGKeyArray) -> EnvState:
        """The start of the episode after `state`, with everything in `state` that persists over episodes.

        `state` is the last state of the ended episode, or the state before it if the last is non-finite.
        """
        return self.reset(key)

    def is_next_start(self, start: EnvState, state: EnvState) -> Bool[Array, ""]:
        """Whether `start`, made by `next_episode` from an earlier state of this env, is also the next start of `state`.

        ksim makes starts before episodes end, many in one batch, and drops those that no longer hold. For an
        environment that overrides `next_episode` but not this method, none are made ahead.
        """
        return jnp.bool_(True)

    def shown(self) -> Shown | None:
        """Content for videos, plots and the viewer; None, the default, if MuJoCo cannot show the environment."""
        return None

    def episode_groups(self) -> tuple[str, ...]:
        """Kinds of episodes that evaluations also report separately, such as motion clips; by default none."""
        return ()

    def episode_group(self, state: EnvState) -> Int[Array, ""]:
        """The kind of a state's episode, as an index into `episode_groups`; the same in all states of an episode."""
        return jnp.int32(0)

    def initial_levels(self) -> Levels:
        """The initial levels of the common curricula; by default there are none.

        A per-env level is part of its env's state, and changes in `next_episode`.
        """
        return {}

    def next_levels(self, levels: Levels, metrics: Metrics, iteration: Int[Array, ""]) -> Levels:
        """The levels of the common curricula after an iteration with these metrics."""
        return levels

    def at_levels(self, state: EnvState, levels: Levels) -> EnvState:
        """The state with these levels of the common curricula, for its episode and the following ones."""
        return state

    @abstractmethod
    def step(self, state: EnvState, action: Array) -> EnvState:
        """One control step. It only flags the end of an episode; ksim does the reset."""


def check_environment(env: Environment, axis_name: str = DEVICE_AXIS) -> dict[str, int]:
    """Traces a reset and a step, without running or compiling them, and checks what they return.

    Returns:
        The length of each observation group.

    Raises:
        ConfigError: An observation group is not a vector or `actor` is missing; reward or flags are not scalars; or a
            step returns another structure, shape or dtype than a reset.
    """
    key = key_shape()
    state = jax.eval_shape(bind_axis(env.reset, axis_name), key)
    if not isinstance(state, EnvState):
        raise ConfigError(f"{type(env).__name__}.reset must return an EnvState, not {type(state).__name__}.")
    if "actor" not in state.obs:
        raise ConfigError(f"Observation groups ({', '.join(state.obs) or 'none'}) must contain the group 'actor'.")
    for group, x in state.obs.items():
        if len(x.shape) != 1:
            raise ConfigError(f"Observation group {group!r} must be a vector, but has shape {x.shape}.")
    for name, kind, in_words in (
        ("reward", jnp.floating, "float"),
        ("terminated", jnp.bool_, "bool"),
        ("truncated", jnp.bool_, "bool"),
    ):
        value = getattr(state, name)
        if value.shape != () or not jnp.issubdtype(value.dtype, kind):
            raise ConfigError(
                f"{name} of {type(env).__name__} must be a scalar of type {in_words}, but is "
                f"{value.dtype}{list(value.shape)}."
            )
    action = jax.ShapeDtypeStruct((env.action_size,), jnp.float32)
    _check_same(state, jax.eval_shape(bind_axis(env.step, axis_name), state, action), type(env).__name__)
    return {group: x.shape[0] for group, x in state.obs.items()}


def _check_same(before: PyTree, after: PyTree, name: str) -> None:
    leaves_before = dict(jax.tree_util.tree_leaves_with_path(before))
    leaves_after = dict(jax.tree_util.tree_leaves_with_path(after))
    for path in leaves_before.keys() | leaves_after.keys():
        x, y = leaves_before.get(path), leaves_after.get(path)
        if x is None or y is None or (x.shape, x.dtype) != (y.shape, y.dtype):
            described = [f"{v.dtype}{list(v.shape)}" if v is not None else "missing" for v in (x, y)]
            raise ConfigError(
                f"{name}.step must return what {name}.reset returns, but leaf {jax.tree_util.keystr(path)} is "
                f"{described[0]} after a reset and {described[1]} after a step."
            )


def select_envs(condition_e: Array, if_true: PyTree, if_false: PyTree) -> PyTree:
    """Rows of one of two batches of the same structure, by one flag per row."""
    chex.assert_rank(condition_e, 1)
    chex.assert_tree_shape_prefix(if_false, condition_e.shape)
    chex.assert_trees_all_equal_shapes(if_true, if_false)
    return tree_where(condition_e, if_true, if_false)
