"""The hold service: a hold table in shards, each with a lock, and the notifiers, scanner and dispatcher that use it.

Any thread may call the hold service. The policy's knobs select the critical sections that a thread runs. Between two
critical sections there is a scheduling point, which is named after an action of the specification. How a pull is run:
see `hold.pull_processor`.

Under `notify=at_append`, `BrokerHandler.end_pass` calls `DispatchService.appended` after a pass's sends and before
their answers. Under `notify=dispatcher_poll`, one thread polls every millisecond, as `ReputMessageService` does, so a
message waits half a millisecond on average before it wakes a pull.

Sources: `PullRequestHoldService.java`; upstream issue #7358 for the recheck.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol
from zlib import crc32

from attrs import define, field, frozen

from longpoll_broker.hold.hold_table import (
    HELD,
    MISSED,
    QUEUED,
    SMALL_TABLE,
    Bucket,
    Cause,
    HoldLimit,
    HoldTable,
    Key,
    Pull,
)
from longpoll_broker.hold.notifier import BucketTraversal
from longpoll_broker.hold.pull import FLAG_SUBSCRIPTION, Refused, Store, wants_visible
from longpoll_broker.io.channel import FLUSH_COUNT, Channel, Outbox
from longpoll_broker.shared.filters import Filter
from longpoll_broker.shared.quota import CONNECTION_PART
from longpoll_broker.shared.sql92 import Lookup
from longpoll_broker.store.message_store import LOG, MessageStore
from longpoll_broker.store.messages import Arrival, GetResult
from longpoll_runtime import Lock, Runtime, Thread
from longpoll_runtime.recoverable import FAULTS, KeepGoing
from longpoll_runtime.services import ServiceThread
from longpoll_spec.policy import Policy

log = logging.getLogger(__name__)

SHARD_COUNT: Final = 8
"""Number of shards of the hold table. The hash of a queue selects its shard."""
DROPPED_COUNT: Final = 10_000
"""Maximum number of a closed connection's pulls that one pass of the I/O loop removes, which takes about 7 ms."""
EXPIRED_COUNT: Final = 2_000
"""Maximum number of pulls that expire in one call of `run`, or that one pass of the I/O loop answers after a topic's
deletion; takes 20 ms."""
RESUBSCRIBED_COUNT: Final = 200
"""Maximum number of held pulls that get a new filter in one pass of the I/O loop, which takes about 2 ms."""
LATER_MAX: Final = 16
"""Maximum number of unfinished traversals and subscription changes that later passes of the I/O loop continue."""
HERD_PART: Final = FLUSH_COUNT
"""Size of the second batch of a large herd. The first batch has one pull; later batches double in size."""
HERD_PART_MAX: Final = 128
"""Maximum size of one batch of a large herd."""


class PullEvents:
    """The interface of a history recorder; this base class records nothing.

    `after_ns` is a value of `now_ns` that was read before the event.
    """

    __slots__ = ()

    def now_ns(self) -> int:
        """Returns the recorder's time; 0 if nothing is recorded."""
        return 0

    def received(self, pull: Pull, received_ns: int, wanted: Filter | Refused, commit_offset: int) -> None:
        """Record a pull's arrival, with the filter or refusal from the checks.

        `commit_offset` is -1 if the pull commits no offset.
        """

    def record(self, event: str, pulls: Iterable[Pull], after_ns: int, visible_end: int | None = None) -> None:
        """Record one event for each pull.

        The events of a held pull are `hold`, `recheck`, `take`, `keep`, `expire` and `stop`, and `run` when the pull is
        run again.
        """

    def answered(self, pull: Pull, code: int, read: GetResult | None, cause: Cause, outbox: Outbox) -> None:
        """Record that an answer is about to be queued. `read` is the store's result, or None for a refusal."""

    def made_visible(self, arrivals: Iterable[Arrival], after_ns: int) -> None:
        """Record that these messages became visible."""

    def visible_from_start(self, ends: Iterable[tuple[str, int, int]]) -> None:
        """Record each queue's visible end, as (topic, queue id, visible end), before the broker serves requests."""


@frozen
class TraversalPoints:
    """The names of a bucket traversal's scheduling points, from the specification."""

    start: str
    each: str
    end: str


NOTIFY: Final = TraversalPoints("notify_start", "notify_each", "notify_end")
SCAN: Final = TraversalPoints("scan_start", "scan_each", "scan_end")
RECHECK: Final = TraversalPoints("walk_start", "walk_each", "walk_end")


class Executor(Protocol):
    """Runs pulls that have left the hold table."""

    def submit(self, pull: Pull, cause: Cause, outbox: Outbox) -> bool:
        """Run the pull now or soon; returns false if the executor rejects it."""
        ...

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Run the pulls that one message woke, in order; returns those that the executor rejects."""
        ...


class QueueEnds(Store, Protocol):
    """The part of the store that a notifier reads."""

    def visible_end(self, topic: str, queue_id: int) -> int:
        """Returns the queue's visible end."""
        ...

    def properties_at(self, topic: str, queue_id: int, offset: int) -> Lookup | None:
        """Returns the properties of the message at a queue offset, or None if the store has no such message."""
        ...


def shard_of(topic: str, queue_id: int, count: int = SHARD_COUNT) -> int:
    """Returns the index of a queue's shard, the same in every process, so that another process can replay a run."""
    return (crc32(topic.encode()) + queue_id) % count


@frozen(eq=False)
class Shard:
    """One shard of the hold table, with its lock."""

    lock: Lock
    table: HoldTable


class HoldService:
    """Holds pulls, and releases them on an arrival, a scan, a deadline, a closed connection or shutdown."""

    def __init__(
        self,
        runtime: Runtime,
        policy: Policy,
        ends: QueueEnds,
        executor: Executor,
        *,
        refuse: Callable[[Pull, Cause, Outbox], None],
        held_count_max: int,
        queue_held_count_max: int | None = None,
        shard_count: int = SHARD_COUNT,
        events: PullEvents | None = None,
    ) -> None:
        self._runtime = runtime
        self._policy = policy
        self._ends = ends
        self._executor = executor
        self._refuse = refuse
        self._held_count_max = held_count_max
        self._hold_limit = HoldLimit(held_count_max if policy.hold_limit == "in_lock" else None, runtime.lock())
        self._events = events or PullEvents()
        self._stopping = False
        own_deadlines = policy.expiry == "own_deadline"
        one_shot = policy.heap_entry == "one_shot"
        # One connection may use only a part of the table and of each queue, so that other connections can hold pulls
        # too.
        limit_max = min(queue_held_count_max or held_count_max, held_count_max // shard_count)
        connection_limit = max(limit_max // CONNECTION_PART, SMALL_TABLE)
        self._shards = tuple(
            Shard(
                runtime.lock(),
                HoldTable(
                    own_deadlines=own_deadlines,
                    one_shot=one_shot,
                    hold_limit=self._hold_limit,
                    queue_limit=queue_held_count_max if policy.hold_limit == "in_lock" else None,
                    channel_limit=connection_limit if policy.hold_limit == "in_lock" else None,
                    keeps_empty=policy.bucket_removal != "rechecked_under_lock",
                ),
            )
            for _ in range(shard_count)
        )
        self._wake_clock: Callable[[], None] | None = None
        self._clock_outbox: Outbox | None = None
        self._clock_sleeps_until_ms: float = float("inf")
        self._expire_first = 0
        """Index of the shard whose deadlines `run` checks first."""
        self._later: deque[Callable[[Outbox], object]] = deque()
        """The unfinished parts of long work, which later passes continue."""
        self.texts = self._hold_limit.texts

    def __len__(self) -> int:
        """Returns the number of pulls that are held or taken."""
        return self._hold_limit.used

    @property
    def has_more(self) -> bool:
        """Returns whether unfinished work waits for a later pass of the I/O loop."""
        return bool(self._later)

    def now_ms(self) -> int:
        """Returns the time, ms, of the clock on which deadlines are based."""
        return self._runtime.monotonic_ns() // 1_000_000

    def assert_tidy(self, *, settled: bool = True) -> None:
        """Check every shard's invariants; with `settled`, also that no removed pull still waits for `settle`."""
        for shard in self._shards:
            with shard.lock:
                shard.table.assert_tidy(settled=settled)

    # -- hold and recheck --------------------------------------------------------------------------------------------

    def hold(self, pull: Pull, outbox: Outbox) -> None:
        """Hold a pull that found no message, or run it at once if the recheck finds a message for it."""
        policy = self._policy
        key = (pull.topic, pull.queue_id)
        shard = self._shards[shard_of(*key, len(self._shards))]
        pull.phase = MISSED
        if policy.hold_limit == "at_read" and len(self) >= self._held_count_max:
            pull.phase = QUEUED
            self._queue(pull, "busy", outbox)
            return
        bucket = self._find_bucket(shard, key) if policy.bucket_removal == "if_empty_unsafe" else None
        if policy.recheck_after_hold == "before_lock" and self._has_news(pull):
            pull.phase = QUEUED
            self._queue(pull, "woken", outbox)
            return
        after_ns = self._events.now_ns()
        self._runtime.step("hold")
        # Queue the answer outside the lock, because queueing it may run the pull again, which takes time and other
        # locks.
        with shard.lock:
            cause = self._hold_locked(shard.table, pull, bucket)
        if cause is not None:
            pull.phase = QUEUED
            self._queue(pull, cause, outbox)
            return
        self._events.record("hold", (pull,), after_ns, pull.offset)
        # A message may have arrived between the pull's read and this insert. The message's notifier found no pull in
        # the bucket, so only a second read of the visible end, after the insert, can notice the message. (`_traverse`
        # does the same for pulls that it puts back.)
        if policy.recheck_after_hold == "after_insert":
            self._recheck(shard, pull, outbox)
        if policy.expiry == "own_deadline" and pull.phase is HELD:
            self._tell_clock(pull.deadline_ms, outbox)

    def _find_bucket(self, shard: Shard, key: Key) -> Bucket:
        """Find the bucket before the insert, in a separate critical section, as RocketMQ does."""
        self._runtime.step("find_bucket")
        with shard.lock:
            return shard.table.find_bucket(key)

    def _hold_locked(self, table: HoldTable, pull: Pull, bucket: Bucket | None) -> Cause | None:
        """Insert the pull; returns None, or the cause for answering the pull instead of holding it."""
        if self._stopping and self._policy.on_stop == "answer":
            return "stopped"
        if self._policy.recheck_after_hold == "in_lock" and self._has_news(pull):
            return "woken"
        return None if table.hold(pull, bucket) else "busy"

    def _recheck(self, shard: Shard, pull: Pull, outbox: Outbox) -> None:
        """Check the visible end again; if it has passed the pull's offset, remove the pull under the lock and run it.

        If a notifier has already taken the pull, the notifier runs it. Under `recheck=walk` this method traverses the
        whole bucket, as upstream's pull request #7359 does.
        """
        after_ns = self._events.now_ns()
        self._runtime.step("recheck")
        visible_end = self._ends.visible_end(pull.topic, pull.queue_id)
        removed = False
        walks = visible_end > pull.offset and self._policy.recheck == "walk"
        if visible_end > pull.offset and not walks:
            # A notifier may take the same pull now; the thread that gets the lock first removes and answers the pull.
            with shard.lock:
                removed = shard.table.recheck(pull)
        self._events.record("recheck", (pull,), after_ns, visible_end)
        if removed:
            self._queue(pull, "woken", outbox)
        elif walks:
            self._traverse(RECHECK, (pull.topic, pull.queue_id), visible_end, None, outbox)

    def _has_news(self, pull: Pull) -> bool:
        return self._ends.visible_end(pull.topic, pull.queue_id) > pull.offset

    # -- notifiers ---------------------------------------------------------------------------------------------------

    def notify(self, key: Key, visible_end: int, tags_code: int | None, outbox: Outbox) -> None:
        """Traverse one bucket after a message arrived. Under `on_throw=drop_rest`, an error of a filter is raised."""
        self._traverse(NOTIFY, key, visible_end, tags_code, outbox)

    def _traverse(
        self, steps: TraversalPoints, key: Key, visible_end: int, tags_code: int | None, outbox: Outbox
    ) -> None:
        """Traverse a bucket, and again for messages of any tag while the recheck after `keep` finds new ones."""
        shard = self._shards[shard_of(*key, len(self._shards))]
        again: int | None = visible_end
        while again is not None:
            # This check needs no lock: the visible end has moved already, so a pull inserted after the check finds the
            # message in its own recheck.
            if self._policy.empty_shortcut and not shard.table.has(key):
                return
            again = self._traverse_once(steps, shard, self._new_traversal(shard, key, again, tags_code), outbox)
            tags_code = None

    def _new_traversal(self, shard: Shard, key: Key, visible_end: int, tags_code: int | None) -> BucketTraversal:
        topic, queue_id = key
        return BucketTraversal(
            self._policy,
            shard.table,
            key,
            visible_end,
            tags_code,
            self.now_ms(),
            lambda: self._ends.visible_end(topic, queue_id),
            # The visible end of an arrival is the message's offset plus one, so this function reads the arriving
            # message.
            lambda: self._ends.properties_at(topic, queue_id, visible_end - 1),
        )

    def _traverse_once(
        self, steps: TraversalPoints, shard: Shard, traversal: BucketTraversal, outbox: Outbox
    ) -> int | None:
        """Traverse a bucket once; returns the visible end for another traversal, or None if none is needed."""
        again = self._traverse_part(steps, shard, traversal, outbox)
        while traversal.has_rest:
            if self._put_off(partial(self._traverse_once, steps, shard, traversal), outbox):
                break
            self._traverse_part(steps, shard, traversal, outbox)
        return again

    def _traverse_part(
        self, steps: TraversalPoints, shard: Shard, traversal: BucketTraversal, outbox: Outbox
    ) -> int | None:
        after_ns = self._events.now_ns()
        self._runtime.step(steps.start)
        with shard.lock:
            taken = traversal.start()
        self._events.record("take", taken, after_ns, traversal.visible_end)
        if not taken and self._policy.empty_shortcut:
            # Another notifier has emptied the bucket since the check, so there is nothing to put back or recheck.
            return None
        if traversal.unsettled:
            try:
                self._hand_out(steps, shard, traversal, outbox)
            finally:
                with shard.lock:
                    traversal.end()
            return None
        self._look_at_each(steps, shard, traversal, outbox)
        return self._keep(steps, shard, traversal, outbox) if self._policy.take == "clone_and_clear" else None

    def _hand_out(self, steps: TraversalPoints, shard: Shard, traversal: BucketTraversal, outbox: Outbox) -> None:
        """Run a large herd in growing batches, so that its first pull is answered at once.

        The caller settles all pulls of the herd afterwards.
        """
        count = 1
        while herd := traversal.herd(count):
            for _pull in herd:
                self._runtime.step(steps.each)
            for pull in self._executor.submit_herd(herd, outbox):
                self._reject(pull, outbox)
            if count == 1:
                outbox.flush()
            else:
                outbox.flush_busy()
            count = min(max(2 * count, HERD_PART), HERD_PART_MAX)
        self._look_at_each(steps, shard, traversal, outbox)
        outbox.flush()

    def _look_at_each(self, steps: TraversalPoints, shard: Shard, traversal: BucketTraversal, outbox: Outbox) -> None:
        while traversal.unseen:
            self._runtime.step(steps.each)
            wake = traversal.each()
            if wake is None:
                continue
            if wake.pull.phase is not QUEUED:
                with shard.lock:
                    if not shard.table.queue_taken(wake.pull):
                        continue
            self._queue(wake.pull, wake.cause, outbox)

    def _keep(self, steps: TraversalPoints, shard: Shard, traversal: BucketTraversal, outbox: Outbox) -> int | None:
        after_ns = self._events.now_ns()
        self._runtime.step(steps.end)
        with shard.lock:
            kept = traversal.end()
        self._events.record("keep", kept, after_ns, traversal.visible_end)
        if kept and self._policy.expiry == "own_deadline":
            self._tell_clock(min(pull.deadline_ms for pull in kept), outbox)
        if not self._policy.recheck_after_keep:
            return None
        self._runtime.step("recheck")
        visible_end = self._ends.visible_end(*traversal.key)
        with shard.lock:
            held = shard.table.held(traversal.key)
        return visible_end if any(wants_visible(pull, self._ends, visible_end) for pull in held) else None

    def scan(self, outbox: Outbox) -> None:
        """Traverse every bucket, as the scanner does. A filter that raises affects only its own bucket.

        Under `scan_throw=abort_round`, as in 4.9, an error of the store for one queue is raised and ends the round.
        """
        for shard in self._shards:
            with shard.lock:
                keys = shard.table.keys()
            for key in keys:
                try:
                    visible_end = self._ends.visible_end(*key)
                except FAULTS:
                    if self._policy.scan_throw == "abort_round":
                        raise
                    log.exception("the scan cannot read %s", key)
                    continue
                try:
                    self._traverse(SCAN, key, visible_end, None, outbox)
                except FAULTS:
                    log.exception("the scan of %s failed", key)
                if self._policy.bucket_removal == "if_empty_unsafe":
                    self._sweep(shard, key)

    def _sweep(self, shard: Shard, key: Key) -> None:
        """Remove a bucket that looked empty, as `LmqPullRequestHoldService` does.

        If a thread found the bucket before its removal and inserts a pull afterwards, that pull is lost.
        """
        self._runtime.step("sweep")
        with shard.lock:
            is_empty = not shard.table.has(key)
        if is_empty:
            self._runtime.step("remove_bucket")
            with shard.lock:
                shard.table.remove_bucket(key)

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def run_clock_on(self, outbox: Outbox, wake: Callable[[], None]) -> None:
        """Register the thread that calls `wait_s` and `run`, with its outbox and a function that ends its sleep."""
        self._clock_outbox = outbox
        self._wake_clock = wake

    def wait_s(self) -> float | None:
        """Returns the seconds until the next deadline, or None if no deadline is armed."""
        # From here on, a new deadline wakes the clock's thread, so the thread misses no deadline between this check and
        # its sleep.
        self._clock_sleeps_until_ms = float("inf")
        if not self._hold_limit.used:
            return None
        deadlines_ms: list[int] = []
        for shard in self._shards:
            # Most passes find no armed deadline. A deadline that is armed after this check wakes the clock's thread.
            if not shard.table.has_deadlines:
                continue
            with shard.lock:
                deadline_ms = shard.table.deadline_next_ms()
            if deadline_ms is not None:
                deadlines_ms.append(deadline_ms)
        if not deadlines_ms:
            return None
        next_ms = min(deadlines_ms)
        self._clock_sleeps_until_ms = next_ms
        return max(0.0, next_ms / 1e3 - self._runtime.monotonic_ns() / 1e9)

    def run(self, outbox: Outbox) -> None:
        """Release pulls whose deadline has passed, at most `EXPIRED_COUNT` per call.

        If more pulls are due, `wait_s` returns 0 and the next call of `run` continues with them.
        """
        if self._policy.expiry != "own_deadline":
            return
        now_ms = self.now_ms()
        if now_ms < self._clock_sleeps_until_ms:
            return
        count = 0
        shards, first = self._shards, self._expire_first
        for number in range(len(shards)):
            if count >= EXPIRED_COUNT:
                # The next call begins with this shard; otherwise calls that reach their limit would never expire pulls
                # of the last shards.
                self._expire_first = (first + number) % len(shards)
                return
            shard = shards[(first + number) % len(shards)]
            after_ns = self._events.now_ns()
            self._runtime.step("expire")
            with shard.lock:
                late = shard.table.expire(now_ms, EXPIRED_COUNT - count)
            count += len(late)
            self._events.record("expire", late, after_ns)
            for pull in late:
                self._queue(pull, "expired", outbox)

    def _tell_clock(self, deadline_ms: int, outbox: Outbox) -> None:
        if deadline_ms < self._clock_sleeps_until_ms and outbox is not self._clock_outbox and self._wake_clock:
            self._wake_clock()

    # -- channels and the end ----------------------------------------------------------------------------------------

    def drop_channel(self, channel: Channel) -> int:
        """Remove a closed channel's pulls, in several passes if there are many.

        Returns the number of pulls that were removed in this pass.
        """
        dropped = 0
        for shard in self._shards:
            with shard.lock:
                dropped += len(shard.table.drop_channel(channel, DROPPED_COUNT - dropped))
        if dropped == DROPPED_COUNT:
            self._later.append(lambda _outbox: self.drop_channel(channel))
        return dropped

    def turn(self, outbox: Outbox) -> None:
        """Continue the unfinished work that has waited longest; called at the end of each pass of the I/O loop."""
        with suppress(IndexError):
            self._later.popleft()(outbox)

    def _put_off(self, work: Callable[[Outbox], object], outbox: Outbox) -> bool:
        """Queue work for a later pass; returns false if no I/O loop runs or too much work waits already."""
        if self._wake_clock is None or len(self._later) >= LATER_MAX:
            return False
        self._later.append(work)
        if outbox is not self._clock_outbox:
            self._wake_clock()
        return True

    def topic_deleted(self, topic: str, outbox: Outbox) -> None:
        """Run a deleted topic's held pulls, so that each client gets an error. Many pulls take several passes."""
        left = EXPIRED_COUNT
        for shard in self._shards:
            with shard.lock:
                held = shard.table.drain(topic, left)
            left -= len(held)
            for pull in held:
                self._queue(pull, "error", outbox)
        if not left:
            self._later.append(partial(self.topic_deleted, topic))

    def resubscribed(self, group: str, topic: str, check: Callable[[Pull], Filter | Refused], outbox: Outbox) -> None:
        """Apply a group's changed subscription to the held pulls that brought no subscription of their own.

        A pull runs again if messages arrived that its old filter had skipped.
        """
        for shard in self._shards:
            self._resubscribed(shard, (group, topic), check, None, outbox)

    def _resubscribed(
        self,
        shard: Shard,
        subscription: tuple[str, str],
        check: Callable[[Pull], Filter | Refused],
        left: deque[Pull] | None,
        outbox: Outbox,
    ) -> None:
        """Set the new filter in the pulls of `left`, or in all held pulls if `left` is None.

        If there are many pulls, the work takes several passes.
        """
        group, topic = subscription
        while left is None or left:
            woken = []
            with shard.lock:
                if left is None:
                    known = shard.table.keys()
                    left = deque(pull for key in known if key[0] == topic for pull in shard.table.held(key))
                for _ in range(min(len(left), RESUBSCRIBED_COUNT)):
                    pull = left.popleft()
                    if pull.phase is not HELD or pull.group != group or pull.sys_flag & FLAG_SUBSCRIPTION:
                        continue
                    wanted, after_ns = check(pull), self._events.now_ns()
                    if isinstance(wanted, Refused) or self._has_news(pull):
                        shard.table.recheck(pull)
                        visible_end = self._ends.visible_end(pull.topic, pull.queue_id)
                        self._events.record("recheck", (pull,), after_ns, visible_end)
                        woken.append(pull)
                    else:
                        pull.filter = wanted
            for pull in woken:
                self._queue(pull, "woken", outbox)
            if left and self._put_off(partial(self._resubscribed, shard, subscription, check, left), outbox):
                return

    def master_returned(self, outbox: Outbox) -> None:
        """Handle the return of this slave's master: answer all pulls, wake all pulls as 5.x does, or do nothing.

        If another notifier empties a bucket between the check and the take, the method stops there, because RocketMQ's
        `notifyMasterOnline` then iterates over null and throws.
        """
        if self._policy.on_master_return == "answer":
            self._answer_all(outbox)
        elif self._policy.on_master_return == "look_then_take":
            self._wake_all(outbox)

    def _answer_all(self, outbox: Outbox) -> None:
        for shard in self._shards:
            with shard.lock:
                held = shard.table.drain()
            for pull in held:
                self._queue(pull, "stopped", outbox)

    def _wake_all(self, outbox: Outbox) -> None:
        for shard in self._shards:
            with shard.lock:
                keys = shard.table.keys()
            for key in keys:
                self._runtime.step("return_look")
                if not shard.table.has(key):
                    continue
                self._runtime.step("return_take")
                with shard.lock:
                    taken = shard.table.take(key)
                    queued = [pull for pull in taken if shard.table.queue_taken(pull)]
                if not taken:
                    log.warning("another notifier was at %s; the rest of this round is given up, as in Java", key)
                    return
                for pull in queued:
                    self._queue(pull, "woken", outbox)

    def stop(self, outbox: Outbox) -> None:
        """Stop holding pulls, and answer the held pulls.

        Call this method after the last notifier has ended, because a notifier could put pulls back into the table.
        """
        self._stopping = True
        if self._policy.on_stop != "answer":
            return
        for shard in self._shards:
            after_ns = self._events.now_ns()
            self._runtime.step("stop")
            with shard.lock:
                held = shard.table.drain()
            self._events.record("stop", held, after_ns)
            for pull in held:
                self._queue(pull, "stopped", outbox)

    # -- handing pulls to the executor -------------------------------------------------------------------------------

    def _queue(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        if cause in {"busy", "thrown", "stopped"}:
            self._refuse(pull, cause, outbox)
        elif not self._executor.submit(pull, cause, outbox):
            self._reject(pull, outbox)

    def _reject(self, pull: Pull, outbox: Outbox) -> None:
        """Handle a pull that the executor rejected: answer `busy` or drop the pull, as the policy says."""
        if self._policy.on_reject == "answer_busy":
            self._refuse(pull, "busy", outbox)
        else:
            log.warning("a woken pull of %s was rejected and is dropped, as the policy says", pull.topic)


@define(slots=True, eq=False)
class ScanService(ServiceThread):
    """The scanner's thread: traverses all buckets, and sleeps `period_ms` between two rounds."""

    NAME = "scanner"

    hold_service: HoldService
    period_ms: int

    def _run(self) -> None:
        outbox = Outbox()
        while not self._stop.wait(self.period_ms / 1000):
            try:
                self.hold_service.scan(outbox)
            except FAULTS:
                log.exception("a scan was cut short")
            outbox.flush()


BATCH: Final = 256
"""Maximum messages made visible before their waiting pulls are notified."""
ANNOUNCED_MAX: Final = 16
"""Maximum attempts to wake pulls for one message if traversals raise. RocketMQ retries forever and loses more pulls."""


@define(slots=True, eq=False)
class DispatchService:
    """The dispatcher: makes messages visible and wakes pulls. Each thread that calls `run` acts as a notifier."""

    runtime: Runtime
    store: MessageStore
    hold_service: HoldService
    events: PullEvents
    notifies: bool
    """Whether arriving messages wake pulls; false if long polling is off (`longPollingEnable`)."""
    polls: bool = False
    """Whether a polling thread, not the appending thread, makes messages visible (`notify=dispatcher_poll`)."""
    in_batches: bool = False
    """Whether only the last message of a queue in each batch wakes pulls (`notify_grain=batch`)."""
    before_visible: bool = False
    """Whether pulls are woken before the message is visible (`notify=before_visible`), which loses wakeups."""
    passes_idle: bool = False
    """Whether to skip empty buckets (`empty_shortcut`), and every bucket while the table holds no pull.

        The check needs no lock: the visible end has moved already, so a pull that is held after the check finds the
        message in its own recheck."""
    makes_durable: bool = False
    """Whether a message becomes visible only when it is durable."""
    _last_error: str = field(default="", init=False)
    """The last dispatch error, so that a lasting error is logged once instead of with every send."""
    _stopping: bool = field(default=False, init=False)
    _thread: Thread | None = field(default=None, init=False)

    def record_visible(self) -> None:
        """Record each queue's visible end in the history before the broker serves requests."""
        store = self.store
        self.events.visible_from_start((*queue, store.visible_end(*queue)) for queue in store.queues())

    def run(self, outbox: Outbox) -> None:
        """Make all appended messages visible, or with `makes_durable` only the durable ones, and wake pulls."""
        store = self.store
        end = store.dispatchable_end
        if self.before_visible and self.notifies:
            for arrival in store.waiting():
                self._notify(arrival, store.visible_end(arrival.topic, arrival.queue_id), outbox)
        is_behind = store.is_behind
        while store.dispatched_end < end or is_behind:
            after_ns = self.events.now_ns()
            self.runtime.step("make_visible")
            try:
                arrivals = store.dispatch(BATCH)
            except FAULTS as error:
                # The messages are in the log; the flush thread and the next append retry the dispatch.
                told, self._last_error = self._last_error, str(error)
                if self._last_error != told:
                    log.exception("messages could not be made visible; trying again")
                return
            self._last_error = ""
            is_behind = bool(arrivals) and store.is_behind
            self.events.made_visible(arrivals, after_ns)
            if self.notifies and not self.before_visible and not (self.passes_idle and not len(self.hold_service)):
                for arrival in self._announced(arrivals):
                    self._notify(arrival, arrival.offset_end, outbox)

    def appended(self, outbox: Outbox) -> None:
        """Make messages visible that were appended or that a sync made durable, before their sends are answered."""
        if not self.polls and self.store.dispatched_end < self.store.dispatchable_end:
            self.run(outbox)

    def show_waiting(self) -> None:
        """Make messages visible that the schedule delivered, or whose dispatch failed because the disk was full."""
        if not self.polls and (self.store.dispatched_end < self.store.log_end or self.store.is_behind):
            # While flushes fail, the flush thread retries them and logs the error once, so no flush is tried here.
            if self.makes_durable and LOG not in self.store.troubles:
                with KeepGoing(log, "messages could not be made durable, and stay unseen"):
                    self.store.flush()
            outbox = Outbox()
            self.run(outbox)
            outbox.flush()

    def _announced(self, arrivals: Sequence[Arrival]) -> Iterable[Arrival]:
        """Returns the arrivals that wake pulls: all, or under `notify_grain=batch` only each queue's last arrival."""
        if not self.in_batches:
            return arrivals
        return {(arrival.topic, arrival.queue_id): arrival for arrival in arrivals}.values()

    def _notify(self, arrival: Arrival, visible_end: int, outbox: Outbox) -> None:
        """Wake the pulls of a message's queue.

        If a traversal raises, traverse again, because RocketMQ's `doReput` does not advance past such a message.
        """
        for _ in range(ANNOUNCED_MAX):
            try:
                self.hold_service.notify((arrival.topic, arrival.queue_id), visible_end, arrival.tags_code, outbox)
            except FAULTS:
                # A traversal raises only under `on_throw=drop_rest`, and has then lost the bucket's other pulls.
                log.exception("notifying of %s@%d failed", arrival.topic, arrival.queue_id)
            else:
                return

    def start(self, sleep_ms: int) -> None:
        """Start the polling thread."""
        self._thread = self.runtime.spawn("dispatcher", lambda: self._poll(sleep_ms / 1000))

    def stop(self) -> None:
        """End the polling thread, if it was started."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join()

    def _poll(self, sleep_s: float) -> None:
        outbox = Outbox()
        while not self._stopping:
            try:
                self.run(outbox)
            except FAULTS:
                log.exception("the dispatcher met an error and goes on")
            outbox.flush()
            self.runtime.sleep(sleep_s)
