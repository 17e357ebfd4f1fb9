"""Randomization of joints and of their sensors."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ksim.checks import check_range
from ksim.errors import ConfigError
from ksim.mdp.randomizers.base import AbstractRandomizer
from ksim.mdp.term import Context
from ksim.types import Overrides

MIN_FRICTION = 1e-6
"""Dry friction, in N m, that stands for none: MJX locks a joint whose friction is overridden by exactly 0."""


class RandomArmature(AbstractRandomizer):
    """Multiplies the armature of each joint by its own uniform number from `factor`.

    joints: names of joints with an armature, default all, of which one must have some.
    """

    factor: tuple[float, float] = (0.8, 1.2)
    joints: tuple[str, ...] | None = None

    def __check_init__(self) -> None:
        check_range(self, "factor", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        return _scaled_dofs(self, context, "dof_armature", self.factor, self.joints)


class RandomDamping(AbstractRandomizer):
    """Multiplies the damping of each joint by its own uniform number from `factor`.

    joints: names of joints with some damping, default all, of which one must have some.
    """

    factor: tuple[float, float] = (0.8, 1.2)
    joints: tuple[str, ...] | None = None

    def __check_init__(self) -> None:
        check_range(self, "factor", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        return _scaled_dofs(self, context, "dof_damping", self.factor, self.joints)


class RandomJointFriction(AbstractRandomizer):
    """Sets the dry friction of each joint to its own uniform number from `friction`, in N m. `joints`: default all.

    The solver gets one more row for each of them.
    """

    friction: tuple[float, float] = (0.0, 0.1)
    joints: tuple[str, ...] | None = None

    def __check_init__(self) -> None:
        check_range(self, "friction", least=0.0)

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        # MJX has rows only for joints that have some friction when the model is compiled.
        one_dof = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
        for joint in spec.joints:
            if joint.type in one_dof and (self.joints is None or joint.name in self.joints):
                joint.frictionloss = max(joint.frictionloss, MIN_FRICTION)

    def __call__(self, context: Context) -> Overrides:
        places = context.model.names.joint_qvel(self.joints)
        if not (context.model.mj_model.dof_frictionloss[places] > 0).all():
            raise ConfigError(
                "RandomJointFriction needs joints with some friction in the compiled model. Pass its edit_spec to "
                "compile_model, or give the joints a frictionloss in the MJCF file."
            )
        low, high = self.friction
        friction_j = jax.random.uniform(context.key, (len(places),), minval=low, maxval=high)
        friction_j = jnp.maximum(friction_j, MIN_FRICTION)
        return {"dof_frictionloss": self.current(context, "dof_frictionloss").at[places].set(friction_j)}


class RandomJointStiffness(AbstractRandomizer):
    """Multiplies the stiffness of the spring in each joint by its own uniform number from `factor`.

    joints: names of joints with a spring, default all that have one.
    """

    factor: tuple[float, float] = (0.8, 1.2)
    joints: tuple[str, ...] | None = None

    def __check_init__(self) -> None:
        # MuJoCo leaves a spring of stiffness 0 out of the model for good.
        check_range(self, "factor", above=0.0)

    def __call__(self, context: Context) -> Overrides:
        mj_model, names = context.model.mj_model, context.model.names
        is_sprung = mj_model.jnt_stiffness != 0
        indices = mj_model.dof_jntid[names.joint_qvel(self.joints)]
        if self.joints is None:
            indices = indices[is_sprung[indices]]
        if not len(indices) or not is_sprung[indices].all():
            which = "any joint" if self.joints is None else f"each of {', '.join(self.joints)}"
            raise ConfigError(f"RandomJointStiffness needs a spring in {which}. Give it a stiffness in the MJCF file.")
        low, high = self.factor
        factor_j = jax.random.uniform(context.key, indices.shape, minval=low, maxval=high)
        return {"jnt_stiffness": self.current(context, "jnt_stiffness").at[indices].multiply(factor_j)}


class RandomJointZero(AbstractRandomizer):
    """Encoder offsets: shifts the zero of each joint by its own uniform number, up to `max_offset`, in rad.

    Everything that reads or sets the joint position (observations, servos, resets) is off by that number, as with a
    badly calibrated encoder. The robot itself does not change: its springs and mechanical limits do not move.
    joints: names, default all.
    """

    max_offset: float = 0.02
    joints: tuple[str, ...] | None = None

    def __check_init__(self) -> None:
        check_range(self, "max_offset", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        names = context.model.names
        places, dofs = names.joint_qpos(self.joints), names.joint_qvel(self.joints)
        indices = context.model.mj_model.dof_jntid[dofs]
        offset_j = jax.random.uniform(context.key, (len(places),), minval=-self.max_offset, maxval=self.max_offset)
        moved = {name: self.current(context, name).at[places].add(offset_j) for name in ("qpos0", "qpos_spring")}
        return moved | {"jnt_range": self.current(context, "jnt_range").at[indices].add(offset_j[:, None])}


def _scaled_dofs(
    term: AbstractRandomizer,
    context: Context,
    field: str,
    factor: tuple[float, float],
    joints: tuple[str, ...] | None,
) -> Overrides:
    places = context.model.names.joint_qvel(joints)
    has_some = getattr(context.model.mj_model, field)[places] != 0
    if not has_some.any() or (joints is not None and not has_some.all()):
        which = "all joints" if joints is None else ", ".join(repr(joints[i]) for i in np.flatnonzero(~has_some))
        name = field.removeprefix("dof_")
        raise ConfigError(
            f"{type(term).__name__} multiplies the {name}, which is 0 at {which} and stays so. Give the joints some "
            f"{name} in the MJCF file, or remove the randomizer."
        )
    factor_j = jax.random.uniform(context.key, (len(places),), minval=factor[0], maxval=factor[1])
    return {field: term.current(context, field).at[places].multiply(factor_j)}
