"""Settings of Sphinx for the site; it reads what `docs.site.tree` has put together."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from typing import Any

project = "longpoll"
author = "the longpoll authors"
version = release = version_of("longpoll")
html_last_updated_fmt = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC).strftime("%d %B %Y")
html_title = f"longpoll {version}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["files"]
root_doc = "index"
default_role = "literal"  # what stands between backticks in a docstring is code
show_authors = False

myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["ref.python"]  # a name that several modules offer is one thing
nitpicky = False  # of Python's own names no inventory is fetched; links of pages are checked whatever this says

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_sphinx = True
html_baseurl = ""
pygments_style = "a11y-light"
pygments_dark_style = "a11y-dark"


def setup(app: Any) -> None:
    """Name the language of each page: a reader's voice and the browser's fonts follow it."""
    app.connect("html-page-context", _name_language)


def _name_language(_app: Any, page: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    if "zh" in page.split("/")[:-1]:
        context["language"] = "zh-Hans"
