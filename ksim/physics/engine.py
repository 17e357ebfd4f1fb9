"""The seam between the MDP and the physics, and the one recipe of a control step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.physics.model import PhysicsModel
from ksim.types import ConfigError, Overrides, PhysicsState

ALWAYS_DERIVED = ("sensordata",)
"""Derived fields that every state has, whether a term asks for them or not."""


class AbstractEngine(ABC):
    """Physics of one simulation as pure functions; under `jax.vmap`, of many.

    Attributes:
        model: The compiled model.
        derived: Derived fields that states carry, by their names in MjData.
    """

    model: PhysicsModel
    derived: tuple[str, ...]

    @abstractmethod
    def forward(
        self, qpos: Float[Array, " q"], qvel: Float[Array, " v"], ctrl: Float[Array, " u"], overrides: Overrides
    ) -> PhysicsState:
        """The state at time 0 with these positions and velocities, its derived fields those of this very state."""

    @abstractmethod
    def substeps(self, state: PhysicsState, ctrl: Float[Array, " u"], overrides: Overrides) -> PhysicsState:
        """The state after one control step, that is `model.decimation` substeps, with constant controls."""


def control_step(
    engine: AbstractEngine,
    state: PhysicsState,
    ctrl: Float[Array, " u"],
    overrides: Overrides,
    events: Sequence[Callable[[PhysicsState], PhysicsState]] = (),
) -> PhysicsState:
    """One control step of any engine: events strike, then the substeps run under the actuators' controls."""
    for event in events:
        state = event(state)
    return engine.substeps(state, jnp.asarray(ctrl, jnp.float32), overrides)


def derived_fields(needs: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The derived fields to carry: what terms need, each once, and what always is there.

    Raises:
        ConfigError: A term needs a field that the engines do not give.
    """
    wanted = tuple(dict.fromkeys([*ALWAYS_DERIVED, *needs]))
    for name in wanted:
        if name not in known:
            raise ConfigError(f"No engine gives the derived field {name!r}. Known fields: {', '.join(sorted(known))}.")
    return wanted


DERIVED_FIELDS = (
    "sensordata",
    "xpos",
    "xquat",
    "xipos",
    "site_xpos",
    "site_xmat",
    "geom_xpos",
    "subtree_com",
    "cinert",
    "cvel",
    "actuator_force",
    "qfrc_actuator",
)
"""Fields of MjData that every engine can give."""
