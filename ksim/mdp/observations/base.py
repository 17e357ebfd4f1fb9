"""The base class of observations, and observations made of others."""

import dataclasses
import inspect
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ksim.checks import check_rule, ranged, required
from ksim.errors import ConfigError
from ksim.keys import WRAPPED_OBSERVATION
from ksim.mdp.noise import AbstractNoise, noise_key
from ksim.mdp.term import Context, Term
from ksim.physics.rotations import random_turn, rotate


class AbstractObservation(Term):
    """A vector that the policy or the critic sees.

    Attributes:
        noise: Added to the value; None for the exact value.
    """

    noise: AbstractNoise | None = eqx.field(default=None, kw_only=True)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "noise" in inspect.get_annotations(cls):  # declared again, and so without its keyword
            cls.noise = eqx.field(default=cls.__dict__.get("noise"), kw_only=True)

    @property
    def mirror_s(self) -> float:
        """Time, in s, by which a mirrored robot's clock is ahead, for gaits whose sides alternate."""
        return 0.0

    def exact(self) -> "AbstractObservation":
        """The same observation of a perfect sensor: wrappers leave out the noise and the errors that they add."""
        return self

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, "..."]:
        """The exact value; of any shape, flattened into the group's vector."""


class _Wrapper(AbstractObservation):
    """Keeps the memory of the wrapped term, and that of its noise.

    A wrapper's memory is ((the term's, its noise's), its own). It implements `first` and `next` for its own.
    """

    observation: eqx.AbstractVar[AbstractObservation]

    @property
    def mirror_s(self) -> float:
        return self.observation.mirror_s

    def exact(self) -> AbstractObservation:
        return dataclasses.replace(self, observation=dataclasses.replace(self.observation.exact(), noise=None))

    @abstractmethod
    def first(self, value: Array, context: Context) -> PyTree:
        """The wrapper's own memory at a reset, from the observation's first value."""

    @abstractmethod
    def next(self, value: Array, memory: PyTree, context: Context) -> PyTree:
        """The wrapper's own memory after a step, from the observation's newest value."""

    def init(self, context: Context) -> PyTree:
        inner = self._inner(context)
        memory, noise, noise_memory = self.observation.init(inner), self.observation.noise, None
        value = self.observation(dataclasses.replace(inner, memory=memory))
        if noise is not None:
            value, noise_memory = noise.start(value, noise_key(inner.key))
        return (memory, noise_memory), self.first(value, context)

    def update(self, context: Context) -> PyTree:
        (memory, noise_memory), own = context.memory
        inner, noise = self._inner(context), self.observation.noise
        memory = self.observation.update(dataclasses.replace(inner, memory=memory))
        value = self.observation(dataclasses.replace(inner, memory=memory))
        if noise is not None:
            value, noise_memory = noise.step(value, noise_memory, noise_key(inner.key), context.dt)
        return (memory, noise_memory), self.next(value, own, context)

    def _inner(self, context: Context) -> Context:
        """The wrapped term's context: with a key of its own, for the wrapper draws from `context.key`."""
        return dataclasses.replace(context, key=jax.random.fold_in(context.key, WRAPPED_OBSERVATION), memory=None)


class History(_Wrapper):
    """The last `steps` values of an observation, newest first; after a reset, its first value repeated."""

    observation: AbstractObservation
    steps: int

    def __check_init__(self) -> None:
        check_rule(f"History of {self.steps} steps", self.steps >= 1, "of at least one")

    def first(self, value: Array, context: Context) -> Float[Array, "t n"]:
        return jnp.broadcast_to(jnp.ravel(value), (self.steps, value.size))

    def next(self, value: Array, memory: Float[Array, "t n"], context: Context) -> Float[Array, "t n"]:
        return jnp.concatenate([value.reshape(1, -1), memory[:-1]])

    def __call__(self, context: Context) -> Float[Array, "t n"]:
        return context.memory[1]


class Delayed(_Wrapper):
    """An observation delayed by some control steps, drawn once per episode.

    steps: the smallest and the largest delay.
    """

    observation: AbstractObservation
    steps: tuple[int, int] = (0, 2)

    def __check_init__(self) -> None:
        is_met = 0 <= self.steps[0] <= self.steps[1]
        check_rule(f"Delay of {self.steps} steps", is_met, "two numbers from 0, the smaller first")

    def first(self, value: Array, context: Context) -> tuple[Array, Array]:
        low, high = self.steps
        delay = jax.random.randint(context.key, (), low, high + 1)
        return jnp.broadcast_to(jnp.ravel(value), (high + 1, value.size)), delay

    def next(self, value: Array, memory: tuple[Array, Array], context: Context) -> tuple[Array, Array]:
        past_tn, delay = memory
        return jnp.concatenate([value.reshape(1, -1), past_tn[:-1]]), delay

    def __call__(self, context: Context) -> Float[Array, " n"]:
        past_tn, delay = context.memory[1]
        return past_tn[delay]


class Lagged(_Wrapper):
    """An observation behind a first-order low-pass filter, like a slow sensor or an estimator.

    time_constant_s: range of the time constant, in s, drawn uniformly once per episode. The filter starts from the
    first value of the episode.
    """

    observation: AbstractObservation
    time_constant_s: tuple[float, float] = ranged((0.02, 0.02), above=0.0)

    def first(self, value: Array, context: Context) -> tuple[Array, Array]:
        low, high = self.time_constant_s
        time_constant = jax.random.uniform(context.key, minval=low, maxval=high)
        return value, -jnp.expm1(-context.dt / time_constant)

    def next(self, value: Array, memory: tuple[Array, Array], context: Context) -> tuple[Array, Array]:
        filtered, share = memory
        return filtered + share * (value - filtered), share

    def __call__(self, context: Context) -> Float[Array, "..."]:
        return context.memory[1][0]


class Misaligned(_Wrapper):
    """Three-component vectors from a misaligned sensor: rotated by the same small rotation all episode.

    max_angle: largest angle, in rad. Angle and axis are drawn uniformly.
    """

    observation: AbstractObservation
    max_angle: float = required(least=0.0)

    def exact(self) -> AbstractObservation:
        return dataclasses.replace(super().exact(), max_angle=0.0)

    def first(self, value: Array, context: Context) -> tuple[Array, Array]:
        if value.shape[-1:] != (3,):
            raise ConfigError(
                f"Misaligned turns vectors of three components, but {type(self.observation).__name__} has shape "
                f"{value.shape}."
            )
        rotation_4 = random_turn(context.key, self.max_angle)
        return _turned(value, rotation_4), rotation_4

    def next(self, value: Array, memory: tuple[Array, Array], context: Context) -> tuple[Array, Array]:
        _, rotation_4 = memory
        return _turned(value, rotation_4), rotation_4

    def __call__(self, context: Context) -> Float[Array, "... 3"]:
        return context.memory[1][0]


def _turned(value: Float[Array, "... 3"], rotation_4: Float[Array, "4"]) -> Float[Array, "... 3"]:
    vector_n3 = value.reshape(-1, 3)
    return jax.vmap(rotate, in_axes=(0, None))(vector_n3, rotation_4).reshape(value.shape)
