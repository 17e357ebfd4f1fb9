"""Environments and rollouts of batches of them."""

from ksim.rollout.environment import Environment as Environment, Shown as Shown
from ksim.rollout.unroll import initial_env_states as initial_env_states, unroll as unroll
