"""The command line: `key=value` overrides of a task's config."""

import logging
import os
import shlex
import signal
import sys
import textwrap
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ksim.checkpoint.options import make_config
from ksim.config import GROUPS, describe_values, options_metadata, written
from ksim.errors import ConfigError, RunError, near_misses
from ksim.parallel.multihost import is_main_process, num_processes
from ksim.task.rl import RLConfig, RLTask

MAX_WIDTH = 100
_MEANINGS_AT = 30
"""The column where the help texts begin."""
_ROLES = {
    "fixed": "A checkpoint depends on it, so it cannot change when a run is resumed.",
    "network": "It shapes the policy, so a checkpoint needs the value that it was trained with.",
    "per_process": "It may differ between the processes of a job.",
}


def help_text(usage: str, task_class: type[RLTask[Any]], base: RLConfig, width: int) -> str:
    """All options by group: names, defaults and help texts."""
    summary = (task_class.__doc__ or "").strip().splitlines()[:1]
    blocks = ["\n\n".join([f"Usage: {usage}", *summary])]
    metadata = options_metadata(type(base))
    for group in GROUPS:
        names = [name for name, known in metadata.items() if known["group"] == group]
        if names:
            blocks.append(
                "\n".join([group, *(_row(name, base, metadata[name], min(width, MAX_WIDTH)) for name in names)])
            )
    blocks.append("--help NAME explains an option at length.")
    return "\n\n".join(blocks)


def option_text(name: str, base: RLConfig, width: int) -> str:
    """The long help text of one option; raises ConfigError if there is no such option."""
    metadata = options_metadata(type(base))
    if name not in metadata:
        raise ConfigError(f"There is no option {name!r}. {near_misses(name, metadata)} --help lists all.")
    known = metadata[name]
    facts = {
        "default": written(getattr(base, name)),
        "value": describe_values(type(base), name),
        "group": known["group"],
    }
    roles = [sentence for role, sentence in _ROLES.items() if role in known]
    if not known.get("saved", True):
        roles.append("It belongs to a command, not to a run: a resumed run does not keep it.")
    wrap = lambda text: textwrap.fill(text, min(width, MAX_WIDTH))
    return "\n\n".join(
        [
            wrap(f"{name}: {known.get('help', '')}"),
            "\n".join(f"  {fact:<8} {words}" for fact, words in facts.items()),
            *([wrap(known["details"])] if "details" in known else []),
            *([wrap(" ".join(roles))] if roles else []),
        ]
    )


def _row(name: str, base: RLConfig, known: Mapping[str, Any], width: int) -> str:
    left = f"  {name}={written(getattr(base, name))}"
    meaning = known.get("help", "")
    choices: Sequence[str] = known.get("choices", ())
    if any(choice not in meaning for choice in choices):
        meaning += f" [{'|'.join(choices)}]"
    indent = " " * _MEANINGS_AT
    first = left.ljust(_MEANINGS_AT) if len(left) < _MEANINGS_AT else f"{left}\n{indent}"
    lines = textwrap.wrap(meaning, width - _MEANINGS_AT, break_on_hyphens=False) or [""]
    return first + f"\n{indent}".join(lines)


def launch(task_class: type[RLTask[Any]], config: RLConfig | None = None, argv: Sequence[str] | None = None) -> None:
    """Runs a task with a config and overrides from the command line; exits the process.

    Exit codes: 0; 1 for a run that failed; 2 for input that cannot work; 70 for a run that hung; 75 for a run
    that max_runtime stopped, to be resumed; 128 + n if signal n stopped the run.

    Args:
        config: The config to override; None for the defaults of its class.
        argv: Overrides; None for the arguments of the process.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    base = config if config is not None else task_class.get_config_class()()
    _quieten()
    options = base
    try:
        if "--help" in argv or "-h" in argv:
            _print_help(task_class, base, [x for x in argv if x.isidentifier()])
            sys.exit(0)
        options = make_config(base, argv, task_class.name_with(base), task_class.pretrained)
        task = task_class(options)
        task.program_config, task.command = base, describe_program(task_class)
        code = task.run().exit_code
    except ConfigError as error:
        if options.log_level == "debug":
            traceback.print_exc()
        print(f"Error: {error}", file=sys.stderr)
        leave(2)
    except RunError as error:
        print(f"Error: {error}", file=sys.stderr)
        leave(1)
    except SystemExit as ended:  # raised by a hook; the job's other processes are not waited for
        if num_processes() == 1:
            raise
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        leave(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        leave(128 + signal.SIGINT)
    except Exception:
        if num_processes() == 1:
            raise
        traceback.print_exc()
        leave(1)
    sys.exit(code)


def _print_help(task_class: type[RLTask[Any]], base: RLConfig, names: Sequence[str]) -> None:
    """Prints the help of the named options, or of all options if none is named."""
    from ksim.host.terminal import console  # noqa: PLC0415

    usage = f"{describe_program(task_class)} {task_class.arguments}"
    width = console.width if console.is_terminal else 80
    texts = [option_text(name, base, width) for name in names]
    console.print("\n\n".join(texts) or help_text(usage, task_class, base, width), markup=False)


def _quieten() -> None:
    """Silences messages that a user cannot act on, unless the program handles records or warnings itself."""
    if not logging.getLogger().hasHandlers():
        logging.getLogger("absl").setLevel(logging.ERROR)  # libraries log verbosely
    if warnings.showwarning.__module__ == warnings.formatwarning.__module__ == "warnings":
        # Without the source line.
        warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"


def leave(code: int) -> NoReturn:
    """Ends the process after a failure. In a job it does not wait for the other processes, as JAX would."""
    if num_processes() > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        if is_main_process():
            time.sleep(1.0)  # the others report the same, and must do so before the coordinator ends
        os._exit(code)
    sys.exit(code)


def describe_program(task_class: type[RLTask[Any]]) -> str:
    """The command of a task: `python -m examples.walking`, or `python my_task.py` if run as a file."""
    if task_class.__module__ != "__main__":
        return f"python -m {task_class.__module__}"
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return f"python -m {spec.name}" if spec is not None else f"python {shlex.quote(sys.argv[0])}"
