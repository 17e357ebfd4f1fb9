"""What pyproject.toml cannot say: the examples' place inside the package, and the README of package indexes."""

import re
from pathlib import Path

from setuptools import find_packages, setup

EXAMPLES = [f"ksim.{package}" for package in find_packages(include=["examples", "examples.*"])]
"""In the repository a package of their own; in a wheel it would take the name `examples` from everybody else."""


def readme_of_index(text: str) -> str:
    """The README without images and links to files of the repository, which lead nowhere on another site."""
    text = re.sub(r"<img [^>]*>", "", text)
    return re.sub(r"\[([^]]+)]\((?!https?:)[^)]+\)", r"\1", text)


setup(
    packages=[*find_packages(include=["ksim", "ksim.*"]), *EXAMPLES],
    package_dir={"ksim.examples": "examples"},
    include_package_data=False,  # what package_data names alone; or setuptools takes folders of data for packages
    package_data={
        "ksim": ["py.typed"],
        "ksim.viewer": ["*.js", "*.css"],
        "ksim.examples.motions": ["*.npz"],
        "ksim.examples.pretrained": ["**/*"],
        "ksim.examples.robots": ["*.xml"],
    },
    exclude_package_data={"ksim.examples.pretrained": ["__pycache__/*"]},
    long_description=readme_of_index(Path(__file__).with_name("README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
