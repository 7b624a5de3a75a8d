"""The report of `longpoll verify`: a row with a result for each check, the exit code, and `index.html`.

The page is one self-contained file without network access or scripts, with all texts escaped. `longpoll_spec.render`
and `longpoll_judge.show.report` draw the parts.
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
from longpoll_judge.show.report import STYLE as JUDGE_STYLE
from longpoll_judge.show.report import badge, render_section
from longpoll_judge.show.report import table as html_table
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
    """law, proof, store, broker, clauses, races or history."""
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
        """The page for people, on stdout."""
        out.print(styled("[bold]verdict: {}[/]", self.verdict))
        rows = ((row.part, row.what, _mark(row.outcome), row.detail, f"{row.seconds:.1f}") for row in self.rows)
        table("longpoll verify", HEADS, rows, right=["s"], grouped=True)
        for row in self.rows:
            if row.token is not None:
                out.print(f"{row.what}:\n  longpoll explain {row.token}", soft_wrap=True)


def _why(error: Exception) -> str:
    """Why a stage has no result: an error from the broker as it is, or an internal error."""
    expected = (LongpollError, OSError)
    return f"it could not be done: {error}" if isinstance(error, expected) else exit_codes.fault(error)


STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; color: #1c2733; background: #fff }
main { max-width: 78rem; margin: 2rem auto; padding: 0 1rem }
main td { overflow-wrap: anywhere }
.judge .ok { background: #1a7f4b } .judge .skipped { background: #66727d }
figure { margin: 1rem 0; overflow-x: auto } figcaption { margin-bottom: .5rem }
figure svg { max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) {
  body { color: #e3e8ec; background: #14191e }
  .judge, .judge th, .judge pre { color: #e3e8ec !important }
  .judge th, .judge pre { background: #1f262d !important }
}
"""


def render_page(rows: Sequence[Row], charts: Sequence[tuple[str, str]], result: Result | None) -> str:
    """The page; `charts` are (caption, SVG text) pairs, `result` is None if no history was judged."""
    figures = "".join(f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>" for caption, svg in charts)
    cells = ((row.part, row.what, badge(row.outcome), row.detail, f"{row.seconds:.1f}") for row in rows)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>longpoll verify</title><style>{STYLE}{JUDGE_STYLE}</style></head><body><main>"
        f'<h1>longpoll verify</h1><section class="judge">{html_table(HEADS, cells)}</section>'
        f"<h2>The race, step by step</h2>{figures or '<p>No counterexample to draw.</p>'}"
        f"</main>{'' if result is None else render_section(result)}</body></html>\n"
    )
