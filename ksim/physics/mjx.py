"""MuJoCo MJX: physics in pure JAX, on CPUs, GPUs and TPUs; see docs/tested.md."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.physics.constants import check_overrides
from ksim.physics.engine import DERIVED_FIELDS, STATE_FIELDS, AbstractEngine, MotorCurve, carried_fields
from ksim.physics.mjx_support import check_supported, check_touch, explained, mjx
from ksim.physics.model import PhysicsModel
from ksim.types import Device, Overrides, PhysicsState

_DATA_FIELDS = frozenset(field.name for field in dataclasses.fields(mjx.Data))
_forward, _step = mjx.forward, mjx.step
"""MJX's own functions, also where `ksim.envs.engines` has put others in their place."""


class MjxEngine(AbstractEngine):
    """Physics by `mjx.step`.

    Only the fields that a step needs are carried from one substep to the next, and MJX's Data is rebuilt around them.
    This makes the scan's carry, and with it memory and copies, some twenty times smaller.
    """

    name = "mjx"
    title: ClassVar[str] = "MJX"
    """The engine's name in messages."""

    def __init__(
        self,
        model: PhysicsModel,
        needs: Sequence[str] = (),
        *,
        applies: Sequence[str] = (),
        motor_curve: MotorCurve | None = None,
        known: Sequence[str] = DERIVED_FIELDS,
    ) -> None:
        """Creates the engine; `make_engine` describes the arguments. `known` are the fields that `needs` may name."""
        self.model = model
        self._motor_curve = motor_curve
        self.derived, self.applied = carried_fields(needs, applies, known)
        try:
            # The device is given because MJX takes the first device of all processes, which only process 0 can address.
            self._model, self._data = self._put(jax.local_devices()[0])
        except (NotImplementedError, ValueError) as error:
            reason = explained(" ".join(str(error).split()).rstrip("."), model.mj_model)
            raise ConfigError(f"{self.title} cannot simulate the model: {reason}. Or set engine=mujoco.") from error
        reference = mujoco.MjData(model.mj_model)
        self._shapes = {name: np.shape(getattr(reference, name)) for name in self.derived}

    def _put(self, device: Device) -> tuple[mjx.Model, mjx.Data]:
        """MJX's model and data; the data lends its fields that are not part of a state.

        Raises:
            ConfigError, NotImplementedError, ValueError: The engine cannot simulate the model.
        """
        check_supported(self.model.mj_model)
        # The implementation is given because MJX_GPU_DEFAULT_WARP would choose another one, with other fields.
        model = mjx.put_model(self.model.mj_model, impl="jax", device=device)
        data = mjx.make_data(self.model.mj_model, impl="jax", device=device)
        check_touch(self.model.mj_model, data._impl.contact.dist.shape[0])
        return model, data

    def forward(self, state: PhysicsState, ctrl: Float[Array, " u"], overrides: Overrides) -> PhysicsState:
        return self._forward(self._data, state, ctrl, overrides)

    def substeps(
        self, state: PhysicsState, ctrl: Float[Array, " u"] | Float[Array, "s u"], overrides: Overrides
    ) -> PhysicsState:
        return self._substeps(self._data, state, ctrl, overrides)

    def _forward(self, data: mjx.Data, state: PhysicsState, ctrl: Array, overrides: Overrides) -> PhysicsState:
        state = self.without_applied_forces(state)
        return self._state(self._run(_forward, self._overridden(overrides), _load(data, state, ctrl)), state)

    def _substeps(self, data: mjx.Data, state: PhysicsState, ctrl: Array, overrides: Overrides) -> PhysicsState:
        model = self._overridden(overrides)

        def substep(state: PhysicsState, ctrl: Float[Array, " u"]) -> tuple[PhysicsState, None]:
            stepped = self._run(_step, self._at_velocity(model, state), _load(data, state, ctrl))
            return self._state(stepped, state), None

        ctrl_su = jnp.broadcast_to(ctrl, (self.model.decimation, ctrl.shape[-1]))
        # A nested scan keeps the program small: unrolled, it would be several times larger.
        return jax.lax.scan(substep, state, ctrl_su)[0]

    def _run(self, function: Callable[[mjx.Model, mjx.Data], mjx.Data], model: mjx.Model, data: mjx.Data) -> mjx.Data:
        return function(model, data)

    def _overridden(self, overrides: Overrides) -> mjx.Model:
        check_overrides(self.model.mj_model, overrides)
        return self._model.tree_replace(overrides)

    def _at_velocity(self, model: mjx.Model, state: PhysicsState) -> mjx.Model:
        """The model with the actuators' force ranges at their current velocities."""
        if self._motor_curve is None:
            return model
        places, gear = self.actuator_velocity_at()
        force_range = self._motor_curve(gear * state.qvel[places], model.actuator_forcerange)
        return model.replace(actuator_forcerange=force_range)

    def _state(self, data: mjx.Data, before: PhysicsState) -> PhysicsState:
        """The state in `data`, with the external forces of the state `before`."""
        return PhysicsState(
            **{name: getattr(data, name) for name in STATE_FIELDS},
            derived={name: self._derived(data, name) for name in self.derived},
            applied=before.applied,
            extra={name: getattr(data, name) for name in before.extra},
        )

    def _derived(self, data: mjx.Data, name: str) -> Array:
        # Fields that only some of MJX's implementations have are in `_impl`. Matrices get MuJoCo's flat shape.
        holder = data if name in _DATA_FIELDS else data._impl
        return jnp.reshape(getattr(holder, name), self._shapes[name])


def _load(data: mjx.Data, state: PhysicsState, ctrl: Float[Array, " u"]) -> mjx.Data:
    fields = {name: getattr(state, name) for name in STATE_FIELDS}
    return data.replace(**fields, ctrl=ctrl, **state.applied, **state.extra)
