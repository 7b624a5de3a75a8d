"""Gathers events of a window, from any of its queues, as columns of numbers, and makes findings about these events.

Each event is held as a row number and the columns that its rule needs. Names, requests and queues have the same small
numbers as in the window, so that events can be joined by an array lookup. The rules are in `sends`, `messages`, `ends`,
`filters` and `pops`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, evolve, field, frozen

from longpoll_judge.columns.lookup import NEVER, Booleans, Integers, first_of, numbered
from longpoll_judge.columns.tables import QueueName, queue_names
from longpoll_judge.contract.clause import LOGGED, TIMELESS
from longpoll_judge.contract.clauses import CLAUSE, finding_of
from longpoll_judge.contract.result import Finding, FindingVerdict
from longpoll_judge.evidence.source_survey import RecordGaps
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.kernel.window import Window
from longpoll_judge.read.schema import (
    EVENT_SCHEMA,
    are_named,
    coded,
    coded_texts,
    compute,
    event_dict,
    integers_of,
    order_of,
)
from longpoll_spec.history import ABSENT

NUMBER: Final = "request_number"
"""A column of a window's table: a small number for each event's request; 0 if the event has no request."""
QUEUE: Final = "queue_number"
"""A column of a window's table: a small number for each event's (broker, topic, queue)."""


@define(eq=False, slots=False)
class Gathered:
    """Some events of a window's table; each event is a row. Names are coded as small numbers, and 0 means no name."""

    table: pa.Table
    row: Integers
    """The row of each event in the table."""
    values: dict[str, Integers]
    """Columns of numbers by name; each column has a value for each event."""

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: Any) -> Gathered:
        """Returns a `Gathered` with the events at these positions, in the given order."""
        return Gathered(self.table, self.row[rows], {name: column[rows] for name, column in self.values.items()})

    @cached_property
    def after_ns(self) -> Integers:
        """The earliest time at which each event can have happened, in nanoseconds."""
        return integers_of(self.table, "after_ns")[self.row]

    @cached_property
    def before_ns(self) -> Integers:
        """The latest time at which each event can have happened, in nanoseconds."""
        return integers_of(self.table, "before_ns")[self.row]

    @cached_property
    def queue(self) -> Integers:
        """The queue's number within its topic, as each event names it."""
        return integers_of(self.table, "queue")[self.row]

    @cached_property
    def request(self) -> Integers:
        """Numbers that are equal for events of the same source and request."""
        return request_numbers(self.table, self.row)

    @cached_property
    def source(self) -> Integers:
        """Each event's source."""
        return names_of(self.table, "source", self.row)

    @cached_property
    def broker(self) -> Integers:
        """Each event's broker."""
        return names_of(self.table, "broker", self.row)

    @cached_property
    def topic(self) -> Integers:
        """Each event's topic."""
        return names_of(self.table, "topic", self.row)

    @cached_property
    def connection(self) -> Integers:
        """Each event's connection."""
        return names_of(self.table, "connection", self.row)

    @cached_property
    def tag(self) -> Integers:
        """Each event's tag."""
        return names_of(self.table, "tag", self.row)

    @cached_property
    def whole_queue(self) -> Integers:
        """Numbers that are equal for events of the same broker, topic and queue."""
        numbers: Integers = self.table[QUEUE].to_numpy()[self.row]
        return numbers * (count_of_names(self.table, "source") + 1)

    @cached_property
    def place(self) -> Integers:
        """Numbers that are equal for events of the same source, broker, topic and queue."""
        return self.whole_queue + self.source

    @cached_property
    def log(self) -> Integers:
        """Numbers that are equal for events of one queue; without a broker's name, only within one source."""
        return np.where(self.broker != 0, self.whole_queue, self.place)

    def are(self, name: str, wanted: Iterable[str]) -> Booleans:
        """Returns which events have one of the wanted texts in the column `name`."""
        _codes, texts = coded_texts(self.table, name)
        texts_wanted = list(wanted)
        is_wanted = compute.is_in(texts, value_set=pa.array(texts_wanted, pa.string())).to_numpy(zero_copy_only=False)
        found: Booleans = np.append("" in texts_wanted, is_wanted)[getattr(self, name)]
        return found

    def are_on(self, source: str, connection: str) -> Booleans:
        """Returns which events belong to this connection of this source."""
        return self.are("source", [source]) & self.are("connection", [connection])

    def are_in(self, queues: Container[QueueName]) -> Booleans:
        """Returns which events belong to these queues."""
        numbers = self.table[QUEUE].to_numpy()
        firsts = np.zeros(int(numbers.max(initial=-1)) + 1, dtype=np.int64)
        firsts[numbers] = np.arange(len(numbers))
        are_theirs = np.array([name in queues for name in queue_names(self.table, firsts)], dtype=np.bool_)
        found: Booleans = are_theirs[numbers[self.row]]
        return found


def gather(
    table: pa.Table, rows: Integers, columns: Iterable[str] = (), values: dict[str, Integers] | None = None
) -> Gathered:
    """Gather these rows of a window's table with the named columns and the extra columns in `values`."""
    return Gathered(table, rows, {name: integers_of(table, name)[rows] for name in columns} | (values or {}))


def nothing_gathered(columns: Iterable[str]) -> Gathered:
    """Returns a `Gathered` with these columns but without events."""
    none = np.empty(0, dtype=np.int64)
    table = EVENT_SCHEMA.empty_table().append_column(NUMBER, pa.array(none)).append_column(QUEUE, pa.array(none))
    return Gathered(table, none, dict.fromkeys(columns, none))


def with_numbers(window: Window) -> pa.Table:
    """Returns the table of a window with two more columns: small numbers for requests and queues."""
    numbers = pa.array(window.any_key + 1), pa.array(window.all_queues.astype(np.int64))
    return window.table.append_column(NUMBER, numbers[0]).append_column(QUEUE, numbers[1])


def request_numbers(table: pa.Table, rows: Integers) -> Integers:
    """Returns the request number of each of these rows."""
    numbers: Integers = table[NUMBER].to_numpy()[rows]
    return numbers


def received_again(table: pa.Table) -> Integers:
    """Returns the numbers of the requests, of any kind, whose identifier was received more than once."""
    counts = np.bincount(request_numbers(table, np.flatnonzero(rows_where(table, "request_received"))))
    counts[:1] = 0
    return np.flatnonzero(counts > 1)


def together(parts: Sequence[Gathered], columns: Iterable[str]) -> Gathered:
    """Join parts of one table into one `Gathered` with these columns of numbers."""
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in columns}
    return Gathered(parts[0].table, np.concatenate([part.row for part in parts]), values)


def names_of(table: pa.Table, name: str, rows: Integers) -> Integers:
    """Returns a column of names as small numbers; 0 if a row has no name."""
    codes, texts = coded_texts(table, name)
    numbers = np.where(are_named(texts), np.arange(1, len(texts) + 1), 0)
    found: Integers = numbers[codes[rows]] if len(rows) else np.empty(0, dtype=np.int64)
    return found


def numbers_of(table: pa.Table, name: str, texts: Sequence[str]) -> Integers:
    """Returns the numbers of these names in a column; -1 for a name that does not occur in the column."""
    wanted = pa.array(texts, pa.string())
    found = compute.index_in(wanted, value_set=coded_texts(table, name)[1]).fill_null(-2).to_numpy() + 1
    return np.where(are_named(wanted), found.astype(np.int64), 0)


def count_of_names(table: pa.Table, name: str) -> int:
    """Returns the highest number that `names_of` can give for this column."""
    return len(coded_texts(table, name)[1])


def rows_where(table: pa.Table, event: str) -> Booleans:
    """Returns which rows of the table have this kind of event."""
    codes, names = coded(table, "event")
    found: Booleans = codes == (names.index(event) if event in names else -1)
    return found


def have_request(table: pa.Table) -> Booleans:
    """Returns which rows of the table name a request."""
    codes, texts = coded_texts(table, "request")
    named: Booleans = are_named(texts)[codes]
    return named


def events_at(table: pa.Table, rows: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Returns the events in these rows of the table, by row, as evidence for findings."""
    wanted = sorted(set(rows))
    events = table.take(pa.array(wanted, pa.int64())).to_pylist()
    return {row: _told(event) for row, event in zip(wanted, events, strict=True)}


def _told(event: dict[str, Any]) -> dict[str, Any]:
    return event_dict({name: value for name, value in event.items() if name not in {NUMBER, QUEUE}})


def generations(asked: Gathered, answered: Gathered, context: Context) -> Integers:
    """Returns the queue generation of each exchange. An exchange that may lie in two generations gets its own number.

    A new generation begins after a topic was deleted, and may begin when a queue's first offset is stored twice.
    """
    life, doubtful = numbered_generations(asked, answered, context)
    # A row number is unique in a window, so no other exchange, of any kind, gets the same number.
    life[doubtful] = -1 - asked.row[doubtful]
    return life


def numbered_generations(asked: Gathered, answered: Gathered, context: Context) -> tuple[Integers, Booleans]:
    """Returns the queue generation of each exchange, and which exchanges may lie in two generations."""
    life = np.zeros(len(asked), dtype=np.int64)
    doubtful = np.zeros(len(asked), dtype=np.bool_)
    # The recorded time of an answer may be earlier than the recorded time of its request.
    first_ns = np.minimum(asked.after_ns, answered.after_ns)
    last_ns = np.maximum(asked.before_ns, answered.before_ns)
    for mine, holes in changes_of(asked, context):
        number = np.searchsorted(holes.ends, first_ns[mine], side="left")
        life[mine] = life[mine] * (len(holes) + 1) + number
        doubtful |= mine & holes.touch(first_ns, last_ns)
    return life, doubtful


def with_life(*lots: tuple[Integers, Integers]) -> list[Integers]:
    """Returns small numbers for pairs of a number and a generation, one array for each argument."""
    return numbered(*lots) if any(life.any() for _numbers, life in lots) else [numbers for numbers, _life in lots]


def changes_of(events: Gathered, context: Context) -> Iterator[tuple[Booleans, RecordGaps]]:
    """Yields pairs: events of some queues, and the times when new generations of these queues may have begun."""
    for (broker, topic), holes in context.deleted.items():
        mine = events.are("broker", [broker])
        yield (mine & events.are("topic", [topic]) if topic else mine), holes
    for (broker, topic, queue), holes in context.begun_anew.items():
        mine = events.are("broker", [broker]) & events.are("topic", [topic])
        yield mine & (events.queue == queue), holes
    for broker, holes in (*context.life_holes.items(), *context.restarts.items()):
        if len(holes):
            yield events.are("broker", [broker]), holes


@frozen(eq=False)
class Breach:
    """The messages that violate one clause, called members."""

    clause: str
    members: Integers
    events: tuple[tuple[Gathered, Integers], ...]
    """The evidence as pairs of some events and, for each member, the position of one of these events or -1. The first
    pair determines the finding's queue and time."""
    why: str
    weak: Booleans = field(factory=lambda: np.zeros(0, dtype=np.bool_))
    """For each member, whether an unrecorded event could explain the breach; empty if all members are certain."""
    told: Callable[[int], str] | None = None
    """Returns additional text for the report about a member."""

    def only(self, native: Booleans) -> Breach:
        """Returns the breach with only those members whose row in the table is marked in `native`."""
        first, rows = self.events[0]
        return evolve(self, members=self.members[native[first.row[rows[self.members]]]])


def once(events: Gathered, members: Integers, cause: Integers) -> Integers:
    """Returns the first member for each cause, because one message with a wrong offset contradicts many others."""
    ordered = in_order(events, members)
    return ordered[np.sort(np.unique(cause[ordered], return_index=True)[1])]


def _order(events: Gathered, rows: Integers) -> Integers:
    """Returns the indices that sort the rows by their contents; events that ended first come first.

    The order of the contents makes a report independent of the order in which the rows were read.
    """
    offset = events.values.get("queue_offset", events.after_ns)
    # Compare texts, because the codes of names and requests depend on the order of the table.
    codes, names = coded(events.table, "source")
    rank = np.argsort(np.argsort(names))[codes[events.row[rows]]]
    sequence = integers_of(events.table, "sequence")[events.row[rows]]
    told = [key[rows] for key in (events.queue, offset, events.after_ns, events.before_ns)]
    order: Integers = np.lexsort([told[0], sequence, rank, *told[1:]])
    return order


def in_order(events: Gathered, rows: Integers) -> Integers:
    """Returns the rows sorted by the contents of their events."""
    return rows[_order(events, rows)]


def earliest(events: Gathered, rows: Integers, keys: Integers, wanted: Integers) -> Integers:
    """Returns, for each wanted key, the first of the rows that have this key; -1 if no row has it."""
    rows = in_order(events, rows[np.isin(keys[rows], wanted)])
    found: Integers = np.append(rows, -1)[first_of(wanted, keys[rows])]
    return found


def placed_at(count: int, members: Integers, rows: Integers) -> Integers:
    """Returns an array of `count` elements, with `rows` at the positions in `members` and -1 at all others."""
    found = np.full(count, -1, dtype=np.int64)
    found[members] = rows
    return found


def _is_timeless(clause: str, subject: dict[str, Any], context: Context) -> bool:
    """Whether a clause is independent of timestamps; a clause about a log only if its queue has one generation."""
    queue = subject.get("broker", ""), subject.get("topic", ""), subject.get("queue", -1)
    return clause in TIMELESS and (clause not in LOGGED or context.lives(queue) is None)


def findings_of(table: pa.Table, breaches: Iterable[Breach], context: Context, most: int) -> Iterator[Finding]:
    """Yields findings for the first `most` members of each breach, with no verdict stronger than its clause allows."""
    shown = []
    for breach in breaches:
        first, rows = breach.events[0]
        members = breach.members[_order(first, rows[breach.members])]
        members = members[np.argsort(first.after_ns[rows[members]], kind="stable")[:most]]
        for member in members.tolist():
            places = [int(kind.row[which[member]]) for kind, which in breach.events if which[member] >= 0]
            is_weak = bool(len(breach.weak)) and bool(breach.weak[member])
            offset = first.values["queue_offset"][rows[member]] if "queue_offset" in first.values else ABSENT
            more = f": {breach.told(member)}" if breach.told is not None else ""
            shown.append((breach, places, is_weak, int(offset), more))
    events = events_at(table, (place for _breach, places, *_more in shown for place in places))
    for breach, places, is_weak, offset, more in shown:
        evidence = [events[place] for place in dict.fromkeys(places)]
        subject = evidence[0]
        is_steady = context.sources.get(subject["source"], UNSEEN).is_steady
        is_doubted = is_weak or not (is_steady or _is_timeless(breach.clause, subject, context))
        most_certain = CLAUSE[breach.clause].verdict
        verdict: FindingVerdict = "unknown" if is_doubted and most_certain == "violated" else most_certain
        evidence.sort(key=order_of)
        where = f" (queue offset {offset})" if offset >= 0 else ""
        logged = [event["queue_offset"] for event in evidence if "queue_offset" in event]
        yield finding_of(
            evidence,
            subject,
            clause=breach.clause,
            verdict=verdict,
            why=f"{breach.why}{where}{more}",
            messages=list(dict.fromkeys([*([offset] if offset >= 0 else []), *logged])),
        )


def are_closed(events: Gathered, since_ns: Integers, until_ns: Integers, context: Context) -> Booleans:
    """Whether the connection of each event was certainly closed between `since_ns` and `until_ns`."""
    found: Booleans = closes_from(events, since_ns, context)[1] < until_ns
    return found


def closes_from(events: Gathered, since_ns: Integers, context: Context) -> tuple[Integers, Integers]:
    """Returns the interval of the first close of each event's connection at or after `since_ns`.

    Both bounds of the interval are `NEVER` if the connection was not closed then.
    """
    after_ns, before_ns = closes_of(events, context)
    is_gone = before_ns < since_ns
    after_ns[is_gone], before_ns[is_gone] = NEVER, NEVER
    for name in context.closed_often:
        for place in np.flatnonzero(events.are_on(*name)).tolist():
            after_ns[place], before_ns[place] = context.closed_between(name, int(since_ns[place]))
    return after_ns, before_ns


def closes_of(events: Gathered, context: Context) -> tuple[Integers, Integers]:
    """Returns the interval of the last close of each event's connection; `NEVER` if it was not closed."""
    if not context.closes:
        return np.full(len(events), NEVER, dtype=np.int64), np.full(len(events), NEVER, dtype=np.int64)
    names = ("source", "connection")
    source, connection = (
        numbers_of(events.table, name, [pair[place] for pair in context.closes]) for place, name in enumerate(names)
    )
    count = count_of_names(events.table, "connection") + 1
    # Most closed connections have no event in the window.
    known = np.flatnonzero((source >= 0) & (connection >= 0))
    moments = np.array([*context.closes.values(), (NEVER, NEVER)], dtype=np.int64)
    at = np.append(known, -1)[first_of(events.source * count + events.connection, (source * count + connection)[known])]
    return moments[at, 0], moments[at, 1]
