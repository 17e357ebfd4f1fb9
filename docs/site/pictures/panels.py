"""Parts of pictures: curves over a quantity or over time, histograms, and scenes with arrows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs.site.pictures.body import EDGE, SIDE, View, draw_ground, draw_robot
from docs.site.pictures.robot import context
from docs.site.pictures.snapshot import Snapshot, values_apart, values_drawn, values_over

Draw = Callable[[], Figure]
"""Draws a picture."""

WIDTH, LEFT, RIGHT = 6.4, 0.115, 0.975
COLORS = ("#2c6fbb", "#d2691e", "#2f8f5b", "#8a4fa3", "#c8402f", "#6b7680")
ENDS = "#c8402f"


def figure(*heights: float) -> tuple[Figure, list[Axes]]:
    """A picture of rows below each other that share their left and right edges.

    Args:
        heights: Of the rows, in inches.
    """
    gap, top, bottom = 0.12, 0.12, 0.42
    total = sum(heights) + gap * (len(heights) - 1) + top + bottom
    fig = Figure(figsize=(WIDTH, total))
    axes, above = [], top
    for height in heights:
        axes.append(fig.add_axes((LEFT, 1 - (above + height) / total, RIGHT - LEFT, height / total)))
        above += height + gap
    return fig, axes


def plain(ax: Axes) -> None:
    """Leaves out the frame, the ticks and their labels."""
    ax.set_axis_off()


def curves(ax: Axes, x: Any, y: Any, labels: Sequence[str] = (), **look: Any) -> None:
    """Draws columns of `y` over `x`, with a legend where they have labels."""
    for i, column in enumerate(np.asarray(y, float).reshape(len(x), -1).T):
        label = labels[i] if i < len(labels) else None
        ax.plot(x, column, color=COLORS[i % len(COLORS)], **({"lw": 1.8, "label": label} | look))
    if labels:
        ax.legend(loc="best", fontsize=7.5, frameon=True, framealpha=0.8, edgecolor="none", handlelength=1.4)


def finish(ax: Axes, x_label: str, y_label: str) -> None:
    """Labels the axes."""
    ax.set_xlabel(x_label, fontsize=9, labelpad=2)
    ax.set_ylabel(y_label, fontsize=9)
    ax.margins(x=0)


def strip(ax: Axes, contexts: Sequence[Snapshot], at: Sequence[float], view: View = SIDE) -> None:
    """Draws robots beside each other, above fractions of the width."""
    plain(ax)
    box = ax.get_position()
    fig_width, fig_height = ax.figure.get_size_inches()  # type: ignore[union-attr]
    height = max(0.98, *(float(seen.physics.qpos[2]) + 0.3 for seen in contexts))
    width = height * (box.width * fig_width) / (box.height * fig_height)
    ax.set_xlim(0, width)
    ax.set_ylim(-0.03, height - 0.03)
    draw_ground(ax)
    for seen, fraction in zip(contexts, at, strict=True):
        middle = view(np.asarray(seen.physics.qpos[:3]) * (1, 1, 0))
        draw_robot(ax, seen, view, shift=(fraction * width - middle[0], -middle[1]))


def sweep(
    terms: Any,
    state: Callable[[float], Snapshot] | Mapping[str, Callable[[float], Snapshot]],
    over: tuple[float, float],
    x_label: str,
    *,
    y_label: str = "value, before scale",
    view: View | None = None,
    marks: Mapping[float, str] | None = None,
    num: int = 49,
) -> Draw:
    """A picture of a term's value over a quantity.

    Args:
        terms: A term, or terms by label.
        state: The context at a value of the quantity; or several by label, of one term.
        over: The first and the last value of the quantity.
        x_label: The quantity with its unit.
        y_label: What the value is.
        view: Where the robots above the curve are seen from; None for none.
        marks: Values of the quantity to mark, with what they are.
        num: Number of values.
    """

    def draw() -> Figure:
        x = np.linspace(*over, num)
        states = (
            state if isinstance(state, Mapping) else dict.fromkeys(terms if isinstance(terms, dict) else [""], state)
        )
        named = terms if isinstance(terms, dict) else dict.fromkeys(states, terms)
        seen = {make: [make(float(value)) for value in x] for make in states.values()}
        y = np.stack([values_apart(term, seen[states[label]]).reshape(num, -1) for label, term in named.items()])
        contexts = seen[states[next(iter(named))]]
        heights = (1.0, 1.35) if view else (1.6,)
        fig, (*above, ax) = figure(*heights)
        if view:
            shown = np.linspace(0, num - 1, 7).round().astype(int)[1:-1]
            strip(above[0], [contexts[i] for i in shown], [i / (num - 1) for i in shown], view)
        if y.dtype == bool:
            truth_zones(ax, x, y[0, :, 0], getattr(next(iter(named.values())), "truncates", False))
            finish(ax, x_label, "")
        else:
            curves(ax, x, np.moveaxis(y, 0, 1), [label for label in named if label])
            finish(ax, x_label, y_label)
        for value, label in (marks or {}).items():
            here = np.max(y[:, np.argmin(np.abs(x - value))])
            mark(ax, value, label, is_low=y.dtype != bool and here > np.mean(ax.get_ylim()))
        return fig

    return draw


def mark(ax: Axes, value: float, label: str, *, is_low: bool = False) -> None:
    """Draws a dashed vertical line with a label, at its top or its bottom."""
    ax.axvline(value, color=EDGE, lw=1, ls=(0, (4, 3)))
    left, right = ax.get_xlim()
    is_right = value > left + 0.7 * (right - left)
    ax.annotate(
        label,
        (value, 0.06 if is_low else 0.95),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if is_right else 4, 0),
        textcoords="offset points",
        fontsize=8,
        color=EDGE,
        ha="right" if is_right else "left",
        va="bottom" if is_low else "top",
    )


def truth_zones(ax: Axes, x: np.ndarray, is_true: np.ndarray, truncates: bool) -> None:
    """Shades where a termination ends the episode."""
    word, color = ("truncated", COLORS[1]) if truncates else ("terminated", ENDS)
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(0, 1)
    ax.set_yticks([])
    changes = np.flatnonzero(np.diff(is_true))
    borders = [x[0], *(x[changes] + x[changes + 1]) / 2, x[-1]]
    firsts = is_true[[0, *(changes + 1)]]
    for low, high, ends in zip(borders[:-1], borders[1:], firsts, strict=True):
        ax.axvspan(low, high, color=color if ends else COLORS[2], alpha=0.25 if ends else 0.12, lw=0)
        if abs(high - low) > 0.16 * abs(x[-1] - x[0]):
            text = word if ends else "the episode continues"
            ax.text((low + high) / 2, 0.45, text, ha="center", va="center", fontsize=8.5)


def timeline(
    terms: Any,
    frames: Callable[[], Sequence[Snapshot]],
    *,
    y_label: str = "value, before scale",
    labels: Sequence[str] = (),
    given: Callable[[Sequence[Snapshot]], Any] | None = None,
    given_label: str = "",
    given_labels: Sequence[str] = (),
    feet: Callable[[Sequence[Snapshot]], Any] | None = None,
    clock: Callable[[Sequence[Snapshot]], Any] | None = None,
    view: View | None = None,
    read: Any = lambda value, _: value,
    style: str = "default",
) -> Draw:
    """A picture of a term's value over time.

    Args:
        terms: A term, or terms by label, each with one number as its value.
        frames: The contexts, in order.
        y_label: What the value is.
        labels: Of its components.
        given: What else to draw above, (time, curve) over the contexts; `given_label` is its axis.
        given_label: What that is.
        given_labels: Of its curves.
        feet: Which feet are down, (time, foot), drawn as bars.
        clock: Which feet should be, likewise.
        view: Where the robots above are seen from; None for none.
        read: What to draw of the value, from the value and the context with the memory.
        style: Of the lines: "steps-post" for values that jump.
    """

    def draw() -> Figure:
        seen = frames()
        time = np.array([int(c.episode_step) * c.dt for c in seen])
        # The last value holds for a step, too.
        last = [time[-1] + seen[0].dt] if style == "steps-post" else []
        with_last = lambda y: np.concatenate([y, y[-1:]]) if last else y
        heights = [1.0] * bool(view) + [0.36] * (bool(feet) + bool(clock)) + [0.85] * bool(given) + [1.15]
        fig, axes = figure(*heights)
        rest = iter(axes)
        if view:
            shown = np.linspace(0, len(seen) - 1, 9).round().astype(int)[1:-1]
            strip(next(rest), [seen[i] for i in shown], [i / (len(seen) - 1) for i in shown], view)
        if feet:
            foot_bars(next(rest), time, np.asarray(feet(seen)))
        if clock:
            names = ("left clock", "right clock")
            foot_bars(next(rest), time, np.asarray(clock(seen)), names, COLORS[0])
        if given:
            ax = next(rest)
            curves(ax, [*time, *last], with_last(np.asarray(given(seen))), given_labels, drawstyle=style)
            finish(ax, "", given_label)
            ax.set_xticklabels([])
        ax = next(rest)
        named = terms if isinstance(terms, dict) else {"": terms}
        values = [values_over(term, seen, read).reshape(len(seen), -1) for term in named.values()]
        y = with_last(np.concatenate(values, axis=1))
        curves(ax, [*time, *last], y, labels or [k for k in named if k], drawstyle=style)
        finish(ax, "time, s", y_label)
        return fig

    return draw


def foot_bars(
    ax: Axes,
    time: np.ndarray,
    down_tf: np.ndarray,
    names: Sequence[str] = ("left down", "right down"),
    color: str = COLORS[5],
) -> None:
    """Draws a row per foot: filled while it is down."""
    for foot, is_down in enumerate(down_tf.T > 0.5):
        low = 1 - foot
        ax.fill_between(time, low + 0.12, low + 0.88, where=is_down, color=color, lw=0, step="post")
    ax.set_ylim(0, 2)
    ax.set_yticks([1.5, 0.5], names, fontsize=7)
    ax.set_xticks([])
    ax.margins(x=0)
    for side in ("top", "right", "bottom", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)


def histogram(
    term: Any, read: Callable[[Any], Any], x_label: str, nominal: float | None, *, seen: Snapshot | None = None
) -> Draw:
    """A picture of the distribution of a number that a term draws at a reset, beside the model's own."""

    def draw() -> Figure:
        values = values_drawn(lambda now: read(term(now)), seen or context(), 4000).reshape(4000, -1)
        fig, (ax,) = figure(1.4)
        bins = np.linspace(values.min(), values.max(), 36)
        for i, column in enumerate(values.T):
            ax.hist(column, bins=bins, color=COLORS[i], alpha=0.55, density=True)
        ax.set_yticks([])
        finish(ax, x_label, "probability")
        pad = 0.12 * (bins[-1] - bins[0])
        ax.set_xlim(bins[0] - pad, bins[-1] + pad)
        if nominal is not None:
            mark(ax, nominal, "model file")
        return fig

    return draw


def scene(low: float = -0.06, high: float = 0.94, height: float = 2.2) -> tuple[Figure, Axes]:
    """A picture with one drawing, from `low` to `high` in m, and room for text at its right."""
    fig = Figure(figsize=(WIDTH, height))
    ax = fig.add_axes((0.01, 0.02, 0.5, 0.96))
    plain(ax)
    half = (high - low) * (0.5 * WIDTH) / (0.96 * height) / 2
    ax.set_xlim(-half, half)
    ax.set_ylim(low, high)
    return fig, ax


def note(fig: Figure, lines: Sequence[str]) -> None:
    """Writes lines at the right of a scene."""
    fig.text(0.54, 0.5, "\n".join(lines), va="center", ha="left", fontsize=9, linespacing=1.7)


def numbers(values: Any, digits: int = 2) -> str:
    """A vector in words."""
    return "(" + ", ".join(f"{round(float(x), digits) + 0.0:.{digits}f}" for x in np.ravel(values)) + ")"
