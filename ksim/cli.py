"""The command line: `key=value` overrides of a task's config."""

import contextlib
import dataclasses
import logging
import os
import signal
import sys
import time
import traceback
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import yaml
from omegaconf import OmegaConf
from omegaconf.base import SCMode
from rich.table import Table
from xax.utils.text import camelcase_to_snakecase

from ksim.config import CHECKPOINT_MODES, check_types, describe_type, is_of_the_run, is_of_type, is_text
from ksim.errors import ConfigError, RunError, near_misses, shown
from ksim.host.plain_yaml import read_yaml
from ksim.parallel.hints import hint
from ksim.parallel.multihost import is_main_process, num_processes

if TYPE_CHECKING:
    from ksim.task.rl import RLConfig, RLTask

_REMOVED = {"device_timers": "Every device is timed now, under every engine: leave it out."}


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
    _quieten()
    if "--help" in argv or "-h" in argv:
        print_help(task_class, base)
        sys.exit(0)
    options = base
    try:
        options = make_config(base, argv, camelcase_to_snakecase(task_class.__name__))
        task = task_class(options)
        task.program_config = base
        code = task.run()
    except ConfigError as error:
        if options.log_level == "debug":
            traceback.print_exc()
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


def _quieten() -> None:
    """Leaves out what a user cannot act on, unless the program has its own way with records or warnings."""
    if not logging.getLogger().hasHandlers():
        logging.getLogger("absl").setLevel(logging.ERROR)  # libraries say at length what they are about
    if warnings.showwarning.__module__ == warnings.formatwarning.__module__ == "warnings":
        # The message, without the source line that led to it.
        warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"


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
    from ksim.train.start import saved_options  # noqa: PLC0415

    of_the_run = {f.name for f in dataclasses.fields(base) if is_of_the_run(f)}
    saved = {name: value for name, value in saved_options(config, task_name).items() if name in of_the_run}
    for name, value in saved.items():
        # Data, that no resolver of OmegaConf's is to act on.
        if "${" in str(value):
            raise ConfigError(f"Option {name} ({shown(value)}) of the checkpoint must be no interpolation.")
    return parse_overrides(dataclasses.replace(base, **saved), argv)


def parse_overrides(base: "RLConfig", argv: Sequence[str]) -> Any:
    """A config with `key=value` overrides.

    Raises:
        ConfigError: An argument is no `key=value`, its key is not known, or its value is not of the option's type.
    """
    known = {f.name: f for f in dataclasses.fields(base)}
    check_types(base)
    config = OmegaConf.structured(base)
    given: dict[str, str] = {}
    for argument in argv:
        key, equals, value = argument.partition("=")
        if key.lstrip("-") in known and key not in known:
            raise ConfigError(f"Option {shown(argument)} must be written {key.lstrip('-')}=VALUE, without dashes.")
        if not equals:
            raise ConfigError(f"Argument {shown(argument)} must be of the form key=value. {_meant(key, known)}")
        if key not in known:
            raise ConfigError(f"There is no option {shown(key)}. {_meant(key, known)} --help lists all.")
        given[key] = value
        with _naming(base, key, value):
            parsed = _parse_value(value, type(base), key)
            config = OmegaConf.merge(config, OmegaConf.create({key: parsed}))
    # Only now: one may refer to another that was given after it, as in num_envs=${batch_size}.
    for key, value in given.items():
        with _naming(base, key, value):
            OmegaConf.select(config, key, throw_on_missing=True)
    config = OmegaConf.to_container(config, resolve=True, structured_config_mode=SCMode.INSTANTIATE)
    check_types(config)
    return config


def _meant(key: str, known: Mapping[str, Any]) -> str:
    """What an option that there is not may stand for, or why it is gone."""
    from ksim.task.distributed_rl import DistributedRLConfig  # noqa: PLC0415 - on top of this

    elsewhere = {f.name for f in dataclasses.fields(DistributedRLConfig)} - known.keys()
    hinted = hint(key)
    if elsewhere and (hinted or key in elsewhere):
        return f"{hinted} It needs a task that derives from ksim.DistributedPPOTask.".lstrip()
    return _REMOVED.get(key.lstrip("-")) or hinted or near_misses(key, known)


def _parse_value(text: str, config_class: type, key: str) -> Any:
    """The value that a text stands for in YAML; a number or a date is left as the text it is where one is wanted.

    Raises:
        ValueError: It has tags or anchors, is empty, which would be taken for null, or is not of the option's type.
        Exception: It is no YAML; the parser raises errors of many kinds.
    """
    refused = yaml.TagToken, yaml.AnchorToken, yaml.AliasToken, yaml.DocumentStartToken
    if any(isinstance(token, refused) for token in yaml.scan(text)):
        raise ValueError("Tags and anchors are not for the command line.")
    value = read_yaml(text)
    is_null = text.strip().lower() in ("null", "~")
    if value == "???" or (value is None and not is_null):
        raise ValueError("It would be taken for a value that is missing, or null.")
    if is_text(config_class, key) and not is_null and not isinstance(value, str | list | dict):
        return text
    # Before OmegaConf, which takes the text 0100 for a number.
    is_open = lambda x: isinstance(x, str) and "${" in x
    known = [x for x in value if not is_open(x)] if isinstance(value, list) else value
    if not is_open(value) and not is_of_type(known, typing.get_type_hints(config_class)[key]):
        raise ValueError("It is of another type.")
    return value


@contextlib.contextmanager
def _naming(base: "RLConfig", key: str, value: str) -> Iterator[None]:
    """Whatever the parsers raise, turned into what the option must be."""
    try:
        yield
    except Exception:  # noqa: BLE001 - YAML and OmegaConf let through what Python's conversions raise
        kind = describe_type(type(base), key)
        raise ConfigError(f"Option {key} ({shown(value)}) must be {kind}.") from None


def describe_program(task_class: "type[RLTask[Any]]") -> str:
    """How a task is run: `python -m examples.walking`, or `python my_task.py` for a file that is run by its path."""
    if task_class.__module__ != "__main__":
        return f"python -m {task_class.__module__}"
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return f"python -m {spec.name}" if spec is not None else f"python {sys.argv[0]}"


def print_help(task_class: "type[RLTask[Any]]", base: "RLConfig") -> None:
    """Prints every option with its type, default and help text."""
    from ksim.host.terminal import console  # noqa: PLC0415

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
        kind = describe_type(type(base), option.name)
        table.add_row(option.name, kind, default.replace("[", r"\["), option.metadata.get("help", ""))
    console.print(table)
