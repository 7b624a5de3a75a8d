"""The hold table: pulls that found nothing and wait for a message or for their deadline.

A `HoldTable` is one shard of the broker's table. Each public method is one critical section of the law: threads
that share a table call it with the shard's lock held, and do everything else outside the lock. Time
is an argument (milliseconds of any clock that never steps back), so a test drives the very same table with virtual
time.

Leaves out who notices an arrival (`hold.notifier`), what is answered (`hold.pull`) and the locks (`service`).

Sources: `PullRequestHoldService.java`, `ManyPullRequest.java`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, TypeAlias

import msgspec
from attrs import define, field

from longpoll_broker.hold.deadlines import Deadlines
from longpoll_broker.shared.filter.filters import Filter

Key = tuple[str, int]
"""Topic and queue id: what a bucket is for."""
Cause: TypeAlias = Literal["immediate", "woken", "expired", "thrown", "busy", "stopped", "error"]
"""Why a pull is answered, as a history tells it; a `busy`, a `thrown` or a `stopped` one is not run again."""
Choose: TypeAlias = "Callable[[Iterable[Pull]], tuple[list[Pull], list[Pull]]]"
"""Divides a bucket's pulls: those to wake, and those whose filter raised; the rest stays."""


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
    bucket: Any = None
    """The `Bucket` that it was put into, while it is held or taken."""
    unmatched_end: int = 0
    """A recheck has looked at every message from `offset` to here, and the filter wants none."""


@define(slots=True, eq=False)
class HoldLimit:
    """How many pulls may be held in all, shared by every shard. Invariant: `used` pulls are held or taken."""

    limit: int | None
    """None where there is no limit, or where it is looked at before (`is_full`) and not here."""
    guard: AbstractContextManager[Any] = field(factory=nullcontext)
    """The lock of this count, which is taken with a shard's lock held and never the other way round."""
    used: int = field(default=0, init=False)

    def take(self, count: int = 1) -> bool:
        """Room for `count` pulls; false, and nothing done, when there is less."""
        with self.guard:
            if self.limit is not None and self.used + count > self.limit:
                return False
            self.used += count
            return True

    def give(self, count: int) -> None:
        """Count `count` pulls fewer: they have left."""
        with self.guard:
            self.used -= count


class Bucket:
    """The pulls of one queue. Invariant: `known` counts those in `pulls` and those that a notifier has taken.

    Under `bucket_removal=if_empty_unsafe` a table may have lost a bucket that somebody has in hand: an orphan, whose
    pulls no notifier finds (upstream issue #10754).
    """

    __slots__ = ("key", "known", "pulls")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.known = 0
        self.pulls: dict[Pull, None] = {}


@define(slots=True, eq=False)
class HoldTable:
    """One shard of the table.

    Invariants, true between any two calls:
    - a pull is in its bucket's `pulls` exactly when its phase is HELD; unless `keeps_empty`, the table has exactly
      the buckets that know a pull;
    - `_held` and `room` count exactly the pulls that are HELD or TAKEN; `_channels` knows these, and the
      `_unsettled` ones that `wake_in_place` has let go and `settle` has not forgotten: nobody gets those any more;
    - with `own_deadlines`, `_deadlines` knows every HELD pull, and every TAKEN one that is not `spent`
      (with `one_shot`, a pull whose entry was spent while TAKEN comes back without one: RocketMQ-like designs lose
      such a deadline, ours must not), and perhaps unsettled ones.
    """

    own_deadlines: bool = True
    one_shot: bool = False
    room: HoldLimit | None = None
    """Shared by the shards of one table; None is room without end."""
    queue_limit: int | None = None
    """Most pulls of one queue that are held or taken."""
    channel_limit: int | None = None
    """Most pulls of one connection that are held or taken."""
    keeps_empty: bool = False
    """Empty buckets stay until `remove_bucket`, as RocketMQ's do; a scan visits them too."""
    _buckets: dict[Key, Bucket] = field(factory=dict, init=False)
    _channels: dict[Hashable, dict[Pull, None]] = field(factory=dict, init=False)
    _deadlines: Deadlines[Pull] = field(factory=Deadlines, init=False)
    _held: int = field(default=0, init=False)
    _unsettled: int = field(default=0, init=False)

    def __len__(self) -> int:
        """How many pulls are held or taken by a notifier."""
        return self._held

    def has(self, key: Key) -> bool:
        """Whether the bucket holds anything; exact under the lock, a hint without it."""
        bucket = self._buckets.get(key)
        return bucket is not None and bool(bucket.pulls)

    def keys(self) -> list[Key]:
        """The buckets that there are now."""
        return list(self._buckets)

    def held(self, key: Key) -> list[Pull]:
        """The pulls that a bucket holds now."""
        bucket = self._buckets.get(key)
        return list(bucket.pulls) if bucket is not None else []

    @property
    def has_deadlines(self) -> bool:
        """Whether `deadline_next_ms` may be other than None; may be asked without the lock, as nothing else here."""
        return self._deadlines.may_have_items

    def deadline_next_ms(self) -> int | None:
        """When `expire` is next needed; None when no deadline is armed."""
        return self._deadlines.next_ms()

    # -- hold, take, keep: the law's actions of the same names ------------------------------------------------------

    def find_bucket(self, key: Key) -> Bucket:
        """The bucket of a queue, made if need be: `suspendPullRequest` looks it up before it puts a pull in."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(key)
        return bucket

    def remove_bucket(self, key: Key) -> None:
        """Remove a bucket whatever is in it; who asked before whether it is empty may have asked too early."""
        assert self.keeps_empty
        self._buckets.pop(key, None)

    def hold(self, pull: Pull, bucket: Bucket | None = None) -> bool:
        """Insert a pull that missed; false, and nothing done, when a limit forbids one more.

        A `bucket` that was found before is used although the table may have lost it.
        """
        assert pull.phase is MISSED
        if self._is_full_of(pull.channel):
            return False
        if bucket is None:
            bucket = self._buckets.get((pull.topic, pull.queue_id))
        if bucket is not None and self.queue_limit is not None and bucket.known >= self.queue_limit:
            return False
        if self.room is not None and not self.room.take():
            return False
        if bucket is None:
            key = (pull.topic, pull.queue_id)
            bucket = self._buckets[key] = Bucket(key)
        self._insert(pull, bucket)
        return True

    def hold_together(self, pulls: Sequence[Pull]) -> int:
        """Insert pulls that missed and for which `room` was taken; how many a queue's limit keeps out.

        Those stay as they are.
        """
        limit, left_out = self.queue_limit, 0
        for pull in pulls:
            assert pull.phase is MISSED
            if self._is_full_of(pull.channel):
                left_out += 1
                continue
            key = (pull.topic, pull.queue_id)
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = Bucket(key)
            elif limit is not None and bucket.known >= limit:
                left_out += 1
                continue
            self._insert(pull, bucket)
        return left_out

    def _is_full_of(self, channel: Hashable) -> bool:
        """Whether a connection has its share of the table."""
        return self.channel_limit is not None and len(self._channels.get(channel, ())) >= self.channel_limit

    def _insert(self, pull: Pull, bucket: Bucket) -> None:
        """Put in a pull for which room was taken."""
        bucket.known += 1
        bucket.pulls[pull] = None
        pull.bucket = bucket
        pull.phase = HELD
        channel = self._channels.get(pull.channel)
        if channel is None:
            channel = self._channels[pull.channel] = {}
        channel[pull] = None
        self._held += 1
        if self.own_deadlines:
            self._deadlines.add(pull, pull.deadline_ms)

    def take(self, key: Key) -> list[Pull]:
        """Clone and clear: the bucket's pulls, in the order held, now the caller's to wake or keep."""
        bucket = self._buckets.get(key)
        if bucket is None:
            return []
        taken, bucket.pulls = bucket.pulls, {}
        for pull in taken:
            pull.phase = TAKEN
        return list(taken)

    def keep(self, pulls: Iterable[Pull]) -> list[Pull]:
        """Put back what was taken and not woken; a pull whose channel closed meanwhile stays out. The ones put back."""
        kept = []
        for pull in pulls:
            if pull.phase is not TAKEN:
                assert pull.phase is ANSWERED
                continue
            pull.bucket.pulls[pull] = None
            pull.phase = HELD
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
        self._forget([pull])
        pull.phase = QUEUED
        return True

    def wake_in_place(self, key: Key, choose: Choose) -> tuple[list[Pull], list[Pull]]:
        """Go through a bucket under the lock: (pulls to run, pulls for which the filter raised), both let go.

        They are in no bucket and counted nowhere then; the caller calls `settle` in the end.
        """
        bucket = self._buckets.get(key)
        if bucket is None:
            return [], []
        woken, thrown = choose(bucket.pulls)
        gone = [*woken, *thrown] if thrown else woken
        if not gone:
            return [], []
        if len(gone) == len(bucket.pulls):
            bucket.pulls = {}
        else:
            for pull in gone:
                del bucket.pulls[pull]
        for pull in gone:
            pull.phase = QUEUED
        bucket.known -= len(gone)
        if not bucket.known and not self.keeps_empty:
            del self._buckets[key]
        self._leave(len(gone))
        self._unsettled += len(gone)
        return woken, thrown

    def settle(self, pulls: Sequence[Pull]) -> None:
        """Forget pulls that `wake_in_place` has let go: they may have been answered meanwhile, before this was done."""
        self._unsettled -= len(pulls)
        self._unlink(pulls)

    # -- recheck, expire, drop, stop --------------------------------------------------------------------------------

    def recheck(self, pull: Pull) -> bool:
        """Take a pull out to run it, for a recheck has found something that it wants.

        False, and nothing done, if a notifier or an answer was first.
        """
        if pull.phase is not HELD:
            return False
        self._remove([pull])
        return True

    def expire(self, now_ms: int, count_max: int | None = None) -> list[Pull]:
        """Take out the held pulls whose deadline has come; one that a notifier has taken is marked `spent`.

        At most `count_max` deadlines are looked at; the others stay armed, and are due at once.
        """
        late: list[Pull] = []
        for pull in self._deadlines.pop_due(now_ms, count_max):
            if pull.phase is HELD:
                late.append(pull)
            elif pull.phase is TAKEN:
                pull.spent = True
            else:
                assert self._unsettled
        self._remove(late)
        return late

    def drop_channel(self, channel: Hashable) -> list[Pull]:
        """Forget every pull of a closed channel, also those that a notifier has taken."""
        known = self._channels.get(channel, ())
        held = [pull for pull in known if pull.phase is HELD]
        taken = [pull for pull in known if pull.phase is TAKEN]
        self._remove(held)
        self._forget(taken)
        dropped = held + taken
        for pull in dropped:
            pull.phase = ANSWERED
        return dropped

    def drain(self, topic: str | None = None) -> list[Pull]:
        """Take out every held pull, of one topic or of all.

        Those that a notifier has taken are its own to keep, and drained after that.
        """
        held = [
            pull for key, bucket in self._buckets.items() if topic is None or key[0] == topic for pull in bucket.pulls
        ]
        self._remove(held)
        return held

    def assert_tidy(self, *, settled: bool = True) -> None:
        """Check the invariants of the class, and unless told otherwise that nothing is left to settle; for tests."""
        assert not (settled and self._unsettled)
        linked = {pull for pulls in self._channels.values() for pull in pulls}
        known = {pull for pull in linked if pull.phase in {HELD, TAKEN}}
        assert len(linked - known) == self._unsettled
        buckets = {pull.bucket for pull in known}
        held = {pull for bucket in buckets for pull in bucket.pulls}
        if not self.keeps_empty:
            assert buckets == set(self._buckets.values())
        assert all(bucket.known for bucket in buckets)
        assert sum(bucket.known for bucket in buckets) == self._held
        assert all(self._channels.values())
        assert all(pull.phase is HELD for pull in held)
        assert held <= known
        assert all(pull.phase is TAKEN for pull in known - held)
        assert len(known) == self._held
        armed = set(self._deadlines)
        assert armed <= linked
        assert not self.own_deadlines or self.one_shot or {p for p in known if not p.spent} <= armed

    # -- the parts --------------------------------------------------------------------------------------------------

    def _remove(self, pulls: Sequence[Pull]) -> None:
        """Take held pulls out to run them."""
        for pull in pulls:
            del pull.bucket.pulls[pull]
            pull.phase = QUEUED
        self._forget(pulls)

    def _forget(self, pulls: Sequence[Pull]) -> None:
        """Let go of pulls that were held or taken: of their places, their channels and their deadlines."""
        for pull in pulls:
            bucket = pull.bucket
            bucket.known -= 1
            if not bucket.known and not self.keeps_empty:
                del self._buckets[bucket.key]
        self._leave(len(pulls))
        self._unlink(pulls)

    def _leave(self, count: int) -> None:
        """Count `count` pulls of the table as neither held nor taken any more."""
        self._held -= count
        if self.room is not None:
            self.room.give(count)

    def _unlink(self, pulls: Sequence[Pull]) -> None:
        """Take pulls from their channels and deadlines."""
        channels, own_deadlines, disarm = self._channels, self.own_deadlines, self._deadlines.remove
        for pull in pulls:
            pull.bucket = None
            channel = channels[pull.channel]
            del channel[pull]
            if not channel:
                del channels[pull.channel]
            if own_deadlines:
                disarm(pull, pull.deadline_ms)
