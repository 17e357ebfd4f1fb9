"""Observations made of another one: seen late, or together with its past."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Float, PyTree

from ksim.mdp.noise import AbstractNoise
from ksim.mdp.observations.base import AbstractObservation
from ksim.mdp.term import Context
from ksim.types import ConfigError


class _Wrapper(AbstractObservation):
    """Passes on what the wrapped term needs of the model; one with a memory of its own cannot be wrapped."""

    observation: eqx.AbstractVar[AbstractObservation]

    @property
    def needs(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.observation.needs

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        self.observation.edit_spec(spec)

    def _value(self, context: Context) -> Float[Array, " n"]:
        if self.observation.init(context) is not None:
            raise ConfigError(f"{type(self.observation).__name__} has a memory, and {type(self).__name__} wraps none.")
        return jnp.ravel(self.observation(context))


class History(_Wrapper):
    """The last `steps` values of an observation, the newest first; after a reset, its first value repeated.

    observation: the term, without a memory; its own noise is not added. noise: added to all values anew at every step.
    """

    observation: AbstractObservation
    steps: int
    noise: AbstractNoise | None = None

    def __check_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"History of {self.steps} steps must be of at least one.")

    def init(self, context: Context) -> PyTree:
        value = self._value(context)
        return jnp.broadcast_to(value, (self.steps, *value.shape))

    def update(self, context: Context) -> PyTree:
        newest = self._value(context)
        return jnp.concatenate([newest[None], context.memory[:-1]])

    def __call__(self, context: Context) -> Float[Array, "t n"]:
        return context.memory


class Delayed(_Wrapper):
    """An observation as it was some control steps ago; the delay is drawn once per episode.

    observation: the term, without a memory; its own noise is not added. steps: the smallest and the largest delay.
    """

    observation: AbstractObservation
    steps: tuple[int, int] = (0, 2)
    noise: AbstractNoise | None = None

    def __check_init__(self) -> None:
        if not 0 <= self.steps[0] <= self.steps[1]:
            raise ConfigError(f"Delay of {self.steps} steps must be a smallest and a largest number, from 0 upwards.")

    def init(self, context: Context) -> PyTree:
        value = self._value(context)
        low, high = self.steps
        delay = jax.random.randint(context.key, (), low, high + 1)
        return jnp.broadcast_to(value, (high + 1, *value.shape)), delay

    def update(self, context: Context) -> PyTree:
        past_tn, delay = context.memory
        newest = self._value(context)
        return jnp.concatenate([newest[None], past_tn[:-1]]), delay

    def __call__(self, context: Context) -> Float[Array, " n"]:
        past_tn, delay = context.memory
        return past_tn[delay]
