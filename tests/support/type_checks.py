"""The check of types and shapes in traced code while tests run."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""Checks the arguments and results of a function. A whole number is a `float`, as PEP 484 has it."""
