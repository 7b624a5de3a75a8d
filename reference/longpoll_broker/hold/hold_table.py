"""The hold table: pulls that found no message and wait for a message or for their deadline.

A `HoldTable` is one shard of the broker's table. Each public method is one critical section of the specification:
threads call it with the shard's lock held. Time is an argument (milliseconds of a monotonic clock), so tests use
virtual time.

Arrivals: see `hold.notifier`. Answers: see `hold.pull`. Locks: see `hold.hold_service`.

Sources: `PullRequestHoldService.java`, `ManyPullRequest.java`.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from attrs import define, field

from longpoll_broker.shared.filters import Filter, TagFilter
from longpoll_broker.shared.quota import SHARE_MIN, Quota
from longpoll_broker.shared.subscription import SUBSCRIPTION_COST, SUBSCRIPTION_SIZE_MAX, SUBSCRIPTION_UNIT

Item = TypeVar("Item")


class Deadlines(Generic[Item]):
    """A set of items ordered by deadline, ms.

    Invariants: every value of `_due` is non-empty, and every key of `_due` is in `_heap` at least once. A millisecond
    without items stays in the heap until it reaches the top or the heap is pruned.
    """

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        # The heap contains times instead of items, because many pulls share a millisecond. An answered pull is deleted
        # from a dictionary in one step, while removing it from a heap of pulls would need a search.
        self._due: dict[int, dict[Item, None]] = {}
        self._heap: list[int] = []

    def add(self, item: Item, deadline_ms: int) -> None:
        """Arm one item."""
        items = self._due.get(deadline_ms)
        if items is None:
            items = self._due[deadline_ms] = {}
            heapq.heappush(self._heap, deadline_ms)
        items[item] = None

    def remove(self, item: Item, deadline_ms: int) -> None:
        """Disarm one item; does nothing if the item is not armed for `deadline_ms`."""
        items = self._due.get(deadline_ms)
        if items is None:
            return
        items.pop(item, None)
        if not items:
            del self._due[deadline_ms]
            # As in trio, outdated times may stay in the heap until they outnumber the current ones, because an earlier
            # prune would cost more than it gains.
            if len(self._heap) > 2 * len(self._due) + 1000:
                self._heap = list(self._due)
                heapq.heapify(self._heap)

    @property
    def may_have_items(self) -> bool:
        """Whether an item is armed or was armed recently. The property is a single read, so it needs no lock."""
        return bool(self._heap)

    def next_ms(self) -> int | None:
        """Returns the earliest armed time, or None if no item is armed."""
        while self._heap and self._heap[0] not in self._due:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def pop_due(self, now_ms: int, count_max: int | None = None) -> list[Item]:
        """Disarm and return at most `count_max` items whose time is `now_ms` or before, earliest first."""
        due: list[Item] = []
        while self._heap and self._heap[0] <= now_ms:
            items = self._due.get(self._heap[0], {})
            left = len(items) if count_max is None else count_max - len(due)
            if len(items) > left:
                due.extend(islice(items, left))
                for item in due[len(due) - left :]:
                    del items[item]
                break
            due.extend(self._due.pop(heapq.heappop(self._heap), ()))
        return due

    def __iter__(self) -> Iterator[Item]:
        return (item for items in self._due.values() for item in items)

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))


Key = tuple[str, int]
"""Topic and queue id: the key of a bucket."""
Cause: TypeAlias = Literal["immediate", "woken", "expired", "thrown", "busy", "stopped", "error"]
"""Why a pull is answered, as recorded in a history. A pull with the cause `busy`, `thrown` or `stopped` is not run
again."""
Choose: TypeAlias = "Callable[[Collection[Pull]], tuple[list[Pull], list[Pull]]]"
"""Returns the pulls of a bucket to wake, and the pulls whose filter raised; all other pulls stay."""


SMALL_TABLE: Final = 1000
"""A connection may always hold this many pulls per shard. A limit of at most this size has no reserve (`SMALL_PART`).
"""
SMALL_PART: Final = 8
"""One eighth of a limit above `SMALL_TABLE` is reserved for channels with few pulls."""
SHORT_SIZE_MAX: Final = 32
"""A subscription text of up to this many characters does not count towards the limit on texts."""


class Phase(enum.IntEnum):
    """The phase of a pull, named as in the specification."""

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
    """One pull from decoding to answer. A broker may hold a hundred thousand pulls, so the object stays small.

    `gc=False` excludes pulls from garbage collection. Only `channel` could close a reference cycle, and a table forgets
    a channel's pulls when the channel closes.
    """

    channel: Hashable
    """The connection that gets the answer. The table only compares and hashes it."""
    opaque: int
    """The request's number on its channel."""
    group: str
    topic: str
    queue_id: int
    offset: int
    """The first queue offset that the pull asks for."""
    count_max: int
    sys_flag: int
    commit_offset: int = 0
    timeout_ms: int = 0
    """How long the broker may hold the pull, ms."""
    subscription: str | None = None
    expression_type: str | None = None
    sub_version: int = 0
    serialize: int = 0
    """Serialisation of the request's header: 0 JSON, 1 ROCKETMQ."""
    flag: int = 0
    """The request's command flag."""
    number: int = 0
    """The request's number in the recorded history."""
    deadline_ms: int = 0
    """Time of receipt plus `timeout_ms`."""
    filter: Filter | None = None
    """The pull's filter; set when a read found no message."""
    phase: Phase = PULLING
    spent: bool = False
    """Whether the deadline passed while a notifier had taken the pull."""
    bucket: Any = None
    """The pull's `Bucket` while it is held or taken."""
    unmatched_end: int = 0
    """A recheck found that the filter matches no message between `offset` and this offset."""


@define(slots=True, eq=False)
class HoldLimit:
    """The limit on held pulls, shared by all shards. Invariant: `used` is the number of held or taken pulls."""

    limit: int | None
    """None if there is no limit, or if `HoldService.hold` checks the limit earlier."""
    guard: AbstractContextManager[Any] = field(factory=nullcontext)
    """Protects `used`; always acquired after a shard's lock, never before."""
    used: int = field(default=0, init=False)
    texts: Quota = field(
        factory=lambda: Quota("characters of held pulls", SUBSCRIPTION_SIZE_MAX, SUBSCRIPTION_UNIT), init=False
    )

    def take_texts(self, pull: Pull) -> bool:
        """Reserve room for a pull's subscription text until `give_texts`; returns false if there is not enough room."""
        size = len(pull.subscription or "") + len(pull.expression_type or "")
        if size <= SHORT_SIZE_MAX:
            return True
        if isinstance(pull.filter, TagFilter):
            size += SUBSCRIPTION_COST * len(pull.filter.codes)
        with self.guard:
            return self.texts.take(pull, pull.channel, size)

    def give_texts(self, pulls: Iterable[Pull]) -> None:
        """Release the room that `take_texts` reserved for these pulls."""
        with self.guard:
            for pull in pulls:
                self.texts.release(pull)

    def take(self, count: int = 1) -> bool:
        """Reserve room for `count` pulls; returns false and changes nothing if there is not enough room."""
        with self.guard:
            if self.limit is not None and self.used + count > self.limit:
                return False
            self.used += count
            return True

    def give(self, count: int) -> None:
        """Release the room of `count` pulls."""
        with self.guard:
            self.used -= count


class Bucket:
    """The pulls of one queue. Invariant: `known` counts the pulls in `pulls` and the pulls that a notifier has taken.

    Under `bucket_removal=if_empty_unsafe` a bucket may be removed while a thread still uses it. A bucket removed in
    this way is an orphan: no notifier finds its pulls (upstream issue #10754).
    """

    __slots__ = ("key", "known", "pulls")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.known = 0
        self.pulls: dict[Pull, None] = {}


def _room(limit: int, count: int) -> int:
    # Without this reserve, one client with many pulls could fill the table, and a new client could not hold even one
    # pull.
    return limit if count < SHARE_MIN or limit <= SMALL_TABLE else limit - limit // SMALL_PART


@define(slots=True, eq=False)
class HoldTable:
    """One shard of the table.

    Invariants between any two calls:

    - A pull is in its bucket's `pulls` exactly when its phase is HELD.
    - Unless `keeps_empty`, the table has exactly the buckets with held or taken pulls.
    - `_held` and `hold_limit` count exactly the pulls that are HELD or TAKEN.
    - `_channels` has the pulls that are HELD or TAKEN. Between `wake_in_place` and `settle` it also has the
      `_unsettled` pulls.
    - With `own_deadlines`, `_deadlines` has every HELD pull and every TAKEN pull that is not `spent`, and
      possibly unsettled pulls.
    - With `one_shot`, a pull whose deadline passed while it was TAKEN is put back without a deadline, as in designs
      like RocketMQ's. Without `one_shot`, the deadline is armed again.
    """

    own_deadlines: bool = True
    one_shot: bool = False
    hold_limit: HoldLimit | None = None
    """The limit that all shards of one table share; None means no limit."""
    queue_limit: int | None = None
    """Maximum held and taken pulls of one queue."""
    channel_limit: int | None = None
    """Maximum held and taken pulls of one connection."""
    keeps_empty: bool = False
    """Whether empty buckets stay until `remove_bucket`, as in RocketMQ; a scan also visits empty buckets."""
    _buckets: dict[Key, Bucket] = field(factory=dict, init=False)
    _channels: dict[Hashable, dict[Pull, None]] = field(factory=dict, init=False)
    _deadlines: Deadlines[Pull] = field(factory=Deadlines, init=False)
    _held: int = field(default=0, init=False)
    _unsettled: int = field(default=0, init=False)

    def __len__(self) -> int:
        """Returns the number of pulls that are held or taken."""
        return self._held

    def has(self, key: Key) -> bool:
        """Whether the bucket holds any pull. The result is exact under the lock, and a hint without it."""
        bucket = self._buckets.get(key)
        return bucket is not None and bool(bucket.pulls)

    def keys(self) -> list[Key]:
        """Returns the keys of all buckets."""
        return list(self._buckets)

    def held(self, key: Key) -> list[Pull]:
        """Returns the pulls that a bucket holds."""
        bucket = self._buckets.get(key)
        return list(bucket.pulls) if bucket is not None else []

    @property
    def has_deadlines(self) -> bool:
        """Whether `deadline_next_ms` may return a deadline. This check is a single read, so it needs no lock."""
        return self._deadlines.may_have_items

    def deadline_next_ms(self) -> int | None:
        """Returns the time of the next deadline, or None if no deadline is armed."""
        return self._deadlines.next_ms()

    # -- hold, take, keep: the specification's actions of the same names --------------------------------------------

    def find_bucket(self, key: Key) -> Bucket:
        """Find or create the bucket of a queue, as `suspendPullRequest` does before it inserts a pull."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(key)
        return bucket

    def remove_bucket(self, key: Key) -> None:
        """Remove a bucket even if it holds pulls, because the caller's check that it is empty may be outdated."""
        assert self.keeps_empty
        self._buckets.pop(key, None)

    def hold(self, pull: Pull, bucket: Bucket | None = None) -> bool:
        """Insert a pull that found no message; returns false and changes nothing if a limit is reached.

        If `bucket` is given, the pull is inserted there even if the table has removed that bucket.
        """
        assert pull.phase is MISSED
        if bucket is None:
            bucket = self._buckets.get((pull.topic, pull.queue_id))
        if self._is_full_of(pull.channel, 0 if bucket is None else bucket.known):
            return False
        if self.hold_limit is not None and not self._reserve(pull, self.hold_limit):
            return False
        if bucket is None:
            key = (pull.topic, pull.queue_id)
            bucket = self._buckets[key] = Bucket(key)
        self._insert(pull, bucket)
        return True

    def _reserve(self, pull: Pull, hold_limit: HoldLimit) -> bool:
        if not hold_limit.take():
            return False
        if self.channel_limit is None or hold_limit.take_texts(pull):
            return True
        hold_limit.give(1)
        return False

    def _is_full_of(self, channel: Hashable, known: int) -> bool:
        """Whether a limit forbids one more pull of this channel, in a queue with `known` pulls.

        The last eighth of a large table, and of a large queue, is reserved for channels with few pulls. The pulls of
        one address are not limited in number, only in the total length of their subscriptions (`HoldLimit`).
        """
        count = len(self._channels.get(channel, ()))
        if self.channel_limit is not None and count >= self.channel_limit:
            return True
        if self.queue_limit is not None and known >= _room(self.queue_limit, count):
            return True
        in_all = self.hold_limit
        return in_all is not None and in_all.limit is not None and in_all.used >= _room(in_all.limit, count)

    def _insert(self, pull: Pull, bucket: Bucket) -> None:
        """Insert a pull for which the limit has reserved room."""
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
        """Take the bucket's pulls (clone and clear), in the order held. The caller must then wake or keep each pull."""
        bucket = self._buckets.get(key)
        if bucket is None:
            return []
        # New pulls go into the new dictionary, and `keep` later appends the pulls of `taken` after these new pulls, as
        # in RocketMQ. Between `take` and `keep` no other notifier finds the pulls of `taken`: this is the race of
        # finding (b).
        taken, bucket.pulls = bucket.pulls, {}
        for pull in taken:
            pull.phase = TAKEN
        return list(taken)

    def keep(self, pulls: Iterable[Pull]) -> list[Pull]:
        """Put back pulls from `take`, except pulls whose channel has closed since; returns the pulls put back."""
        kept = []
        for pull in pulls:
            if pull.phase is not TAKEN:
                # `drop_channel` ran between take and keep. Do not put back a pull of a closed channel, because it would
                # stay held until its deadline.
                assert pull.phase is ANSWERED
                continue
            pull.bucket.pulls[pull] = None
            pull.phase = HELD
            kept.append(pull)
            if pull.spent and not self.one_shot:
                # The deadline passed while the pull was taken, so arm it again: it is due at once.
                pull.spent = False
                self._deadlines.add(pull, pull.deadline_ms)
        return kept

    def queue_taken(self, pull: Pull) -> bool:
        """Mark a taken pull as queued to run; returns false if its channel has closed since the take."""
        if pull.phase is not TAKEN:
            return False
        self._forget([pull])
        pull.phase = QUEUED
        return True

    def wake_in_place(self, key: Key, choose: Choose) -> tuple[list[Pull], list[Pull]]:
        """Remove the pulls that `choose` selects; returns the pulls to run, and the pulls whose filter raised.

        The removed pulls no longer count as held. The caller must call `settle` afterwards.
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
        # `settle` updates channels and deadlines after the answers, because for a large herd this bookkeeping takes
        # longer than the removal and would delay the first answer.
        self._unsettled += len(gone)
        return woken, thrown

    def settle(self, pulls: Sequence[Pull]) -> None:
        """Remove the pulls of a `wake_in_place` from channels and deadlines; the pulls may be answered already."""
        self._unsettled -= len(pulls)
        self._unlink(pulls)

    # -- recheck, expire, drop, stop --------------------------------------------------------------------------------

    def recheck(self, pull: Pull) -> bool:
        """Remove a pull because a recheck found a message for it.

        Returns false and changes nothing if a notifier or a deadline has removed the pull before.
        """
        if pull.phase is not HELD:
            return False
        self._remove([pull])
        return True

    def expire(self, now_ms: int, count_max: int | None = None) -> list[Pull]:
        """Remove the held pulls whose deadline has passed, and mark taken pulls whose deadline has passed as `spent`.

        Handles at most `count_max` deadlines; the other deadlines stay armed and due.
        """
        late: list[Pull] = []
        for pull in self._deadlines.pop_due(now_ms, count_max):
            if pull.phase is HELD:
                late.append(pull)
            elif pull.phase is TAKEN:
                # The notifier may put the pull back, and its deadline is no longer armed, so `keep` must notice that
                # the pull is due.
                pull.spent = True
            else:
                assert self._unsettled
        self._remove(late)
        return late

    def drop_channel(self, channel: Hashable, count_max: int | None = None) -> list[Pull]:
        """Remove at most `count_max` pulls of a closed channel, including taken ones."""
        known = (pull for pull in self._channels.get(channel, ()) if pull.phase in {HELD, TAKEN})
        mine = list(islice(known, count_max))
        held = [pull for pull in mine if pull.phase is HELD]
        taken = [pull for pull in mine if pull.phase is TAKEN]
        self._remove(held)
        self._forget(taken)
        dropped = held + taken
        for pull in dropped:
            pull.phase = ANSWERED
        return dropped

    def drain(self, topic: str | None = None, count_max: int | None = None) -> list[Pull]:
        """Remove at most `count_max` held pulls, of one topic or of all. Taken pulls stay with their notifier."""
        buckets = (bucket for key, bucket in self._buckets.items() if topic in {None, key[0]})
        held = list(islice((pull for bucket in buckets for pull in bucket.pulls), count_max))
        self._remove(held)
        return held

    def assert_tidy(self, *, settled: bool = True) -> None:
        """Check the class invariants; with `settled`, also that every removed pull was settled. For tests."""
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

    # -- internal helpers -------------------------------------------------------------------------------------------

    def _remove(self, pulls: Sequence[Pull]) -> None:
        for pull in pulls:
            del pull.bucket.pulls[pull]
            pull.phase = QUEUED
        self._forget(pulls)

    def _forget(self, pulls: Sequence[Pull]) -> None:
        """Remove pulls that were held or taken from buckets, channels and deadlines."""
        for pull in pulls:
            bucket = pull.bucket
            bucket.known -= 1
            if not bucket.known and not self.keeps_empty:
                del self._buckets[bucket.key]
        self._leave(len(pulls))
        self._unlink(pulls)

    def _leave(self, count: int) -> None:
        self._held -= count
        if self.hold_limit is not None:
            self.hold_limit.give(count)

    def _unlink(self, pulls: Sequence[Pull]) -> None:
        if self.hold_limit is not None and self.hold_limit.texts.used:
            self.hold_limit.give_texts(pulls)
        channels, own_deadlines, disarm = self._channels, self.own_deadlines, self._deadlines.remove
        for pull in pulls:
            pull.bucket = None
            channel = channels[pull.channel]
            del channel[pull]
            if not channel:
                del channels[pull.channel]
            if own_deadlines:
                disarm(pull, pull.deadline_ms)
