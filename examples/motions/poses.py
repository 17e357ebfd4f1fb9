"""Motions from keyframes: splines of what feet, pelvis and centre of mass do, and inverse kinematics for the joints."""

import dataclasses
from collections.abc import Mapping, Sequence

import mujoco
import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import least_squares

from ksim.motion.motion import Motion
from ksim.physics.names import ModelNames, base_of_qpos, joints_of_qpos, states_of_motion

FPS = 50.0
SIDES = ("left", "right")
LEG = ("hip_yaw", "hip_roll", "hip_pitch", "knee", "ankle_pitch", "ankle_roll")


@dataclasses.dataclass(frozen=True)
class Foot:
    """The position of a foot.

    Attributes:
        x: Of the ankle in the world, in m.
        y: Likewise, to the left.
        z: Likewise, upwards.
        heel_up: Angle by which the heel is above the toes, in rad.
    """

    x: float
    y: float
    z: float = 0.07
    heel_up: float = 0.0


@dataclasses.dataclass(frozen=True)
class Keyframe:
    """The robot's pose at a time. Between keyframes all numbers are interpolated without overshooting.

    Attributes:
        time_s: Seconds from the start.
        center: The centre of mass above the ground, x and y, in m.
        height: Of the pelvis, in m.
        lean: Angle by which the pelvis leans forward, in rad.
        left: The left foot.
        right: The right foot.
        arms: Positions of arm joints on both sides, in rad, by their names without the side.
    """

    time_s: float
    center: tuple[float, float]
    height: float
    lean: float
    left: Foot
    right: Foot
    arms: Mapping[str, float] = dataclasses.field(default_factory=dict)


def motion_of(name: str, model: mujoco.MjModel, keyframes: Sequence[Keyframe]) -> Motion:
    """The motion through keyframes at `FPS`."""
    times = [keyframe.time_s for keyframe in keyframes]
    time_t = np.arange(round(times[-1] * FPS) + 1) / FPS
    wanted_tn = PchipInterpolator(times, [_numbers(keyframe) for keyframe in keyframes])(np.minimum(time_t, times[-1]))
    solver = _Solver(model, [*keyframes[0].arms])
    qpos_tq = np.array([solver(wanted_n) for wanted_n in wanted_tn])
    names = ModelNames(model)
    return Motion(name, FPS, tuple(names.joints), *base_of_qpos(names, qpos_tq), joints_of_qpos(names, qpos_tq))


def _numbers(keyframe: Keyframe) -> list[float]:
    feet = [value for foot in (keyframe.left, keyframe.right) for value in dataclasses.astuple(foot)]
    return [*keyframe.center, keyframe.height, keyframe.lean, *feet, *keyframe.arms.values()]


class _Solver:
    """Pelvis and legs of one frame after another, by least squares, each from the solution of the one before."""

    def __init__(self, model: mujoco.MjModel, arms: Sequence[str]) -> None:
        self._model, self._data, self._names = model, mujoco.MjData(model), ModelNames(model)
        self._legs = [f"{side}_{joint}" for side in SIDES for joint in LEG]
        self._arms = [f"{side}_{joint}" for side in SIDES for joint in arms]
        self._feet = [model.body(f"{side}_foot").id for side in SIDES]
        self._rest = model.key_qpos[0].copy()
        low_j, high_j = self._names.joint_range(self._legs).T
        self._bounds = np.array([-np.inf, -np.inf, *low_j]), np.array([np.inf, np.inf, *high_j])
        self._rest_n = np.array([0.0, 0.0, *self._rest[self._names.joint_qpos(self._legs)]])
        self._last_n = self._rest_n

    def __call__(self, wanted_n: np.ndarray) -> np.ndarray:
        """Generalized positions for the numbers of a keyframe.

        Raises:
            ValueError: A foot or the centre of mass cannot be where it should be.
        """
        start_n = np.clip(self._last_n, self._bounds[0] + 1e-4, self._bounds[1] - 1e-4)
        fit = least_squares(self._residual, start_n, bounds=self._bounds, args=(wanted_n,), x_scale=0.1)
        off = float(np.abs(self._gaps(fit.x, wanted_n)[0]).max())
        if off > 0.01:
            raise ValueError(f"The pose is out of reach: a foot or the centre of mass is off by {off:.3f} m.")
        self._last_n = fit.x
        return self._qpos(fit.x, wanted_n)

    def _residual(self, x_n: np.ndarray, wanted_n: np.ndarray) -> np.ndarray:
        near_n = 0.003 * (x_n - self._rest_n)[2:]
        return np.concatenate([*self._gaps(x_n, wanted_n), near_n])

    def _gaps(self, x_n: np.ndarray, wanted_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By how much feet and centre of mass are off, in m, and by how much the soles are turned."""
        self._data.qpos[:] = self._qpos(x_n, wanted_n)
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)
        off = [self._data.subtree_com[1, :2] - wanted_n[:2]]
        turned = []
        for foot, (x, y, z, heel_up) in zip(self._feet, wanted_n[4:12].reshape(2, 4), strict=True):
            off.append(self._data.xpos[foot] - [x, y, z])
            matrix = self._data.xmat[foot].reshape(3, 3)
            turned += [matrix[:, 0] - [np.cos(heel_up), 0, -np.sin(heel_up)], matrix[:, 1] - [0, 1, 0]]
        return np.concatenate(off), 0.1 * np.concatenate(turned)

    def _qpos(self, x_n: np.ndarray, wanted_n: np.ndarray) -> np.ndarray:
        (_, _, height, lean), arms = wanted_n[:4], wanted_n[12:]
        position, turn = [x_n[0], x_n[1], height], [np.cos(lean / 2), 0, np.sin(lean / 2), 0]
        joints = np.array([*x_n[2:], *arms, *arms])
        poses = np.array([position]), np.array([turn]), joints[None]
        still = np.zeros((1, 3)), np.zeros((1, 3)), np.zeros((1, len(joints)))
        return states_of_motion(self._names, self._rest, [*self._legs, *self._arms], poses, still)[0][0]
