"""Packages that only some users need."""

import importlib
from typing import Any

from ksim.errors import ConfigError


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
            f"{user} needs {error.name or package}, which is not installed. In the folder of ksim's clone, run "
            f"pip install -e '.[{extra}]'."
        ) from error
