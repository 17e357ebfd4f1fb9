"""The start tables: devices, batch, terms of the MDP. A terminal shows a short form; the full tables are logged."""

import logging
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ksim.host.terminal import console, figures_table
from ksim.preflight.memory import format_bytes
from ksim.preflight.start import StartReport, TermRow, steps_in_words
from ksim.task.distributed_setup import DistributedSetup

logger = logging.getLogger(__name__)

_BRIEF = ("task", "devices", "engine", "closed loops", "environments", "network")
"""Figures of a run that a terminal shows."""
_LOG_WIDTH = 160
"""Width of tables in the log, in characters."""


def print_distributed_setup(setup: DistributedSetup) -> None:
    """Prints a distributed run's global and per-device figures side by side; a terminal gets a short form."""
    each = f"{setup.num_envs_per_device} environments on each of {setup.num_devices} devices"
    processes = f"{setup.num_processes} process{'es' * (setup.num_processes > 1)}"
    brief = {"setup": f"{each}, {processes}, {format_bytes(setup.param_bytes)} of parameters"}
    if setup.batch_size is not None:
        brief["batch"] = f"{setup.batch_size} environments per minibatch, {setup.num_batches} minibatches per pass"
    _print(_setup_table(setup), brief)


def _setup_table(setup: DistributedSetup) -> Table:
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
    shares = (steps_in_words(x, setup.steps_per_action) for x in (steps, steps // setup.num_devices))
    table.add_row("steps per iteration", *shares)
    if setup.batch_size is not None:
        table.add_row("batch size (environments)", str(setup.batch_size), str(setup.batch_size_per_device))
        table.add_row("minibatches per pass", str(setup.num_batches), str(setup.num_batches))
        table.add_row("steps per optimizer step", f"{setup.effective_batch_size:,}", "")
    if setup.num_devices > 1:
        plural = "es" if setup.minibatches_per_sync > 1 else ""
        table.add_row(
            "gradients", f"averaged every {setup.minibatches_per_sync} minibatch{plural}", setup.grad_sync_mode
        )
    table.add_row("parameters", "replicated", format_bytes(setup.param_bytes))
    table.add_row("learner with optimizer", "replicated", format_bytes(setup.learner_bytes))
    for name, share in (
        ("environment states", setup.env_state_bytes_per_device),
        ("rollout (estimate)", setup.rollout_bytes_per_device),
    ):
        table.add_row(name, format_bytes(share * setup.num_devices), format_bytes(share))
    return table


def print_start(report: StartReport) -> None:
    """Prints task, devices, engine, sizes and terms before training."""
    figures = report.figures
    # The reasons in brackets are left out.
    brief = {name: figures[name].partition(" (")[0] for name in _BRIEF if name in figures}
    _print(figures_table("Run", figures), brief)
    print_terms(report.terms)


def print_terms(rows: Sequence[TermRow]) -> None:
    """Prints a table of the MDP's terms, if there are any; a terminal gets names by kind, with scales or sizes."""
    if not rows:
        return
    table = Table("kind", "term", "class", "shape", "scale", title="Terms of the MDP", title_justify="left")
    for row in rows:
        table.add_row(*row)
    _print(table, _brief_terms(rows))


def _brief_terms(rows: Sequence[TermRow]) -> dict[str, str]:
    """The terms of each kind, with their scales or sizes. A later observation group lists only its new terms."""
    brief: dict[str, list[str]] = {}
    first_group = next((row[0] for row in rows if row[0].startswith("observation/")), "")
    of_first = {row[1:] for row in rows if row[0] == first_group}
    for row in rows:
        kind, name, class_name, shape, scale = row
        if kind.startswith("observation/") and kind != first_group and row[1:] in of_first:
            brief.setdefault(kind, [f"as {first_group.partition('/')[2]}"])
            continue
        brief.setdefault(kind, []).append(" ".join(filter(None, (name or class_name, scale or shape))))
    return {kind: ", ".join(words) for kind, words in brief.items()}


def _print(table: Table, brief: Mapping[str, str]) -> None:
    """Prints a table. In a terminal it prints only `brief`, and logs the table."""
    if not console.is_terminal:
        console.print(table)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, words in brief.items():
        grid.add_row(name, escape(words))
    console.print(grid)
    text = Console(width=_LOG_WIDTH, color_system=None)
    with text.capture() as captured:
        text.print(table)
    logger.info("\n%s", captured.get().rstrip())
