"""The documentation as a site: `make site`. Its sources are the Markdown pages of the repository and the docstrings."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import ksim  # noqa: E402

project, author, copyright = "ksim", "the ksim authors", "the ksim authors"  # noqa: A001
release = version = ksim.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/site/index"
include_patterns = ["README.md", "DISTRIBUTED_TRAINING.md", "docs/*.md", "docs/site/**"]
html_theme = "furo"
html_title = f"ksim {version}"
html_copy_source = False

myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]

default_role = "literal"  # what docstrings put between single backticks
autodoc_default_options = {"members": True}
autodoc_member_order = "groupwise"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False


def escape(*event):
    """Takes asterisks and bars outside of code as they are: docstrings are plain text and Markdown's backticks."""
    lines = event[-1]
    for i, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
        # A plural: what follows code must be told from it.
        parts[2::2] = [re.sub(r"^(?=\w)", r"\\ ", part) for part in parts[2::2]]
        lines[i] = "`".join(parts)


def setup(app):
    """Connects what this file adds."""
    # Before napoleon, which adds markup of its own.
    app.connect("autodoc-process-docstring", escape, priority=100)
