"""MuJoCo MJX: physics in pure JAX, on any accelerator."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float
from mujoco import mjx

from ksim.physics.engine import DERIVED_FIELDS, AbstractEngine, derived_fields
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
        reference = mujoco.MjData(model.mj_model)
        self._shapes = {name: np.shape(getattr(reference, name)) for name in self.derived}

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
            derived={name: self._derived(data, name) for name in self.derived},
        )

    def _derived(self, data: mjx.Data, name: str) -> Array:
        # Fields that not all of MJX's implementations have live in `_impl`; matrices have MuJoCo's flat shape.
        holder = data if name in {field.name for field in dataclasses.fields(data)} else data._impl
        return jnp.reshape(getattr(holder, name), self._shapes[name])
