"""Policies without memory."""

import jax.numpy as jnp

import ksim


class Memoryless(ksim.AbstractActorCritic):
    """A policy without memory."""

    def initial_carry(self):
        return None


class Still(Memoryless):
    """Learns nothing and sees nothing, for rollouts of which only the environment matters."""

    action_size: int = 1

    def __call__(self, obs, carry):
        zero = jnp.zeros(self.action_size)
        return ksim.ActorCriticOutput(distribution=ksim.Gaussian(zero, zero + 1), value=jnp.zeros(())), carry
