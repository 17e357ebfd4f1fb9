"""Docstrings of ksim: they begin with the thing itself, or with the verb of what a function does."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RIDDLES = re.compile(r"\s*(What|Where|How|Which|One that|That of|Those|Does what)\b")


def docstrings(text):
    """Lines and texts of docstrings, those under constants and fields among them."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for part in body if isinstance(body, list) else []:
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                yield part.lineno, part.value.value


@pytest.mark.parametrize("folder", ["ksim", "examples", "benchmarks", "docs"])
def test_docstrings_do_not_begin_with_a_relative_clause(folder):
    riddles = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(path.read_text())
        if RIDDLES.match(text)
    ]
    assert not riddles


def test_relative_clauses_are_found():
    found = list(docstrings('"""What it is."""\nX = 1\n"""How many."""\ndef f():\n    """The mean."""\n'))
    assert [bool(RIDDLES.match(text)) for _, text in found] == [True, True, False]
