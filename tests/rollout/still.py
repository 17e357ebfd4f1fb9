"""A policy that learns nothing and sees nothing, for rollouts of which only the environment matters."""

import jax.numpy as jnp

import ksim


class Still(ksim.AbstractActorCritic):
    def initial_carry(self):
        return None

    def __call__(self, obs, carry):
        zero = jnp.zeros(1)
        return ksim.ActorCriticOutput(distribution=ksim.Gaussian(zero, zero + 1), value=jnp.zeros(())), carry
