"""The content of the start screen: task, devices, sizes and terms."""

import dataclasses
from typing import Any

import jax

from ksim.mdp.env_curriculum import AbstractEnvCurriculum
from ksim.mdp.observations import AbstractObservation
from ksim.mdp.rewards import AbstractReward
from ksim.nn.adapted import AdaptedActorCritic
from ksim.physics import PhysicsModel
from ksim.physics.loops import OPEN
from ksim.rollout.environment import Environment
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.task.returned import action_bounds
from ksim.task.rl import RLTask

TermRow = tuple[str, str, str, str, str]
"""Kind, name, class, shape and scale of a term, as text; empty if it has none."""


@dataclasses.dataclass(frozen=True)
class StartReport:
    """The content of the start screen.

    Attributes:
        figures: Texts by name.
        terms: The terms of the MDP; empty for an environment that is not made of ksim's terms.
    """

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
        figures["engine"] = f"{env.engine_name} ({task.picked_engine[1]})"
    if isinstance(env, MdpEnvironment) and env.engine.model.loops.are_there:
        figures["closed loops"] = _loops_in_words(env.engine.model)
    figures |= {
        "environments": str(config.num_envs),
        "steps per iteration": steps_in_words(config.num_envs * config.rollout_length, config.steps_per_action),
    }
    figures |= {f"observation {group}": f"{size} numbers" for group, size in task.obs_sizes.items()}
    model = task.initial_learner()[1]
    bounds = action_bounds(task, model)
    within = "" if bounds is None else f", squashed between {bounds[0]:g} and {bounds[1]:g}"
    figures["action"] = f"{env.action_size} numbers{within}"
    if isinstance(model, AdaptedActorCritic):
        figures["network"] = model.described()
    figures |= task.figures().start
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
