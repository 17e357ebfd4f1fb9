"""Native MuJoCo: many simulations on C threads, called from the traced step."""

import contextlib
import functools
import hashlib
import itertools
import logging
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float
from mujoco.batch import Batch, SimulationError

from ksim.errors import ConfigError
from ksim.host.machine import num_cores
from ksim.physics.constants import BatchConstants, as_in_mjx, check_overrides
from ksim.physics.engine import DERIVED_FIELDS, STATE_FIELDS, AbstractEngine, MotorCurve, carried_fields
from ksim.physics.host_call import HostFunction, host_function
from ksim.physics.model import PhysicsModel
from ksim.types import Overrides, PhysicsState

logger = logging.getLogger(__name__)

_FORCE_RANGE = "actuator_forcerange"
_motor_curves = itertools.count()
"""Numbers of motor curves, in the order of their creation in the process. Functions cannot be compared, so each engine
with a motor curve gets its own number."""


def silence_warnings() -> None:
    """Sends MuJoCo's warnings, as of a simulation that blows up, to the log instead of a file in the current folder."""
    mujoco.set_mju_user_warning(lambda text: logger.debug("MuJoCo: %s", text))


class MujocoEngine(AbstractEngine):
    """Physics by `mujoco.batch.Batch`, called from compiled programs through `host_call`.

    A call is a pure function: all state goes in and comes out. So any batch of the pool can serve any call, from any
    device's thread. Arguments and results are each packed into one array, since every array of a callback costs time.
    """

    name = "mujoco"

    def __init__(
        self,
        model: PhysicsModel,
        needs: Sequence[str] = (),
        *,
        num_devices: int = 1,
        applies: Sequence[str] = (),
        motor_curve: MotorCurve | None = None,
        known: Sequence[str] = DERIVED_FIELDS,
    ) -> None:
        """Creates the engine; `make_engine` describes the arguments.

        Each of `num_devices` devices gets an equal share of the CPU cores. `known` are the derived fields that `needs`
        may name.
        """
        self.model = model
        self._motor_curve = motor_curve
        self.derived, self.applied = carried_fields(needs, applies, known)
        silence_warnings()
        try:
            Batch(model.mj_model, 1, 1).step()
        except (ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"Native MuJoCo cannot simulate the model: {reason}. Change it, or try engine=mjx."
            ) from error
        self._pool = _BatchPool(model.mj_model, max(1, num_cores() // num_devices))
        data = mujoco.MjData(model.mj_model)
        self._state_shapes = {name: np.shape(getattr(data, name)) for name in (*STATE_FIELDS, *model.extra_state)}
        self._derived_shapes = {name: np.shape(getattr(data, name)) for name in self.derived}
        self._content = self._pool.digest() + (b"" if motor_curve is None else b"%d" % next(_motor_curves))
        self._host_functions: dict[_Call, HostFunction] = {}

    def forward(self, state: PhysicsState, ctrl: Float[Array, " u"], overrides: Overrides) -> PhysicsState:
        return self._call(self.without_applied_forces(state), ctrl, overrides, num_substeps=0)

    def substeps(
        self, state: PhysicsState, ctrl: Float[Array, " u"] | Float[Array, "s u"], overrides: Overrides
    ) -> PhysicsState:
        return self._call(state, ctrl, overrides, num_substeps=self.model.decimation)

    def _call(
        self,
        state: PhysicsState,
        ctrl: Float[Array, " u"] | Float[Array, "s u"],
        overrides: Overrides,
        *,
        num_substeps: int,
    ) -> PhysicsState:
        check_overrides(self.model.mj_model, overrides)
        # Sorted, since the pool keeps a batch for each order of fields.
        overrides = dict(sorted(as_in_mjx(self.model.mj_model, overrides).items()))
        fields = {name: getattr(state, name) for name in STATE_FIELDS} | state.extra | state.applied
        inputs = jnp.concatenate([jnp.ravel(x) for x in (*fields.values(), *overrides.values(), ctrl)])
        out_shapes = self._state_shapes | self._derived_shapes
        step = self._host_function(_Call(tuple(fields), tuple(overrides), ctrl.shape, num_substeps))
        ends = np.cumsum([math.prod(shape) for shape in out_shapes.values()]).tolist()
        parts = jnp.split(step(inputs.astype(jnp.float32), ends[-1]), ends[:-1])
        out = {name: x.reshape(shape) for (name, shape), x in zip(out_shapes.items(), parts, strict=True)}
        return PhysicsState(
            **{name: out[name] for name in STATE_FIELDS},
            derived={name: out[name] for name in self.derived},
            applied=state.applied,
            extra={name: out[name] for name in state.extra},
        )

    def _host_function(self, call: "_Call") -> HostFunction:
        """The host function with which programs step a batch."""
        if call not in self._host_functions:
            content = self._content + repr((call, self.derived)).encode()
            self._host_functions[call] = host_function(functools.partial(self._step, call), content)
        return self._host_functions[call]

    def _step(self, call: "_Call", rows: np.ndarray, out: np.ndarray) -> None:
        """Steps a batch from the states in `rows`, and writes the new states to `out`."""
        rows, out = rows.reshape(-1, rows.shape[-1]), out.reshape(-1, out.shape[-1])
        overridden = call.overrides if self._motor_curve is None else (*call.overrides, _FORCE_RANGE)
        with self._pool.batch(len(rows), tuple(dict.fromkeys(overridden))) as batch:
            # A batch keeps the values of bound fields only.
            outputs = [batch.data_field(name) for name in (*self._state_shapes, *self._derived_shapes)]
            batch.load(rows, call.fields, call.overrides)
            ctrl_shape = call.ctrl_shape if len(call.ctrl_shape) == 2 else (1, *call.ctrl_shape)
            ctrl_esu = rows[:, rows.shape[1] - math.prod(ctrl_shape) :].reshape(len(rows), *ctrl_shape)
            failed = batch.step(ctrl_esu, call.num_substeps, self._motors(batch, call.overrides))
            # A simulation that blows up overflows float32. It is detected and reset later.
            with np.errstate(over="ignore", invalid="ignore"):
                np.concatenate(outputs, axis=1, out=out, casting="same_kind")
            out[failed] = np.nan

    def _motors(self, batch: "_PooledBatch", overrides: tuple[str, ...]) -> Callable[[], None] | None:
        """Sets the actuators' force ranges to those at rest.

        Returns:
            A function that sets the force ranges for the current velocities; None if they do not vary.
        """
        curve = self._motor_curve
        if curve is None:
            return None
        places, gear = self.actuator_velocity_at()
        force_range, qvel = batch.model_field(_FORCE_RANGE), batch.data_field("qvel")
        at_rest = force_range.copy() if _FORCE_RANGE in overrides else self.model.mj_model.actuator_forcerange

        force_range[...] = at_rest

        def update() -> None:
            force_range[...] = curve(gear * qvel[:, places], at_rest)

        return update


class _Call(NamedTuple):
    """The layout of a call's rows, by the names of fields, and the number of substeps."""

    fields: tuple[str, ...]
    overrides: tuple[str, ...]
    ctrl_shape: tuple[int, ...]
    num_substeps: int


def _copy_columns(rows: np.ndarray, start: int, views: Sequence[np.ndarray]) -> int:
    """Copies columns from `start` on into views, in order; returns the index of the first remaining column."""
    for view in views:
        stop = start + view.shape[1]
        view[...] = rows[:, start:stop]
        start = stop
    return start


class _PooledBatch:
    """A Batch with the views through which rows of float32 are read and written."""

    def __init__(self, model: mujoco.MjModel, num_sims: int, num_threads: int, overridden: tuple[str, ...]) -> None:
        self._batch = Batch(model, num_sims, num_threads)
        self._constants = BatchConstants(self._batch, overridden)
        self._data_fields: dict[str, np.ndarray] = {}
        self._ctrl = self.data_field("ctrl")
        self._has_failed = False

    def data_field(self, name: str) -> np.ndarray:
        """A view of a field of MjData, one row per simulation."""
        if name not in self._data_fields:
            self._data_fields[name] = self._batch.bind(name).reshape(self._batch.nsim, -1)
        return self._data_fields[name]

    def model_field(self, name: str) -> np.ndarray:
        """A view of a field of MjModel that has its own values for every simulation."""
        return self._batch.expand(name)

    def load(self, rows: np.ndarray, data_fields: tuple[str, ...], model_fields: tuple[str, ...]) -> None:
        """Copies the columns of `rows` into fields, in order."""
        overrides = [self.model_field(name).reshape(self._batch.nsim, -1) for name in model_fields]
        start = _copy_columns(rows, 0, [self.data_field(name) for name in data_fields])
        _copy_columns(rows, start, overrides)
        if self._constants.update():
            _copy_columns(rows, start, overrides)

    def step(self, ctrl_esu: np.ndarray, num_substeps: int, before_substep: Callable[[], None] | None) -> list[int]:
        """Steps under controls, constant or one row per substep; with no substeps, computes the derived fields.

        Returns:
            The simulations in which MuJoCo raised an error, such as too little memory for the contacts.
        """
        if ctrl_esu.shape[1] == 1 and (before_substep is None or not num_substeps):
            self._ctrl[...] = ctrl_esu[:, 0]
            run = functools.partial(self._batch.step, nstep=num_substeps) if num_substeps else self._batch.forward
            return self._given_up(run)
        failed: list[int] = []
        for number in range(num_substeps):
            self._ctrl[...] = ctrl_esu[:, min(number, ctrl_esu.shape[1] - 1)]
            if before_substep is not None:
                before_substep()
            failed += self._given_up(functools.partial(self._batch.step, nstep=1))
        return failed

    def _given_up(self, run: Callable[[], object]) -> list[int]:
        """Runs the batch, and returns the simulations in which MuJoCo raised an error. The first error is a warning.

        MuJoCo leaves the state of these simulations unchanged. The caller sets it to NaN, so that they are detected,
        counted and reset.
        """
        try:
            run()
        except SimulationError as error:
            logger.log(logging.DEBUG if self._has_failed else logging.WARNING, "%s", error)
            self._has_failed = True
            return error.ids.tolist()
        return []


class _BatchPool:
    """Batches by number of simulations and overridden fields, each lent to one call at a time.

    Callbacks of several devices overlap. Callbacks of one device overlap if XLA runs two of them at once.
    """

    def __init__(self, model: mujoco.MjModel, num_threads: int) -> None:
        self._model = model
        self._num_threads = num_threads
        self._idle: dict[tuple[int, tuple[str, ...]], queue.SimpleQueue[_PooledBatch]] = {}
        self._lock = threading.Lock()

    def digest(self) -> bytes:
        """A digest of the model and the number of threads."""
        saved = np.empty(mujoco.mj_sizeModel(self._model), np.uint8)
        mujoco.mj_saveModel(self._model, None, saved)
        return hashlib.sha256(saved.tobytes() + b"%d" % self._num_threads).digest()

    @contextlib.contextmanager
    def batch(self, num_sims: int, overridden: tuple[str, ...]) -> Iterator[_PooledBatch]:
        """Lends an idle batch that overrides the same model fields, or creates one if none is idle."""
        with self._lock:
            idle = self._idle.setdefault((num_sims, overridden), queue.SimpleQueue())
        try:
            batch = idle.get_nowait()
        except queue.Empty:
            batch = _PooledBatch(self._model, num_sims, self._num_threads, overridden)
        try:
            yield batch
        finally:
            idle.put(batch)
