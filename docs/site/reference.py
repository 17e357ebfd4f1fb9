"""Sphinx extensions of the site: the reference from the package, pictures of terms, links from code to it."""

import importlib
import inspect
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
from ksim.tools.aims import AIMS, by_aim
from ksim.tools.terms import KINDS, concrete_classes, meaning

logger = logging.getLogger(__name__)
PICTURES = "build/pictures"
TERMS = {cls for kind in KINDS for cls in concrete_classes(kind)}
"""Every term: each has a picture."""


class Terms(SphinxDirective):
    """`.. terms:: KIND`: the terms of a kind by aim, then what else its module exports, the abstract classes last."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        (kind,) = [kind for kind in KINDS if kind.title == self.arguments[0]]
        classes = concrete_classes(kind)
        lines = [f"`{kind.module.__name__}`. {_plain(meaning(kind.base))}", ""]
        for aim, group in by_aim(kind.title, classes).items():
            lines += [*_title(aim, "-"), *(f".. autoclass:: {documented_name(cls)}" for cls in group), ""]
        others = [obj for obj in exports(kind.module).values() if obj not in classes]
        lines += _title("Base classes", "-") if kind.title in AIMS else []
        for obj in sorted(others, key=lambda obj: (inspect.isabstract(obj), obj.__name__)):
            lines.append(f".. auto{'class' if inspect.isclass(obj) else 'function'}:: {documented_name(obj)}")
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class Gallery(SphinxDirective):
    """`.. gallery::`: the pictures of all terms by kind and aim, each a link to the term."""

    def run(self) -> list[nodes.Node]:
        lines = []
        for kind in KINDS:
            lines += _title(kind.title, "-")
            for aim, group in by_aim(kind.title, concrete_classes(kind)).items():
                lines += [*_title(aim, "~"), ".. container:: gallery", ""]
                for cls in group:
                    lines += [f"   .. figure:: /{PICTURES}/{file_name(cls)}", f"      :alt: {_plain(meaning(cls))}"]
                    lines += ["      :loading: lazy", ""]
                    lines += [f"      :py:class:`{cls.__name__} <{documented_name(cls)}>`", ""]
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
    """The name under which the reference has an object: the one by which users import it, such as `ksim.X`."""
    for module in exporting_modules():
        if exports(module).get(obj.__name__) is obj:
            return f"{module.__name__}.{obj.__name__}"
    return f"{obj.__module__}.{obj.__name__}"


def exports(module: Any) -> dict[str, Any]:
    """Public classes and functions by name: of a package all that it imports from ksim, of a module what it defines."""
    home = "ksim." if hasattr(module, "__path__") else module.__name__
    return {
        name: obj
        for name, obj in vars(module).items()
        if name[0] != "_" and (inspect.isclass(obj) or inspect.isfunction(obj)) and obj.__module__.startswith(home)
    }


def missing_names(documented: Iterable[str], modules: Iterable[Any]) -> list[str]:
    """Classes and functions that modules export and the reference lacks.

    Args:
        documented: Full names of what it has.
        modules: The modules.
    """
    documented, missing = set(documented), []
    for module in modules:
        for name, obj in exports(module).items():
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


def _title(text: str, underline: str) -> list[str]:
    return [text, underline * len(text), ""] if text else []


def _plain(text: str) -> str:
    return text.replace("`", "").replace("*", "x").replace("|", " ")


def setup(app: Any) -> dict[str, Any]:
    """Registers the extensions with Sphinx."""
    app.add_directive("terms", Terms)
    app.add_directive("gallery", Gallery)
    app.add_post_transform(CodeToReference)
    app.connect("builder-inited", draw_pictures)
    # Before napoleon, which adds markup of its own.
    app.connect("autodoc-process-docstring", write_docstring, priority=100)
    app.connect("env-check-consistency", check_complete)
    app.connect("build-finished", lead_to_first_page)
    return {"parallel_read_safe": True}
