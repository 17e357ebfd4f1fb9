"""The mirror image of a model: images of joints, states and controls.

The mirror is the plane y = 0, of the base's frame for a robot with a free base, else of the world.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.physics.mjcf import driven, label
from ksim.physics.model import PhysicsModel
from ksim.physics.names import ON_JOINTS, side_pattern
from ksim.types import PhysicsState


@dataclasses.dataclass(frozen=True, eq=False)
class SignedPermutation:
    """The map from a vector to its mirror image.

    Attributes:
        index: For each component of the image, the index of its source in the vector.
        sign: For each component of the image, its sign, 1 or -1.
    """

    index: np.ndarray
    sign: np.ndarray

    def __call__(self, vector: Float[Any, "*batch n"]) -> Float[Any, "*batch n"]:
        """The images of vectors (numpy or JAX arrays) along the last axis."""
        return vector[..., self.index] * self.sign

    @property
    def is_involution(self) -> bool:
        """Whether the image of the image is the vector itself."""
        return bool(
            np.array_equal(self.index[self.index], np.arange(self.index.size))
            and np.all(self.sign * self.sign[self.index] == 1)
        )

    @staticmethod
    def of(index: npt.ArrayLike, sign: npt.ArrayLike) -> "SignedPermutation":
        """A permutation from lists or arrays of any numeric type."""
        return SignedPermutation(np.asarray(index, np.int32), np.asarray(sign, np.float32))

    @staticmethod
    def joined(parts: Sequence["SignedPermutation"]) -> "SignedPermutation":
        """The permutation of concatenated vectors, each with its own image."""
        starts = np.cumsum([0, *(part.index.size for part in parts)])
        index = [part.index + start for part, start in zip(parts, starts, strict=False)]
        return SignedPermutation.of(np.concatenate(index), np.concatenate([part.sign for part in parts]))


TOLERANCE = 0.03
"""Largest error of an image, as a fraction of the robot's size, or in rad."""
FREE, BALL, _SLIDE = (int(getattr(mujoco.mjtJoint, f"mjJNT_{name}")) for name in ("FREE", "BALL", "SLIDE"))
POLAR, _AXIAL = np.array([1.0, -1.0, 1.0]), np.array([-1.0, 1.0, -1.0])
"""Signs of the components of the image of a vector, and of an axis of rotation."""
_QUATERNION = np.array([1.0, -1.0, 1.0, -1.0])


@dataclasses.dataclass(frozen=True, eq=False)
class ModelMirror:
    """Mirror images of a model's states and controls.

    `pairs` are hinge and slide joints with their images and signs: `("left_hip_roll", "right_hip_roll", -1)`.
    """

    qpos: SignedPermutation
    qvel: SignedPermutation
    act: SignedPermutation
    ctrl: SignedPermutation
    pairs: tuple[tuple[str, str, int], ...]

    def state(self, physics: PhysicsState) -> PhysicsState:
        """The image of a state, without derived fields."""
        return dataclasses.replace(
            physics,
            qpos=self.qpos(physics.qpos),
            qvel=self.qvel(physics.qvel),
            act=self.act(physics.act),
            qacc_warmstart=self.qvel(physics.qacc_warmstart),
            derived={},
        )


def mirror_model(physics_model: PhysicsModel) -> ModelMirror:
    """Finds the mirror image of each joint by its position and axis, and by its name if two joints coincide.

    Raises:
        ConfigError: A joint, an actuator or the default pose has no mirror image.
    """
    model = physics_model.mj_model
    image, sign = _joint_images(physics_model)
    qpos, qvel = _coordinates(model, image, sign)
    _check_bodies(model, qpos)
    hinges = model.jnt_qposadr[_has_one_dof(model)]
    off = np.abs(qpos(physics_model.default_qpos) - physics_model.default_qpos)[hinges]
    if off.size and not off.max() <= TOLERANCE:  # also NaN
        joint = label(model, "joint", int(np.flatnonzero(_has_one_dof(model))[off.argmax()]))
        raise ConfigError(
            f"The default pose is not its own mirror image: {joint} is off by {off.max():.2g} rad or m. Change the "
            "first keyframe of the model, or override get_mirror."
        )
    actuator_images, ctrl = _actuator_images(model, image, sign)
    # An activation has its actuator's image and sign.
    act = [
        (int(model.actuator_actadr[image_i]) + k, ctrl.sign[i])
        for i, image_i in enumerate(actuator_images)
        for k in range(int(model.actuator_actnum[i]))
    ]
    return ModelMirror(
        qpos=qpos,
        qvel=qvel,
        act=SignedPermutation.of([place for place, _ in act], [sign for _, sign in act]),
        ctrl=ctrl,
        pairs=tuple(
            (_name(model, j), _name(model, int(image[j])), int(sign[j]))
            for j in np.flatnonzero(_has_one_dof(model)).tolist()
        ),
    )


def _name(model: mujoco.MjModel, joint: int) -> str:
    return model.joint(joint).name or f"joint {joint}"


def _has_one_dof(model: mujoco.MjModel) -> np.ndarray:
    return ~np.isin(model.jnt_type, (FREE, BALL))


def base_frame(physics_model: PhysicsModel, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
    """Position, in m, and axes (as columns) of the frame whose plane y = 0 is the mirror."""
    if not physics_model.names.has_base:
        return np.zeros(3), np.eye(3)
    body = physics_model.names.base_body()
    return data.xpos[body].copy(), data.xmat[body].reshape(3, 3).copy()


def _joint_images(physics_model: PhysicsModel) -> tuple[np.ndarray, np.ndarray]:
    """For each joint its image, and the sign of the image's motion: -1 if it turns the other way."""
    model = physics_model.mj_model
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    origin_3, turn_33 = base_frame(physics_model, data)
    anchor_j3, axis_j3 = (data.xanchor - origin_3) @ turn_33, data.xaxis @ turn_33
    size = max(float(np.ptp(anchor_j3, axis=0).max()), 1e-3)
    image, sign = np.arange(model.njnt), np.ones(model.njnt)
    for j in range(model.njnt):
        if model.jnt_type[j] == FREE:
            continue
        is_alike = model.jnt_type == model.jnt_type[j]
        signs = POLAR if model.jnt_type[j] == _SLIDE else _AXIAL
        along_j = axis_j3 @ (signs * axis_j3[j])
        if model.jnt_type[j] == BALL:
            along_j = np.ones(model.njnt)
        off_j = np.linalg.norm(anchor_j3 - POLAR * anchor_j3[j], axis=1) / size + (1 - np.abs(along_j))
        pattern = side_pattern(model.joint(j).name)
        # A name only decides between joints at the same position.
        named_j = np.array([side_pattern(model.joint(k).name) == pattern for k in range(model.njnt)])
        k = int(np.argmin(np.where(is_alike, off_j + 0.1 * TOLERANCE * ~named_j, np.inf)))
        if not off_j[k] <= TOLERANCE:
            raise ConfigError(
                f"{label(model, 'joint', j)} has no mirror image: the nearest joint to where that should be is "
                f"{label(model, 'joint', k)}. A robot whose left is not like its right cannot be mirrored: override "
                "get_mirror, or set symmetry=off."
            )
        image[j], sign[j] = k, np.sign(along_j[k])
    for j in range(model.njnt):
        if image[image[j]] != j:
            raise ConfigError(
                f"{label(model, 'joint', j)} and {label(model, 'joint', int(image[image[j]]))} both have the mirror "
                f"image {label(model, 'joint', int(image[j]))}. Override get_mirror, or set symmetry=off."
            )
    return image, sign


def _coordinates(
    model: mujoco.MjModel, image: np.ndarray, sign: np.ndarray
) -> tuple[SignedPermutation, SignedPermutation]:
    """Images of positions and of velocities."""

    def images(address: np.ndarray, free: np.ndarray, ball: np.ndarray) -> SignedPermutation:
        index: list[int] = []
        signs: list[float] = []
        for j, kind in enumerate(model.jnt_type.tolist()):
            part = {FREE: free, BALL: ball}.get(kind, sign[[j]])
            index += range(int(address[image[j]]), int(address[image[j]]) + part.size)
            signs += part.tolist()
        return SignedPermutation.of(index, signs)

    # A free joint's angular velocity is in its own frame.
    return (
        images(model.jnt_qposadr, np.concatenate([POLAR, _QUATERNION]), _QUATERNION),
        images(model.jnt_dofadr, np.concatenate([POLAR, _AXIAL]), _AXIAL),
    )


def _check_bodies(model: mujoco.MjModel, qpos: SignedPermutation) -> None:
    """Raises ConfigError unless the mirrored moving bodies coincide with moving bodies in random poses."""
    rng, data, mirrored = np.random.default_rng(0), mujoco.MjData(model), mujoco.MjData(model)
    moving = np.unique(model.jnt_bodyid)
    one_dof = np.flatnonzero(_has_one_dof(model))
    for _ in range(4):
        data.qpos[:] = model.qpos0
        low_j, high_j = np.where(model.jnt_limited[one_dof, None], model.jnt_range[one_dof], [-1.0, 1.0]).T
        data.qpos[model.jnt_qposadr[one_dof]] = rng.uniform(low_j, high_j)
        mirrored.qpos[:] = qpos(data.qpos)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_kinematics(model, mirrored)
        size = max(float(np.ptp(data.xpos[moving], axis=0).max()), 1e-3)
        gap_bb = np.linalg.norm(mirrored.xpos[moving, None] - POLAR * data.xpos[None, moving], axis=2)
        worst = int(gap_bb.min(axis=0).argmax())
        if not gap_bb.min(axis=0)[worst] <= TOLERANCE * size:
            raise ConfigError(
                f"{label(model, 'body', int(moving[worst]))} has no mirror image in a pose drawn at random: no body is "
                f"within {gap_bb.min(axis=0)[worst]:.2g} m of it. Override get_mirror, or set symmetry=off."
            )


def _actuator_images(
    model: mujoco.MjModel, image: np.ndarray, sign: np.ndarray
) -> tuple[np.ndarray, SignedPermutation]:
    """For each actuator its image, and images of controls."""
    joints = model.actuator_trnid[: model.nactuator, 0]
    found, signs = np.arange(model.nactuator), np.ones(model.nactuator)
    kinds = np.stack([model.actuator_trntype, model.actuator_dyntype, model.actuator_gaintype], axis=1)
    for i in range(model.nactuator):
        if model.actuator_trntype[i] not in ON_JOINTS:
            raise ConfigError(
                f"{label(model, 'actuator', i)} acts on {driven(model, i)}; only actuators of joints have a mirror "
                "image. Override get_mirror, or set symmetry=off."
            )
        candidates = np.flatnonzero((joints == image[joints[i]]) & np.all(kinds == kinds[i], axis=1))
        if not candidates.size:
            raise ConfigError(
                f"{label(model, 'actuator', i)} has no mirror image: nothing alike drives "
                f"{label(model, 'joint', int(image[joints[i]]))}. Override get_mirror, or set symmetry=off."
            )
        # If a joint has several actuators, the image has the same rank among them.
        own = np.flatnonzero((joints == joints[i]) & np.all(kinds == kinds[i], axis=1))
        found[i] = candidates[min(int(np.flatnonzero(own == i)[0]), candidates.size - 1)]
        gear = model.actuator_gear[i, 0] * model.actuator_gear[found[i], 0]
        signs[i] = sign[joints[i]] * np.sign(gear)
    return found, SignedPermutation.of(found, signs)


SECONDS, NUM_MOTIONS = 0.05, 8
"""Seconds per motion, and number of motions. In longer motions contacts amplify all differences, which makes small and
large ones harder to distinguish."""

_NOT_FINITE = tuple(int(getattr(mujoco.mjtWarning, f"mjWARN_BAD{name}")) for name in ("CTRL", "QPOS", "QVEL", "QACC"))


def mirrored_dynamics_gap(physics_model: PhysicsModel, mirror: ModelMirror) -> float:
    """The distance between simulated mirrored motions and mirror images of motions, over the distance moved.

    The robot on a flat floor starts near its default pose and is driven by random controls. 0 is a perfect mirror
    image, 1 is none, NaN a simulation that becomes non-finite. Slight differences between left and right, such as
    masses from a drawing, give a small number.
    """
    model, rng = physics_model.mj_model, np.random.default_rng(0)
    gap = moved = 0.0
    for _ in range(NUM_MOTIONS):
        robot, image = mujoco.MjData(model), mujoco.MjData(model)
        robot.qpos[:] = physics_model.default_qpos
        places = physics_model.names.joint_qpos()
        robot.qpos[places] += rng.uniform(-0.2, 0.2, places.size)
        robot.qvel[:] = rng.normal(0, 0.5, model.nv)
        image.qpos[:], image.qvel[:] = mirror.qpos(robot.qpos), mirror.qvel(robot.qvel)
        start = robot.qpos.copy()
        low_u, high_u = np.where(model.actuator_ctrllimited[:, None], model.actuator_ctrlrange, [-1.0, 1.0]).T
        for _ in range(max(round(SECONDS / model.opt.timestep), 1)):
            robot.ctrl[:] = 0.1 * rng.uniform(low_u, high_u)
            image.ctrl[:] = mirror.ctrl(robot.ctrl)
            mujoco.mj_step(model, robot)
            mujoco.mj_step(model, image)
        if any(data.warning[kind].number for data in (robot, image) for kind in _NOT_FINITE):
            return float("nan")
        gap += float(np.square(mirror.qpos(robot.qpos) - image.qpos).sum())
        moved += float(np.square(robot.qpos - start).sum())
    return float(np.sqrt(gap / max(moved, 1e-12)))


MAX_DYNAMICS_GAP = 0.1
"""Largest gap of `mirrored_dynamics_gap`. Robots with slight differences between left and right have up to 0.035."""


@dataclasses.dataclass(frozen=True, eq=False)
class RobotMirror:
    """Mirror images of a robot's states, controls and actions; `mirrored_dynamics_gap` computes the gap."""

    model: ModelMirror
    action: SignedPermutation
    dynamics_gap: float


def mirror_robot(physics_model: PhysicsModel, control: Callable[[Array], Array], action_size: int) -> RobotMirror:
    """Finds the mirror image of a robot's model, and checks its motions and actions.

    The robot stands on a flat floor, which is its own mirror image. `control` maps an action, (a,), to controls, (u,).

    Raises:
        ConfigError: The robot or its actuators have no mirror image.
    """
    mirror = mirror_model(physics_model)
    gap = mirrored_dynamics_gap(physics_model, mirror)
    if not np.isfinite(gap):
        raise ConfigError(
            f"The robot's simulation does not stay finite for {SECONDS} s near its default pose, so its mirror image "
            f"cannot be compared: it flies apart at dt={physics_model.mj_model.opt.timestep:g} s. Look at its first "
            "keyframe and its actuators, take a smaller dt, or set symmetry=off."
        )
    if not gap <= MAX_DYNAMICS_GAP:
        raise ConfigError(
            f"The robot does not move as its mirror image does: in {SECONDS} s, mirrored motions are off by {gap:.0%} "
            f"of how far it moves, more than {MAX_DYNAMICS_GAP:.0%}. Override get_mirror, or set symmetry=off."
        )
    return RobotMirror(mirror, _action_image(control, action_size, mirror.ctrl), gap)


def _action_image(control: Callable[[Array], Array], size: int, ctrl: SignedPermutation) -> SignedPermutation:
    """The image of actions, which is the image of the controls that they set."""
    action_n = np.random.default_rng(0).uniform(-0.5, 0.5, (4, size)).astype(np.float32)
    if size == ctrl.index.size:
        control_n = jax.vmap(control)
        expected, found = ctrl(control_n(jnp.asarray(action_n))), control_n(ctrl(jnp.asarray(action_n)))
        if np.allclose(expected, found, atol=0.02 * float(jnp.abs(expected).max())):
            return ctrl
    raise ConfigError(
        "The mirror image of an action is not known: mirrored actions do not set mirrored controls. The actuators of "
        "joints that are mirror images must be alike, also in their default positions. Override get_mirror, or set "
        "symmetry=off."
    )
