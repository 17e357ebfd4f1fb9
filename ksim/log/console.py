"""What a run prints: tables at the start, a line per iteration, a summary at the end."""

import contextlib
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from rich.table import Table

from ksim.checkpoint.format import find_best
from ksim.host.terminal import console, format_seconds, print_figures
from ksim.mdp.observations import AbstractObservation
from ksim.mdp.rewards import AbstractReward
from ksim.nn.adapted import AdaptedActorCritic
from ksim.preflight.memory import format_bytes
from ksim.rollout.environment import Environment
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.train.signals import StopRequest
from ksim.train.timing import peak_memory_bytes

if TYPE_CHECKING:
    from ksim.checkpoint.saver import Saver
    from ksim.evaluate.evaluator import Evaluation
    from ksim.evaluate.reports import Reports
    from ksim.task.distributed_rl import DistributedSetup
    from ksim.task.rl import RLTask
    from ksim.train.progress import Progress

logger = logging.getLogger(__name__)


def print_distributed_setup(setup: "DistributedSetup") -> None:
    """Prints a distributed run's global and per-device figures side by side."""
    table = Table("", "global", "per device", title="Distributed setup", title_justify="left")
    kinds = ", ".join(sorted({f"{device.platform} ({device.kind})" for device in setup.devices}))
    names = ", ".join(device.name for device in setup.devices[:8]) + (", ..." if setup.num_devices > 8 else "")
    table.add_row("processes", str(setup.num_processes), "")
    table.add_row("devices", f"{setup.num_devices} x {kinds}", names)
    memory = sorted({format_bytes(d.memory_bytes) for d in setup.devices if d.memory_bytes is not None})
    table.add_row("memory", "", " or ".join(memory) or "unknown")
    if setup.engine is not None:
        table.add_row("engine", setup.engine, "")
    table.add_row("environments", str(setup.num_envs), str(setup.num_envs_per_device))
    steps = setup.num_envs * setup.rollout_length
    table.add_row("steps per iteration", f"{steps:,}", f"{steps // setup.num_devices:,}")
    if setup.batch_size is not None:
        table.add_row("batch size (environments)", str(setup.batch_size), str(setup.batch_size_per_device))
        table.add_row("minibatches per pass", str(setup.num_batches), str(setup.num_batches))
        table.add_row("steps per optimizer step", f"{setup.effective_batch_size:,}", "")
    if setup.num_devices > 1:
        plural = "es" if setup.grad_sync_period > 1 else ""
        table.add_row("gradients", f"averaged every {setup.grad_sync_period} minibatch{plural}", setup.grad_sync_mode)
    table.add_row("parameters", "replicated", format_bytes(setup.param_bytes))
    table.add_row("learner with optimizer", "replicated", format_bytes(setup.learner_bytes))
    for name, share in (
        ("environments' states", setup.env_state_bytes_per_device),
        ("rollout (estimate)", setup.rollout_bytes_per_device),
    ):
        table.add_row(name, format_bytes(share * setup.num_devices), format_bytes(share))
    console.print(table)


def print_start(task: "RLTask[Any]") -> None:
    """Prints what is about to run, where, and what the robot is asked."""
    from ksim.task.distributed_rl import DistributedRLTask  # noqa: PLC0415 - task imports what it prints from here

    config, layout = task.config, task.layout
    if isinstance(task, DistributedRLTask):
        task.verify_distributed_setup()
    figures = {
        "task": type(task).__name__,
        "devices": f"{layout.num_devices} x {layout.devices[0].platform} ({layout.devices[0].device_kind})",
        "JAX": jax.__version__,
        "matrix products": f"float32 with precision {config.matmul_precision}",
    }
    if isinstance(task.environment, MdpEnvironment):
        name, reason = task.engine_choice
        figures["engine"] = f"{name} ({reason})"
    figures |= {
        "environments": str(config.num_envs),
        "steps per iteration": f"{config.num_envs * config.rollout_length:,}",
    }
    figures |= {f"observation {group}": f"{size} numbers" for group, size in task.obs_sizes.items()}
    figures["action"] = f"{task.environment.action_size} numbers"
    model = task.initial_learner()[1]
    if isinstance(model, AdaptedActorCritic):
        figures["network"] = model.described()
    print_figures("Run", figures)
    print_terms(task.environment, task.device_axis)


def print_terms(env: Environment, axis_name: str) -> None:
    """Prints a table of the MDP's terms, where ksim knows them."""
    if not isinstance(env, MdpEnvironment):
        return
    table = Table("kind", "term", "class", "shape", "scale", title="Terms of the MDP", title_justify="left")
    shapes = env.shapes(axis_name)
    for full_name, term in env.mdp.terms().items():
        kind, _, name = full_name.rpartition("/")
        scale = f"{term.scale:g}" if isinstance(term, AbstractReward) else ""
        shape = " x ".join(map(str, shapes[full_name])) or "1" if full_name in shapes else ""
        noise = term.noise if isinstance(term, AbstractObservation) else None
        class_name = type(term).__name__ + (f" + {type(noise).__name__}" if noise is not None else "")
        table.add_row(kind, name, class_name, shape, scale)
    for name, curriculum in env.mdp.curricula.items():
        table.add_row("curriculum", name, f"{type(curriculum).__name__} from {curriculum.start:g}", "", "")
    terrain = env.engine.model.terrain
    for i, tile in enumerate(terrain.tiles if terrain is not None else ()):
        table.add_row("terrain", f"tile {i}", type(tile).__name__, "", "")
    table.add_row("actuators", "", type(env.mdp.actuators).__name__, str(env.action_size), "")
    console.print(table)


def iteration_line(metrics: dict[str, float], max_iterations: int | None, eta_s: float | None) -> str:
    """The line of one iteration: progress, time left, speed, where the time goes, return, episode length."""
    of = f"/{max_iterations}" if max_iterations else ""
    parts = [f"iteration {metrics['iteration']:.0f}{of}"]
    if eta_s is not None:
        parts.append(f"ETA {format_seconds(eta_s)}")
    parts.append(f"{metrics['time/env_steps_per_s']:,.0f} env steps/s")
    rollout_s, update_s = metrics["time/rollout_s"], metrics["time/update_s"]
    update_share = update_s / (rollout_s + update_s)
    parts.append(f"rollout {1 - update_share:.0%} update {update_share:.0%}")
    parts.append(f"return {_number(metrics['episode/return'])}")
    parts.append(f"length {_number(metrics['episode/length'])}")
    parts.append(f"reward/step {_number(metrics['rollout/reward'], 4)}")
    if metrics["policy/bad_updates"]:
        parts.append(f"{metrics['policy/bad_updates']:.0f} updates skipped as not finite")
    return " · ".join(parts)


def evaluation_line(iteration: int, evaluation: "Evaluation") -> str:
    """The line of one evaluation: return, length, survival, errors and the gap, with 95 % confidence."""
    estimates = evaluation.figures
    parts = [
        f"evaluation at {iteration} ({evaluation.num_episodes} episodes in {evaluation.engine})",
        f"return {estimates['return'].words()}",
        f"length {estimates['length'].words(0)}",
        f"survived {estimates['survival'].percent_words()}",
        *(f"{name} {x.words()}" for name, x in estimates.items() if name.startswith("error/")),
    ]
    no_gap = f"no gap, trained in {evaluation.training_engine} as well"
    parts.append(no_gap if evaluation.gap is None else f"gap {evaluation.gap_words()}")
    return " · ".join(parts)


def print_summary(
    progress: "Progress",
    run_dir: Path,
    *,
    compile_s: float,
    stop: StopRequest,
    saver: "Saver | None",
    reports: "Reports",
) -> None:
    """Prints what was done, and where it is; no file that was not written, or is gone."""
    figures = {
        "iterations": str(progress.iteration),
        "environment steps": f"{progress.env_steps:,}",
        "training time": format_seconds(progress.elapsed_s),
        "before the first iteration": f"{compile_s:.1f} s, most of it compiling",
        "peak memory": f"{peak_memory_bytes() / 2**20:,.0f} MiB",
    } | _existing({"metrics": run_dir / "metrics.jsonl"})
    best = None
    if saver is not None and saver.newest is not None and os.path.exists(saver.newest[1]):
        figures["checkpoint"] = str(saver.newest[1])
        with contextlib.suppress(OSError):
            best = find_best(run_dir)
        if best is not None and best != saver.newest[1]:
            figures["best by evaluation"] = str(best)
        figures["evaluate it"] = f"run_mode=eval checkpoint={run_dir}"
        figures["go on with it"] = f"resume={run_dir}"
    if progress.bad_updates:
        figures["updates skipped"] = f"{progress.bad_updates:,}, as not finite"
    if progress.not_finite_steps:
        figures["steps left out"] = f"{progress.not_finite_steps:,} of single environments, as not finite"
    figures |= _existing(reports.paths)
    figures |= {f"failed: {kind}": f"{count} times" for kind, count in reports.failures.counts.items()}
    if stop.reason is not None:
        figures["stopped by"] = stop.reason
    print_figures("Done" if stop.reason is None else "Stopped", figures)


def _existing(paths: Mapping[str, Path]) -> dict[str, str]:
    # Path.exists raises where a directory on the way may not be searched.
    return {name: str(path) for name, path in paths.items() if os.path.exists(path)}


def _number(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
