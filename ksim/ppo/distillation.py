"""Distillation: a student that observes less learns, on its own rollouts, the actions of a teacher."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.learn.teacher import Teacher
from ksim.nn.actor_critic import AbstractActorCritic, evaluate_sequences
from ksim.ppo.losses import Minibatch, Normalize, PPOHyperparameters, approximate_kl, value_loss
from ksim.types import Metrics, Trajectory

LINE = {"imitation": "loss/imitation"}
"""Metrics on the line of each iteration, by label."""
PLOTS = {
    "squared distance to the teacher's action": "loss/imitation",
    "explained variance of the returns": "rollout/explained_variance",
}
"""Panels of the learning curves, by their titles."""


@dataclasses.dataclass(frozen=True, eq=False)
class DistillationLoss:
    """The loss of DAgger, Ross et al. 2011 (arXiv:1011.0686), over the rollouts of the student itself.

    The mean squared difference between the deterministic actions of student and teacher, for the observations that the
    student's actions lead to. The critic learns the student's returns as in PPO, so that PPO can continue from there.

    Attributes:
        teacher: Returns the teacher; called when the loss is traced.
    """

    teacher: Callable[[], Teacher]

    def loss_inputs(self, trajectory: Trajectory, normalize: Normalize) -> Float[Array, "e t a"]:
        """The teacher's action for every observation of a rollout."""
        return self.teacher().actions(trajectory.obs)

    def __call__(
        self, network: AbstractActorCritic, batch: Minibatch, hyper: PPOHyperparameters
    ) -> tuple[Float[Array, ""], Metrics]:
        """The loss of a minibatch. Its field `loss_inputs` is the result of the method `loss_inputs`."""
        output = evaluate_sequences(network, batch.obs, batch.carry, batch.done, remat=hyper.remat)
        imitation = jnp.mean(jnp.square(output.distribution.mode() - batch.loss_inputs))
        value = value_loss(output.value, batch.value, batch.value_target, hyper.value_clip)
        total = imitation + hyper.value_loss_coef * value
        return total, {
            "loss/imitation": imitation,
            "loss/value": value,
            "loss/total": total,
            "policy/kl": approximate_kl(output.distribution.log_prob(batch.action) - batch.log_prob),
            "policy/std": jnp.mean(output.distribution.std),
        }
