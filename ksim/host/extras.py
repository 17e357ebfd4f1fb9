"""Optional packages, installed as extras."""

import importlib
from typing import Any

from ksim.errors import ConfigError

DISTRIBUTION = "ksim-rl"
"""ksim's name on package indexes, where `ksim` is another project."""


def install_command(extra: str) -> str:
    """The command that adds an extra to an installed ksim, from a wheel or from a clone."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def import_extra(package: str, extra: str, user: str) -> Any:
    """Imports a package of one of ksim's extras.

    Args:
        package: The package's import name.
        extra: The extra that installs it.
        user: The feature that needs it, for the message.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{user} needs {error.name or package}, which is not installed. Run {install_command(extra)}."
        ) from error
