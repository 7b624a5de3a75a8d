"""A run as a badge for a README: how many of the tested clauses passed.

Source: shields.io's static badges, in which `-` and `_` are doubled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from longpoll_conform.suite import Result, by_clause

HOST: Final = "https://img.shields.io/badge"


def badge(policy: str, results: Sequence[Result]) -> str:
    """Markdown: red if a clause failed, green if none did and one passed, otherwise grey."""
    counts = Counter(by_clause(results).values())
    tested = counts.total() - counts["UNTESTED"]
    colour = "red" if counts["FAIL"] else "brightgreen" if counts["PASS"] else "lightgrey"
    text = f"{counts['PASS']} of {tested} clauses"
    words = "-".join(_word(each) for each in (f"conform {policy}", text, colour))
    return f"![conform {policy}: {text}]({HOST}/{words})"


def _word(text: str) -> str:
    return quote(text.replace("-", "--").replace("_", "__").replace(" ", "_"), safe="")
