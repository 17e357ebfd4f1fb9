"""How messages call the elements of a model: by name, or by index and by what they belong to."""

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
"""By transmission: what an actuator drives."""
_OWNED = {"joint": "jnt_bodyid", "geom": "geom_bodyid", "site": "site_bodyid"}


def label(model: mujoco.MjModel, kind: str, index: int) -> str:
    """An element of a compiled model: `geom 'foot'`, or `geom 3 (unnamed, of body 'leg')`.

    Args:
        model: The model.
        kind: Its kind, as in `mujoco.mjtObj`: `body`, `joint`, `geom`, `site`, `tendon`, `actuator`, `sensor`, ...
        index: Its index among those of its kind.
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
    """What an actuator of a compiled model drives: `tendon 'hamstring'`."""
    target, index = int(model.actuator_trntype[actuator]), int(model.actuator_trnid[actuator, 0])
    if target == int(_TRN.mjTRN_SO3):  # of a ball joint, or of a site where there is a second one
        target = int(_TRN.mjTRN_JOINT if model.actuator_trnid[actuator, 1] < 0 else _TRN.mjTRN_SITE)
    words = _TARGETS.get(_TRN(target), "something")
    kind = words.rpartition(" ")[2]
    if kind not in ("joint", "tendon", "site", "body"):
        return words
    return f"{words.removesuffix(kind)}{label(model, kind, index)}"


def spec_label(actuator: mujoco.MjsActuator) -> str:
    """An actuator of a spec, as `label` calls it once the spec is compiled."""
    if actuator.name:
        return f"actuator {actuator.name!r}"
    return f"actuator {actuator.id} (unnamed, drives {spec_driven(actuator)})"


def spec_driven(actuator: mujoco.MjsActuator) -> str:
    """What an actuator of a spec drives: `tendon 'hamstring'`."""
    return f"{_TARGETS.get(actuator.trntype, 'something')} {actuator.target!r}"
