"""Command-line tools for runs and for the docs, started by `python -m ksim.tools.<name>`."""

import argparse
import functools
from collections.abc import Callable, Sequence

from ksim.errors import ConfigError
from ksim.host.terminal import print_line


def make_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser for a tool, described by the first line of its docstring."""
    return argparse.ArgumentParser(prog=f"python -m ksim.tools.{name}", description=(doc or "").splitlines()[0])


def exit_code_of(main: Callable[[Sequence[str] | None], None]) -> Callable[..., int]:
    """A tool's `main` that returns its exit code: 0, or 2 for invalid input, which it prints."""

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> int:
        try:
            main(argv)
        except ConfigError as error:
            print_line(f"Error: {error}")
            return 2
        return 0

    return run
