"""Checks of MJCF files: content that would crash MuJoCo, before it reads a file, and non-finite numbers afterwards."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import mujoco
import numpy as np

from ksim.errors import ConfigError

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

    `kind` is as in `mujoco.mjtObj`: `body`, `joint`, `geom`, `site`, `tendon`, `actuator`, `sensor`, ...
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


MAX_COPIES = 10_000
"""The most copies that <replicate> may make. MuJoCo takes seconds for this many, and its time grows quadratically."""
_USER_DATA = [f"nuser_{kind}" for kind in ("body", "jnt", "geom", "site", "cam", "tendon", "actuator", "sensor")]
_LIMITS = {
    "hfield": [(("nrow", "ncol"), 2**27)],
    "texture": [(("width", "height"), 2**27)],
    "flexcomp": [(("count",), 10**6)],
    "size": [((name,), 10**6) for name in ("nkey", "nuserdata")] + [((name,), 10**4) for name in _USER_DATA],
}
"""By element: attributes whose product is the number of items that it creates, and the largest number allowed."""

_TAG = re.compile(r"<!--.*?-->|<(/?)(\w+)([^<>]*)>", re.DOTALL)
_ATTRIBUTE = re.compile(r"(\w+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")


def check_mjcf(path: Path) -> None:
    """Checks an MJCF file and the files that it includes or attaches for content that would crash or hang the process.

    Raises:
        ConfigError: A file attaches itself, or an element creates too many items.
    """
    _check_file(path.absolute(), (), set())


def _check_file(path: Path, chain: tuple[Path, ...], seen: set[Path]) -> None:
    if path in chain:
        raise ConfigError(f"Robot file {path} is part of itself, by {' and '.join(p.name for p in chain)}.")
    if path in seen or not path.is_file():
        return
    seen.add(path)
    copies = [1.0]
    text = path.read_text(errors="replace")
    for tag in _TAG.finditer(text):
        is_end, element, rest = tag.groups()
        attributes = {name: double or single for name, double, single in _ATTRIBUTE.findall(rest or "")}
        too_much = [limit for limit in _LIMITS.get(element, []) if _product(attributes, limit[0]) > limit[1]]
        if element == "replicate" and is_end:
            copies = copies[:-1] or [1.0]
        elif element == "replicate":
            made = copies[-1] * max(_product(attributes, ("count",)), 1.0)
            too_much = [(("count",), MAX_COPIES)] if made > MAX_COPIES else []
            copies = copies if rest.endswith("/") else [*copies, made]
        for factors, most in too_much:
            line = text.count("\n", 0, tag.start()) + 1
            given = " ".join(f'{factor}="{attributes[factor]}"' for factor in factors if factor in attributes)
            raise ConfigError(
                f"Robot file {path}, line {line}: {element} {given} makes more than {most}. Make it less."
            )
        file = attributes.get("file")
        # MuJoCo detects a file that includes itself, but not a file that attaches itself.
        if file and element in ("include", "model"):
            target = (path.parent / file).resolve()
            if element == "model" or target not in chain:
                _check_file(target, (*chain, path) if element == "model" else chain, seen)


def _product(attributes: Mapping[str, str], names: tuple[str, ...]) -> float:
    """The product of all numbers in these attributes; 0 if one of them is not a number."""
    try:
        return math.prod(abs(float(number)) for name in names for number in attributes.get(name, "1").split())
    except ValueError:
        return 0.0


_KINDS = {"body": "body", "jnt": "joint", "dof": "joint", "geom": "geom", "site": "site", "actuator": "actuator"}
"""Prefixes of MjModel's fields, and the kinds of elements that they belong to."""
_ACTUATOR_ROWS = {"actuator_ctrlrange": "actuator_ctrladr"} | dict.fromkeys(
    ("actuator_gear", "actuator_acc0", "actuator_length0", "actuator_lengthrange"), "actuator_outadr"
)
"""Fields with one row per control or per force, of which an actuator may have several, each with the field that holds
the first row of each actuator."""


def find_not_finite(model: mujoco.MjModel) -> str | None:
    """The name of a field of a compiled model with a number that is non-finite in float32, with its element and value.

    None if all are finite. Ranges may be infinite.
    """
    for name in dir(model):
        value = getattr(model, name) if not name.startswith("_") else None
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            continue
        bad = ~(np.abs(value) <= np.finfo(np.float32).max)
        if name.endswith("range"):
            bad &= ~np.isinf(value)
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            return f"{name} of {_owner(model, name, row)} ({value[bad][0]})"
    option = model.opt
    for name in ("gravity", "wind", "magnetic", "density", "viscosity", "impratio", "tolerance"):
        if not np.all(np.abs(getattr(option, name)) <= np.finfo(np.float32).max):
            return f"option {name} ({getattr(option, name)})"
    return None


def _owner(model: mujoco.MjModel, field: str, row: int) -> str:
    kind = _KINDS.get(field.partition("_")[0])
    if kind is None:
        return f"element {row}"
    if field.startswith("dof"):
        row = int(model.dof_jntid[row])
    elif field in _ACTUATOR_ROWS:
        row = int(np.searchsorted(getattr(model, _ACTUATOR_ROWS[field]), row, side="right")) - 1
    return label(model, kind, row)
