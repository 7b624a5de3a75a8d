"""Cuts a bucket with too many events, such as a busy queue, into parts by time, and judges each part as a window.

An event is judged in the part that contains its time, and a request in the part in which it was received. The window of
a part also has the following events of other parts, because the clauses compare them with the part's own events:

- all events of requests and messages that have events in several parts (`buckets.visitors_of`);
- the messages at the offsets that the part names, and the event that made the next message visible;
- answers that deliver the offsets that the part's answers skip, and commits of the offsets that its queries returned;
- for each queue and generation, the events with the lowest and highest offsets, both before the part and in all parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from os import SEEK_END
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa
from attrs import define, evolve, field, frozen

from longpoll_judge.columns.keys import KeyFile, open_keys
from longpoll_judge.columns.lookup import BEGINNING, NEVER, Booleans, Integers, distinct, first_of, is_one_of, numbered
from longpoll_judge.columns.tables import (
    FEW_NAMES,
    QueueName,
    compacted,
    decode,
    encode,
    joined,
    place_answers,
    queue_names,
    queue_numbers,
    taken,
)
from longpoll_judge.contract.clause import PULL_RESULTS
from longpoll_judge.evidence.survey import QUERY_CONSUMER_OFFSET, Context
from longpoll_judge.kernel.case import FOUND, NO_MATCHED_MSG
from longpoll_judge.kernel.commits import OFFSET_CODES
from longpoll_judge.kernel.gathered import changes_of, gather, have_request, rows_where
from longpoll_judge.kernel.logs import MESSAGES
from longpoll_judge.kernel.pulls import PULL_CODES
from longpoll_judge.kernel.verdict import Native, judge_window
from longpoll_judge.read.schema import coded_texts, integers_of, lists_of
from longpoll_judge.run.buckets import are_common, each_once, pairs_of, placed_keys, visitors_of

SAMPLES: Final = 600
"""The approximate number of event times that are sampled for each part, to choose the borders of the parts."""


def sample_of(table: pa.Table, most: int) -> Integers:
    """Return a sample of event times, from which `borders_of` cuts parts of about `most` events each."""
    return integers_of(table, "after_ns")[:: _step(most)].copy()


def borders_of(samples: Iterable[Integers], most: int) -> Integers:
    """Return the times at which the parts after the first one begin."""
    moments = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *samples]))
    count = -(-len(moments) * _step(most) // most)
    return distinct(moments[np.arange(1, count) * len(moments) // count])


def _step(most: int) -> int:
    return max(most // SAMPLES, 1)


@define
class Intervals:
    """The offsets that a part names, by queue, as disjoint intervals."""

    of: dict[QueueName, tuple[Integers, Integers]] = field(factory=dict)

    def add(self, name: QueueName, first: Integers, end: Integers) -> None:
        """Add the intervals [first, end), given by the elements of the two arrays."""
        known = self.of.get(name, (first[:0], first[:0]))
        first, end = np.append(known[0], first), np.append(known[1], end)
        order = np.argsort(first, kind="stable")
        first, reached = first[order], np.maximum.accumulate(end[order])
        starts = np.flatnonzero(np.append(True, first[1:] > reached[:-1])[: len(first)])
        self.of[name] = first[starts], np.append(reached[starts[1:] - 1], reached[-1:])


Told = dict[QueueName, tuple[Integers, Integers]]
"""For each queue, the ascending offsets that events name, and for each offset the row of its event."""


@define
class Needs:
    """The offsets that a part names, because events about these offsets may lie in other parts."""

    messages: Intervals = field(factory=Intervals)
    passed: Intervals = field(factory=Intervals)
    """The offsets that the part's answers skip."""
    commits: Intervals = field(factory=Intervals)
    """The offsets that the part's queries returned, doubled so that adjacent offsets stay separate intervals."""

    def add(self, table: pa.Table) -> None:
        """Add the offsets that these events name. An answer is in the same table as its request."""
        table = place_answers(table)
        queue, firsts = queue_numbers(table)
        rows, value = _of_log(table)
        spans = [(rows, value - 1, value + 1)]
        asked, answers = _exchanges(table)
        offset, code = integers_of(table, "offset"), integers_of(table, "code")
        pulls = np.flatnonzero(rows_where(table, "request_received") & is_one_of(code, PULL_CODES))
        spans.append((pulls, offset[pulls], offset[pulls] + 1))
        ends = (integers_of(table, name)[answers] for name in ("offset_min", "offset_max"))
        spans += ((answers, end - 1, end) for end in ends)
        reads = is_one_of(code[answers], (FOUND, NO_MATCHED_MSG)) & (offset[asked] >= 0)
        asked, answers = asked[reads], answers[reads]
        first, end = offset[asked], integers_of(table, "offset_next")[answers]
        bounds, bodies = lists_of(table, "offsets")
        spans.append((answers, first, end))
        count = np.diff(bounds)
        filled = np.flatnonzero(count)
        spans.append((filled, bodies[bounds[filled]], bodies[bounds[filled + 1] - 1] + 1))
        passes = end - first > count[answers]
        told = np.flatnonzero(rows_where(table, "answer_sent") & (offset >= 0))
        for intervals, several in (
            (self.messages, spans),
            (self.passed, [(answers[passes], first[passes], end[passes])]),
            (self.commits, [(told, 2 * offset[told], 2 * offset[told] + 1)]),
        ):
            rows, first, end = (np.concatenate(each) for each in zip(*several, strict=True))
            for number, name in enumerate(queue_names(table, firsts)):
                mine = (queue[rows] == number) & (end > first)
                if mine.any():
                    intervals.add(name, first[mine], end[mine])


@define
class Telling:
    """The events of a part, grouped by the reason for which other parts may need them."""

    table: pa.Table
    messages: Told
    deliveries: Told
    commits: Told

    @classmethod
    def of(cls, table: pa.Table) -> Telling:
        """Group the events of a table."""
        queue, firsts = queue_numbers(table)
        names, after_ns = queue_names(table, firsts), integers_of(table, "after_ns")

        def told(rows: Integers, value: Integers) -> Told:
            order = np.lexsort((after_ns[rows], value, queue[rows]))
            bounds = np.searchsorted(queue[rows[order]], np.arange(len(names) + 1)).tolist()
            parts = (order[start:end] for start, end in pairwise(bounds))
            return {name: (value[part], rows[part]) for name, part in zip(names, parts, strict=True)}

        bounds, bodies = lists_of(table, "offsets")
        commit, offset = integers_of(table, "commit_offset"), integers_of(table, "offset")
        commits = np.flatnonzero(commit >= 0)
        answers = np.flatnonzero(rows_where(table, "answer_sent") & (offset >= 0))
        values = 2 * np.append(commit[commits], offset[answers])
        return cls(
            table,
            messages=told(*_of_log(table)),
            deliveries=told(np.repeat(np.arange(len(table)), np.diff(bounds)), bodies),
            commits=told(np.append(commits, answers), values),
        )

    def needed(self, needs: Needs) -> Integers:
        """Return the events that another part needs, with their requests, and the first message after each interval."""
        logged = [
            np.append(rows[_ranges(first, end)], rows[end[end < len(rows)]])
            for rows, first, end in _meeting(needs.messages, self.messages)
        ]
        asked = [rows[_ranges(first, end)] for rows, first, end in _meeting(needs.passed, self.deliveries)]
        for rows, first, end in _meeting(needs.commits, self.commits):
            # Of the rows that name the same offset, keep the first and the last one.
            is_there = end > first
            asked += [rows[first[is_there]], rows[end[is_there] - 1]]
        none = np.empty(0, dtype=np.int64)
        return _with_requests(self.table, np.concatenate([none, *logged, *asked]))


def _meeting(needed: Intervals, told: Told) -> Iterator[tuple[Integers, Integers, Integers]]:
    """Yield, for each queue, the rows of the told offsets, and for each needed interval the slice of rows in it."""
    for name, (first, end) in needed.of.items():
        if name in told:
            values, rows = told[name]
            yield rows, np.searchsorted(values, first), np.searchsorted(values, end)


def _ranges(first: Integers, end: Integers) -> Integers:
    count = end - first
    return np.repeat(first - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))


def _of_log(table: pa.Table) -> tuple[Integers, Integers]:
    """Return the events about messages in the log, and the offsets of the messages.

    A `make_visible` event counts as an event about the last message that it makes visible.
    """
    moved = np.flatnonzero(rows_where(table, "make_visible"))
    rows = np.flatnonzero(np.logical_or.reduce([rows_where(table, name) for name in (*MESSAGES, "message_popped")]))
    value = np.append(integers_of(table, "queue_offset")[rows], integers_of(table, "visible_end")[moved] - 1)
    return np.append(rows, moved), value


def _exchanges(table: pa.Table) -> tuple[Integers, Integers]:
    """Return the pulls whose answers are among these events, and the answers."""
    request, named = pairs_of(table, "request"), have_request(table)
    asked = np.flatnonzero(rows_where(table, "request_received") & named)
    answers = np.flatnonzero(rows_where(table, "answer_sent") & named)
    at = first_of(request[answers], request[asked])
    return asked[at[at >= 0]], answers[at >= 0]


def _with_requests(table: pa.Table, rows: Integers) -> Integers:
    if not len(rows):
        return rows
    request, named = pairs_of(table, "request"), have_request(table)
    wanted = distinct(request[rows[named[rows]]])
    return np.union1d(rows, np.flatnonzero(named & np.isin(request, wanted)))


def _last_of(keys: tuple[Integers, ...], value: Integers) -> Integers:
    """Return the index of the highest value of each key; of equal values, the last index."""
    if not len(value):
        return np.empty(0, dtype=np.int64)
    (key,) = numbered(keys)
    order = np.lexsort((value, key))
    last: Integers = order[np.append(key[order][1:] != key[order][:-1], True)]
    return last


def extremes(table: pa.Table, context: Context) -> pa.Table:
    """Return the events with which later events of each queue and generation are compared. The tables can be merged."""
    placed = place_answers(table)
    queue = queue_numbers(placed)[0].astype(np.int64)
    after_ns = integers_of(placed, "after_ns")
    every = np.arange(len(placed))
    life = np.zeros(len(placed), dtype=np.int64)
    for mine, holes in changes_of(gather(placed, every), context):
        life += np.where(mine, np.searchsorted(holes.starts, after_ns), 0)
    place = queue * (int(life.max(initial=0)) + 1) + life
    source, event = (coded_texts(placed, name)[0].astype(np.int64) for name in ("source", "event"))
    found: list[Integers] = []

    def pick(rows: Integers, keys: tuple[Integers, ...], *values: Integers) -> None:
        found.extend(rows[_last_of(keys, value)] for value in (after_ns[rows], *values))

    rows, value = _of_log(placed)
    pick(rows, (place[rows], source[rows], event[rows]), value, -value, -after_ns[rows])
    asked, answers = _exchanges(placed)
    code, following = integers_of(placed, "code"), integers_of(placed, "offset_next")
    reads = is_one_of(code[answers], PULL_RESULTS) & (integers_of(placed, "offset_min")[answers] >= 0)
    asked, answers = asked[reads], answers[reads]
    passed = np.where(is_one_of(code[answers], (FOUND, NO_MATCHED_MSG)), following[answers], 0)
    shown = np.maximum(integers_of(placed, "offset_max")[answers], passed)
    connection, group = (coded_texts(placed, name)[0].astype(np.int64)[asked] for name in ("connection", "group"))
    pick(answers, (place[answers], source[answers], connection), shown)
    pick(answers, (place[answers], group), passed)
    commit = integers_of(placed, "commit_offset")
    commits = rows_where(placed, "request_received") & ((commit >= 0) | is_one_of(code, OFFSET_CODES))
    rows = np.flatnonzero(commits)
    group = coded_texts(placed, "group")[0].astype(np.int64)[rows]
    pick(rows, (place[rows], group, source[rows], code[rows]), commit[rows], -commit[rows])
    ends = np.flatnonzero(rows_where(placed, "answer_sent") & (integers_of(placed, "offset_max") >= 0))
    pick(ends, (place[ends],), integers_of(placed, "offset_max")[ends])
    queries, answers = _exchanges(placed)
    is_query = code[queries] == QUERY_CONSUMER_OFFSET
    queries, answers = queries[is_query], answers[is_query]
    group, told = coded_texts(placed, "group")[0].astype(np.int64)[queries], integers_of(placed, "offset")[answers]
    pick(queries, (place[queries], group, source[queries]), told, -told)
    return taken(table, _with_requests(placed, distinct(np.concatenate(found))))


@frozen
class PartWindow:
    """The window of one part of a bucket."""

    table: pa.Table
    since_ns: int
    until_ns: int

    def are_mine(self, table: pa.Table, are_own: Native) -> Booleans:
        """Return a mask of the events that are judged in this part."""
        after_ns = integers_of(table, "after_ns")
        found: Booleans = are_own(table) & (after_ns >= self.since_ns) & (after_ns < self.until_ns)
        return found

    def judge(self, context: Context, are_own: Native) -> pa.Table:
        """Return the result rows for the part's own events."""
        return judge_window(self.table, context, are_own, mine=partial(self.are_mine, are_own=are_own))


@define
class Parts:
    """The parts of a bucket, in a file."""

    _file: BinaryIO
    _keys: KeyFile
    _borders: Integers
    _are_own: Native
    """Returns a mask of the events that belong to the bucket's queues."""
    _pieces: list[list[Piece]] = field(init=False)
    _guests: list[list[Piece]] = field(init=False)
    _before: list[pa.Table] = field(factory=list)
    """For each part, the extremes of all events before the part; the last entry holds the extremes of all events."""
    _common: list[pa.Table] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        """Start without events."""
        self._pieces = [[] for _ in range(len(self._borders) + 1)]
        self._guests = [[] for _ in self._pieces]

    def put(self, table: pa.Table) -> None:
        """Add events of the bucket, or events of other buckets that were copied to it."""
        part = self._parts_of(table)
        for number in distinct(part).tolist():
            events = compacted(table.filter(pa.array(part == number)), FEW_NAMES)
            self._keys.put(placed_keys(events, partial(_placed, part=number)))
            self._pieces[number].append(write_piece(self._file, events))

    def windows(self, ends: pa.Table, context: Context) -> Iterator[PartWindow]:
        """Yield the window of each part. Call this after all events were added."""
        needs = self._visit(context)
        visitors = [[*pieces] for pieces in self._guests]
        for number in range(len(self._pieces)):
            self._lend(number, needs, visitors[number])
        bounds = [BEGINNING, *self._borders.tolist(), NEVER]
        for number in range(len(self._pieces)):
            part = PartWindow(joined([]), *bounds[number : number + 2])
            lent = read_pieces(self._file, self._guests[number])
            guests = joined([*lent, *self._common, self._before[number], self._before[-1], ends])
            guests = guests.filter(pa.array(~part.are_mine(guests, self._are_own)))
            table = joined([*self._events(number), guests])
            yield evolve(part, table=each_once(table, partial(part.are_mine, are_own=self._are_own)))

    def _events(self, part: int) -> Iterator[pa.Table]:
        return read_pieces(self._file, self._pieces[part])

    def _parts_of(self, table: pa.Table) -> Integers:
        found: Integers = np.searchsorted(self._borders, integers_of(table, "after_ns"), side="right")
        return found

    def _visit(self, context: Context) -> list[Needs]:
        """Copy requests and messages to all parts that need them; return the offsets that each part names."""
        shared = self._keys.shared()
        needs = [Needs() for _ in self._pieces]
        waiting, before = [], joined([])
        for number in range(len(self._pieces)):
            table = joined(self._events(number))
            needs[number].add(table)
            named = (rows_where(table, "request_received") | rows_where(table, "answer_sent")) & have_request(table)
            waiting.append(taken(table, np.setdiff1d(np.flatnonzero(named), np.concatenate(_exchanges(table)))))
            for other, events in visitors_of(table, number, shared):
                self._guests[other].append(write_piece(self._file, events))
            self._common.append(taken(table, np.flatnonzero(are_common(table))))
            self._before.append(before)
            # An answer with an extreme offset needs its request, which may lie in an earlier part.
            lent = read_pieces(self._file, self._guests[number])
            before = extremes(joined([before, table, *lent]), context)
        self._before.append(before)
        for number, alone in enumerate(waiting):
            # Add the copied events too, because they include the answers to the part's unanswered requests, and the
            # requests of its other answers.
            needs[number].add(joined([alone, *read_pieces(self._file, self._guests[number])]))
        return needs

    def _lend(self, part: int, needs: list[Needs], visitors: list[Piece]) -> None:
        """Copy the events of this part that other parts need, together with their requests."""
        if not self._pieces[part]:
            return
        table = joined([*self._events(part), *read_pieces(self._file, visitors)])
        telling = Telling.of(table)
        for other, needed in enumerate(needs):
            rows = telling.needed(needed) if other != part else np.empty(0, dtype=np.int64)
            if len(rows):
                self._guests[other].append(write_piece(self._file, taken(table, rows)))


@contextmanager
def open_parts(borders: Integers, are_own: Native) -> Iterator[Parts]:
    """Open parts with these borders in time; their files are deleted at the end of the block."""
    with TemporaryFile(prefix="longpoll-judge-") as file, open_keys() as keys:
        yield Parts(file, keys, borders, are_own)


def _placed(_name: QueueName, part: int) -> int:
    return part


Piece = tuple[int, int]
"""The location of events in a file: the first byte, and the number of bytes."""


def read_pieces(file: BinaryIO, pieces: Iterable[Piece]) -> Iterator[pa.Table]:
    """Yield the events of some pieces of a file, piece by piece."""
    for start, length in pieces:
        file.seek(start)
        yield decode(file.read(length))


def write_piece(file: BinaryIO, table: pa.Table) -> Piece:
    """Append events to a file, and return their location."""
    content = encode(table)
    start = file.seek(0, SEEK_END)
    file.write(content)
    return start, len(content)
