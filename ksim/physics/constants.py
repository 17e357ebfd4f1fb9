"""Model fields that differ between simulations, and the constants that native MuJoCo derives from them.

Native MuJoCo derives a part of its model once, by `mj_setConst`: masses of subtrees, coinciding frames, bounding
volumes, the inertia of bodies that move no other body. MJX computes these in every step, or does not need them. To make
both engines simulate the same, they are derived again for each simulation whose fields changed. Constants that MJX also
takes from the model (inverse weights, anchors, lengths in the reference pose) keep the values of the compiled model.
"""

import contextlib
from collections.abc import Iterable, Mapping

import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco.batch import MODEL_FIELDS, Batch, SimulationError

from ksim.errors import ConfigError, near_misses
from ksim.physics.mjcf import label
from ksim.types import Overrides

KEPT_CONSTANTS = (
    *("body_invweight0", "dof_invweight0", "tendon_invweight0", "tendon_length0", "actuator_acc0", "eq_data"),
    *("cam_pos0", "cam_poscom0", "cam_mat0"),
)
"""Fields that `mj_setConst` derives and both engines read. They change only if an override names them."""
_DERIVED_INPUTS = (
    *("qpos0", "qpos_spring", "body_pos", "body_quat", "body_ipos", "body_iquat", "body_mass", "body_inertia"),
    *("body_gravcomp", "jnt_pos", "jnt_axis", "dof_armature", "geom_pos", "geom_quat", "geom_size", "geom_margin"),
    *("geom_gap", "site_pos", "site_quat", "tendon_stiffness", "tendon_damping", "tendon_armature"),
)
"""Fields that may differ between simulations and that `mj_setConst` reads."""
OVERRIDABLE = frozenset(
    (
        *KEPT_CONSTANTS,
        *_DERIVED_INPUTS,
        "body_subtreemass",  # MJX reads it for the velocities of subtrees
        *("jnt_solref", "jnt_solimp", "jnt_stiffness", "jnt_range", "jnt_actfrcrange"),
        *("dof_solref", "dof_solimp", "dof_frictionloss", "dof_damping"),
        *("geom_solmix", "geom_solref", "geom_solimp", "geom_friction"),
        *("cam_pos", "cam_quat"),
        *("pair_solref", "pair_solreffriction", "pair_solimp", "pair_margin", "pair_gap", "pair_friction"),
        *("eq_solref", "eq_solimp"),
        *("tendon_solref_lim", "tendon_solimp_lim", "tendon_solref_fri", "tendon_solimp_fri", "tendon_range"),
        *("tendon_actfrcrange", "tendon_margin", "tendon_frictionloss", "tendon_lengthspring"),
        *("actuator_dynprm", "actuator_gainprm", "actuator_biasprm", "actuator_ctrlrange", "actuator_forcerange"),
        *("actuator_actrange", "actuator_gear", "actuator_lengthrange"),
        *("opt.gravity", "opt.wind", "opt.magnetic", "opt.density", "opt.viscosity", "opt.impratio", "opt.tolerance"),
        *("opt.ls_tolerance", "opt.timestep"),
    )
)
"""Fields that both engines read separately for each simulation."""
LOOKS = frozenset(
    (
        *("geom_rgba", "geom_matid", "mat_rgba", "mat_texid", "mat_emission", "mat_specular", "mat_shininess"),
        *("light_type", "light_active", "light_castshadow", "light_cutoff", "light_ambient", "light_attenuation"),
        *("light_diffuse", "light_exponent", "light_specular", "light_pos", "light_dir", "light_pos0", "light_poscom0"),
        *("light_dir0", "cam_fovy", "cam_intrinsic"),
    )
)
"""Fields of MJX's model that only change rendering."""
_DERIVED = {
    "dof_M0": "body_mass, body_inertia or dof_armature",
    "geom_rbound": "geom_size",
    "geom_aabb": "geom_size",
    "bvh_aabb": "geom_size",
    "dof_length": "geom_size",
    "body_margin": "geom_margin",
    "actuator_length0": "actuator_gear",
    "body_sameframe": "body_ipos",
    "geom_sameframe": "geom_pos",
    "site_sameframe": "site_pos",
}
"""Fields that only native MuJoCo reads, each with the fields that it is derived from."""
_OF_SIMPLE_BODIES = {"body_ipos": None, "body_iquat": None, "jnt_pos": "jnt_bodyid", "jnt_axis": "jnt_bodyid"}
"""Fields that must keep their compiled values for a body's inertia to be the same in every pose, each with the field
that maps its rows to bodies (None: rows are bodies)."""


def check_overrides(model: mujoco.MjModel, names: Iterable[str]) -> None:
    """Checks that every engine can read these model fields separately for each simulation.

    Raises:
        ConfigError: A field is not in `OVERRIDABLE`, or belongs to a feature that the compiled model does not have.
    """
    for name in names:
        if name in _DERIVED:
            raise ConfigError(f"{name} cannot be overridden: MuJoCo derives it. Change {_DERIVED[name]} instead.")
        if name in LOOKS:
            raise ConfigError(f"{name} cannot be overridden: it changes pictures, and nothing of the simulation.")
        if name not in MODEL_FIELDS:
            raise ConfigError(f"The model has no field {name!r} to override. {near_misses(name, sorted(OVERRIDABLE))}")
        if name not in OVERRIDABLE:
            raise ConfigError(
                f"{name} cannot be overridden: not every engine reads it anew for each simulation. Change it in the "
                "MJCF file, or in the spec before it is compiled."
            )
        if reason := _left_out(model, name):
            raise ConfigError(f"{name} cannot be overridden: {reason}")


def _left_out(model: mujoco.MjModel, name: str) -> str:
    """The reason why MJX ignores a field, given the features of the compiled model; empty if MJX reads it."""
    if name == "body_gravcomp" and not model.flg_gravcomp:
        return "no body of the compiled model has any. Give a body some gravcomp in the MJCF file."
    has_fluid = model.opt.density > 0 or model.opt.viscosity > 0 or np.any(model.opt.wind)
    if name in ("opt.density", "opt.viscosity", "opt.wind") and not has_fluid:
        return "the compiled model has no fluid. Give <option> in the MJCF file a density or viscosity."
    return ""


def as_in_mjx(model: mujoco.MjModel, overrides: Overrides) -> Overrides:
    """The overrides as MJX applies them: dry friction stays 0 for joints and tendons without any in the model."""
    changed = {
        name: jnp.where(getattr(model, name) > 0, overrides[name], 0.0)
        for name in ("dof_frictionloss", "tendon_frictionloss")
        if name in overrides
    }
    return overrides | changed


def check_simple_bodies(model: mujoco.MjModel, overrides: Mapping[str, np.ndarray]) -> None:
    """Checks the overridden values of one simulation or of many for bodies that MuJoCo compiled as simple.

    The inertia of a simple body is the same in every pose.

    Raises:
        ConfigError: With these values, the inertia of a simple body would depend on its pose.
    """
    simple = np.flatnonzero(model.body_simple * model.body_dofnum)
    for name, of in _OF_SIMPLE_BODIES.items():
        if name not in overrides or not simple.size:
            continue
        rows = simple if of is None else np.flatnonzero(np.isin(getattr(model, of), simple))
        compiled = getattr(model, name)[rows].astype(np.float32)
        differs = (np.asarray(overrides[name], np.float32)[..., rows, :] != compiled).any(axis=-1)
        if differs.any():
            row = rows[np.argmax(differs.reshape(-1, len(rows)).any(axis=0))]
            body = row if of is None else getattr(model, of)[row]
            raise ConfigError(
                f"{name} of {label(model, 'body', int(body))} cannot be overridden: the body moves nothing else, and "
                "native MuJoCo has compiled its inertia as the same in every pose. Give the body an <inertial> with a "
                "pos that is not 0, or set engine=mjx."
            )


def derive_constants(model: mujoco.MjModel) -> None:
    """Derives the constants of a compiled model again, after its fields have been written to."""
    kept = {name: np.array(getattr(model, name)) for name in KEPT_CONSTANTS}
    mujoco.mj_setConst(model, mujoco.MjData(model))
    for name, x in kept.items():
        getattr(model, name)[...] = x


class BatchConstants:
    """The constants that MuJoCo derives from the overridden fields of a batch, kept up to date."""

    def __init__(self, batch: Batch, overridden: Iterable[str]) -> None:
        """Expands the overridden fields, so that every simulation has its own values."""
        self._batch = batch
        self._inputs = {name: batch.expand(name) for name in sorted({*_DERIVED_INPUTS} & {*overridden})}
        self._seen = {name: np.full_like(x, np.nan) for name, x in self._inputs.items()}

    def update(self) -> bool:
        """Derives the constants of simulations whose fields have changed since the last call.

        Returns:
            Whether any fields have changed. The overridden fields must then be written again, because MuJoCo also
            derives some of these.

        Raises:
            ConfigError: See `check_simple_bodies`.
        """
        is_new = np.zeros(self._batch.nsim, bool)
        for name, x in self._inputs.items():
            is_new |= (x != self._seen[name]).reshape(len(is_new), -1).any(axis=1)
        changed = np.flatnonzero(is_new)
        if not changed.size:
            return False
        check_simple_bodies(self._batch.model, {name: x[changed] for name, x in self._inputs.items()})
        for name, x in self._inputs.items():
            self._seen[name][changed] = x[changed]
        with contextlib.suppress(SimulationError):  # from non-finite fields; the next state is then non-finite too
            self._batch.set_const(changed)
        for name in KEPT_CONSTANTS:
            if self._batch.expanded(name) is not None:
                self._batch.expand(name)[...] = getattr(self._batch.model, name)
        return True
