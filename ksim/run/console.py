"""What a run prints: tables at the start, a line per iteration, a summary at the end."""

import math
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from ksim.mdp.rewards import AbstractReward
from ksim.rollout.environment import Environment
from ksim.rollout.mdp_environment import MdpEnvironment

if TYPE_CHECKING:
    from ksim.task.distributed_rl import DistributedSetup

console = Console(highlight=False, soft_wrap=True)


def print_figures(title: str, figures: dict[str, str]) -> None:
    """Prints names and values as a table of two columns."""
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in figures.items():
        table.add_row(name, value)
    console.print(table)


def print_distributed_setup(setup: "DistributedSetup") -> None:
    """Prints a distributed run's global and per-device figures side by side."""
    table = Table("", "global", "per device", title="Distributed setup", title_justify="left")
    table.add_row("devices", f"{setup.num_devices} x {setup.platform}", ", ".join(setup.devices))
    table.add_row("environments", str(setup.num_envs), str(setup.num_envs_per_device))
    if setup.batch_size is not None:
        table.add_row("batch size (environments)", str(setup.batch_size), str(setup.batch_size_per_device))
        table.add_row("minibatches per pass", str(setup.num_batches), str(setup.num_batches))
    steps = setup.num_envs * setup.rollout_length
    table.add_row("steps per iteration", f"{steps:,}", f"{steps // setup.num_devices:,}")
    table.add_row("gradients synchronised", f"every {setup.grad_sync_period} minibatch(es)", setup.grad_sync_mode)
    console.print(table)


def print_environment(env: Environment, obs_sizes: dict[str, int]) -> None:
    """Prints a table of the MDP's terms, where ksim knows them, and the lengths of observations and actions."""
    lengths = {f"observation {group}": str(size) for group, size in obs_sizes.items()}
    if isinstance(env, MdpEnvironment):
        table = Table("kind", "term", "class", "scale", title="Terms of the MDP", title_justify="left")
        for full_name, term in env.mdp.terms().items():
            kind, _, name = full_name.rpartition("/")
            scale = f"{term.scale:g}" if isinstance(term, AbstractReward) else ""
            table.add_row(kind, name, type(term).__name__, scale)
        console.print(table)
    print_figures("Sizes", lengths | {"action": str(env.action_size)})


def iteration_line(
    metrics: dict[str, float], max_iterations: int | None, eta_s: float | None, update_share: float | None
) -> str:
    """The line of one iteration: progress, time left, speed, where the time goes, return, episode length."""
    of = f"/{max_iterations}" if max_iterations else ""
    parts = [
        f"iteration {metrics['iteration']:.0f}{of}",
        f"ETA {format_seconds(eta_s)}" if eta_s is not None else "no limit",
        f"{metrics['time/env_steps_per_s']:,.0f} env steps/s",
    ]
    if update_share is not None:
        parts.append(f"rollout {1 - update_share:.0%} update {update_share:.0%}")
    parts.append(f"return {_number(metrics['episode/return'])}")
    parts.append(f"length {_number(metrics['episode/length'])}")
    parts.append(f"reward/step {_number(metrics['rollout/reward'], 4)}")
    if metrics["policy/bad_updates"]:
        parts.append(f"[red]{metrics['policy/bad_updates']:.0f} updates skipped as not finite[/red]")
    return " · ".join(parts)


def format_seconds(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def _number(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
