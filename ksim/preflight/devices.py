"""The setup of a distributed task: its devices, the shares of its batch, and the memory needed."""

import collections
import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ksim.config import options_with
from ksim.errors import ConfigError
from ksim.host.terminal import warn_user
from ksim.learn.train_step import TrainStep
from ksim.parallel.collectives import device_index, sum_across_devices
from ksim.parallel.devices import local_name
from ksim.parallel.multihost import Peers, gather_texts, is_main_process, meet_peers, num_processes, process_index
from ksim.parallel.replicas import Divergence, find_divergence, gather_checksums, leaf_names
from ksim.preflight.memory import env_shapes, format_bytes, kept_obs, memory_per_device, next_start_bytes, num_bytes
from ksim.preflight.start import print_distributed_setup
from ksim.task.distributed import DeviceInfo, DistributedRLConfig, DistributedSetup
from ksim.task.rl import RLTask
from ksim.types import TrainState


def inspect_setup(task: RLTask[DistributedRLConfig]) -> DistributedSetup:
    """The setup of a task, computed from shapes; one small program is run to test the devices.

    Raises:
        ConfigError: The batch does not fit the devices, or the devices do not work together.
    """
    config, layout = task.config, task.layout
    batch_size, num_batches = task.batch_figures()
    learner, model = task.initial_learner()
    check_devices_work_together(task, learner)
    share = config.num_envs // layout.num_devices
    env_state, env_bytes = env_shapes(task, model)
    # Per env step: observations (raw and normalised), metrics, action, and ten numbers such as values and advantages.
    obs_bytes = num_bytes(kept_obs(task, env_state))
    step_bytes = 2 * obs_bytes + num_bytes(env_state.metrics) + 4 * task.environment.action_size + 40
    peers = meet_peers()
    num_here = peers.hosts.count(peers.hosts[process_index()])
    memory = memory_per_device(layout.local_devices, num_here)
    setup = DistributedSetup(
        peers=peers,
        devices=tuple(
            DeviceInfo(
                name=local_name(device) + (f" of process {device.process_index}" if num_processes() > 1 else ""),
                platform=device.platform,
                kind=device.device_kind,
                process=device.process_index,
                memory_bytes=memory.get(device.id),
            )
            for device in layout.devices
        ),
        engine=task.environment.engine_name,
        num_envs=config.num_envs,
        batch_size=batch_size,
        num_batches=num_batches,
        rollout_length=config.rollout_length,
        updates_per_iteration=task.updates_per_iteration(),
        grad_sync_period=config.grad_sync_period,
        grad_sync_mode=config.grad_sync_mode,
        steps_per_action=config.steps_per_action,
        param_bytes=num_bytes(learner.params),
        learner_bytes=num_bytes(learner),
        env_state_bytes_per_device=share * (env_bytes + next_start_bytes(env_state)),
        rollout_bytes_per_device=share * (config.rollout_length * step_bytes + env_bytes),
    )
    return dataclasses.replace(setup, problems=tuple(find_problems(setup)))


def find_problems(setup: DistributedSetup) -> list[str]:
    """Problems of a setup, as sentences that name the fix."""
    problems = []
    # The gradients and the optimizer's updates are each as large as the parameters.
    fixed = setup.learner_bytes + 2 * setup.param_bytes
    per_device = setup.env_state_bytes_per_device + setup.rollout_bytes_per_device
    memory = {device.name: device.memory_bytes for device in setup.devices if device.memory_bytes is not None}
    smallest = min(memory, key=lambda name: memory[name], default=None)
    if smallest is not None and fixed + per_device > memory[smallest]:
        fitting = max(0, memory[smallest] - fixed) * setup.num_envs_per_device // per_device
        granule = setup.num_batches or 1
        num_envs = fitting // granule * granule * setup.num_devices
        problems.append(
            f"Device {smallest} has {format_bytes(memory[smallest])}, but learner, environments and rollout need about "
            f"{format_bytes(fixed + per_device)} on each, besides the engine's own: "
            + (f"set num_envs to at most {num_envs}, or use more devices." if num_envs else "choose smaller networks.")
        )
    if setup.grad_sync_period > setup.minibatches_per_sync:
        most = setup.minibatches_per_sync
        problems.append(
            f"grad_sync_period ({setup.grad_sync_period}) is more than the minibatches of an iteration "
            f"({most}), after which gradients are synchronised in any case. Set it to at most {most}."
        )
    return problems


def check_devices_work_together(task: RLTask[DistributedRLConfig], learner: PyTree) -> None:
    """Runs a collective and compares copies of the learner; raises ConfigError if the devices do not work together."""
    layout = task.layout
    if layout.num_devices == 1:
        return

    def probe(learner: PyTree) -> tuple[jax.Array, jax.Array]:
        place = sum_across_devices(1 + device_index(layout.axis_name), layout.axis_name)
        return place, gather_checksums(learner, layout.axis_name)

    total, checksums = layout.first(layout.map(probe)(layout.replicate(learner)))
    divergence = find_divergence(np.asarray(checksums), leaf_names(learner))
    check_probe(int(total), divergence, layout.num_devices)


def check_probe(total: int, divergence: Divergence | None, num_devices: int) -> None:
    """Raises ConfigError unless the sum over devices is right and their copies of the learner are the same.

    `total` is the sum of 1, 2, ..., `num_devices`, as the devices computed it.
    """
    expected = num_devices * (num_devices + 1) // 2
    if total != expected:
        raise ConfigError(
            f"A sum over the {num_devices} devices gave {total} and not {expected}. Their connection does not work; "
            "try fewer of them by devices=[...] to find which."
        )
    if divergence is not None:
        raise ConfigError(f"Copies of the learner differ right after they were made. It is {divergence}.")


def verify_setup(task: RLTask[DistributedRLConfig]) -> DistributedSetup:
    """Checks, prints and returns the setup of a task; see `DistributedRLTask.verify_distributed_setup`."""
    check_same_options(task.config)
    task.check()
    setup = inspect_setup(task)
    if is_main_process():
        print_distributed_setup(setup)
    for problem in setup.problems:
        warn_user(problem)
    return setup


def check_same_options(config: DistributedRLConfig) -> None:
    """Raises ConfigError unless all processes have the same options."""
    per_process = options_with(type(config), "per_process")
    own = {name: value for name, value in dataclasses.asdict(config).items() if name not in per_process}
    first, *others = (json.loads(text) for text in gather_texts(json.dumps(own, default=str)))
    for process, options in enumerate(others, start=1):
        different = [name for name in first if options.get(name) != first[name]]
        if different:
            listed = ", ".join(f"{name} ({options.get(name)!r}, {first[name]!r})" for name in different)
            raise ConfigError(
                f"Every process must have the same options, but process {process} differs from process 0: {listed}. "
                "If these are independent runs that were started together, add num_processes=1."
            )


logger = logging.getLogger(__name__)

_CACHE_EVENTS = {"/jax/compilation_cache/cache_hits": "cache hit", "/jax/compilation_cache/cache_misses": "cache miss"}
_COLLECTIVE = re.compile(
    r" = (?P<type>\([^=]*?\)|\S+) "
    r"(?P<op>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)(?:-start)?\("
)
_ARRAY = re.compile(r"\b(pred|[subf]\d+(?:e\d\w*)?|bf16|c64|c128)\[([\d,]*)\]")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "JAX_", "XLA_", "PJRT_", "KSIM_", "NCCL_")


def log_setup(task: RLTask[Any], peers: Peers, setup: DistributedSetup | None = None) -> None:
    """Logs at debug the processes, the batch, the devices with the envs that each holds, and the state's placement."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    logger.debug("This is process %d of %d.", process_index(), len(peers.pids))
    for i, (host, pid) in enumerate(zip(peers.hosts, peers.pids, strict=True)):
        logger.debug("Process %d: pid %d on %s.", i, pid, host)
    for name in sorted(os.environ):
        if name.startswith(_VARIABLES):
            logger.debug("Environment: %s=%s", name, os.environ[name])
    layout, config = task.layout, task.config
    share = config.num_envs // layout.num_devices
    logger.debug("Layout: %s, axis %s.", type(layout).__name__, layout.axis_name)
    logger.debug("Batch: %d environments, %d on each device, %d steps.", config.num_envs, share, config.rollout_length)
    for i, device in enumerate(layout.devices):
        kind, process = f"{device.platform}, {device.device_kind}", device.process_index
        envs = f"environments {i * share} to {(i + 1) * share - 1}"
        logger.debug("Device %d: %s (%s) of process %d, %s.", i, device, kind, process, envs)
    if setup is not None:
        logger.debug("Placement: the learner, %s, copied to each device.", format_bytes(setup.learner_bytes))
        env_bytes = format_bytes(setup.env_state_bytes_per_device)
        logger.debug("Placement: the environments' states, %s on each device, sharded.", env_bytes)


def log_state(step: TrainStep, state: TrainState) -> None:
    """Logs at debug the hyperparameters, and the shape and placement of every leaf of a placed state."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    logger.debug("Hyperparameters: %s", step.algorithm.info().hyper)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name, shape = jax.tree_util.keystr(path), list(leaf.shape)
        logger.debug("Placement: state%s: %s%s, %s", name, leaf.dtype, shape, leaf.sharding)


def compiling(name: str, mapped: Any, *args: Any) -> Callable[[], Any]:
    """Lowers a mapped function and compiles it in a thread; returns a function that waits for the program.

    `mapped` is from `AbstractLayout.map`, `args` are placed. The times and the collectives of the program are logged at
    debug under `name`. Lowering is Python and holds the GIL, so only compiling runs in the thread.
    """
    start_s = time.perf_counter()
    lowered = mapped.lower(*args)
    lowering_s = time.perf_counter() - start_s
    executor = ThreadPoolExecutor(max_workers=1)
    program = executor.submit(_compiled, name, lowered, lowering_s)
    executor.shutdown(wait=False)
    return program.result


def _compiled(name: str, lowered: Any, lowering_s: float) -> Any:
    start_s = time.perf_counter()
    with _cache_events() as events:
        program = lowered.compile()
    compiling_s = time.perf_counter() - start_s
    if logger.isEnabledFor(logging.DEBUG):
        found = ", ".join(sorted(events)) or "the compilation cache is off, or cannot hold it"
        logger.debug("Program of %s: lowered in %.2f s, compiled in %.2f s (%s).", name, lowering_s, compiling_s, found)
        for line in describe_collectives(program.as_text()) or ["none"]:
            logger.debug("Collectives in the program of %s: %s", name, line)
    return program


@contextlib.contextmanager
def _cache_events() -> Iterator[set[str]]:
    """The events of the compilation cache while this thread compiles a program: `cache hit` or `cache miss`."""
    events: set[str] = set()
    thread = threading.get_ident()

    def listen(event: str, **_: Any) -> None:
        if event in _CACHE_EVENTS and threading.get_ident() == thread:
            events.add(_CACHE_EVENTS[event])

    jax.monitoring.register_event_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_listener(listen)


def describe_collectives(text: str) -> list[str]:
    """The collectives in a compiled program's text, as in `2 x all-reduce of f32[58411] (228.2 KiB)`.

    A collective in a loop counts once, however often it runs.
    """
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for line in text.splitlines():
        if found := _COLLECTIVE.search(line):
            arrays = [match[0] for match in _ARRAY.finditer(found["type"])]
            counts[found["op"], ", ".join(arrays)] += 1
    return [
        f"{count} x {op} of {arrays} ({format_bytes(result_bytes(arrays))})"
        for (op, arrays), count in sorted(counts.items())
    ]


def result_bytes(result: str) -> int:
    """Bytes of a result's type, such as `(f32[8,2]{1,0}, s32[])`."""
    item_bytes = lambda kind: 1 if kind == "pred" else max(1, int(re.findall(r"\d+", kind)[0]) // 8)
    return sum(item_bytes(kind) * math.prod(map(int, filter(None, n.split(",")))) for kind, n in _ARRAY.findall(result))
