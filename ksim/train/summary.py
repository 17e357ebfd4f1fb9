"""The summary at the end of a run."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from ksim.checkpoint.format import find_best
from ksim.checkpoint.progress import Progress
from ksim.checkpoint.saver import Saver
from ksim.config import as_argument
from ksim.evaluate.reports import Reports
from ksim.host.signals import StopRequest
from ksim.host.terminal import format_seconds, print_figures
from ksim.train.timing import peak_memory_bytes


def print_summary(
    progress: Progress,
    run_dir: Path,
    *,
    compile_s: float,
    stop: StopRequest,
    saver: Saver | None,
    reports: Reports,
    dashboards: Mapping[str, str],
) -> None:
    """Prints the progress, the files written, and how to open the dashboards."""
    figures = {
        "iterations": str(progress.iteration),
        "environment steps": f"{progress.env_steps:,}",
        "training time": format_seconds(progress.elapsed_s),
        "before the first iteration": f"{compile_s:.1f} s, most of it compiling",
        "peak memory": f"{peak_memory_bytes() / 2**20:,.0f} MiB",
    } | _existing({"metrics": run_dir / "metrics.jsonl"})
    best = None
    if saver is not None and saver.newest is not None and os.path.exists(saver.newest[1]):
        figures["checkpoint"] = str(saver.newest[1])
        with contextlib.suppress(OSError):
            best = find_best(run_dir)
        if best is not None and best != saver.newest[1]:
            figures["best by evaluation"] = str(best)
        figures["evaluate it"] = f"run_mode=eval {as_argument('checkpoint', str(run_dir))}"
        figures["resume it"] = as_argument("resume", str(run_dir))
    if progress.bad_updates:
        figures["updates skipped"] = f"{progress.bad_updates:,}, non-finite"
    if progress.not_finite_steps:
        figures["steps skipped"] = f"{progress.not_finite_steps:,} of single environments, non-finite"
    figures |= _existing(reports.paths)
    figures |= dashboards
    figures |= {f"failed: {kind}": f"{count} times" for kind, count in reports.failures.counts.items()}
    if stop.reason is not None:
        figures["stopped by"] = stop.reason
    print_figures("Done" if stop.reason is None else "Stopped", figures)


def _existing(paths: Mapping[str, Path]) -> dict[str, str]:
    # Unlike os.path.exists, Path.exists raises if a parent directory may not be searched.
    return {name: str(path) for name, path in paths.items() if os.path.exists(path)}
