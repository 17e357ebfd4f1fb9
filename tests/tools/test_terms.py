import importlib
import pkgutil
from operator import attrgetter

import pytest

import ksim.mdp
from ksim.mdp.noise import AbstractNoise
from ksim.mdp.rewards import FeetSlip, JointLimits, MechanicalPower
from ksim.mdp.term import Term
from ksim.tools import terms
from ksim.tools.terms import KINDS, Kind, arguments, concrete_classes, meaning, page
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "terms.md"
LISTED = {cls for kind in KINDS for cls in concrete_classes(kind)}


def test_page_of_terms_is_what_the_docstrings_say():
    assert PAGE.read_text() == page(), f"docs/terms.md is out of date. Write it anew: {terms.COMMAND}"


def test_every_kind_of_term_is_on_the_page():
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(ksim.mdp.__path__, "ksim.mdp.")]
    defined = {
        cls for module in modules for base in (Term, AbstractNoise) for cls in concrete_classes(Kind("", module, base))
    }
    assert defined <= LISTED, "Add the kind to KINDS in ksim/tools/terms.py."


@pytest.mark.parametrize(
    "cls", [pytest.param(cls, id=cls.__name__) for cls in sorted(LISTED, key=attrgetter("__name__"))]
)
def test_first_line_of_a_docstring_is_complete(cls):
    assert cls.__dict__.get("__doc__"), f"{cls.__name__} needs a docstring of its own."
    assert meaning(cls).endswith("."), f"The first line of {cls.__name__}'s docstring must be a whole sentence."


def test_arguments_show_the_default_or_else_the_type_and_bounds():
    assert arguments(FeetSlip) == ["`sensors: tuple[str, ...]`", "`sites: tuple[str, ...]`", "`scale=-0.25`"]
    assert arguments(JointLimits)[1] == "`soft_fraction=0.9` (above 0, at most 1)"


def test_bar_in_a_meaning_does_not_end_its_cell():
    assert "|" in meaning(MechanicalPower)
    (row,) = [row for row in page().splitlines() if row.startswith("| `MechanicalPower`")]
    assert row.replace("\\|", "").count("|") == 4
