"""The pages of the docs: their blocks of code, their tables, and how their commands are run.

A comment before a block says what becomes of it:

- `<!-- file: NAME -->`: a file, which is written into the directory in which the page's blocks are run.
- `<!-- runs -->`: run by bash as it stands, with stand-ins on the PATH for the programs: see stand_in.py.
  `<!-- runs: walking -->`: with the humanoid, on pages that otherwise run with a point mass.
  `<!-- runs: point mass -->`: with a point mass, on pages that otherwise run with the humanoid.
  `<!-- runs: side by side -->`: all commands at once, as on two machines.
  `<!-- runs: in a Slurm job -->`: with the variables of a job. `<!-- runs: slurm -->`, `<!-- runs: mpi -->`: by name.
  `<!-- runs: tests/FILE.py -->`: run by another test.
- `<!-- not run here: REASON -->`.

test_pages.py runs the blocks.
"""

import html
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.end_to_end import stand_in
from tests.support.processes import ROOT, free_port, quick_flags
from tests.support.robots import BIPED

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
"""All pages for readers."""
FOLDERS = dict.fromkeys(("DISTRIBUTED_TRAINING.md", "clusters.md"), "several") | dict.fromkeys(
    ("own_robot.md", "own_task.md", "own_environment.md", "own_algorithm.md", "migrating.md"), "own"
)
"""Pages whose blocks are run in a directory apart; those of all others are run in one that looks like a clone."""
OPTIONS = {
    "several": "max_iterations=1",
    "own": "max_iterations=1 num_envs=4",
    "clone": "max_iterations=2 num_envs=16 symmetry=off",
    # The time of synchronisation is measured after the first iteration.
    "walking": "max_iterations=2 symmetry=off",
}
"""Options that make training short, by directory, or by what the comment of a block says."""
SMALL = {"HumanoidWalkingDistributed": "PointMass", "examples.walking_distributed": "examples.point_mass"}
"""Names in programs of the pages on several devices, and what is trained instead."""
READING = ("README.md", "running.md", "learning.md", "deploying.md", "reliability.md", "benchmarks.md")
"""Pages in the order in which they are run: what one page's commands write, those of a later page read."""


OWN = ("XLA_", "PJRT_", "JAX_", "KSIM_", "SLURM_", "MAKE", "MFLAGS", "ARGS", "VENV", "PYTHON")
"""Prefixes of environment variables that may have been set for the tests."""
CACHE = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
"""Variables of the tests' compilation cache, which commands use as well."""


class Block(NamedTuple):
    """A marked block of code."""

    page: str
    kind: str
    how: str
    language: str
    text: str

    @property
    def folder(self):
        return FOLDERS.get(self.page, "clone")


def read(page):
    """The text of a page, by its name."""
    (path,) = [path for path in PAGES if path.name == page]
    return path.read_text()


def in_order(path):
    own = ("own_robot.md", "own_task.md")  # other pages use the robot of the first
    order = (*READING, *own)
    return order.index(path.name) if path.name in order else len(order)


def running_text(page):
    """The text of a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE)


def code(page):
    """All blocks of a page, marked or not: language and text."""
    return re.findall(r"^```(\w*)\n(.*?)^```", read(page), flags=re.DOTALL | re.MULTILINE)


def python_blocks(page):
    """The blocks of Python of a page, marked or not."""
    return [text for language, text in code(page) if language == "python"]


def rows(page, heading):
    """The rows of the tables under a heading, as lists of cells, without their headers."""
    section = re.split(r"^#+ ", read(page).split(f"# {heading}\n")[1], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [re.split(r"(?<!\\)\|", line.strip("|")) for line in lines]
    assert cells, heading
    return [[html.unescape(cell.strip().replace("\\|", "|")) for cell in row] for row in cells[1:]]


BLOCK = re.compile(r"<!-- (file|runs|not run here)(?:: ([^>]*))? -->\n```(\w+)\n(.*?)```", re.DOTALL)
BLOCKS = [Block(path.name, *found) for path in sorted(PAGES, key=in_order) for found in BLOCK.findall(path.read_text())]
"""The marked blocks of all pages, in the order in which they are run."""


def lines_of(block):
    """The commands of a block of shell, one a line, without comments."""
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in block.replace("\\\n", " ").splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip()]


def runs():
    """The blocks to run. A program that no command of its page runs is run for an iteration."""
    runs = [block for block in BLOCKS if block.kind == "runs" and not block.how.startswith("tests/")]
    named = {word for block in runs for word in block.text.split()}
    for block in BLOCKS:
        if block.kind == "file" and block.how.endswith(".py") and block.how not in named:
            runs.append(block._replace(kind="runs", how="", text=f"python {block.how} num_envs=64 max_iterations=1"))
    return runs


def make_folder(path, folder):
    """Fills a directory with the files of its pages, and with stand-ins for programs in `bin`."""
    for block in BLOCKS:
        if block.kind == "file" and block.folder == folder:
            text = block.text
            if folder == "several" and block.how.endswith(".py"):
                for name, small in SMALL.items():
                    text = text.replace(name, small)
            (path / block.how).write_text(text)
    (path / "bin").mkdir()
    for name in stand_in.PROGRAMS:
        (path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {Path(stand_in.__file__)} {name} "$@"\n')
        (path / "bin" / name).chmod(0o755)
    if folder == "clone":  # in which everything is installed
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py", "examples"):
            (path / name).symlink_to(ROOT / name)
        (path / "my_robot.xml").write_text(BIPED)
        shutil.copytree(path / "bin", path / ".venv/bin")
        for stamp in (".installed", ".extras", ".site"):
            (path / ".venv" / stamp).touch()


def job_with_free_port():
    """A Slurm job whose number makes JAX pick a port that is free: one of the 4096 highest."""
    for job in range(os.getpid() % 4096, os.getpid() % 4096 + 4096):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", job % 4096 + 65535 - 4096 + 1)):
                return job
    raise AssertionError("no port is free")


def run(block, directory):
    """The output of a block that runs to its end."""
    variables = {
        "DOCS_PORT": str(free_port()),
        "DOCS_JOB": str(job_with_free_port()),
        "DOCS_TASK": task_of(block),
        "DOCS_OPTIONS": OPTIONS.get(block.how, OPTIONS[block.folder]),
    }
    if block.how == "in a Slurm job":
        variables |= stand_in.job_variables(variables["DOCS_JOB"])
    commands = lines_of(block.text) if block.how == "side by side" else [block.text]
    return "\n".join(finish(process) for process in [start_bash(x, directory, variables) for x in commands])


def task_of(block):
    """`walking` or `point_mass`."""
    is_small = block.folder == "several" or block.how in ("point mass", "in a Slurm job")
    return "point_mass" if is_small and block.how != "walking" else "walking"


def start_bash(command, directory, variables):
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
