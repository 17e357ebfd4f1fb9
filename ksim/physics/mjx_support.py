"""Features of models that MJX's implementations do not know or would silently ignore, in terms of the MJCF file."""

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mujoco
import numpy as np

from ksim.errors import ConfigError
from ksim.physics.mjcf import label

_printed = io.StringIO()
with contextlib.redirect_stdout(_printed):
    from mujoco import mjx as mjx
for _line in _printed.getvalue().splitlines():
    if not _line.startswith("Failed to import"):
        print(_line)  # noqa: T201 - printed by another thread meanwhile


_OPTIONS = {
    "integrator": (mjx.IntegratorType, mujoco.mjtIntegrator, "mjINT_", "implicitfast, Euler or RK4"),
    "solver": (mjx.SolverType, mujoco.mjtSolver, "mjSOL_", "Newton or CG"),
    "cone": (mjx.ConeType, mujoco.mjtCone, "mjCONE_", "pyramidal or elliptic"),
    "jacobian": (mjx.JacobianType, mujoco.mjtJacobian, "mjJAC_", "auto"),
}
"""By attribute of `<option>`: MJX's enum, MuJoCo's enum, the prefix of its names, and supported values to write."""
_FORCES = {
    "dyntype": ("DynType", mujoco.mjtDyn, "mjDYN_"),
    "gaintype": ("GainType", mujoco.mjtGain, "mjGAIN_"),
    "biastype": ("BiasType", mujoco.mjtBias, "mjBIAS_"),
}
_TRANSMISSIONS = {
    mujoco.mjtTrn.mjTRN_SLIDERCRANK: 'a slider-crank (cranksite="...")',
    mujoco.mjtTrn.mjTRN_BODY: 'a body (<adhesion>, or body="...")',
    mujoco.mjtTrn.mjTRN_SO3: "an orientation (<orientation>)",
}
_SENSORS = {
    "geomdist": "distance",
    "geomnormal": "normal",
    "geomfromto": "fromto",
    "jointactfrc": "jointactuatorfrc",
    "tendonactfrc": "tendonactuatorfrc",
}
"""XML element of each sensor type whose element has another name than the type."""
_IGNORED = {
    "damping": (("actuator_damping", "actuator_dampingpoly"), "take it out and give it to the joint"),
    "armature": (("actuator_armature",), "take it out and give it to the joint"),
    "actearly": (("actuator_actearly",), "take it out"),
}
"""Attributes of actuators that MJX silently ignores: their fields, and the fix for the message."""
_UNREAD = {
    "jnt_stiffnesspoly": ("joint", "stiffness", " of several numbers"),
    "dof_dampingpoly": ("joint", "damping", " of several numbers"),
    "tendon_stiffnesspoly": ("tendon", "stiffness", " of several numbers"),
    "tendon_dampingpoly": ("tendon", "damping", " of several numbers"),
    "geom_surfacevel": ("geom", "surfacevel", ""),
    "geom_adhesion": ("geom", "adhesion", ""),
    "pair_adhesion": ("pair", "adhesion", ""),
}
"""By field of the model that MJX never reads: the element, its attribute, and which values of it the field holds."""
_MOST = 8
"""The most problems that a message lists, so that it stays readable."""
_MATCHED_BY = {"SITE": "site", "BODY": "body1 or body2", "XBODY": "subtree1 or subtree2"}


def check_supported(model: mujoco.MjModel) -> None:
    """Checks a model for features that MJX in JAX does not know or would silently ignore.

    MJX itself may reject more, such as pairs of shapes that it cannot collide: see `explained`.

    Raises:
        ConfigError: The model has such features. The message names the elements and attributes to edit.
    """
    refuse(
        "MJX",
        [
            *in_options(model),
            *_fluid(model),
            *_passive(model),
            *in_actuators(model, mjx, tuple(_IGNORED)),
            *_plugins(model),
            *elsewhere(model, mjx),
            *_unread(model),
            *_contact_sensors(model),
        ],
    )


def refuse(title: str, found: Sequence[str]) -> None:
    """Raises ConfigError if features were found, with the edits of the file that are needed."""
    if found:
        more = [f"{len(found) - _MOST} more like these"] if len(found) > _MOST else []
        raise ConfigError(
            f"{title} cannot simulate the model. In the MJCF file: {'. '.join([*found[:_MOST], *more])}. "
            "Or set engine=mujoco."
        )


def check_touch(model: mujoco.MjModel, num_contacts: int) -> None:
    """Checks that a model with touch sensors can have contacts, of which MJX allocates `num_contacts`.

    Without any, MJX fails while it is traced.

    Raises:
        ConfigError: The model has a touch sensor, but no contacts.
    """
    touch = np.flatnonzero(model.sensor_type == int(mujoco.mjtSensor.mjSENS_TOUCH))
    if touch.size and not num_contacts:
        what = label(model, "sensor", int(touch[0]))
        raise ConfigError(
            f"MJX cannot simulate the model. In the MJCF file: {what} is a <touch>, but no two geoms can collide; take "
            "it out, or let geoms collide by contype and conaffinity. Or set engine=mujoco."
        )


def in_options(model: mujoco.MjModel) -> Iterator[str]:
    """Options that no implementation knows."""
    option = model.opt
    for attribute, (known, every, prefix, instead) in _OPTIONS.items():
        value = getattr(option, attribute)
        if value not in set(known):
            word = every(value).name.removeprefix(prefix)
            word = word if attribute == "solver" else word.lower()
            yield f'<option {attribute}="{word}"> is not known to it; write {instead}'
    for bit in (1 << i for i in range(int(mujoco.mjtEnableBit.mjNENABLE))):
        if option.enableflags & bit and bit not in {int(flag) for flag in mjx.EnableBit}:
            flag = mujoco.mjtEnableBit(bit).name.removeprefix("mjENBL_").lower()
            yield f'<flag {flag}="enable"/> in <option> is not known to it; take it out'
    if option.disableactuator:
        yield '<option actuatorgroupdisable="..."> would be ignored; take it out, and the actuators of those groups'


def _fluid(model: mujoco.MjModel) -> Iterator[str]:
    option = model.opt
    has_fluid = option.density > 0 or option.viscosity > 0 or np.any(option.wind)
    if option.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST and has_fluid:
        yield (
            '<option integrator="implicitfast"> does not go with density, viscosity or wind; write Euler, or take them '
            "out"
        )
    if has_fluid:
        for i in np.flatnonzero(model.geom_fluid[:, 0]):
            yield f'{label(model, "geom", int(i))} has fluidshape="ellipsoid", which would be ignored; take it out'


def _passive(model: mujoco.MjModel) -> Iterator[str]:
    disable = mujoco.mjtDisableBit
    springs, dampers = (
        bool(model.opt.disableflags & int(bit)) for bit in (disable.mjDSBL_SPRING, disable.mjDSBL_DAMPER)
    )
    if springs != dampers:
        flag = "spring" if springs else "damper"
        yield f'<flag {flag}="disable"/> in <option> would take out every passive force; set those values to 0 instead'
    if model.opt.noslip_iterations:
        yield '<option noslip_iterations="..."> would be ignored; take it out'


def _unread(model: mujoco.MjModel) -> Iterator[str]:
    for field, (kind, attribute, which) in _UNREAD.items():
        values = getattr(model, field)
        rows = np.flatnonzero(values.reshape(len(values), -1).any(axis=1)) if len(values) else np.zeros(0, int)
        places = model.dof_jntid[rows] if field.startswith("dof_") else rows
        instead = "write one" if which else "take it out"
        for i in dict.fromkeys(places.tolist()):
            yield f'{label(model, kind, i)} has {attribute}="..."{which}, which would be ignored; {instead}'
    kinds = (int(mujoco.mjtSensor.mjSENS_FRAMELINACC), int(mujoco.mjtSensor.mjSENS_FRAMEANGACC))
    for i in np.flatnonzero(np.isin(model.sensor_type, kinds) & (model.sensor_cutoff > 0)):
        yield f'{label(model, "sensor", int(i))} has cutoff="...", which would be ignored; take it out'


def in_actuators(model: mujoco.MjModel, kinds: Any, ignored: Iterable[str]) -> Iterator[str]:
    """Features of actuators that are not among the enums of a module, and those of attributes that are ignored."""
    for i in range(model.nactuator):
        what = label(model, "actuator", i)
        unknown = [
            f'{attribute}="{every(value).name.removeprefix(prefix).lower()}"'
            for attribute, (enum, every, prefix) in _FORCES.items()
            if (value := int(getattr(model, f"actuator_{attribute}")[i])) not in set(getattr(kinds, enum))
        ]
        if unknown:
            yield f"{what} has {' '.join(unknown)}; write a <motor>, <position> or another that has none of these"
        if (transmission := int(model.actuator_trntype[i])) not in set(kinds.TrnType):
            drives = _TRANSMISSIONS.get(mujoco.mjtTrn(transmission), "something")
            yield f"{what} drives {drives}; only joints, tendons and sites can be driven, so take it out"
        for attribute in ignored:
            fields, instead = _IGNORED[attribute]
            if any(np.any(getattr(model, field)[i]) for field in fields):
                yield f'{what} has {attribute}="...", which would be ignored; {instead}'


def elsewhere(model: mujoco.MjModel, kinds: Any) -> Iterator[str]:
    """Springs that yield, and sensors and equalities that are not among the enums of a module."""
    for kind, strengths in (("joint", model.jnt_springyield), ("tendon", model.tendon_springyield)):
        for i in np.flatnonzero(strengths):
            yield f'{label(model, kind, int(i))} has springyield="...", which would be ignored; take it out'
    for i in range(model.nsensor):
        kind, what = int(model.sensor_type[i]), label(model, "sensor", i)
        if kind not in set(kinds.SensorType):
            name = mujoco.mjtSensor(kind).name.removeprefix("mjSENS_").lower()
            yield f"{what} is a <{_SENSORS.get(name, name)}>, which is not known to it; take it out"
    for i in np.flatnonzero(~np.isin(model.eq_type, [int(x) for x in kinds.EqType])):
        element = mujoco.mjtEq(int(model.eq_type[i])).name.removeprefix("mjEQ_").lower()
        yield f"{label(model, 'equality', int(i))} is a <{element}>, which is not known to it; take it out"


def _plugins(model: mujoco.MjModel) -> Iterator[str]:
    if model.nflex:
        yield "<flex> and <flexcomp> are not known to it; take them out"
    for kind in ("body", "geom", "actuator", "sensor"):
        for i in np.flatnonzero(getattr(model, f"{kind}_plugin") >= 0):
            yield f"{label(model, kind, int(i))} has a <plugin>, which would be ignored; take it out"


def _contact_sensors(model: mujoco.MjModel) -> Iterator[str]:
    for i in np.flatnonzero(model.sensor_type == int(mujoco.mjtSensor.mjSENS_CONTACT)):
        what = f"{label(model, 'sensor', int(i))} is a <contact>"
        types = {mujoco.mjtObj(int(x[i])).name[6:] for x in (model.sensor_objtype, model.sensor_reftype)}
        for kind in types & set(_MATCHED_BY):
            yield f"{what} that matches by {_MATCHED_BY[kind]}; match by geom1 and geom2"
        if model.sensor_intprm[i, 1] == 3:
            yield f'{what} with reduce="netforce"; write mindist or maxforce'


def explained(reason: str, model: mujoco.MjModel) -> str:
    """An error message of MJX with the names of the geoms concerned: MJX itself only names types of geoms."""
    types = list(dict.fromkeys(re.findall(r"mjGEOM_[A-Z]+", reason)))
    if not types:
        return reason
    collide = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    named = []
    for name in types:
        found = np.flatnonzero(collide & (model.geom_type == int(getattr(mujoco.mjtGeom, name))))
        geoms = [label(model, "geom", int(i)) for i in found[:3]] + ["..."] * (len(found) > 3)
        named.append(f'type="{name[7:].lower()}": {", ".join(geoms)}')
    rule = "must have margin and gap 0" if "margin" in reason else "cannot collide with each other"
    return (
        f"geoms of these types {rule} ({'; '.join(named)}). Give them another type, or keep them apart by contype, "
        "conaffinity or <exclude>"
    )
