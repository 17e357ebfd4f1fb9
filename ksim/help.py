"""The output of `--help`: all options of a task in groups, or some of them at length."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ksim.config import GROUPS, describe_type, options_metadata
from ksim.errors import ConfigError, near_misses
from ksim.task.rl import RLConfig, RLTask

MAX_WIDTH = 100
_MEANINGS_AT = 30
"""The column at which meanings begin."""
_ROLES = {
    "fixed": "A checkpoint depends on it, so it cannot change when a run is resumed.",
    "network": "It shapes the network, so a checkpoint needs the value that it was trained with.",
    "of_one_process": "It may differ between the processes of a job.",
}


def help_text(usage: str, task_class: type[RLTask[Any]], base: RLConfig, width: int) -> str:
    """All options: names, defaults and meanings under the headings of their groups.

    Args:
        usage: How the task is run.
        task_class: The task.
        base: The defaults.
        width: Columns of the terminal.
    """
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
    """One option at length.

    Args:
        name: The option.
        base: The defaults.
        width: Columns of the terminal.

    Raises:
        ConfigError: There is no such option.
    """
    metadata = options_metadata(type(base))
    if name not in metadata:
        raise ConfigError(f"There is no option {name!r}. {near_misses(name, metadata)} --help lists all.")
    known = metadata[name]
    facts = {
        "default": _written(getattr(base, name)),
        "value": describe_type(type(base), name),
        "group": known["group"],
    }
    roles = [sentence for role, sentence in _ROLES.items() if role in known]
    if not known.get("of_the_run", True):
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
    left = f"  {name}={_written(getattr(base, name))}"
    meaning = known.get("help", "")
    choices: Sequence[str] = known.get("choices", ())
    if any(choice not in meaning for choice in choices):
        meaning += f" [{'|'.join(choices)}]"
    indent = " " * _MEANINGS_AT
    first = left.ljust(_MEANINGS_AT) if len(left) < _MEANINGS_AT else f"{left}\n{indent}"
    lines = textwrap.wrap(meaning, width - _MEANINGS_AT, break_on_hyphens=False) or [""]
    return first + f"\n{indent}".join(lines)


def _written(value: Any) -> str:
    """A value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
