"""Checks of what a task's hooks return, by shapes where possible."""

import inspect
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray, PyTree

from ksim.errors import ConfigError, quoted
from ksim.nn.actor_critic import AbstractActorCritic, ActorCriticOutput
from ksim.nn.distributions import AbstractDistribution
from ksim.nn.networks import MIN_STD, AdaptedActorCritic
from ksim.parallel.collectives import bind_axis, trace_on_devices
from ksim.parallel.placement import local_rows
from ksim.task.described import HOOKS, NETWORKS, described, is_float, tree_differences
from ksim.task.rl import RLTask
from ksim.types import EnvState

_WRAPPER = """\
class MyActorCritic(ksim.AbstractActorCritic):
    network: {name}
    def initial_carry(self): return None
    def __call__(self, obs, carry):
        mean, value = self.network(obs["actor"])  # of shapes ({size},) and ()
        return ksim.ActorCriticOutput(ksim.Gaussian(mean, 0.5 * jnp.ones({size})), value), None"""


def initial_model(task: RLTask[Any], rng: PRNGKeyArray) -> AbstractActorCritic:
    """The actor-critic of `_get_initial_model`; a memoryless network is adapted.

    Raises:
        ConfigError: The hook returned neither an actor-critic nor such a network.
    """
    model: Any = task._get_initial_model(rng)
    obs = _obs_shapes(task)
    if isinstance(model, AbstractActorCritic) or callable(getattr(model, "initial_carry", None)):
        _check_actor_critic(task, model, obs)
        return model
    hook = hook_name(task, "_get_initial_model")
    tried = []
    if isinstance(model, eqx.Module) and callable(model):
        for takes_groups in (False, True):
            shown_obs: Any = obs if takes_groups else obs["actor"]
            try:
                output = shapes_of(task, model, shown_obs)
            except Exception as error:  # noqa: BLE001 - whatever a network raises that takes something else
                tried.append(f"for {described(shown_obs)} it raised {_in_a_line(error)}")
                continue
            adapted = _adapted(task, model, output, takes_groups=takes_groups)
            if adapted is not None:
                return adapted
            tried.append(f"for {described(shown_obs)} it gives {described(output)}")
    found = f" ({'; '.join(tried)})" if tried else ""
    size = task.environment.action_size
    name = type(model).__name__ if isinstance(model, eqx.Module) else "MyNetwork"
    raise ConfigError(
        f"{hook} must return a ksim.AbstractActorCritic, or an Equinox module that maps the actor's observation to "
        f"(mean of the action, value), of shapes ({size},) and (), but returned {described(model)}{found}. "
        f"See {NETWORKS}. An actor-critic of a network:\n{_WRAPPER.format(name=name, size=size)}"
    )


def action_bounds(task: RLTask[Any], model: AbstractActorCritic) -> tuple[float, float] | None:
    """The bounds of every component of a model's actions; None if unbounded."""
    output, _ = shapes_of(task, model, _obs_shapes(task), shapes_of(task, model.initial_carry))
    return output.distribution.bounds


def _obs_shapes(task: RLTask[Any]) -> dict[str, Any]:
    return {group: jax.ShapeDtypeStruct((size,), jnp.float32) for group, size in task.obs_sizes.items()}


def _adapted(task: RLTask[Any], network: eqx.Module, output: Any, *, takes_groups: bool) -> AdaptedActorCritic | None:
    """The network as an actor-critic, by the shapes of its output; None if they do not fit."""
    if not isinstance(output, tuple | list) or len(output) != 2:
        return None
    action, value = output
    size, std = task.environment.action_size, getattr(task.config, "std", "state_independent")
    # Options of PPO, which other algorithms may lack.
    init_std, min_std = getattr(task.config, "init_std", 1.0), getattr(task.config, "min_std", MIN_STD)
    if not (is_float(value) and value.shape in ((), (1,))):
        return None
    if _distribution_problem(task, action, size) is None:
        _check_squashed(task, action, f"{type(network).__name__} returns")
        return AdaptedActorCritic(network, takes_groups=takes_groups, action_size=None, init_std=init_std)
    if not (is_float(action) and action.shape == (size,)):
        return None
    if std != "state_independent":
        raise ConfigError(
            f"std ({std!r}) must be 'state_independent' for a network that returns the mean of the action, as "
            f"{type(network).__name__} does. For another let it return (distribution, value). See {NETWORKS}."
        )
    return AdaptedActorCritic(
        network,
        takes_groups=takes_groups,
        action_size=size,
        init_std=init_std,
        min_std=min_std,
        squash=getattr(task.config, "squash", False),
    )


def _check_squashed(task: RLTask[Any], distribution: AbstractDistribution, returns: str) -> None:
    """Raises ConfigError if the option `squash` is set and the network's distribution is unbounded."""
    if getattr(task.config, "squash", False) and distribution.bounds is None:
        raise ConfigError(
            f"squash (true) is for ksim's networks and for those that return the mean of the action, but {returns} a "
            f"{type(distribution).__name__}. Let it return ksim.SquashedGaussian, or leave squash out. See {NETWORKS}."
        )


def _check_actor_critic(task: RLTask[Any], model: Any, obs: dict[str, Any]) -> None:
    hook, kind = hook_name(task, "_get_initial_model"), type(model).__name__
    carry = shapes_of(task, model.initial_carry)
    where = f"The model of {hook}: {kind}"
    if not all(hasattr(x, "dtype") for x in jax.tree.leaves(carry)):
        raise ConfigError(
            f"{where}.initial_carry must return a tree of arrays, or None for a model without memory, but returned "
            f"{described(carry)}. See {NETWORKS}."
        )
    returned = shapes_of(task, model, obs, carry)
    rule = f"{where} must map (obs, carry) to (ksim.ActorCriticOutput, carry)"
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ConfigError(f"{rule}, but returned {described(returned)}. See {NETWORKS}.")
    output, after = returned
    if not (isinstance(output, ActorCriticOutput) or (hasattr(output, "distribution") and hasattr(output, "value"))):
        raise ConfigError(f"{rule}, but returned {described(returned)}. See {NETWORKS}.")
    size = task.environment.action_size
    problem = _distribution_problem(task, output.distribution, size)
    if problem is not None:
        raise ConfigError(f"{where} must return a distribution over {size} numbers, but {problem}. See {NETWORKS}.")
    _check_squashed(task, output.distribution, f"the model of {hook} returns")
    if not is_float(output.value) or output.value.shape != ():
        raise ConfigError(
            f"{where} must return the value as a scalar, float32[], but returned {described(output.value)}. Index or "
            f"reshape it, as in value[0]. See {NETWORKS}."
        )
    differences = tree_differences(carry, after, "carry")
    if differences:
        raise ConfigError(
            f"{where} must return a memory like that of initial_carry, but {differences}. See {NETWORKS}."
        )


def _distribution_problem(task: RLTask[Any], distribution: Any, size: int) -> str | None:
    """The problem with a distribution of shapes, as text; None if there is none."""
    if not isinstance(distribution, AbstractDistribution):
        return f"returned {described(distribution)}, which is no ksim.Gaussian"
    key, sample = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((size,), jnp.float32)
    for name, inputs, shape in (
        ("mode", (), (size,)),
        ("sample", (key,), (size,)),
        ("action", (sample,), (size,)),
        ("log_prob", (sample,), ()),
        ("entropy", (), ()),
    ):
        # Through a lambda: a bound method's own arrays would not count as inputs.
        call = lambda distribution, *inputs, name=name: getattr(distribution, name)(*inputs)
        result = shapes_of(task, call, distribution, *inputs)
        if not is_float(result) or result.shape != shape:
            return f"{name} of its {type(distribution).__name__} is {described(result)} instead of float32{list(shape)}"
    return None


def checked_optimizer(task: RLTask[Any], params: PyTree) -> optax.GradientTransformation:
    """The checked result of `get_optimizer`.

    Raises:
        ConfigError: It is not an optax gradient transformation, does not have exactly one `learning_rate`, or changes
            the shapes of parameters or state.
    """
    optimizer, hook = task.get_optimizer(), hook_name(task, "get_optimizer")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ConfigError(
            f"{hook} must return an optax.GradientTransformation, but returned {described(optimizer)}. See {HOOKS}."
        )
    if not is_overridden(task, "get_optimizer"):
        return optimizer
    state = eqx.filter_eval_shape(optimizer.init, params)
    rates = optax.tree.get_all_with_path(state, "learning_rate")
    if len(rates) != 1:
        found = "none" if not rates else f"{len(rates)} (of a schedule there are two)"
        raise ConfigError(
            f"{hook} must return an optimizer with an injected learning_rate, which ksim logs and adapts, but its "
            f"state has {found}. Wrap what makes it, as in optax.inject_hyperparams(optax.adam)(learning_rate="
            f"self.config.learning_rate). See {HOOKS}."
        )
    updates, after = shapes_of(task, optimizer.update, params, state, params)
    problem = tree_differences(params, updates, "updates") or tree_differences(state, after, "state")
    if problem:
        raise ConfigError(
            f"{hook} must return an optimizer whose updates are like the parameters and whose state keeps its shapes, "
            f"but {problem}. See {HOOKS}."
        )
    return optimizer


def check_env_state(task: RLTask[Any], env_state: Any) -> None:
    """Checks the first states of the global batch.

    It checks computed states, not shapes: a hook may make them by host code, which cannot be traced.

    Raises:
        ConfigError: They are not `num_envs` rows of the environment's reset state, or an observation or a metric, such
            as a reward term, is non-finite.
    """
    hook, num_envs = hook_name(task, "_get_initial_env_state"), task.config.num_envs
    rule = f"{hook} must return the global batch, {num_envs} rows in every leaf of a ksim.EnvState,"
    if not isinstance(env_state, EnvState):
        raise ConfigError(f"{rule} but returned {described(env_state)}. See {HOOKS}.")
    reset = bind_axis(task.environment.first_episode, task.device_axis)
    row = jax.eval_shape(reset, jax.eval_shape(lambda: jax.random.key(0)))
    expected = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype), row)
    problem = tree_differences(expected, env_state, "env_state")
    if problem:
        raise ConfigError(f"{rule} but {problem}. ksim gives every device its share of the rows. See {HOOKS}.")
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


def shapes_of(task: RLTask[Any], function: Any, *inputs: Any) -> Any:
    """The result of a function, with shapes in place of arrays. It may use collectives over the device axis."""
    return traced(task, function, *inputs)[1]


def traced(task: RLTask[Any], function: Any, *inputs: Any) -> tuple[Any, Any]:
    """The jaxpr of a function, and its result as by `shapes_of`."""
    arrays, static = eqx.partition(inputs, lambda x: isinstance(x, jax.ShapeDtypeStruct) or eqx.is_array(x))
    rest: list[Any] = []

    def arrays_of(arrays: PyTree) -> PyTree:
        found, other = eqx.partition(function(*eqx.combine(arrays, static)), eqx.is_array)
        rest.append(other)
        return found

    program, found = trace_on_devices(arrays_of, task.device_axis, task.layout.num_devices, arrays)
    return program, eqx.combine(found, rest[-1])


def is_overridden(task: RLTask[Any], name: str) -> bool:
    """Whether a task overrides ksim's version of a hook."""
    return not inspect.unwrap(getattr(type(task), name)).__module__.startswith("ksim.task.") or name in vars(task)


def hook_name(task: RLTask[Any], hook: str) -> str:
    """The name of a hook in messages."""
    return f"{type(task).__name__}.{hook}"


def _in_a_line(error: Exception) -> str:
    first: Sequence[str] = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {quoted(first[0], 120)}"
