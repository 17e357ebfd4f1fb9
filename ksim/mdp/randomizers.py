"""Randomization of the model, per env and episode, on every engine."""

import operator
from abc import abstractmethod

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ksim.mdp.term import Context, Term
from ksim.types import ConfigError, Overrides


class AbstractRandomizer(Term):
    """New values of model fields, drawn at every reset.

    The fields are written as they are: constants that MuJoCo derives from them when it compiles a model (such as
    inverse weights, which only shape the softness of constraints) keep the values of the compiled model.
    """

    @abstractmethod
    def __call__(self, context: Context) -> Overrides:
        """Whole fields of MjModel, by name; what came before is in `context.overrides`."""

    def current(self, context: Context, field: str) -> Array:
        """A field as earlier randomizers have left it."""
        return current_field(context, field)


class RandomFriction(AbstractRandomizer):
    """Sets the sliding friction of geoms to one uniform number from `friction`. `geoms`: names, default all.

    In a contact MuJoCo takes the larger friction of the two geoms: to make the ground slippery, the feet must be too.
    """

    friction: tuple[float, float] = (0.5, 1.2)
    geoms: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Overrides:
        model = context.model
        if self.geoms is None:
            indices = np.arange(model.mj_model.ngeom)
        else:
            indices = np.array([model.names.index("geom", name) for name in self.geoms])
        drawn = _uniform(context, self.friction)
        return {"geom_friction": self.current(context, "geom_friction").at[indices, 0].set(drawn)}


class RandomBodyMass(AbstractRandomizer):
    """Adds one uniform number from `added`, in kg, to the mass of a body; its inertia stays as it is."""

    body: str
    added: tuple[float, float] = (-1.0, 1.0)

    def __call__(self, context: Context) -> Overrides:
        index = _body(context, self.body)
        mass = context.model.mj_model.body_mass[index]
        if mass + self.added[0] <= 0:
            raise ConfigError(
                f"RandomBodyMass of {self.body!r} adds {self.added[0]} kg to {mass:g} kg: nothing is left."
            )
        return with_added_mass(context, self.body, _uniform(context, self.added))


class RandomCenterOfMass(AbstractRandomizer):
    """Moves the centre of mass of a body by uniform numbers up to `max_offset`, in m, along each of its axes."""

    body: str
    max_offset: float = 0.02

    def __call__(self, context: Context) -> Overrides:
        index = _body(context, self.body)
        offset_3 = jax.random.uniform(context.key, (3,), minval=-self.max_offset, maxval=self.max_offset)
        return {"body_ipos": self.current(context, "body_ipos").at[index].add(offset_3)}


class RandomInertia(AbstractRandomizer):
    """Multiplies the moments of inertia of a body by one uniform number from `factor`; its mass stays as it is."""

    body: str
    factor: tuple[float, float] = (0.9, 1.1)

    def __call__(self, context: Context) -> Overrides:
        index = _body(context, self.body)
        return {
            "body_inertia": self.current(context, "body_inertia").at[index].multiply(_uniform(context, self.factor))
        }


class RandomArmature(AbstractRandomizer):
    """Multiplies the armature of each joint by its own uniform number from `factor`. `joints`: names, default all."""

    factor: tuple[float, float] = (0.8, 1.2)
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Overrides:
        return _scaled_dofs(self, context, "dof_armature", self.factor, self.joints)


class RandomDamping(AbstractRandomizer):
    """Multiplies the damping of each joint by its own uniform number from `factor`. `joints`: names, default all."""

    factor: tuple[float, float] = (0.8, 1.2)
    joints: tuple[str, ...] | None = None

    def __call__(self, context: Context) -> Overrides:
        return _scaled_dofs(self, context, "dof_damping", self.factor, self.joints)


class RandomActuatorGains(AbstractRandomizer):
    """Multiplies kp and kd of each position servo by its own uniform numbers from `kp_factor` and `kd_factor`."""

    kp_factor: tuple[float, float] = (0.9, 1.1)
    kd_factor: tuple[float, float] = (0.9, 1.1)

    def __call__(self, context: Context) -> Overrides:
        kp_key, kd_key = jax.random.split(context.key)
        num_actuators = context.model.mj_model.nu
        kp_u = jax.random.uniform(kp_key, (num_actuators,), minval=self.kp_factor[0], maxval=self.kp_factor[1])
        kd_u = jax.random.uniform(kd_key, (num_actuators,), minval=self.kd_factor[0], maxval=self.kd_factor[1])
        # A servo's force is gain[0] * target + bias[1] * position + bias[2] * velocity.
        is_servo = context.model.mj_model.actuator_biasprm[:, 1] != 0
        kp_u, kd_u = jnp.where(is_servo, kp_u, 1.0), jnp.where(is_servo, kd_u, 1.0)
        bias = self.current(context, "actuator_biasprm").at[:, 1].multiply(kp_u).at[:, 2].multiply(kd_u)
        gain = self.current(context, "actuator_gainprm").at[:, 0].multiply(kp_u)
        return {"actuator_gainprm": gain, "actuator_biasprm": bias}


class RandomMotorStrength(AbstractRandomizer):
    """Weak and strong motors: multiplies what each actuator can give by its own uniform number from `factor`.

    That is the force range where there is one, and the gain of a motor. A servo must have a force range.
    """

    factor: tuple[float, float] = (0.9, 1.1)

    def __call__(self, context: Context) -> Overrides:
        low, high = self.factor
        mj_model = context.model.mj_model
        is_servo = mj_model.actuator_biasprm[:, 1] != 0
        for index in np.flatnonzero(is_servo & (mj_model.actuator_forcelimited == 0)):
            name = context.model.names.actuators[index]
            raise ConfigError(
                f"RandomMotorStrength needs a force range of servo {name!r}. Give it one in the MJCF file."
            )
        factor_u = jax.random.uniform(context.key, (mj_model.nu,), minval=low, maxval=high)
        gain = self.current(context, "actuator_gainprm").at[:, 0].multiply(jnp.where(is_servo, 1.0, factor_u))
        forcerange = self.current(context, "actuator_forcerange") * factor_u[:, None]
        return {"actuator_gainprm": gain, "actuator_forcerange": forcerange}


class RandomGravity(AbstractRandomizer):
    """Adds uniform numbers from [-magnitude, magnitude], in m/s^2, to each component of gravity."""

    magnitude: float = 0.2

    def __call__(self, context: Context) -> Overrides:
        offset_3 = jax.random.uniform(context.key, (3,), minval=-self.magnitude, maxval=self.magnitude)
        return {"opt.gravity": self.current(context, "opt.gravity") + offset_3}


def current_field(context: Context, field: str) -> Array:
    """A field of the model as randomizers and events have left it."""
    return context.overrides.get(field, jnp.asarray(operator.attrgetter(field)(context.model.mj_model), jnp.float32))


def with_added_mass(context: Context, body: str, mass: Array) -> Overrides:
    """The fields of the model with `mass`, in kg, added at the centre of mass of a body; its inertia stays as it is."""
    index = _body(context, body)
    # Native MuJoCo divides by the mass of each subtree, which it does not sum anew.
    carrying = _with_ancestors(index, context.model.mj_model.body_parentid)
    return {
        "body_mass": current_field(context, "body_mass").at[index].add(mass),
        "body_subtreemass": current_field(context, "body_subtreemass").at[carrying].add(mass),
    }


def _body(context: Context, name: str) -> int:
    """The index of a body whose inertia may change."""
    index = context.model.names.index("body", name)
    if context.model.mj_model.body_simple[index]:
        raise ConfigError(
            f"Body {name!r} moves freely by itself: MuJoCo takes its inertia from the compiled model, and it cannot "
            "be randomized. Choose a body with a joint to another."
        )
    return index


def _uniform(context: Context, bounds: tuple[float, float]) -> Array:
    return jax.random.uniform(context.key, minval=bounds[0], maxval=bounds[1])


def _scaled_dofs(
    term: AbstractRandomizer,
    context: Context,
    field: str,
    factor: tuple[float, float],
    joints: tuple[str, ...] | None,
) -> Overrides:
    places = context.model.names.joint_qvel(joints)
    factor_j = jax.random.uniform(context.key, (len(places),), minval=factor[0], maxval=factor[1])
    return {field: term.current(context, field).at[places].multiply(factor_j)}


def _with_ancestors(body: int, parents: np.ndarray) -> np.ndarray:
    chain = [body]
    while chain[-1] != 0:
        chain.append(int(parents[chain[-1]]))
    return np.array(chain)
