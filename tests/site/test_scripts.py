"""The scripts of the site: scores of search results, and long pages on a phone."""

import re

import pytest

from tests.support.pages import DESKTOP, PHONE, open_page
from tests.support.processes import ROOT

SEARCH = ROOT / "docs/site/search.js"
PHONE_SCRIPT = ROOT / "docs/site/static/phone.js"
TEXT = "<p>Some words.</p>" * 90
LONG = f"""<!DOCTYPE html><meta name=viewport content="width=device-width"><div role=main><section id=page>
<h1>Page</h1><p>Introduction</p>
<section id=first><h2>First</h2>{TEXT}</section>
<section id=second><h2>Second</h2><section id=inner><h3>Inner</h3>{TEXT}</section>
<section id=other><h3>Other</h3>{TEXT}</section></section></section></div>
<script src="{PHONE_SCRIPT.as_uri()}"></script>"""
WORDS, NUMBERS = "a sentence of some words", "1.5"
TABLE = """<!DOCTYPE html><meta name=viewport content="width=device-width"><div role=main><section id=page><h1>Page</h1>
<table><thead><tr><th>term<th>meaning<th>arguments</thead>
<tbody><tr><td>{0}<td>{0}<td>{0}</tbody></table></section></div><script src="{1}"></script>"""


@pytest.fixture
def opened(chromium, tmp_path):
    """Opens HTML at a size."""

    def opened(html, size=PHONE, suffix=""):
        path = tmp_path / "page.html"
        path.write_text(html)
        return open_page(chromium, path.as_uri() + suffix, size)

    return opened


def guides():
    """The pages of the index's guide, without a suffix."""
    index = (ROOT / "docs/site/index.md").read_text()
    (entries,) = re.findall(r":caption: Guide\n(?::.*\n)+\n([^`]*)```", index)
    pages = [(ROOT / "docs/site" / entry).resolve().relative_to(ROOT) for entry in entries.split()]
    return [page.with_suffix("").as_posix() for page in pages]


def test_search_knows_the_guides_in_the_order_of_the_index():
    (subjects,) = re.findall(r"const SUBJECTS = \{(.*?)\};", SEARCH.read_text(), re.DOTALL)
    assert re.findall(r'^  "?([\w/]+)"?: ', subjects, re.MULTILINE) == guides()


RESULTS = {
    "guide": ["docs/own_task", "Your own task", "", None, 5, "", "text"],
    "other guide": ["docs/running", "Running ksim", "", None, 5, "", "text"],
    "name": ["docs/site/api/commands", "ksim.mdp.commands.VelocityCommand", "", "", 11, "", "object"],
    "abstract": ["docs/site/api/rewards", "ksim.mdp.rewards.AbstractReward", "", "", 11, "", "object"],
    "reference": ["docs/site/api/rewards", "Rewards", "", None, 5, "", "text"],
    "whole name": ["docs/site/api/rewards", "ksim.mdp.rewards.SwingPose", "", "", 16, "", "object"],
    "options": ["docs/options", "All options", "", None, 5, "", "text"],
}
"""Results as Sphinx gives them to the scorer: page, title, anchor, description, score, file, kind."""


@pytest.mark.parametrize(
    ("query", "order"),
    [
        ("velocity", ["whole name", "guide", "other guide", "name", "abstract", "reference", "options"]),
        ("rewards", ["whole name", "guide", "other guide", "name", "abstract", "reference", "options"]),
        ("install", ["whole name", "other guide", "guide", "name", "abstract", "reference", "options"]),
        ("num_envs", ["whole name", "options", "other guide", "guide", "name", "abstract", "reference"]),
    ],
)
def test_search_ranks_guides_on_the_subject_before_names_and_other_pages(opened, query, order):
    page = opened("<!DOCTYPE html>", suffix=f"?q={query}")
    page.add_script_tag(path=str(SEARCH))
    scores = {name: page.evaluate("result => Scorer.score(result)", result) for name, result in RESULTS.items()}
    assert sorted(scores, key=scores.get, reverse=True) == order
    page.close()


def height(page):
    return page.evaluate("document.documentElement.scrollHeight")


def test_sections_of_a_long_page_are_folded_on_a_phone_until_they_are_opened(opened):
    page = opened(LONG)
    assert height(page) <= 844
    page.get_by_text("First").click()
    assert 2000 < height(page) < 6000
    page.get_by_text("Open all sections").click()
    assert height(page) > 6000
    page.get_by_text("Fold all sections").click()
    assert height(page) <= 844
    page.close()


def test_link_into_a_folded_section_opens_it_and_no_other(opened):
    page = opened(LONG, suffix="#inner")
    page.wait_for_function("document.querySelector('#inner > details').open")
    is_open = "[...document.querySelectorAll('details[open]')].map(x => x.parentElement.id)"
    assert page.evaluate(is_open) == ["second", "inner"]
    page.evaluate("location.hash = 'first'")
    page.wait_for_function("document.querySelector('#first > details').open")
    page.close()


@pytest.mark.parametrize(("html", "size"), [(LONG, DESKTOP), (LONG.replace(TEXT, TEXT[:400]), PHONE)])
def test_wide_pages_and_short_pages_are_not_folded(opened, html, size):
    page = opened(html, size)
    assert page.locator("details").count() == 0
    page.close()


@pytest.mark.parametrize(("text", "size", "is_stacked"), [(WORDS, PHONE, 1), (NUMBERS, PHONE, 0), (WORDS, DESKTOP, 0)])
def test_rows_of_a_table_of_words_are_stacked_on_a_phone_with_the_names_of_columns(opened, text, size, is_stacked):
    page = opened(TABLE.format(text, PHONE_SCRIPT.as_uri()), size)
    assert page.locator("table.stacked").count() == is_stacked
    names = page.evaluate("[...document.querySelectorAll('td')].map(x => x.dataset.column ?? '')")
    assert names == (["term", "meaning", "arguments"] if is_stacked else [""] * 3)
    page.close()
