"""Losses for left-right symmetric robots, whose policies should equal their mirror images."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.mirror import Mirror
from ksim.nn.actor_critic import AbstractActorCritic, evaluate_sequences
from ksim.ppo.losses import Minibatch, Normalize, PPOHyperparameters, ppo_loss
from ksim.types import Metrics, Observation, Trajectory

_FIX = "Set symmetry=off, or change get_mirror."
SymmetryMode = Literal["augment", "loss"]


@dataclasses.dataclass(frozen=True, eq=False)
class SymmetricLoss:
    """PPO's loss for a symmetric robot, by one of the two methods of Mittal et al. 2024 (arXiv:2403.04359).

    `augment`: each minibatch also holds the mirror image of every step, with the log-density, the advantage and the
    value target of the step itself. This is exact for a symmetric policy, and the policy stays nearly symmetric.
    `loss`: `coef` times the mean squared difference of two actions is added: the policy's mean action, and the image
    of its mean action for the image of the observation. After Yu et al. 2018 (arXiv:1801.08093), eq. 5.

    Attributes:
        mirror: Returns the mirror of raw observations and actions; called when the loss is traced.
        mode: `augment` or `loss`.
        coef: Weight of the difference in `loss`.
    """

    mirror: Callable[[], Mirror]
    mode: SymmetryMode
    coef: float = 1.0

    def loss_inputs(self, trajectory: Trajectory, normalize: Normalize) -> Observation:
        """The images of a rollout's observations, normalised."""
        return normalize(self.mirror().observe(trajectory.obs))

    def __call__(
        self, network: AbstractActorCritic, batch: Minibatch, hyper: PPOHyperparameters
    ) -> tuple[Float[Array, ""], Metrics]:
        """The loss of a minibatch. Its field `loss_inputs` is the result of the method `loss_inputs`."""
        if self.mode == "augment":
            image = dataclasses.replace(batch, obs=batch.loss_inputs, action=self.mirror().action(batch.action))
            total, metrics = ppo_loss(network, batch, hyper)
            of_images, image_metrics = ppo_loss(network, image, hyper)
            total = (total + of_images) / 2
            # The learning rate follows the KL of the original steps. The KL of the images also contains the acting
            # policy's asymmetry, which a smaller rate would not lower.
            return total, metrics | {"policy/kl_of_images": image_metrics["policy/kl"], "loss/total": total}
        total, metrics = ppo_loss(network, batch, hyper)
        mean, of_image = (
            evaluate_sequences(network, obs, batch.carry, batch.done, remat=hyper.remat).distribution.mean
            for obs in (batch.obs, batch.loss_inputs)
        )
        gap = jnp.mean(jnp.square(of_image - self.mirror().action(mean)))
        total = total + self.coef * gap
        return total, metrics | {"loss/symmetry": gap, "loss/total": total}


def check_without_memory(network: AbstractActorCritic) -> None:
    """Raises ConfigError if the network (or its shapes) has a memory, whose mirror image is unknown."""
    if jax.tree.leaves(eqx.filter_eval_shape(lambda network: network.initial_carry(), network)):
        raise ConfigError(
            "symmetry needs a network without memory, since the mirror image of a memory is not known. Set model=mlp, "
            "or symmetry=off."
        )


def check_mirror(mirror: Mirror, obs_sizes: Mapping[str, int], action_size: int) -> None:
    """Raises ConfigError unless a mirror fits the observation groups' lengths and the action's length."""
    images = {f"observation group {group!r}": image for group, image in mirror.observations.items()}
    sizes = {f"observation group {group!r}": size for group, size in obs_sizes.items()}
    images, sizes = images | {"actions": mirror.action}, sizes | {"actions": action_size}
    for name, size in sizes.items():
        if name not in images or images[name].index.size != size:
            found = "none" if name not in images else f"one of {images[name].index.size}"
            raise ConfigError(f"The mirror must have an image of {name}, of {size} numbers, but has {found}. {_FIX}")
        if not images[name].is_involution:
            raise ConfigError(f"The mirror image of the mirror image of {name} must be {name} again. {_FIX}")
