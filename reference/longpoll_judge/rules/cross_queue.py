"""Events gathered from anywhere in a history as columns of numbers, and findings about those that break a clause.

Texts are held as 8-byte hashes (`keys.text_hashes`). Equal texts have equal hashes, and every match is checked against
the texts before it is reported. A gathered event takes about 80 bytes of memory. The rules: `sends`, `messages`,
`logs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, field, frozen
from numpy.typing import NDArray

from longpoll_judge.columns.batch import QueueName
from longpoll_judge.columns.keys import NO_KEYS, Keys, request_keys, text_hashes
from longpoll_judge.columns.lookup import Booleans, Integers
from longpoll_judge.columns.queue_log import NEVER
from longpoll_judge.contract.clause import LOGGED, TIMELESS
from longpoll_judge.contract.clauses import CLAUSE, finding_of
from longpoll_judge.contract.result import Finding, FindingVerdict
from longpoll_judge.evidence.source_survey import RecordGaps
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.read.schema import REQUIRED, are_named, coded, coded_texts, event_dict, order_of

Tables = Callable[[], Iterator[tuple[int, pa.Table]]]
"""Gives every split's number and events, each time it is called."""
COLUMNS: Final = (
    *(*REQUIRED, "broker", "topic", "queue", "request", "connection", "code", "group", "offset"),
    *("offset_next", "offset_min", "offset_max", "offsets", "queue_offset", "tag", "cause", "ids", "bodies"),
)
"""The fields that are read, or shown as evidence."""
WEIGHT: Final = np.uint64(0x9E3779B97F4A7C15)
"""Two numbers of eight bytes become one: the first times this, and the second."""
_LIFE_WEIGHT: Final = np.uint64(0xBF58476D1CE4E5B9)


@frozen(eq=False)
class Gathered:
    """Some events, a row each."""

    split: Integers
    row: Integers
    """Where each event stands: the number of its split, and its row there."""
    after_ns: Integers
    before_ns: Integers
    request: Keys
    """Equal for equal (source, request)."""
    place: Keys
    """Equal for equal (source, broker, topic, queue)."""
    source: Keys
    broker: Keys
    topic: Keys
    connection: Keys
    """Equal for equal names; 0 for none."""
    tag: Keys
    queue: Integers
    values: dict[str, Integers]
    """Columns of numbers."""

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: Any) -> Gathered:
        """These rows."""
        fields = {name: getattr(self, name)[rows] for name in _ARRAYS}
        return Gathered(**fields, values={name: column[rows] for name, column in self.values.items()})


_NUMBERS: Final = ("split", "row", "after_ns", "before_ns", "queue")
_ARRAYS: Final = (*_NUMBERS, "request", "place", "source", "broker", "topic", "connection", "tag")


@define
class Gathering:
    """Rows of one kind from many splits."""

    columns: tuple[str, ...]
    _parts: list[Gathered] = field(factory=list)

    def add(self, table: pa.Table, number: int, rows: Integers, values: dict[str, Integers] | None = None) -> None:
        """Add these rows of a split; `values` replace its columns of these names."""
        names = {name: hashes(table, name, rows) for name in ("source", "broker", "topic", "connection", "tag")}
        place = (names["source"] * WEIGHT + names["broker"]) * WEIGHT + names["topic"]
        queue = table["queue"].to_numpy()[rows].astype(np.int64)
        self._parts.append(
            Gathered(
                split=np.full(len(rows), number, dtype=np.int64),
                row=rows,
                after_ns=table["after_ns"].to_numpy()[rows],
                before_ns=table["before_ns"].to_numpy()[rows],
                request=request_keys(table, rows),
                place=place * WEIGHT + queue.astype(np.uint64),
                source=names["source"],
                broker=names["broker"],
                topic=names["topic"],
                connection=names["connection"],
                tag=names["tag"],
                queue=queue,
                values={name: table[name].to_numpy()[rows] for name in self.columns if name not in (values or {})}
                | (values or {}),
            )
        )

    def all(self) -> Gathered:
        """Everything that was taken, in one piece that takes the place of its parts."""
        if not self._parts:
            nothing, keys = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
            arrays: dict[str, Any] = {name: nothing if name in _NUMBERS else keys for name in _ARRAYS}
            return Gathered(**arrays, values=dict.fromkeys(self.columns, nothing))
        if len(self._parts) > 1:
            self._parts = [together(self._parts, self.columns)]
        return self._parts[0]


def together(parts: Sequence[Gathered], columns: Iterable[str]) -> Gathered:
    """The rows of all parts, with these columns of numbers."""
    fields = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    return Gathered(**fields, values={name: np.concatenate([part.values[name] for part in parts]) for name in columns})


def hashes(table: pa.Table, name: str, rows: Integers) -> Keys:
    """The hashes of a column's texts; 0 for null."""
    if not len(rows):
        return NO_KEYS
    codes, texts = coded_texts(table, name)
    found: Keys = np.where(are_named(texts), text_hashes(texts), np.uint64(0))[codes[rows]]
    return found


def rows_where(table: pa.Table, event: str) -> Booleans:
    """Which rows are this event."""
    codes, names = coded(table, "event")
    found: Booleans = codes == (names.index(event) if event in names else -1)
    return found


def have_request(table: pa.Table) -> Booleans:
    """Which rows name a request."""
    codes, texts = coded_texts(table, "request")
    named: Booleans = are_named(texts)[codes]
    return named


def first_of(wanted: NDArray[Any], keys: NDArray[Any]) -> Integers:
    """For each wanted key the first place where it stands among the keys; -1 where it does not."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    # A key that is not there finds its neighbour, which is another.
    found: Integers = np.where(keys[order][at] == wanted, order[at], -1)
    return found


def highest_before(
    group: Keys, ended_ns: Integers, value: Integers, asked_group: Keys, moment_ns: Integers
) -> Integers:
    """For each question the row with the highest value of its group that ended before its moment; -1 for none."""
    count = len(group)
    if not count or not len(asked_group):
        return np.full(len(asked_group), -1, dtype=np.int64)
    _groups, numbers = np.unique(np.concatenate((group, asked_group)), return_inverse=True)
    times = np.concatenate((ended_ns, moment_ns))
    is_asked = np.arange(len(times)) >= count
    # By group, then by time; of one moment the questions come first, for what ends then has not ended before.
    order = np.lexsort((~is_asked, times, numbers))
    by_value = np.argsort(value, kind="stable")
    rank = np.zeros(len(times), dtype=np.int64)
    rank[by_value] = np.arange(1, count + 1)
    # The running maximum within each group: a group's number times more than any rank keeps the groups apart.
    reached = np.maximum.accumulate(numbers[order].astype(np.int64) * (count + 1) + rank[order])
    best = reached - numbers[order].astype(np.int64) * (count + 1)
    found = np.full(len(times), -1, dtype=np.int64)
    found[order] = np.append(-1, by_value)[best]
    return found[count:]


def events_at(tables: Tables, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
    """The events at these places (split, row), as evidence; every split is read once more."""
    wanted: dict[int, list[int]] = {}
    for number, row in set(places):
        wanted.setdefault(number, []).append(row)
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for number, table in tables() if wanted else ():
        rows = sorted(wanted.get(number, ()))
        for row, event in zip(rows, table.take(pa.array(rows, pa.int64())).to_pylist(), strict=True):
            found[number, row] = event_dict(event)
    return found


def hashes_of(texts: Iterable[str]) -> Keys:
    """The hashes of texts."""
    return text_hashes(pa.array(list(texts), pa.string()))


def hash_of(text: str) -> np.uint64:
    """The hash of a text."""
    found: np.uint64 = text_hashes(pa.array([text], pa.string()))[0]
    return found


def generations(asked: Gathered, answered: Gathered, context: Context) -> Keys:
    """The generation of its queue that each exchange belongs to. One that may lie in two gets a generation alone.

    A new generation begins after a topic was deleted, and may begin when a queue's first offset is given twice.
    """
    life, doubtful = numbered_generations(asked, answered, context)
    alone = np.flatnonzero(doubtful).astype(np.uint64)
    life[doubtful] = (alone + np.uint64(1)) * WEIGHT + np.uint64(1 << 32)
    # Places of two queues differ by little times `WEIGHT`: times another number no life of one is another's.
    return life * _LIFE_WEIGHT


def numbered_generations(asked: Gathered, answered: Gathered, context: Context) -> tuple[Keys, Booleans]:
    """The same as a number, and which exchanges may lie in two."""
    life = np.zeros(len(asked), dtype=np.uint64)
    doubtful = np.zeros(len(asked), dtype=np.bool_)
    # An answer may be told with a moment before its request's.
    first_ns = np.minimum(asked.after_ns, answered.after_ns)
    last_ns = np.maximum(asked.before_ns, answered.before_ns)
    for mine, holes in changes_of(asked, context):
        number = np.searchsorted(holes.ends, first_ns, side="left").astype(np.uint64)
        life[mine] = life[mine] * WEIGHT + number[mine]
        doubtful |= mine & holes.touch(first_ns, last_ns)
    return life, doubtful


def changes_of(events: Gathered, context: Context) -> Iterator[tuple[Booleans, RecordGaps]]:
    """When new generations began, or may have begun unobserved, and which of the events are of these queues."""
    for (broker, topic), holes in context.deleted.items():
        mine = events.broker == _named(broker)
        yield (mine & (events.topic == _named(topic)) if topic else mine), holes
    for (broker, topic, queue), holes in context.begun_anew.items():
        yield (events.broker == _named(broker)) & (events.topic == _named(topic)) & (events.queue == queue), holes
    for broker, holes in (*context.life_holes.items(), *context.restarts.items()):
        if len(holes):
            yield events.broker == _named(broker), holes


def queue_keys(events: Gathered) -> Keys:
    """Equal for equal (broker, topic, queue)."""
    keys: Keys = (events.broker * WEIGHT + events.topic) * WEIGHT + events.queue.astype(np.uint64)
    return keys


def keys_of_queues(names: Iterable[QueueName]) -> Keys:
    """The same of queues by name."""
    brokers, topics, numbers = zip(*names, strict=True) if names else ((), (), ())
    hashes = [np.array([_named(text) for text in texts], dtype=np.uint64) for texts in (brokers, topics)]
    keys: Keys = (hashes[0] * WEIGHT + hashes[1]) * WEIGHT + np.array(numbers, dtype=np.int64).astype(np.uint64)
    return keys


def _named(text: str) -> np.uint64:
    """As `Gathered` has it: 0 for none."""
    return hash_of(text) if text else np.uint64(0)


@frozen(eq=False)
class Breach:
    """Some messages that break one clause."""

    clause: str
    members: Integers
    weak: Booleans
    """By member: something that was not recorded could explain it."""
    events: tuple[tuple[Gathered, Integers], ...]
    """The evidence: by member a row of each; -1 for none. The first gives the location."""
    why: str


def once(events: Gathered, members: Integers, cause: Integers) -> Integers:
    """Of the members with one cause the first: a message with a wrong offset is at odds with many others."""
    ordered = in_order(events, members)
    return ordered[np.sort(np.unique(cause[ordered], return_index=True)[1])]


def _order(events: Gathered, rows: Integers) -> Integers:
    """The indices of rows sorted by their contents, those that ended first before the others.

    So a report does not depend on the order in which the rows were read.
    """
    offset = events.values.get("queue_offset", events.after_ns)
    keys = (events.tag, events.connection, events.request, events.place, offset, events.after_ns, events.before_ns)
    order: Integers = np.lexsort([key[rows] for key in keys])
    return order


def in_order(events: Gathered, rows: Integers) -> Integers:
    """The rows, put in order by what they tell."""
    return rows[_order(events, rows)]


def earliest(events: Gathered, rows: Integers, keys: Keys, wanted: Keys) -> Integers:
    """For each wanted key the first in order of the rows that have it; -1 where none has."""
    rows = in_order(events, rows[np.isin(keys[rows], wanted)])
    found: Integers = np.append(rows, -1)[first_of(wanted, keys[rows])]
    return found


def placed_at(count: int, members: Integers, rows: Integers) -> Integers:
    """The position of each row among the members; -1 for other rows."""
    found = np.full(count, -1, dtype=np.int64)
    found[members] = rows
    return found


def breach_of(
    clause: str,
    members: Integers,
    events: tuple[tuple[Gathered, Integers], ...],
    why: str,
    weak: Booleans | None = None,
) -> Breach:
    """A breach that is certain, except for its `weak` members."""
    return Breach(clause, members, np.zeros(0, np.bool_) if weak is None else weak, events, why)


def _is_steady(subject: dict[str, Any], context: Context) -> bool:
    return context.sources.get(subject["source"], UNSEEN).is_steady


def _is_timeless(clause: str, subject: dict[str, Any], context: Context) -> bool:
    """Whether a clause stands whatever the moments are: of a log only if it has one life."""
    queue = subject.get("broker", ""), subject.get("topic", ""), subject.get("queue", -1)
    return clause in TIMELESS and (clause not in LOGGED or context.lives(queue) is None)


def findings_of(tables: Tables, breaches: Iterable[Breach], context: Context, most: int) -> Iterator[Finding]:
    """The first `most` of each breach as findings, none stronger than its clause can be."""
    shown = []
    for breach in breaches:
        first, rows = breach.events[0]
        members = breach.members[_order(first, rows[breach.members])]
        members = members[np.argsort(first.after_ns[rows[members]], kind="stable")[:most]]
        for member in members.tolist():
            at = [(kind, int(which[member])) for kind, which in breach.events if which[member] >= 0]
            places = [(int(kind.split[row]), int(kind.row[row])) for kind, row in at]
            is_weak = bool(len(breach.weak)) and bool(breach.weak[member])
            shown.append((breach, places, is_weak))
    events = events_at(tables, (place for breach_of, places, _weak in shown for place in places))
    for breach, places, is_weak in shown:
        evidence = [events[place] for place in dict.fromkeys(places)]
        subject = evidence[0]
        is_doubted = is_weak or not (_is_timeless(breach.clause, subject, context) or _is_steady(subject, context))
        most_certain = CLAUSE[breach.clause].verdict
        verdict: FindingVerdict = "unknown" if is_doubted and most_certain == "violated" else most_certain
        evidence.sort(key=order_of)
        logged = [event for event in evidence if "queue_offset" in event]
        offset = f" {subject['queue_offset']}" if "queue_offset" in subject else ""
        told = offset or f"s {str(subject.get('offsets', []))[:80]}"
        where = f" (queue offset{told})" if offset or "offsets" in subject else ""
        yield finding_of(
            evidence,
            subject,
            clause=breach.clause,
            verdict=verdict,
            why=f"{breach.why}{where}",
            messages=list(dict.fromkeys(event["queue_offset"] for event in logged)),
        )


def are_closed(events: Gathered, since_ns: Integers, until_ns: Integers, context: Context) -> Booleans:
    """Whether the connection of each event was certainly closed by a moment, other than before an earlier one."""
    _after_ns, closed_ns = closes_of(events, context)
    found: Booleans = (closed_ns >= since_ns) & (closed_ns < until_ns)
    for (source, connection), closes in context.closed_often.items():
        mine = (events.source == hash_of(source)) & (events.connection == hash_of(connection))
        for _earliest_ns, latest_ns in closes:
            found |= mine & (latest_ns >= since_ns) & (latest_ns < until_ns)
    return found


def closes_of(events: Gathered, context: Context) -> tuple[Integers, Integers]:
    """Between which moments the connection of each event was closed; `NEVER` where it was not."""
    sources, connections = ([pair[place] for pair in context.closes] for place in range(2))
    keys = text_hashes(pa.array(sources, pa.string())) * WEIGHT + text_hashes(pa.array(connections, pa.string()))
    moments = np.array([*context.closes.values(), (NEVER, NEVER)], dtype=np.int64)
    at = first_of(events.source * WEIGHT + events.connection, keys)
    return moments[at, 0], moments[at, 1]
