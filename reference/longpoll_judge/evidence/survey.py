"""Surveys the evidence of a whole history: where each source begins and ends, and what is missing.

Each split has a survey, and surveys are merged. Merging is associative and commutative, so the result depends neither
on the order nor on the number of files. `kernel.verdict` gets these facts as a `Context`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from attrs import field, frozen
from numpy.typing import NDArray

from longpoll_judge.columns.lookup import Integers, are_of, is_one_of, run_starts
from longpoll_judge.contract.pops import POP_CODES
from longpoll_judge.contract.result import Gap
from longpoll_judge.evidence.generations import (
    Generations,
    GenerationStart,
    begun_anew,
    broker_holes,
    deletions,
    kills,
    lasting,
    orderly_ends,
    restarts,
)
from longpoll_judge.evidence.observers import (
    DELETE_TOPIC,
    Deletion,
    Observers,
    answers_on_stop,
    are_own,
    attend,
    field_gaps,
    keeps_role,
    lacking,
    observer_gaps,
    stops_silently,
)
from longpoll_judge.evidence.source_survey import (
    NO_GAPS,
    Interval,
    RecordGaps,
    SequenceFaults,
    SourceSurvey,
    gaps_of,
    holes_in,
    merged,
    sequence_faults,
    survey_source,
    union,
    whole_of,
)
from longpoll_judge.read.schema import (
    INTEGER_LIMIT,
    Damage,
    are_named,
    coded,
    coded_texts,
    fill,
    integers_of,
)
from longpoll_judge.read.source import History
from longpoll_spec.history import BLACK_BOX, WHITE_BOX
from longpoll_spec.model import ACTION_NAMES
from longpoll_spec.tables import with_table

KNOWN_EVENTS: Final = frozenset((*BLACK_BOX, *WHITE_BOX, *ACTION_NAMES))
RARE: Final = frozenset(
    {"connection_opened", "connection_closed", "lost", "omitted", "source_stopped", "blocked", "unblocked"}
)
"""Rare events, which a survey visits one by one."""
QUERY_CONSUMER_OFFSET: Final = 14
"""The request code that asks for a group's committed offset."""
UPDATE_CONSUMER_OFFSET: Final = 15
"""The request code that commits a group's offset."""
NOT_CLOSED: Final[Interval] = (INTEGER_LIMIT, INTEGER_LIMIT)
"""Stands for the close of a connection that was never closed, as an interval far in the future."""
_NOTHING: Final[Integers] = np.empty(0, dtype=np.int64)


class Block(NamedTuple):
    """The start or end of an interval in which one direction of a connection was not read."""

    source: str
    connection: str
    direction: str
    after_ns: int
    before_ns: int
    sequence: int
    begins: bool


@with_table
class Survey(msgspec.Struct):
    """The evidence about sources, connections and damage, from one split or several."""

    event_count: int = 0
    sources: dict[str, SourceSurvey] = msgspec.field(default_factory=dict)
    closes: list[tuple[str, str, int, int]] = msgspec.field(default_factory=list)
    """(source, connection, after_ns, before_ns) of every connection_closed."""
    opens: list[tuple[str, str, int, int]] = msgspec.field(default_factory=list)
    """(source, connection, after_ns, before_ns) of every connection_opened."""
    seen_ns: dict[str, int] = msgspec.field(default_factory=dict)
    """Maps each connection (source and name as one text) to the latest time of an answer on it."""
    blocks: list[Block] = msgspec.field(default_factory=list)
    deleted: list[GenerationStart] = msgspec.field(default_factory=list)
    firsts: list[GenerationStart] = msgspec.field(default_factory=list)
    """Acknowledgements of offset 0 of a queue, which occurs once in each generation of the queue."""
    damages: list[Damage] = msgspec.field(default_factory=list)
    unknown_events: dict[str, int] = msgspec.field(default_factory=dict)
    offset_updates: int = 0
    """The number of requests with an identifier that only commit an offset."""
    pops: int = 0
    """The number of requests about pops."""
    answered: set[tuple[str, str, int]] = msgspec.field(default_factory=set)
    """Queues (broker, topic, number) whose ends occur in answers."""
    shown: set[tuple[str, str, int]] = msgspec.field(default_factory=set)
    """Queues whose visible end a source records directly."""
    removed: dict[str, int] = msgspec.field(default_factory=dict)
    """For each queue (broker, topic and number as one string), the highest `offset_min` above 0 in an answer."""
    observers: Observers = msgspec.field(default_factory=Observers)
    excerpts: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of events that excerpts omit, by the clause of the excerpt."""

    @property
    def disorder_ns(self) -> int:
        """The longest time in ns by which a source recorded an event after an event that happened later."""
        return max((seen.disorder_ns for seen in self.sources.values()), default=0)


@frozen
class SourceFacts:
    """The facts about a source that are needed to judge its requests."""

    last_ns: int
    stopped_ns: int | None
    holes: RecordGaps = NO_GAPS
    """The intervals in which events may have happened that the source did not record."""
    is_steady: bool = True
    """Whether the source's timestamps order its events (`_unsteady`)."""
    first_ns: int = 0
    """The earliest time in ns of the source's first event."""
    own_holes: RecordGaps | None = None
    """The gaps in `holes`, except the gap from events that were dropped because they are old, in which no open request
    was answered."""

    @property
    def holes_of_open(self) -> RecordGaps:
        """The intervals in which an unanswered request may have been answered without a record of the answer."""
        return self.holes if self.own_holes is None else self.own_holes


UNSEEN: Final = SourceFacts(last_ns=0, stopped_ns=None)
"""The facts about a source that has a name but no events."""


OwnProperty = Callable[[pa.Table], Iterable[tuple[int, str]]]
"""A user's property: a function that gets the pulls of a window and returns the rows that violate it, with reasons."""
OWN: Final = "own."
"""The prefix of the clauses of user properties."""


@frozen
class Context:
    """Facts about the whole history that the verdict on each queue needs."""

    wake_ns: int
    late_ns: int
    answers_on_stop: bool
    """Whether the history's policy promises to answer held pulls when the broker stops."""
    sources: dict[str, SourceFacts]
    closes: dict[tuple[str, str], Interval]
    """For each source and connection, the interval [after_ns, before_ns] of its last close."""
    inside: frozenset[str] = frozenset()
    """Sources that recorded inside their broker."""
    asked: frozenset[str] = frozenset()
    """Sources that record requests. If a source records only holds, it is judged together with one of these sources."""
    is_own: bool = False
    """Whether every policy of the history was designed by this project."""
    stops_silently: bool = False
    """Whether every policy that the history names leaves held pulls unanswered when the broker stops."""
    keeps_role: bool = False
    """Whether every policy that the history names keeps held pulls when the role of the broker or its master changes.
    """
    deletions: tuple[Deletion, ...] = ()
    lawful: frozenset[str] = frozenset()
    """Sources whose events are judged only by the specification that they declare."""
    broker_holes: dict[str, RecordGaps] = field(factory=dict)
    """For each broker, when its queues may have changed although no source recorded a change."""
    life_holes: dict[str, RecordGaps] = field(factory=dict)
    """The intervals of `broker_holes`, each extended by the time that an unrecorded deletion may need to take effect.
    """
    settable: frozenset[str] = frozenset()
    """Sources whose clock is declared as not monotonic, or is not declared."""
    unsteady_brokers: frozenset[str] = frozenset()
    """Brokers of which at least one source has timestamps that do not order events."""
    blocked: dict[tuple[str, str], RecordGaps] = field(factory=dict)
    """For each source and connection, when one of its directions was not read."""

    deleted: dict[tuple[str, str], RecordGaps] = field(factory=dict)
    """Maps a broker and a topic to the times when the topic's queues were deleted; an empty topic means an unknown
    topic."""
    begun_anew: dict[tuple[str, str, int], RecordGaps] = field(factory=dict)
    """For each queue, when a generation began without a recorded deletion."""
    restarts: dict[str, RecordGaps] = field(factory=dict)
    """For each broker, when the broker may have been restarted."""
    kills: dict[str, RecordGaps] = field(factory=dict)
    """The times of `restarts` at which the broker may have been killed, because no orderly end was recorded."""
    unordered_holes: dict[str, RecordGaps] = field(factory=dict)
    """Like `life_holes`, but without the time between an orderly end of a broker and its next start."""
    closed_often: dict[tuple[str, str], tuple[Interval, ...]] = field(factory=dict)
    """Maps each connection that was closed several times to all of its closes, in order of time, because a name may be
    reused."""
    spans: dict[str, tuple[Integers, Integers]] = field(factory=dict)
    """For each source, when its connections may have been opened, ascending, and for each of these times, when all
    connections opened by then were closed."""
    readers: frozenset[tuple[str, str]] = frozenset()
    """Pairs of an outside source and a broker to which the source sees no send, so that the broker may be a slave."""
    followers: frozenset[tuple[str, str]] = frozenset()
    """The pairs of `readers` whose broker occurs in another source too, so that it may be a slave with its master's
    name."""
    shown: frozenset[tuple[str, str, int]] = frozenset()
    """Queues whose visible end a source records from inside the broker."""
    removed: dict[str, int] = field(factory=dict)
    """For each queue (`queue_text`), the highest `offset_min` in an answer; the messages below it were removed."""
    writers: frozenset[str] = frozenset()
    """Sources that record appends."""
    asks_sends: bool = True
    """Whether any source has sends, acknowledgements or message ids."""
    asks_ends: bool = True
    """Whether to compare the ends of queues in answers: an end may have fallen, or no inside source records the ends of
    some queue."""
    asks_pops: bool = False
    """Whether any source has requests about pops, which can acknowledge a message at any time."""
    asked_alone: frozenset[str] = frozenset()
    """For a history that consists of excerpts, the clauses to judge; empty for any other history."""
    own: tuple[OwnProperty, ...] = ()
    """The additional properties of the user (`kernel.user_properties`)."""

    def asks(self, clause: str) -> bool:
        """Whether to judge this clause."""
        return not self.asked_alone or clause in self.asked_alone or clause.startswith(OWN)

    def lives(self, name: tuple[str, str, int], *, restarts: bool = True) -> Generations | None:
        """Returns the generations of a queue (broker, topic, number); None if it has only one generation.

        If `restarts` is true, each restart begins a new generation.
        """
        deleted = [self.deleted.get((name[0], topic), NO_GAPS) for topic in {name[1], ""}]
        unsure = [self.life_holes.get(name[0], NO_GAPS), self.begun_anew.get(name, NO_GAPS)]
        restarted = self.restarts.get(name[0], NO_GAPS) if restarts else NO_GAPS
        if not any(map(len, (*deleted, *unsure, restarted))):
            return None
        return Generations(union((*deleted, *unsure, restarted)), union(deleted), restarted)

    def orders(self, source: str, broker: str) -> bool:
        """Whether the timestamps of a source show the order of events about a broker."""
        return self.sources.get(source, UNSEEN).is_steady and broker not in self.unsteady_brokers

    def all_closed_ns(self, source: str, moment_ns: Integers) -> Integers:
        """Returns when all connections that a source had opened before each time are certainly closed.

        The result is `NEVER` if a connection may still be open, for example because the source records no opened
        connections.
        """
        opened_ns, closed_ns = self.spans.get(source, (_NOTHING, _NOTHING))
        at = np.searchsorted(opened_ns, moment_ns, side="right")
        found: Integers = np.append(INTEGER_LIMIT, closed_ns)[at]
        return found

    def closed_from(self, name: tuple[str, str], since_ns: int) -> int:
        """Returns the earliest time of a connection's first close that does not lie before `since_ns`.

        The result is far in the future if the connection was not closed after `since_ns`. An event after a close
        belongs to another connection with the same name.
        """
        return self.closed_between(name, since_ns)[0]

    def closed_between(self, name: tuple[str, str], since_ns: int) -> Interval:
        """Returns the interval of a connection's first close that does not lie before `since_ns`; else `NOT_CLOSED`."""
        closes = self.closed_often.get(name) or (self.closes.get(name, NOT_CLOSED),)
        return next((close for close in closes if close[1] >= since_ns), NOT_CLOSED)

    def log_holes(self, broker: str) -> RecordGaps:
        """Returns the intervals in which a broker's queues may have changed without a record of the change."""
        return self.broker_holes.get(broker, NO_GAPS)

    def holes(self, source: str) -> RecordGaps:
        """Returns the intervals in which events may have happened that a source did not record."""
        return self.sources.get(source, UNSEEN).holes


def survey_split(table: pa.Table, damages: list[Damage]) -> Survey:
    """Survey the events of one split."""
    survey = Survey(event_count=len(table), damages=damages)
    if not len(table):
        return survey
    codes, names = coded(table, "event")
    strange = {name: int(np.count_nonzero(codes == n)) for n, name in enumerate(names) if name not in KNOWN_EVENTS}
    survey.unknown_events = {name: count for name, count in strange.items() if count}
    missing = lacking(table, codes, names)
    survey.observers = attend(table, missing)
    is_strange = are_of(codes, names, strange)
    is_damaged = np.logical_or.reduce(list(missing.values())) if missing else np.zeros_like(is_strange)
    source_codes, source_names = coded(table, "source")
    brokers, broker_names = coded(table, "broker")
    sequence, after_ns, before_ns = (integers_of(table, name) for name in ("sequence", "after_ns", "before_ns"))
    is_hold = are_of(codes, names, {"hold"})
    is_unnamed = are_of(brokers, broker_names, {""}) & (integers_of(table, "queue") >= 0)
    is_acknowledged = are_of(codes, names, {"message_acknowledged"})
    is_omitted = are_of(codes, names, {"omitted"})
    last = sequence + _left_out(table, is_omitted) if is_omitted.any() else None
    for code in _used(source_codes, source_names):
        mine = source_codes == code if len(source_names) > 1 else slice(None)
        seen = survey_source(sequence[mine], after_ns[mine], before_ns[mine], None if last is None else last[mine])
        seen.holds = int(np.count_nonzero(is_hold[mine]))
        seen.brokers = {broker_names[number] for number in _used(brokers[mine], broker_names)} - {""}
        sent_to = brokers[mine][is_acknowledged[mine]]
        seen.sent_to = {broker_names[number] for number in np.unique(sent_to).tolist()}
        if is_unnamed[mine].any():
            own = after_ns[mine][is_unnamed[mine]], before_ns[mine][is_unnamed[mine]]
            seen.unnamed = [(int(own[0].min()), int(own[1].max()))]
        seen.losses = _moments(after_ns[mine], before_ns[mine], is_strange[mine])
        seen.damaged = _moments(after_ns[mine], before_ns[mine], is_damaged[mine])
        survey.sources[source_names[code]] = seen
    _survey_rare(survey, table, are_of(codes, names, RARE))
    is_answer = are_of(codes, names, {"answer_sent"})
    survey.answered = _queues_of(table, is_answer & (integers_of(table, "offset_min") >= 0))
    survey.removed = _removed(table, is_answer & (integers_of(table, "offset_min") > 0))
    survey.shown = _queues_of(table, are_of(codes, names, {"make_visible"}))
    acknowledged = np.flatnonzero(is_acknowledged)
    survey.firsts = _anew(table, acknowledged[integers_of(table, "queue_offset")[acknowledged] == 0])
    survey.seen_ns = _seen_ns(table, np.append(acknowledged, np.flatnonzero(is_answer)))
    requests = np.flatnonzero(are_of(codes, names, {"request_received"}))
    asked = integers_of(table, "code")[requests]
    survey.deleted = _anew(table, requests[asked == DELETE_TOPIC])
    survey.pops = int(np.count_nonzero(is_one_of(asked, POP_CODES)))
    updates = requests[asked == UPDATE_CONSUMER_OFFSET]
    if len(updates):
        identifiers, texts = coded_texts(table, "request")
        survey.offset_updates = int(np.count_nonzero(are_named(texts)[identifiers[updates]]))
    return survey


def connection_text(source: str, connection: str) -> str:
    """Returns a connection as a key of `Survey.seen_ns`."""
    return f"{source}\n{connection}"


def _seen_ns(table: pa.Table, rows: Integers) -> dict[str, int]:
    """Returns the entries of `Survey.seen_ns` that come from these rows."""
    sources, source_names = coded(table, "source")
    connections, names = coded(table, "connection")
    latest = np.full(len(source_names) * len(names), -1, dtype=np.int64)
    of = sources[rows].astype(np.int64) * len(names) + connections[rows]
    np.maximum.at(latest, of, integers_of(table, "before_ns")[rows])
    keys = ((one, *divmod(one, len(names))) for one in np.flatnonzero(latest >= 0).tolist())
    return {connection_text(source_names[source], names[name]): int(latest[one]) for one, source, name in keys}


def _used(codes: NDArray[np.int32], names: Sequence[str]) -> list[int]:
    used: list[int] = np.flatnonzero(np.bincount(codes)).tolist() if len(names) > 1 else [0]
    return used


def _queues_of(table: pa.Table, flags: NDArray[np.bool_]) -> set[tuple[str, str, int]]:
    rows = np.flatnonzero(flags)
    brokers, broker_names = coded(table, "broker")
    topics, topic_names = coded(table, "topic")
    numbers = integers_of(table, "queue")
    # The events of a queue are usually adjacent, so use only the first of adjacent events of a queue.
    rows = rows[run_starts(brokers[rows], topics[rows], numbers[rows])]
    pairs, numbers = brokers[rows].astype(np.int64) * len(topic_names) + topics[rows], numbers[rows]
    found: set[tuple[str, str, int]] = set()
    for pair in np.flatnonzero(np.bincount(pairs)).tolist():
        broker, topic = divmod(pair, len(topic_names))
        mine = np.unique(numbers[pairs == pair]).tolist()
        found |= {(broker_names[broker], topic_names[topic], number) for number in mine}
    return found


def _removed(table: pa.Table, flags: NDArray[np.bool_]) -> dict[str, int]:
    rows = np.flatnonzero(flags)
    if not len(rows):
        return {}
    brokers, broker_names = coded(table, "broker")
    topics, topic_names = coded(table, "topic")
    lowest, numbers = (integers_of(table, name)[rows] for name in ("offset_min", "queue"))
    queues, place = np.unique(np.stack([brokers[rows], topics[rows], numbers]), axis=1, return_inverse=True)
    highest = np.zeros(queues.shape[1], dtype=np.int64)
    np.maximum.at(highest, place, lowest)
    names = [(broker_names[broker], topic_names[topic], number) for broker, topic, number in queues.T.tolist()]
    return {queue_text(name): end for name, end in zip(names, highest.tolist(), strict=True)}


def queue_text(name: tuple[str, str, int]) -> str:
    """A queue (broker, topic, number) as one string."""
    return "\0".join(map(str, name))


def _left_out(table: pa.Table, flags: NDArray[np.bool_]) -> Integers:
    """Returns how many further sequence numbers each flagged event covers; above 0 only in an excerpt."""
    return np.where(flags, np.clip(integers_of(table, "lost_count"), 1, INTEGER_LIMIT) - 1, 0).astype(np.int64)


def _moments(after_ns: Integers, before_ns: Integers, flags: NDArray[np.bool_]) -> list[Interval]:
    """Returns the times of the flagged events as intervals, of which close ones are joined."""
    if not flags.any():
        return []
    return list(gaps_of(zip(after_ns[flags].tolist(), before_ns[flags].tolist(), strict=True)))


def _survey_rare(survey: Survey, table: pa.Table, is_rare: NDArray[np.bool_]) -> None:
    fields = ("event", "source", "connection", "after_ns", "before_ns", "sequence", "lost_count", "direction", "cause")
    for row in _told(table, np.flatnonzero(is_rare), fields):
        seen, interval = survey.sources[row["source"]], (row["after_ns"], row["before_ns"])
        if row["event"] == "lost":
            seen.lost_count += max(row["lost_count"], 1)
            seen.losses.append(interval)
        elif row["event"] == "omitted":
            clause = row["cause"]
            survey.excerpts[clause] = survey.excerpts.get(clause, 0) + max(row["lost_count"], 1)
        elif row["event"] == "source_stopped":
            seen.stopped_ns = row["after_ns"]
        elif row["event"] == "connection_closed":
            survey.closes.append((row["source"], row["connection"], *interval))
        elif row["event"] == "connection_opened":
            survey.opens.append((row["source"], row["connection"], *interval))
        else:
            begins = row["event"] == "blocked"
            direction = row["direction"]
            block = Block(row["source"], row["connection"], direction, *interval, row["sequence"], begins)
            survey.blocks.append(block)


def _anew(table: pa.Table, rows: Integers) -> list[GenerationStart]:
    if not len(rows):
        return []
    return [GenerationStart(**row) for row in _told(table, rows, GenerationStart._fields)]


def _told(table: pa.Table, rows: Integers, fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return these fields of some events; a column that the table lacks has its default."""
    rare: list[dict[str, Any]] = fill(table.take(pa.array(rows)), fields).to_pylist()
    return rare


def merge(surveys: Iterable[Survey]) -> Survey:
    """Merge the surveys of all splits."""
    whole = merged([Survey(), *surveys])
    return msgspec.structs.replace(whole, sources={name: whole_of(seen) for name, seen in whole.sources.items()})


def context_and_gaps(history: History, survey: Survey, *, wake_ms: float, late_ms: float) -> tuple[Context, list[Gap]]:
    """Returns the context for the verdicts, and the gaps in the evidence."""
    damages = sorted(history.damages + survey.damages)
    gaps = [Gap("damage", damage.file, damage.count, _damage_text(damage)) for damage in damages]
    facts = {}
    unknown = survey.sources.keys() - history.declared_sources
    settable = history.settable_clocks | unknown
    unsteady = _unsteady(survey, settable) | unknown
    for name, seen in sorted(survey.sources.items()):
        faults = sequence_faults(seen.runs)
        unnamed = seen.unnamed if seen.brokers and name not in history.laws else []
        if unnamed:
            text = f"source {name!r} names a broker in some events and none in others"
            gaps.append(Gap("field missing", f"{name} without broker", len(unnamed), text))
        facts[name] = SourceFacts(
            last_ns=seen.last_ns,
            stopped_ns=seen.stopped_ns,
            first_ns=seen.first_ns,
            holes=gaps_of(holes_in(seen, [] if name in history.laws else seen.damaged + unnamed)),
            is_steady=name not in unsteady,
        )
        gaps += _source_gaps(name, seen, faults, declared=name in history.declared_sources or bool(history.damages))
    for name, count in sorted(survey.unknown_events.items()):
        gaps.append(Gap("unknown event", name, count, f"{count} events named {name!r}, which this judge does not know"))
    gaps += field_gaps(survey.observers, history.laws)
    policies = history.policies - {policy for policy, _law in history.laws.values()}
    gaps += observer_gaps(survey.observers, history, policies)
    for clause, count in sorted(survey.excerpts.items()):
        text = f"an excerpt that leaves {count} events out and is asked {clause or 'nothing'} alone: it acquits nobody"
        gaps.append(Gap("excerpt", clause, count, text))
    if not survey.event_count:
        gaps.append(Gap("empty", "", 0, "there are no events to judge"))
    deleted, unplaced = deletions(survey.deleted, survey.sources, settable)
    if len(unplaced):
        text = "a deletion names no broker, and its source none or several: any broker's queues may have begun anew"
        gaps.append(Gap("field missing", "request_received without broker", len(unplaced), text))
    holes = {name: seen.holes for name, seen in facts.items()}
    longer = {name: lasting(own, is_settable=name in settable) for name, own in holes.items()}
    inside = frozenset(name for name, seen in survey.observers.sources.items() if seen.inside)
    again = begun_anew(survey.firsts, deleted, inside)
    for (broker, topic, queue), times in sorted(again.items()):
        where = f"{broker}/{topic}/{queue}"
        text = f"queue {where} gave offset 0 twice and no deletion is told: its log may have begun anew in between"
        gaps.append(Gap("begun anew", where, len(times), text))
    open_times = _open_times(survey, lambda closed, _name, _opened_ns: closed[1])
    # Count a connection until its last answer, because a host that loses power closes no connection.
    used_times = _open_times(
        survey, lambda closed, name, opened_ns: min(closed[1], max(opened_ns, survey.seen_ns.get(name, opened_ns)))
    )
    restarted = restarts(survey.sources, open_times, used_times, inside)
    orderly = orderly_ends(survey.sources, open_times, inside)
    readers = frozenset() if are_own(history.policies) else _readers(survey, inside)
    context = Context(
        wake_ns=round(wake_ms * 1_000_000),
        late_ns=round(late_ms * 1_000_000),
        answers_on_stop=answers_on_stop(history.policies),
        sources=facts,
        closes={(source, connection): (after, before) for source, connection, after, before in sorted(survey.closes)},
        inside=inside,
        asked=frozenset(name for name, seen in survey.observers.sources.items() if seen.requests),
        is_own=are_own(history.policies),
        stops_silently=stops_silently(history.policies),
        keeps_role=keeps_role(history.policies),
        deletions=tuple(sorted((one.source, one.topic, one.after_ns, one.before_ns) for one in survey.deleted)),
        lawful=frozenset(history.laws),
        broker_holes={
            name: union((own, unplaced)) for name, own in broker_holes(survey.sources, holes, inside).items()
        },
        life_holes={name: union((own, unplaced)) for name, own in broker_holes(survey.sources, longer, inside).items()},
        settable=settable,
        unsteady_brokers=frozenset(
            broker for name, seen in survey.sources.items() if name in unsteady for broker in seen.brokers
        ),
        blocked=_blocked(survey.blocks),
        closed_often=_closed_often(survey.closes),
        spans=_spans(_open_times(survey, lambda closed, _name, _opened_ns: closed[0])),
        shown=frozenset(survey.shown),
        removed=survey.removed,
        writers=frozenset(name for name, seen in survey.observers.sources.items() if seen.appended),
        asks_sends=bool(survey.observers.acknowledged or survey.observers.sends or survey.observers.identified),
        asks_ends=survey.observers.min_least < survey.observers.min_most or not survey.answered <= survey.shown,
        asks_pops=bool(survey.pops),
        asked_alone=frozenset(survey.excerpts),
        deleted=deleted,
        begun_anew=again,
        readers=readers,
        followers=frozenset(_followers(survey, inside, readers)),
        restarts=restarted,
        kills=kills(restarted, survey.sources, orderly),
        unordered_holes={
            name: union((own, unplaced)) for name, own in broker_holes(survey.sources, longer, inside, orderly).items()
        },
    )
    return context, gaps


def _unsteady(survey: Survey, settable: Collection[str]) -> frozenset[str]:
    """Returns the sources whose timestamps do not order events, because a clock was set back or may have been.

    If an event is earlier than an event with a lower number, even by a microsecond, the clock was set back. If two
    sources whose clocks may be set watch one broker, both are unsteady, because they share no sequence numbers that
    could show which clock is wrong.
    """
    found = {name for name, seen in survey.sources.items() if seen.steps or (seen.is_inverted and name in settable)}
    tellers: dict[str, set[str]] = {}
    for name, seen in survey.sources.items():
        for broker in seen.brokers or {""}:
            tellers.setdefault(broker, set()).add(name)
    for names in tellers.values():
        if len(names) > 1 and not names.isdisjoint(settable):
            found |= names
    return frozenset(found)


def _closed_often(closes: Iterable[tuple[str, str, int, int]]) -> dict[tuple[str, str], tuple[Interval, ...]]:
    found: dict[tuple[str, str], tuple[Interval, ...]] = {}
    for source, connection, after_ns, before_ns in sorted(closes):
        found[source, connection] = (*found.get((source, connection), ()), (after_ns, before_ns))
    return {name: several for name, several in found.items() if len(several) > 1}


def _spans(open_times: Mapping[str, list[Interval]]) -> dict[str, tuple[Integers, Integers]]:
    columns = {source: np.array(spans, dtype=np.int64).T for source, spans in open_times.items()}
    return {source: (opened, np.maximum.accumulate(closed)) for source, (opened, closed) in columns.items()}


def _readers(survey: Survey, inside: Collection[str]) -> frozenset[tuple[str, str]]:
    outside = [(name, seen) for name, seen in survey.sources.items() if name not in inside]
    return frozenset((name, broker) for name, seen in outside for broker in seen.names - seen.sent_to)


def _followers(survey: Survey, inside: Collection[str], readers: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns `Context.followers`. A slave may have its master's name, and gets no sends."""
    watchers: dict[str, set[str]] = {}
    for name, seen in survey.sources.items():
        for broker in seen.brokers if name not in inside else seen.sent_to:
            watchers.setdefault(broker, set()).add(name)
    return {(name, broker) for name, broker in readers if broker and watchers.get(broker, set()) - {name}}


def _open_times(survey: Survey, until: Callable[[Interval, str, int], int]) -> dict[str, list[Interval]]:
    """Returns, by source, the interval in which each of its connections counts as open.

    The function `until` returns the end of the interval, from the interval of the connection's close, the connection's
    key in `Survey.seen_ns`, and when the connection may have been opened.
    """
    ends: dict[tuple[str, str], list[Interval]] = {}
    for source, connection, *moments in sorted(survey.closes, reverse=True):
        ends.setdefault((source, connection), []).append((moments[0], moments[1]))
    found: dict[str, list[Interval]] = {}
    for source, connection, after_ns, _before_ns in sorted(survey.opens, key=lambda one: one[2]):
        waiting = ends.get((source, connection))
        # A close before this open belongs to an earlier connection of the same name.
        while waiting and waiting[-1][0] < after_ns:
            waiting.pop()
        closed = waiting.pop() if waiting else NOT_CLOSED
        end_ns = until(closed, connection_text(source, connection), after_ns)
        found.setdefault(source, []).append((after_ns, end_ns))
    return found


def _blocked(blocks: Iterable[Block]) -> dict[tuple[str, str], RecordGaps]:
    """Returns the intervals in which at least one direction of each connection was not read.

    An interval without an end lasts to the end of the history.
    """
    open_ns: dict[tuple[str, str, str], int] = {}
    found: dict[tuple[str, str], list[Interval]] = {}
    for block in sorted(blocks, key=lambda one: (one.source, one.sequence)):
        key = (block.source, block.connection, block.direction)
        if block.begins:
            open_ns.setdefault(key, block.after_ns)
        else:
            start_ns = open_ns.pop(key, -INTEGER_LIMIT)
            found.setdefault(key[:2], []).append((start_ns, block.before_ns))
    for key, start_ns in open_ns.items():
        found.setdefault(key[:2], []).append((start_ns, INTEGER_LIMIT))
    return {key: gaps_of(intervals) for key, intervals in found.items()}


def _damage_text(damage: Damage) -> str:
    place = f" at byte {damage.position}" if damage.position >= 0 else ""
    return f"{damage.file}{place}: {damage.reason}"


def _source_gaps(name: str, seen: SourceSurvey, faults: SequenceFaults, *, declared: bool) -> list[Gap]:
    gaps = []
    if not declared:
        gaps.append(Gap("undeclared source", name, 1, f"source {name!r} is not in meta.json: its clock is unknown"))
    if seen.lost_count:
        gaps.append(Gap("lost", name, seen.lost_count, f"source {name!r} says that it lost {seen.lost_count} events"))
    if seen.steps:
        how_far = f"by up to {seen.step_ns / 10**9:.1f} s"
        text = f"the clock of source {name!r} was set back, {how_far}: nothing is certain that rests on its moments"
        gaps.append(Gap("clock jump", name, seen.steps, text))
    if faults.missing_count:
        text = f"source {name!r} misses {faults.missing_count} events, the first is sequence {faults.first_missing}"
        gaps.append(Gap("sequence gap", name, faults.missing_count, text))
    if faults.repeated_count:
        text = f"source {name!r} has {faults.repeated_count} sequence numbers more than once"
        gaps.append(Gap("sequence repeated", name, faults.repeated_count, text))
    return gaps
