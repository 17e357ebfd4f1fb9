"""Checks of the traced hooks of a task, by the shapes that they return, before the training step is compiled."""

import difflib
import functools
import inspect
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree
from xax.task.base import BaseTask

from ksim.errors import ConfigError
from ksim.host.terminal import warn_user
from ksim.mdp.term_errors import described_failure
from ksim.nn.actor_critic import AbstractActorCritic, initial_carries
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.parallel.collectives import bind_axis, maps_over_devices
from ksim.preflight.memory import check_memory, env_shapes
from ksim.rollout.environment import check_environment
from ksim.task.hook_checks import (
    HOOKS,
    described,
    hook_name,
    is_float,
    is_overridden,
    must_return,
    returned,
    trace_hook,
    tree_differences,
)
from ksim.task.rl import CALLBACKS, RLTask
from ksim.types import EnvState, LearnerState, Trajectory, key_shape

RENAMED = {
    "get_mdp": "the hooks of its terms (get_rewards and its siblings), or get_environment for another kind of "
    "environment",
    "custom_gradient_sync": "sync_gradients(grads), which is called inside the mapped step with this device's "
    "gradients and returns what all devices apply (DISTRIBUTED_TRAINING.md, Custom gradient synchronisation)",
}
"""Names of hooks in other programs, each with the hooks that ksim calls instead."""
_HOOKS = ("get_", "_get_", "on_", "_rollout", "sync_gradients", "add_logger_handlers")
"""Prefixes of the names of hooks."""
_CLOSE = 0.85
"""Similarity, from 0 to 1 by difflib, from which a method's name is taken for a misspelt hook."""


def check_hook_names(task: BaseTask[Any]) -> None:
    """Checks the methods of a task's class that its authors wrote.

    Warns:
        UserWarning: A method nearly has the name of a hook that the class does not override, and takes its arguments.

    Raises:
        ConfigError: A method has the name of another program's hook, or a callback takes other arguments.
    """
    theirs, ours = _methods(type(task))
    # Searched among all attributes: a decorator may have turned the method into anything.
    for name in (RENAMED.keys() - ours.keys()) & set(dir(task)):
        raise ConfigError(f"{type(task).__name__}.{name} is never called. Override {RENAMED[name]}.")
    # Overrides of xax's other methods, such as `__init__` and `debug`, are called by the task itself alone.
    for name in theirs.keys() & set(CALLBACKS):
        if not _takes_arguments_of(theirs[name], ours[name]):
            raise ConfigError(
                f"{type(task).__name__}.{name}{inspect.signature(theirs[name])} must take the arguments "
                f"{inspect.signature(ours[name])}."
            )
    hooks = [name for name in ours if name.startswith(_HOOKS) and name not in theirs]
    for name in theirs.keys() - ours.keys():
        for hook in difflib.get_close_matches(name, hooks, n=1, cutoff=_CLOSE):
            if _takes_arguments_of(theirs[name], ours[hook]):
                warn_user(
                    f"ksim never calls {type(task).__name__}.{name}. Did you mean {hook}? If not, another name avoids "
                    "this warning."
                )


def _methods(task_class: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """The methods of a class and its bases by name: first its authors', then the ones of ksim and xax."""
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for base in reversed(task_class.__mro__):
        found = ours if base.__module__.partition(".")[0] in ("ksim", "xax") else theirs
        found.update({name: x for name, x in vars(base).items() if _is_method(x)})
    return theirs, ours


def _is_method(attribute: Any) -> bool:
    """Whether an attribute of a class is a method, possibly under a decorator that returns another kind of object."""
    return (callable(attribute) and not isinstance(attribute, type)) or isinstance(attribute, functools.partialmethod)


def _takes_arguments_of(method: Any, hook: Any) -> bool:
    """Whether a method can be called like a hook, with all arguments by position."""
    try:
        inspect.signature(method).bind(*inspect.signature(hook).parameters)
    except (TypeError, ValueError):  # ValueError: a callable without a signature
        return False
    return True


def check_eval_environment(task: RLTask[Any]) -> None:
    """Raises ConfigError if the evaluation environment has other observation sizes than the training environment."""
    env, axis_name = task.eval_environment, task.device_axis
    if is_overridden(task, "get_eval_environment"):
        sizes = check_environment(env, axis_name)
    else:  # its hooks were checked with the training environment, but may return others if `evaluating`
        obs = jax.eval_shape(bind_axis(env.reset, axis_name), key_shape()).obs
        sizes = {group: x.shape[0] for group, x in obs.items()}
    if sizes != task.obs_sizes:
        raise ConfigError(
            f"The environment of evaluations must show what training shows, observations of sizes {task.obs_sizes}, "
            f"but shows {sizes}. See what {type(task).__name__} does where it is `evaluating`, and in "
            "get_eval_environment."
        )


def check_hooks(task: RLTask[Any], learner: LearnerState, model: AbstractActorCritic, env_state: EnvState) -> None:
    """Checks the results of the traced hooks that a task overrides.

    `learner`, `model` and `env_state` (of one env) are shapes.

    Raises:
        ConfigError: A hook returns something that training cannot use.
    """
    if is_overridden(task, "sync_gradients"):
        _check_sync_gradients(task, learner.params)
    if is_overridden(task, "_rollout"):
        share = task.config.num_envs // task.layout.num_devices
        env_state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((share, *x.shape), x.dtype), env_state)
        _check_rollout(task, NormalizedActorCritic(model, learner.normalizer), env_state, share)


def _hook_shapes(task: RLTask[Any], name: str, *inputs: Any) -> Any:
    """The result of a traced hook, with shapes in place of arrays.

    Raises:
        ConfigError: The hook raised an error, which is its cause, or maps over devices itself.
    """
    hook = hook_name(task, name)
    fix = (
        "ksim calls it inside the mapped step with the share of one device: remove pmap, shard_map and jit, "
        f"and reduce with jax.lax.pmean or its siblings over the axis {task.device_axis!r} (self.device_axis). "
        f"See {HOOKS}."
    )
    try:
        program, result = trace_hook(getattr(task, name), task.device_axis, task.layout.num_devices, *inputs)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{described_failure(hook, task, error).rstrip('.')}. {fix}") from error
    if maps_over_devices(program):
        raise ConfigError(f"{hook} maps over devices itself. {fix}")
    return result


def _check_sync_gradients(task: RLTask[Any], params: PyTree) -> None:
    problem = tree_differences(params, _hook_shapes(task, "sync_gradients", params), "grads")
    if problem:
        rule = "gradients like those that it was given, in structure, shapes and types"
        page = "'Custom gradient synchronisation' in DISTRIBUTED_TRAINING.md"
        raise must_return(hook_name(task, "sync_gradients"), rule, problem, page)


def _check_rollout(task: RLTask[Any], model: AbstractActorCritic, env_state: EnvState, num_envs: int) -> None:
    hook, num_steps = hook_name(task, "_rollout"), task.config.rollout_length
    carry = eqx.filter_eval_shape(initial_carries, model, num_envs)
    result = _hook_shapes(task, "_rollout", model, env_state, carry, key_shape())
    rule = "(trajectory, env_state, model_carry)"
    if not isinstance(result, tuple | list) or len(result) != 3:
        raise must_return(hook, rule, returned(result))
    trajectory, env_state_after, carry_after = result
    if not isinstance(trajectory, Trajectory):
        raise must_return(hook, f"{rule}, the first a ksim.Trajectory", returned(result))
    problem = _trajectory_differences(task, trajectory, env_state, (num_envs, num_steps))
    if problem:
        rule = f"a trajectory of this device's {num_envs} environments and {num_steps} steps (rollout_length), in this"
        raise must_return(hook, f"{rule} order", problem)
    problem = tree_differences(env_state, env_state_after, "env_state")
    problem = problem or tree_differences(carry, carry_after, "model_carry")
    if problem:
        raise must_return(hook, "states and memories like those that it was given", problem)


def _trajectory_differences(
    task: RLTask[Any], trajectory: Trajectory, env_state: EnvState, leading: tuple[int, int]
) -> str:
    metrics = trajectory.metrics
    if not isinstance(metrics, Mapping):
        return f"trajectory.metrics is {described(metrics)} instead of a dict"
    number = lambda x: jnp.zeros(leading, x.dtype if is_float(x) else jnp.float32)
    obs = lambda groups: {x: jnp.zeros((*leading, *env_state.obs[x].shape[1:]), env_state.obs[x].dtype) for x in groups}
    expected = lambda: Trajectory(
        obs=obs(env_state.obs),
        reached=obs([group for group in task.reached_groups if group in env_state.obs]),
        action=jnp.zeros((*leading, task.environment.action_size)),
        terminated=jnp.zeros(leading, bool),
        done=jnp.zeros(leading, bool),
        metrics={name: jnp.zeros(leading, getattr(x, "dtype", jnp.float32)) for name, x in metrics.items()},
        **{name: number(getattr(trajectory, name)) for name in ("log_prob", "value", "next_value", "reward")},
    )
    return tree_differences(jax.eval_shape(expected), trajectory, "trajectory")


def check_task(task: RLTask[Any]) -> None:
    """Raises ConfigError for every problem that can be found without compiling."""
    task.config.check_shares(task.layout.num_devices)
    task.batch_figures()
    check_hook_names(task)
    learner, model = task.learner_shapes()
    check_eval_environment(task)
    env_state, env_bytes = env_shapes(task, model)
    check_memory(task, learner, env_state, env_bytes)
    check_hooks(task, learner, model, env_state)
