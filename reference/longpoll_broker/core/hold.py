"""The hold table: pulls that found nothing and wait for a message or for their deadline.

A `HoldTable` is one shard of the broker's table. Each public method is one critical section of the law: whoever
shares a table between threads calls it with the shard's lock held, and does everything else outside the lock. Time
is an argument (milliseconds of any clock that never steps back), so a test drives the very same table with virtual
time.

Leaves out who notices an arrival (`core.notifier`), what is answered (`core.pull`) and the locks (`service`).

Sources: `PullRequestHoldService.java`, `ManyPullRequest.java`; the deadline heap follows trio's `Deadlines`.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Hashable, Iterable
from typing import Final

import msgspec
from attrs import define, field

from longpoll_broker.core.faults import FAULTS
from longpoll_broker.core.filter import Filter

Key = tuple[str, int]
"""Topic and queue id: what a bucket is for."""


class Phase(enum.IntEnum):
    """Where a pull is on its way; the names are the law's."""

    PULLING = 0
    MISSED = 1
    HELD = 2
    TAKEN = 3
    QUEUED = 4
    ANSWERED = 5


PULLING: Final = Phase.PULLING
MISSED: Final = Phase.MISSED
HELD: Final = Phase.HELD
TAKEN: Final = Phase.TAKEN
QUEUED: Final = Phase.QUEUED
ANSWERED: Final = Phase.ANSWERED


class Pull(msgspec.Struct, eq=False, gc=False):
    """One pull from its decoding to its answer; a hundred thousand of them may be held, so it stays small.

    `gc=False` keeps the collector from walking them: the only reference that could close a cycle is `channel`, and
    a table forgets a channel's pulls when the channel closes.
    """

    channel: Hashable
    """Whom to answer; the table only compares and hashes it."""
    opaque: int
    """The request's number on its channel."""
    group: str
    topic: str
    queue_id: int
    offset: int
    """The first queue offset asked for."""
    count_max: int
    sys_flag: int
    commit_offset: int = 0
    timeout_ms: int = 0
    """How long the pull may be held, as granted."""
    subscription: str | None = None
    expression_type: str | None = None
    sub_version: int = 0
    serialize: int = 0
    """Header serialisation of the request: 0 JSON, 1 ROCKETMQ."""
    flag: int = 0
    """The request's command flag."""
    number: int = 0
    """The request's number in the recorded history."""
    deadline_ms: int = 0
    """Set when the pull is received: receipt plus `timeout_ms`."""
    filter: Filter | None = None
    """What the pull wants, captured when it missed."""
    phase: Phase = PULLING
    spent: bool = False
    """Its deadline entry fired while a notifier had taken it."""


class Deadlines:
    """Pulls by deadline; a heap of the distinct milliseconds, each with its pulls.

    Invariants: every value of `_due` is non-empty; every key of `_due` is in `_heap` at least once. A millisecond
    whose pulls are all gone leaves the heap when it comes to the top (or at the next prune), never earlier.
    """

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[int, dict[Pull, None]] = {}
        self._heap: list[int] = []

    def add(self, pull: Pull, deadline_ms: int) -> None:
        """Arm one pull."""
        pulls = self._due.get(deadline_ms)
        if pulls is None:
            pulls = self._due[deadline_ms] = {}
            heapq.heappush(self._heap, deadline_ms)
        pulls[pull] = None

    def remove(self, pull: Pull, deadline_ms: int) -> None:
        """Disarm one pull; nothing happens when it is not armed at that time."""
        pulls = self._due.get(deadline_ms)
        if pulls is None:
            return
        pulls.pop(pull, None)
        if not pulls:
            del self._due[deadline_ms]
            # As in trio: stale entries are cheap until they outnumber the live ones.
            if len(self._heap) > 2 * len(self._due) + 1000:
                self._heap = list(self._due)
                heapq.heapify(self._heap)

    def next_ms(self) -> int | None:
        """The earliest armed time; None when nothing is armed."""
        while self._heap and self._heap[0] not in self._due:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop_due(self, now_ms: int) -> list[Pull]:
        """Disarm and return every pull armed at `now_ms` or before, earliest first."""
        due: list[Pull] = []
        while self._heap and self._heap[0] <= now_ms:
            due.extend(self._due.pop(heapq.heappop(self._heap), ()))
        return due

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))


@define(slots=True, eq=False)
class HoldTable:
    """One shard of the table.

    Invariants, true between any two calls:
    - a pull is in `_buckets` exactly when its phase is HELD, and no bucket is empty;
    - `_channels` knows exactly the pulls that are HELD or TAKEN;
    - with `own_deadlines`, `_deadlines` knows every HELD pull, and every TAKEN one that is not `spent`
      (with `one_shot`, a pull whose entry was spent while TAKEN comes back without one: RocketMQ-like designs lose
      such a deadline, ours must not).
    """

    own_deadlines: bool = True
    one_shot: bool = False
    _buckets: dict[Key, dict[Pull, None]] = field(factory=dict, init=False)
    _channels: dict[Hashable, dict[Pull, None]] = field(factory=dict, init=False)
    _deadlines: Deadlines = field(factory=Deadlines, init=False)
    _held: int = field(default=0, init=False)

    def __len__(self) -> int:
        """How many pulls are held or taken by a notifier."""
        return self._held

    def has(self, key: Key) -> bool:
        """Whether the bucket holds anything; exact under the lock, a hint without it."""
        return key in self._buckets

    def keys(self) -> list[Key]:
        """The buckets that hold something now."""
        return list(self._buckets)

    def deadline_next_ms(self) -> int | None:
        """When `expire` is next needed; None when no deadline is armed."""
        return self._deadlines.next_ms()

    # -- hold, take, keep: the law's actions of the same names ------------------------------------------------------

    def hold(self, pull: Pull) -> None:
        """Insert a pull that missed."""
        assert pull.phase is MISSED
        self._insert(pull)
        channel = self._channels.get(pull.channel)
        if channel is None:
            channel = self._channels[pull.channel] = {}
        channel[pull] = None
        self._held += 1
        if self.own_deadlines:
            self._deadlines.add(pull, pull.deadline_ms)

    def take(self, key: Key) -> list[Pull]:
        """Clone and clear: the bucket's pulls, in the order held, now the caller's to wake or keep."""
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            return []
        for pull in bucket:
            pull.phase = TAKEN
        return list(bucket)

    def keep(self, pulls: Iterable[Pull]) -> list[Pull]:
        """Put back what was taken and not woken; a pull whose channel closed meanwhile stays out. The ones put back."""
        kept = []
        for pull in pulls:
            if pull.phase is not TAKEN:
                assert pull.phase is ANSWERED
                continue
            self._insert(pull)
            kept.append(pull)
            if pull.spent and not self.one_shot:
                # The entry stands until the answer: it fired while the pull was out, so it is due at once.
                pull.spent = False
                self._deadlines.add(pull, pull.deadline_ms)
        return kept

    def queue_taken(self, pull: Pull) -> bool:
        """A notifier decides to wake a pull it has taken; false if its channel has closed meanwhile."""
        if pull.phase is not TAKEN:
            return False
        self._forget(pull)
        pull.phase = QUEUED
        return True

    def wake_in_place(self, key: Key, wakes: Callable[[Pull], bool]) -> tuple[list[Pull], list[Pull]]:
        """Go through a bucket under the lock: (pulls to run, pulls for which `wakes` raised), both removed.

        What `wakes` raises must not cost another pull its turn, and the pull it raised for must be answered.
        """
        bucket = self._buckets.get(key)
        if bucket is None:
            return [], []
        woken: list[Pull] = []
        thrown: list[Pull] = []
        for pull in bucket:
            try:
                if wakes(pull):
                    woken.append(pull)
            except FAULTS:
                thrown.append(pull)
        for pull in (*woken, *thrown):
            self._remove(pull)
        return woken, thrown

    # -- recheck, expire, drop, stop --------------------------------------------------------------------------------

    def recheck(self, pull: Pull, visible_end: int) -> bool:
        """After the insert, take the pull out to run it if the visible end has moved past its offset.

        False, and nothing done, if it has not, or if a notifier or an answer was first.
        """
        if pull.phase is not HELD or visible_end <= pull.offset:
            return False
        self._remove(pull)
        return True

    def remove_behind(self, pulls: Iterable[Pull], visible_end: int) -> list[Pull]:
        """Take out those of the pulls that are held and whose offset is below the visible end."""
        behind = [pull for pull in pulls if pull.phase is HELD and pull.offset < visible_end]
        for pull in behind:
            self._remove(pull)
        return behind

    def expire(self, now_ms: int) -> list[Pull]:
        """Take out every held pull whose deadline has come; one that a notifier has taken is marked `spent`."""
        late: list[Pull] = []
        for pull in self._deadlines.pop_due(now_ms):
            if pull.phase is HELD:
                self._remove(pull)
                late.append(pull)
            else:
                assert pull.phase is TAKEN
                pull.spent = True
        return late

    def drop_channel(self, channel: Hashable) -> list[Pull]:
        """Forget every pull of a closed channel, also those that a notifier has taken."""
        dropped = list(self._channels.get(channel, ()))
        for pull in dropped:
            if pull.phase is HELD:
                self._remove(pull)
            else:
                self._forget(pull)
            pull.phase = ANSWERED
        return dropped

    def drain(self) -> list[Pull]:
        """Take out every held pull; those that a notifier has taken are its own to keep, and drained after that."""
        held = [pull for bucket in self._buckets.values() for pull in bucket]
        for pull in held:
            self._remove(pull)
        return held

    def drain_topic(self, topic: str) -> list[Pull]:
        """Take out every held pull of one topic."""
        held = [pull for key, bucket in self._buckets.items() if key[0] == topic for pull in bucket]
        for pull in held:
            self._remove(pull)
        return held

    def assert_tidy(self) -> None:
        """Check the invariants of the class; for tests and the stop of a broker."""
        held = {pull for bucket in self._buckets.values() for pull in bucket}
        known = {pull for pulls in self._channels.values() for pull in pulls}
        assert all(self._buckets.values())
        assert all(self._channels.values())
        assert all(pull.phase is HELD for pull in held)
        assert held <= known
        assert all(pull.phase is TAKEN for pull in known - held)
        assert len(known) == self._held
        armed = {pull for pulls in self._deadlines._due.values() for pull in pulls}  # noqa: SLF001 - our own part
        assert armed <= known
        assert not self.own_deadlines or self.one_shot or {p for p in known if not p.spent} <= armed

    # -- the parts --------------------------------------------------------------------------------------------------

    def _insert(self, pull: Pull) -> None:
        key = (pull.topic, pull.queue_id)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = {}
        bucket[pull] = None
        pull.phase = HELD

    def _remove(self, pull: Pull) -> None:
        key = (pull.topic, pull.queue_id)
        bucket = self._buckets[key]
        del bucket[pull]
        if not bucket:
            del self._buckets[key]
        self._forget(pull)
        pull.phase = QUEUED

    def _forget(self, pull: Pull) -> None:
        """Let go of index and deadline of a pull that is held or taken."""
        channel = self._channels[pull.channel]
        del channel[pull]
        if not channel:
            del self._channels[pull.channel]
        self._held -= 1
        if self.own_deadlines:
            self._deadlines.remove(pull, pull.deadline_ms)
