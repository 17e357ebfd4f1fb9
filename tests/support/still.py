"""A policy that learns nothing and sees nothing, for rollouts of which only the environment matters."""

import jax.numpy as jnp

import ksim


class Still(ksim.AbstractActorCritic):
    action_size: int = 1

    def initial_carry(self):
        return None

    def __call__(self, obs, carry):
        zero = jnp.zeros(self.action_size)
        return ksim.ActorCriticOutput(distribution=ksim.Gaussian(zero, zero + 1), value=jnp.zeros(())), carry
