"""Physics steps of a motion: poses and the velocities between them, as in simulation."""

import mujoco
import numpy as np
from jaxtyping import Float

from ksim.errors import ConfigError
from ksim.motion.load import states_at
from ksim.motion.motion import Motion
from ksim.physics.model import PhysicsModel

Steps = tuple[Float[np.ndarray, "n q"], Float[np.ndarray, "n v"], Float[np.ndarray, "n q"]]


def physics_steps(motion: Motion, model: PhysicsModel) -> Steps:
    """The last physics step before each control step of a motion: poses after it, velocities, and poses before it.

    A velocity leads from the pose before a step to the pose after it, as in the integrator of the physics.

    Raises:
        ConfigError: The motion is not longer than a control step.
    """
    dt = model.mj_model.opt.timestep
    qpos_tq, _ = states_at(motion, model, 1 / dt)
    if len(qpos_tq) <= model.decimation + 1:
        raise ConfigError(
            f"Motion {motion.name!r} lasts {motion.duration_s:.3g} s, but must last longer than a control step, "
            f"{model.ctrl_dt:g} s. Check its frames per second ({motion.fps:g})."
        )
    after_n = np.arange(1, len(qpos_tq), model.decimation)
    qvel_nv = np.zeros((len(after_n), model.mj_model.nv))
    for qvel, after in zip(qvel_nv, after_n, strict=True):
        mujoco.mj_differentiatePos(model.mj_model, qvel, dt, qpos_tq[after - 1], qpos_tq[after])
    return qpos_tq[after_n], qvel_nv, qpos_tq[after_n - 1]
