"""The report of runs as one self-contained HTML page: figures, curves, plots, video and settings."""

import html
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ksim.checkpoint.format import CHECKPOINTS, DamagedError, list_checkpoints, read_document
from ksim.evaluate.curves import Curves, read_curves, run_names
from ksim.host.files import data_url, whole_file
from ksim.host.terminal import format_seconds
from ksim.log.jsonl import find_films
from ksim.log.logger import error_labels

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 1100px; padding: 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.runs { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .6rem .2rem 0; text-align: left; vertical-align: top; }
th { font-weight: 500; opacity: .75; white-space: nowrap; }
img, video { background: #fff; border-radius: 4px; max-width: 100%; }
pre { background: var(--soft); border-radius: 4px; font-size: 12px; overflow-x: auto; padding: .6rem; }
"""
_PLOTS = ("velocity", "gait", "rewards")
MAX_FILM_BYTES = 20 * 2**20
"""Maximum size of a video in the report, in bytes. Larger ones are left out, because videos are embedded."""


def write_page(run_dirs: Sequence[Path], path: Path, of_learner: Mapping[str, str] | None = None) -> None:
    """Writes the report of one or several runs, side by side.

    Raises:
        ConfigError: A directory holds no metrics, or cannot be read.
        OSError: The page cannot be written.
    """
    names = run_names(run_dirs, num_parts=2)
    runs = [read_curves(run_dir, name) for run_dir, name in zip(run_dirs, names, strict=True)]
    title = f"{' and '.join(names[:2])}{' and others' if len(names) > 2 else ''}"
    columns = "".join(_run(run_dir, run) for run_dir, run in zip(run_dirs, runs, strict=True))
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<div class="runs">{columns}</div>
<h2>Learning</h2>
{_curves(runs, of_learner)}
</body></html>
"""
    with whole_file(path) as temporary:
        temporary.write_text(page)


def _run(run_dir: Path, run: Curves) -> str:
    """The HTML of a run's figures, video, plots and settings."""
    films = find_films(run_dir)
    parts = [f"<h2>{html.escape(run.name)}</h2>", _table(_facts(run_dir, run))]
    if run.evaluations:
        last = run.evaluations[-1]
        parts += [f"<h2>Evaluation after {last['iteration']} iterations</h2>", _table(_evaluated(last))]
    if films and films[-1].stat().st_size <= MAX_FILM_BYTES:
        parts.append(f'<p><video controls loop muted autoplay src="{data_url(films[-1])}"></video></p>')
    plots = [run_dir / "plots" / f"{name}.png" for name in _PLOTS]
    parts += [
        f'<p><img alt="{plot.stem} of one episode" src="{data_url(plot)}"></p>' for plot in plots if plot.is_file()
    ]
    settings = run_dir / "config.yaml"
    if settings.is_file():
        text = settings.read_bytes().decode(errors="replace")  # an editor may have changed the encoding
        parts.append(f"<details><summary>Settings</summary><pre>{html.escape(text)}</pre></details>")
    return f"<section>{''.join(parts)}</section>"


def _facts(run_dir: Path, run: Curves) -> dict[str, str]:
    """Facts of a run: date, iterations, steps, time, task, devices and versions."""
    seconds = float(sum(x for x in run.metrics.get("time/iteration_s", ()) if x == x))  # noqa: PLR0124 - NaN
    facts = {
        "written": run.date,
        "iterations": f"{len(run.env_steps):,}",
        "environment steps": f"{run.env_steps[-1]:,.0f}",
        "training": format_seconds(seconds),
    }
    document = _newest_document(run_dir)
    if document is not None:
        facts["task"] = str(document.get("task", ""))
        facts["devices"] = str(document["num_devices"])
        facts |= {
            name: version for name, version in document["versions"].items() if name in ("python", "jax", "mujoco")
        }
    return facts


def _newest_document(run_dir: Path) -> dict[str, Any] | None:
    """The document of the newest undamaged checkpoint; None if there is none."""
    for checkpoint in reversed(list_checkpoints(run_dir / CHECKPOINTS)):
        try:
            return dict(read_document(checkpoint))
        except DamagedError:
            continue
    return None


def _evaluated(record: Mapping[str, Any]) -> dict[str, str]:
    """The figures of an evaluation, with 95 % confidence intervals."""
    figures = {"episodes": str(record["num_episodes"])} if "num_episodes" in record else {}
    errors = error_labels(name for name in record["figures"] if name.startswith("error/"))
    for name, estimate in record["figures"].items():
        mean, low, high = (estimate.get(part) for part in ("mean", "low", "high"))
        if mean is not None:
            interval = f" ({low:.3g} to {high:.3g})" if low is not None and high is not None else ""
            figures[errors.get(name) or name] = f"{mean:.3g}{interval}"
    return figures


def _curves(runs: Sequence[Curves], of_learner: Mapping[str, str] | None) -> str:
    from ksim.evaluate.plots import plot_learning  # noqa: PLC0415 - matplotlib is slow to import

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "learning.png")
        plot_learning(runs, path, of_learner)
        return f'<img alt="learning curves" src="{data_url(path)}">'


def _table(rows: Mapping[str, str]) -> str:
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(words)}</td></tr>" for name, words in rows.items()
    )
    return f"<table>{cells}</table>"
