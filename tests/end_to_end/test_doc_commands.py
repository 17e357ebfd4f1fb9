"""Every command that the docs show is one that its program takes, and those in blocks of code run.

Quickly: each command, in blocks and within sentences, is parsed by the program that it names, up to where that would
begin its work. At length: the blocks of the pages below are run, as marked; see pages.py.
"""

import argparse
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from unittest import mock

import pytest

import ksim
from ksim.checkpoint.options import make_config
from ksim.launch.options import parse_options
from tests.end_to_end.pages import BLOCK, PAGES, finish, job_with_free_port, start_bash, write_stand_ins
from tests.end_to_end.stand_in import job_variables
from tests.support.processes import ROOT, free_port
from tests.support.robots import BIPED

RUN_ELSEWHERE = dict.fromkeys(("DISTRIBUTED_TRAINING.md", "clusters.md"), "test_distributed_docs.py") | dict.fromkeys(
    ("own_robot.md", "own_task.md", "own_environment.md", "own_algorithm.md"), "test_docs.py"
)
"""Pages whose blocks of commands are run by a test of their own."""
PROGRAMS = ("python", "pip", "make", "ksim-train", "docker")
"""First words of a command within a sentence."""
NOT_PARSED = {
    r"docker (?:build|run) .*|mkdir .*": "there is no Docker; tests/test_distribution.py reads its file",
    r"kubectl .*": "there is no cluster",
    r"sbatch .*": "its script is run by test_distributed_docs.py",
    r"code=.*|if .*": "the shell's own",
    r"pip install (?:xprof|build|mlflow|tensorboard|'jax\[k8s\]')": "a package of others",
    r"python -m build|pip install 'dist/.*": "tests/test_distribution.py builds and installs the distributions",
    r"python -m ksim.tools.(?:terms|options) .*": "it has no arguments; tests/tools/ runs it",
    r"python shares\.py .*": "a program of the page, with its own arguments",
    r"python -m ksim.envs.\w+ .*": "needs an extra; tests/envs/test_playground.py runs it",
    r"python -m ksim.launch(?: \[OPTIONS\].*)?|python -m ksim.tools.scaling(?: --predict)?": "a synopsis",
    r"python -m benchmarks.learning .* --variant \.\.\.": "a synopsis",
}
"""Commands that no program here could parse, and why."""


def blocks(page):
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def lines_of(block):
    """The commands of a block of shell, one a line, without comments."""
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in block.replace("\\\n", " ").splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip()]


def commands():
    """Every command of the docs, once."""
    found = []
    for page in PAGES:
        shown = [line for language, block in blocks(page) if language in ("sh", "bash") for line in lines_of(block)]
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]
        found += shown
        found += [span for span in spans if re.match(rf"(?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)}) ", span)]
    return list(dict.fromkeys(found))


COMMANDS = commands()
PARSE_ARGS = argparse.ArgumentParser.parse_args


class ParsedError(BaseException):
    """A program has read its arguments; no handler of errors takes it."""


@pytest.fixture
def parsing(monkeypatch):
    """Programs stop where they have parsed their arguments, or have a task with valid options."""

    def parsed(parse):
        def parse_and_stop(self, *arguments, **options):
            parse(self, *arguments, **options)
            raise ParsedError

        return parse_and_stop

    def make_and_stop(*arguments):
        make_config(*arguments).validate()
        raise ParsedError

    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, parsed(getattr(argparse.ArgumentParser, name)))
    monkeypatch.setattr("ksim.cli.make_config", make_and_stop)
    monkeypatch.setattr("ksim.checkpoint.options.saved_options", lambda *_: {})
    monkeypatch.setattr("sys.path", [str(ROOT), *sys.path])
    monkeypatch.setattr("sys.argv", ["docs"])
    with mock.patch.dict(os.environ):
        yield


def parse_python(arguments, monkeypatch):
    """Parses the arguments as `python ARGUMENTS` would."""
    module = arguments[1] if arguments[0] == "-m" else None
    if module == "ksim.launch":
        with mock.patch.object(argparse.ArgumentParser, "parse_args", PARSE_ARGS):
            program = parse_options(arguments[2:]).program
        parse_python(list(program), monkeypatch)
    elif module is not None:
        monkeypatch.setattr("sys.argv", [module, *arguments[2:]])
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif (ROOT / arguments[0]).exists():
        monkeypatch.setattr("sys.argv", arguments)
        runpy.run_path(str(ROOT / arguments[0]), run_name="__main__")
    else:  # a reader's own task
        ksim.DistributedPPOTask.launch(argv=arguments[1:])


def check(command, monkeypatch):
    """Raises unless the program that a command names takes its arguments."""
    words = shlex.split(re.sub(r"\[RUN_DIR \.\.\.\]|\[ROBOT.xml \.\.\.\]|\.\.\.|> \S+$", "", command))
    while re.match(r"\w+=", words[0]):  # variables of the environment
        words = words[1:]
    program, *arguments = words
    if program in ("srun", "mpirun"):
        program, *arguments = words[words.index("python") :]
    elif program == "torchrun":
        program, *arguments = "python", *words[words.index("-m") :]
    program = program.removeprefix(".venv/bin/")
    if program == "python":
        parse_python(arguments, monkeypatch)
    elif program == "ksim-train":
        monkeypatch.setattr("sys.argv", [program, *arguments])
        runpy.run_module("ksim.tools.train", run_name="__main__")
    elif program == "make":
        subprocess.run([program, "--dry-run", *arguments], cwd=ROOT, check=True, capture_output=True)
        raise ParsedError
    elif program == "pip":
        (extras,) = re.findall(r"^install (?:-e )?(?:\.|ksim-rl)(?:\[(.*)\])?$", " ".join(arguments))
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(filter(None, extras.split(","))) <= set(known)
        raise ParsedError
    else:
        pytest.fail(f"{program} is neither parsed nor in NOT_PARSED.")


def is_left_out(command):
    return any(re.fullmatch(pattern, command) for pattern in NOT_PARSED)


@pytest.mark.parametrize("command", [command for command in COMMANDS if not is_left_out(command)], ids=str)
@pytest.mark.filterwarnings("ignore:.* found in sys.modules after import of package:RuntimeWarning")
def test_command_is_one_that_its_program_takes(command, parsing, monkeypatch):
    with pytest.raises(SystemExit if "--help" in command else ParsedError) as ended:
        check(command, monkeypatch)
    assert getattr(ended.value, "code", 0) == 0


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("python -m examples.walking_distributed num_env=64", SystemExit),
        ("python -m examples.walking_distributed num_envs=0", SystemExit),
        ("python -m ksim.tools.report --output report.html RUN_DIR", SystemExit),
        ("python -m benchmarks.nothing", ImportError),
        ("ksim-train walkin", SystemExit),
        ("pip install -e '.[everything]'", AssertionError),
        ("make everything", subprocess.CalledProcessError),
        ("conda install ksim", pytest.fail.Exception),
    ],
)
@pytest.mark.filterwarnings("ignore:.* found in sys.modules after import of package:RuntimeWarning")
def test_command_that_its_program_would_refuse_is_found(command, ended, parsing, monkeypatch):
    with pytest.raises(ended):
        check(command, monkeypatch)


def test_every_reason_not_to_parse_a_command_is_needed():
    for pattern in NOT_PARSED:
        assert any(re.fullmatch(pattern, command) for command in COMMANDS), pattern


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_commands_is_run_or_says_why_not(page):
    shells = [block for language, block in blocks(page) if language in ("sh", "bash")]
    marked = {text: (kind, how) for kind, how, language, text in BLOCK.findall(page.read_text())}
    for block in shells:
        kind, how = marked[block]
        assert kind in ("file", "runs") or how, block
        if how.startswith("tests/"):
            assert (ROOT / how).is_file()
    for language, block in blocks(page):
        if not language:
            assert not re.search(rf"^(?:{'|'.join(PROGRAMS)}) ", block, re.MULTILINE), "a block of commands without sh"


READING = ("README.md", "running.md", "learning.md", "deploying.md", "reliability.md", "benchmarks.md")
"""In this order: what one page's commands write, those of a later page read."""
BLOCKS = [
    (page, how, text)
    for page in sorted(PAGES, key=lambda page: READING.index(page.name) if page.name in READING else len(READING))
    if page.name not in RUN_ELSEWHERE
    for kind, how, _, text in BLOCK.findall(page.read_text())
    if kind == "runs" and not how.startswith("tests/")
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A directory that looks like a clone in which everything is installed, with stand-ins for programs."""
    path = tmp_path_factory.mktemp("clone")
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py", "examples"):
        (path / name).symlink_to(ROOT / name)
    (path / "my_robot.xml").write_text(BIPED)
    for page in PAGES:
        if page.name not in RUN_ELSEWHERE:
            for kind, name, _, text in BLOCK.findall(page.read_text()):
                if kind == "file":
                    (path / name).write_text(text)
    write_stand_ins(path / "bin")
    shutil.copytree(path / "bin", path / ".venv/bin")
    for stamp in (".installed", ".extras", ".site"):
        (path / ".venv" / stamp).touch()
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "how", "text"), BLOCKS, ids=[f"{p.stem}: {lines_of(text)[0]}" for p, _, text in BLOCKS]
)
def test_block_runs_as_written(page, how, text, clone):
    variables = job_variables(str(job_with_free_port())) if how == "in a Slurm job" else {}
    output = finish(start_bash(text, clone, task="small", DOCS_PORT=str(free_port()), **variables))
    assert "Traceback" not in output
