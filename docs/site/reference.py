"""Sphinx extensions of the site: the reference from the package, pictures of terms, links from code to it."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from docs.site.pictures.files import ROOT, draw_all, file_name
from ksim.tools.terms import KINDS, concrete_classes, meaning

logger = logging.getLogger(__name__)
PICTURES = "build/pictures"
TERMS = {cls for kind in KINDS for cls in concrete_classes(kind)}
"""Every term: each has a picture."""


class Modules(SphinxDirective):
    """`.. modules:: PACKAGE`: a section for every public module of a package, the base classes first."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        package = importlib.import_module(self.arguments[0])
        names = [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")]
        order = {"base": -1}
        lines = []
        for name in sorted(names, key=lambda name: (order.get(name, 0), name)):
            title = name.replace("_", " ").capitalize()
            lines += [title, "-" * len(title), "", f".. automodule:: {package.__name__}.{name}", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class Gallery(SphinxDirective):
    """`.. gallery::`: the pictures of all terms by kind, each a link to the term."""

    def run(self) -> list[nodes.Node]:
        lines = []
        for kind in KINDS:
            lines += [kind.title, "-" * len(kind.title), "", ".. container:: gallery", ""]
            for cls in concrete_classes(kind):
                lines += [f"   .. figure:: /{PICTURES}/{file_name(cls)}", f"      :alt: {_plain(meaning(cls))}"]
                lines += ["      :loading: lazy", "", f"      :py:class:`{cls.__name__} <{documented_name(cls)}>`", ""]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class CodeToReference(SphinxPostTransform):
    """Makes a link of code in a page that is the name of a class or a function of the reference."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        objects = {name: entry for name, *entry in _entries(self.env)}
        by_name: dict[str, list[str]] = {}
        for name in objects:
            by_name.setdefault(name.rpartition(".")[2], []).append(name)
        for node in list(self.document.findall(nodes.literal)):
            text = node.astext()
            if not re.fullmatch(r"(ksim\.)?\w+", text) or isinstance(node.parent, nodes.reference):
                continue
            names = by_name.get(text.removeprefix("ksim."), [])
            names = names if len(names) == 1 else [name for name in names if name.startswith(_module_above(node))]
            if len(names) == 1:
                docname, anchor = objects[names[0]]
                node.replace_self(make_refnode(self.app.builder, self.env.docname, docname, anchor, node.deepcopy()))


def _module_above(node: nodes.Node) -> str:
    """The module that the section around a node is about: the first code in it that is a module of ksim's."""
    section = node
    while section.parent is not None and not isinstance(section, nodes.section):
        section = section.parent
    names = (literal.astext() for literal in section.findall(nodes.literal))
    return next((name for name in names if re.fullmatch(r"ksim(\.\w+)+", name)), "no module")


def _entries(env: Any) -> Iterable[tuple[str, str, str]]:
    """Classes and functions of the reference: full name, page and anchor."""
    for name, _, kind, docname, anchor, _ in env.domains["py"].get_objects():
        if kind in ("class", "function", "exception"):
            yield name, docname, anchor


def documented_name(obj: Any) -> str:
    """The name under which the reference has an object: `ksim.X` of what ksim itself exports."""
    exported = getattr(importlib.import_module("ksim"), obj.__name__, None) is obj
    return f"ksim.{obj.__name__}" if exported else f"{obj.__module__}.{obj.__name__}"


def missing_names(documented: Iterable[str], modules: Iterable[Any]) -> list[str]:
    """Classes and functions that modules export and the reference lacks.

    Args:
        documented: Full names of what it has.
        modules: The modules.
    """
    documented, missing = set(documented), []
    for module in modules:
        for name, obj in vars(module).items():
            if name.startswith("_") or not (inspect.isclass(obj) or inspect.isfunction(obj)):
                continue
            # A package exports what it imports, a module what it defines.
            if not obj.__module__.startswith("ksim." if hasattr(module, "__path__") else module.__name__):
                continue
            if not documented & {f"{module.__name__}.{name}", f"ksim.{name}", f"{obj.__module__}.{obj.__name__}"}:
                missing.append(f"{module.__name__}.{name}")
    return missing


def exporting_modules() -> list[Any]:
    """The modules whose exports must be in the reference: ksim itself and those of terms."""
    return [importlib.import_module("ksim"), *dict.fromkeys(kind.module for kind in KINDS)]


def draw_pictures(_: Any) -> None:
    """Draws the pictures that pages show."""
    draw_all(ROOT / PICTURES)


def lead_to_first_page(app: Any, error: Exception | None) -> None:
    """Writes the page at the root of the site, which leads to its first page: pages lie where their sources do."""
    if error is None and app.builder.format == "html":
        first = f"{app.config.root_doc}.html"
        text = f'<!DOCTYPE html><title>ksim</title><meta http-equiv="refresh" content="0; url={first}">'
        (Path(app.outdir) / "index.html").write_text(f'{text}<a href="{first}">Documentation of ksim</a>\n')


def check_complete(_: Any, env: Any) -> None:
    """Warns of each public name that no page of the reference has."""
    for name in missing_names((entry[0] for entry in _entries(env)), exporting_modules()):
        logger.warning("%s is missing in the reference: add it to a page of docs/site/api", name)


def write_docstring(*event: Any) -> None:
    """Takes a docstring as plain text with Markdown's backticks, and adds the picture of a term."""
    _, what, _, obj, _, lines = event
    for i, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
        # A plural: what follows code must be told from it.
        parts[2::2] = [re.sub(r"^(?=\w)", r"\\ ", part) for part in parts[2::2]]
        lines[i] = "`".join(parts)
    if what == "class" and obj in TERMS:
        picture = [f".. image:: /{PICTURES}/{file_name(obj)}", f"   :alt: {_plain(meaning(obj))}", "   :loading: lazy"]
        lines[1:1] = ["", *picture, ""]


def _plain(text: str) -> str:
    return text.replace("`", "").replace("*", "x").replace("|", " ")


def setup(app: Any) -> dict[str, Any]:
    """Registers the extensions with Sphinx."""
    app.add_directive("modules", Modules)
    app.add_directive("gallery", Gallery)
    app.add_post_transform(CodeToReference)
    app.connect("builder-inited", draw_pictures)
    # Before napoleon, which adds markup of its own.
    app.connect("autodoc-process-docstring", write_docstring, priority=100)
    app.connect("env-check-consistency", check_complete)
    app.connect("build-finished", lead_to_first_page)
    return {"parallel_read_safe": True}
