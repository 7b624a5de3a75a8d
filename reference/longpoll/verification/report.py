"""The report of `longpoll verify`: a row with a result for each check, and the exit code. HTML: see `.html`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from attrs import define, field, frozen
from rich.text import Text

from longpoll import exit_codes
from longpoll.output import Exit, err, out, styled, table
from longpoll_spec.errors import LongpollError

Outcome: TypeAlias = Literal["ok", "violated", "unknown", "skipped"]
MARKS: Final[dict[Outcome, str]] = {"ok": "green", "violated": "bold red", "unknown": "yellow", "skipped": "dim"}
"""The colour of each outcome."""


def _mark(outcome: Outcome) -> Text:
    return styled(f"[{MARKS[outcome]}]{{}}[/]", outcome)


@frozen
class Row:
    """The result of one check."""

    part: str
    """law, proof, store, broker, races, suite, client, clauses or history."""
    what: str
    outcome: Outcome
    detail: str
    seconds: float = 0.0
    token: str | None = None
    """A counterexample of the specification, for `longpoll explain`."""

    def as_json(self) -> dict[str, Any]:
        """The row as one JSON object."""
        return {
            "part": self.part,
            "what": self.what,
            "outcome": self.outcome,
            "detail": self.detail,
            "seconds": round(self.seconds, 3),
            "token": self.token,
        }


@define
class Page:
    """The rows so far. Invariant: `rows` only grows."""

    rows: list[Row] = field(factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows, and print each on stderr."""
        for row in rows:
            self.rows.append(row)
            said = styled("{}: {} [dim]({} s)[/]", row.part, row.what, f"{row.seconds:.1f}")
            err.print(Text(" ").join([Text(" "), _mark(row.outcome), said]))

    def stage(self, title: str, work: Callable[[], Sequence[Row]], *, part: str) -> None:
        """Run one stage under a title and add its rows; if it fails, add a row with the reason."""
        err.print(styled("[bold]{}[/]", title))
        watch = Stopwatch()
        rows = exit_codes.attempted(work)
        if isinstance(rows, exit_codes.Raised):
            if not isinstance(rows.error, Exception):
                raise rows.error  # Ctrl-C, or the end of the command
            rows = [Row(part, title, "unknown", _why(rows.error), watch.lap())]
        self.add(rows)

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
        table("longpoll verify", ("part", "what", "outcome", "what was seen", "s"), rows, right=["s"], grouped=True)
        for row in self.rows:
            if row.token is not None:
                out.print(f"{row.what}:\n  longpoll explain {row.token}", soft_wrap=True)


def _why(error: Exception) -> str:
    """Why a stage has no result: an error from the broker as it is, or an internal error."""
    expected = (LongpollError, OSError)
    return f"it could not be done: {error}" if isinstance(error, expected) else exit_codes.fault(error)


class Stopwatch:
    """Seconds since it was made or last read."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        return seconds
