"""Labels of a model's elements in messages: the name, or the index and the element that it belongs to."""

import mujoco

_TRN = mujoco.mjtTrn
_TARGETS = {
    _TRN.mjTRN_JOINT: "joint",
    _TRN.mjTRN_JOINTINPARENT: "joint",
    _TRN.mjTRN_TENDON: "tendon",
    _TRN.mjTRN_SITE: "site",
    _TRN.mjTRN_BODY: "body",
    _TRN.mjTRN_SLIDERCRANK: "the slider-crank of site",
}
"""By transmission type: the kind of element that an actuator drives."""
_OWNED = {"joint": "jnt_bodyid", "geom": "geom_bodyid", "site": "site_bodyid"}


def label(model: mujoco.MjModel, kind: str, index: int) -> str:
    """The label of an element of a compiled model: `geom 'foot'`, or `geom 3 (unnamed, of body 'leg')`.

    Args:
        kind: Its kind, as in `mujoco.mjtObj`: `body`, `joint`, `geom`, `site`, `tendon`, `actuator`, `sensor`, ...
        index: Its index among the elements of its kind.
    """
    name = mujoco.mj_id2name(model, getattr(mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), index)
    if name:
        return f"{kind} {name!r}"
    if kind == "actuator":
        return f"actuator {index} (unnamed, drives {driven(model, index)})"
    if kind in _OWNED:
        return f"{kind} {index} (unnamed, of {label(model, 'body', int(getattr(model, _OWNED[kind])[index]))})"
    return f"{kind} {index} (unnamed)"


def driven(model: mujoco.MjModel, actuator: int) -> str:
    """The label of the element that an actuator of a compiled model drives: `tendon 'hamstring'`."""
    target, index = int(model.actuator_trntype[actuator]), int(model.actuator_trnid[actuator, 0])
    if target == int(_TRN.mjTRN_SO3):  # drives a ball joint, or a site if a second site is given
        target = int(_TRN.mjTRN_JOINT if model.actuator_trnid[actuator, 1] < 0 else _TRN.mjTRN_SITE)
    words = _TARGETS.get(_TRN(target), "something")
    kind = words.rpartition(" ")[2]
    if kind not in ("joint", "tendon", "site", "body"):
        return words
    return f"{words.removesuffix(kind)}{label(model, kind, index)}"


def spec_label(actuator: mujoco.MjsActuator) -> str:
    """The label of an actuator of a spec, equal to `label` after the spec is compiled."""
    if actuator.name:
        return f"actuator {actuator.name!r}"
    return f"actuator {actuator.id} (unnamed, drives {spec_driven(actuator)})"


def spec_driven(actuator: mujoco.MjsActuator) -> str:
    """The label of the element that an actuator of a spec drives: `tendon 'hamstring'`."""
    return f"{_TARGETS.get(actuator.trntype, 'something')} {actuator.target!r}"
