"""The reference lacks no public name, and no term module."""

import importlib
import importlib.util
import pkgutil
import re
from types import SimpleNamespace

import pytest

import ksim.mdp
from ksim.tools.terms import KINDS
from tests.end_to_end.pages import PAGES
from tests.support.processes import ROOT

SPHINX = pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the extra `site`")
API = {path.name: path.read_text() for path in (ROOT / "docs/site/api").glob("*.rst")}
# What terms are made with, not terms: no page lists them.
HELPERS = {"ksim.mdp.contacts", "ksim.mdp.motion", "ksim.mdp.term", "ksim.mdp.term_errors"}


def test_every_module_of_terms_is_on_a_page():
    listed = re.findall(r"^\.\. terms:: (.+)$", "\n".join(API.values()), re.MULTILINE)
    given = {kind.module.__name__ for kind in KINDS if kind.title in listed}
    modules = {f"ksim.mdp.{module.name}" for module in pkgutil.iter_modules(ksim.mdp.__path__)}
    assert modules - HELPERS <= given


def test_every_page_of_the_reference_is_in_the_contents():
    index = (ROOT / "docs/site/index.md").read_text()
    assert all(f"api/{name.removesuffix('.rst')}\n" in index for name in API)


@SPHINX
def test_missing_names_when_an_export_is_not_documented_has_it():
    reference = importlib.import_module("docs.site.reference")
    package = importlib.import_module("ksim.mdp.rewards")
    names = {f"ksim.mdp.rewards.{name}" for name in vars(package) if name[0].isupper()}
    assert reference.missing_names(names, [package]) == []
    without = names - {"ksim.mdp.rewards.TrackYawRate"}
    assert reference.missing_names(without, [package]) == ["ksim.mdp.rewards.TrackYawRate"]


@SPHINX
def test_missing_names_of_a_module_are_those_that_it_defines():
    reference = importlib.import_module("docs.site.reference")
    events = importlib.import_module("ksim.mdp.events")
    assert reference.missing_names([], [events]) == [
        f"ksim.mdp.events.{name}"
        for name in ("AbstractEvent", "AbstractTimedEvent", "PushVelocity", "PushForce", "MassDrop")
    ]


@SPHINX
def test_a_name_that_no_page_has_is_a_warning(caplog):
    reference = importlib.import_module("docs.site.reference")
    domain = SimpleNamespace(get_objects=lambda: [])
    with pytest.MonkeyPatch.context() as patch:
        warned = []
        patch.setattr(reference.logger, "warning", lambda message, name: warned.append(name))
        reference.check_complete(None, SimpleNamespace(domains={"py": domain}))
    assert {"ksim.PPOTask", "ksim.mdp.rewards.TrackYawRate"} <= set(warned)


@SPHINX
def test_docstring_of_a_term_gets_its_picture():
    reference = importlib.import_module("docs.site.reference")
    cls = importlib.import_module("ksim.mdp.events").PushVelocity
    lines = ["Every `interval_s` seconds.", "", "More."]
    reference.write_docstring(None, "class", "", cls, {}, lines)
    assert ".. image:: /build/pictures/ksim.mdp.events.PushVelocity.svg" in lines
    assert lines[0] == "Every `interval_s` seconds."


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_other_sites_are_whole_addresses(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for address in re.findall(r"\]\(((?:https?:|www\.|//)[^)]*)\)", text):
        assert re.fullmatch(r"https://[\w.-]+\.[a-z]{2,}(/[\w./~%+@=&?#:-]*)?", address), address
