"""The options of the launcher, which come before the program."""

import argparse
import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ksim.checks import check_rule, is_address, is_one_line
from ksim.errors import ConfigError, near_misses, quoted
from ksim.parallel.job import hint

_USAGE = "python -m ksim.launch [OPTIONS] (-m MODULE | FILE) [ARGUMENT ...]"

# Placeholder of the value, default, and meaning.
OPTIONS = {
    "--nnodes": ("N", "1", "number of machines (default 1)"),
    "--nproc-per-node": ("N", "1", "number of processes on each machine (default 1)"),
    "--node-rank": ("I", None, "index of this machine, from 0 (default 0; required if --nnodes > 1)"),
    "--coordinator-address": (
        "HOST:PORT",
        None,
        "where process 0 listens: an address of machine 0 that all machines can reach, the same on all "
        "(default 127.0.0.1 and a free port; required if --nnodes > 1)",
    ),
    "--log-dir": ("DIR", None, "append each process's output to DIR/process_<id>.out (default: print it, prefixed)"),
    "--grace-s": (
        "SECONDS",
        "10",
        "after a failure: time between SIGTERM and SIGKILL for the other processes (default 10)",
    ),
    "--max-restarts": (
        "N",
        "0",
        "after a failure: start the processes again from the run's newest checkpoint, N times in all (default 0)",
    ),
    "--min-nproc": (
        "N",
        None,
        "restart without the process that failed, while at least N are left (default: with as many as before)",
    ),
}


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Checked options of the launcher.

    Attributes:
        node_rank: Index of this machine, from 0.
        coordinator_address: HOST:PORT at which process 0 will listen.
        log_dir: Directory of each process's output; None to print it with a prefix.
        picks_port: Whether the launcher chose the coordinator's address, so that restarts may choose another.
        grace_s: Seconds between SIGTERM and SIGKILL after a failure.
        max_restarts: Largest total number of restarts.
        min_nproc: Smallest number of processes of a restart; None: as many as before.
        program: Arguments of the interpreter: `("-m", module, ...)` or `(file, ...)`.
    """

    nnodes: int
    nproc_per_node: int
    node_rank: int
    coordinator_address: str
    picks_port: bool
    log_dir: Path | None
    grace_s: float
    max_restarts: int
    min_nproc: int | None
    program: tuple[str, ...]

    @property
    def num_processes(self) -> int:
        """Number of processes on all nodes together."""
        return self.nnodes * self.nproc_per_node

    @property
    def first_process_id(self) -> int:
        """Global id of this node's first process."""
        return self.node_rank * self.nproc_per_node


def parse_options(argv: Sequence[str]) -> LaunchOptions:
    """Parses the options, and leaves the program's arguments unchanged.

    Raises:
        ConfigError: An option is unknown or invalid.
        SystemExit: With code 0, after --help.
    """
    own, program = _split(argv)
    parsed = _make_parser().parse_args(own)
    nnodes = _whole_number("--nnodes", parsed.nnodes, least=1)
    nproc_per_node = _whole_number("--nproc-per-node", parsed.nproc_per_node, least=1)
    if nnodes > 1:
        for name, value in (("--node-rank", parsed.node_rank), ("--coordinator-address", parsed.coordinator_address)):
            if value is None:
                example = "0" if name == "--node-rank" else "10.0.0.1:8476"
                raise ConfigError(f"--nnodes {nnodes} needs {name} as well, as in {name} {example}.")
    return LaunchOptions(
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        node_rank=_node_rank(parsed.node_rank or "0", nnodes),
        coordinator_address=_address(parsed.coordinator_address),
        picks_port=parsed.coordinator_address is None,
        log_dir=_log_dir(parsed.log_dir),
        grace_s=_seconds("--grace-s", parsed.grace_s),
        max_restarts=_max_restarts(parsed.max_restarts, nnodes),
        min_nproc=_min_nproc(parsed.min_nproc, nproc_per_node, parsed.max_restarts),
        program=_program(program),
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[0].upper()}{message[1:]}. Usage: {_USAGE}; --help lists the options.")


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        usage=_USAGE,
        description="Starts this machine's processes of a training, and ends them together when one of them fails.",
        epilog="What follows -m MODULE or FILE goes to the program untouched.",
        allow_abbrev=False,
    )
    for name, (metavar, default, meaning) in OPTIONS.items():
        parser.add_argument(name, metavar=metavar, default=default, help=meaning)
    return parser


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The launcher's arguments, with underscores as in torchrun turned into dashes, and the program's arguments.

    Argparse's REMAINDER would swallow a `--` that belongs to the program.

    Raises:
        ConfigError: The launcher has no such option.
    """
    argv, helps = list(argv), ("-h", "--help")
    i = 0
    while i < len(argv) and argv[i] != "-m" and argv[i].startswith("-"):
        given, equals, value = argv[i].partition("=")
        name = given.replace("_", "-")
        argv[i] = f"{name}{equals}{value}"
        if name not in OPTIONS and name not in helps:
            meant = hint(name, to_launcher=True) or near_misses(name, OPTIONS)
            raise ConfigError(
                f"The launcher has no option {given!r}. {meant} The program's own arguments follow its name."
            )
        num = 1 if equals or name in helps else 2
        for argument in argv[i : i + num]:
            check_rule(f"Argument {quoted(argument)} of {name}", is_one_line(argument), "one line of text in UTF-8")
        i += num
    return argv[:i], argv[i:]


def _whole_number(name: str, value: str, *, least: int) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    check_rule(f"{name} ({value})", number >= least, f"a whole number, at least {least}, as in {name} {least + 1}")
    return number


def _max_restarts(value: str, nnodes: int) -> int:
    number = _whole_number("--max-restarts", value, least=0)
    if number > 0 and nnodes > 1:
        raise ConfigError(
            f"--max-restarts ({number}) restarts the processes of one machine, not of several (--nnodes {nnodes}), "
            "whose launchers would have to agree. Leave it out, and start the command again with resume=auto."
        )
    return number


def _min_nproc(value: str | None, nproc_per_node: int, max_restarts: str) -> int | None:
    if value is None:
        return None
    number = _whole_number("--min-nproc", value, least=1)
    rule = f"at most --nproc-per-node ({nproc_per_node})"
    check_rule(f"--min-nproc ({number})", number <= nproc_per_node, rule)
    if int(max_restarts) == 0:
        raise ConfigError(f"--min-nproc ({number}) needs --max-restarts as well, as in --max-restarts 3.")
    return number


def _node_rank(value: str, nnodes: int) -> int:
    rank = _whole_number("--node-rank", value, least=0)
    rule = f"below --nnodes ({nnodes}): ranks count from 0 to {nnodes - 1}"
    check_rule(f"--node-rank ({rank})", rank < nnodes, rule)
    return rank


def _seconds(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    rule = f"a number of seconds, at least 0 and at most 1000000, as in {name} 10"
    check_rule(f"{name} ({value})", 0 <= number <= 1e6, rule)
    return number


def free_address() -> str:
    """HOST:PORT on the loopback interface, with a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _address(value: str | None) -> str:
    """A checked HOST:PORT; `free_address()` if the value is None."""
    if value is None:
        return free_address()
    rule = "HOST:PORT with a port from 1 to 65535, as in 10.0.0.1:8476"
    check_rule(f"--coordinator-address ({value})", is_address(value), rule)
    return value


def _log_dir(value: str | None) -> Path | None:
    if value is None:
        return None
    check_rule(f"--log-dir ({value!r})", bool(value), "the name of a directory")
    path = Path(value).absolute()
    parent = next(p for p in (path, *path.parents) if os.path.exists(p))
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise ConfigError(
            f"--log-dir ({value}) must be a directory that can be written, or made: {parent} is "
            f"{'read-only' if parent.is_dir() else 'no directory'}. Choose another."
        )
    return path


def _program(arguments: list[str]) -> tuple[str, ...]:
    if not arguments or arguments == ["-m"]:
        raise ConfigError(f"There must be a program after the options, -m MODULE or FILE. Usage: {_USAGE}.")
    if arguments[0] != "-m" and not os.path.exists(arguments[0]):
        hint = ""
        if "=" in arguments[0]:
            hint = " The program comes before its own arguments."
        elif not arguments[0].endswith(".py"):
            hint = f" For a module write -m {arguments[0]}."
        raise ConfigError(f"There is no file {arguments[0]!r} to run in {os.getcwd()}.{hint}")
    return tuple(arguments)
