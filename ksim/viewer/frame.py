"""The shown state of one robot at one time, from a simulation or a recording."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

ACTUATION = "qfrc_actuator"
"""The field of MjData with the actuators' forces on the joints, from which contact forces are computed."""


@dataclass(frozen=True)
class Frame:
    """One robot after one control step.

    Attributes:
        time_s: Seconds since the reset.
        qpos: Generalized positions, in m and rad, shape (q,).
        qvel: Generalized velocities, in m/s and rad/s, shape (v,).
        extra: State that only some models have, by its name in MjData.
        actuation: Forces of the actuators on the joints, in N and Nm, shape (v,); None if unknown.
        commands: The commands in force, by name.
        rewards: Rewards of the step per second: `total`, and the terms by name.
    """

    time_s: float
    qpos: np.ndarray
    qvel: np.ndarray
    extra: Mapping[str, np.ndarray]
    actuation: np.ndarray | None
    commands: Mapping[str, np.ndarray]
    rewards: Mapping[str, float]

    @property
    def is_finite(self) -> bool:
        """Whether the state is finite, so that it can be shown."""
        return bool(np.isfinite(self.qpos).all() and np.isfinite(self.qvel).all())


class Pose:
    """A simulation put into the state of a frame, with everything computed from it.

    Attributes:
        data: The state. Its contact forces are those under the frame's actuation.
        frame: The frame.
    """

    def __init__(self, mj_model: mujoco.MjModel) -> None:
        # The recorded forces take the place of the actuators, whose controls and gains differ from step to step.
        self._mj_model = copy.copy(mj_model)
        self._mj_model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
        self.data = mujoco.MjData(mj_model)
        self.frame: Frame | None = None

    def show(self, frame: Frame) -> None:
        """Moves to a frame."""
        self.frame = frame
        self.data.qpos[:], self.data.qvel[:] = frame.qpos, frame.qvel
        self.data.qfrc_applied[:] = 0.0 if frame.actuation is None else frame.actuation
        for name, value in frame.extra.items():
            getattr(self.data, name)[:] = value
        self.data.time = frame.time_s
        mujoco.mj_forward(self._mj_model, self.data)
