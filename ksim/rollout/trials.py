"""Random motions of a robot from the starts of its MDP, in native MuJoCo."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from ksim.parallel.collectives import DEVICE_AXIS, bind_axis
from ksim.physics.contact_sizes import HOLD, NUM_STEPS, NUM_TRIALS, ContactSizes, largest_sizes
from ksim.physics.engine import AbstractEngine
from ksim.physics.model import PhysicsModel
from ksim.rollout.mdp_environment import Mdp, MdpEnvironment
from ksim.types import Overrides, PhysicsState


class _NoPhysics(AbstractEngine):
    """An engine that moves nothing, for the draws of a reset."""

    name = "none"

    def __init__(self, model: PhysicsModel, like: AbstractEngine) -> None:
        self.model, self.derived, self.applied = model, like.derived, like.applied

    def forward(self, state: PhysicsState, ctrl: Float[Array, " u"], overrides: Overrides) -> PhysicsState:
        data = mujoco.MjData(self.model.mj_model)
        derived = {name: jnp.zeros(np.shape(getattr(data, name))) for name in self.derived}
        return self.without_applied_forces(dataclasses.replace(state, derived=derived))

    def substeps(self, state: PhysicsState, ctrl: Array, overrides: Overrides) -> PhysicsState:
        return self.forward(state, ctrl, overrides)


def tried_sizes(mdp: Mdp, model: PhysicsModel) -> ContactSizes:
    """The most contacts and constraints of a robot that starts as its resets have it and acts at random."""
    env = MdpEnvironment(mdp, _NoPhysics(model, mdp.make_engine("mujoco", model)))

    def trial(key: Array) -> tuple[dict[str, Array], dict[str, Array], Float[Array, "t u"]]:
        reset_key, action_key = jax.random.split(key)
        inner: Any = env.reset(reset_key).inner
        actions = jax.random.uniform(action_key, (NUM_STEPS // HOLD, env.action_size), minval=-1.0, maxval=1.0)
        controls = jax.vmap(lambda action: mdp.control(action, model))(jnp.repeat(actions, HOLD, axis=0))
        physics = inner.physics
        return {"qpos": physics.qpos, "qvel": physics.qvel} | physics.extra, inner.overrides, controls

    trials = jax.jit(bind_axis(jax.vmap(trial), DEVICE_AXIS))
    starts, overrides, ctrl = jax.tree.map(np.asarray, trials(jax.random.split(jax.random.key(0), NUM_TRIALS)))
    return largest_sizes(model, starts, overrides, ctrl)
