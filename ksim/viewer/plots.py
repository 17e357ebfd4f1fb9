"""Live plots of rewards on the page."""

import time
from collections.abc import Sequence

import numpy as np
import viser
from viser import uplot

from ksim.viewer.frame import Frame

WINDOW_S = 10.0
"""Seconds of simulated time that the plot shows."""
REFRESH_S = 0.25
"""Seconds between two updates: each sends the whole plot."""
MAX_POINTS = 250
TOTAL, ALL = "total", "all terms"
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")


class RewardPlot:
    """A plot of the rewards of the last seconds: their sum, one of them, or all, as a menu says.

    Attributes:
        choice: The menu.
    """

    def __init__(self, server: viser.ViserServer, terms: Sequence[str], step_s: float) -> None:
        self._server, self._step_s, self._terms = server, step_s, [name for name in terms if name != TOTAL]
        self.choice = server.gui.add_dropdown("Plot", (TOTAL, ALL, *self._terms), initial_value=TOTAL)
        self._shown: list[str] = []
        self._next_s = 0.0
        self._plot: viser.GuiUplotHandle | None = None
        # Plots are made anew when their series change; in this folder each takes the place of the one before.
        self._folder = server.gui.add_folder("Reward per second", expand_by_default=True)

    def update(self, frames: Sequence[Frame]) -> None:
        """Plots the frames of the last seconds, the newest of which is the last; not every call is an update."""
        now_s = time.monotonic()
        if now_s < self._next_s or not frames:
            return
        self._next_s = now_s + REFRESH_S
        chosen = str(self.choice.value)
        names = [TOTAL, *self._terms] if chosen == ALL else [chosen]
        data = reward_columns(frames, names, self._step_s)
        if names == self._shown and self._plot is not None:
            self._plot.data = data
            return
        if self._plot is not None:
            self._plot.remove()
        self._shown = names
        series = [uplot.Series(label="time, s")]
        series += [uplot.Series(label=n, stroke=COLORS[i % len(COLORS)], width=1.5) for i, n in enumerate(names)]
        with self._folder:
            self._plot = self._server.gui.add_uplot(
                data, tuple(series), scales={"x": uplot.Scale(time=False, auto=True)}, aspect=1.8
            )


def reward_columns(frames: Sequence[Frame], names: Sequence[str], step_s: float) -> tuple[np.ndarray, ...]:
    """Seconds before the newest frame, and rewards by name, of at most `MAX_POINTS` frames up to the newest.

    Args:
        frames: One per control step, also over the ends of episodes.
        names: Names of rewards.
        step_s: Seconds per control step.
    """
    every = -(-len(frames) // MAX_POINTS)
    kept = frames[::-every][::-1]
    time_t = -step_s * every * np.arange(len(kept))[::-1]
    return (time_t, *(np.array([frame.rewards.get(name, 0.0) for frame in kept]) for name in names))
