"""MuJoCo MJX: physics in pure JAX, on CPUs and (untried) on GPUs and TPUs."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.physics.constants import check_overrides
from ksim.physics.engine import DERIVED_FIELDS, AbstractEngine, MotorCurve, applied_fields, derived_fields
from ksim.physics.mjx_support import check_supported, check_touch, explained
from ksim.physics.model import PhysicsModel
from ksim.physics.quiet_mjx import mjx
from ksim.types import Overrides, PhysicsState

_DATA_FIELDS = frozenset(field.name for field in dataclasses.fields(mjx.Data))


class MjxEngine(AbstractEngine):
    """Physics by `mjx.step`.

    Only the fields that a step needs are carried from one substep to the next, and MJX's Data is rebuilt around them.
    This makes the scan's carry, and with it memory and copies, some twenty times smaller.
    """

    name = "mjx"

    def __init__(
        self,
        model: PhysicsModel,
        needs: Sequence[str] = (),
        *,
        applies: Sequence[str] = (),
        motor_curve: MotorCurve | None = None,
    ) -> None:
        """Creates the engine.

        Args:
            needs: Derived fields that terms read.
            applies: Fields of external forces that terms write.
            motor_curve: The actuators' force ranges as a function of velocity; None if velocity does not limit them.
        """
        self.model = model
        self.applied = applied_fields(applies)
        self._motor_curve = motor_curve
        self.derived = derived_fields(needs, DERIVED_FIELDS)
        check_supported(model.mj_model)
        try:
            # The implementation is given because MJX_GPU_DEFAULT_WARP would choose another one, with other fields. The
            # device is given because MJX takes the first device of all processes, which only process 0 can address.
            where = {"impl": "jax", "device": jax.local_devices()[0]}
            self._model = mjx.put_model(model.mj_model, **where)
            self._data = mjx.make_data(model.mj_model, **where)
        except (NotImplementedError, ValueError) as error:
            reason = explained(" ".join(str(error).split()), model.mj_model)
            raise ConfigError(f"MJX cannot simulate the model: {reason}. Or set engine=mujoco.") from error
        check_touch(model.mj_model, self._data._impl.contact.dist.shape[0])
        reference = mujoco.MjData(model.mj_model)
        self._shapes = {name: np.shape(getattr(reference, name)) for name in self.derived}

    def forward(self, state: PhysicsState, ctrl: Float[Array, " u"], overrides: Overrides) -> PhysicsState:
        state = self.without_applied_forces(state)
        return self._state(mjx.forward(self._overridden(overrides), self._load(state, ctrl)), state)

    def substeps(
        self, state: PhysicsState, ctrl: Float[Array, " u"] | Float[Array, "s u"], overrides: Overrides
    ) -> PhysicsState:
        model = self._overridden(overrides)

        def substep(state: PhysicsState, ctrl: Float[Array, " u"]) -> tuple[PhysicsState, None]:
            data = mjx.step(self._at_velocity(model, state), self._load(state, ctrl))
            return self._state(data, state), None

        ctrl_su = jnp.broadcast_to(ctrl, (self.model.decimation, ctrl.shape[-1]))
        # A nested scan keeps the program small: unrolled, it would be several times larger.
        return jax.lax.scan(substep, state, ctrl_su)[0]

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

    def _load(self, state: PhysicsState, ctrl: Float[Array, " u"]) -> mjx.Data:
        return self._data.replace(
            qpos=state.qpos,
            qvel=state.qvel,
            act=state.act,
            qacc_warmstart=state.qacc_warmstart,
            time=state.time,
            ctrl=ctrl,
            **state.applied,
            **state.extra,
        )

    def _state(self, data: mjx.Data, before: PhysicsState) -> PhysicsState:
        """The state in `data`, with the external forces of the state `before`."""
        return PhysicsState(
            qpos=data.qpos,
            qvel=data.qvel,
            act=data.act,
            qacc_warmstart=data.qacc_warmstart,
            time=data.time,
            derived={name: self._derived(data, name) for name in self.derived},
            applied=before.applied,
            extra={name: getattr(data, name) for name in before.extra},
        )

    def _derived(self, data: mjx.Data, name: str) -> Array:
        # Fields that only some of MJX's implementations have are in `_impl`. Matrices get MuJoCo's flat shape.
        holder = data if name in _DATA_FIELDS else data._impl
        return jnp.reshape(getattr(holder, name), self._shapes[name])
