"""Whether a task's training step compiles for accelerators that are not here, whether it fits, and what it costs.

python -m ksim.tools.compile examples.walking_distributed --target h100x8 num_envs=8192
python -m ksim.tools.compile examples.walking_distributed --target v5ex4 --sweep num_envs

A target is a kind of chip and a number: h100, a100 and rtx4090 (NVIDIA), v5e, v5p and v6e (TPUs). The whole training
step is compiled by XLA's own compiler for that chip, on a machine with a CPU only. Nothing runs. Printed are the memory
on each chip beside the chip's own, the collectives of an iteration, the kernels of a control step and of a minibatch,
and the time that compiling took. --hlo FILE keeps the program. --sweep num_envs doubles the environments until the
step does not fit, halves the gap until it is an eighth, and prints the largest number that fits.

Programs for several chips are compiled with layout=shard_map, because JAX compiles a pmap only for devices that are
there; both layouts have the same operations.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import PyTree

from ksim.errors import ConfigError
from ksim.host.files import write_whole
from ksim.host.terminal import print_line
from ksim.learn.learner import initial_memories
from ksim.parallel.collectives import bind_axis
from ksim.parallel.devices import make_host_devices
from ksim.parallel.layout import AbstractLayout, make_layout
from ksim.physics.warp import is_installed
from ksim.preflight.memory import env_shapes, format_bytes
from ksim.rollout.starts import initial_next_starts
from ksim.task.distributed import DistributedRLConfig, DistributedRLTask
from ksim.task.overrides import parse_overrides
from ksim.tools import exit_code_of, make_parser
from ksim.tools.hlo import Program, loop_of
from ksim.tools.scaling import find_task
from ksim.tools.targets import Target, parse_target, prepare_compilers
from ksim.types import Device, EnvBatch, TrainState, key_shape


class _TooLargeError(ConfigError):
    """The compiler found no way to fit the step into the memory of a chip."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A training step compiled for chips.

    Attributes:
        arguments: Bytes on each chip for the state, which the next state replaces.
        temporaries: Bytes on each chip for values within the step.
        peak: The sum of both, and of results that do not take the place of the state.
        collectives: Number and bytes on each chip by kind, of an iteration.
        step_kernels: Kernels of a control step; None if the rollout's loop was not found.
        batch_kernels: Kernels of a minibatch; None if there is no loop over minibatches.
        kernels: Kernels of an iteration.
        compile_s: Seconds for lowering and compiling.
        text: The compiled program.
    """

    num_envs: int
    arguments: int
    temporaries: int
    peak: int
    collectives: dict[str, tuple[int, int]]
    step_kernels: int | None
    batch_kernels: int | None
    kernels: int
    compile_s: float
    text: str

    def lines(self, target: Target) -> list[str]:
        """The report, a line for each figure."""
        of = "" if target.memory is None else f" of {format_bytes(target.memory)}, {self.peak / target.memory:.1%}"
        told = [f"{n:,} x {kind}, {format_bytes(size)}" for kind, (n, size) in sorted(self.collectives.items())]
        shown = lambda count: "-" if count is None else f"{count:,}"
        return [
            f"environments        {self.num_envs:,}, {self.num_envs // target.num_chips:,} on each chip",
            f"memory of a chip    {format_bytes(self.peak)}{of}: state {format_bytes(self.arguments)}, temporaries "
            f"{format_bytes(self.temporaries)}",
            f"collectives         {'; '.join(told) or 'none'} per iteration and chip",
            f"kernels             {shown(self.step_kernels)} per control step, {shown(self.batch_kernels)} per "
            f"minibatch, {self.kernels:,} per iteration",
            f"compiled in         {self.compile_s:.0f} s",
        ]


def state_shapes(task: DistributedRLTask[Any], layout: AbstractLayout) -> TrainState:
    """The shapes of the state as a layout places it, with its shardings."""
    learner, model = task.initial_learner()
    num_envs = task.config.num_envs
    row, _ = env_shapes(task, model)
    envs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype), row)

    def rest(key: Any) -> PyTree:
        return *initial_memories(model, num_envs), initial_next_starts(envs, key, jnp.arange(num_envs))

    batch = EnvBatch(envs, *jax.eval_shape(bind_axis(rest, task.device_axis), key_shape()))
    n = layout.num_devices
    if n == 1:
        place: Any = SingleDeviceSharding(layout.devices[0])
        rows = lambda x: x.shape
        copies = rows
    else:
        place = NamedSharding(jax.sharding.Mesh(layout.devices, (task.device_axis,)), PartitionSpec(task.device_axis))
        rows = lambda x: (n, x.shape[0] // n, *x.shape[1:])
        copies = lambda x: (n, *x.shape)
    placed = lambda shape: lambda x: jax.ShapeDtypeStruct(shape(x), x.dtype, sharding=place)
    return TrainState(jax.tree.map(placed(copies), learner), jax.tree.map(placed(rows), batch))


def compile_for(task: DistributedRLTask[Any], devices: Sequence[Device]) -> Compiled:
    """The training step of a task, compiled for chips; the task itself has one device of this machine."""
    layout = make_layout(devices, task.device_axis, "shard_map")
    state = state_shapes(task, layout)
    task.layout = layout
    start_s = time.monotonic()
    with jax.default_matmul_precision(task.config.matmul_precision):
        lowered: Any = layout.map(task.make_train_step(layout.axis_name), donate=True).lower(state)
        compiled = lowered.compile()
    compile_s = time.monotonic() - start_s
    memory, text = compiled.memory_analysis(), compiled.as_text()
    program = Program(text)
    loops, config = program.loops(), task.config
    num_updates, num_batches = task.updates_per_iteration(), task.batch_figures()[1]
    rollout = loop_of(loops, lambda loop: loop.trip_count == config.rollout_length and not loop.around)
    outside = [loop for loop in loops if loop != rollout and config.rollout_length not in loop.around]
    update = loop_of(outside, lambda loop: loop.trip_count in (num_updates, num_batches))
    # The next state takes the place of the state. What the compiler calls the peak leaves out the state on a TPU.
    peak = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    peak += max(0, memory.output_size_in_bytes - memory.alias_size_in_bytes)
    return Compiled(
        num_envs=config.num_envs,
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        peak=peak,
        collectives=program.collectives(),
        step_kernels=None if rollout is None else rollout.kernels,
        batch_kernels=None if update is None or num_updates is None else update.kernels,
        kernels=program.kernels(),
        compile_s=compile_s,
        text=text,
    )


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser("compile", __doc__)
    parser.add_argument("module", metavar="MODULE", help="module of the task, as in examples.walking_distributed")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="options of the task")
    parser.add_argument("--task", metavar="NAME", help="class of the task, where the module has several")
    parser.add_argument("--target", required=True, metavar="KINDxN", help="as in h100, h100x8, v5ex256")
    parser.add_argument("--target-config", type=Path, metavar="FILE", help="another GPU: XLA's text of its properties")
    parser.add_argument("--hlo", type=Path, metavar="FILE", help="where to write the compiled program")
    parser.add_argument("--sweep", choices=["num_envs"], help="find the largest batch that fits")
    return parser


def _config(options: argparse.Namespace, task_class: type[DistributedRLTask[Any]], target: Target) -> Any:
    """The options of the task, on one device of this machine.

    Raises:
        ConfigError: An option is invalid, or cannot be compiled for.
    """
    if any(x.startswith(("num_devices=", "devices=")) for x in options.overrides):
        raise ConfigError("num_devices and devices are those of --target. Leave them out.")
    config: DistributedRLConfig = parse_overrides(task_class.get_config_class()(), options.overrides)
    if config.engine == "mujoco":
        raise ConfigError("engine (mujoco) steps on the cores of a machine, not on its chips. Leave it out.")
    if config.engine == "warp" and target.platform == "tpu":
        raise ConfigError(f"engine (warp) is for NVIDIA GPUs, not for {options.target}. Set engine=mjx.")
    may_be_warp = config.engine == "auto" and target.platform == "gpu" and is_installed()
    engine = "warp" if may_be_warp else "mjx" if config.engine == "auto" else config.engine
    config = dataclasses.replace(config, engine=engine, num_devices=1, devices="cpu")
    if may_be_warp:
        try:
            _ = task_class(config).environment
        except ConfigError as error:
            print_line(f"{error} So engine=mjx.")
            config = dataclasses.replace(config, engine="mjx")
    config.validate()
    config.check_shares(target.num_chips)
    return config


@exit_code_of
def main(argv: Sequence[str] | None = None) -> None:
    """Compiles and prints what it takes."""
    options = _make_parser().parse_intermixed_args(argv)
    if options.sweep and options.hlo:
        raise ConfigError("--hlo keeps one program, --sweep compiles several. Leave one of them out.")
    target = parse_target(options.target, options.target_config)
    if options.sweep and target.memory is None:
        raise ConfigError(f"--sweep needs the memory of a chip: add device_memory_size to {options.target_config}.")
    prepare_compilers(target)
    task_class = find_task(options.module, options.task)
    config = _config(options, task_class, target)
    devices = target.devices()
    make_host_devices(1)
    print_line(f"Compiling {task_class.__name__} with engine={config.engine} for {options.target}...")
    if target.num_chips > 1 and config.layout == "pmap":
        print_line("With layout=shard_map instead of pmap, which JAX compiles only for devices that are there.")
    if options.sweep:
        _sweep(task_class, config, target, devices)
        return
    compiled = _compiled(task_class, config, target, devices)
    print_line("\n".join(compiled.lines(target)))
    if options.hlo:
        write_whole(options.hlo, compiled.text)
        print_line(f"Wrote {options.hlo}.")
    if not _fits(compiled, target):
        more = format_bytes(compiled.peak - (target.memory or 0))
        raise ConfigError(f"It compiles, but needs {more} more than a chip has. Set num_envs below {config.num_envs}.")


def _compiled(task_class: Any, config: Any, target: Target, devices: Sequence[Device]) -> Compiled:
    """The compiled step.

    Raises:
        ConfigError: The compiler refuses it, such as for memory that the chip does not have.
    """
    task = task_class(config)
    try:
        return compile_for(task, devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0][:300]
        error_class = _TooLargeError if "RESOURCE_EXHAUSTED" in str(error) else ConfigError
        raise error_class(f"The compiler for {target.kind} refuses num_envs={config.num_envs}: {reason}") from error


def _fits(compiled: Compiled, target: Target) -> bool:
    return target.memory is None or compiled.peak <= target.memory


def _sweep(task_class: Any, config: Any, target: Target, devices: Sequence[Device]) -> None:
    """Doubles the environments until the step does not fit, and halves the gap until it is an eighth."""
    fitting, failing, num_envs = 0, None, config.num_envs
    while failing is None or failing - fitting > max(config.num_envs, fitting // 8):
        try:
            compiled = _compiled(task_class, dataclasses.replace(config, num_envs=num_envs), target, devices)
        except _TooLargeError as error:
            print_line(f"{num_envs:>9,} environments: {error}")
            failing = num_envs
        else:
            share = compiled.peak / (target.memory or 1)
            print_line(f"{num_envs:>9,} environments: {format_bytes(compiled.peak)}, {share:.1%} of a chip")
            if _fits(compiled, target):
                fitting = num_envs
            else:
                failing = num_envs
        # Multiples of the first number, which the chips and minibatches divide.
        middle = (fitting + (failing or 0)) // 2 // config.num_envs * config.num_envs
        num_envs = 2 * fitting if failing is None else middle
        if num_envs == fitting:
            break
    print_line(f"Largest that fits: num_envs={fitting}." if fitting else f"num_envs={config.num_envs} does not fit.")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # libtpu's threads would abort while Python ends
