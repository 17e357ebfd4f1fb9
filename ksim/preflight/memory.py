"""The memory that a task needs, computed from shapes."""

import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ksim.errors import ConfigError, quoted
from ksim.nn.actor_critic import AbstractActorCritic, initial_carries
from ksim.parallel.collectives import bind_axis
from ksim.parallel.devices import local_name
from ksim.rollout.starts import empty_starts
from ksim.task.rl import RLTask
from ksim.types import Device, EnvState, LearnerState, key_shape


def check_memory(task: RLTask[Any], learner: LearnerState, env_state: EnvState, state_bytes: int) -> None:
    """Raises ConfigError for a task that cannot fit into memory: a lower bound of its needs exceeds all there is.

    A task that passes may still not fit; `find_problems` warns of that, by an estimate.

    `learner` holds shapes; `env_shapes` gives `env_state` and `state_bytes`.

    Raises:
        ConfigError: The networks, the batch or the evaluation do not fit.
    """
    config, layout = task.config, task.layout
    # Per env step: the observations, metrics, the action, five numbers and two flags.
    step_bytes = num_bytes((kept_obs(task, env_state), env_state.metrics)) + 4 * task.environment.action_size + 22
    kept_bytes = state_bytes + next_start_bytes(env_state)
    env_bytes = kept_bytes + config.rollout_length * step_bytes
    # The gradients are as large as the parameters.
    learner_bytes = num_bytes(learner) + num_bytes(learner.params)
    share = config.num_envs // layout.num_devices
    device = layout.local_devices[0]
    memory = most_memory(device, len(layout.local_devices))
    if memory is not None:
        has = f"but device {local_name(device)} has {format_bytes(memory)}"
        if learner_bytes > memory:
            sizes = ", ".join(f"{name} ({quoted(getattr(config, name))})" for name in task.network_sizes())
            what = f"The networks of {sizes}" if sizes else "The networks"
            raise ConfigError(
                f"{what} need at least {format_bytes(learner_bytes)} with their gradients and the "
                f"optimizer's state, {has}. Choose smaller ones."
            )
        left = memory - learner_bytes
        for use in task.learner_info().memory:
            count, unit_bytes = getattr(config, use.option), share * use.bytes_per_env
            if count * unit_bytes > left:
                raise ConfigError(
                    f"{use.option} ({count}) over {share} environments need at least "
                    f"{format_bytes(count * unit_bytes)} for {use.purpose}, {has}. "
                    f"Choose at most {max(left // unit_bytes, 1)}."
                )
        if share * env_bytes > left:
            granule = layout.num_devices * (task.batch_figures()[1] or 1)
            fitting = {
                "num_envs": left // env_bytes * layout.num_devices // granule * granule,
                "rollout_length": (left // share - kept_bytes) // step_bytes,
            }
            fixes = [f"{name} to at most {most}" for name, most in fitting.items() if most > 0]
            raise ConfigError(
                f"num_envs ({config.num_envs}) of rollout_length ({config.rollout_length}) need at least "
                f"{format_bytes(share * env_bytes)} on each device, {has}. "
                + (f"Set {' or '.join(fixes)}, or use more devices." if fixes else "Make both smaller.")
            )
    on_host = _meminfo("MemTotal", "SwapTotal")
    if on_host is not None and config.eval_num_envs * state_bytes > on_host:
        raise ConfigError(
            f"eval_num_envs ({config.eval_num_envs}) need at least {format_bytes(config.eval_num_envs * state_bytes)}, "
            f"but this machine has {format_bytes(on_host)}. Set it to at most {on_host // state_bytes}."
        )


def env_shapes(task: RLTask[Any], model: AbstractActorCritic) -> tuple[EnvState, int]:
    """The shapes of the state of one env, and its bytes including the carry of the policy; `model` may hold shapes."""
    state = jax.eval_shape(bind_axis(task.environment.first_episode, task.device_axis), key_shape())
    return state, num_bytes(state) + num_bytes(eqx.filter_eval_shape(initial_carries, model, 1))


def kept_obs(task: RLTask[Any], env_state: EnvState) -> PyTree:
    """Shapes of the observations that a rollout keeps per env step."""
    return env_state.obs, [env_state.obs[group] for group in task.reached_groups if group in env_state.obs]


def next_start_bytes(env_state: EnvState) -> int:
    """The bytes of the next start that training holds besides the state of each env, from the shapes of one env."""
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), env_state)
    return num_bytes(jax.eval_shape(lambda: empty_starts(batch, jax.random.split(jax.random.key(0), 1))))


def num_bytes(tree: PyTree) -> int:
    """Bytes of all arrays of a pytree, which may be shapes."""
    size = lambda x: math.prod(x.shape) * (8 if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.dtype.itemsize)
    return sum(size(x) for x in jax.tree.leaves(tree))


def memory_per_device(devices: list[Device], num_processes_here: int) -> dict[int, int]:
    """Bytes of memory of local devices by their id; CPU devices share the free memory of the machine.

    Each of the job's `num_processes_here` processes on this machine has as many devices as this one.
    """
    memory = {}
    for device in devices:
        own = _own_memory(device)
        if own is not None:
            memory[device.id] = own
        elif device.platform == "cpu" and (free := free_host_memory()) is not None:
            memory[device.id] = free // (len(devices) * num_processes_here)
    return memory


def most_memory(device: Device, num_local: int) -> int | None:
    """The bytes that a device can hold at most; None if unknown.

    That is its own memory, or an equal share for `num_local` CPU devices of the machine's memory with swap.
    """
    own = _own_memory(device)
    if own is not None:
        return own
    on_host = _meminfo("MemTotal", "SwapTotal") if device.platform == "cpu" else None
    return None if on_host is None else on_host // num_local


def _own_memory(device: Device) -> int | None:
    """Bytes of memory of an accelerator; None if it reports none, and for a CPU device."""
    stats = device.memory_stats()
    return int(stats["bytes_limit"]) if stats is not None and "bytes_limit" in stats else None


def free_host_memory() -> int | None:
    """Bytes of free memory of the machine; None if unknown."""
    return _meminfo("MemAvailable")


def _meminfo(*names: str) -> int | None:
    """The sum of entries of /proc/meminfo, in bytes; None if the file or all the entries are missing."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return None
    lines = (line.split() for line in path.read_text().splitlines())
    found = [int(line[1]) * 1024 for line in lines if line[0].removesuffix(":") in names]
    return sum(found) if found else None


def format_bytes(count: float) -> str:
    """A number of bytes in the largest unit, up to GiB, in which it is at least 1."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
