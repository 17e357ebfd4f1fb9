"""The model of training as numbers and names, for programs that load the robot's file and need its changes."""

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics import PhysicsModel

STRUCTURE = (
    *("body_parentid", "body_mocapid", "body_simple", "jnt_type", "jnt_bodyid", "dof_simplenum"),
    *("geom_type", "geom_bodyid", "geom_contype", "geom_conaffinity", "geom_condim", "geom_priority"),
    *("site_type", "site_bodyid", "pair_dim", "pair_geom1", "pair_geom2", "exclude_signature"),
    *("eq_type", "eq_obj1id", "eq_obj2id", "tendon_num", "wrap_type", "wrap_objid"),
    *("actuator_dyntype", "actuator_gaintype", "actuator_biastype", "actuator_ctrlspec"),
    *("actuator_trntype", "actuator_trnid"),
)
"""Fields of MjModel that define the parts of a model and their connections."""

FIELDS = {
    "": "qpos0 qpos_spring",
    "body_": "pos quat ipos iquat mass subtreemass inertia invweight0 gravcomp margin",
    "jnt_": "pos axis range margin solref solimp limited stiffness stiffnesspoly springyield "
    "actfrcrange actfrclimited actgravcomp",
    "dof_": "armature damping dampingpoly frictionloss invweight0 M0 length solref solimp",
    "geom_": "pos quat size aabb rbound friction margin gap solmix solref solimp fluid adhesion surfacevel",
    "site_": "pos quat size",
    "pair_": "friction margin gap solref solreffriction solimp adhesion",
    "eq_": "data active0 solref solimp",
    "tendon_": "range limited margin stiffness stiffnesspoly springyield damping dampingpoly frictionloss armature "
    "lengthspring length0 invweight0 actfrcrange actfrclimited solref_lim solimp_lim solref_fri solimp_fri",
    "wrap_": "prm",
    "actuator_": "dynprm gainprm biasprm gear cranklength armature damping dampingpoly ctrllimited ctrlrange "
    "forcelimited forcerange actlimited actrange actearly acc0 length0 lengthrange",
}
"""Fields of MjModel with the numbers of these parts, grouped by the prefix of their names."""


def model_record(model: PhysicsModel) -> dict[str, Any]:
    """Everything that training may change in a robot's model, for JSON: options, parts, sensors and numbers.

    Raises:
        ConfigError: A number is non-finite, which JSON cannot hold.
    """
    mj_model = model.mj_model
    names = {kind: [part(i).name for i in range(count)] for kind, part, count in _named(mj_model)}
    names_of_fields = [beginning + name for beginning, ends in FIELDS.items() for name in ends.split()]
    fields = {name: getattr(mj_model, name) for name in names_of_fields}
    options = {name: getattr(mj_model.opt, name) for name in dir(mj_model.opt) if not name.startswith("_")}
    return {
        "option": _values(options),
        "names": names,
        "sensors": _sensors(mj_model),
        "structure": _values({name: getattr(mj_model, name) for name in STRUCTURE}),
        "fields": _values({name: array for name, array in fields.items() if array.size}),
    }


def _named(mj_model: mujoco.MjModel) -> list[tuple[str, Any, int]]:
    return [
        ("body", mj_model.body, mj_model.nbody),
        ("joint", mj_model.joint, mj_model.njnt),
        ("geom", mj_model.geom, mj_model.ngeom),
        ("site", mj_model.site, mj_model.nsite),
    ]


def _sensors(mj_model: mujoco.MjModel) -> list[dict[str, Any]]:
    """Named sensors, each with its type and the objects that it refers to."""

    def name_of(kind: int, index: int) -> str:
        return (mujoco.mj_id2name(mj_model, kind, index) or "") if index >= 0 else ""

    return [
        {
            "name": mj_model.sensor(i).name,
            "type": int(mj_model.sensor_type[i]),
            "objtype": int(mj_model.sensor_objtype[i]),
            "objname": name_of(mj_model.sensor_objtype[i], mj_model.sensor_objid[i]),
            "reftype": int(mj_model.sensor_reftype[i]),
            "refname": name_of(mj_model.sensor_reftype[i], mj_model.sensor_refid[i]),
            "intprm": mj_model.sensor_intprm[i].tolist(),
            "cutoff": float(mj_model.sensor_cutoff[i]),
        }
        for i in range(mj_model.nsensor)
        if mj_model.sensor(i).name
    ]


def _values(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays as lists."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ConfigError(f"The robot's model cannot be exported: {name} has a number that is not finite.")
    return {name: np.asarray(array).tolist() for name, array in arrays.items()}
