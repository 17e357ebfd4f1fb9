"""Fit of the mirror image of each component of a vector, from values of the vector and of its image."""

import dataclasses

import mujoco
import numpy as np
from jaxtyping import Bool, Float, Int

from ksim.errors import ConfigError
from ksim.mirror.model import BALL, FREE, POLAR, TOLERANCE, SignedPermutation, base_frame
from ksim.physics.model import PhysicsModel
from ksim.physics.names import side_pattern

BEYOND_PART = 0.05
"""Fraction of their range by which joints go beyond their limits."""
DEPTH_PART = 0.03
"""Largest penetration of the ground, as a fraction of the robot's size."""
_BISECTIONS, _STEPS_DOWN = 12, 40


@dataclasses.dataclass(frozen=True)
class TrialStates:
    """Sequences of states: s sequences of t states."""

    qpos: Float[np.ndarray, "s t q"]
    qvel: Float[np.ndarray, "s t v"]
    act: Float[np.ndarray, "s t a"]


def trial_states(physics_model: PhysicsModel, num_sequences: int, num_steps: int) -> TrialStates:
    """Random states of a robot on a flat floor, the same in each run.

    Every other state is near the default pose, at about standing height. In the others, joints are anywhere up to and
    beyond their limits, and the robot lies on the ground on any side, so that any of its parts may touch it.
    """
    model, rng = physics_model.mj_model, np.random.default_rng(0)
    count = num_sequences * num_steps
    data = mujoco.MjData(model)
    qpos = np.stack([_pose(physics_model, data, rng, is_wild=bool(i % 2)) for i in range(count)])
    low, high = np.where(model.actuator_actlimited[:, None], model.actuator_actrange, [-1.0, 1.0]).T
    owner = np.repeat(np.arange(model.nactuator), model.actuator_actnum)
    shaped = lambda x: x.reshape(num_sequences, num_steps, -1)
    return TrialStates(
        shaped(qpos),
        shaped(0.5 * rng.normal(size=(count, model.nv))),
        shaped(rng.uniform(low[owner], high[owner], (count, model.na))),
    )


def _pose(physics_model: PhysicsModel, data: mujoco.MjData, rng: np.random.Generator, *, is_wild: bool) -> np.ndarray:
    model = physics_model.mj_model
    qpos = np.array(physics_model.default_qpos, np.float64)
    for j, kind in enumerate(model.jnt_type.tolist()):
        place = int(model.jnt_qposadr[j])
        if kind == FREE:
            turn = _any_turn(rng) if is_wild else _small_turn(rng, 0.3, np.pi)
            qpos[place : place + 3] += rng.uniform(-1, 1, 3) * [1.0, 1.0, 0.05]
            qpos[place + 3 : place + 7] = _product(turn, qpos[place + 3 : place + 7])
        elif kind == BALL:
            turn = _any_turn(rng) if is_wild else _small_turn(rng, 0.4, 0.4)
            qpos[place : place + 4] = _product(qpos[place : place + 4], turn)
        else:
            qpos[place] = _joint_position(model, j, qpos[place], rng, is_wild=is_wild)
    if is_wild and physics_model.names.has_base:
        _lay_down(model, data, qpos, physics_model.names.free_joint()[0] + 2, rng)
    return qpos


def _joint_position(
    model: mujoco.MjModel, joint: int, default: float, rng: np.random.Generator, *, is_wild: bool
) -> float:
    is_hinge = model.jnt_type[joint] == int(mujoco.mjtJoint.mjJNT_HINGE)
    far = np.pi if is_hinge else 0.3
    low, high = model.jnt_range[joint] if model.jnt_limited[joint] else (default - far, default + far)
    if is_wild:
        beyond = BEYOND_PART * (high - low)
        return rng.uniform(low - beyond, high + beyond)
    return float(np.clip(default + rng.uniform(-0.4, 0.4), low, high))


def _lay_down(
    model: mujoco.MjModel, data: mujoco.MjData, qpos: np.ndarray, height: int, rng: np.random.Generator
) -> None:
    """Moves the base down until the robot presses the ground; does nothing without one. `height`: its index in qpos."""
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    base = int(model.jnt_bodyid[np.flatnonzero(model.jnt_qposadr == height - 2)[0]])
    is_own_b = model.body_rootid == model.body_rootid[base]
    moving = np.flatnonzero(is_own_b[model.geom_bodyid])
    if not moving.size:
        return
    off_g = np.linalg.norm(data.geom_xpos[moving] - qpos[height - 2 : height + 1], axis=1) + model.geom_rbound[moving]
    size = max(float(np.median(off_g)), 1e-3)

    def touches(z: float) -> bool:
        data.qpos[height] = z
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_collision(model, data)
        body_c2 = model.geom_bodyid[data.contact.geom]
        is_own_c, is_fixed_c = is_own_b[body_c2].any(axis=-1), (model.body_weldid[body_c2] == 0).any(axis=-1)
        return bool(np.any(is_own_c & is_fixed_c & (data.contact.dist < 0))) if data.ncon else False

    above = top = abs(qpos[height]) + 2 * float(off_g.max())
    for step in range(1, _STEPS_DOWN + 1):
        below = top - 2 * top * step / _STEPS_DOWN
        if touches(below):
            break
        above = below
    else:
        return
    for _ in range(_BISECTIONS):
        middle = (above + below) / 2
        above, below = (above, middle) if touches(middle) else (middle, below)
    qpos[height] = below - rng.uniform(0, DEPTH_PART) * size


def _any_turn(rng: np.random.Generator) -> np.ndarray:
    turn = rng.normal(size=4)
    return turn / np.linalg.norm(turn)


def _small_turn(rng: np.random.Generator, tilt: float, yaw: float) -> np.ndarray:
    """A random quaternion: a tilt of up to `tilt`, then a turn about the vertical of up to `yaw`, in rad."""
    turn, lean = np.zeros(4), np.zeros(4)
    direction = rng.uniform(-np.pi, np.pi)
    mujoco.mju_axisAngle2Quat(turn, np.array([0.0, 0.0, 1.0]), rng.uniform(-yaw, yaw))
    mujoco.mju_axisAngle2Quat(
        lean, np.array([np.cos(direction), np.sin(direction), 0.0]), tilt * np.sqrt(rng.uniform())
    )
    return _product(turn, lean)


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    product = np.zeros(4)
    mujoco.mju_mulQuat(product, left, right)
    return product


_EVENTS = (
    *("TOUCH", "CONTACT", "RANGEFINDER", "INSIDESITE", "GEOMDIST", "GEOMNORMAL", "GEOMFROMTO", "TACTILE"),
    *(f"{of}LIMIT{what}" for of in ("JOINT", "TENDON") for what in ("POS", "VEL", "FRC")),
)
"""Kinds of sensors that react to contacts, distances and limits."""


def event_readings(physics_model: PhysicsModel) -> Bool[np.ndarray, " m"]:
    """A mask of the readings of contacts, distances and limits."""
    model = physics_model.mj_model
    kinds = [int(getattr(mujoco.mjtSensor, f"mjSENS_{name}")) for name in _EVENTS]
    return np.repeat(np.isin(model.sensor_type, kinds), model.sensor_dim)


def touch_images(physics_model: PhysicsModel) -> tuple[Bool[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """A mask of readings of touch sensors whose image is known, and for all readings the index of the image.

    The image of a sensor is the sensor on a site of the same size at the mirrored position in the default pose. If
    there are several, their names decide. If there is none, or the names do not decide, the image is not known.
    """
    model = physics_model.mj_model
    known, index = np.zeros(model.nsensordata, bool), np.arange(model.nsensordata)
    touch = np.flatnonzero(model.sensor_type == int(mujoco.mjtSensor.mjSENS_TOUCH))
    if not touch.size:
        return known, index
    sites = model.sensor_objid[touch]
    data = mujoco.MjData(model)
    data.qpos[:] = physics_model.default_qpos
    mujoco.mj_kinematics(model, data)
    origin_3, turn_33 = base_frame(physics_model, data)
    place_s3 = (data.site_xpos[sites] - origin_3) @ turn_33
    moving = np.unique(model.jnt_bodyid)
    size = max(float(np.ptp(data.xpos[moving], axis=0).max(initial=0.0)), 1e-3)
    patterns = np.array([side_pattern(model.sensor(int(i)).name) for i in touch])
    images = np.full(touch.size, -1)
    for i in range(touch.size):
        off_s = np.linalg.norm(place_s3 - POLAR * place_s3[i], axis=1)
        is_near_s = (off_s < TOLERANCE * size) & np.isclose(model.site_size[sites], model.site_size[sites[i]]).all(1)
        named_s = is_near_s & (patterns == patterns[i])
        candidates = np.flatnonzero(named_s if named_s.any() else is_near_s)
        if candidates.size == 1:
            images[i] = candidates[0]
    for i, image in enumerate(images):
        if image >= 0 and images[image] == i:
            place = int(model.sensor_adr[touch[i]])
            known[place], index[place] = True, int(model.sensor_adr[touch[image]])
    return known, index


_FIT_TOLERANCE = 0.2
"""Largest error of a component's image, as a fraction of the standard deviation. Contact solvers stop early, so images
are not exact."""
_STILL_PART, _STILL = 1e-4, 1e-6
"""Standard deviations, as a fraction of a component's largest value and in its own unit. A component that varies by
less than their sum counts as constant."""
_ALIKE = 1e-4
FIXES = "Leave it out of the observations, or override get_mirror."


@dataclasses.dataclass(frozen=True, eq=False)
class Samples:
    """Values of an observation for a robot (`seen`) and for its mirror image. Each is also the image of the other."""

    name: str
    seen: Float[np.ndarray, "s n"]
    image: Float[np.ndarray, "s n"]

    @staticmethod
    def of(name: str, seen_sn: np.ndarray, image_sn: np.ndarray) -> "Samples":
        """Samples that contain every pair in both directions; raises ConfigError if a value is non-finite."""
        finite_n = np.isfinite(seen_sn).all(axis=0) & np.isfinite(image_sn).all(axis=0)
        if not finite_n.all():
            raise ConfigError(
                f"Component {int(np.flatnonzero(~finite_n)[0])} of observation {name!r} is not finite in a state drawn "
                f"at random, so its mirror image is not known. Look for a division by zero in it. {FIXES}"
            )
        return Samples(name, np.concatenate([seen_sn, image_sn]), np.concatenate([image_sn, seen_sn]))

    @property
    def moves(self) -> Bool[np.ndarray, " n"]:
        """A mask of the components that vary, so that their image can be found."""
        return np.std(self.seen, axis=0) > _STILL_PART * np.abs(self.seen).max(axis=0, initial=0.0) + _STILL


class Fit:
    """The images of an observation's components, as far as they are known."""

    def __init__(self, samples: Samples) -> None:
        self._name, count = samples.name, samples.seen.shape[1]
        self._index, self._sign = np.full(count, -1), np.ones(count)
        self._allowed_2nn = np.ones((2, count, count), bool)
        self._constant = samples.seen.mean(axis=0)  # the value, for constant components
        self.add(samples)

    @property
    def still(self) -> np.ndarray:
        """Indices of the components whose image is not known yet because they have been constant."""
        return np.flatnonzero(self._index < 0)

    @property
    def _is_open(self) -> Bool[np.ndarray, " n"]:
        return (self._index < 0) | (self._allowed_2nn.sum(axis=(0, 2)) > 1)

    @property
    def is_open(self) -> bool:
        """Whether further states may help: a component has been constant, or always equal to another one."""
        return bool(self._is_open.any())

    def add(self, samples: Samples) -> None:
        """Finds the images of open components (constant, or equal to another one, so far) that vary in these samples.

        Raises:
            ConfigError: A component has no image.
        """
        new = np.flatnonzero(samples.moves & self._is_open)
        seen, image = samples.seen[:, new], samples.image[:, new]
        # Root mean squared gaps of image i from the negative and from the value of component j.
        middle_n = seen.mean(axis=0)
        seen_c, image_c = seen - middle_n, image - middle_n
        count = len(seen)
        gaps_2nn = np.stack(
            [
                (np.square(image_c).sum(0)[:, None] + np.square(seen_c).sum(0)[None] - 2 * s * image_c.T @ seen_c)
                / count
                + np.square(middle_n[:, None] - s * middle_n[None])
                for s in (-1, 1)
            ]
        )
        relative_2nn = np.sqrt(np.maximum(gaps_2nn, 0)) / np.std(image, axis=0)[:, None]
        relative_2nn[~self._allowed_2nn[:, new[:, None], new]] = np.inf
        for i in range(new.size):
            best = relative_2nn[:, i].min()
            if not best <= _FIT_TOLERANCE:
                raise ConfigError(
                    f"Component {new[i]} of observation {self._name!r} has no mirror image: nothing in that "
                    "observation has its value or the negative of it when the robot is mirrored. " + FIXES
                )
            # A component's own value is preferred over components that always have the same value.
            is_best_2n = relative_2nn[:, i] <= best + _ALIKE
            side, j = np.argwhere(is_best_2n)[-1]
            if is_best_2n[:, i].any():
                side, j = int(is_best_2n[:, i].argmax()), i
            self._allowed_2nn[:, new[i]] = False
            self._allowed_2nn[:, new[i], new] = is_best_2n
            self._index[new[i]], self._sign[new[i]] = new[j], 2 * side - 1

    def check_constant(self, samples: Samples) -> None:
        """Checks that the components without a known image are really constant.

        In these samples, readings of contacts, limits and forces need not be consistent with the state.

        Raises:
            ConfigError: A component varies here, so it may vary in training, and its image is not known.
        """
        moving = np.flatnonzero(samples.moves & (self._index < 0))
        if moving.size:
            raise ConfigError(
                f"The mirror image of component {moving[0]} of observation {self._name!r} is not known: it depends on "
                f"contacts, limits or forces, but stays at {self._constant[moving[0]]:.3g} in all states tried, and "
                f"names and places do not tell the images of what it senses. {FIXES}"
            )

    def result(self) -> SignedPermutation:
        """The image of the observation. Constants are their own images.

        Raises:
            ConfigError: The image of the observation is not clear.
        """
        index = np.where(self._index < 0, np.arange(self._index.size), self._index)
        found = SignedPermutation.of(index, self._sign)
        if not found.is_involution:
            raise ConfigError(
                f"The mirror image of observation {self._name!r} is not clear: components always have the same "
                f"values. {FIXES}"
            )
        return found
