"""Native MuJoCo in place of MJX, for environments written for MJX.

Such an environment calls `mjx.forward(model, data)` and `mjx.step(model, data)`. While it is traced here, these
functions call ksim's native engine and return an `mjx.Data` with the same fields. Fields that native MuJoCo does not
compute, or stores in another layout (contacts, constraints, inertia matrices), are NaN, or -1 if they are integers.
`NativePhysics.fields_missed` lists those that an environment reads.
"""

import contextlib
import copy
import dataclasses
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array, PyTree
from mujoco import mjx

from ksim.errors import ConfigError
from ksim.physics import PhysicsModel
from ksim.physics.constants import LOOKS, check_overrides, check_simple_bodies, derive_constants
from ksim.physics.mujoco import MujocoEngine
from ksim.types import Overrides, PhysicsState

STATE = ("qpos", "qvel", "act", "qacc_warmstart", "time")
APPLIED = ("xfrc_applied", "qfrc_applied")
EXTRA = {"mocap_pos": "nmocap", "mocap_quat": "nmocap", "eq_active": "neq"}
"""State fields that only some models have, with the size of the model that is nonzero if it has them."""
KEPT = ("ctrl", "eq_active", "userdata", "plugin_state", "history")
"""Fields that a step does not change."""
DERIVED = (
    *("qacc", "act_dot", "sensordata", "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "ten_length"),
    *("geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "cam_xpos", "cam_xmat", "subtree_com", "cvel", "cdof"),
    *("cdof_dot", "qfrc_bias", "qfrc_gravcomp", "qfrc_fluid", "qfrc_passive", "qfrc_actuator", "actuator_force"),
    *("actuator_length", "qfrc_smooth", "qacc_smooth", "qfrc_constraint"),
)
"""Fields of `mjx.Data` that native MuJoCo computes in every step, in the same layout except for the shape."""

_UNKNOWN = tuple(
    field.name
    for field in dataclasses.fields(mjx.Data)
    if field.name not in (*STATE, *APPLIED, *EXTRA, *KEPT, *DERIVED)
)
_patching = threading.RLock()


class NativePhysics:
    """`mjx.forward`, `mjx.step` and repeated steps of one model, by native MuJoCo.

    `mj_model` has the options and fields of the MJX model.
    """

    def __init__(self, mj_model: mujoco.MjModel, mjx_model: Any, num_devices: int) -> None:
        """Makes the engine for `num_devices` devices that call at the same time.

        When the environment passes another model to MJX, the fields that differ from `mjx_model` are the overrides of
        that env.
        """
        _check_delays(mj_model)
        self.mj_model = _as_given(mj_model, mjx_model)
        self._extra = tuple(name for name, size in EXTRA.items() if getattr(mj_model, size))
        self._mjx_model, self._num_devices = mjx_model, num_devices
        offsets = {int(mujoco.mjtJoint.mjJNT_FREE): 3, int(mujoco.mjtJoint.mjJNT_BALL): 0}
        joints = zip(mj_model.jnt_type.tolist(), mj_model.jnt_qposadr.tolist(), strict=True)
        starts = [start + offsets[kind] for kind, start in joints if kind in offsets]
        self._quaternions = np.add.outer(np.array(starts, int), np.arange(4))
        self._engines: dict[int, MujocoEngine] = {}
        self._unknown: dict[str, Any] = {}
        self._given: dict[str, Any] = {}

    def packed(self, state: Any) -> Any:
        """A state of the environment without the unknown fields of its `mjx.Data`, which need not be carried along."""

        def pack(data: Any) -> Any:
            if not isinstance(data, mjx.Data):
                return data
            shape = lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))
            self._unknown = jax.tree.map(shape, _unknown(data))
            return data.replace(**dict.fromkeys(_UNKNOWN))

        return jax.tree.map(pack, state, is_leaf=lambda x: isinstance(x, mjx.Data))

    def unpacked(self, state: Any) -> Any:
        """The state before `packed`, with fillers for the unknown fields."""

        def unpack(data: Any) -> Any:
            return data.replace(**self._filler(self._unknown)) if isinstance(data, mjx.Data) else data

        return jax.tree.map(unpack, state, is_leaf=lambda x: isinstance(x, mjx.Data))

    def fields_missed(self, function: Callable[..., PyTree], *shapes: PyTree) -> list[str]:
        """Fields of `mjx.Data` that native MuJoCo does not compute, but the results of a function depend on.

        The function resets and steps the environment; the reset packs its state. It is traced with these fields as
        inputs, and dead code is removed. A field that is read in only one branch counts as read.
        """
        if not self._unknown:
            jax.eval_shape(function, *shapes)  # its reset records the shapes of these fields

        def given(unknown: dict[str, Any], *arguments: PyTree) -> PyTree:
            self._given = unknown
            try:
                return function(*arguments)
            finally:
                self._given = {}

        program = jax.make_jaxpr(given)(self._unknown, *shapes).jaxpr
        _, is_read = dce_jaxpr(program, used_outputs=True)
        fields = jax.tree_util.tree_leaves_with_path(self._unknown)
        return [_field_name(path) for (path, x), read in zip(fields, is_read, strict=False) if read and x.size]

    @contextlib.contextmanager
    def instead_of_mjx(self) -> Iterator[None]:
        """Makes code traced inside this context call native MuJoCo instead of MJX."""
        replaced: list[tuple[Any, str, Callable[..., Any]]] = [
            (mjx, "forward", self.forward),
            (mjx, "step", lambda model, data: self.steps(model, data, data.ctrl, 1)),
        ]
        with contextlib.suppress(ImportError):
            playground = importlib.import_module("mujoco_playground._src.mjx_env")
            repeated = lambda model, data, action, n_substeps=1: self.steps(model, data, action, n_substeps)
            replaced.append((playground, "step", repeated))
        with _patching:
            own = [getattr(module, name) for module, name, _ in replaced]
            for module, name, function in replaced:
                setattr(module, name, function)
            try:
                yield
            finally:
                for (module, name, _), function in zip(replaced, own, strict=True):
                    setattr(module, name, function)

    def forward(self, model: Any, data: Any) -> Any:
        """The data with the fields derived from its state, as `mjx.forward` returns it."""
        state = self._engine(1).forward(self._state(data), data.ctrl, self._overrides(model))
        return self._filled(data, state)

    def steps(self, model: Any, data: Any, ctrl: Array, num_substeps: int) -> Any:
        """The data after `num_substeps` steps under constant controls."""
        data = data.replace(ctrl=ctrl)
        state = self._engine(num_substeps).substeps(self._state(data), ctrl, self._overrides(model))
        return self._filled(data, state)

    def _filled(self, data: Any, state: PhysicsState) -> Any:
        """The data with a state and its derived fields; the unknown fields are filled."""
        known: dict[str, Any] = {name: getattr(state, name) for name in STATE} | state.derived | state.extra
        changes = self._filler(_unknown(data))
        for name, x in known.items():
            old = getattr(data, name)
            changes[name] = jnp.reshape(x, jnp.shape(old)).astype(jnp.result_type(old))
        return data.replace(**changes)

    def _filler(self, like: dict[str, Any]) -> dict[str, Any]:
        """Placeholders for the unknown fields."""
        return dict(self._given) or jax.tree.map(_no_number, like)

    def _engine(self, num_substeps: int) -> MujocoEngine:
        if num_substeps not in self._engines:
            model = PhysicsModel(self.mj_model, num_substeps * float(self.mj_model.opt.timestep))
            model.extra_state = self._extra
            more = {"needs": DERIVED, "known": DERIVED, "applies": APPLIED}
            self._engines[num_substeps] = MujocoEngine(model, num_devices=self._num_devices, **more)
        return self._engines[num_substeps]

    def _state(self, data: Any) -> PhysicsState:
        fields = {name: getattr(data, name) for name in STATE}
        if len(self._quaternions):  # MJX normalises them, native MuJoCo does not
            q_j4 = data.qpos[self._quaternions]
            unit_j4 = q_j4 / jnp.linalg.norm(q_j4, axis=1, keepdims=True)
            fields["qpos"] = data.qpos.at[self._quaternions].set(unit_j4)
        return PhysicsState(
            **fields,
            derived={},
            applied={name: getattr(data, name) for name in APPLIED},
            extra={name: getattr(data, name).astype(jnp.float32) for name in self._extra},
        )

    def check_models(self, models: Any) -> None:
        """Raises ConfigError if native MuJoCo does not support models drawn by an environment, one or one per env."""
        fields = {name: np.asarray(x) for name, x in self._overrides(models).items()}
        try:
            check_simple_bodies(self.mj_model, fields)
        except ConfigError as error:
            raise ConfigError(f"engine (mujoco): {error} Or leave the option out.") from None

    def _overrides(self, model: Any) -> Overrides:
        """The fields of a model that differ from the environment's own model."""
        own, given = _fields(self._mjx_model), _fields(model)
        changed = {name: x for name, x in given.items() if name not in LOOKS and not _is_same(x, own.get(name))}
        _check_changed(self.mj_model, changed)
        return changed


def _check_delays(model: mujoco.MjModel) -> None:
    """Raises ConfigError if the model has delay buffers, which MJX does not update."""
    if model.nhistory:
        raise ConfigError(
            "engine (mujoco): the environment's model has built-in delays, which MJX leaves out. Leave the option out."
        )


def _check_changed(model: mujoco.MjModel, changed: dict[str, Any]) -> None:
    for name in changed:
        try:
            check_overrides(model, [name])
        except ConfigError as error:
            raise ConfigError(
                f"engine (mujoco): the environment changes {name} of its model, which native MuJoCo cannot do for it: "
                f"{error} Or leave the option out."
            ) from None


def _as_given(mj_model: mujoco.MjModel, mjx_model: Any) -> mujoco.MjModel:
    """The model with the options and fields of the MJX model, which an environment may have changed since."""
    model = _with_options(mj_model, mjx_model.opt)
    changed = {}
    for name, x in _fields(mjx_model).items():
        own = getattr(model, name, None)
        if not isinstance(own, np.ndarray) or name in LOOKS or own.shape != np.shape(x):
            continue
        if not np.array_equal(own.astype(np.asarray(x).dtype), np.asarray(x), equal_nan=own.dtype.kind == "f"):
            changed[name] = np.asarray(x)
    _check_changed(model, changed)
    for name, x in changed.items():
        getattr(model, name)[...] = x
    derive_constants(model)
    return model


def _with_options(model: mujoco.MjModel, options: Any) -> mujoco.MjModel:
    """The model with the solver options and the timestep of the MJX model, which an environment may change."""
    model = copy.copy(model)
    for part in (options, options._impl):
        for name in (x.name for x in dataclasses.fields(part) if hasattr(model.opt, x.name)):
            setattr(model.opt, name, np.asarray(getattr(part, name)).astype(np.asarray(getattr(model.opt, name)).dtype))
    return model


def _fields(model: Any) -> dict[str, Any]:
    """The fields of an MJX model by their names in MjModel, such as `opt.gravity`."""
    parts = {"": (model, model._impl), "opt.": (model.opt, model.opt._impl), "stat.": (model.stat,)}
    return {
        prefix + x.name: getattr(part, x.name)
        for prefix, group in parts.items()
        for part in group
        for x in dataclasses.fields(part)
        if x.name not in ("opt", "stat", "_impl", "_sizes", "names", "signature")
    }


def _is_same(x: Any, own: Any) -> bool:
    """Whether a field has the environment's own value. Arrays made in a trace count as equal only if identical."""
    if x is own:
        return True
    if isinstance(x, jax.Array):
        return False
    return bool(jax.tree.structure(x) == jax.tree.structure(own)) and all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(own), strict=True)
    )


def _unknown(data: Any) -> dict[str, Any]:
    return {name: getattr(data, name) for name in _UNKNOWN}


def _no_number(x: Any) -> Array:
    shape, kind = (x.shape, x.dtype) if hasattr(x, "shape") else ((), jnp.result_type(x))
    return jnp.full(shape, jnp.nan if jnp.issubdtype(kind, jnp.inexact) else -1, kind)


def _field_name(path: jax.tree_util.KeyPath) -> str:
    """The name of a field as environments read it, such as `contact.dist`."""
    names = [str(getattr(key, "name", getattr(key, "key", key))) for key in path]
    return ".".join(name for name in names if name != "_impl")
