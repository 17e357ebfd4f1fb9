"""Robot models written for the examples, and those of packages."""

import importlib.util
from pathlib import Path

import ksim
from ksim.host.machine import install_command

HUMANOID = Path(__file__).with_name("humanoid.xml")
QUADRUPED = Path(__file__).with_name("quadruped.xml")


def in_package(package: str, file: str) -> Path:
    """A robot's MJCF file in a package of the extra `robots`, which is not imported.

    Raises:
        ConfigError: The package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ksim.ConfigError(
            f"The robot's model is in the package {package.replace('_', '-')}, which is not installed. Run "
            f"{install_command('robots')}."
        )
    return Path(spec.origin).parent / file
