"""Sphinx: `make book` builds one static site from the repository's own pages.

The source folder is the root of the repository, so that links between its pages are
those that GitHub follows, too.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from d2lpar import __version__ as release

project, author = "d2lpar", "The d2lpar authors"
root_doc = "docs/index"
include_patterns = [
    "docs/**", "notebooks/*.ipynb", "figures/README.md", "peers/README.md",
    "CONTRIBUTING.md", "CHANGELOG.md",
]  # fmt: skip
extensions = [
    "myst_nb", "sphinx_copybutton", "sphinx_design",
    "sphinx.ext.autodoc", "sphinx.ext.napoleon",
]  # fmt: skip
nb_execution_mode = "off"  # `make notebooks` has executed them
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
html_theme = "furo"
html_title = f"d2lpar {release}"
html_extra_path = ["site"]  # index.html at the top, which leads to docs/index.html
