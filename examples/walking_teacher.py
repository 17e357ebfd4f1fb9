"""The walking humanoid with privileged observations: teacher of examples.walking_student.

python -m examples.walking_teacher
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

import ksim

from .pretrained import PRETRAINED
from .walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask

Groups = Mapping[str, Mapping[str, ksim.AbstractObservation]]


class FloorFriction(ksim.AbstractObservation):
    """Sliding friction of the floor, which differs from environment to environment."""

    def __call__(self, context: ksim.Context) -> Float[Array, ""]:
        floor, model = context.model.names.index("geom", "floor"), context.model.mj_model
        return context.overrides.get("geom_friction", jnp.asarray(model.geom_friction, jnp.float32))[floor, 0]


def privileged(groups: Groups) -> dict[str, ksim.AbstractObservation]:
    """Observations that only a simulation has, without noise: all of the critic's, and the floor's friction."""
    return {**groups["critic"], "friction": FloorFriction()}


class HumanoidTeacherTask(HumanoidWalkingDistributedTask):
    """The walking humanoid, whose policy has observations that only a simulation has."""

    pretrained = PRETRAINED / "humanoid_teacher"

    def get_observations(self, physics_model: ksim.PhysicsModel) -> Groups:
        seen = privileged(super().get_observations(physics_model))
        return {"actor": seen, "critic": seen}


if __name__ == "__main__":
    HumanoidTeacherTask.launch(HumanoidWalkingDistributedConfig())
