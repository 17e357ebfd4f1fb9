"""Pictures of noise: a signal before and after a sensor's noise."""

import dataclasses
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from docs.site.pictures.panels import COLORS, Draw, figure, finish
from ksim.mdp import noise

_DT, _NUM = 0.02, 150


def _episodes(term: noise.AbstractNoise, num: int) -> np.ndarray:
    """The signal with noise in several episodes, (time, episode)."""

    def episode(key: Any) -> Any:
        keys = jax.random.split(key, _NUM)
        first, memory = term.start(signal[0], keys[0])
        step = lambda memory, given: term.step(given[0], memory, given[1], _DT)[::-1]
        return jax.numpy.concatenate([first[None], jax.lax.scan(step, memory, (signal[1:], keys[1:]))[1]])

    signal = jax.numpy.asarray(_signal())
    return np.asarray(jax.vmap(episode)(jax.random.split(jax.random.key(1), num))).T


def _signal() -> np.ndarray:
    return np.sin(np.arange(_NUM) * _DT * 2 * np.pi / 1.5).astype(np.float32)


def _noisy(term: noise.AbstractNoise, num: int = 1, *, steps: bool = False) -> Draw:
    def draw() -> Figure:
        time = np.arange(_NUM) * _DT
        fig, (ax,) = figure(1.6)
        values = _episodes(term, num)
        for i, value in enumerate(values.T):
            label = "with noise" if num == 1 else f"episode {i + 1}"
            ax.plot(time, value, color=COLORS[i], lw=1.2, label=label, drawstyle="steps-post" if steps else "default")
        ax.plot(time, _signal(), color="black", lw=1.2, ls=(0, (4, 3)), label="exact")
        ax.legend(loc="upper right", fontsize=7.5, framealpha=0.8, edgecolor="none")
        finish(ax, f"time, s, for {_in_words(term)}", "observation")
        return fig

    return draw


def _in_words(term: noise.AbstractNoise) -> str:
    if isinstance(term, noise.Chain):
        return "Chain((" + ", ".join(_in_words(part) for part in term.noises) + "))"
    fields = ", ".join(f"{field.name}={getattr(term, field.name)}" for field in dataclasses.fields(term))
    return f"{type(term).__name__}({fields})"


PICTURES: dict[type, Draw] = {
    noise.UniformNoise: _noisy(noise.UniformNoise(magnitude=0.2)),
    noise.GaussianNoise: _noisy(noise.GaussianNoise(std=0.1)),
    noise.Quantized: _noisy(noise.Quantized(resolution=0.25), steps=True),
    noise.Clipped: _noisy(noise.Clipped(low=-0.5, high=0.8)),
    noise.UniformBias: _noisy(noise.UniformBias(magnitude=0.5), 3),
    noise.GaussianBias: _noisy(noise.GaussianBias(std=0.3), 3),
    noise.DriftingBias: _noisy(noise.DriftingBias(std_per_root_s=0.3), 3),
    noise.ScaleError: _noisy(noise.ScaleError(magnitude=0.4), 3),
    noise.DroppedSamples: _noisy(noise.DroppedSamples(probability=0.7), steps=True),
    noise.Chain: _noisy(noise.Chain((noise.UniformBias(magnitude=0.5), noise.GaussianNoise(std=0.05))), 2),
}
