"""Trial runs of a generated program before it is written: its mirror image and its first steps."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics.names import MAX_VELOCITY

DRIVEN_STEPS = 10
"""Control steps of the trial of a program."""
ACTION_STD = 0.5
"""Standard deviation of the random actions of the trial, about the same as at the beginning of training."""


def mirror_fault(text: str, class_name: str, output: Path) -> str | None:
    """The reason why a program's task has no mirror image, as a sentence; None if it has one.

    Args:
        output: The path of the program, to which its path of the robot's file is relative.
    """
    program = _run(text, output)
    try:
        _ = program[class_name](program["CONFIG"]).mirror
    except ConfigError as error:
        return str(error).partition(". ")[0]
    return None


def drive_fault(text: str, class_name: str, output: Path) -> str | None:
    """The fault in the first steps of a program's task, as text; None if there is none.

    Native MuJoCo steps the robot under random actions, from the pose in which episodes begin.

    Raises:
        ConfigError: The task rejects the program's config.
    """
    program = _run(text, output)
    env = program[class_name](program["CONFIG"]).environment
    model, rng = env.engine.model, np.random.default_rng(0)
    data = mujoco.MjData(model.mj_model)
    data.qpos[:] = model.loops.closed(model.default_qpos)[0]
    for step in range(1, DRIVEN_STEPS + 1):
        action = jnp.asarray(rng.normal(0.0, ACTION_STD, env.action_size), jnp.float32)
        data.ctrl[:] = np.asarray(env.mdp.control(action, model))
        mujoco.mj_step(model.mj_model, data, model.decimation)
        fastest = np.abs(data.qvel).max(initial=0.0)
        if not np.isfinite(data.qpos).all() or not fastest < MAX_VELOCITY:
            return f"its physics blew up within {step * model.ctrl_dt:.2g} s of an episode, in steps of {model.dt:g} s"
    return None


def _run(text: str, output: Path) -> dict[str, Any]:
    """The names that a program defines when it is imported."""
    program: dict[str, Any] = {"__name__": output.stem, "__file__": str(output.absolute())}
    exec(compile(text, str(output), "exec"), program)
    return program
