"""Sphinx's settings for the website. Sphinx reads the pages that `docs.site.tree` has collected."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from html import escape
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
default_role = "literal"  # Text between backticks in a docstring is code.
show_authors = False

myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["ref.python"]  # Several modules may export the same object under one name.
# No inventory of Python's own names is downloaded, so Sphinx must not check them. It checks links between pages anyway.
nitpicky = False

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


def setup(app: Any) -> dict[str, bool]:
    """Set the language of each page, and the theme's list of pages."""
    app.connect("html-page-context", _name_language)
    app.connect("html-page-context", _list_pages, priority=100)  # Run `_list_pages` before the theme reads the list.
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _name_language(_app: Any, page: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    """Set the language of a page, because screen readers and the browser's fonts depend on it."""
    if "zh" in page.split("/")[:-1]:
        context["language"] = "zh-Hans"


def _list_pages(app: Any, page: str, _template: str, context: dict[str, Any], _tree: Any) -> None:
    """Make the list of pages in the sidebar from the titles.

    Sphinx would copy each heading of 270 pages for each page, which takes 40 s.
    """
    env, link_to = app.env, app.builder.get_relative_uri

    def below(parent: str, level: int) -> tuple[str, bool]:
        """Return the list of the pages below `parent`, and whether the current page is among them."""
        entries, within = [], False
        for each in env.toctree_includes.get(parent, ()):
            inside, current = below(each, level + 1)
            current = current or each == page
            within = within or current
            mark = " current" if current else ""
            link = "#" if each == page else link_to(page, each)
            title = escape(env.titles[each].astext())
            named = f'<a class="reference internal" href="{link}">{title}</a>'
            entries.append(f'<li class="toctree-l{level}{mark}">{named}{inside}</li>')
        return (f"<ul>{''.join(entries)}</ul>" if entries else ""), within

    context["toctree"] = lambda **_options: below(app.config.root_doc, 1)[0]
