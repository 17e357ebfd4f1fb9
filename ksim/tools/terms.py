"""The table of all terms, generated from their docstrings.

python -m ksim.tools.terms > docs/terms.md
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ksim import physics
from ksim.checks import bounds_in_words
from ksim.mdp import (
    actions,
    commands,
    curriculum,
    env_curriculum,
    events,
    noise,
    observations,
    randomizers,
    resets,
    rewards,
    terminations,
)
from ksim.tools.aims import by_aim


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table. A bar in a cell does not end the cell."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)]


COMMAND = "python -m ksim.tools.terms > docs/terms.md"


class Kind(NamedTuple):
    """A section of the page: the subclasses of `base` in the module from which users import them."""

    title: str
    module: ModuleType
    base: type


KINDS = (
    Kind("Observations", observations, observations.AbstractObservation),
    Kind("Noise", noise, noise.AbstractNoise),
    Kind("Rewards", rewards, rewards.AbstractReward),
    Kind("Commands", commands, commands.AbstractCommand),
    Kind("Terminations", terminations, terminations.AbstractTermination),
    Kind("Resets", resets, resets.AbstractReset),
    Kind("Events", events, events.AbstractEvent),
    Kind("Randomizers", randomizers, randomizers.AbstractRandomizer),
    Kind("Action filters", actions, actions.AbstractActionFilter),
    Kind("Curricula", curriculum, curriculum.AbstractCurriculum),
    Kind("Per-environment curricula", env_curriculum, env_curriculum.AbstractEnvCurriculum),
    Kind("Actuators", physics, physics.AbstractActuators),
    Kind("Tiles of a terrain", physics, physics.AbstractTile),
)

HEAD = f"""# All terms

`{COMMAND}` generates this page from the docstrings, which say more about each term.
Arguments without a default are required and shown with their type; bounds are in brackets. [own_task.md](own_task.md)
shows how to write custom terms.
"""


def concrete_classes(kind: Kind) -> list[type]:
    """The exported concrete classes of a kind, sorted by name."""
    classes = {
        name: cls
        for name, cls in vars(kind.module).items()
        if inspect.isclass(cls) and issubclass(cls, kind.base) and not inspect.isabstract(cls) and name[0] != "_"
    }
    return [classes[name] for name in sorted(classes)]


def meaning(cls: type) -> str:
    """The first line of a class's own docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0].strip()


def arguments(cls: type) -> list[str]:
    """The arguments of a class's constructor, in Markdown: `name=default`, or `name: type`, and its bounds.

    Arguments that are taken by their names alone come last.
    """
    described = []
    for field in sorted(dataclasses.fields(cls), key=lambda field: bool(field.kw_only)):
        if field.default is not dataclasses.MISSING:
            argument = f"{field.name}={_in_words(field.default)}"
        elif field.default_factory is not dataclasses.MISSING:
            argument = f"{field.name}={_in_words(field.default_factory())}"
        else:
            argument = f"{field.name}: {_type_in_words(field.type)}"
        bounds = bounds_in_words(field.metadata.get("range", {}))
        described.append(f"`{argument}`" + (f" ({', '.join(bounds)})" if bounds else ""))
    return described


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([HEAD, *(_section(kind) for kind in KINDS)])


def _section(kind: Kind) -> str:
    lines = [f"## {kind.title}", "", f"`{kind.module.__name__}`. {meaning(kind.base)}"]
    for aim, classes in by_aim(kind.title, concrete_classes(kind)).items():
        cells = [(f"`{cls.__name__}`", meaning(cls), ", ".join(arguments(cls))) for cls in classes]
        title = [f"### {aim}", ""] if aim else []
        lines += ["", *title, *table(("term", "meaning", "arguments"), cells)]
    return "\n".join(lines) + "\n"


def _in_words(value: Any) -> str:
    """A default value as Python source, with at most six digits."""
    if isinstance(value, float):
        return repr(float(f"{value:.6g}"))
    if isinstance(value, tuple):
        inner = ", ".join(_in_words(x) for x in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return " ".join(repr(value).split())


def _type_in_words(annotation: Any) -> str:
    """An annotation without the modules of its names."""
    name = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
    return re.sub(r"\w+\.(?=\w)", "", name)


if __name__ == "__main__":
    sys.stdout.write(page())
