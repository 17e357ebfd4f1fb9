"""Indices by name, and the joints and base within generalized coordinates. No other module knows their offsets."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float

from ksim.errors import ConfigError, near_misses
from ksim.physics.contacts import part_of
from ksim.physics.mjcf import driven, label
from ksim.physics.rotations import heading_frame, multiply_quaternions, rotate, rotate_inverse, turn_by
from ksim.physics.trees import ROBOT_TEXT, free_joint_of, robot_root
from ksim.types import PhysicsState

_SIDES = re.compile(r"left|right|front|rear|back|hind|mid|middle|[lr]|[frhbm][lr]|[lr][frhbm]|\d+", re.IGNORECASE)


def side_pattern(name: str) -> str:
    """A joint's name with its side replaced by a star: `*_knee` for `left_knee`, `hip_*` for `hip_1`."""
    parts = re.split(r"([_\-. ])", name)
    pattern = "".join("*" if _SIDES.fullmatch(part) else escaped(part) for part in parts)
    return re.sub(r"\*([_\-. ]\*)+", "*", pattern)


def escaped(name: str) -> str:
    """A pattern that matches only this name."""
    return re.sub(r"([\[*?])", r"[\1]", name)


_SENSOR = mujoco.mjtObj.mjOBJ_SENSOR
ON_JOINTS = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
ONE_DOF = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))


class ModelNames:
    """Name lookup in a model, on the host at trace time, so that it costs nothing at run time.

    Attributes:
        joints: Hinge and slide joints, in the model's order.
        actuators: Actuators, in the model's order.
        num_velocities: The length of qvel.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        self.joints = [model.joint(i).name for i in range(model.njnt) if model.jnt_type[i] in ONE_DOF]
        self.actuators = [model.actuator(i).name for i in range(model.nactuator)]
        self.num_velocities = int(model.nv)

    def index(self, kind: str, name: str) -> int:
        """The index of a `joint`, `body`, `site`, `geom`, `sensor`, `actuator` or `key`.

        Raises:
            ConfigError: The model has no such name; the message lists the nearest ones.
        """
        object_type = getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}")
        found = mujoco.mj_name2id(self._model, object_type, name)
        if found < 0:
            count = {"joint": "njnt", "key": "nkey", "actuator": "nactuator"}.get(kind, f"n{kind}")
            every = [mujoco.mj_id2name(self._model, object_type, i) for i in range(getattr(self._model, count))]
            raise ConfigError(f"The model has no {kind} {name!r}. {near_misses(name, every)}")
        return found

    def joint_qpos(self, joints: Sequence[str] | None = None) -> np.ndarray:
        """Indices in qpos of hinge and slide joints; by default of all."""
        return self._model.jnt_qposadr[self._joint_indices(joints)]

    def joint_qvel(self, joints: Sequence[str] | None = None) -> np.ndarray:
        """Indices in qvel of hinge and slide joints; by default of all."""
        return self._model.jnt_dofadr[self._joint_indices(joints)]

    def joint_range(self, joints: Sequence[str] | None = None) -> np.ndarray:
        """Lower and upper limits, in rad or m, (joints, 2); infinite for unlimited joints."""
        indices = self._joint_indices(joints)
        limited = self._model.jnt_limited[indices].astype(bool)
        return np.where(limited[:, None], self._model.jnt_range[indices], [-np.inf, np.inf])

    def sensor(self, name: str) -> slice:
        """The slice of a sensor's readings in sensordata."""
        index = self.index("sensor", name)
        start = int(self._model.sensor_adr[index])
        return slice(start, start + int(self._model.sensor_dim[index]))

    def reading(self, sensordata: Float[Array, "*n s"], name: str) -> Float[Array, "*n d"]:
        """The readings of a sensor, summed with those of its parts.

        Args:
            name: The sensor's name. Its parts are the sensors `part_of(name, 1)`, `part_of(name, 2)` and so on, such as
                the toe of a foot. Most sensors have none.
        """
        parts = (part_of(name, k) for k in itertools.count(1))
        found = itertools.takewhile(lambda part: mujoco.mj_name2id(self._model, _SENSOR, part) >= 0, parts)
        return sum((sensordata[..., self.sensor(part)] for part in found), start=sensordata[..., self.sensor(name)])

    @property
    def has_base(self) -> bool:
        """Whether the robot has a free base, that is, its tree begins with a free joint.

        Raises:
            ConfigError: It is ambiguous which tree is the robot.
        """
        return self._base_joint is not None

    def free_joint(self) -> tuple[int, int]:
        """The first index of the robot's free joint in qpos, and in qvel.

        Raises:
            ConfigError: The robot has no free joint, or it is ambiguous which tree is the robot.
        """
        joint = self._needed_base_joint()
        return int(self._model.jnt_qposadr[joint]), int(self._model.jnt_dofadr[joint])

    def base_body(self) -> int:
        """The index of the body that the robot's free joint moves.

        Raises:
            ConfigError: The robot has no free joint, or it is ambiguous which tree is the robot.
        """
        return int(self._model.jnt_bodyid[self._needed_base_joint()])

    @functools.cached_property
    def _base_joint(self) -> int | None:
        root = robot_root(self._model)
        return None if root is None else free_joint_of(self._model, root)

    def _needed_base_joint(self) -> int:
        if self._base_joint is None:
            raise ConfigError(
                "The robot has no free joint, so it has no base with a pose and a velocity. Add <freejoint/> to the "
                f"body that is the robot's base in the MJCF file, or remove the term that needs it.{self._taken()}"
            )
        return self._base_joint

    def _taken(self) -> str:
        """A sentence that names the tree taken as the robot; empty if the model has no free joint."""
        root = robot_root(self._model)
        if root is None or not (self._model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)).any():
            return ""
        return (
            f" The robot is taken to be {label(self._model, 'body', root)}; if it is another, name its first body by "
            f'<custom><text name="{ROBOT_TEXT}" data="BODY"/></custom>.'
        )

    def actuator_joint(self, actuator: int) -> str | None:
        """The hinge or slide joint that an actuator drives; None if it drives something else."""
        joint = int(self._model.actuator_trnid[actuator, 0])
        is_on_joint = self._model.actuator_trntype[actuator] in ON_JOINTS and self._model.jnt_type[joint] in ONE_DOF
        return self._model.joint(joint).name if is_on_joint else None

    def actuator_joints(self) -> list[str]:
        """The hinge or slide joint that each actuator drives.

        Raises:
            ConfigError: An actuator drives something other than a hinge or slide joint.
        """
        joints = []
        for actuator in range(self._model.nactuator):
            joint = self.actuator_joint(actuator)
            if joint is None:
                raise ConfigError(
                    f"Every actuator must drive a hinge or slide joint, but {label(self._model, 'actuator', actuator)} "
                    f"acts on {driven(self._model, actuator)}. Remove the term that needs the joint of each actuator, "
                    "or remove this actuator from the MJCF file."
                )
            joints.append(joint)
        return joints

    def _joint_indices(self, joints: Sequence[str] | None) -> np.ndarray:
        if joints is None:  # includes unnamed joints
            return np.flatnonzero(np.isin(self._model.jnt_type, ONE_DOF))
        indices = np.array([self.index("joint", name) for name in joints], dtype=int)
        for name, index in zip(joints, indices, strict=True):
            if self._model.jnt_type[index] not in ONE_DOF:
                raise ConfigError(f"Joint {name!r} must be a hinge or slide joint. {near_misses(name, self.joints)}")
        return indices


def base_height_of(model: mujoco.MjModel, qpos: np.ndarray) -> float:
    """The height of the base in a pose, in m, on the host.

    Raises:
        ConfigError: The robot has no free joint.
    """
    start, _ = ModelNames(model).free_joint()
    return float(qpos[start + 2])


def base_rotation(model: mujoco.MjModel) -> slice:
    """The slice of the base's angular velocity in qvel.

    Raises:
        ConfigError: The robot has no free joint.
    """
    _, start = ModelNames(model).free_joint()
    return slice(start + 3, start + 6)


def with_level_base(model: mujoco.MjModel, qpos: np.ndarray, height: float) -> np.ndarray:
    """The pose with the base level, facing along x, at a height in m, on the host.

    Raises:
        ConfigError: The robot has no free joint.
    """
    start, _ = ModelNames(model).free_joint()
    qpos = qpos.copy()
    qpos[start + 2 : start + 7] = [height, 1, 0, 0, 0]
    return qpos


def base_of_qpos(names: ModelNames, qpos: Any) -> tuple[Any, Any]:
    """The base's position, in m, (..., 3), and orientation (w, x, y, z), (..., 4), in poses (..., q).

    Raises:
        ConfigError: The robot has no free joint.
    """
    start, _ = names.free_joint()
    return qpos[..., start : start + 3], qpos[..., start + 3 : start + 7]


def with_moved_base(names: ModelNames, qpos_tq: np.ndarray, offset_3: np.ndarray) -> np.ndarray:
    """Poses over time with the base moved by an offset in m, on the host; unchanged if there is no base."""
    if not names.has_base:
        return qpos_tq
    start, _ = names.free_joint()
    moved_tq = qpos_tq.copy()
    moved_tq[:, start : start + 3] += offset_3
    return moved_tq


def joints_of_qpos(names: ModelNames, qpos_tq: np.ndarray) -> np.ndarray:
    """Positions of hinge and slide joints over time, (t, j), on the host."""
    return qpos_tq[:, names.joint_qpos()]


def states_of_motion(
    names: ModelNames,
    default_qpos: np.ndarray,
    joints: Sequence[str],
    poses: Sequence[np.ndarray],
    vels: Sequence[np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (t, q) and velocities (t, v) of a motion of base and joints, on the host.

    Args:
        default_qpos: The pose of everything else, (q,).
        joints: The joints that move.
        poses: Position (t, 3) and orientation (t, 4) of the base in the world, and joint positions (t, j).
        vels: Velocity of the base in the world (t, 3), its angular velocity in its own frame (t, 3), and joint
            velocities (t, j).

    Raises:
        ConfigError: The robot has no free joint, or one of the names is no joint.
    """
    in_qpos, in_qvel = names.free_joint()
    qpos_tq = np.tile(np.asarray(default_qpos, float), (len(poses[0]), 1))
    qvel_tv = np.zeros((len(qpos_tq), names.num_velocities))
    qpos_tq[:, in_qpos : in_qpos + 3], qpos_tq[:, in_qpos + 3 : in_qpos + 7] = poses[:2]
    qvel_tv[:, in_qvel : in_qvel + 3], qvel_tv[:, in_qvel + 3 : in_qvel + 6] = vels[:2]
    qpos_tq[:, names.joint_qpos(joints)], qvel_tv[:, names.joint_qvel(joints)] = poses[2], vels[2]
    return qpos_tq, qvel_tv


def find_in_spec(spec: mujoco.MjSpec, kind: str, name: str) -> Any:
    """The `body`, `geom` or `site` with a name, in an uncompiled model.

    Raises:
        ConfigError: The model has no such name; the message lists the nearest ones.
    """
    found = getattr(spec, kind)(name)
    if found is None:
        every = {"body": spec.bodies, "geom": spec.geoms, "site": spec.sites}[kind]
        raise ConfigError(f"The model has no {kind} {name!r}. {near_misses(name, [x.name for x in every])}")
    return found


@dataclasses.dataclass(frozen=True)
class Base:
    """The robot's base in a state. Each value is computed where it is read.

    Raises:
        ConfigError: The robot has no free joint.
    """

    physics: PhysicsState
    names: ModelNames

    @property
    def position(self) -> Float[Array, "3"]:
        """The position in the world, in m."""
        start, _ = self.names.free_joint()
        return self.physics.qpos[start : start + 3]

    @property
    def orientation(self) -> Float[Array, "4"]:
        """The orientation in the world, a unit quaternion (w, x, y, z)."""
        start, _ = self.names.free_joint()
        return self.physics.qpos[start + 3 : start + 7]

    @property
    def lin_vel_world(self) -> Float[Array, "3"]:
        """The linear velocity in the world frame, in m/s."""
        _, start = self.names.free_joint()
        return self.physics.qvel[start : start + 3]

    @property
    def ang_vel_body(self) -> Float[Array, "3"]:
        """The angular velocity in its own frame, in rad/s, as MuJoCo stores it for free joints."""
        _, start = self.names.free_joint()
        return self.physics.qvel[start + 3 : start + 6]

    @property
    def ang_vel_world(self) -> Float[Array, "3"]:
        """The angular velocity in the world frame, in rad/s."""
        return rotate(self.ang_vel_body, self.orientation)

    @property
    def heading_velocity(self) -> Float[Array, "3"]:
        """The linear velocity, in m/s, in the level frame that shares its heading: forward, leftward, upward."""
        return heading_frame(self.orientation, self.lin_vel_world)

    def to_frame(self, vector_world_n3: Float[Array, "n 3"]) -> Float[Array, "n 3"]:
        """World-frame vectors in the base's frame."""
        return jax.vmap(rotate_inverse, in_axes=(0, None))(vector_world_n3, self.orientation)

    def relative(self, position_world_n3: Float[Array, "n 3"]) -> Float[Array, "n 3"]:
        """World positions relative to the base, in its frame, in m."""
        return self.to_frame(position_world_n3 - self.position)

    def relative_or_world(self, position_world_3: Float[Array, "3"]) -> Float[Array, "3"]:
        """A world position relative to the base, in its frame, in m; unchanged if there is no base."""
        if not self.names.has_base:
            return position_world_3
        return rotate_inverse(position_world_3 - self.position, self.orientation)


def add_to_base_velocity(
    physics: PhysicsState, names: ModelNames, lin_vel_world: Float[Array, "3"], ang_vel_body: Float[Array, "3"]
) -> PhysicsState:
    """The state with the base's velocity increased, in m/s and rad/s."""
    _, start = names.free_joint()
    qvel = physics.qvel.at[start : start + 6].add(jnp.concatenate([lin_vel_world, ang_vel_body]))
    return dataclasses.replace(physics, qvel=qvel)


def place_base(
    physics: PhysicsState, names: ModelNames, offset_world: Float[Array, "3"], yaw: Float[Array, ""]
) -> PhysicsState:
    """The state with the base moved by `offset_world`, in m, and turned by `yaw`, in rad, about the vertical.

    Its velocity turns with it.
    """
    base, (start, in_qvel) = Base(physics, names), names.free_joint()
    turn = jnp.array([jnp.cos(yaw / 2), 0.0, 0.0, jnp.sin(yaw / 2)])
    orientation = multiply_quaternions(turn, base.orientation)
    position = base.position + offset_world
    # Concatenated instead of updated in place: JAX 0.12 on a CPU was seen to fuse an in-place update with the rotation,
    # which then reads a component that is already overwritten.
    qpos = jnp.concatenate([physics.qpos[:start], position, orientation, physics.qpos[start + 7 :]])
    # The angular velocity is in the base's frame.
    lin_vel = turn_by(base.lin_vel_world, yaw)
    qvel = jnp.concatenate([physics.qvel[:in_qvel], lin_vel, physics.qvel[in_qvel + 3 :]])
    return dataclasses.replace(physics, qpos=qpos, qvel=qvel)


def tilt_base(
    physics: PhysicsState, names: ModelNames, roll: Float[Array, ""], pitch: Float[Array, ""]
) -> PhysicsState:
    """The state with the base turned by `pitch` about its own y axis, then `roll` about its own x axis, in rad."""
    start, _ = names.free_joint()
    zero = jnp.zeros(())
    about_y = jnp.stack([jnp.cos(pitch / 2), zero, jnp.sin(pitch / 2), zero])
    about_x = jnp.stack([jnp.cos(roll / 2), jnp.sin(roll / 2), zero, zero])
    turn = multiply_quaternions(about_y, about_x)
    orientation = multiply_quaternions(Base(physics, names).orientation, turn)
    # Concatenated instead of updated in place, as in place_base.
    qpos = jnp.concatenate([physics.qpos[: start + 3], orientation, physics.qpos[start + 7 :]])
    return dataclasses.replace(physics, qpos=qpos)


MAX_VELOCITY = 200.0
"""In rad/s or m/s. At this velocity a simulation counts as blown up: it is far above what a robot's joint can reach."""


def is_physical(physics: PhysicsState) -> Bool[Array, ""]:
    """Whether the state is finite and all velocities are below `MAX_VELOCITY`."""
    finite = [jnp.all(jnp.isfinite(x)) for x in (physics.qpos, physics.act, *physics.derived.values())]
    return jnp.all(jnp.stack(finite)) & jnp.all(jnp.abs(physics.qvel) < MAX_VELOCITY)
