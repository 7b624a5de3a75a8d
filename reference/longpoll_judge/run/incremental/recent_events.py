"""The last events of some kinds while a history grows, which are judged repeatedly as a separate record.

Earlier and later events count as gaps of this record. So anything that depends on them is unknown, and certain findings
stand. Each event is judged at least twice. Events further apart are left to a judgement of the whole.

**Identifiers** are remembered, so that a repeated one is noticed however late it comes: only an answer's own fields
show which request it answers. The first request may be judged by then. It stays in the sum, which becomes doubtful;
later requests with that identifier are left to a judgement of the whole. Recorders number their requests, so `7-1`,
`7-2` and `7-3` are stored as one span. Any other one takes 24 bytes. Too many are all forgotten, a separate doubt.

**Committed offsets.** Requests that may explain an offset at any time stay in memory. They have no answer (one-way
commits), have a repeated identifier, or move offsets. Anything that depends on older commits is left to a judgement of
the whole. So is everything once memory is full.

The count of held pulls needs more events in memory (`held_pulls`). The rules: `rules.sends`, `rules.commits`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, evolve, field
from numpy.typing import NDArray

from longpoll_judge.columns.batch import joined, taken
from longpoll_judge.columns.keys import NO_KEYS, Keys, repeated, request_keys, text_hashes
from longpoll_judge.columns.lookup import Booleans, Integers, is_one_of
from longpoll_judge.columns.queue_log import BEGINNING
from longpoll_judge.contract.causes import identified
from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.source_survey import DISORDER_NS, RecordGaps, gaps_of, union
from longpoll_judge.evidence.survey import Context, Survey
from longpoll_judge.read.schema import coded, coded_texts, compute, fill
from longpoll_judge.rules.commits import OFFSET_CODES, RESETS, exchanges, judge_exchanges
from longpoll_judge.rules.cross_queue import WEIGHT, have_request, rows_where
from longpoll_judge.rules.logs import judge_offset_regression
from longpoll_judge.rules.queue_columns import MS, REQUEST_EVENTS
from longpoll_judge.rules.sends import judge_sends
from longpoll_judge.run.incremental.held_pulls import Held
from longpoll_judge.run.tally import Latest

SPANS_MAX: Final = 2_000_000
"""Most spans that are remembered, 48 MB."""
AGAIN_MAX: Final = 100_000
"""Most identifiers that came again of which what comes later is left out."""
CAME_AGAIN: Final = "a request whose identifier came again"
TOO_MANY: Final = "identifiers that are too many to remember, so that one may have come again"
_NUMBERED: Final = r"^(?P<text>(?s:.)*?)(?P<number>0|[1-9][0-9]{0,17})$"
"""With no zero before it, so that text and number are of one identifier alone."""
_NO_NUMBER: Final = -1


def _none() -> Integers:
    return np.zeros(0, dtype=np.int64)


@define(eq=False)
class Asked:
    """Invariant: the spans are in order of their text and first number, and no two of one text touch."""

    text: Keys = field(factory=NO_KEYS.copy)
    first: Integers = field(factory=_none)
    last: Integers = field(factory=_none)
    again: Keys = field(factory=NO_KEYS.copy)
    """The keys of requests whose identifier came again."""
    is_over: bool = False

    def add(self, table: pa.Table) -> dict[str, int]:
        """Remember what is asked; the doubts that arise, each with how often."""
        rows = np.flatnonzero(rows_where(table, "request_received") & have_request(table))
        if self.is_over or not len(rows):
            return {}
        keys = request_keys(table, rows)
        text, number = _numbered(table, rows)
        place, is_known = self._find(text, number)
        came_again = np.union1d(keys[is_known], repeated([keys]))
        fresh = np.flatnonzero(~is_known)
        order = fresh[np.lexsort((number[fresh], text[fresh]))]
        is_first = np.append(True, (text[order][1:] != text[order][:-1]) | (number[order][1:] != number[order][:-1]))
        order = order[is_first[: len(order)]]
        self._insert(place[order], text[order], number[order])
        new = np.setdiff1d(came_again, self.again)
        self.again = np.union1d(self.again, new[: max(AGAIN_MAX - len(self.again), 0)])
        doubts = {CAME_AGAIN: len(new)} if len(new) else {}
        if len(self.first) > SPANS_MAX:
            self.is_over, self.text, self.first, self.last = True, NO_KEYS, _none(), _none()
            doubts[TOO_MANY] = SPANS_MAX
        return doubts

    def without(self, table: pa.Table) -> pa.Table:
        """The events but those of requests whose identifier came again."""
        if not len(self.again) or not len(table):
            return table
        is_theirs = np.isin(request_keys(table, np.arange(len(table))), self.again)
        is_theirs &= np.logical_or.reduce([rows_where(table, event) for event in REQUEST_EVENTS])
        return table.filter(pa.array(~is_theirs)) if is_theirs.any() else table

    def _find(self, text: Keys, number: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """Where each identifier belongs among the spans, and whether it is in one of them."""
        low = np.searchsorted(self.text, text, side="left")
        high = np.searchsorted(self.text, text, side="right")
        start = low.copy()
        while (low < high).any():
            middle = (low + high) // 2
            is_behind = (low < high) & (self.first[np.minimum(middle, len(self.first) - 1)] <= number)
            low, high = np.where(is_behind, middle + 1, low), np.where(is_behind | (low >= high), high, middle)
        is_known: NDArray[np.bool_] = (low > start) & (np.append(self.last, _NO_NUMBER)[low - 1] >= number)
        return low, is_known

    def _insert(self, place: Integers, text: Keys, number: Integers) -> None:
        """Add identifiers that are in no span, in order, and join those that touch."""
        text = np.insert(self.text, place, text)
        first, last = np.insert(self.first, place, number), np.insert(self.last, place, number)
        starts = np.flatnonzero(np.append(True, (text[1:] != text[:-1]) | (first[1:] > last[:-1] + 1))[: len(text)])
        ends = np.append(starts[1:], len(text)) - 1
        self.text, self.first, self.last = text[starts], first[starts], last[ends[: len(starts)]]


def _numbered(table: pa.Table, rows: Integers) -> tuple[Keys, Integers]:
    """The identifier of each row as the key of a text, by source, and the number behind it."""
    codes, texts = coded_texts(table, "request")
    used, own = np.unique(codes[rows], return_inverse=True)
    names = texts.take(pa.array(used))
    found = compute.extract_regex(names, _NUMBERED)
    text = compute.coalesce(compute.struct_field(found, "text"), names)
    number = compute.fill_null(compute.struct_field(found, "number").cast(pa.int64()), _NO_NUMBER)
    sources, source_names = coded_texts(table, "source")
    keys: Keys = text_hashes(source_names)[sources[rows]] * WEIGHT + text_hashes(text)[own]
    return keys, number.to_numpy()[own]


SPAN_NS: Final = 20_000 * MS
"""How long events are at hand, if there are not too many: longer than a send may stay without an answer."""
FRESH_MIN: Final = 200_000
"""This number of new events is judged at once, or half of what is at hand, ..."""
FRESH_NS: Final = 4_000 * MS
"""... or what came in this time."""


@define(eq=False)
class Recent:
    """Invariant: what is not in `pieces` happened before `gone_ns`."""

    pieces: list[tuple[pa.Table, int]] = field(factory=list)
    """Events, and the last moment among them."""
    gone_ns: int = BEGINNING
    count: int = 0
    fresh: int = 0
    """Events that were not judged."""
    judged_ns: int = BEGINNING
    """The last moment of what was."""

    def add(self, table: pa.Table) -> bool:
        """Take what is new; whether it is enough to judge."""
        last_ns = int(table["before_ns"].to_numpy().max())
        self.pieces.append((table, last_ns))
        self.count += len(table)
        self.fresh += len(table)
        return self.fresh >= min(FRESH_MIN, self.count // 2) or last_ns >= self.judged_ns + FRESH_NS

    def leave_out(self, without: Callable[[pa.Table], pa.Table]) -> None:
        """Let go of some of the events at hand."""
        self.pieces = [(without(table), last_ns) for table, last_ns in self.pieces]
        self.count = sum(len(table) for table, _last_ns in self.pieces)

    def forget(self, events_max: int) -> list[pa.Table]:
        """Note that all was judged, and let go of what is too much or too old; what that was."""
        _table, last_ns = self.pieces[-1]
        self.fresh, self.judged_ns = 0, last_ns
        gone: list[pa.Table] = []
        while len(self.pieces) > 1 and (self.count > events_max or self.pieces[0][1] < last_ns - SPAN_NS):
            table, gone_ns = self.pieces.pop(0)
            self.count -= len(table)
            self.gone_ns = max(self.gone_ns, gone_ns)
            gone.append(table)
        return gone

    def context(self, context: Context, disorder_ns: int) -> Context:
        """The context of what is at hand, as a record that begins with it."""
        return context if self.gone_ns == BEGINNING else since(context, self.gone_ns + disorder_ns)


def since(context: Context, until_ns: int) -> Context:
    """The context of a record of which nothing before a moment is known."""
    gone = gaps_of([(BEGINNING, until_ns)])

    def holed(holes: dict[str, RecordGaps], names: Collection[str]) -> dict[str, RecordGaps]:
        return {name: union((holes[name], gone)) if name in holes else gone for name in {*holes, *names}}

    facts = {name: evolve(fact, holes=union((fact.holes, gone))) for name, fact in context.sources.items()}
    brokers = {*context.broker_holes, *context.life_holes}
    return evolve(
        context,
        sources=facts,
        broker_holes=holed(context.broker_holes, brokers),
        life_holes=holed(context.life_holes, brokers),
    )


OFFSET_EVENTS_MAX: Final = 100_000
"""Most events that are at hand, about 100 bytes each."""
LASTING_MAX: Final = 50_000
"""Most requests of long ago that are at hand, since they may still excuse."""
FINDINGS_MAX: Final = 1_000
"""Most findings that are kept, those that were found last."""
OF_ALL: Final = "commit.told.most"
"""Findings that depend on all earlier commits."""


@define(eq=False)
class Offsets:
    """The last exchanges about offsets. Invariant: what is in no piece and not `lasting` was answered before them."""

    recent: Recent = field(factory=Recent)
    lasting: pa.Table = field(factory=lambda: joined([]))
    """Requests of before that had no answer of their own then, or put offsets elsewhere."""
    found: Latest[str, Finding] = field(factory=Latest[str, Finding])
    """By name, what is certain."""
    is_over: bool = False
    """Whether too much would have to stay at hand."""

    def add(self, table: pa.Table, context: Context, survey: Survey, settled_ns: int, again: Keys) -> None:
        """Add new events, and judge those before the settled time if there are enough.

        `again` are the requests with a repeated identifier: they prove no violation, and their commits may explain an
        offset.
        """
        if self.is_over:
            return
        mine = taken(table, np.flatnonzero(self._about(table)))
        if not len(mine):
            return
        if self.recent.add(mine):
            if survey.offset_queries or survey.offset_updates:
                self._judge(context, survey, settled_ns, again)
            for gone in self.recent.forget(OFFSET_EVENTS_MAX):
                self._outlive(gone, again)

    def _about(self, table: pa.Table) -> Booleans:
        """Which events are requests about offsets, or answers to such of these that are at hand."""
        about = rows_where(table, "request_received")
        codes = is_one_of(table["code"].to_numpy(), (*OFFSET_CODES, *RESETS))
        about &= codes | (table["commit_offset"].to_numpy() >= 0)
        answers = np.flatnonzero(rows_where(table, "answer_sent") & have_request(table))
        if not len(answers):
            return about
        at_hand = [self.lasting, *(piece for piece, _last_ns in self.recent.pieces)]
        asked = [_keys(table, np.flatnonzero(about)), *(_requests(each) for each in at_hand)]
        about[answers[np.isin(request_keys(table, answers), np.concatenate(asked))]] = True
        return about

    def _judge(self, context: Context, survey: Survey, settled_ns: int, again: Keys) -> None:
        context = self.recent.context(context, survey.disorder_ns + DISORDER_NS)
        facts = {name: evolve(one, last_ns=min(one.last_ns, settled_ns)) for name, one in context.sources.items()}
        tables = [fill(each) for each in (self.lasting, *(piece for piece, _last_ns in self.recent.pieces))]
        if not any(is_one_of(each["code"].to_numpy(), OFFSET_CODES).any() for each in tables):
            return
        asked, answers, twice = exchanges(tables)
        at_hand = asked, answers, np.union1d(twice, again)
        found, _share, _gaps = judge_exchanges(at_hand, evolve(context, sources=facts))
        certain = [one for one in found if one.verdict == "violated" and one.clause != OF_ALL]
        settled = [one for one in certain if context.asks(one.clause) and one.window_end_ms * MS < settled_ns]
        for finding in identified(settled):
            self.found.put(finding.id, finding, FINDINGS_MAX)

    def _outlive(self, gone: pa.Table, again: Keys) -> None:
        """Keep of what is let go what may still excuse."""
        asked = fill(joined([self.lasting, taken(gone, np.flatnonzero(rows_where(gone, "request_received")))]))
        answered = _keys(gone, np.flatnonzero(rows_where(gone, "answer_sent")))
        keys = request_keys(asked, np.arange(len(asked)))
        stays = is_one_of(asked["code"].to_numpy(), RESETS) | ~have_request(asked)
        stays |= ~np.isin(keys, answered) | np.isin(keys, again)
        self.lasting = taken(asked, np.flatnonzero(stays))
        if len(self.lasting) > LASTING_MAX:
            self.is_over, self.lasting, self.recent = True, joined([]), Recent()


def _requests(table: pa.Table) -> Keys:
    return _keys(table, np.flatnonzero(rows_where(table, "request_received")))


def _keys(table: pa.Table, rows: Integers) -> Keys:
    return request_keys(table, rows) if len(rows) else NO_KEYS


EVENTS_MAX: Final = 500_000
"""Most events that are at hand, about 100 bytes each."""
"""Most findings that are kept, those that were found last, and most of each kind that one look gives."""
KINDS: Final = frozenset({"request_received", "answer_sent", "message_acknowledged", "append", "make_visible"})


@define(eq=False)
class Beside:
    """The last seconds of a history."""

    recent: Recent = field(factory=Recent)
    found: Latest[str, Finding] = field(factory=Latest[str, Finding])
    """By name, what is certain."""
    offsets: Offsets = field(factory=Offsets)
    held: Held = field(factory=Held)
    asked: Asked = field(factory=Asked)
    beyond: int = 0
    """The count that one look left out, each time it grew."""
    _beyond_last: int = 0

    def findings(self) -> Iterator[Finding]:
        """All that is certain and kept; who asks tells it."""
        yield from self.found.look()
        yield from self.offsets.found.look()
        yield from self.held.findings()

    @property
    def untold(self) -> int:
        """How many findings were dropped before a judgement was requested."""
        return self.found.left_out + self.offsets.found.left_out + self.beyond

    def add(
        self, table: pa.Table, limits: Mapping[str, int], context: Context, survey: Survey, settled_ns: int
    ) -> dict[str, int]:
        """Take what is new, and judge if it is enough; what only the end can tell, and how often.

        No event from before the settled moment comes any more; `limits` are what sources promise to hold at most.
        """
        self.offsets.add(table, context, survey, settled_ns, self.asked.again)
        table = self.asked.without(table)
        codes, names = coded(table, "event")
        rows = np.flatnonzero(np.array([name in KINDS for name in names], dtype=np.bool_)[codes])
        if len(rows) and self.recent.add(taken(table, rows)):
            self.judge(context, survey)
            self.recent.forget(EVENTS_MAX)
        return self.held.add(table, limits, context, survey, settled_ns)

    def ask(self, table: pa.Table) -> dict[str, int]:
        """Remember identifiers, and let go of requests at hand whose one came again; the doubts that arise."""
        doubts = self.asked.add(table)
        if doubts:
            self.recent.leave_out(self.asked.without)
            self.held.events = self.asked.without(self.held.events)
        return doubts

    def judge(self, context: Context, survey: Survey) -> None:
        """Judge what is at hand."""
        observers = survey.observers
        context = self.recent.context(context, survey.disorder_ns + DISORDER_NS)
        tables = [fill(table) for table, _last_ns in self.recent.pieces]
        found: list[Finding] = []
        beyond = 0
        if observers.acknowledged or observers.sends or observers.identified:
            listed, left_out, _share, _unasked = judge_sends(lambda: enumerate(tables), context, most=FINDINGS_MAX)
            found, beyond = found + listed, beyond + left_out
        if observers.min_least < observers.min_most or not survey.answered <= survey.shown:
            listed, left_out = judge_offset_regression(lambda: enumerate(tables), context, most=FINDINGS_MAX)
            found, beyond = found + listed, beyond + left_out
        certain = [one for one in found if one.verdict == "violated" and context.asks(one.clause)]
        for finding in identified(certain):
            self.found.put(finding.id, finding, FINDINGS_MAX)
        self.beyond += max(beyond - self._beyond_last, 0)
        self._beyond_last = beyond
