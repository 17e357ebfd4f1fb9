"""Every command that the docs show is one that its program takes.

Each command, in blocks and within sentences, is parsed by the program that it names, up to where that would begin its
work. test_pages.py runs those in blocks.
"""

import argparse
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from unittest import mock

import pytest

import ksim
from ksim.checkpoint.options import make_config
from ksim.launch.options import parse_options
from tests.end_to_end.pages import PAGES, code, lines_of, running_text
from tests.support.processes import ROOT

PROGRAMS = ("python", "pip", "make", "ksim-train", "docker")
"""First words of a command within a sentence."""
NOT_PARSED = {
    r"docker (?:build|run) .*|mkdir .*": "there is no Docker; tests/test_distribution.py reads its file",
    r"cmake .*|build/cpp/replay .*": "tests/deploy/test_cpp.py builds and runs it",
    r"kubectl .*": "there is no cluster",
    r"sbatch .*": "its script is run by test_pages.py",
    r"code=.*|if .*": "the shell's own",
    r"pip install (?:xprof|build|mlflow|tensorboard|'jax\[k8s\]')": "a package of others",
    r"python -m build|pip install 'dist/.*": "tests/test_distribution.py builds and installs the distributions",
    r"python -m ksim.tools.(?:terms|options) .*": "it has no arguments; tests/tools/ runs it",
    r"python shares\.py .*": "a program of the page, with its own arguments",
    r"python -m ksim.envs.\w+ .*": "needs an extra; tests/envs/test_playground.py runs it",
    r"python -m ksim.launch(?: \[OPTIONS\].*)?|python -m ksim.tools.scaling(?: --predict)?": "a synopsis",
    r"ksim-train (?:RUN_DIR|runs/.*)": "there is no run; tests/tools/test_train.py starts the program of one",
    r"python -m benchmarks.learning .* --variant \.\.\.": "a synopsis",
}
"""Commands that no program here could parse, and why."""


def commands():
    """Every command of the docs, once."""
    found = []
    for page in PAGES:
        shown = [line for language, block in code(page.name) if language in ("sh", "bash") for line in lines_of(block)]
        spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", running_text(page.name))]
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
