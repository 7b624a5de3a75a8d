"""The explorer as one file: data, interpreter, page script and the Chinese words put into the template.

The page's own policy lets no script run but the two whose hashes it names and the worker that they make, and no address
be asked for anything. Leaves out the data (`data`) and what the scripts do.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources


def page_of(data: str, title: str) -> str:
    """The page over data as `data_of` writes it."""
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
        # The data come last, so that nothing in them is taken for a place of something else.
        text = text.replace(f"@{name}@", value)
    return text


def part(name: str) -> str:
    """A file of the page."""
    return (resources.files("longpoll_spec.render.export.explorer") / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """As a content security policy names a script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
