"""Counts pulls held at once while a history grows, for sources that promise a limit (`rules.holding`).

The events of pulls that are held or may become held stay in memory. Events before the settled time are dropped once
their pull is answered. So the count equals that of the whole history unless a pull is held again later. A bound from
columns comes first; only above the limit are pulls counted one by one. Pulls that are dropped too early, or came
without their request, are not counted; the result reports that.

Which pulls are certainly held: `rules.holding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from numpy.typing import NDArray

from longpoll_judge.columns.batch import joined, taken
from longpoll_judge.columns.keys import request_keys, text_hashes
from longpoll_judge.columns.lookup import Booleans, Integers, is_one_of
from longpoll_judge.columns.queue_log import BEGINNING, NEVER
from longpoll_judge.contract.causes import identified
from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read.schema import are_named, coded, coded_texts, fill
from longpoll_judge.rules.cross_queue import WEIGHT, have_request, rows_where
from longpoll_judge.rules.holding import BEGINS, ENDS, judge_source
from longpoll_judge.rules.queue_columns import MS, PULL_CODES

EVENTS_MAX: Final = 2_000_000
"""Most events that are at hand, some 60 bytes each."""
OPEN_NS: Final = 600_000 * MS
"""How long a pull that nothing is heard of counts as held, which must be longer than any hold."""
CLOSED_NS: Final = 10_000 * MS
"""How long after the close of its connection a pull may still be held by what is told of it."""
_NO_ROW: Final = -1
_RECEIVED: Final = "request_received"
_KINDS: Final = (_RECEIVED, *BEGINS, *ENDS, "recheck")


@define(eq=False)
class Held:
    """The pulls that are held, or may come to be. Invariant: of no other one an event counts that may yet come."""

    events: pa.Table = field(factory=lambda: joined([]))
    found: dict[str, Finding] = field(factory=dict)
    """By source, what is certain: there is one of each."""
    open: dict[str, Finding] = field(factory=dict)
    """By source, what is not, of what is at hand."""
    is_over: bool = False
    """Whether too much would have to be at hand."""

    def findings(self) -> Iterator[Finding]:
        """All that is found."""
        yield from self.found.values()
        yield from self.open.values()

    def add(
        self, table: pa.Table, limits: Mapping[str, int], context: Context, survey: Survey, settled_ns: int
    ) -> dict[str, int]:
        """Take what is new, and judge; what only a judgement of the whole can tell, and how often.

        `limits` is by source; no event from before the settled moment comes any more.
        """
        limits = {name: limit for name, limit in limits.items() if name in survey.sources and name not in self.found}
        if not limits or self.is_over:
            return {}
        self.events = joined([self.events, self._of_pulls(table, limits, settled_ns)])
        if not len(self.events):
            return {}
        pulls = _Pulls.of(self.events)
        self.open = {}
        for source, limit in limits.items():
            if survey.sources[source].holds > limit or survey.excerpts:
                self._judge(source, limit, pulls, context)
        return self._forget(pulls, settled_ns)

    def _of_pulls(self, table: pa.Table, limits: Mapping[str, int], settled_ns: int) -> pa.Table:
        """The new events about pulls of these sources, without pulls that came and were answered, and never held."""
        sources, source_names = coded(table, "source")
        is_mine = np.array([name in limits for name in source_names], dtype=np.bool_)[sources]
        closes = np.flatnonzero(is_mine & rows_where(table, "connection_closed"))
        rows = np.flatnonzero(is_mine & have_request(table) & _of_kinds(table, _KINDS))
        keys = request_keys(table, rows)
        is_received = rows_where(table, _RECEIVED)[rows]
        is_pull = is_received & is_one_of(table["code"].to_numpy()[rows], PULL_CODES)
        is_begun = _of_kinds(table, BEGINS)[rows]
        at_hand = np.unique(request_keys(self.events, np.arange(len(self.events))))
        # A hold may be told of after the answer, as long as that is not settled.
        is_done = rows_where(table, "answer_sent")[rows] & (table["before_ns"].to_numpy()[rows] < settled_ns)
        lasting = keys[is_pull][~np.isin(keys[is_pull], keys[is_done])]
        wanted = np.unique(np.concatenate((keys[is_begun], lasting, at_hand)))
        is_wanted = np.isin(keys, wanted) & (is_pull | ~is_received)
        return taken(table, np.sort(np.concatenate((rows[is_wanted], closes))))

    def _judge(self, source: str, limit: int, pulls: _Pulls, context: Context) -> None:
        facts = context.sources[source]
        mine = pulls.of_source(source)
        if pulls.most(mine, facts.last_ns) <= limit:
            return
        rows = pulls.rows_of(mine, source)
        finding = judge_source(fill(self.events.take(pa.array(rows))).to_pylist(), limit, facts)
        if finding is not None and context.asks(finding.clause):
            (named,) = identified([finding])
            (self.found if named.verdict == "violated" else self.open)[source] = named

    def _forget(self, pulls: _Pulls, settled_ns: int) -> dict[str, int]:
        """Let go of the pulls of which nothing can matter that may come yet."""
        is_settled = pulls.last_ns < settled_ns
        strange = is_settled & (pulls.last_begin != _NO_ROW) & ~pulls.has_request
        is_left = pulls.last_ns < settled_ns - OPEN_NS
        long = is_left & pulls.may_be_held & ~strange
        closed_ns = pulls.closed_ns(settled_ns - CLOSED_NS)
        gone = (is_settled & pulls.is_answered & ~pulls.may_be_held) | strange | is_left
        gone |= is_settled & (closed_ns > BEGINNING) & (pulls.begun_ns <= closed_ns)
        stays = np.zeros(len(self.events), dtype=np.bool_)
        stays[pulls.row] = ~gone[pulls.number]
        stays[pulls.closes] = self.events["before_ns"].to_numpy()[pulls.closes] >= settled_ns - CLOSED_NS
        if not stays.all():
            self.events = taken(self.events, np.flatnonzero(stays))
        if len(self.events) > EVENTS_MAX:
            self.events, self.is_over, self.open = joined([]), True, {}
        doubts = {
            "a pull that is held, and whose request is not at hand": int(np.count_nonzero(strange)),
            "a pull that is held for more than ten minutes": int(np.count_nonzero(long)),
            "a limit that a source promises, with too many pulls open to count": int(self.is_over),
        }
        return {why: count for why, count in doubts.items() if count}


@frozen(eq=False)
class _Pulls:
    """The events in memory of each pull, in the order in which they count."""

    table: pa.Table
    row: Integers
    """The rows of the table that are about a pull, ..."""
    number: Integers
    """... and of which, by its number here."""
    closes: Integers
    """The rows that are closes of connections."""
    has_request: Booleans
    is_answered: Booleans
    last_begin: Integers
    """By pull the place of the last event that put it into the table; -1 for none."""
    last_end: Integers
    """The same of the last that took it out."""
    begun_ns: Integers
    """By pull since when it may have been held, at the latest; `BEGINNING` for never."""
    last_ns: Integers
    """By pull, when the last that is told of it happened at the latest."""

    @classmethod
    def of(cls, table: pa.Table) -> _Pulls:
        """Those of some events."""
        after_ns, before_ns = table["after_ns"].to_numpy(), table["before_ns"].to_numpy()
        order = np.lexsort((table["sequence"].to_numpy(), before_ns, after_ns))
        is_close = rows_where(table, "connection_closed")[order]
        row, closes = order[~is_close], order[is_close]
        keys, number = np.unique(request_keys(table, row), return_inverse=True)
        place, count = np.arange(len(row)), len(keys)

        def last(flags: Booleans, values: Integers, none: int) -> Integers:
            found = np.full(count, none, dtype=np.int64)
            np.maximum.at(found, number[flags], values[flags])
            return found

        is_begun, is_ended = _of_kinds(table, BEGINS)[row], _of_kinds(table, ENDS)[row]
        every = np.ones(len(row), dtype=np.bool_)
        return cls(
            table=table,
            row=row,
            number=number,
            closes=closes,
            has_request=last(rows_where(table, _RECEIVED)[row], place, _NO_ROW) != _NO_ROW,
            is_answered=last(rows_where(table, "answer_sent")[row], place, _NO_ROW) != _NO_ROW,
            last_begin=last(is_begun, place, _NO_ROW),
            last_end=last(is_ended, place, _NO_ROW),
            begun_ns=last(is_begun, after_ns[row], BEGINNING),
            last_ns=last(every, before_ns[row], BEGINNING),
        )

    @property
    def may_be_held(self) -> Booleans:
        """By pull, whether its last event put it into the table."""
        found: Booleans = self.last_begin > self.last_end
        return found

    def of_source(self, source: str) -> Booleans:
        """Which pulls are of a source, and came with their request."""
        codes, names = coded(self.table, "source")
        found = np.zeros(len(self.has_request), dtype=np.bool_)
        found[self.number[codes[self.row] == _number_of(source, names)]] = True
        return found & self.has_request

    def rows_of(self, pulls: Booleans, source: str) -> Integers:
        """The rows about some pulls of a source, and about all its connections."""
        codes, names = coded(self.table, "source")
        closes = self.closes[codes[self.closes] == _number_of(source, names)]
        return np.sort(np.concatenate((self.row[pulls[self.number]], closes)))

    def most(self, pulls: Booleans, last_ns: int) -> int:
        """No more of these pulls than this were certainly held at once by this moment."""
        after_ns, before_ns = self.table["after_ns"].to_numpy()[self.row], self.table["before_ns"].to_numpy()[self.row]
        is_begun, is_ended = _of_kinds(self.table, BEGINS)[self.row], _of_kinds(self.table, ENDS)[self.row]
        begin = np.full(len(pulls), NEVER, dtype=np.int64)
        np.minimum.at(begin, self.number[is_begun], before_ns[is_begun])
        end = np.full(len(pulls), BEGINNING, dtype=np.int64)
        np.maximum.at(end, self.number[is_ended], after_ns[is_ended])
        end[self.may_be_held] = last_ns
        # The first that takes it out after it was put there last does for good.
        ends = np.flatnonzero(is_ended & (np.arange(len(self.row)) > self.last_begin[self.number]))
        first = np.full(len(pulls), NEVER, dtype=np.int64)
        np.minimum.at(first, self.number[ends], after_ns[ends])
        end = np.minimum(end, first)
        mine = np.flatnonzero(pulls & (self.last_begin != _NO_ROW) & (begin < end))
        moments = np.concatenate((end[mine], begin[mine]))
        change = np.repeat(np.array([-1, 1]), len(mine))
        # Those of one moment that go come first.
        held: NDArray[np.int64] = np.cumsum(change[np.argsort(moments, kind="stable")])
        return int(held.max(initial=0))

    def closed_ns(self, until_ns: int) -> Integers:
        """By pull when its connection closed at the latest, if that was before a moment; else `BEGINNING`."""
        connections, names = coded_texts(self.table, "connection")
        sources, source_names = coded_texts(self.table, "source")
        keys = text_hashes(source_names)[sources] * WEIGHT + text_hashes(names)[connections]
        before_ns = self.table["before_ns"].to_numpy()
        closes = self.closes[before_ns[self.closes] < until_ns]
        found = np.full(len(self.has_request), BEGINNING, dtype=np.int64)
        if not len(closes):
            return found
        order = closes[np.argsort(keys[closes], kind="stable")]
        place = np.minimum(np.searchsorted(keys[order], keys[self.row]), len(order) - 1)
        is_closed = (keys[order[place]] == keys[self.row]) & are_named(names)[connections[self.row]]
        np.maximum.at(found, self.number[is_closed], before_ns[order[place[is_closed]]])
        return found


def _number_of(name: str, names: list[str]) -> int:
    return names.index(name) if name in names else _NO_ROW


def _of_kinds(table: pa.Table, kinds: tuple[str, ...]) -> Booleans:
    codes, names = coded(table, "event")
    found: Booleans = np.array([name in kinds for name in names], dtype=np.bool_)[codes]
    return found
