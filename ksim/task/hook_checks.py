"""Checks of what a task's hooks return, by shapes where possible."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from ksim.errors import ConfigError, quoted
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.nn.distributions import AbstractDistribution
from ksim.nn.networks import MIN_STD, AdaptedActorCritic
from ksim.parallel.collectives import bind_axis, trace_on_devices
from ksim.parallel.placement import local_rows
from ksim.rollout.environment import Environment
from ksim.types import EnvState, key_shape

NETWORKS = "'Custom networks' in docs/own_algorithm.md"
HOOKS = "'Hooks of the algorithm' in docs/own_algorithm.md"
_MAX_LISTED = 4
_WRAPPER = """\
class MyActorCritic(ksim.AbstractActorCritic):
    network: {name}
    def initial_carry(self): return None
    def __call__(self, obs, carry):
        mean, value = self.network(obs["actor"])  # of shapes ({size},) and ()
        return ksim.ActorCriticOutput(ksim.Gaussian(mean, 0.5 * jnp.ones({size})), value), None"""

ShapesOf = Callable[..., Any]
"""`(function, *inputs) -> its result`, with shapes in place of arrays; `RLTask.shapes_of`."""


def hook_name(task: object, hook: str) -> str:
    """The name of a hook in messages."""
    return f"{type(task).__name__}.{hook}"


def is_overridden(task: object, name: str) -> bool:
    """Whether a task overrides ksim's version of a hook."""
    return not inspect.unwrap(getattr(type(task), name)).__module__.startswith("ksim.task.") or name in vars(task)


def must_return(
    hook: str, rule: str, found: str, page: str = HOOKS, *, fix: str = "", verb: str = "return"
) -> ConfigError:
    """The error of a hook, or of a method of its result, that returned something else.

    In the message `found` follows "but". `fix` is sentences on what to do, if the rule does not say it.
    """
    return ConfigError(f"{hook} must {verb} {rule}, but {found}. {fix + ' ' if fix else ''}See {page}.")


def returned(value: Any) -> str:
    """`returned` with a description of the value, for `must_return`."""
    return f"returned {described(value)}"


def described(value: Any) -> str:
    """A description of a value by its type; of arrays, dtype and shape."""
    if value is None:
        return "None"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if type(value) in (tuple, list):
        return f"a {type(value).__name__} of {len(value)} ({', '.join(described(x) for x in value)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {described(x)}" for key, x in value.items()) + "}"
    name = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return f"{name} {quoted(value)}" if isinstance(value, str | int | float) else name


def tree_differences(expected: PyTree, found: PyTree, name: str) -> str:
    """Differences of a tree from the expected structure, shapes and dtypes, as text; empty if there are none."""
    wanted, there = (
        {f"{name}{jax.tree_util.keystr(path)}": x for path, x in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (expected, found)
    )
    texts = [
        f"{path} is {described(there[path]) if path in there else 'missing'} instead of {described(x)}"
        for path, x in wanted.items()
        if path not in there or not _is_alike(x, there[path])
    ]
    texts += [f"{path} ({described(x)}) should not be there" for path, x in there.items() if path not in wanted]
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    if not texts and jax.tree.structure(expected) != jax.tree.structure(found):
        return f"{name} is {described(found)} instead of {described(expected)}"
    return ", ".join(texts[:_MAX_LISTED]) + more


def _is_alike(expected: Any, found: Any) -> bool:
    if not hasattr(found, "dtype") or not hasattr(found, "shape"):
        return False
    # Compare dtypes as on a device: NumPy arrays of host code may have 64 bits.
    is_same_type = found.dtype == expected.dtype or (
        isinstance(found, np.ndarray) and jax.dtypes.canonicalize_dtype(found.dtype) == expected.dtype
    )
    return found.shape == expected.shape and is_same_type


def is_float(x: Any) -> bool:
    """Whether `x` is an array of floating-point numbers, or the shape of one."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def trace_hook(function: Callable[..., Any], axis_name: str, num_devices: int, *inputs: Any) -> tuple[Any, Any]:
    """The jaxpr of a hook on each of several devices, and its result with shapes in place of arrays.

    The hook may use collectives over the axis. `inputs` are arrays or shapes; other types are passed as they are.
    """
    arrays, static = eqx.partition(inputs, lambda x: isinstance(x, jax.ShapeDtypeStruct) or eqx.is_array(x))
    rest: list[Any] = []

    def arrays_of(arrays: PyTree) -> PyTree:
        found, other = eqx.partition(function(*eqx.combine(arrays, static)), eqx.is_array)
        rest.append(other)
        return found

    program, found = trace_on_devices(arrays_of, axis_name, num_devices, arrays)
    return program, eqx.combine(found, rest[-1])


def check_one_key(hook: str, rng: Any) -> None:
    """Raises ConfigError unless `rng`, an argument of a hook, is one typed key."""
    is_key = hasattr(rng, "dtype") and jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
    if not is_key or rng.shape != ():
        raise ConfigError(
            f"rng of {hook} must be one key of jax.random.key, but is {described(rng)}. Pass one of them, as after "
            f"rng, sub = jax.random.split(rng); env_keys makes one per environment of it. See {HOOKS}."
        )


@dataclass(frozen=True, kw_only=True)
class NetworkChecks:
    """Checks of the network that `_get_initial_model` returned, by shapes (`RLTask.shapes_of`).

    Where the task's options lack those of PPO, `options` has their defaults.
    """

    hook: str
    obs_sizes: Mapping[str, int]
    action_size: int
    options: Any
    shapes_of: ShapesOf

    def actor_critic(self, model: Any) -> AbstractActorCritic:
        """The model as an actor-critic; a memoryless network is adapted.

        Raises:
            ConfigError: It is neither an actor-critic nor such a network.
        """
        obs = _obs_shapes(self.obs_sizes)
        if isinstance(model, AbstractActorCritic) or callable(getattr(model, "initial_carry", None)):
            self._check_actor_critic(model, obs)
            return model
        tried = []
        if isinstance(model, eqx.Module) and callable(model):
            for takes_groups in (False, True):
                shown_obs: Any = obs if takes_groups else obs["actor"]
                try:
                    output = self.shapes_of(model, shown_obs)
                except Exception as error:  # noqa: BLE001 - whatever a network raises that takes something else
                    tried.append(f"for {described(shown_obs)} it raised {_in_a_line(error)}")
                    continue
                adapted = self._adapted(model, output, takes_groups=takes_groups)
                if adapted is not None:
                    return adapted
                tried.append(f"for {described(shown_obs)} it gives {described(output)}")
        size = self.action_size
        name = type(model).__name__ if isinstance(model, eqx.Module) else "MyNetwork"
        rule = (
            "a ksim.AbstractActorCritic, or an Equinox module that maps the actor's observation to (mean of the "
            f"action, value), of shapes ({size},) and ()"
        )
        found = returned(model) + (f" ({'; '.join(tried)})" if tried else "")
        wrapper = _WRAPPER.format(name=name, size=size)
        error = must_return(self.hook, rule, found, NETWORKS)
        raise ConfigError(f"{error} An actor-critic of a network:\n{wrapper}")

    def _adapted(self, network: eqx.Module, output: Any, *, takes_groups: bool) -> AdaptedActorCritic | None:
        """The network as an actor-critic, by the shapes of its output; None if they do not fit."""
        if not isinstance(output, tuple | list) or len(output) != 2:
            return None
        action, value = output
        std, init_std = self._option("std", "state_independent"), self._option("init_std", 1.0)
        if not (is_float(value) and value.shape in ((), (1,))):
            return None
        if self._distribution_problem(action) is None:
            self._check_squashed(action, f"{type(network).__name__} returns")
            return AdaptedActorCritic(network, takes_groups=takes_groups, action_size=None, init_std=init_std)
        if not (is_float(action) and action.shape == (self.action_size,)):
            return None
        if std != "state_independent":
            raise ConfigError(
                f"std ({std!r}) must be 'state_independent' for a network that returns the mean of the action, as "
                f"{type(network).__name__} does. For another let it return (distribution, value). See {NETWORKS}."
            )
        return AdaptedActorCritic(
            network,
            takes_groups=takes_groups,
            action_size=self.action_size,
            init_std=init_std,
            min_std=self._option("min_std", MIN_STD),
            squash=self._option("squash", False),
        )

    def _option(self, name: str, default: Any) -> Any:
        return getattr(self.options, name, default)

    def _check_squashed(self, distribution: AbstractDistribution, returns: str) -> None:
        """Raises ConfigError if the option `squash` is set and the network's distribution is unbounded."""
        if self._option("squash", False) and distribution.bounds is None:
            kind = type(distribution).__name__
            raise ConfigError(
                "squash (true) is for ksim's networks and for those that return the mean of the action, but "
                f"{returns} a {kind}. Let it return ksim.SquashedGaussian, or leave squash out. See {NETWORKS}."
            )

    def _check_actor_critic(self, model: Any, obs: dict[str, Any]) -> None:
        where = f"The model of {self.hook}: {type(model).__name__}"
        carry = self.shapes_of(model.initial_carry)
        if not all(hasattr(x, "dtype") for x in jax.tree.leaves(carry)):
            rule = "a tree of arrays, or None for a model without memory"
            raise must_return(f"{where}.initial_carry", rule, returned(carry), NETWORKS)
        result = self.shapes_of(model, obs, carry)
        is_pair = isinstance(result, tuple | list) and len(result) == 2
        if not is_pair or not (hasattr(result[0], "distribution") and hasattr(result[0], "value")):
            rule = "(obs, carry) to (ksim.ActorCriticOutput, carry)"
            raise must_return(where, rule, returned(result), NETWORKS, verb="map")
        output, after = result
        problem = self._distribution_problem(output.distribution)
        if problem is not None:
            raise must_return(where, f"a distribution over {self.action_size} numbers", problem, NETWORKS)
        self._check_squashed(output.distribution, f"the model of {self.hook} returns")
        if not is_float(output.value) or output.value.shape != ():
            fix = "Index or reshape it, as in value[0]."
            raise must_return(where, "the value as a scalar, float32[]", returned(output.value), NETWORKS, fix=fix)
        differences = tree_differences(carry, after, "carry")
        if differences:
            raise must_return(where, "a memory like that of initial_carry", differences, NETWORKS)

    def _distribution_problem(self, distribution: Any) -> str | None:
        """The problem with a distribution of shapes, as text; None if there is none."""
        if not isinstance(distribution, AbstractDistribution):
            return f"{returned(distribution)}, which is no ksim.Gaussian"
        size = self.action_size
        key, sample = key_shape(), jax.ShapeDtypeStruct((size,), jnp.float32)
        for name, inputs, shape in (
            ("mode", (), (size,)),
            ("sample", (key,), (size,)),
            ("action", (sample,), (size,)),
            ("log_prob", (sample,), ()),
            ("entropy", (), ()),
        ):
            # Through a lambda: a bound method's own arrays would not count as inputs.
            call = lambda distribution, *inputs, name=name: getattr(distribution, name)(*inputs)
            result = self.shapes_of(call, distribution, *inputs)
            if not is_float(result) or result.shape != shape:
                kind = type(distribution).__name__
                return f"{name} of its {kind} is {described(result)} instead of float32{list(shape)}"
        return None


def action_bounds(
    model: AbstractActorCritic, obs_sizes: Mapping[str, int], shapes_of: ShapesOf
) -> tuple[float, float] | None:
    """The bounds of every component of a model's actions; None if unbounded."""
    output, _ = shapes_of(model, _obs_shapes(obs_sizes), shapes_of(model.initial_carry))
    return output.distribution.bounds


def check_optimizer(hook: str, optimizer: Any) -> None:
    """Raises ConfigError unless a hook returned an optax gradient transformation."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise must_return(hook, "an optax.GradientTransformation", returned(optimizer))


def check_own_optimizer(
    hook: str, optimizer: optax.GradientTransformation, params: PyTree, shapes_of: ShapesOf
) -> None:
    """Checks an optimizer that is not ksim's.

    Raises:
        ConfigError: It does not have exactly one `learning_rate`, or changes the shapes of parameters or state.
    """
    state = eqx.filter_eval_shape(optimizer.init, params)
    rates = optax.tree.get_all_with_path(state, "learning_rate")
    if len(rates) != 1:
        raise must_return(
            hook,
            "an optimizer with an injected learning_rate, which ksim logs and adapts",
            f"its state has {len(rates)} (of a schedule there are two)" if rates else "its state has none",
            fix="Wrap what makes it, as in optax.inject_hyperparams(optax.adam)(learning_rate="
            "self.config.learning_rate).",
        )
    updates, after = shapes_of(optimizer.update, params, state, params)
    problem = tree_differences(params, updates, "updates") or tree_differences(state, after, "state")
    if problem:
        rule = "an optimizer whose updates are like the parameters and whose state keeps its shapes"
        raise must_return(hook, rule, problem)


def check_env_state(hook: str, env_state: Any, num_envs: int, env: Environment, axis_name: str) -> None:
    """Checks the first states of the global batch.

    It checks computed states, not shapes: a hook may make them by host code, which cannot be traced.

    Raises:
        ConfigError: They are not `num_envs` rows of the environment's reset state, or an observation or a metric, such
            as a reward term, is non-finite.
    """
    rule = f"the global batch, {num_envs} rows in every leaf of a ksim.EnvState"
    if not isinstance(env_state, EnvState):
        raise must_return(hook, rule, returned(env_state))
    row = jax.eval_shape(bind_axis(env.first_episode, axis_name), key_shape())
    expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype), row)
    problem = tree_differences(expected, env_state, "env_state")
    if problem:
        raise must_return(hook, rule, problem, fix="ksim gives every device its share of the rows.")
    check_finite(env_state)


def check_finite(env_state: EnvState) -> None:
    """Raises ConfigError if an observation or a metric of the first states is non-finite."""
    named = {f"Observation group {group!r}": x for group, x in env_state.obs.items()}
    named |= {f"Term {name!r}": x for name, x in env_state.metrics.items()}
    for name, value in named.items():
        rows_e = local_rows(value)
        is_bad_e = ~np.isfinite(rows_e).reshape(len(rows_e), -1).all(axis=1)
        if is_bad_e.any():
            example = rows_e[is_bad_e][0].ravel()
            example = example[~np.isfinite(example)][0]
            raise ConfigError(
                f"{name} is not finite ({example}) right after the reset, in {is_bad_e.sum()} of {len(rows_e)} "
                "environments. Look for a division by zero, or a root or logarithm of a negative number."
            )


def _obs_shapes(obs_sizes: Mapping[str, int]) -> dict[str, Any]:
    return {group: jax.ShapeDtypeStruct((size,), jnp.float32) for group, size in obs_sizes.items()}


def _in_a_line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {quoted(first, 120)}"
