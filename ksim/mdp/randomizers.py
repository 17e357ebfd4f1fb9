"""Randomizers of actuators, bodies, joints, sensors and the world: new model fields at every reset."""

import operator
from abc import abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array

from ksim.checks import ranged
from ksim.errors import ConfigError
from ksim.mdp.term import Context, Term
from ksim.physics.actuator_kinds import ActuatorKind, actuator_kinds
from ksim.physics.contacts import decides_friction
from ksim.physics.mjcf import label
from ksim.physics.names import ON_JOINTS, ONE_DOF
from ksim.physics.rotations import multiply_quaternions, random_turn
from ksim.types import Overrides


class AbstractRandomizer(Term):
    """New values of model fields, drawn at every reset.

    Some quantities are derived from these fields by native MuJoCo, and computed in every step by MJX: masses of
    subtrees, bounding volumes, frames that coincide. They follow the new values. Constants that both engines take from
    the model, such as inverse weights (which only affect the softness of constraints), keep the values of the compiled
    model. It is an error to randomize a field that an engine does not read again for each simulation.
    """

    @abstractmethod
    def __call__(self, context: Context) -> Overrides:
        """Whole fields of MjModel, by name. `context.overrides` has those of earlier randomizers."""

    def current(self, context: Context, field: str) -> Array:
        """A field as earlier randomizers have left it."""
        return current_field(context, field)


def current_field(context: Context, field: str) -> Array:
    """A field of the model as randomizers and events have left it."""
    return context.overrides.get(field, jnp.asarray(operator.attrgetter(field)(context.model.mj_model), jnp.float32))


def uniform(context: Context, bounds: tuple[float, float], shape: tuple[int, ...] = ()) -> Array:
    """Uniform numbers of the term's own key."""
    return jax.random.uniform(context.key, shape, minval=bounds[0], maxval=bounds[1])


_HAS_KP = (ActuatorKind.POSITION, ActuatorKind.INTEGRATED_VELOCITY, ActuatorKind.PID)
"""Position servos: their bias holds -kp and -kd. Except for a PID, their gain is kp."""
_STRENGTH = {
    ActuatorKind.FORCE: slice(0, 1),
    ActuatorKind.VARIABLE_GAIN: slice(0, 3),
    ActuatorKind.MUSCLE: slice(2, 4),  # the peak force, or the scale that it is computed from
}
"""Gain parameters that scale the force, by kind. Servos are missing: their gain also moves the target."""


class RandomActuatorGains(AbstractRandomizer):
    """Multiplies kp and kd of each position servo by its own uniform numbers from `kp_factor` and `kd_factor`.

    `position`, `intvelocity` and `pid` are position servos; other actuators keep their gains. One must be a servo.
    """

    kp_factor: tuple[float, float] = ranged((0.9, 1.1), least=0.0)
    kd_factor: tuple[float, float] = ranged((0.9, 1.1), least=0.0)

    def __call__(self, context: Context) -> Overrides:
        kp_key, kd_key = jax.random.split(context.key)
        kinds = actuator_kinds(context.model.mj_model)
        if not any(kind in _HAS_KP for kind in kinds):
            found = ", ".join(sorted({kind.name.lower() for kind in kinds})) or "none"
            raise ConfigError(
                f"RandomActuatorGains changes nothing: no actuator is a position servo (found: {found}). Use "
                "PositionActuators, or RandomMotorStrength for motors."
            )
        kp_u = jax.random.uniform(kp_key, (len(kinds),), minval=self.kp_factor[0], maxval=self.kp_factor[1])
        kd_u = jax.random.uniform(kd_key, (len(kinds),), minval=self.kd_factor[0], maxval=self.kd_factor[1])
        # A servo's force is gain[0] * target + bias[1] * position + bias[2] * velocity.
        is_servo = np.array([kind in _HAS_KP for kind in kinds])
        gain_is_kp = is_servo & np.array([kind is not ActuatorKind.PID for kind in kinds])
        kp_u, kd_u = jnp.where(is_servo, kp_u, 1.0), jnp.where(is_servo, kd_u, 1.0)
        bias = self.current(context, "actuator_biasprm").at[:, 1].multiply(kp_u).at[:, 2].multiply(kd_u)
        gain = self.current(context, "actuator_gainprm").at[:, 0].multiply(jnp.where(gain_is_kp, kp_u, 1.0))
        return {"actuator_gainprm": gain, "actuator_biasprm": bias}


class RandomMotorStrength(AbstractRandomizer):
    """Multiplies the strength of each actuator by its own uniform number from `factor`.

    The strength is the force range, if there is one, the limit of actuator forces that the driven joint or tendon has,
    if any, and the gain of a motor or the peak force of a muscle. A servo must have a force range. If several
    actuators drive one joint, the first scales its limit.
    """

    factor: tuple[float, float] = ranged((0.9, 1.1), least=0.0)

    def __call__(self, context: Context) -> Overrides:
        mj_model = context.model.mj_model
        kinds = actuator_kinds(mj_model)
        scaled = np.zeros(mj_model.actuator_gainprm.shape, bool)
        for i, kind in enumerate(kinds):
            if kind in _STRENGTH:
                scaled[i, _STRENGTH[kind]] = True
            elif not mj_model.actuator_forcelimited[i]:
                actuator = label(mj_model, "actuator", i)
                raise ConfigError(
                    f"RandomMotorStrength needs a force range of {actuator}. Give it a forcerange in the MJCF file."
                )
        factor_u = uniform(context, self.factor, (len(kinds),))
        gain = self.current(context, "actuator_gainprm") * jnp.where(scaled, factor_u[:, None], 1.0)
        forcerange = self.current(context, "actuator_forcerange") * factor_u[:, None]
        drawn = {"actuator_gainprm": gain, "actuator_forcerange": forcerange}
        for kind, transmissions in (("jnt", ON_JOINTS), ("tendon", (int(mujoco.mjtTrn.mjTRN_TENDON),))):
            driving = np.flatnonzero(np.isin(mj_model.actuator_trntype, transmissions))
            driven, first = np.unique(mj_model.actuator_trnid[driving, 0], return_index=True)
            is_limited = getattr(mj_model, f"{kind}_actfrclimited")[driven] != 0
            if is_limited.any():
                field, own_factor = f"{kind}_actfrcrange", factor_u[driving[first[is_limited]], None]
                drawn[field] = self.current(context, field).at[driven[is_limited]].multiply(own_factor)
        return drawn


class RandomBodyMass(AbstractRandomizer):
    """Adds one uniform number from `added`, in kg, to the mass of a body; its inertia is unchanged."""

    body: str
    added: tuple[float, float] = ranged((-1.0, 1.0))

    def __call__(self, context: Context) -> Overrides:
        index = movable_body(context, self.body)
        mass = context.model.mj_model.body_mass[index]
        if mass + self.added[0] <= 0:
            raise ConfigError(
                f"RandomBodyMass of {self.body!r} adds {self.added[0]} kg to {mass:g} kg, which must stay positive."
            )
        return with_added_mass(context, self.body, uniform(context, self.added))


class RandomMassFactor(AbstractRandomizer):
    """Multiplies mass and inertia of each of some bodies by its own uniform number from `factor`.

    The size of a body is unchanged; its density changes. bodies: names.
    """

    bodies: tuple[str, ...]
    factor: tuple[float, float] = ranged((0.9, 1.1), above=0.0)

    def __call__(self, context: Context) -> Overrides:
        indices = np.array([movable_body(context, name, weighs=True) for name in self.bodies])
        factor_n = uniform(context, self.factor, indices.shape)
        before_b = self.current(context, "body_mass")
        mass_b = before_b.at[indices].multiply(factor_n)
        # Native MuJoCo divides by the mass of each subtree, which it does not sum anew.
        parents = context.model.mj_model.body_parentid
        subtree_b = self.current(context, "body_subtreemass")
        for index in indices.tolist():
            subtree_b = subtree_b.at[_with_ancestors(index, parents)].add(mass_b[index] - before_b[index])
        inertia = self.current(context, "body_inertia").at[indices].multiply(factor_n[:, None])
        return {"body_mass": mass_b, "body_subtreemass": subtree_b, "body_inertia": inertia}


class RandomCenterOfMass(AbstractRandomizer):
    """Moves the centre of mass of a body by uniform numbers up to `max_offset`, in m, along each of its axes."""

    body: str
    max_offset: float = ranged(0.02, least=0.0)

    def __call__(self, context: Context) -> Overrides:
        index = movable_body(context, self.body, weighs=True)
        if context.model.mj_model.body_simple[index]:
            raise ConfigError(
                f"Body {self.body!r} moves nothing else: native MuJoCo has compiled its inertia as the same in every "
                "pose, and its centre of mass cannot be randomized. Choose a body with a joint to another."
            )
        offset_3 = uniform(context, (-self.max_offset, self.max_offset), (3,))
        return {"body_ipos": self.current(context, "body_ipos").at[index].add(offset_3)}


class RandomInertia(AbstractRandomizer):
    """Multiplies the moments of inertia of a body by one uniform number from `factor`; its mass is unchanged."""

    body: str
    factor: tuple[float, float] = ranged((0.9, 1.1), above=0.0)

    def __call__(self, context: Context) -> Overrides:
        index = movable_body(context, self.body, weighs=True)
        return {"body_inertia": self.current(context, "body_inertia").at[index].multiply(uniform(context, self.factor))}


def with_added_mass(context: Context, body: str, mass: Array) -> Overrides:
    """The fields of the model with `mass`, in kg, added at the centre of mass of a body; its inertia is unchanged."""
    index = movable_body(context, body)
    # Native MuJoCo divides by the mass of each subtree, which it does not sum anew.
    carrying = _with_ancestors(index, context.model.mj_model.body_parentid)
    return {
        "body_mass": current_field(context, "body_mass").at[index].add(mass),
        "body_subtreemass": current_field(context, "body_subtreemass").at[carrying].add(mass),
    }


def movable_body(context: Context, name: str, *, weighs: bool = False) -> int:
    """The index of a body whose inertia matters.

    Args:
        weighs: Whether it must have a mass. Without one, scaling or moving its mass changes nothing.

    Raises:
        ConfigError: The model has no such body, or its inertia moves nothing.
    """
    mj_model = context.model.mj_model
    index = context.model.names.index("body", name)
    if mj_model.body_weldid[index] == 0:
        raise ConfigError(f"Body {name!r} cannot move, so its mass does not matter. Name a moving body of the robot.")
    if weighs and mj_model.body_mass[index] == 0:
        raise ConfigError(f"Body {name!r} has no mass, so randomizing it changes nothing. Name a body with a mass.")
    return index


def _with_ancestors(body: int, parents: np.ndarray) -> np.ndarray:
    chain = [body]
    while chain[-1] != 0:
        chain.append(int(parents[chain[-1]]))
    return np.array(chain)


MIN_FRICTION = 1e-6
"""Dry friction, in N m, that stands for none: MJX locks a joint whose friction is overridden by exactly 0."""


class _ScaledDofs(AbstractRandomizer):
    """Multiplies a field of each joint, such as `dof_damping`, by its own uniform number from `factor`."""

    field: ClassVar[str]
    factor: tuple[float, float] = ranged((0.8, 1.2), least=0.0)
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Overrides:
        places = context.model.names.joint_qvel(self.joints)
        has_some = getattr(context.model.mj_model, self.field)[places] != 0
        if not has_some.any() or (self.joints is not None and not has_some.all()):
            lacking = [repr(name) for name, has in zip(self.joints or (), has_some, strict=False) if not has]
            name = self.field.removeprefix("dof_")
            raise ConfigError(
                f"{type(self).__name__} multiplies the {name}, which is 0 at {', '.join(lacking) or 'all joints'} and "
                f"stays so. Give the joints some {name} in the MJCF file, or remove the randomizer."
            )
        factor_j = uniform(context, self.factor, (len(places),))
        return {self.field: self.current(context, self.field).at[places].multiply(factor_j)}


class RandomArmature(_ScaledDofs):
    """Multiplies the armature of each joint by its own uniform number from `factor`.

    joints: names of joints, each with an armature. Default: all joints, of which at least one must have an armature.
    """

    field = "dof_armature"


class RandomDamping(_ScaledDofs):
    """Multiplies the damping of each joint by its own uniform number from `factor`.

    joints: names of joints, each with some damping. Default: all joints, of which at least one must have some.
    """

    field = "dof_damping"


class RandomJointFriction(AbstractRandomizer):
    """Sets the dry friction of each joint to its own uniform number from `friction`, in N m. `joints`: default all.

    The solver gets one more row for each of these joints.
    """

    friction: tuple[float, float] = ranged((0.0, 0.1), least=0.0)
    joints: tuple[str, ...] | None = None

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        # MJX has rows only for joints that have some friction when the model is compiled.
        for joint in spec.joints:
            if joint.type in ONE_DOF and (self.joints is None or joint.name in self.joints):
                joint.frictionloss = max(joint.frictionloss, MIN_FRICTION)

    def __call__(self, context: Context) -> Overrides:
        places = context.model.names.joint_qvel(self.joints)
        if not (context.model.mj_model.dof_frictionloss[places] > 0).all():
            raise ConfigError(
                "RandomJointFriction needs joints with some friction in the compiled model. Pass its edit_spec to "
                "compile_model, or give the joints a frictionloss in the MJCF file."
            )
        friction_j = jnp.maximum(uniform(context, self.friction, (len(places),)), MIN_FRICTION)
        return {"dof_frictionloss": self.current(context, "dof_frictionloss").at[places].set(friction_j)}


class RandomJointStiffness(AbstractRandomizer):
    """Multiplies the stiffness of the spring in each joint by its own uniform number from `factor`.

    joints: names of joints, each with a spring. Default: all joints with a spring.
    """

    # MuJoCo leaves a spring of stiffness 0 out of the model for good.
    factor: tuple[float, float] = ranged((0.8, 1.2), above=0.0)
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Overrides:
        mj_model, names = context.model.mj_model, context.model.names
        is_sprung = mj_model.jnt_stiffness != 0
        indices = mj_model.dof_jntid[names.joint_qvel(self.joints)]
        if self.joints is None:
            indices = indices[is_sprung[indices]]
        if not len(indices) or not is_sprung[indices].all():
            which = "any joint" if self.joints is None else f"each of {', '.join(self.joints)}"
            raise ConfigError(f"RandomJointStiffness needs a spring in {which}. Give it a stiffness in the MJCF file.")
        factor_j = uniform(context, self.factor, indices.shape)
        return {"jnt_stiffness": self.current(context, "jnt_stiffness").at[indices].multiply(factor_j)}


class RandomJointZero(AbstractRandomizer):
    """Encoder offsets: shifts the zero of each joint by its own uniform number, up to `max_offset`, in rad.

    Everything that reads or sets the joint position (observations, servos, resets) is off by that number, as with a
    badly calibrated encoder. The robot itself does not change: its springs and mechanical limits do not move.
    joints: names, default all.
    """

    max_offset: float = ranged(0.02, least=0.0)
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Overrides:
        names = context.model.names
        places, dofs = names.joint_qpos(self.joints), names.joint_qvel(self.joints)
        mj_model = context.model.mj_model
        indices = mj_model.dof_jntid[dofs]
        offset_j = uniform(context, (-self.max_offset, self.max_offset), (len(places),))
        moved = {name: self.current(context, name).at[places].add(offset_j) for name in ("qpos0", "qpos_spring")}
        moved["jnt_range"] = self.current(context, "jnt_range").at[indices].add(offset_j[:, None])
        coef_tj = _fixed_tendons(mj_model)[:, indices]
        if coef_tj.any():
            offset_t = coef_tj @ offset_j
            moved["tendon_length0"] = self.current(context, "tendon_length0") + offset_t
            for name in ("tendon_range", "tendon_lengthspring"):
                moved[name] = self.current(context, name) + offset_t[:, None]
        return moved


def _fixed_tendons(mj_model: mujoco.MjModel) -> np.ndarray:
    """The length of each fixed tendon per position of each joint, (tendons, joints); 0 for spatial tendons."""
    coef_tj = np.zeros((mj_model.ntendon, mj_model.njnt), np.float32)
    for tendon, (start, count) in enumerate(zip(mj_model.tendon_adr, mj_model.tendon_num, strict=True)):
        wraps = start + np.flatnonzero(mj_model.wrap_type[start : start + count] == int(mujoco.mjtWrap.mjWRAP_JOINT))
        np.add.at(coef_tj[tendon], mj_model.wrap_objid[wraps], mj_model.wrap_prm[wraps])
    return coef_tj


class RandomImuAlignment(AbstractRandomizer):
    """IMU misalignment: turns a site about a random axis by a uniform angle up to `max_angle`, in rad.

    Every sensor at the site turns with it. site: its name.
    """

    site: str
    max_angle: float = ranged(0.02, least=0.0)

    def __call__(self, context: Context) -> Overrides:
        index = context.model.names.index("site", self.site)
        mj_model = context.model.mj_model
        is_site = lambda kinds, ids: ((kinds == int(mujoco.mjtObj.mjOBJ_SITE)) & (ids == index)).any()
        at_sensor = is_site(mj_model.sensor_objtype, mj_model.sensor_objid)
        from_sensor = is_site(mj_model.sensor_reftype, mj_model.sensor_refid)
        # SiteOrientation computes from the body's xquat and the site's own.
        is_read = not {"site_xmat", "xquat"}.isdisjoint(context.physics.derived)
        if not (at_sensor or from_sensor or is_read):
            raise ConfigError(
                f"RandomImuAlignment of site {self.site!r} changes nothing: no sensor is there, and no term reads "
                "orientations of sites. Name the site of a sensor."
            )
        turn = random_turn(context.key, self.max_angle)
        quat_s4 = self.current(context, "site_quat")
        return {"site_quat": quat_s4.at[index].set(multiply_quaternions(quat_s4[index], turn))}


class RandomFriction(AbstractRandomizer):
    """Sets the sliding friction of geoms to one uniform number from `friction`. `geoms`: names, default all.

    In a contact MuJoCo uses the friction of the geom with the higher priority, or the larger friction of the two: for
    slippery ground, make the feet slippery too. A `<pair>` has its own friction, which is set to the same number if one
    of its geoms is among these.
    """

    friction: tuple[float, float] = ranged((0.5, 1.2), least=0.0)
    geoms: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Overrides:
        model = context.model
        mj_model = model.mj_model
        if self.geoms is None:
            indices = np.arange(mj_model.ngeom)
        else:
            indices = np.array([model.names.index("geom", name) for name in self.geoms])
        is_ours = np.isin(mj_model.pair_geom1, indices) | np.isin(mj_model.pair_geom2, indices)
        pairs = np.flatnonzero(is_ours & (mj_model.pair_dim > 1))
        if not len(pairs) and not decides_friction(mj_model, indices, self.friction[1]):
            which = "any geom" if self.geoms is None else ", ".join(map(repr, self.geoms))
            raise ConfigError(
                f"RandomFriction of {which} changes no contact: in none that can happen does its friction, at most "
                f"{self.friction[1]:g}, decide. It collides with nothing, or only with geoms of a higher priority or a "
                "larger friction. Name those geoms, or change contype, conaffinity or priority in the MJCF file."
            )
        drawn = uniform(context, self.friction)
        changed = {"geom_friction": self.current(context, "geom_friction").at[indices, 0].set(drawn)}
        if len(pairs):
            sliding = self.current(context, "pair_friction").at[pairs[:, None], np.arange(2)].set(drawn)
            changed["pair_friction"] = sliding
        return changed


class RandomGravity(AbstractRandomizer):
    """Adds uniform numbers from [-magnitude, magnitude], in m/s^2, to each component of gravity."""

    magnitude: float = ranged(0.2, least=0.0)

    def __call__(self, context: Context) -> Overrides:
        if context.model.mj_model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY:
            raise ConfigError(
                'RandomGravity changes nothing: the model has <flag gravity="disable"/>. Remove it from the MJCF file.'
            )
        offset_3 = uniform(context, (-self.magnitude, self.magnitude), (3,))
        return {"opt.gravity": self.current(context, "opt.gravity") + offset_3}
