"""The interface between the MDP and the physics, and the control step that all engines share."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.errors import ConfigError, near_misses
from ksim.physics.model import PhysicsModel
from ksim.types import Metrics, Overrides, PhysicsState

MotorCurve = Callable[[Any, Any], Any]
"""(velocity (..., u) in rad/s, force range (..., u, 2)) -> the range at that velocity; for numpy and JAX arrays."""

Strike = Callable[[PhysicsState, Overrides], tuple[PhysicsState, Overrides]]
"""The effect of an event on the physics state and on the model fields that differ in this simulation."""

STATE_FIELDS = ("qpos", "qvel", "act", "qacc_warmstart", "time")
"""Fields of `PhysicsState` that every simulation resumes from, by their names in MjData."""
ALWAYS_DERIVED = ("sensordata",)
"""Derived fields that every state has, whether or not a term needs them."""


class AbstractEngine(ABC):
    """Physics of one simulation as pure functions; under `jax.vmap`, of many.

    Attributes:
        name: Value of the option `engine` that selects it.
        derived: Names in MjData of the derived fields that states carry.
        applied: Names in MjData of the fields of external forces that states carry.
    """

    name: ClassVar[str]
    model: PhysicsModel
    derived: tuple[str, ...]
    applied: tuple[str, ...]

    @abstractmethod
    def forward(self, state: PhysicsState, ctrl: Float[Array, " u"], overrides: Overrides) -> PhysicsState:
        """The state without external forces and with up-to-date derived fields.

        `state` is from `PhysicsModel.start`, or a modified one; its derived fields are not read.
        """

    @abstractmethod
    def substeps(
        self, state: PhysicsState, ctrl: Float[Array, " u"] | Float[Array, "s u"], overrides: Overrides
    ) -> PhysicsState:
        """The state after `model.decimation` substeps (one control step); `ctrl` is constant or one row per substep."""

    def metrics(self, state: PhysicsState) -> Metrics:
        """Metrics of the control step that led to the state, averaged over all control steps of an iteration."""
        return {}

    def problem(self, metrics: Mapping[str, float]) -> str:
        """A warning about an iteration with these metrics, with its fix; empty if there is none."""
        return ""

    def without_applied_forces(self, state: PhysicsState) -> PhysicsState:
        """The state without external forces."""
        shapes = {"xfrc_applied": (self.model.mj_model.nbody, 6), "qfrc_applied": (self.model.mj_model.nv,)}
        return dataclasses.replace(state, applied={name: jnp.zeros(shapes[name]) for name in self.applied})

    def actuator_velocity_at(self) -> tuple[np.ndarray, np.ndarray]:
        """For each actuator, the index in qvel of its joint's velocity, and its gear."""
        names = self.model.names
        return names.joint_qvel(names.actuator_joints()), self.model.mj_model.actuator_gear[:, 0]


def control_step(
    engine: AbstractEngine,
    state: PhysicsState,
    ctrl: Float[Array, " u"] | Float[Array, "s u"],
    overrides: Overrides,
    events: Sequence[Strike] = (),
) -> tuple[PhysicsState, Overrides]:
    """One control step of any engine: events are applied, then the substeps run with the actuators' controls.

    Returns:
        The new state, and the overrides as changed by the events.
    """
    state = engine.without_applied_forces(state)
    for strike in events:
        state, overrides = strike(state, overrides)
    return engine.substeps(state, jnp.asarray(ctrl, jnp.float32), overrides), overrides


APPLIED_FIELDS = ("xfrc_applied", "qfrc_applied")
"""Fields of MjData through which events can push bodies or joints, in every engine."""


def carried_fields(
    needs: Sequence[str], applies: Sequence[str], known: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The derived fields and the fields of external forces that states carry, without duplicates.

    Raises:
        ConfigError: A term needs a derived field that is not `known`, or applies a force that engines do not support.
    """
    derived, applied = dict.fromkeys([*ALWAYS_DERIVED, *needs]), dict.fromkeys(applies)
    for use, wanted, names in (("takes the applied", applied, APPLIED_FIELDS), ("gives the derived", derived, known)):
        for name in wanted:
            if name not in names:
                raise ConfigError(f"No engine {use} field {name!r}. {near_misses(name, names)}")
    return tuple(derived), tuple(applied)


DERIVED_FIELDS = (
    *("sensordata", "xpos", "xquat", "xipos", "site_xpos", "site_xmat", "geom_xpos", "subtree_com", "cinert", "cvel"),
    *("actuator_force", "qfrc_actuator"),
)
"""Fields of MjData that every engine can provide."""
