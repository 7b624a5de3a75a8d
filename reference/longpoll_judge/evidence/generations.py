"""The generations of a queue. Within one generation, the queue's log only grows.

A generation ends when the topic is deleted (215); the next generation begins empty. A generation may also end in a gap
of the record, or while all connections that an outside observer sees are closed, because a broker that was killed and
restarted then may have lost messages that were not on disk, and may have kept messages that no event shows. If a
request certainly lies within one generation, it is judged by the events that may belong to this generation. A request
that overlaps a change of generations may have been served in either generation, so only rules that need no log judge
it.

`survey` finds the changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from attrs import frozen

from longpoll_judge.columns.lookup import Booleans, Integers
from longpoll_judge.contract.clause import STOPPING_MS
from longpoll_judge.evidence.source_survey import NO_GAPS, Interval, RecordGaps, SourceSurvey, gaps_of, union
from longpoll_judge.read.schema import INTEGER_LIMIT

NEITHER = -1
"""The generation's number for an event that overlaps a change between two generations."""


@frozen(eq=False)
class Generations:
    """The generations of one queue: number n lies between the changes n - 1 and n."""

    changes: RecordGaps
    """The times in which a generation may end and the next generation begin."""
    deletions: RecordGaps
    """The changes in which a generation certainly ends, so that the next generation begins empty."""
    restarts: RecordGaps = NO_GAPS
    """The changes in which the broker may have been restarted. Messages older than `KEPT_NS` survive a restart."""

    def number(self, after_ns: Integers, before_ns: Integers) -> Integers:
        """Returns the number of the generation in which each interval lies; `NEITHER` if it overlaps a change."""
        life = np.searchsorted(self.changes.ends, after_ns, side="left")
        next_ns = np.append(self.changes.starts, INTEGER_LIMIT)[life]
        return np.where((before_ns < next_ns) | (life == len(self.changes)), life, NEITHER).astype(np.int64)

    def first_kept(self, number: int) -> int:
        """Returns the earliest generation from which only restarts lead to the given one; it may be the given one."""
        while (
            number > 0
            and (
                (self.restarts.starts == self.changes.starts[number - 1])
                & (self.restarts.ends == self.changes.ends[number - 1])
            ).any()
        ):
            number -= 1
        return number

    def life(self, number: int) -> Generation:
        """The events of one generation."""
        begun_ns = int(self.changes.ends[number - 1]) if number > 0 else -INTEGER_LIMIT
        start_ns = int(self.changes.starts[number - 1]) if number > 0 else -INTEGER_LIMIT
        deleted = np.flatnonzero((self.deletions.starts == start_ns) & (self.deletions.ends == begun_ns))
        return Generation(self, number, int(start_ns) if len(deleted) else None)


@frozen(eq=False)
class Generation:
    """One generation of a queue."""

    lives: Generations
    number: int
    emptied_ns: int | None
    """The earliest time at which the generation began with an empty log; None if it may have begun with messages."""

    @property
    def first_known(self) -> int | None:
        """The lowest offset from which on the record has every message; None if only the messages can show it."""
        if self.number <= 0:
            return None
        return INTEGER_LIMIT if self.emptied_ns is None else 0

    def sure(self, after_ns: Integers, before_ns: Integers) -> Booleans:
        """Returns a mask of the events that certainly belong to the generation or that a restart cannot have lost."""
        numbers = self.lives.number(after_ns, before_ns)
        found: Booleans = (numbers == self.number) & (self.number != NEITHER)
        first = self.lives.first_kept(self.number)
        if first < self.number:
            saved_ns = np.append(self.lives.changes.starts, INTEGER_LIMIT)[numbers] - KEPT_NS
            found |= (numbers >= first) & (numbers < self.number) & (before_ns < saved_ns)
        return found

    def possible(self, after_ns: Integers, before_ns: Integers) -> Booleans:
        """Returns a mask of the events that may describe the log of the generation.

        The mask includes events that overlap a change of generations, and events of earlier generations whose log this
        generation may continue.
        """
        if self.number == NEITHER:
            return np.zeros(len(after_ns), dtype=np.bool_)
        numbers = self.lives.number(after_ns, before_ns)
        found: Booleans = (numbers == NEITHER) | (numbers <= self.number)
        since: Booleans = before_ns >= (-INTEGER_LIMIT if self.emptied_ns is None else self.emptied_ns)
        return found & since


KEPT_NS: Final = 15_000 * 1_000_000
"""Data that a broker acknowledged this long (ns) before it was killed is on disk: the broker saves offsets every 5 s,
first after 10 s, and flushes its log at least every 10 s."""
STARTED_NS: Final = 60_000 * 1_000_000
"""The longest pause in ns between an orderly stop and the next start that counts as one restart of the broker."""
RESTART_NS: Final = 1_000 * 1_000_000
"""A broker that had no connection for this long (ns) may have been restarted."""
DELETION_NS: Final = 5_000 * 1_000_000
"""How long (ns) after its receipt a deletion may take effect. The record has no answer to the deletion that could bound
this time."""


class GenerationStart(NamedTuple):
    """Evidence that a new generation of one queue, or of all queues of a topic, begins."""

    broker: str
    topic: str
    queue: int
    """The number of the queue; -1 for all queues of the topic."""
    after_ns: int
    before_ns: int
    source: str
    request: str = ""


def deletions(
    deleted: Iterable[GenerationStart], sources: Mapping[str, SourceSurvey], settable: Collection[str]
) -> tuple[dict[tuple[str, str], RecordGaps], RecordGaps]:
    """Returns the deletions by broker and topic, and separately the deletions with an unknown broker.

    The end of a deletion is open if the source's clock may be set. If a deletion names no broker, it concerns the only
    broker of its source; if the source has several brokers, or none, the deletion may concern any broker.
    """
    found: dict[tuple[str, str], list[Interval]] = {}
    unplaced: list[Interval] = []
    for each in deleted:
        end_ns = INTEGER_LIMIT if each.source in settable else each.before_ns + DELETION_NS
        told = {each.broker} if each.broker else sources[each.source].brokers
        if len(told) > 1 or (not told and any(seen.brokers for seen in sources.values())):
            unplaced.append((each.after_ns, end_ns))
        else:
            found.setdefault((min(told, default=""), each.topic), []).append((each.after_ns, end_ns))
    return {name: gaps_of(intervals) for name, intervals in found.items()}, gaps_of(unplaced)


def begun_anew(
    first: Iterable[GenerationStart], deleted: dict[tuple[str, str], RecordGaps], inside: Collection[str]
) -> dict[tuple[str, str, int], RecordGaps]:
    """Returns when a queue got a new generation without a recorded deletion, because offset 0 was stored twice.

    The reason may be a client that the outside observer does not see, which deleted the topic between the two stores.
    Both stores of offset 0 must come from one source, and not from inside the broker, where an observer would have seen
    the deletion. A send that is acknowledged twice does not count, because both acknowledgements are about one message.
    """
    told: dict[tuple[str, tuple[str, str, int]], list[GenerationStart]] = {}
    for each in first:
        if each.source not in inside:
            told.setdefault((each.source, (each.broker, each.topic, each.queue)), []).append(each)
    found: dict[tuple[str, str, int], list[Interval]] = {}
    for (_source, name), firsts in told.items():
        firsts.sort(key=lambda one: (one.after_ns, one.before_ns))
        known = union(deleted.get((name[0], topic), NO_GAPS) for topic in {name[1], ""})
        for one, other in pairwise(firsts):
            between = np.array([[one.after_ns], [other.before_ns]], dtype=np.int64)
            is_one_send = bool(one.request) and one.request == other.request
            if not is_one_send and not known.touch(*between)[0]:
                found.setdefault(name, []).append((one.after_ns, other.before_ns))
    return {name: gaps_of(intervals) for name, intervals in found.items()}


def lasting(holes: RecordGaps, *, is_settable: bool) -> RecordGaps:
    """Returns a source's gaps, each extended by the time that a deletion hidden in the gap may need to take effect."""
    ends = np.full_like(holes.ends, INTEGER_LIMIT) if is_settable else holes.ends + DELETION_NS
    return gaps_of(zip(holes.starts.tolist(), np.minimum(ends, INTEGER_LIMIT).tolist(), strict=True))


def broker_holes(
    sources: Mapping[str, SourceSurvey],
    holes_of_source: Mapping[str, RecordGaps],
    inside: Collection[str],
    orderly: Collection[str] = (),
) -> dict[str, RecordGaps]:
    """Returns the intervals in which no source watched a broker, so that its queues may have changed in any way.

    A source that names no broker may belong to any broker. If a source has no recorded end, a gap lasts from its last
    event until the next source of the same broker begins. A gap also follows the end of an outside observer, unless the
    observer is `orderly` and the next source begins soon. No gap follows the orderly stop of an observer inside the
    broker, because the broker stops at the same time.
    """
    found = {}
    for broker in {broker for seen in sources.values() for broker in seen.names}:
        mine = {name: seen for name, seen in sources.items() if broker in seen.names or not seen.brokers}
        intervals: list[Interval] = []
        for name, seen in mine.items():
            starts = [other.first_ns for other in mine.values() if other.first_ns > seen.last_ns]
            until_ns = min(starts, default=INTEGER_LIMIT)
            intervals += [(start, max(min(end, until_ns), start)) for start, end in holes_of_source[name]]
        found[broker] = gaps_of((*intervals, *_unwatched(mine, inside, orderly)))
    return found


def restarts(
    sources: Mapping[str, SourceSurvey],
    connections: Mapping[str, Sequence[Interval]],
    used: Mapping[str, Sequence[Interval]],
    inside: Collection[str],
) -> dict[str, RecordGaps]:
    """Returns when outside observers saw no open connection of a broker, so that it may have been restarted.

    `connections` maps each source to the intervals in which its connections may have been open; in `used`, the
    intervals end with the connection's last answer. Observers inside the broker are skipped, because they end with the
    broker.
    """
    found = {}
    for broker in {broker for seen in sources.values() for broker in seen.names}:
        mine = {name for name, seen in sources.items() if broker in seen.names}
        if not mine.isdisjoint(inside):
            continue
        open_ = gaps_of(interval for name in mine for interval in used.get(name, ()))
        closed_ns = np.array(sorted({end for name in mine for _start, end in connections.get(name, ())}), np.int64)
        # A connection counts as open until it is closed; but only until its last answer if another connection was
        # opened before the close.
        last_ns = np.append(closed_ns, open_.ends[:1])[np.searchsorted(closed_ns, open_.starts[1:]) - 1]
        apart = zip(np.maximum(open_.ends[:-1], last_ns).tolist(), open_.starts[1:].tolist(), strict=True)
        closed = gaps_of((end + 1, start - 1) for end, start in apart if start - end >= RESTART_NS)
        if len(closed):
            found[broker] = closed
    return found


def orderly_ends(
    sources: Mapping[str, SourceSurvey], connections: Mapping[str, Sequence[Interval]], inside: Collection[str]
) -> frozenset[str]:
    """Returns the outside sources that ended in order: all their connections were closed shortly before their end."""
    found = set()
    for name in connections.keys() - set(inside):
        stopped_ns, last_ns = sources[name].stopped_ns, max(closed for _opened, closed in connections[name])
        if stopped_ns is not None and stopped_ns - STOPPING_MS * 1_000_000 <= last_ns <= stopped_ns:
            found.add(name)
    return frozenset(found)


def kills(
    restarted: Mapping[str, RecordGaps], sources: Mapping[str, SourceSurvey], orderly: Collection[str]
) -> dict[str, RecordGaps]:
    """Returns the restarts that may be kills: a source outlived the restart, or no source ended in order before it."""
    found = {}
    for broker, gaps in restarted.items():
        mine = [(name, seen) for name, seen in sources.items() if broker in seen.names]

        def is_in_order(start_ns: int, end_ns: int, mine: list[tuple[str, SourceSurvey]] = mine) -> bool:
            old = [(name, seen) for name, seen in mine if seen.first_ns < start_ns and seen.last_ns >= start_ns]
            is_soon = end_ns - start_ns <= STARTED_NS
            return is_soon and bool(old) and all(name in orderly and seen.last_ns <= end_ns for name, seen in old)

        found[broker] = gaps_of(interval for interval in gaps if not is_in_order(*interval))
    return found


def _unwatched(
    sources: Mapping[str, SourceSurvey], inside: Collection[str], orderly: Collection[str]
) -> Iterator[Interval]:
    last_ns, watched_ns = INTEGER_LIMIT, 0
    for name, seen in sorted(sources.items(), key=lambda item: item[1].first_ns):
        if seen.first_ns - last_ns > watched_ns:
            yield last_ns, seen.first_ns
        if last_ns == INTEGER_LIMIT or seen.last_ns > last_ns:
            last_ns = seen.last_ns
            watched_ns = 2 * INTEGER_LIMIT if name in inside else STARTED_NS if name in orderly else 0
