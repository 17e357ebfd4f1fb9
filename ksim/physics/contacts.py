"""Contacts: pairs of geoms that can touch, and touch sensors of bodies and feet."""

import mujoco
import numpy as np


def colliding_geoms(model: mujoco.MjModel) -> np.ndarray:
    """The pairs of geoms, (n, 2), that can touch by their contact bits, without the pairs listed as `<pair>`.

    See "Collision detection" in MuJoCo's documentation: bodies that are welded together, parents with children, and
    excluded bodies do not collide.
    """
    weld = model.body_weldid[model.geom_bodyid]
    parent = model.body_weldid[model.body_parentid[weld]]
    i, j = (x.ravel() for x in np.meshgrid(np.flatnonzero(weld), np.arange(model.ngeom), indexing="ij"))
    is_new = (weld[j] == 0) | (i < j)  # each pair once: pairs of two moving geoms appear in both orders
    bits = (model.geom_contype[i] & model.geom_conaffinity[j]) | (model.geom_contype[j] & model.geom_conaffinity[i])
    keeps_parents = bool(model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_FILTERPARENT)
    is_kin = ((weld[i] == parent[j]) & (weld[j] != 0)) | ((weld[j] == parent[i]) & (weld[j] != 0))
    meets = is_new & (bits != 0) & (weld[i] != weld[j]) & (keeps_parents | ~is_kin)
    i, j = i[meets], j[meets]
    first, second = (np.minimum(*(model.geom_bodyid[[i, j]])), np.maximum(*(model.geom_bodyid[[i, j]])))
    is_excluded = np.isin((first << 16) + second, model.exclude_signature)
    named = set(zip(model.pair_geom1.tolist(), model.pair_geom2.tolist(), strict=True))
    is_named = np.array([(a, b) in named or (b, a) in named for a, b in zip(i.tolist(), j.tolist(), strict=True)], bool)
    return np.stack([i, j], axis=1)[~is_excluded & ~is_named]


def decides_friction(model: mujoco.MjModel, geoms: np.ndarray, high: float) -> bool:
    """Whether any contact changes if the sliding friction of geoms is set to values up to `high`.

    The geom of higher priority decides the friction of a contact. At equal priority, the larger friction applies.
    """
    pairs = colliding_geoms(model)
    ours, theirs = np.concatenate([pairs, pairs[:, ::-1]]).T
    ours, theirs = (x[np.isin(ours, geoms)] for x in (ours, theirs))
    lead = model.geom_priority[ours] - model.geom_priority[theirs]
    condim = np.where(lead > 0, model.geom_condim[ours], np.maximum(model.geom_condim[ours], model.geom_condim[theirs]))
    is_larger = np.isin(theirs, geoms) | (high > model.geom_friction[theirs, 0])
    return bool(np.any((condim > 1) & ((lead > 0) | ((lead == 0) & is_larger))))


_EVERYWHERE_M = 100.0
"""Radius of the site of a body's touch sensor, in m: large enough to contain all contacts of the body."""


def add_touch_sensor(spec: mujoco.MjSpec, name: str, site: str) -> None:
    """Adds a touch sensor: the sum of the contact forces, in N, on the site's body within the site."""
    spec.add_sensor(name=name, type=mujoco.mjtSensor.mjSENS_TOUCH, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=site)


def add_body_touch_sensor(spec: mujoco.MjSpec, name: str, body: mujoco.MjsBody) -> None:
    """Adds a touch sensor for all contacts of a body, with an invisible site of the same name."""
    body.add_site(name=name, size=[_EVERYWHERE_M, 0, 0], group=5, rgba=[0, 0, 0, 0])
    add_touch_sensor(spec, name, name)


def part_of(sensor: str, k: int) -> str:
    """The name of the k-th further sensor, from 1, whose readings `ModelNames.reading` adds to those of `sensor`."""
    return f"ksim_{sensor}_part_{k}"
