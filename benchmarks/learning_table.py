"""Results of `benchmarks.learning` as a table and as curves."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ksim.evaluate.evaluator import Estimate, estimate_mean
from ksim.host.files import whole_file

MARKS = 4
"""Numbers of steps at which a table reports returns, about equally far apart."""

Result = dict[str, Any]


def groups_of(results: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    """Results by task and variant, both in the order in which they come first."""
    groups: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        run = result["run"]
        groups.setdefault(run["task"], {}).setdefault(run["variant"], []).append(result)
    return groups


def return_at(result: Result, env_steps: float) -> float:
    """A run's return after so many steps, between evaluations on the line between them; NaN beyond them."""
    steps, returns = ([x[name] for x in result["evaluations"]] for name in ("env_steps", "return"))
    return float(np.interp(env_steps, steps, returns, left=math.nan, right=math.nan))


def marks_of(results: Sequence[Result]) -> list[int]:
    """The numbers of steps at which the results of a task are compared: those of evaluations of the shortest run."""
    steps = min(([x["env_steps"] for x in result["evaluations"]] for result in results), key=lambda steps: steps[-1])
    num_marks = min(MARKS, len(steps))
    return [steps[round(i * len(steps) / num_marks) - 1] for i in range(1, num_marks + 1)]


def table(results: Sequence[Result]) -> str:
    """A table of each task, as Markdown: means over seeds with their 95 % intervals."""
    return "\n\n".join(_of_task(task, variants) for task, variants in groups_of(results).items())


def _of_task(task: str, variants: dict[str, list[Result]]) -> str:
    marks = marks_of([result for results in variants.values() for result in results])
    heads = [task, "seeds", *(f"return at {steps:,}" for steps in marks), "steps/s", "first update, s"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, results in variants.items():
        returns = [_words([return_at(x, steps) for x in results], 1) for steps in marks]
        speed = _words([x["steps_per_s"] for x in results], 0)
        first_update = _words([x["first_update_s"] for x in results], 1)
        lines.append(f"| {' | '.join([name, str(len(results)), *returns, speed, first_update])} |")
    return "\n".join(lines)


def _words(values: Sequence[float | None], digits: int) -> str:
    """Mean and half the width of the interval of what was measured."""
    known = np.array([x for x in values if x is not None and math.isfinite(x)])
    if not len(known):
        return "-"
    estimate: Estimate = estimate_mean(known)
    half_width = f" ± {(estimate.high - estimate.low) / 2:,.{digits}f}" if math.isfinite(estimate.high) else ""
    return f"{estimate.mean:,.{digits}f}{half_width}"


def draw_curves(results: Sequence[Result], path: Path) -> None:
    """Draws the mean return of each variant over steps, with its 95 % interval; a panel for each task."""
    groups = groups_of(results)
    columns = min(3, len(groups))
    figure = Figure(figsize=(4.5 * columns, 3.2 * math.ceil(len(groups) / columns)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (task, variants) in enumerate(groups.items(), 1):
        axes = figure.add_subplot(math.ceil(len(groups) / columns), columns, place)
        axes.set_title(task, fontsize=9)
        axes.set_xlabel("environment steps", fontsize=8)
        for i, (name, of_variant) in enumerate(variants.items()):
            steps = np.array(sorted({x["env_steps"] for result in of_variant for x in result["evaluations"]}))
            estimates = [estimate_mean(np.array([return_at(x, s) for x in of_variant])) for s in steps]
            low, mean, high = np.array([(x.low, x.mean, x.high) for x in estimates]).T
            axes.plot(steps, mean, color=f"C{i % 10}", label=f"{name} ({len(of_variant)})")
            axes.fill_between(steps, low, high, color=f"C{i % 10}", alpha=0.2, linewidth=0)
        axes.legend(fontsize=7)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=110)
