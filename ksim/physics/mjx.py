"""MuJoCo MJX: physics in pure JAX, on any accelerator."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from mujoco import mjx

from ksim.physics.engine import AbstractEngine, derived_fields, DERIVED_FIELDS
from ksim.physics.model import PhysicsModel
from ksim.types import Overrides, PhysicsState


class MjxEngine(AbstractEngine):
    """Substeps by `mjx.step`.

    Only what a step really needs is carried from one to the next; MJX's Data is rebuilt around it, which keeps the
    scan's state, and with it memory and copies, some twenty times smaller.
    """

    def __init__(self, model: PhysicsModel, needs: Sequence[str] = ()) -> None:
        self.model = model
        self.derived = derived_fields(needs, DERIVED_FIELDS)
        self._model = mjx.put_model(model.mj_model)
        self._data = mjx.make_data(model.mj_model)

    def forward(
        self, qpos: Float[Array, " q"], qvel: Float[Array, " v"], ctrl: Float[Array, " u"], overrides: Overrides
    ) -> PhysicsState:
        data = self._data.replace(qpos=qpos, qvel=qvel, ctrl=ctrl)
        data = mjx.forward(self._model.tree_replace(overrides), data)
        return self._state(data)

    def substeps(self, state: PhysicsState, ctrl: Float[Array, " u"], overrides: Overrides) -> PhysicsState:
        model = self._model.tree_replace(overrides)

        def substep(state: PhysicsState, _: None) -> tuple[PhysicsState, None]:
            data = self._data.replace(
                qpos=state.qpos,
                qvel=state.qvel,
                act=state.act,
                qacc_warmstart=state.qacc_warmstart,
                time=state.time,
                ctrl=ctrl,
            )
            return self._state(mjx.step(model, data)), None

        # Nested scans are the small form: unrolled, the program would be several times larger.
        return jax.lax.scan(substep, state, None, length=self.model.decimation)[0]

    def _state(self, data: mjx.Data) -> PhysicsState:
        return PhysicsState(
            qpos=data.qpos,
            qvel=data.qvel,
            act=data.act,
            qacc_warmstart=data.qacc_warmstart,
            time=data.time,
            derived={name: jnp.asarray(getattr(data, name)) for name in self.derived},
        )


