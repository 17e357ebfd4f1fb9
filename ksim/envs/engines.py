"""Native MuJoCo and MuJoCo Warp in place of MJX, for environments written for MJX.

Such an environment calls `mjx.forward(model, data)` and `mjx.step(model, data)`. While it is traced here, these
functions call an engine of ksim and return an `mjx.Data` with the same fields. Fields that the engine does not compute,
or stores in another layout (contacts, constraints, inertia matrices), are NaN, or -1 if they are integers.
`fields_missed` lists those that an environment reads.
"""

import abc
import contextlib
import copy
import dataclasses
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax.core import eval_context
from jax.interpreters.partial_eval import dce_jaxpr
from jaxtyping import Array, PRNGKeyArray, PyTree
from mujoco import mjx

from ksim.envs.wrapped import WrappedEnvironment
from ksim.errors import ConfigError
from ksim.physics import PhysicsModel
from ksim.physics.constants import LOOKS, check_overrides, check_simple_bodies, derive_constants
from ksim.physics.contact_sizes import HOLD, NUM_STEPS, NUM_TRIALS, ContactSizes, largest_sizes
from ksim.physics.engine import STATE_FIELDS, AbstractEngine
from ksim.physics.mujoco import MujocoEngine
from ksim.physics.warp import OVERFLOWS, WarpEngine
from ksim.types import EnvState, Metrics, Overrides, PhysicsState

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
"""Fields of `mjx.Data` that the engines compute in every step, in the same layout except for the shape."""

_UNKNOWN = tuple(
    field.name
    for field in dataclasses.fields(mjx.Data)
    if field.name not in (*STATE_FIELDS, *APPLIED, *EXTRA, *KEPT, *DERIVED)
)
_patching = threading.RLock()


class InsteadOfMjx(abc.ABC):
    """`mjx.forward`, `mjx.step` and repeated steps of one model, by another engine.

    `mj_model` has the options and fields of the MJX model.
    """

    name: ClassVar[str]
    """The value of `engine` that picks it."""
    title: ClassVar[str]
    """The engine's name in messages."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages that it needs besides MuJoCo and MJX."""

    def __init__(self, mj_model: mujoco.MjModel, mjx_model: Any) -> None:
        """Checks the model.

        When the environment passes another model to MJX, the fields that differ from `mjx_model` are the overrides of
        that env.

        Raises:
            ConfigError: The engine cannot step the model as MJX does.
        """
        self._mjx_model = mjx_model
        self._check_delays(mj_model)
        self.mj_model = self._as_given(mj_model)
        self.extra = tuple(name for name, size in EXTRA.items() if getattr(mj_model, size))
        offsets = {int(mujoco.mjtJoint.mjJNT_FREE): 3, int(mujoco.mjtJoint.mjJNT_BALL): 0}
        joints = zip(mj_model.jnt_type.tolist(), mj_model.jnt_qposadr.tolist(), strict=True)
        starts = [start + offsets[kind] for kind, start in joints if kind in offsets]
        self._quaternions = np.add.outer(np.array(starts, int), np.arange(4))
        self._engines: dict[int, AbstractEngine] = {}
        self._unknown: dict[str, Any] = {}
        self._given: dict[str, Any] = {}

    @abc.abstractmethod
    def _make_engine(self, model: PhysicsModel) -> AbstractEngine:
        """The engine of a model, with the derived fields `DERIVED`."""

    def metrics(self, state: Any) -> Metrics:
        """Metrics of the physics in a state of the environment before `packed`."""
        del state
        return {}

    def problem(self, metrics: Mapping[str, float]) -> str:
        """A warning in words, from the means of `metrics`; empty if there is none."""
        del metrics
        return ""

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
        """Fields of `mjx.Data` that the engine does not compute, but the results of a function depend on.

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
        """Makes code traced inside this context call the engine instead of MJX."""
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
        state = self._engine(1).forward(self._state(data), data.ctrl, self.overrides(model))
        return self._filled(data, state)

    def steps(self, model: Any, data: Any, ctrl: Array, num_substeps: int) -> Any:
        """The data after `num_substeps` steps under constant controls."""
        data = data.replace(ctrl=ctrl)
        state = self._engine(num_substeps).substeps(self._state(data), ctrl, self.overrides(model))
        return self._filled(data, state)

    def _filled(self, data: Any, state: PhysicsState) -> Any:
        """The data with a state and its derived fields; the unknown fields are filled."""
        known: dict[str, Any] = {name: getattr(state, name) for name in STATE_FIELDS} | state.derived | state.extra
        changes = self._filler(_unknown(data))
        for name, x in known.items():
            old = getattr(data, name)
            changes[name] = jnp.reshape(x, jnp.shape(old)).astype(jnp.result_type(old))
        return data.replace(**changes)

    def _filler(self, like: dict[str, Any]) -> dict[str, Any]:
        """Placeholders for the unknown fields."""
        return dict(self._given) or jax.tree.map(_no_number, like)

    def _engine(self, num_substeps: int) -> AbstractEngine:
        if num_substeps not in self._engines:
            self._engines[num_substeps] = self._make_engine(self._model(num_substeps))
        return self._engines[num_substeps]

    def _model(self, num_substeps: int) -> PhysicsModel:
        model = PhysicsModel(self.mj_model, num_substeps * float(self.mj_model.opt.timestep))
        model.extra_state = self.extra
        return model

    def _state(self, data: Any) -> PhysicsState:
        fields = {name: getattr(data, name) for name in STATE_FIELDS}
        if len(self._quaternions):  # MJX normalises them, native MuJoCo does not
            q_j4 = data.qpos[self._quaternions]
            unit_j4 = q_j4 / jnp.linalg.norm(q_j4, axis=1, keepdims=True)
            fields["qpos"] = data.qpos.at[self._quaternions].set(unit_j4)
        return PhysicsState(
            **fields,
            derived={},
            applied={name: getattr(data, name) for name in APPLIED},
            extra={name: getattr(data, name) for name in self.extra},
        )

    def check_models(self, models: Any) -> None:
        """Raises ConfigError if the engine does not support models drawn by an environment, one or one per env."""
        self.overrides(models)

    def overrides(self, model: Any) -> Overrides:
        """The fields of a model that differ from the environment's own model."""
        own, given = _fields(self._mjx_model), _fields(model)
        changed = {name: x for name, x in given.items() if name not in LOOKS and not _is_same(x, own.get(name))}
        self._check_changed(self.mj_model, changed)
        return changed

    def _check_delays(self, model: mujoco.MjModel) -> None:
        """Raises ConfigError if the model has delay buffers, which MJX does not update."""
        if model.nhistory:
            raise ConfigError(
                f"engine ({self.name}): the environment's model has built-in delays, which MJX leaves out. Leave the "
                "option out."
            )

    def _check_changed(self, model: mujoco.MjModel, changed: dict[str, Any]) -> None:
        for name in changed:
            try:
                check_overrides(model, [name])
            except ConfigError as error:
                raise ConfigError(
                    f"engine ({self.name}): the environment changes {name} of its model, which {self.title} cannot do "
                    f"for it: {error} Or leave the option out."
                ) from None

    def _as_given(self, mj_model: mujoco.MjModel) -> mujoco.MjModel:
        """The model with the options and fields of the MJX model, which an environment may have changed since."""
        model = _with_options(mj_model, self._mjx_model.opt)
        changed = {}
        for name, x in _fields(self._mjx_model).items():
            own = getattr(model, name, None)
            if not isinstance(own, np.ndarray) or name in LOOKS or own.shape != np.shape(x):
                continue
            if not np.array_equal(own.astype(np.asarray(x).dtype), np.asarray(x), equal_nan=own.dtype.kind == "f"):
                changed[name] = np.asarray(x)
        self._check_changed(model, changed)
        for name, x in changed.items():
            getattr(model, name)[...] = x
        derive_constants(model)
        return model


class NativePhysics(InsteadOfMjx):
    """Native MuJoCo instead of MJX."""

    name = "mujoco"
    title = "native MuJoCo"

    def __init__(self, mj_model: mujoco.MjModel, mjx_model: Any, num_devices: int) -> None:
        """Makes the engine for `num_devices` devices that call at the same time."""
        self._num_devices = num_devices
        super().__init__(mj_model, mjx_model)

    def _make_engine(self, model: PhysicsModel) -> AbstractEngine:
        more = {"needs": DERIVED, "known": DERIVED, "applies": APPLIED}
        return MujocoEngine(model, num_devices=self._num_devices, **more)

    def _state(self, data: Any) -> PhysicsState:
        state = super()._state(data)
        return dataclasses.replace(state, extra={name: x.astype(jnp.float32) for name, x in state.extra.items()})

    def check_models(self, models: Any) -> None:
        fields = {name: np.asarray(x) for name, x in self.overrides(models).items()}
        try:
            check_simple_bodies(self.mj_model, fields)
        except ConfigError as error:
            raise ConfigError(f"engine ({self.name}): {error} Or leave the option out.") from None


class WarpPhysics(InsteadOfMjx):
    """MuJoCo Warp instead of MJX. The bits of its overflows are kept where MJX has the iterations of its solver."""

    name = "warp"
    title = "MuJoCo Warp"
    packages = ("warp-lang",)

    def __init__(self, mj_model: mujoco.MjModel, mjx_model: Any, sizes: ContactSizes) -> None:
        """Makes the engine with room for so many contacts and constraints of each env."""
        super().__init__(mj_model, mjx_model)
        self._sizes = sizes
        data = mujoco.MjData(self.mj_model)
        self._shapes = {name: np.shape(getattr(data, name)) for name in DERIVED}
        self._one_step = self._make_engine(self._model(1))

    def _make_engine(self, model: PhysicsModel) -> WarpEngine:
        with eval_context():  # the environment may be traced
            return WarpEngine(model, DERIVED, sizes=self._sizes, applies=APPLIED, known=DERIVED)

    def metrics(self, state: Any) -> Metrics:
        return self._one_step.overflow_metrics(_overflows(data_of(state)))

    def problem(self, metrics: Mapping[str, float]) -> str:
        return self._one_step.problem(metrics)

    def unpacked(self, state: Any) -> Any:
        clear = lambda x: _with_overflows(x, 0) if isinstance(x, mjx.Data) else x
        return jax.tree.map(clear, super().unpacked(state), is_leaf=lambda x: isinstance(x, mjx.Data))

    def _state(self, data: Any) -> PhysicsState:
        derived = {name: jnp.reshape(getattr(data, name), shape) for name, shape in self._shapes.items()}
        return dataclasses.replace(super()._state(data), derived=derived | {OVERFLOWS: _overflows(data)})

    def _filled(self, data: Any, state: PhysicsState) -> Any:
        derived = dict(state.derived)
        overflows = derived.pop(OVERFLOWS) | _overflows(data)  # of steps before, within the same control step
        return _with_overflows(super()._filled(data, dataclasses.replace(state, derived=derived)), overflows)


def tried_sizes(env: WrappedEnvironment, mjx_model: Any, randomize: Callable[..., Any] | None) -> ContactSizes:
    """The most contacts and constraints of an environment in native MuJoCo, from its starts and under random actions.

    `randomize` is the environment's randomization of its model, if it has one.
    """
    native = env.physics
    assert isinstance(native, NativePhysics)

    def trial(key: PRNGKeyArray) -> tuple[dict[str, Array], Array]:
        reset_key, action_key = jax.random.split(key)
        start = env.reset(reset_key)
        action_na = jax.random.uniform(action_key, (NUM_STEPS // HOLD, env.action_size), minval=-1.0, maxval=1.0)

        def step(state: EnvState, action: Array) -> tuple[EnvState, Array]:
            state = env.step(state, action)
            return state, data_of(state.inner.state).ctrl

        _, ctrl_tu = jax.lax.scan(step, start, jnp.repeat(action_na, HOLD, axis=0))
        data = data_of(start.inner.state)
        return {name: getattr(data, name) for name in ("qpos", "qvel", *native.extra)}, ctrl_tu

    keys = jax.random.split(jax.random.key(0), NUM_TRIALS)
    starts, ctrl_ntu = jax.tree.map(np.asarray, jax.jit(jax.vmap(trial))(keys))
    models = mjx_model if randomize is None else randomize(mjx_model, jax.random.key_data(keys))[0]
    overrides = {name: np.asarray(x) for name, x in native.overrides(models).items()}
    model = PhysicsModel(native.mj_model, float(env.env.dt))
    return largest_sizes(model, starts, overrides, ctrl_ntu)


def _overflows(data: Any) -> Array:
    return jnp.reshape(data._impl.solver_niter, (-1,))[0].astype(jnp.int32)


def _with_overflows(data: Any, bits: Array | int) -> Any:
    old = data._impl.solver_niter
    return data.replace(_impl=data._impl.replace(solver_niter=jnp.full_like(old, bits)))


def data_of(state: Any) -> Any:
    """The `mjx.Data` in an environment's state."""
    is_data = lambda x: isinstance(x, mjx.Data)
    return next(x for x in jax.tree.leaves(state, is_leaf=is_data) if is_data(x))


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
