"""The explorer as one file: data, interpreter, page script and Chinese texts put into the template.

The page's content security policy allows only the two scripts whose hashes it names and their worker, and no network
access.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources


def page_of(data: str, title: str) -> str:
    """The page for data written by `data_of`."""
    law, script = part("law.js"), part("page.js")
    put = {
        "TITLE": escape(title),
        "HASHES": f"'{_hash(law)}' '{_hash(script)}'",
        "STYLE": part("page.css"),
        "WORDS": part("zh.json").replace("<", "\\u003c"),
        "LAW": law,
        "SCRIPT": script,
        "DATA": data,
    }
    text = part("page.html")
    for name, value in put.items():
        # The data come last, so that nothing in them is taken for a placeholder.
        text = text.replace(f"@{name}@", value)
    return text


def part(name: str) -> str:
    """A file of the page."""
    return (resources.files("longpoll_spec.render.export.explorer") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
