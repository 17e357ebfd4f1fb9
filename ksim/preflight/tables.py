"""The start tables: devices, batch, terms of the MDP."""

from collections.abc import Sequence

from rich.table import Table

from ksim.host.terminal import console, print_figures
from ksim.preflight.memory import format_bytes
from ksim.preflight.start import StartReport, TermRow
from ksim.task.distributed_setup import DistributedSetup


def print_distributed_setup(setup: DistributedSetup) -> None:
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
        ("environment states", setup.env_state_bytes_per_device),
        ("rollout (estimate)", setup.rollout_bytes_per_device),
    ):
        table.add_row(name, format_bytes(share * setup.num_devices), format_bytes(share))
    console.print(table)


def print_start(report: StartReport) -> None:
    """Prints task, devices, engine, sizes and terms before training."""
    print_figures("Run", report.figures)
    print_terms(report.terms)


def print_terms(rows: Sequence[TermRow]) -> None:
    """Prints a table of the MDP's terms, if there are any."""
    if not rows:
        return
    table = Table("kind", "term", "class", "shape", "scale", title="Terms of the MDP", title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
