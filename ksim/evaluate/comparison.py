"""Final figures and settings of one run, or of several beside each other, in words."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ksim.checkpoint.run_dir import settings_of
from ksim.evaluate.curves import Curves
from ksim.evaluate.evaluator import Estimate
from ksim.log.logger import error_names, most_telling_first, quantity_and_unit

_OF_ONE_START = ("run_dir", "resume")
"""Options that differ between any two runs."""
_WRITTEN = {"survival": "survived"}
_UNITS = {"length": "control steps"}
"""Names and units, as written, of figures that are no errors."""
NONE = "-"


class Figure(NamedTuple):
    """A final figure of a run, in words.

    Attributes:
        difference: Its difference from the first run, with a 95 % interval; empty for the first run.
        is_clear: Whether that interval excludes 0.
    """

    words: str
    difference: str = ""
    is_clear: bool = False


def learned(run: Curves) -> str:
    """A sentence about what a run learned, from its last evaluation, or from training without one."""
    if not run.evaluations:
        ended = [x for x in run.metrics.get("episode/return", ()) if math.isfinite(x)]
        last = f"the last return in training was {ended[-1]:.3g}" if ended else "no episode has ended"
        return f"{_count(len(run.env_steps), 'iteration')} without an evaluation: {last}."
    record = run.evaluations[-1]
    figures = _estimates(record)
    errors = error_names(name for name in figures if name.startswith("error/"))
    parts = [_words(record, "survival", "survived")] if "survival" in figures else []
    parts += [f"{error} {_words(record, name)}" for name, (error, _) in errors.items()]
    if not parts and "return" in figures:
        parts = [f"return {_words(record, 'return')}"]
    return f"After {_count(record['iteration'], 'iteration')}: {', '.join(parts) or 'no figures'}."


def final_figures(runs: Sequence[Curves]) -> dict[str, list[Figure]]:
    """The figures of the runs' last evaluations, by name, with their differences from those of the first run."""
    records = [run.evaluations[-1] if run.evaluations else {"figures": {}} for run in runs]
    estimates = [_estimates(record) for record in records]
    names = _names(dict.fromkeys(name for each in estimates for name in each))
    rows = {
        names[name]: [_figure(record, name, records[0] if i else None) for i, record in enumerate(records)]
        for name in most_telling_first(names)
    }
    return rows | {"evaluated": [Figure(_evaluated(record)) for record in records]} if rows else {}


def differing_settings(run_dirs: Sequence[Path]) -> dict[str, list[str]]:
    """The options that differ between the runs, by name, as each run's config.yaml has them."""
    settings = [settings_of(run_dir) for run_dir in run_dirs]
    names = dict.fromkeys(name for each in settings for name in each if name not in _OF_ONE_START)
    rows = {name: [_written(each[name]) if name in each else NONE for each in settings] for name in names}
    # A run whose options cannot be read says nothing about differences.
    differing = {
        name: row for name, row in rows.items() if len({x for x, each in zip(row, settings, strict=True) if each}) > 1
    }
    if not all(settings):
        differing["config.yaml"] = ["read" if each else "cannot be read" for each in settings]
    return differing


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _estimates(record: Mapping[str, Any]) -> dict[str, Estimate]:
    """The estimates of an evaluation that have a value."""
    estimates = {name: Estimate.of_record(x) for name, x in record["figures"].items()}
    return {name: estimate for name, estimate in estimates.items() if math.isfinite(estimate.mean)}


def _names(figures: Iterable[str]) -> dict[str, str]:
    """The names of figures, as written."""
    errors = error_names(name for name in figures if name.startswith("error/"))
    return {name: errors[name][0] if name in errors else _WRITTEN.get(name, name) for name in figures}


def _words(record: Mapping[str, Any], name: str, verb: str = "") -> str:
    """A figure of an evaluation with its interval and unit; `verb` follows a count."""
    estimate = _estimates(record)[name]
    if name == "survival":
        return estimate.count_words(record.get("num_episodes"), verb)
    unit = quantity_and_unit(name)[1] if name.startswith("error/") else _UNITS.get(name, "")
    return f"{estimate.rounded_words()} {unit}".rstrip()


def _figure(record: Mapping[str, Any], name: str, first: Mapping[str, Any] | None) -> Figure:
    """A figure of an evaluation, compared with that of the first run, if there is one."""
    estimate, base = _estimates(record).get(name), None if first is None else _estimates(first).get(name)
    if estimate is None:
        return Figure(NONE)
    if base is None:
        return Figure(_words(record, name))
    difference = estimate.minus(base)
    is_clear = difference.low > 0 or difference.high < 0
    if name == "survival":
        points = Estimate(100 * difference.mean, 100 * difference.low, 100 * difference.high)
        return Figure(_words(record, name), f"{points.change_words()} percentage points", is_clear)
    return Figure(_words(record, name), difference.change_words(), is_clear)


def _evaluated(record: Mapping[str, Any]) -> str:
    if "iteration" not in record:
        return NONE
    episodes = f"{_count(record['num_episodes'], 'episode')} " if "num_episodes" in record else ""
    return f"{episodes}after {_count(record['iteration'], 'iteration')}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
