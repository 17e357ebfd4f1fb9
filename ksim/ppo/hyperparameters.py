"""Hyperparameters of PPO, separate from the command line's config."""

from dataclasses import dataclass

from ksim.types import GradSyncMode


@dataclass(frozen=True, kw_only=True)
class PPOHyperparameters:
    """Hyperparameters of PPO.

    Attributes:
        gamma: Discount per control step.
        gae_lambda: Decay of generalized advantage estimation.
        clip_param: Half-width of the clipped probability ratio.
        value_clip: Half-width of the clipped value, in the network's units; None for the plain squared error.
        value_loss_coef: Weight of the value loss.
        entropy_coef: Weight of the entropy bonus.
        num_batches: Minibatches per pass.
        num_passes: Passes over each rollout.
        learning_rate: The optimizer's step size, or the initial value of an adaptive one.
        desired_kl: Target of an adaptive learning rate for the KL divergence at the end of an iteration; None for a
            constant rate.
        min_learning_rate: Lower bound of an adaptive rate.
        max_learning_rate: Upper bound of an adaptive rate.
        normalize_observations: Whether the running statistics of observations are learned and applied.
        normalize_values: Whether the network's values are normalised by running statistics of their targets.
        grad_sync_period: Minibatches per synchronisation of the gradients.
        grad_sync_mode: `accumulate` gradients between synchronisations, or take `local` optimizer steps.
        remat: Whether to recompute activations in the backward pass, step by step, to save memory.
    """

    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_param: float = 0.2
    value_clip: float | None = None
    value_loss_coef: float = 1.0
    entropy_coef: float = 0.005
    num_batches: int = 4
    num_passes: int = 4
    learning_rate: float = 3e-4
    desired_kl: float | None = None
    min_learning_rate: float = 1e-5
    max_learning_rate: float = 3e-3
    normalize_observations: bool = True
    normalize_values: bool = False
    grad_sync_period: int = 1
    grad_sync_mode: GradSyncMode = "accumulate"
    remat: bool = False

    @property
    def syncs_per_iteration(self) -> int:
        """Gradient synchronisations per iteration, including one for an incomplete last period."""
        return -(-self.num_batches * self.num_passes // self.grad_sync_period)
