"""The documentation as a site: `make site`. Its sources are the Markdown pages of the repository and the docstrings."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import ksim  # noqa: E402

project, author, copyright = "ksim", "the ksim authors", "the ksim authors"  # noqa: A001
release = version = ksim.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docs.site.reference", "docs.site.pages"]
root_doc = "docs/site/index"
include_patterns = ["*.md", "docs/*.md", "docs/notebooks/*.ipynb", "docs/site/**"]
html_theme = "furo"
html_title = f"ksim {version}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["phone.js"]
html_search_scorer = str(ROOT / "docs/site/search.js")
html_use_index = html_domain_indices = False  # long lists of names, which the search finds

myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]

default_role = "literal"  # what docstrings put between single backticks
add_module_names = False  # each page names its module
autodoc_default_options = {"members": True}
autodoc_member_order = "groupwise"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False  # the base documents what its subclasses implement
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
