"""The command line: `key=value` overrides of a task's config."""

import dataclasses
import logging
import os
import signal
import sys
import time
import traceback
import typing
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import yaml
from omegaconf import OmegaConf
from omegaconf.base import SCMode
from omegaconf.errors import OmegaConfBaseException, ValidationError
from rich.table import Table
from xax.utils.text import camelcase_to_snakecase

from ksim.config import CHECKPOINT_MODES, is_of_the_run
from ksim.parallel.multihost import is_main_process, num_processes
from ksim.types import ConfigError, RunError, near_misses

if TYPE_CHECKING:
    from ksim.task.rl import RLConfig, RLTask


def launch(
    task_class: "type[RLTask[Any]]", config: "RLConfig | None" = None, argv: Sequence[str] | None = None
) -> None:
    """Runs a task with a config and overrides from the command line; exits the process.

    Exit codes: 0; 1 for a run that failed; 2 for input that cannot work; 70 for one that hung; 75 for one that
    max_runtime stopped, to be resumed; 128 + n when signal n stopped the run.

    Args:
        task_class: The task.
        config: What the overrides change, default the config class's own defaults.
        argv: Overrides, default those of the process.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    base = config if config is not None else task_class.get_config_class()()
    # Libraries say at length what a user of ksim cannot act on.
    logging.getLogger("absl").setLevel(logging.ERROR)
    # A warning is for the user: the message, without the source line it came from.
    warnings.showwarning = lambda message, *_, **__: print(f"Warning: {message}", file=sys.stderr)
    if "--help" in argv or "-h" in argv:
        print_help(task_class, base)
        sys.exit(0)
    try:
        code = task_class(make_config(base, argv, camelcase_to_snakecase(task_class.__name__))).run()
    except ConfigError as error:
        print(f"Error: {error}", file=sys.stderr)
        leave(2)
    except RunError as error:
        print(f"Error: {error}", file=sys.stderr)
        leave(1)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        leave(128 + signal.SIGINT)
    except Exception:
        if num_processes() == 1:
            raise
        traceback.print_exc()
        leave(1)
    sys.exit(code)


def leave(code: int) -> NoReturn:
    """Ends the process after a failure; one of several does not wait for the others, as JAX would have it."""
    if num_processes() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        if is_main_process():
            time.sleep(
                1.0
            )  # the others are told the same, and would be aborted with the coordinator before they say it
        os._exit(code)
    sys.exit(code)


def make_config(base: "RLConfig", argv: Sequence[str], task_name: str) -> Any:
    """A config with overrides; where a run goes on or is evaluated or shown, on top of that run's own config.

    Args:
        base: What the overrides change.
        argv: The overrides.
        task_name: The task's name, for the directories of its runs.

    Raises:
        ConfigError: An override is wrong, there is no such run, or its config is damaged.
    """
    config = parse_overrides(base, argv)
    if config.resume is None and (config.run_mode not in CHECKPOINT_MODES or config.checkpoint is None):
        return config
    from ksim.run.start import saved_options  # noqa: PLC0415

    of_the_run = {f.name for f in dataclasses.fields(base) if is_of_the_run(f)}
    saved = {name: value for name, value in saved_options(config, task_name).items() if name in of_the_run}
    for name, value in saved.items():
        # Data, that no resolver of OmegaConf's is to act on.
        if "${" in str(value):
            raise ConfigError(f"Option {name} ({value!r}) of the checkpoint is an interpolation, which is not read.")
    return parse_overrides(dataclasses.replace(base, **saved), argv)


def parse_overrides(base: "RLConfig", argv: Sequence[str]) -> Any:
    """A config with `key=value` overrides.

    Raises:
        ConfigError: An argument is no `key=value`, its key is not known, or its value is not of the option's type.
    """
    known = {f.name: f for f in dataclasses.fields(base)}
    config = OmegaConf.structured(base)
    for argument in argv:
        key, equals, value = argument.partition("=")
        if key.lstrip("-") in known and key not in known:
            raise ConfigError(f"Option {argument!r} must be written {key.lstrip('-')}=VALUE, without dashes.")
        if not equals:
            raise ConfigError(f"Argument {argument!r} must be of the form key=value. {near_misses(key, known)}")
        if key not in known:
            raise ConfigError(f"There is no option {key!r}. {near_misses(key, known)} --help lists all.")
        try:
            if not value:
                raise ValidationError("An empty value would be taken for null.")
            config = OmegaConf.merge(config, OmegaConf.from_dotlist([argument]))
            OmegaConf.select(config, key, throw_on_missing=True)
        except (OmegaConfBaseException, yaml.YAMLError):
            kind = describe_type(base, key)
            raise ConfigError(f"Option {key} ({value!r}) must be {kind}.") from None
    return OmegaConf.to_container(config, resolve=True, structured_config_mode=SCMode.INSTANTIATE)


def describe_type(base: "RLConfig", key: str) -> str:
    """The type of an option in words."""
    kind = next(f for f in dataclasses.fields(base) if f.name == key).metadata.get("kind")
    if kind is not None:
        return kind
    hint = typing.get_type_hints(type(base))[key]
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    options = typing.get_args(hint) if typing.get_origin(hint) is not list and typing.get_args(hint) else (hint,)
    return " or ".join(
        "a list, as in [256,128]" if typing.get_origin(option) is list else words.get(option, str(option))
        for option in options
    )


def describe_program(task_class: "type[RLTask[Any]]") -> str:
    """How a task is run: `python -m examples.walking`, or `python my_task.py` for a file that is run by its path."""
    if task_class.__module__ != "__main__":
        return f"python -m {task_class.__module__}"
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return f"python -m {spec.name}" if spec is not None else f"python {sys.argv[0]}"


def print_help(task_class: "type[RLTask[Any]]", base: "RLConfig") -> None:
    """Prints every option with its type, default and help text."""
    from ksim.run.console import console  # noqa: PLC0415

    summary = (task_class.__doc__ or "").strip().splitlines()
    usage = f"Usage: {describe_program(task_class)} [KEY=VALUE ...]"
    console.print(f"{usage}\n\n{summary[0] if summary else ''}\n", markup=False)
    table = Table()
    for column in ("option", "type", "default"):
        table.add_column(column, no_wrap=True)
    table.add_column("meaning")
    for option in dataclasses.fields(base):
        value = getattr(base, option.name)
        default = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        kind = describe_type(base, option.name)
        table.add_row(option.name, kind, default.replace("[", r"\["), option.metadata.get("help", ""))
    console.print(table)
