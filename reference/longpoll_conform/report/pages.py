"""A run as pages of HTML: an index by clause, and a page for each vector that did not pass.

Self-contained, without scripts or network access; text from the broker is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from longpoll_conform.report.conversation import lines_of
from longpoll_conform.report.sections import sections
from longpoll_conform.suite import Outcome, Result, Suite, by_clause
from longpoll_runtime.logs import escaped

COLOURS: Final[dict[Outcome, str]] = {
    "PASS": "#2e7d32", "FAIL": "#c62828", "NON-STRICT": "#b26a00", "UNIMPLEMENTED": "#6a1b9a", "UNTESTED": "#757575",
}  # fmt: skip
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left; vertical-align: top }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: 12px }
.mark { color: #fff; border-radius: .3rem; padding: 0 .4rem; white-space: nowrap; font-size: 12px }
"""


def write_pages(directory: Path, suite: Suite, results: Sequence[Result]) -> None:
    """Write `index.html` and the pages next to it. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "index.html").write_text(index(suite, results), encoding="utf-8")
    for result in results:
        if result.outcome not in {"PASS", "UNTESTED"}:
            (directory / f"{result.vector.id}.html").write_text(page(result), encoding="utf-8")


def index(suite: Suite, results: Sequence[Result]) -> str:
    """The table of clauses, each with its vectors."""
    clauses = by_clause(results)
    found = sections(suite, results)
    rows = []
    for name, outcome in clauses.items():
        of_clause = [result for result in results if result.clause.id == name]
        links = " ".join(_link(result) for result in of_clause)
        why = next((result.why for result in of_clause if result.outcome == outcome and result.why), "")
        sentence = escape(of_clause[0].clause.sentence)
        rows.append(
            f"<tr><td><code>{escape(name)}</code></td><td>{_mark(outcome)}</td>"
            f"<td>{sentence}<br><small>{escape(why)}</small></td><td>{links}</td></tr>"
        )
    host, port = suite.place.broker
    head = f"<h1>{escape(host)}:{port}, tested as {escape(suite.policy)}</h1><p>{escape(found.text)}.</p>"
    silenced = "".join(f"<p>Stopped answering after <code>{escape(name)}</code>.</p>" for name in suite.silenced_by)
    bugs = "".join(
        f"<li><code>{escape(each.clause)}</code> {escape(each.bug)} This broker "
        f"{'has it' if each.is_there else 'does not have it'}. <small>{escape(each.seen)}</small></li>"
        for each in found.bugs
    )
    own = f"<h2>RocketMQ's own bugs</h2><ul>{bugs}</ul>" if bugs else ""
    table = "<table><tr><th>clause</th><th></th><th>text</th><th>vectors</th></tr>" + "".join(rows) + "</table>"
    return _document("longpoll conform", head + silenced + own + "<h2>Clauses</h2>" + table)


def page(result: Result) -> str:
    """One vector: expected next to got, and every byte of the conversation."""
    rows = "".join(
        f"<tr><td><code>{escape(each.where)}</code></td><td>{escape(each.expected)}</td><td>{escape(each.got)}</td></tr>"
        for each in result.differences
    )
    told = "\n".join(map(escape, lines_of(result.spoken)))
    less = (
        f"<p>{result.left_out} steps of the vector are left out: the mismatch does not need them.</p>"
        if result.left_out
        else ""
    )
    body = (
        f"<p><a href='index.html'>all clauses</a></p><h1>{escape(result.vector.id)} {_mark(result.outcome)}</h1>"
        f"<p>{escape(result.vector.title)}</p><p><code>{escape(result.clause.id)}</code> "
        f"{escape(result.clause.sentence)} <small>({escape(result.clause.source)})</small></p>"
        f"<p>{escape(result.why)}</p>"
        f"<table><tr><th>where</th><th>expected</th><th>got</th></tr>{rows}</table>{less}<pre>{told}</pre>"
    )
    return _document(result.vector.id, body)


def escape(text: str) -> str:
    """The text escaped, on one line."""
    return html.escape(escaped(text))


def _link(result: Result) -> str:
    name = escape(result.vector.id)
    return f"<a href='{name}.html'>{name}</a>" if result.outcome not in {"PASS", "UNTESTED"} else name


def _mark(outcome: Outcome) -> str:
    return f"<span class='mark' style='background:{COLOURS[outcome]}'>{outcome}</span>"


def _document(title: str, body: str) -> str:
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(title)}</title>"
        f"<style>{STYLE}</style><body>{body}</body></html>\n"
    )
