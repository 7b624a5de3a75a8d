"""A run as one line for a README: an image with how many clauses passed, of those that could be tested.

Source: shields.io's static badges, in which `-` and `_` are written twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from longpoll_conform.suite import Result, by_clause

HOST: Final = "https://img.shields.io/badge"


def badge(policy: str, results: Sequence[Result]) -> str:
    """Markdown: red where a clause failed, green where none did and one passed, grey where nothing is known."""
    counts = Counter(by_clause(results).values())
    tested = counts.total() - counts["UNTESTED"]
    colour = "red" if counts["FAIL"] else "brightgreen" if counts["PASS"] else "lightgrey"
    text = f"{counts['PASS']} of {tested} clauses"
    words = "-".join(_word(each) for each in (f"conform {policy}", text, colour))
    return f"![conform {policy}: {text}]({HOST}/{words})"


def _word(text: str) -> str:
    return quote(text.replace("-", "--").replace("_", "__").replace(" ", "_"), safe="")
