"""Numbers of contacts and constraints to allocate, measured in native MuJoCo."""

import copy
import math
from collections.abc import Mapping
from typing import NamedTuple

import mujoco
import numpy as np
from jax.core import eval_context
from jaxtyping import Float

from ksim.physics.model import PhysicsModel

MARGIN = 1.5
"""Allocated numbers over the largest that were seen."""
SPARE = 8
"""Allocated besides: a robot that never touched anything in the trials may do so later."""
NUM_TRIALS = 32
NUM_STEPS = 75
"""Control steps of a trial: enough for a robot of a metre to fall and lie, at 50 Hz."""
HOLD = 5
"""Control steps under the same action, so that limbs get somewhere."""


class ContactSizes(NamedTuple):
    """Numbers of a single simulation."""

    contacts: int
    constraints: int

    def with_margin(self) -> "ContactSizes":
        """The numbers to allocate where these were seen."""
        return ContactSizes(*(math.ceil(MARGIN * seen) + SPARE for seen in self))


def sizes_under_random_controls(model: PhysicsModel) -> ContactSizes:
    """The largest numbers of a robot that starts as its model does, under random controls."""
    rng, actuators = np.random.default_rng(0), model.mj_model
    low, high = np.where(actuators.actuator_ctrllimited[:, None], actuators.actuator_ctrlrange, [-1.0, 1.0]).T
    ctrl_ntu = rng.uniform(low, high, (NUM_TRIALS, NUM_STEPS // HOLD, model.mj_model.nu)).repeat(HOLD, axis=1)
    with eval_context():  # an engine may be made where a program is traced
        start = model.start()
        fields = {"qpos": start.qpos, "qvel": start.qvel} | start.extra
        starts = {name: np.tile(x, (NUM_TRIALS, *[1] * x.ndim)) for name, x in fields.items()}
    return largest_sizes(model, starts, {}, ctrl_ntu)


def largest_sizes(
    model: PhysicsModel,
    starts: Mapping[str, Float[np.ndarray, "n ..."]],
    overrides: Mapping[str, Float[np.ndarray, "n ..."]],
    ctrl_ntu: Float[np.ndarray, "n t u"],
) -> ContactSizes:
    """The largest numbers in simulations under controls, one per control step.

    Args:
        starts: Fields of MjData at the start of each simulation.
        overrides: Fields of MjModel that differ between the simulations.
    """
    largest = np.zeros(2, int)
    for i, ctrl_tu in enumerate(ctrl_ntu):
        mj_model = copy.copy(model.mj_model)
        for name, value_n in overrides.items():
            holder, field = (mj_model.opt, name[4:]) if name.startswith("opt.") else (mj_model, name)
            setattr(holder, field, value_n[i])
        data = mujoco.MjData(mj_model)
        mujoco.mj_setConst(mj_model, data)
        for name, value_n in starts.items():
            getattr(data, name)[:] = value_n[i]
        for ctrl_u in ctrl_tu:
            data.ctrl[:] = ctrl_u
            for _ in range(model.decimation):
                mujoco.mj_step(mj_model, data)
                largest = np.maximum(largest, [data.ncon, data.nefc])
    return ContactSizes(*largest.tolist())
