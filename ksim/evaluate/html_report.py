"""The report of runs as one self-contained HTML page: video, curves, figures, plots and settings."""

import html
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ksim.checkpoint.format import CHECKPOINTS, DamagedError, list_checkpoints, read_document
from ksim.evaluate.comparison import NONE, Figure, differing_settings, final_figures, learned
from ksim.evaluate.curves import Curves, read_curves, run_names
from ksim.host.files import data_url, write_whole
from ksim.host.terminal import format_seconds
from ksim.log.jsonl import find_films

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 1100px; padding: 1rem; }
body { overflow-wrap: anywhere; } .whole { white-space: nowrap; }
h1 { font-size: 1.4rem; margin: 0 0 1rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.wide, .narrow { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
.wide:has(> :only-child) { grid-template-columns: 1fr; } .narrow > * { max-width: 560px; }
figure { margin: 0; } .learned { margin: .5rem 0 0; }
p { margin: 0 0 .5rem; } p:empty { display: none; } .key { opacity: .75; }
i { border-radius: 2px; display: inline-block; height: .7em; margin-right: .4em; width: 1.4em; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
tbody th { font-weight: 500; opacity: .75; } details { margin: .5rem 0; } small { display: block; }
img, video { background: #fff; border-radius: 4px; display: block; width: 100%; }
pre { background: var(--soft); border-radius: 4px; font-size: 13px; padding: .6rem; white-space: pre-wrap; }
@media (max-width: 600px) {
  .many thead { display: none; } .many tr, .many th, .many td { display: block; } .many tr { margin-bottom: .8rem; }
  .many td { border: 0; padding: .1rem 0; } .many td::before { content: attr(data-run) ": "; opacity: .75; }
}
"""
_WHOLE = re.compile(r"\S+ (?:± \S+(?: \S+/s)?|of \d+|%)")
_BREAKS = re.compile(r"_|/(?!s\b)")
_PLOTS = ("velocity", "gait", "rewards")
MAX_FILM_BYTES = 20 * 2**20
"""Maximum size of a video in the report, in bytes. Larger ones are named only, because videos are embedded."""


def write_page(run_dirs: Sequence[Path], path: Path, panels: Mapping[str, bytes] | None = None) -> None:
    """Writes the report of one or several runs, side by side.

    `panels` are the learning curves as `plot_learning` returned them; None to draw them.

    Raises:
        ConfigError: A directory holds no metrics, or cannot be read.
        OSError: The page cannot be written.
    """
    names = run_names(run_dirs)
    runs = [read_curves(run_dir, name) for run_dir, name in zip(run_dirs, names, strict=True)]
    *others, last = run_names(run_dirs, num_parts=2) if len(runs) == 1 else names
    title = " and ".join(filter(None, (", ".join(others), last)))
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{_text(title)}</h1>
<div class="wide">{"".join(_shown(*each) for each in zip(run_dirs, runs, _labels(runs), strict=True))}</div>
{_curves(runs, panels)}
{_compared(run_dirs, runs)}
{_section("One episode", _episode(run_dirs[0])) if len(runs) == 1 else ""}
{_section("Runs" if len(runs) > 1 else "Run", _table(names, _facts(run_dirs, runs)))}
{_details("All options", names, [_options(run_dir) for run_dir in run_dirs])}
{_details("One episode", names, [_episode(run_dir) for run_dir in run_dirs]) if len(runs) > 1 else ""}
</body></html>
"""
    write_whole(path, page)


def _labels(runs: Sequence[Curves]) -> list[str]:
    """The runs' names with the colours of their curves; empty for a single run, which the title names."""
    from ksim.evaluate.plots import color_of  # noqa: PLC0415 - matplotlib is slow to import

    if len(runs) == 1:
        return [""]
    return [f'<i style="background:{color_of(i)}"></i>{_text(run.name)}' for i, run in enumerate(runs)]


def _shown(run_dir: Path, run: Curves, label: str) -> str:
    """A run's video, and what it learned."""
    films, video = find_films(run_dir), ""
    if films and films[-1].stat().st_size <= MAX_FILM_BYTES:
        source = data_url(films[-1].read_bytes(), "video/mp4")
        video = f'<video controls loop muted autoplay playsinline src="{source}"></video>'
    elif films:
        size = f"{films[-1].stat().st_size / 2**20:.0f} MiB"
        video = f'<p class="key">The video is too large for this page ({size}): {_text(str(films[-1]))}</p>'
    name = f"<strong>{label}</strong><br>" if label else ""
    return f'<figure>{video}<figcaption class="learned">{name}{_text(learned(run))}</figcaption></figure>'


def _curves(runs: Sequence[Curves], panels: Mapping[str, bytes] | None) -> str:
    """The learning curves, an image each, so that they fit any screen."""
    from ksim.evaluate.plots import LINES, plot_learning  # noqa: PLC0415 - matplotlib is slow to import

    if panels is None:
        with tempfile.TemporaryDirectory() as directory:
            panels = plot_learning(runs, Path(directory, "learning.png"))
    images = "".join(_image(png, f"{title}, over environment steps") for title, png in panels.items())
    key = f"Thin lines: {LINES['training']}. Lines with points: {LINES['evaluation']}."
    colors = "<br>".join(_labels(runs)) if len(runs) > 1 else ""
    return _section("Learning", f'<p class="key">{key}</p><p>{colors}</p><div class="narrow">{images}</div>')


def _compared(run_dirs: Sequence[Path], runs: Sequence[Curves]) -> str:
    """The final figures, and for several runs the differences of their settings."""
    names, parts = [run.name for run in runs], []
    if len(runs) > 1:
        settings = {name: [_text(x) for x in row] for name, row in differing_settings(run_dirs).items()}
        words = _table(names, settings) if settings else "<p>None.</p>"
        parts.append(_section("Settings that differ", words))
    figures = {name: [_figure(x) for x in row] for name, row in final_figures(runs).items()}
    if figures:
        note = (
            f"After ±: half of the 95 % interval. In the second line: the difference from {names[0]} and its 95 % "
            "interval, in bold where that excludes 0."
        )
        key = f'<p class="key">{_text(note)}</p>' if len(runs) > 1 else ""
        parts.append(_section("Last evaluation", key + _table(names, figures)))
    return "".join(parts)


def _figure(figure: Figure) -> str:
    difference = _text(figure.difference)
    return f"{_text(figure.words)}<small>{f'<strong>{difference}</strong>' if figure.is_clear else difference}</small>"


def _episode(run_dir: Path) -> str:
    """The plots of a run's recorded episode; empty without plots."""
    plots = [run_dir / "plots" / f"{name}.png" for name in _PLOTS]
    images = "".join(_image(plot.read_bytes(), f"{plot.stem} of one episode") for plot in plots if plot.is_file())
    return images and f'<div class="narrow">{images}</div>'


def _options(run_dir: Path) -> str:
    """All options of a run; empty without a file of them."""
    path = run_dir / "config.yaml"
    # An editor may have changed the encoding.
    text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    return text and f"<pre>{html.escape(text)}</pre>"


def _facts(run_dirs: Sequence[Path], runs: Sequence[Curves]) -> dict[str, list[str]]:
    """Facts by name, one for each run: date, iterations, steps, time, task, devices and versions."""
    facts = [_facts_of(*each) for each in zip(run_dirs, runs, strict=True)]
    return {
        name: [_text(each.get(name, NONE)) for each in facts]
        for name in dict.fromkeys(name for each in facts for name in each)
    }


def _facts_of(run_dir: Path, run: Curves) -> dict[str, str]:
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


def _section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>" if content else ""


def _details(title: str, names: Sequence[str], contents: Sequence[str]) -> str:
    """Content of each run that is shown on demand."""
    titles = [f"{title} of {name}" for name in names] if len(names) > 1 else [title]
    return "".join(
        f"<details><summary>{_text(title)}</summary>{content}</details>"
        for title, content in zip(titles, contents, strict=True)
        if content
    )


def _image(png: bytes, alt: str) -> str:
    return f'<img alt="{html.escape(alt)}" src="{data_url(png, "image/png")}">'


def _text(words: str) -> str:
    """Words as HTML: figures stay with their intervals and units, and long names break where they can be read."""
    return _WHOLE.sub(r'<span class="whole">\g<0></span>', _BREAKS.sub(r"\g<0><wbr>", html.escape(words)))


def _table(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table with a column of HTML for each run. On a narrow screen the columns of several runs become lines."""
    is_many = len(names) > 1
    head = f"<thead><tr><th></th>{''.join(f'<th>{_text(name)}</th>' for name in names)}</tr></thead>" if is_many else ""
    body = "".join(
        f"<tr><th>{_text(title)}</th>"
        + "".join(f'<td data-run="{html.escape(name)}">{cell}</td>' for name, cell in zip(names, cells, strict=True))
        + "</tr>"
        for title, cells in rows.items()
    )
    return f'<table class="{"many" if is_many else "one"}">{head}<tbody>{body}</tbody></table>'
