"""The report of `longpoll verify`: a row with a result for each check, the exit code, and `index.html`.

The page has no network access and no scripts, and all texts are escaped. `longpoll_spec.render` draws the runs. The
judge's page of the recorded history is next to it, `verdict.html`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Final, Literal, TypeAlias

from attrs import asdict, define, evolve, field, frozen
from rich.text import Text

from longpoll import exit_codes
from longpoll.output import Exit, err, out, styled, table
from longpoll_judge.contract.result import Result
from longpoll_spec.errors import LongpollError

Outcome: TypeAlias = Literal["ok", "violated", "unknown", "skipped"]
MARKS: Final[dict[Outcome, str]] = {"ok": "green", "violated": "bold red", "unknown": "yellow", "skipped": "dim"}
"""The colour of each outcome."""
HEADS: Final = ("part", "what", "outcome", "what was seen", "s")


def _mark(outcome: Outcome) -> Text:
    return styled(f"[{MARKS[outcome]}]{{}}[/]", outcome)


@frozen
class Row:
    """The result of one check."""

    part: str
    """The part of the report: law, proof, store, broker, clauses, races or history."""
    what: str
    outcome: Outcome
    detail: str
    seconds: float = 0.0
    token: str | None = None
    """A counterexample of the specification, for `longpoll explain`."""

    def as_json(self) -> dict[str, Any]:
        """The row as one JSON object."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}


@define
class Page:
    """The rows so far. Invariant: `rows` only grows."""

    rows: list[Row] = field(factory=list)
    result: Result | None = None
    """The judged history; None until it was judged."""

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows, and print each on stderr."""
        for row in rows:
            self.rows.append(row)
            said = styled("{}: {} [dim]({} s)[/]", row.part, row.what, f"{row.seconds:.1f}")
            err.print(Text(" ").join([Text(" "), _mark(row.outcome), said]))

    def stage(self, title: str, work: Callable[[], Iterable[Row]], *, part: str) -> None:
        """Run one stage and add its rows with their seconds; if it fails, add a row with the reason."""
        err.print(styled("[bold]{}[/]", title))
        since = time.monotonic()

        def add(row: Row) -> None:
            nonlocal since
            now = time.monotonic()
            self.add([evolve(row, seconds=now - since)])
            since = now

        def run() -> None:
            for row in work():
                add(row)

        ended = exit_codes.attempted(run)
        if isinstance(ended, exit_codes.Raised):
            if not isinstance(ended.error, Exception):
                raise ended.error  # Ctrl-C, or the end of the command
            add(Row(part, title, "unknown", _why(ended.error)))

    @property
    def exit_code(self) -> Exit:
        """1 if anything is violated, else 3 if anything is unknown, else 0; skipped rows do not count."""
        outcomes = {row.outcome for row in self.rows}
        if "violated" in outcomes:
            return Exit.VIOLATED
        return Exit.UNKNOWN if "unknown" in outcomes else Exit.OK

    @property
    def verdict(self) -> str:
        """The exit code in words, with the number of rows per outcome."""
        counts = Counter(row.outcome for row in self.rows)
        said = {Exit.OK: "as it should be", Exit.VIOLATED: "violated"}.get(self.exit_code, "unknown")
        told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in MARKS if counts[outcome])
        return f"{said} ({told or 'nothing was checked'})"

    def print(self) -> None:
        """Print the page for people on stdout."""
        out.print(styled("[bold]verdict: {}[/]", self.verdict))
        rows = ((row.part, row.what, _mark(row.outcome), row.detail, f"{row.seconds:.1f}") for row in self.rows)
        table("longpoll verify", HEADS, rows, right=["s"], grouped=True)
        for row in self.rows:
            if row.token is not None:
                out.print(f"{row.what}:\n  longpoll explain {row.token}", soft_wrap=True)


def _why(error: Exception) -> str:
    """Return why a stage has no result: the broker's error unchanged, or an internal error."""
    expected = (LongpollError, OSError)
    return f"it could not be done: {error}" if isinstance(error, expected) else exit_codes.fault(error)


VERDICT: Final = "verdict.html"
"""The judge's page of the history, next to the report."""
STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; color: #1c2733; background: #fff }
main { max-width: 78rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem; border-bottom: 1px solid #d9e0e6 }
td { overflow-wrap: anywhere }
th { font-weight: 600; background: #f4f6f8 }
.outcome { display: inline-block; padding: .1rem .8rem; border-radius: 1rem; color: #fff }
.ok, .valid { background: #1a7f4b } .skipped { background: #66727d }
.violated, .invalid { background: #b3261e } .unknown { background: #8a6100 }
figure { margin: 1rem 0; overflow-x: auto } figcaption { margin-bottom: .5rem }
figure svg { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) {
  body { color: #e3e8ec; background: #14191e }
  th { background: #1f262d }
}
"""


def render_page(rows: Sequence[Row], charts: Sequence[tuple[str, str]], result: Result | None) -> str:
    """The page; `charts` are (caption, SVG text) pairs, `result` is None if no history was judged."""
    figures = "".join(f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>" for caption, svg in charts)
    heads = "".join(f"<th>{escape(head)}</th>" for head in HEADS)
    lines = "".join(
        f"<tr><td>{escape(row.part)}</td><td>{escape(row.what)}</td><td>{_badge(row.outcome)}</td>"
        f"<td>{escape(row.detail)}</td><td>{row.seconds:.1f}</td></tr>"
        for row in rows
    )
    judged = "" if result is None else f'<p>The history is {_badge(result.verdict)}: <a href="{VERDICT}">why</a></p>'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>longpoll verify</title><style>{STYLE}</style></head><body><main>"
        f"<h1>longpoll verify</h1><table><tr>{heads}</tr>{lines}</table>{judged}"
        f"<h2>The race, step by step</h2>{figures or '<p>No counterexample to draw.</p>'}"
        "</main></body></html>\n"
    )


def _badge(outcome: str) -> str:
    return f'<span class="outcome {escape(outcome)}">{escape(outcome)}</span>'
