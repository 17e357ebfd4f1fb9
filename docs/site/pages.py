"""Sphinx extensions of the site's pages: the robots of the first page, and the notebook as a page."""

import json
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.util.docutils import SphinxDirective

from docs.site.notebook import markdown
from docs.site.pictures.files import ROOT

ROBOTS = ROOT / "docs/robots.jsonl"
PLOTS = "build/pictures/notebook"
"""Directory of the pictures among a notebook's outputs."""


class Robots(SphinxDirective):
    """`robots`: pictures of the robots of docs/robots.md that walk or reach, with the minutes that each took."""

    def run(self) -> list[nodes.Node]:
        records = [json.loads(line) for line in ROBOTS.read_text(encoding="utf-8").splitlines()]
        gallery = nodes.container(classes=["gallery", "small"])
        for record in sorted((record for record in records if record.get("walks")), key=lambda x: x["minutes"]):
            picture = nodes.image(uri=f"/docs/images/robots/{record['picture']}", alt=record["robot"])
            caption = f"{record['robot']}, {record['minutes']:.0f} min"
            link = nodes.reference("", "", picture, refuri="../robots.html")
            gallery += nodes.figure("", link, nodes.caption(caption, caption))
        return [gallery]


class NotebookParser(MystParser):
    """Parses pages that are notebooks."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse("\n\n".join(markdown(json.loads(inputstring), ROOT / PLOTS, f"/{PLOTS}")), document)


def setup(app: Any) -> dict[str, Any]:
    """Registers the extensions with Sphinx."""
    app.add_directive("robots", Robots)
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
