"""Chooses the events that a page draws, in memory that is bounded however long the record is.

Pulls that findings name come first, then those that are nearest in time to the first finding. Leaves out where things
lie on the page (`picture`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from numpy.typing import NDArray

from longpoll_judge.contract.result import Finding, Result
from longpoll_judge.read.schema import coded, order_of
from longpoll_judge.rules.cross_queue import Tables, events_at
from longpoll_judge.rules.queue_columns import MS, PULL_CODES

PULLS_MAX: Final = 10_000
"""Most pulls that are drawn: with their answers about 10 MB of page."""
LOG_EVENTS_MAX: Final = 20_000
"""Most events of the queues' logs that are drawn."""
OF_REQUEST: Final = ("answer_sent", "hold")
OF_LOG: Final = ("make_visible", "message_acknowledged")
ENDS: Final = ("connection_closed", "source_stopped")
"""Until when a pull without an answer can have been under way."""
Event = dict[str, Any]
Rows = NDArray[np.int64]


@frozen
class Drawn:
    """Events that a page draws."""

    events: list[Event]
    """In order of time."""
    pulls_in_all: int
    """How many pulls the record has, drawn or not."""


def of_findings(result: Result) -> Drawn:
    """The events that the findings show, where nothing else of the record is at hand."""
    unique = {(one["source"], one["sequence"]): one for each in result.findings for one in each.shown()}
    return Drawn(sorted(unique.values(), key=order_of), result.requests)


def gather(result: Result, tables: Tables, pulls_max: int = PULLS_MAX) -> Drawn:
    """Gather the events to draw of a record; every split is read four times.

    Args:
        result: The findings, which give the places to draw.
        tables: Every split's number and events.
        pulls_max: Most pulls that are drawn.
    """
    focus_ns = int(result.findings[0].window_start_ms * MS) if result.findings else 0
    named = {request for each in result.findings for request in _requests(each)}
    receipts = _Nearest(pulls_max)
    pulls_in_all = 0
    for number, table in tables():
        rows = _pulls(table)
        pulls_in_all += len(rows)
        receipts.add(number, rows, _distances(table, rows, focus_ns, named))
    asked = list(events_at(tables, receipts.named()).values())
    # An answer stands after its request, or a little before it, and in any split.
    requests = {event["request"] for event in asked}
    kept = _Nearest(pulls_max * len(OF_REQUEST))
    log = _Nearest(LOG_EVENTS_MAX)
    for number, table in tables():
        mine = _where(table, "event", OF_REQUEST)
        mine = mine[_where_mask(table, "request", requests)[mine]]
        kept.add(number, mine, _distances(table, mine, focus_ns, set()))
        of_log = _of_log(table, asked)
        log.add(number, of_log, _distances(table, of_log, focus_ns, set()))
    pairs = {_pair(event) for event in asked}
    found = events_at(tables, kept.named() | log.named())
    answers = [found[place] for place in kept.named() if _pair(found[place]) in pairs]
    logged = [found[place] for place in log.named() - kept.named()]
    return Drawn(sorted((*asked, *answers, *logged), key=order_of), pulls_in_all)


def _pair(event: Event) -> tuple[str, str]:
    return event["source"], event["request"]


@define
class _Nearest:
    """The places (split, row) with the least distances; never more than twice `most` of them at a time."""

    most: int
    places: Rows = field(factory=lambda: np.empty((0, 2), dtype=np.int64))
    distances: Rows = field(factory=lambda: np.empty(0, dtype=np.int64))

    def add(self, number: int, rows: Rows, distances: Rows) -> None:
        """Rows of one split, of which the nearest stay."""
        best = np.argsort(distances, kind="stable")[: self.most]
        new = np.column_stack((np.full(len(best), number, dtype=np.int64), rows[best]))
        together = np.concatenate((self.distances, distances[best]))
        order = np.argsort(together, kind="stable")[: self.most]
        self.places = np.concatenate((self.places, new))[order]
        self.distances = together[order]

    def named(self) -> set[tuple[int, int]]:
        """The same places as pairs."""
        return {(split_number, row) for split_number, row in self.places.tolist()}


def _requests(finding: Finding) -> Iterable[str]:
    return (name for name in (finding.request, *(one for each in finding.follows for one in each.requests)) if name)


def _pulls(table: pa.Table) -> Rows:
    rows = _where(table, "event", ("request_received",))
    codes = table["code"].to_numpy()[rows]
    nameless = _where_mask(table, "request", {""})[rows]
    found: Rows = rows[np.isin(codes, PULL_CODES) & ~nameless]
    return found


def _distances(table: pa.Table, rows: Rows, focus_ns: int, named: set[str]) -> Rows:
    """How far each row is from the focus, in ns; less than nothing for a request that a finding names."""
    away: Rows = np.abs(table["after_ns"].to_numpy()[rows] - focus_ns)
    if named:
        away[_where_mask(table, "request", named)[rows]] = -1
    return away


def _of_log(table: pa.Table, asked: Iterable[Event]) -> Rows:
    """Events of the logs of the queues that were asked, and what ended connections and sources."""
    topics = {event.get("topic", "") for event in asked}
    logged = _where(table, "event", OF_LOG)
    logged = logged[_where_mask(table, "topic", topics)[logged]]
    found: Rows = np.concatenate((logged, _where(table, "event", ENDS)))
    return found


def _where_mask(table: pa.Table, column: str, wanted: Iterable[str]) -> NDArray[np.bool_]:
    codes, names = coded(table, column)
    asked = set(wanted)
    mask: NDArray[np.bool_] = np.array([name in asked for name in names], dtype=np.bool_)[codes]
    return mask


def _where(table: pa.Table, column: str, wanted: Iterable[str]) -> Rows:
    rows: Rows = np.flatnonzero(_where_mask(table, column, wanted))
    return rows
