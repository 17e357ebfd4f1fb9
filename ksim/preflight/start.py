"""The content of the start screen: task, devices, sizes and terms."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ksim.host.terminal import console, figures_table
from ksim.mdp.env_curriculum import AbstractEnvCurriculum
from ksim.mdp.observations import AbstractObservation
from ksim.mdp.rewards import AbstractReward
from ksim.nn.networks import AdaptedActorCritic
from ksim.physics import PhysicsModel
from ksim.physics.trees import OPEN
from ksim.preflight.memory import format_bytes
from ksim.rollout.environment import Environment
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.task.distributed import DistributedSetup
from ksim.task.hook_checks import action_bounds
from ksim.task.rl import RLTask

TermRow = tuple[str, str, str, str, str]
"""Kind, name, class, shape and scale of a term, as text; empty if it has none."""


@dataclasses.dataclass(frozen=True)
class StartReport:
    """The content of the start screen. An environment that is not made of ksim's terms has no `terms`."""

    figures: dict[str, str]
    terms: list[TermRow]


def inspect_start(task: RLTask[Any]) -> StartReport:
    """The content of the start screen for a task."""
    config, layout, env = task.config, task.layout, task.environment
    figures = {
        "task": task.title,
        "devices": f"{layout.num_devices} x {layout.platform} ({layout.devices[0].device_kind})",
        "JAX": jax.__version__,
        "matrix products": f"float32 with precision {config.matmul_precision}",
    }
    if env.engine_name is not None:
        figures["engine"] = f"{env.engine_name} ({task.picked_engine.reason})"
    if isinstance(env, MdpEnvironment) and env.engine.model.loops.are_there:
        figures["closed loops"] = _loops_in_words(env.engine.model)
    figures |= {
        "environments": str(config.num_envs),
        "steps per iteration": steps_in_words(config.num_envs * config.rollout_length, config.steps_per_action),
    }
    figures |= {f"observation {group}": f"{size} numbers" for group, size in task.obs_sizes.items()}
    model = task.initial_learner().network
    bounds = action_bounds(model, task.obs_sizes, task.shapes_of)
    within = "" if bounds is None else f", squashed between {bounds[0]:g} and {bounds[1]:g}"
    figures["action"] = f"{env.action_size} numbers{within}"
    if isinstance(model, AdaptedActorCritic):
        figures["network"] = model.described()
    figures |= task.learner_info().start
    return StartReport(figures, term_rows(env, task.device_axis))


def _loops_in_words(model: PhysicsModel) -> str:
    gap = model.loops.closed(model.default_qpos)[2]
    if gap <= OPEN:
        return f"{model.mj_model.neq} equality constraints, met where episodes start"
    return f"off by {gap:.2g} m or rad where episodes start, which no joint can close: the physics pulls them together"


def steps_in_words(control_steps: int, steps_per_action: int) -> str:
    """A number of control steps as text, followed by the number of environment steps if actions are repeated."""
    own = f" ({control_steps * steps_per_action:,} of the environment)" if steps_per_action > 1 else ""
    return f"{control_steps:,}{own}"


def term_rows(env: Environment, axis_name: str) -> list[TermRow]:
    """One row per term of the MDP; none for an environment that is not made of ksim's terms."""
    if not isinstance(env, MdpEnvironment):
        return []
    rows: list[TermRow] = []
    shapes = env.shapes(axis_name)
    for full_name, term in env.mdp.terms().items():
        if isinstance(term, AbstractEnvCurriculum):
            continue  # added with the other curricula below
        kind, _, name = full_name.rpartition("/")
        scale = f"{term.scale:g}" if isinstance(term, AbstractReward) else ""
        shape = " x ".join(map(str, shapes[full_name])) or "1" if full_name in shapes else ""
        noise = term.noise if isinstance(term, AbstractObservation) else None
        class_name = type(term).__name__ + (f" + {type(noise).__name__}" if noise is not None else "")
        rows.append((kind, name, class_name, shape, scale))
    for name, curriculum in {**env.mdp.curricula, **env.mdp.env_curricula}.items():
        of_each = ", each environment" if name in env.mdp.env_curricula else ""
        rows.append(("curriculum", name, f"{type(curriculum).__name__} from {curriculum.start:g}{of_each}", "", ""))
    terrain = env.engine.model.terrain
    for i, tile in enumerate(terrain.tiles if terrain is not None else ()):
        rows.append(("terrain", f"tile {i}", type(tile).__name__, "", ""))
    return [*rows, ("actuators", "", type(env.mdp.actuators).__name__, str(env.action_size), "")]


logger = logging.getLogger(__name__)

_BRIEF = ("task", "engine", "closed loops", "environments", "network")
"""Rows of the setup table that a terminal shows; environments with their devices."""
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
    short = {name: figure.partition(" (")[0] for name, figure in figures.items()}
    short["environments"] += f" on {short['devices']}"
    brief = {name: short[name] for name in _BRIEF if name in short}
    _print(figures_table("Run", figures), brief)
    print_terms(report.terms)


def print_terms(rows: Sequence[TermRow]) -> None:
    """Prints a table of the MDP's terms, if there are any; a terminal gets names by kind, with scales or sizes."""
    if not rows:
        return
    table = Table("kind", "term", "class", "shape", "scale", title="Terms of the MDP", title_justify="left")
    for row in rows:
        table.add_row(*map(escape, row))
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
