"""Packages that only some users need."""

import importlib
from typing import Any

from ksim.errors import ConfigError

DISTRIBUTION = "ksim-rl"
"""What package indexes and pip call ksim: there, `ksim` is another project."""


def install_command(extra: str) -> str:
    """The command that adds an extra to an installed ksim, be it from a wheel or from a clone."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def import_extra(package: str, extra: str, user: str) -> Any:
    """Imports a package of one of ksim's extras.

    Args:
        package: The package's name in Python.
        extra: The extra that installs it.
        user: What needs it, for the message.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{user} needs {error.name or package}, which is not installed. Run {install_command(extra)}."
        ) from error
