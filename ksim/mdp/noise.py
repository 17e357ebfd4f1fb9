"""Noise on observations: errors that sensors add, and samples that they lose."""

import math
from abc import abstractmethod

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from ksim.checks import CheckedModule, check_field, ranged, required
from ksim.keys import NOISE_START, OBSERVATION_NOISE


class AbstractNoise(CheckedModule):
    """A random change to a measured quantity, drawn at every step.

    Noise with a memory is an `AbstractMemoryNoise`.
    """

    @abstractmethod
    def __call__(self, value: Array, key: PRNGKeyArray) -> Array:
        """The value with noise."""

    def init(self, value: Array, key: PRNGKeyArray) -> PyTree:
        """The memory at a reset."""
        return None

    def step(self, value: Array, memory: PyTree, key: PRNGKeyArray, dt: float) -> tuple[Array, PyTree]:
        """The value with noise, and the memory after it; `dt` seconds have passed since the last value, or none yet."""
        return self(value, key), memory

    def start(self, value: Array, key: PRNGKeyArray) -> tuple[Array, PyTree]:
        """The first value of an episode with noise, and the memory after it."""
        memory = self.init(value, jax.random.fold_in(key, NOISE_START))
        return self.step(value, memory, key, dt=0.0)


class AbstractMemoryNoise(AbstractNoise):
    """Noise with a memory, which implements `init` and `step`. A call gives the first value of an episode."""

    @abstractmethod
    def init(self, value: Array, key: PRNGKeyArray) -> PyTree:
        """The memory at a reset."""

    @abstractmethod
    def step(self, value: Array, memory: PyTree, key: PRNGKeyArray, dt: float) -> tuple[Array, PyTree]:
        """The value with noise, and the memory after it; `dt` seconds have passed since the last value, or none yet."""

    def __call__(self, value: Array, key: PRNGKeyArray) -> Array:
        return self.start(value, key)[0]


class UniformNoise(AbstractNoise):
    """Uniform noise from [-magnitude, magnitude], in the quantity's own unit, on every component."""

    magnitude: float

    def __call__(self, value: Array, key: PRNGKeyArray) -> Array:
        return value + jax.random.uniform(key, value.shape, minval=-self.magnitude, maxval=self.magnitude)


class GaussianNoise(AbstractNoise):
    """Normal noise with standard deviation `std`, in the quantity's own unit, on every component."""

    std: float

    def __call__(self, value: Array, key: PRNGKeyArray) -> Array:
        return value + self.std * jax.random.normal(key, value.shape)


class Quantized(AbstractNoise):
    """Rounds to whole multiples of `resolution`, in the quantity's own unit: an encoder's step."""

    resolution: float = required(above=0.0, rule="above 0")

    def __call__(self, value: Array, key: PRNGKeyArray) -> Array:
        return jnp.round(value / self.resolution) * self.resolution


class Clipped(AbstractNoise):
    """Saturates at `low` and `high`, in the quantity's own unit: a sensor's range."""

    low: float
    high: float

    def __check_init__(self) -> None:
        check_field(self, "low", self.low <= self.high, f"at most high ({self.high})")

    def __call__(self, value: Array, key: PRNGKeyArray) -> Array:
        return jnp.clip(value, self.low, self.high)


class UniformBias(AbstractMemoryNoise):
    """Adds a uniform number from [-magnitude, magnitude], in the quantity's own unit, drawn once per episode."""

    magnitude: float = required(least=0.0, rule="at least 0")

    def init(self, value: Array, key: PRNGKeyArray) -> Array:
        return jax.random.uniform(key, value.shape, minval=-self.magnitude, maxval=self.magnitude)

    def step(self, value: Array, memory: Array, key: PRNGKeyArray, dt: float) -> tuple[Array, Array]:
        return value + memory, memory


class GaussianBias(AbstractMemoryNoise):
    """Adds a normal number with standard deviation `std`, in the quantity's own unit, drawn once per episode."""

    std: float = required(least=0.0, rule="at least 0")

    def init(self, value: Array, key: PRNGKeyArray) -> Array:
        return self.std * jax.random.normal(key, value.shape)

    def step(self, value: Array, memory: Array, key: PRNGKeyArray, dt: float) -> tuple[Array, Array]:
        return value + memory, memory


class DriftingBias(AbstractMemoryNoise):
    """A bias that drifts as a random walk, like the bias of a gyro.

    std_per_root_s: standard deviation of the drift after one second, in the quantity's own unit; after t seconds it is
    sqrt(t) times as large. initial_std: standard deviation of the bias at the start of an episode.
    """

    std_per_root_s: float = required(least=0.0, rule="at least 0")
    initial_std: float = ranged(0.0, least=0.0, rule="at least 0")

    def init(self, value: Array, key: PRNGKeyArray) -> Array:
        return self.initial_std * jax.random.normal(key, value.shape)

    def step(self, value: Array, memory: Array, key: PRNGKeyArray, dt: float) -> tuple[Array, Array]:
        bias = memory + self.std_per_root_s * math.sqrt(dt) * jax.random.normal(key, value.shape)
        return value + bias, bias


class ScaleError(AbstractMemoryNoise):
    """Multiplies every component by a uniform number from [1 - magnitude, 1 + magnitude], drawn once per episode."""

    magnitude: float = required(least=0.0, rule="at least 0")

    def init(self, value: Array, key: PRNGKeyArray) -> Array:
        return 1 + jax.random.uniform(key, value.shape, minval=-self.magnitude, maxval=self.magnitude)

    def step(self, value: Array, memory: Array, key: PRNGKeyArray, dt: float) -> tuple[Array, Array]:
        return value * memory, memory


class DroppedSamples(AbstractMemoryNoise):
    """Drops a whole sample with this `probability` and repeats the last one received."""

    probability: float = required(least=0.0, most=1.0, rule="from 0 to 1")

    def init(self, value: Array, key: PRNGKeyArray) -> Array:
        return value

    def step(self, value: Array, memory: Array, key: PRNGKeyArray, dt: float) -> tuple[Array, Array]:
        arrived = jnp.where(jax.random.bernoulli(key, self.probability), memory, value)
        return arrived, arrived


class Chain(AbstractMemoryNoise):
    """Several noises, applied in order."""

    noises: tuple[AbstractNoise, ...]

    def init(self, value: Array, key: PRNGKeyArray) -> tuple[PyTree, ...]:
        memories = []
        for i, noise in enumerate(self.noises):
            value, memory = noise.start(value, jax.random.fold_in(key, i))
            memories.append(memory)
        return tuple(memories)

    def step(self, value: Array, memory: tuple[PyTree, ...], key: PRNGKeyArray, dt: float) -> tuple[Array, PyTree]:
        memories = []
        for i, noise in enumerate(self.noises):
            value, after = noise.step(value, memory[i], jax.random.fold_in(key, i), dt)
            memories.append(after)
        return value, tuple(memories)


def noise_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """The key of an observation's noise, from the term's own."""
    return jax.random.fold_in(key, OBSERVATION_NOISE)
