"""Hyperparameters for tests of the losses and the learner."""

import dataclasses

from ksim.ppo.losses import PPOHyperparameters

_DEFAULT = PPOHyperparameters(
    gamma=0.99,
    gae_lambda=0.95,
    clip_param=0.2,
    value_clip=None,
    value_loss_coef=1.0,
    entropy_coef=0.005,
    num_batches=4,
    num_passes=4,
    learning_rate=3e-4,
    desired_kl=None,
    min_learning_rate=1e-5,
    max_learning_rate=3e-3,
    normalize_observations=True,
    normalize_values=False,
    grad_sync_period=1,
    grad_sync_mode="accumulate",
    remat=False,
)


def make_hyper(**changes):
    return dataclasses.replace(_DEFAULT, **changes)
