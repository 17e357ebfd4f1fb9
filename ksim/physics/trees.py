"""The robot's kinematic tree, and states that close its loops.

Resets, poses and motions set joints one by one, which opens the loops of a linkage. MuJoCo would then close them within
the first steps, with forces that throw the robot off its pose. So undriven joints are moved until the model's equality
constraints are satisfied.
"""

import copy
import functools
import hashlib
import math
import threading
from collections.abc import Iterator, Mapping

import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array

from ksim.errors import ConfigError, near_misses
from ksim.physics.host_call import HostFunction, host_function
from ksim.physics.mjcf import label

_FREE = int(mujoco.mjtJoint.mjJNT_FREE)
_ONE_DOF = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
_TRN, _WRAP = mujoco.mjtTrn, mujoco.mjtWrap
ROBOT_TEXT = "robot"
"""Name of the custom text in a model that names a body of the robot, if the actuators do not identify the robot."""


def robot_root(model: mujoco.MjModel) -> int | None:
    """The first body of the robot; None if nothing in the model moves.

    The robot is the tree with the most driven parts. Among trees with equally many, it is the tree with the most hinge
    and slide joints. `<custom><text name="robot" data="BODY"/></custom>` in the model overrides this choice.

    Raises:
        ConfigError: Two trees are tied in both counts and at least one of them has a free joint, or the text names no
            body that moves.
    """
    roots = sorted({int(model.body_rootid[body]) for body in model.jnt_bodyid})
    named = _named_root(model, roots)
    if named is not None or not roots:
        return named
    driven = {root: set() for root in roots}
    for actuator in range(model.nactuator):
        for part, body in _driven_parts(model, actuator):
            driven.get(int(model.body_rootid[body]), set()).add(part)
    of_joints = model.body_rootid[model.jnt_bodyid]
    is_one_dof = np.isin(model.jnt_type, _ONE_DOF)
    counts = {root: (len(driven[root]), int(is_one_dof[of_joints == root].sum())) for root in roots}
    most = max(counts.values())
    tied = [root for root in roots if counts[root] == most]
    if len(tied) > 1 and any(free_joint_of(model, root) is not None for root in tied):
        raise ConfigError(
            f"The model has several trees that may be the robot: {' and '.join(label(model, 'body', x) for x in tied)} "
            f"have {most[0]} driven parts and {most[1]} joints each. Say which it is by "
            f'<custom><text name="{ROBOT_TEXT}" data="BODY"/></custom> in the MJCF file, or take the others out.'
        )
    return tied[0]


def free_joint_of(model: mujoco.MjModel, root: int) -> int | None:
    """The free joint of the tree that begins at body `root`; None if it has none."""
    start = int(model.body_jntadr[root])
    return start if start >= 0 and model.jnt_type[start] == _FREE else None


def _named_root(model: mujoco.MjModel, roots: list[int]) -> int | None:
    text = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TEXT, ROBOT_TEXT)
    if text < 0:
        return None
    start = int(model.text_adr[text])
    name = bytes(model.text_data[start : start + int(model.text_size[text])]).rstrip(b"\0").decode()
    body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
    root = int(model.body_rootid[body]) if body >= 0 else -1
    if root not in roots:
        moving = [model.body(b).name for b in range(model.nbody) if int(model.body_rootid[b]) in roots]
        raise ConfigError(
            f"The custom text {ROBOT_TEXT!r} of the model must name a body of the robot, but there is no moving body "
            f"{name!r}. {near_misses(name, moving)}"
        )
    return root


def _driven_parts(model: mujoco.MjModel, actuator: int) -> Iterator[tuple[tuple[int, int], int]]:
    """The parts that an actuator acts on, as (kind, index), each with its body."""
    kind, index = int(model.actuator_trntype[actuator]), int(model.actuator_trnid[actuator, 0])
    if kind == int(_TRN.mjTRN_TENDON):
        start = int(model.tendon_adr[index])
        for wrap in range(start, start + int(model.tendon_num[index])):
            part, at = int(model.wrap_type[wrap]), int(model.wrap_objid[wrap])
            if part == int(_WRAP.mjWRAP_JOINT):
                yield (int(_TRN.mjTRN_JOINT), at), int(model.jnt_bodyid[at])
            elif part == int(_WRAP.mjWRAP_SITE):
                yield (int(_TRN.mjTRN_SITE), at), int(model.site_bodyid[at])
    elif kind in (int(_TRN.mjTRN_JOINT), int(_TRN.mjTRN_JOINTINPARENT)):
        yield (int(_TRN.mjTRN_JOINT), index), int(model.jnt_bodyid[index])
    elif kind == int(_TRN.mjTRN_SO3):  # drives a ball joint, or a site if a second site is given
        is_joint = model.actuator_trnid[actuator, 1] < 0
        body = model.jnt_bodyid[index] if is_joint else model.site_bodyid[index]
        yield (int(_TRN.mjTRN_JOINT if is_joint else _TRN.mjTRN_SITE), index), int(body)
    elif kind == int(_TRN.mjTRN_BODY):
        yield (kind, index), index
    elif index >= 0:  # a site, or the crank of a slider-crank
        yield (int(_TRN.mjTRN_SITE), index), int(model.site_bodyid[index])


CLOSED = 1e-6
"""Gap, in m or rad, up to which a pose is left unchanged."""
OPEN = 2e-3
"""Gap, in m or rad, above which a loop counts as open."""
MAX_STEPS = 30
DRIVEN_WEIGHT = 1e-2
"""Weight of driven joints in a step, relative to 1 for undriven joints. Driven joints thus move only where undriven
joints cannot close a loop."""
MAX_STEP = 0.3
"""Largest change of a joint in one step, in rad or m."""
_BALL = int(mujoco.mjtJoint.mjJNT_BALL)
_ON_JOINTS = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
_DISABLED = mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_LIMIT
_EQUALITY = int(mujoco.mjtConstraint.mjCNSTR_EQUALITY)


class Loops:
    """The closed loops of a model. Without active equality constraints, all states are returned unchanged."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self.are_there = bool(model.neq and np.any(model.eq_active0) and model.nv)  # active at the start
        self._original, self._lock = model, threading.Lock()
        self._functions: dict[tuple[str, ...], HostFunction] = {}

    @functools.cached_property
    def _model(self) -> mujoco.MjModel:
        model = copy.copy(self._original)
        model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
        model.opt.disableflags = int(model.opt.disableflags) | int(_DISABLED)
        return model

    @functools.cached_property
    def _data(self) -> mujoco.MjData:
        return mujoco.MjData(self._model)

    @functools.cached_property
    def _weight_v(self) -> np.ndarray:
        """The weight of each degree of freedom in a step, (v,); 0 for the robot's base."""
        model = self._model
        weight_v = np.ones(model.nv)
        for kind, joint in zip(model.actuator_trntype, model.actuator_trnid[:, 0], strict=True):
            if int(kind) in _ON_JOINTS:
                start = int(model.jnt_dofadr[joint])
                weight_v[start : start + {_FREE: 6, _BALL: 3}.get(int(model.jnt_type[joint]), 1)] = DRIVEN_WEIGHT
        root = robot_root(model)
        base = None if root is None else free_joint_of(model, root)
        if base is not None:
            start = int(model.jnt_dofadr[base])
            weight_v[start : start + 6] = 0.0
        return weight_v

    def closed(self, qpos: np.ndarray, qvel: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, float]:
        """The nearest pose with closed loops, velocities that keep them closed, and the remaining gap.

        The base never moves.

        Args:
            qpos: The pose, (q,).
            qvel: Velocities, (v,); None: at rest.

        Returns:
            The pose, (q,); the velocities, (v,); and the gap. The gap is the largest violation of a constraint, in m or
            rad. For a non-finite pose it is NaN, and the pose is returned unchanged.
        """
        with self._lock:
            return self._closed(qpos, np.zeros(self._original.nv) if qvel is None else qvel)

    def gap(self, qpos: np.ndarray) -> float:
        """The largest violation of an equality constraint in a pose, in m or rad."""
        if not self.are_there:
            return 0.0
        with self._lock:
            self._data.qpos[:] = qpos
            return float(np.abs(self._rows()[1]).max(initial=0.0))

    def close_traced(
        self, qpos: Array, qvel: Array, extra: Mapping[str, Array], overrides: Mapping[str, Array]
    ) -> tuple[Array, Array]:
        """Closes the loops in a traced function, by a host call. Poses are (q,), velocities (v,).

        `extra` are further fields of MjData, such as `mocap_pos`. `overrides` are fields of MjModel that differ in this
        simulation; those of `opt` are ignored, since no constraint depends on them.
        """
        if not self.are_there:
            return qpos, qvel
        fields = {name: x for name, x in sorted({**extra, **overrides}.items()) if not name.startswith("opt.")}
        parts = [jnp.ravel(x).astype(jnp.float32) for x in (qpos, qvel, *fields.values())]
        out = self._function(tuple(fields))(jnp.concatenate(parts), qpos.shape[0] + qvel.shape[0])
        return out[: qpos.shape[0]], out[qpos.shape[0] :]

    def _function(self, fields: tuple[str, ...]) -> HostFunction:
        if fields not in self._functions:
            saved = np.empty(mujoco.mj_sizeModel(self._model), np.uint8)
            mujoco.mj_saveModel(self._model, None, saved)
            content = hashlib.sha256(saved.tobytes() + repr(("loops", fields)).encode()).digest()
            self._functions[fields] = host_function(functools.partial(self._fill, fields), content)
        return self._functions[fields]

    def _fill(self, fields: tuple[str, ...], rows: np.ndarray, out: np.ndarray) -> None:
        rows, out = rows.reshape(-1, rows.shape[-1]), out.reshape(-1, out.shape[-1])
        nq, nv = self._model.nq, self._model.nv
        with self._lock:
            views = [getattr(self._data if hasattr(self._data, name) else self._model, name) for name in fields]
            before = [view.copy() for view in views]
            for row, result in zip(rows, out, strict=True):
                start = nq + nv
                for view in views:
                    view[...] = row[start : start + math.prod(view.shape)].reshape(view.shape)
                    start += math.prod(view.shape)
                result[:] = row[: nq + nv]
                if np.isfinite(row).all():
                    qpos, qvel, _ = self._closed(row[:nq].astype(float), row[nq : nq + nv].astype(float))
                    result[:nq], result[nq:] = qpos, qvel
            for view, value in zip(views, before, strict=True):
                view[...] = value

    def _closed(self, qpos: np.ndarray, qvel: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        if not self.are_there:
            return qpos.copy(), qvel.copy(), 0.0
        if not np.isfinite(qpos).all():
            return qpos.copy(), qvel.copy(), math.nan
        weight_v, data = self._weight_v, self._data
        data.qpos[:] = qpos
        jacobian, error = self._rows()
        best, least = qpos.copy(), float(np.abs(error).max(initial=0.0))
        for _ in range(MAX_STEPS):
            if least <= CLOSED:
                break
            step_v = weight_v * np.linalg.lstsq(jacobian * weight_v, -error, rcond=1e-7)[0]
            step_v *= min(1.0, MAX_STEP / max(float(np.abs(step_v).max(initial=0.0)), 1e-12))
            mujoco.mj_integratePos(self._model, data.qpos, step_v, 1.0)
            self._clip()
            jacobian, error = self._rows()
            gap = float(np.abs(error).max(initial=0.0))
            if gap < least:
                best, least = data.qpos.copy(), gap
        data.qpos[:] = best
        jacobian, _ = self._rows()
        speed = jacobian @ qvel
        if np.abs(speed).max(initial=0.0) > CLOSED:
            qvel = qvel + weight_v * np.linalg.lstsq(jacobian * weight_v, -speed, rcond=1e-7)[0]
        return best, qvel, least

    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The Jacobian of the equality constraints, (r, v), and their violations in m or rad, (r,)."""
        model, data = self._model, self._data
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_flex(model, data)
        mujoco.mj_tendon(model, data)
        mujoco.mj_makeConstraint(model, data)
        rows = np.asarray(data.efc_type) == _EQUALITY
        jacobian = np.asarray(data.efc_J).reshape(-1, model.nv)[: len(rows)]
        return jacobian[rows].copy(), np.asarray(data.efc_pos)[rows].copy()

    def _clip(self) -> None:
        model, qpos = self._model, self._data.qpos
        for joint in np.flatnonzero(model.jnt_limited):
            if int(model.jnt_type[joint]) not in (_FREE, _BALL):
                at = int(model.jnt_qposadr[joint])
                qpos[at] = np.clip(qpos[at], *model.jnt_range[joint])
