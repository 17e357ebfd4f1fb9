"""Adapter for environments with the interface of Brax and MuJoCo Playground.

Their interface is `reset(rng) -> State` and `step(State, action) -> State`, where a State has `obs`, `reward`, `done`,
`metrics` and `info`. `done` alone neither separates termination from truncation nor limits the length of an episode;
the adapter adds both.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from ksim.errors import ConfigError, quoted
from ksim.keys import FIRST_CUT
from ksim.physics import PhysicsModel
from ksim.rollout.environment import Environment, Shown, traced_once
from ksim.types import EnvState, Metrics, Observation, PhysicsState, key_shape

ACTOR_GROUPS = ("state",)
CRITIC_GROUPS = ("privileged_state", "state")
"""Default observations of the policy and the critic, by name: the first that the environment has."""


class InsteadOfMjx(Protocol):
    """Physics in place of the environment's own; see `ksim.envs.engines`."""

    def instead_of_mjx(self) -> contextlib.AbstractContextManager[None]: ...

    def packed(self, state: Any) -> Any: ...

    def unpacked(self, state: Any) -> Any: ...

    def fields_missed(self, function: Callable[..., PyTree], *shapes: PyTree) -> list[str]: ...

    def check_models(self, models: Any) -> None: ...

    def metrics(self, state: Any) -> Metrics: ...

    def problem(self, metrics: Mapping[str, float]) -> str: ...


class WrappedState(eqx.Module):
    """The state of a `WrappedEnvironment`.

    Attributes:
        state: The environment's own state.
        num_steps: Steps of the environment since the reset.
        drawn: Arrays of the model drawn for this episode.
    """

    state: PyTree
    num_steps: Int[Array, "*e"]
    drawn: list[Array]


class Randomizer:
    """Domain randomization of one env, by an environment's function `(model, keys) -> (models, axes)`.

    Such a function draws the models of a whole batch of envs. `axes` is 0 for arrays with one row per env, and None
    for arrays shared by all envs.

    Attributes:
        drawn: The models drawn for a batch of one env.
    """

    def __init__(self, env: Any, randomize: Callable[[Any, Array], tuple[Any, Any]]) -> None:
        self._env, self._randomize = env.unwrapped, randomize
        self.drawn, axes = randomize(self._env.mjx_model, jnp.zeros((1, 2), jnp.uint32))
        self._is_drawn = [axis == 0 for axis in _leaves(axes)]

    def draw(self, key: PRNGKeyArray) -> list[Array]:
        """The drawn arrays of the model of one env."""
        models, _ = self._randomize(self._env.mjx_model, jax.random.key_data(key)[None])
        return [x[0] for x, is_drawn in zip(_leaves(models), self._is_drawn, strict=True) if is_drawn]

    def call(self, function: Callable[..., Any], drawn: list[Array], *arguments: Any) -> Any:
        """The result of a function of the environment, called while its model has the drawn arrays."""
        own = self._env._mjx_model
        leaves, structure = jax.tree.flatten(own, is_leaf=_is_none)
        rest = iter(drawn)
        leaves = [next(rest) if is_drawn else x for x, is_drawn in zip(leaves, self._is_drawn, strict=True)]
        self._env._mjx_model = jax.tree.unflatten(structure, leaves)
        try:
            return function(*arguments)
        finally:
            self._env._mjx_model = own


def _leaves(model: PyTree) -> list[Any]:
    """The leaves of a model or of its axes. None is a leaf: an absent mesh in a model, a shared array in axes."""
    return jax.tree.leaves(model, is_leaf=_is_none)


def _is_none(x: Any) -> bool:
    return x is None


class WrappedEnvironment(Environment):
    """An environment with Brax's interface as a ksim environment.

    Actions are clipped to [-1, 1], the range that such environments expect. An episode is truncated if the environment
    reports it (`truncation` in its `info`). If the environment ends it otherwise, it is terminated.

    In training, the first episode of each env is cut after a random part of its length, as rsl_rl does by
    `init_at_random_ep_len`. In many such environments nothing ends an episode early: all envs would be in the same part
    of their episodes, and would be reset in the same rollout.

    Attributes:
        actor_obs: The name of the policy's observation; None if the environment has only one.
        critic_obs: The name of the critic's observation; None if it is the policy's.
        episode_length: Steps of the environment after which an episode is truncated.
        action_repeat: Steps of the environment per action; their rewards are summed.
        randomizer: Draws a model for each episode; None for the environment's own model.
        physics: The physics in place of MJX; None for the environment's own.
        show: Its model and physics state for videos and the viewer.
    """

    env: Any = eqx.field(static=True)
    actor_obs: str | None = eqx.field(static=True)
    critic_obs: str | None = eqx.field(static=True)
    episode_length: int = eqx.field(static=True)
    action_repeat: int = eqx.field(static=True, default=1)
    randomizer: Randomizer | None = eqx.field(static=True, default=None)
    physics: InsteadOfMjx | None = eqx.field(static=True, default=None)
    show: Shown | None = eqx.field(static=True, default=None)
    engine_name: str | None = eqx.field(static=True, default=None)  # type: ignore[assignment]
    _reset: Callable[[PRNGKeyArray], EnvState] = eqx.field(static=True, init=False)
    _step: Callable[[EnvState, Array], EnvState] = eqx.field(static=True, init=False)

    def __post_init__(self) -> None:
        self._reset = traced_once(lambda key: self._start(key))
        self._step = traced_once(lambda state, action: self._next(state, action))

    @property
    def action_size(self) -> int:
        return int(self.env.action_size)

    def shown(self) -> Shown | None:
        return self.show

    def problem(self, metrics: Mapping[str, float]) -> str:
        return "" if self.physics is None else self.physics.problem(metrics)

    def fields_missed(self) -> list[str]:
        """Fields of `mjx.Data` that the environment reads and the replacement of MJX does not compute."""
        if self.physics is None:
            return []
        learned = lambda state: (state.obs, state.reward, state.terminated, state.truncated, state.metrics)

        def episode(key: PRNGKeyArray, action: Array) -> PyTree:
            def step(state: EnvState, _: None) -> tuple[EnvState, PyTree]:
                state = self._next(state, action)
                return state, learned(state)

            start = self._start(key)
            return learned(start), jax.lax.scan(step, start, length=self.episode_length)[1]

        action = jax.ShapeDtypeStruct((self.action_size,), jnp.float32)
        return self.physics.fields_missed(episode, key_shape(), action)

    def reset(self, key: PRNGKeyArray) -> EnvState:
        return self._reset(key)

    def first_episode(self, key: PRNGKeyArray) -> EnvState:
        state = self.reset(key)
        steps = jax.random.randint(jax.random.fold_in(key, FIRST_CUT), (), 0, self.episode_length, jnp.int32)
        return eqx.tree_at(lambda state: state.inner.num_steps, state, steps)

    def step(self, state: EnvState, action: Array) -> EnvState:
        return self._step(state, action)

    def _start(self, key: PRNGKeyArray) -> EnvState:
        draw_key, key = jax.random.split(key) if self.randomizer is not None else (key, key)
        drawn = [] if self.randomizer is None else self.randomizer.draw(draw_key)
        # Old-style keys: such environments expect them, and keep them in their states.
        state = self._call(self.env.reset, drawn, jax.random.key_data(key))
        # Python numbers become weakly typed arrays; the first step would then be traced separately from the others.
        state = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), state)
        return self._wrapped(state, jnp.int32(0), drawn, jnp.zeros(()))

    def _next(self, state: EnvState, action: Array) -> EnvState:
        inner: WrappedState = state.inner
        action = jnp.clip(action, -1.0, 1.0)
        before = inner.state if self.physics is None else self.physics.unpacked(inner.state)
        own = self._stepped(before, action, inner.drawn)
        reward = own.reward
        for _ in range(self.action_repeat - 1):
            stepped, has_ended = self._stepped(own, action, inner.drawn), own.done > 0
            reward += jnp.where(has_ended, 0.0, stepped.reward)
            own = jax.tree.map(functools.partial(jnp.where, has_ended), own, stepped)
        return self._wrapped(own, inner.num_steps + self.action_repeat, inner.drawn, reward)

    def _stepped(self, own: Any, action: Array, drawn: list[Array]) -> Any:
        """The environment's own state after one of its steps."""
        copy = jax.tree.map(lambda x: x, own)  # the environment may write to its dictionaries
        return _with_types_of(own, self._call(self.env.step, drawn, copy, action), self.env)

    def _call(self, function: Callable[..., Any], drawn: list[Array], *arguments: Any) -> Any:
        with contextlib.nullcontext() if self.physics is None else self.physics.instead_of_mjx():
            if self.randomizer is None:
                return function(*arguments)
            return self.randomizer.call(function, drawn, *arguments)

    def _wrapped(self, own: Any, num_steps: Int[Array, ""], drawn: list[Array], reward: Array) -> EnvState:
        done = jnp.asarray(own.done) > 0
        was_cut = jnp.asarray(own.info.get("truncation", 0)) > 0
        terminated = done & ~was_cut
        packed = own if self.physics is None else self.physics.packed(own)
        return EnvState(
            inner=WrappedState(packed, num_steps, drawn),
            obs=self._observation(own.obs),
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=(done & was_cut) | (~terminated & (num_steps >= self.episode_length)),
            metrics=named_metrics(own.metrics) | ({} if self.physics is None else self.physics.metrics(own)),
        )

    def _observation(self, obs: Any) -> Observation:
        if not isinstance(obs, Mapping):
            return {"actor": obs}
        groups = {"actor": self.actor_obs, "critic": self.critic_obs}
        return {group: obs[name] for group, name in groups.items() if name is not None}


def _with_types_of(before: PyTree, after: PyTree, env: Any) -> PyTree:
    """The state after a step, cast to the dtypes of the state before: such environments mix ints, bools and floats."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise ConfigError(
            f"{type(env).__name__}.step must return a state of the structure that its reset returns. "
            f"After a reset: {quoted(jax.tree.structure(before))}. After a step: {quoted(jax.tree.structure(after))}."
        )
    return jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), before, after)


def named_metrics(metrics: Mapping[str, Array]) -> Metrics:
    """An environment's scalar metrics by name. Names without a group get the group `env`."""
    scalars = {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items() if jnp.ndim(x) == 0}
    return {name if "/" in name else f"env/{name}": x for name, x in scalars.items()}


def observation_names(
    env: Any, actor: str | None, critic: str | None, published: tuple[str | None, str | None] = (None, None)
) -> tuple[str | None, str | None]:
    """The names of the policy's and the critic's observations, for a `WrappedEnvironment`.

    Names by the user (`actor`, `critic`; None for the default) come first, then those in published hyper-parameters,
    then defaults. Published names that the environment lacks are ignored, because environments with a single
    observation share these hyper-parameters.

    Raises:
        ConfigError: There is no such observation, or it is not a vector (pixels, for example).
    """
    obs = jax.eval_shape(env.reset, jax.ShapeDtypeStruct((2,), jnp.uint32)).obs
    name = type(env).__name__
    if not isinstance(obs, Mapping):
        for option, asked in {"actor_obs": actor, "critic_obs": critic}.items():
            if asked is not None:
                raise ConfigError(f"{option} ({asked}): {name} has a single observation, without names. Leave it out.")
        _check_vector(name, "its observation", obs)
        return None, None
    first_actor, first_critic = ([x] if x is not None else [] for x in published)
    picked_actor = _picked("actor_obs", actor, obs, (*first_actor, *ACTOR_GROUPS), name)
    picked_critic = _picked("critic_obs", critic, obs, (*first_critic, *CRITIC_GROUPS, picked_actor), name)
    for group in (picked_actor, picked_critic):
        _check_vector(name, f"observation {group!r}", obs[group])
    return picked_actor, None if picked_critic == picked_actor else picked_critic


def _picked(option: str, asked: str | None, obs: Mapping[str, Any], usual: tuple[str, ...], env_name: str) -> str:
    names = (asked,) if asked is not None else (*usual, *(obs if len(obs) == 1 else ()))
    for name in names:
        if name in obs:
            return name
    raise ConfigError(
        f"{option} ({'null' if asked is None else asked}): {env_name} observes {', '.join(map(repr, obs))}. Name one "
        "of these."
    )


def _check_vector(env_name: str, what: str, obs: Any) -> None:
    if len(obs.shape) != 1:
        raise ConfigError(
            f"{env_name}: {what} has shape {tuple(obs.shape)}, and ksim learns from vectors only, not from pixels. "
            "Choose an environment, or an observation of it, that is a vector."
        )


def shown_state(
    mj_model: Any, step_s: float, action_repeat: int, physics_of: Callable[[Any], tuple[Array, Array, dict[str, Array]]]
) -> Shown:
    """The model and physics state of an environment with steps of `step_s` s, for videos and the viewer.

    `action_repeat` is steps per control step. `physics_of` maps the environment's own state to positions, velocities
    and the extra fields of `PhysicsState`.
    """
    model = PhysicsModel(mj_model, step_s * action_repeat)

    def physics(state: EnvState) -> PhysicsState:
        qpos, qvel, extra = physics_of(state.inner.state)
        time = state.inner.num_steps * jnp.float32(step_s)
        return PhysicsState(
            qpos, qvel, jnp.zeros(mj_model.na), jnp.zeros(mj_model.nv), time, derived={}, extra=dict(extra)
        )

    return Shown(model, physics)
