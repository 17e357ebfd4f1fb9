"""The blocks of code on the pages of the docs, and how their commands are run.

A comment before a block says what becomes of it:

- `<!-- file: NAME -->`: a file, which is written into the directory in which the page's blocks are run.
- `<!-- runs -->`: run by bash as it stands, with stand-ins on the PATH for the programs: see stand_in.py.
  `<!-- runs: HOW -->` says how; `<!-- runs: tests/FILE.py -->` is run by another test.
- `<!-- not run here: REASON -->`.
"""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from tests.end_to_end import stand_in
from tests.support.processes import ROOT, quick_flags

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
"""All pages for readers."""

BLOCK = re.compile(r"<!-- (file|runs|not run here)(?:: ([^>]*))? -->\n```(\w+)\n(.*?)```", re.DOTALL)

OWN = ("XLA_", "PJRT_", "JAX_", "KSIM_", "SLURM_", "MAKE", "MFLAGS", "ARGS", "VENV", "PYTHON")
"""Prefixes of environment variables that may have been set for the tests."""
CACHE = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
"""Variables of the tests' compilation cache, which commands use as well."""


def write_stand_ins(folder):
    """Programs of the docs, into a folder for the PATH."""
    folder.mkdir(parents=True)
    for name in stand_in.PROGRAMS:
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {Path(stand_in.__file__)} {name} "$@"\n')
        (folder / name).chmod(0o755)


def job_with_free_port():
    """A Slurm job whose number makes JAX pick a port that is free: one of the 4096 highest."""
    for job in range(os.getpid() % 4096, os.getpid() % 4096 + 4096):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", job % 4096 + 65535 - 4096 + 1)):
                return job
    raise AssertionError("no port is free")


def start_bash(command, directory, *, task, **variables):
    """Starts a command with nothing of this process's own settings for JAX and make but the compilation cache."""
    kept = {name: value for name, value in os.environ.items() if name in CACHE or not name.startswith(OWN)}
    environment = {
        **kept,
        "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "JAX_PLATFORMS": "cpu",
        # Compiling is most of what short runs do.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": " ".join(quick_flags()),
        "DOCS_TASK": task,
        **variables,
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(["bash", "-ec", command], cwd=directory, env=environment, **pipes)


def finish(process):
    """The output of a command that succeeds."""
    try:
        output, _ = process.communicate(timeout=900)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output
