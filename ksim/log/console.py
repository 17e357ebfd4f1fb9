"""Console output of a run's iterations: a live view in a terminal or a notebook, lines elsewhere."""

import contextlib
import importlib
import io
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ksim.host.terminal import CELL_WIDTH, Activity, console, format_seconds, print_line, without_echo_of_keys
from ksim.log.logger import AbstractLogger, RunInfo, quantity_and_unit

BARS = "▁▂▃▄▅▆▇█"
TREND = 24
"""Iterations in the sparkline and in the trend of rewards."""
_COMPARED = 5
"""Iterations at each end of the trend. The change of a reward is the difference of its means over them."""
_NUM_CHANGED = 3
_PER_SECOND = 4


class LiveView:
    """The live view: progress, speed, reward and return, errors, rewards that changed most, learner and activity."""

    def __init__(self, run: RunInfo) -> None:
        """Starts to show a run."""
        self._run = run
        self._metrics: Mapping[str, float] = {}
        self._recent: deque[Mapping[str, float]] = deque(maxlen=TREND)
        self._returns: deque[float] = deque(maxlen=TREND)
        self._age = 0
        self._evaluation = ""
        self._rates: deque[float] = deque(maxlen=TREND)
        self._activity, self._since_s = "", 0.0
        # In a terminal something moves all the time; a notebook's cell is redrawn with each iteration.
        self._spinner = None if console.is_jupyter else Spinner("dots")
        self._closing = contextlib.ExitStack()
        self._live: Live | NotebookCell
        if console.is_jupyter:
            self._live = NotebookCell(self.render)
        else:
            self._closing.enter_context(without_echo_of_keys())
            self._live = Live(console=console, get_renderable=self.render, refresh_per_second=_PER_SECOND)
        self._live.start()
        Activity.show = self._tell

    def log(self, metrics: Mapping[str, float], age: int) -> None:
        """Shows the metrics of an iteration; the last episode ended `age` iterations ago."""
        self._metrics, self._age = metrics, age
        self._recent.append({name: x for name, x in metrics.items() if name.startswith("reward/")})
        self._rates.append(reward_per_s(metrics, self._run.config))
        if not math.isnan(metrics.get("episode/return", math.nan)):
            self._returns.append(metrics["episode/return"])
        self._changed()

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        """Shows an evaluation."""
        figures = record["figures"]
        survived = figures.get("survival", {}).get("mean")
        parts = [f"return {number(figures['return']['mean'])}"]
        parts += [] if survived is None else [f"survived {survived:.0%}"]
        self._evaluation = " · ".join([*parts, f"iteration {record['iteration']}"])
        self._changed()

    def close(self) -> None:
        """Stops updates; the last state stays visible."""
        Activity.show, Activity.notice = None, ""
        self._activity, self._spinner = "", None
        with self._closing:
            self._live.stop()

    def _tell(self, text: str) -> None:
        if not self._activity:
            self._since_s = time.monotonic()
        self._activity = text
        self._changed()

    def _changed(self) -> None:
        # In a terminal, the view's own thread refreshes it.
        if isinstance(self._live, NotebookCell):
            self._live.refresh()

    def render(self) -> Group:
        """The block of lines."""
        metrics, run = self._metrics, self._run
        if not metrics:
            return Group(*self._notices(self._activity or "The first iteration ..."))
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True, min_width=len("evaluation"))
        # In a terminal, the block is redrawn in place, so each row must take one line.
        rows.add_column(overflow="ellipsis", no_wrap=not console.is_jupyter)
        for name, value in self._rows(metrics):
            if value:
                rows.add_row(name, Text(value))
        return Group(self._progress(metrics, run), rows, *self._notices(self._activity))

    def _notices(self, activity: str) -> list[Text]:
        """The lines below the rows: the activity with its seconds so far, and that the run is about to stop."""
        seconds = time.monotonic() - self._since_s if self._activity else 0.0
        shown = f"{activity} {seconds:.0f} s" if seconds >= 1 else activity
        return [Text(line, style="bold") for line in (shown, Activity.notice) if line]

    def _progress(self, metrics: Mapping[str, float], run: RunInfo) -> Table:
        iteration, most = round(metrics["iteration"]), run.max_iterations
        eta_s = run.eta_s()
        row = Table.grid(padding=(0, 2))
        cells: list[Any] = [] if self._spinner is None else [self._spinner]
        cells += [Text(f"iteration {iteration}" + (f" of {most}" if most else ""), style="bold")]
        if most:
            cells.append(ProgressBar(total=most, completed=iteration, width=24))
            cells.append(f"{iteration / most:.0%}")
        if eta_s is not None:
            cells.append(f"{format_seconds(eta_s)} left")
        row.add_row(*cells)
        return row

    def _rows(self, metrics: Mapping[str, float]) -> Sequence[tuple[str, str]]:
        run = self._run
        shown = {**metrics, **run.last_episodes}
        speed = f"{metrics['time/env_steps_per_s']:,.0f} env steps/s · {shares(metrics)}"
        ago = f"  {self._age} iteration{'s' * (self._age > 1)} ago" if self._age else ""
        returns = f"{number(shown['episode/return'])}  {sparkline(self._returns)}{ago}" if self._returns else ""
        errors = {name: x for name, x in metrics.items() if name.startswith("error/") and not math.isnan(x)}
        learner = [f"{words} {number(metrics[name], 4)}" for words, name in run.line.items()]
        for words, name in (("learning rate", "policy/learning_rate"), ("KL", "policy/kl")):
            if name in metrics and name not in run.line.values():
                learner.append(f"{words} {metrics[name]:.2g}")
        return (
            ("speed", " · ".join(filter(None, (speed, run.devices)))),
            ("reward", f"{number(self._rates[-1])} per second  {sparkline(self._rates)}"),
            ("return", returns),
            ("length", f"{number(shown['episode/length'], 0)} control steps" if self._returns else ""),
            ("errors", " · ".join(error_value(name, x) for name, x in errors.items())),
            ("rewards", " · ".join(f"{name} {change:+.2g}" for name, change in self.changes())),
            ("learner", " · ".join(learner)),
            ("faults", faults(metrics)),
            ("evaluation", self._evaluation),
        )

    def changes(self) -> list[tuple[str, float]]:
        """The rewards that changed most over the trend, each with its change."""
        rows = list(self._recent)
        if len(rows) < 2 * _COMPARED:
            return []
        mean = lambda part, name: sum(row[name] for row in part) / len(part)
        names = [name for name in rows[-1] if all(math.isfinite(row.get(name, math.nan)) for row in rows)]
        changed = [(name, mean(rows[-_COMPARED:], name) - mean(rows[:_COMPARED], name)) for name in names]
        changed.sort(key=lambda item: -abs(item[1]))
        return [(name.removeprefix("reward/"), change) for name, change in changed[:_NUM_CHANGED] if change]


class NotebookCell:
    """An output of a notebook's cell that is updated in place."""

    def __init__(self, render: Callable[[], Any]) -> None:
        """Makes the output; `render` returns its current content, as something that rich can print."""
        self._render = render
        self._shown_s = -math.inf

    def start(self) -> None:
        """Adds the output to the running cell."""
        self._display = importlib.import_module("IPython.display")  # installed wherever a notebook runs
        self._handle: Any = self._display.display(self._display.HTML(""), display_id=True)
        self._show()

    def refresh(self) -> None:
        """Shows the current content, at most four times per second."""
        if time.monotonic() - self._shown_s >= 1 / _PER_SECOND:
            self._show()

    def stop(self) -> None:
        """Shows the final content."""
        self._show()

    def _show(self) -> None:
        self._shown_s = time.monotonic()
        page = Console(record=True, file=io.StringIO(), width=CELL_WIDTH, force_jupyter=False, highlight=False)
        page.print(self._render())
        html = page.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        self._handle.update(self._display.HTML(html))


def sparkline(values: Sequence[float] | deque[float]) -> str:
    """The finite values as bars, scaled from the lowest to the highest."""
    values = [x for x in values if math.isfinite(x)]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[round((x - low) / span * (len(BARS) - 1))] for x in values)


def number(value: float | None, digits: int = 2) -> str:
    """A number as text; a dash for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def reward_per_s(metrics: Mapping[str, float], config: Mapping[str, Any]) -> float:
    """The mean reward of a rollout per simulated second."""
    return metrics["rollout/reward"] / config.get("ctrl_dt", 1.0)


def error_value(name: str, value: float) -> str:
    """An error as text, such as `velocity 0.21 m/s`."""
    quantity, unit = quantity_and_unit(name)
    return f"{quantity} {value:.3g} {unit}".rstrip()


def shares(metrics: Mapping[str, float]) -> str:
    """The shares of rollout and update in the time of an iteration."""
    rollout_s, update_s = metrics["time/rollout_s"], metrics["time/update_s"]
    update = update_s / (rollout_s + update_s)
    return f"rollout {1 - update:.0%} update {update:.0%}"


def faults(metrics: Mapping[str, float]) -> str:
    """A notice of skipped updates and non-finite steps; empty if there were none."""
    bad = metrics["policy/bad_updates"]
    share = sum(metrics.get(name, 0.0) for name in ("termination/not_finite", "rollout/not_finite"))
    updates = f"{bad:.0f} non-finite updates skipped" if bad else ""
    steps = f"{100 * share:.2g} % of steps non-finite" if share > 0 else ""
    return " · ".join(filter(None, (updates, steps)))


MODES = ("auto", "live", "plain")


class ConsoleLogger(AbstractLogger):
    """Shows a live view in a terminal or a notebook, and prints a line for each iteration elsewhere.

    mode: `live` or `plain`; `auto`, the default, is live in a terminal and in a notebook.
    """

    def __init__(self, mode: str = "auto") -> None:
        self._is_live = mode == "live" or (mode == "auto" and (console.is_terminal or console.is_jupyter))
        self._view: LiveView | None = None
        self._ended_at: int | None = None

    def open(self, run: RunInfo) -> None:
        self._run = run
        self._ended_at = run.iteration if run.last_episodes else None
        if self._is_live:
            self._view = LiveView(run)

    def log(self, metrics: Mapping[str, float], iteration: int, env_steps: int) -> None:
        if not math.isnan(metrics.get("episode/return", math.nan)):
            self._ended_at = iteration
        # In many iterations no episode ends. The metrics of the last ended episodes are shown, with their age.
        age = 0 if self._ended_at is None else iteration - self._ended_at
        if self._view is not None:
            self._view.log(metrics, age)
            return
        shown = {**metrics, **self._run.last_episodes}
        width = console.width if console.is_terminal else None
        run = self._run
        rate = reward_per_s(metrics, run.config)
        print_line(iteration_line(shown, run.max_iterations, run.eta_s(), run.line, rate=rate, age=age, width=width))

    def log_evaluation(self, record: Mapping[str, Any]) -> None:
        if self._view is not None:
            self._view.log_evaluation(record)

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None


def iteration_line(
    metrics: Mapping[str, float],
    max_iterations: int | None,
    eta_s: float | None,
    of_learner: Mapping[str, str] | None = None,
    *,
    rate: float,
    age: int = 0,
    width: int | None = None,
) -> str:
    """The line of one iteration: progress, time left, speed, where the time goes, return, episode length.

    Args:
        metrics: Metrics of the iteration, and of the last episodes that ended.
        max_iterations: The last iteration; None without a limit.
        eta_s: Seconds to the limit; None without one.
        of_learner: Names of additional metrics of the algorithm, by their labels.
        rate: Reward per second.
        age: Iterations since the last episode ended.
        width: Columns that the line may take: the least important parts are left out. None for no limit.
    """
    of = f"/{max_iterations}" if max_iterations else ""
    ago = f" ({age} ago)" if age else ""
    has_ended = not math.isnan(metrics["episode/return"])
    speed = f"{metrics['time/env_steps_per_s']:,.0f} env steps/s"
    parts = [
        (0, f"iteration {metrics['iteration']:.0f}{of}"),
        (4, f"ETA {format_seconds(eta_s)}" if eta_s is not None else ""),
        (3, speed),
        (6, shares(metrics)),
        # Until the first episode ends, the reward per second alone tells whether the robot learns.
        (1, f"return {number(metrics['episode/return'])}{ago}" if has_ended else ""),
        (2, f"length {number(metrics['episode/length'])}" if has_ended else ""),
        (5 if has_ended else 1, f"reward/s {number(rate)}"),
        *((7, f"{words} {number(metrics[name], 4)}") for words, name in (of_learner or {}).items()),
        (0, faults(metrics)),
    ]
    for least in range(7, 0, -1):
        if width is None or len(_joined(parts)) <= width:
            break
        parts = [(rank, text) for rank, text in parts if rank != least]
    return _joined(parts)


def _joined(parts: Sequence[tuple[int, str]]) -> str:
    return " · ".join(text for _, text in parts if text)
