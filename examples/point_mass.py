"""An environment without ksim's terms, trained by ksim: hold a mass on a line at 0.

python -m examples.point_mass
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

import ksim
from ksim.config import field

DT = 0.1
HORIZON = 50
LIMIT = 3.0


class PointMassState(eqx.Module):
    """Position, in m, velocity, in m/s, and steps so far."""

    position: Array
    velocity: Array
    time: Array


class PointMass(ksim.Environment):
    """A force in [-1, 1] N on a mass of 1 kg. Leaving [-3, 3] m ends the episode; it is truncated after 50 steps."""

    @property
    def action_size(self) -> int:
        return 1

    def reset(self, key: PRNGKeyArray) -> ksim.EnvState:
        position, velocity = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return self._state(PointMassState(position, velocity, jnp.int32(0)), jnp.zeros(()))

    def step(self, state: ksim.EnvState, action: Array) -> ksim.EnvState:
        inner = state.inner
        force = jnp.clip(action[0], -1.0, 1.0)
        velocity = inner.velocity + DT * force
        position = inner.position + DT * velocity
        reward = 0.1 * (1.0 - jnp.square(position) - 0.1 * jnp.square(velocity) - 0.01 * jnp.square(force))
        return self._state(PointMassState(position, velocity, inner.time + 1), reward)

    def _state(self, inner: PointMassState, reward: Array) -> ksim.EnvState:
        return ksim.EnvState(
            inner=inner,
            obs={"actor": jnp.stack([inner.position, inner.velocity])},
            reward=reward,
            terminated=jnp.abs(inner.position) > LIMIT,
            truncated=inner.time >= HORIZON,
            metrics={"distance": jnp.abs(inner.position)},
        )


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class PointMassConfig(ksim.DistributedPPOConfig):
    """Options of the point mass."""

    num_envs: int = field(64, help="parallel environments, over all devices")
    max_iterations: int | None = field(60, help="stop after this many iterations; null: no limit")
    learning_rate: float = field(3e-3, help="step size of Adam; the initial one if it is adaptive")
    desired_kl: float | None = field(
        None, help="target KL divergence of an adaptive learning rate; null: constant rate"
    )
    actor_sizes: list[int] = field([32], help="sizes of the hidden layers of the policy")
    critic_sizes: list[int] = field([32], help="sizes of the hidden layers of the value function")


class PointMassTask(ksim.DistributedPPOTask[PointMassConfig]):
    """A point mass that learns to stay at the origin."""

    def get_environment(self, engine: str, num_devices: int) -> ksim.Environment:
        return PointMass()


if __name__ == "__main__":
    PointMassTask.launch(PointMassConfig())
