"""Environments and rollouts of batches of them."""

from ksim.rollout.environment import Environment as Environment, Shown as Shown
from ksim.rollout.starts import initial_env_states as initial_env_states
from ksim.rollout.unroll import unroll as unroll
