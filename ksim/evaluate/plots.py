"""Plots of a run and of one evaluated episode, as PNG files."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from ksim.evaluate.curves import Curves, thinned
from ksim.evaluate.evaluator import Recording
from ksim.host.files import whole_file
from ksim.log.logger import error_labels

DPI = 110
CONTACT_N = 1.0
"""Force above which a foot counts as in contact, in N, as in ksim's gait terms."""
MAX_POINTS = 500
"""Maximum number of points of a training curve; longer ones are averaged."""
LEARNING = {"KL divergence of an update": "policy/kl", "learning rate": "policy/learning_rate"}
"""Metrics that most algorithms report, by the titles of their panels. Drawn if a run has them."""
LINES = {
    "training": "training, with exploration noise",
    "evaluation": "evaluation of the deterministic policy, 95 % confidence",
}
"""Meanings of the thin line and of the line with points."""

Drawing = Callable[[Recording, Path], bool]
ScalingPoint = tuple[int, tuple[Sequence[float], Sequence[float], Sequence[float]]]
"""Number of devices, with repeated measurements of speed (env steps/s), efficiency and share of time in collectives."""


class Panel(NamedTuple):
    """A panel of learning curves: a metric of training, a figure of the evaluations, or both."""

    title: str
    metric: str | None = None
    figure: str | None = None


def learning_panels(runs: Sequence[Curves], of_learner: Mapping[str, str] | None = None) -> list[Panel]:
    """The panels that show how runs learned, the most telling first.

    Args:
        of_learner: Additional metrics of the algorithm to plot, by the title of their panel.
    """
    errors = error_labels(sorted({name for run in runs for name in run.metrics if name.startswith("error/")}))
    learning = {**LEARNING, **(of_learner or {})}
    has_survival = any(len(run.evaluated("survival")[1]) for run in runs)
    return [
        *(Panel(words, name, name) for name, words in errors.items()),
        *([Panel("share of episodes survived", figure="survival")] if has_survival else []),
        Panel("return", "episode/return", "return"),
        Panel("length of episodes, control steps", "episode/length", "length"),
        Panel("environment steps per second", "time/env_steps_per_s"),
        *(Panel(title, name) for title, name in learning.items() if any(name in run.metrics for run in runs)),
    ]


def plot_learning(runs: Sequence[Curves], path: Path, of_learner: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Plots all panels of learning over environment steps in one image, for one or several runs.

    Training is a thin line. Evaluations are points on a line, with shaded 95 % confidence intervals.

    Returns:
        Each panel by its title, as a PNG that is readable on a phone's screen; none if `path` is not a PNG.
    """
    panels = learning_panels(runs, of_learner)
    figure, all_axes = _figure(len(panels), columns=3, dpi=1.5 * DPI)
    figure.suptitle(", ".join(filter(None, (runs[0].name, runs[0].date))) if len(runs) == 1 else "", fontsize=10)
    for axes, panel in zip(all_axes, panels, strict=True):
        _plot_panel(axes, runs, panel)
    handles = [Line2D([], [], color="black", linewidth=0.8, label=LINES["training"])]
    if any(run.evaluations for run in runs):
        label = LINES["evaluation"]
        handles.append(Line2D([], [], color="black", marker="o", markersize=4, linewidth=1.5, label=label))
    if len(runs) > 1:
        names = [" ".join(filter(None, (run.name, run.date))) for run in runs]
        handles += [Patch(color=color_of(i), label=name) for i, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8)
    _save(figure, path)
    if path.suffix != ".png":
        return {}
    return {panel.title: _cropped(axes) for axes, panel in zip(all_axes, panels, strict=True)}


def _cropped(axes: Axes) -> bytes:
    """A panel of a figure that was drawn, as a PNG: drawing is slow, so that no panel is drawn a second time."""
    canvas = cast(FigureCanvasAgg, axes.figure.canvas)
    pixels = np.asarray(canvas.buffer_rgba())
    box = (axes.get_tightbbox(canvas.get_renderer()) or axes.bbox).padded(4)
    left, right = (int(np.clip(x, 0, pixels.shape[1])) for x in (box.x0, box.x1))
    top, bottom = (int(np.clip(pixels.shape[0] - y, 0, pixels.shape[0])) for y in (box.y1, box.y0))
    png = io.BytesIO()
    imsave(png, pixels[top:bottom, left:right], format="png")
    return png.getvalue()


def color_of(run: int) -> str:
    """The colour of a run in plots of several, as `#rrggbb`."""
    return to_hex(f"C{run % 10}")


def _plot_panel(axes: Axes, runs: Sequence[Curves], panel: Panel) -> None:
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel("environment steps", fontsize=8)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 60k, 2M
    for i, run in enumerate(runs):
        _plot_curve(axes, run, panel.metric, panel.figure, color=color_of(i))


def _plot_curve(axes: Axes, run: Curves, metric: str | None, evaluated: str | None, color: str) -> None:
    steps, estimates = run.evaluated(evaluated) if evaluated else (np.zeros(0), [])
    if metric in run.metrics:
        x, values = thinned(run.env_steps, MAX_POINTS), thinned(run.metrics[metric], MAX_POINTS)
        # In many iterations no episode ends, so a line with NaN would be mostly gaps.
        has_value = np.isfinite(values)
        marker = "." if has_value.sum() == 1 else ""
        alpha = 0.6 if estimates else 1.0
        axes.plot(x[has_value], values[has_value], marker=marker, color=color, linewidth=0.8, alpha=alpha)
    if not estimates:
        return
    mean = np.array([x.mean for x in estimates])
    low, high = (np.array([getattr(x, edge) for x in estimates]) for edge in ("low", "high"))
    axes.plot(steps, mean, "o-", color=color, linewidth=1.5, markersize=4, markeredgecolor="black")
    axes.fill_between(steps, low, high, color=color, alpha=0.25, linewidth=0)
    # With a single evaluation the shaded interval has no width, so error bars are drawn as well.
    axes.errorbar(steps, mean, np.nan_to_num([mean - low, high - mean]), fmt="none", color=color, capsize=2)


def plot_velocity(recording: Recording, path: Path) -> bool:
    """Plots commanded and measured velocity of the base over one episode; returns False without a velocity command."""
    if not len(recording.commanded_velocity) or not len(recording.velocity):
        return False
    time = _times(recording)
    figure, all_axes = _figure(3, columns=1)
    names = ("forward, m/s", "leftward, m/s", "yaw rate, rad/s")
    for i, (axes, name) in enumerate(zip(all_axes, names, strict=True)):
        axes.plot(time, recording.velocity[:, i], linewidth=0.8, label="measured")
        axes.plot(time, recording.commanded_velocity[:, i], linewidth=1.5, label="commanded")
        axes.set_ylabel(name)
    all_axes[0].legend(fontsize=8, loc="upper right")
    all_axes[-1].set_xlabel("s")
    _save(figure, path)
    return True


def plot_gait(recording: Recording, path: Path) -> bool:
    """Plots contacts and air times of the feet; returns False if the feet have no touch sensors."""
    if not recording.touch or recording.dt is None:
        return False
    figure, (contact_axes, air_axes) = _figure(2, columns=1)
    for i, (name, force) in enumerate(recording.touch.items()):
        is_down = force > CONTACT_N
        bars = [(start * recording.dt, (stop - start) * recording.dt) for start, stop in stretches(is_down)]
        contact_axes.broken_barh(bars, (i - 0.4, 0.8), facecolors=f"C{i}")
        # The start or end of the episode cuts a flight short: its length is unknown.
        flights = [(a, b) for a, b in stretches(~is_down) if a > 0 and b < len(is_down)]
        landing_s = [stop * recording.dt for _, stop in flights]
        air_axes.plot(landing_s, [(b - a) * recording.dt for a, b in flights], "o-", markersize=3, label=name)
    contact_axes.set_yticks(range(len(recording.touch)), list(recording.touch), fontsize=8)
    contact_axes.set_title("in contact", fontsize=9)
    air_axes.set_title("time in the air before each landing, s", fontsize=9)
    air_axes.legend(fontsize=8, loc="upper right")
    end_s = len(recording.reward) * recording.dt
    for axes in (contact_axes, air_axes):
        axes.set_xlim(0, end_s)
    air_axes.set_xlabel("s")
    _save(figure, path)
    return True


def plot_rewards(recording: Recording, path: Path) -> bool:
    """Plots each reward over one episode, per second; only the total reward if the terms are unknown."""
    time = _times(recording)
    terms = {n.removeprefix("reward/"): x for n, x in recording.metrics.items() if n.startswith("reward/")}
    figure, (axes,) = _figure(1, columns=1)
    if recording.dt is not None:
        axes.plot(time, recording.reward / recording.dt, color="black", linewidth=1.2, label="all")
        axes.set_ylabel("reward per second")
    else:
        axes.plot(time, recording.reward, color="black", linewidth=1.2, label="reward per step")
    # Largest first. The last step is left out: a penalty there would dwarf everything else.
    for i, name in enumerate(sorted(terms, key=lambda n: -np.abs(terms[n][:-1]).sum())):
        axes.plot(time, terms[name], linewidth=0.8, color=f"C{i % 10}", linestyle=("-", "--")[i // 10 % 2], label=name)
    inner = np.concatenate([x[:-1] for x in terms.values()] or [recording.reward])
    if terms and inner.size and np.isfinite(inner).all():
        total = recording.reward[:-1] / (recording.dt or 1.0)
        low, high = min(inner.min(), total.min()), max(inner.max(), total.max())
        axes.set_ylim(low - 0.05 * (high - low) - 1e-3, high + 0.05 * (high - low) + 1e-3)
    axes.set_xlabel("s" if recording.dt is not None else "control step")
    figure.set_figheight(2.8 + 0.15 * len(axes.lines) / 2)
    figure.legend(fontsize=8, ncols=2, loc="outside lower center")
    _save(figure, path)
    return True


EPISODE_PLOTS: dict[str, Drawing] = {"velocity": plot_velocity, "gait": plot_gait, "rewards": plot_rewards}


def plot_episode(recording: Recording, directory: Path) -> list[Path]:
    """Draws all plots of an episode that have data; returns their paths."""
    paths = {name: directory / f"{name}.png" for name in EPISODE_PLOTS}
    return [path for name, path in paths.items() if EPISODE_PLOTS[name](recording, path)]


def plot_scaling(curves: Mapping[str, Sequence[ScalingPoint]], title: str, path: Path) -> None:
    """Plots speed, efficiency and time in collectives over the number of devices: median, minimum and maximum.

    `curves` are measurements by kind of scaling, strong or weak.
    """
    figure, all_axes = _figure(3, columns=3)
    figure.suptitle(title, fontsize=8, wrap=True)
    panels = ("environment steps per second", "speed per device over that of one", "share of time in collectives")
    for panel, (axes, name) in enumerate(zip(all_axes, panels, strict=True)):
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("devices", fontsize=8)
        axes.xaxis.get_major_locator().set_params(integer=True)
        for kind, points in curves.items():
            counts = [count for count, _ in points]
            median = np.array([np.median(figures[panel]) for _, figures in points])
            low, high = (np.array([edge(figures[panel]) for _, figures in points]) for edge in (np.min, np.max))
            axes.errorbar(counts, median, (median - low, high - median), fmt="o-", markersize=4, capsize=2, label=kind)
        axes.set_ylim(bottom=0)
    counts = np.array([count for count, _ in next(iter(curves.values()))])
    one = np.median(next(iter(curves.values()))[0][1][0])
    all_axes[0].plot(counts, counts * one, color="grey", linestyle=":", label="ideal")
    all_axes[0].legend(fontsize=7)
    _save(figure, path)


def plot_efficiency(curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], title: str, path: Path) -> None:
    """Plots predicted efficiency over the number of devices, from pairs by setting, for strong and weak scaling."""
    figure, all_axes = _figure(2, columns=2)
    figure.suptitle(title, fontsize=7, wrap=True)
    for axes, (kind, settings) in zip(all_axes, curves.items(), strict=True):
        axes.set_title(f"{kind} scaling: speed per device over that of one", fontsize=9)
        axes.set_xlabel("devices", fontsize=8)
        axes.set_xscale("log", base=2)
        for setting, points in settings.items():
            axes.plot(*zip(*points, strict=True), "o-", markersize=3, linewidth=1, label=setting)
        axes.set_ylim(bottom=0)
    all_axes[1].legend(fontsize=7)
    _save(figure, path)


def stretches(is_true: np.ndarray) -> list[tuple[int, int]]:
    """First and past-the-end index of every run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_true, [False]]).astype(int)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _times(recording: Recording) -> np.ndarray:
    return np.arange(1, len(recording.reward) + 1) * (recording.dt or 1.0)


def _figure(num_panels: int, columns: int, dpi: float | None = None) -> tuple[Figure, list[Any]]:
    """A figure and its axes. Those with one column are narrow and sharp: they are read on a phone's screen as well."""
    rows = -(-num_panels // columns)
    size = (4.0 * columns, 2.4 * rows) if columns > 1 else (4.0, max(1.5 * rows, 2.5))
    # Its own figure and canvas: the user's matplotlib state is untouched, and no window opens.
    figure = Figure(figsize=size, layout="constrained", dpi=dpi or (DPI if columns > 1 else 2 * DPI))
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(num_panels)]
    for each in axes:
        each.grid(alpha=0.3)
        each.tick_params(labelsize=8)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi="figure")
