import importlib
import pkgutil
from operator import attrgetter

import pytest

import ksim.mdp
from ksim.mdp.noise import AbstractNoise
from ksim.mdp.rewards import FeetSlip, JointLimits, MechanicalPower
from ksim.mdp.term import Term
from ksim.tools import aims, terms
from ksim.tools.aims import AIMS, UNGROUPED, by_aim
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.title)
def test_each_term_of_a_kind_with_many_has_one_group(kind):
    classes = concrete_classes(kind)
    groups = by_aim(kind.title, classes)
    assert sorted(map(id, classes)) == sorted(id(cls) for group in groups.values() for cls in group)
    assert len(classes) <= UNGROUPED or "" not in groups, f"Add groups of {kind.title} to AIMS of ksim/tools/aims.py."


def test_groups_are_of_kinds():
    assert set(AIMS) <= {kind.title for kind in KINDS}


@pytest.mark.parametrize(
    ("names", "message"), [("FeetSlip", "MechanicalPower"), ("FeetSlip MechanicalPower FeetSlip", "twice: FeetSlip")]
)
def test_term_without_a_group_or_with_two_is_an_error(names, message, monkeypatch):
    monkeypatch.setattr(aims, "AIMS", {"Rewards": {"Some": names}})
    with pytest.raises(ValueError, match=message):
        by_aim("Rewards", [FeetSlip, MechanicalPower])


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
