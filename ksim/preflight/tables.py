"""Tables of what is about to run: devices, batch, the MDP's terms."""

from typing import Any

import jax
from rich.table import Table

from ksim.host.terminal import console, print_figures
from ksim.mdp.observations import AbstractObservation
from ksim.mdp.rewards import AbstractReward
from ksim.nn.adapted import AdaptedActorCritic
from ksim.preflight.devices import DistributedSetup
from ksim.preflight.memory import format_bytes
from ksim.rollout.environment import Environment
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.task.rl import RLTask


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
    config, layout = task.config, task.layout
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
