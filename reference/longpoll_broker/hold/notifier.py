"""A notifier's traversal of one bucket: take the pulls, check each pull, and keep the pulls that stay.

An arrival, or a scan of a bucket, creates a `BucketTraversal`. Call `start` and `end` with the shard's lock held, and
`each` without it. The policy decides whether pulls are taken by clone-and-clear or in place, and what happens to the
other pulls when a filter raises. A traversal wakes a pull whose deadline has passed even if no message matches it.

Threads and the executor: see `hold.hold_service`. Source: `PullRequestHoldService.notifyMessageArriving`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import Final

import msgspec
from attrs import define, field

from longpoll_broker.hold.hold_table import Cause, HoldTable, Key, Pull
from longpoll_broker.shared.filters import SqlFilter
from longpoll_broker.shared.sql92 import Lookup
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.policy import Policy

LARGE_HERD: Final = 16
"""A herd of at least this many pulls is answered in batches, and the table's bookkeeping follows after the answers."""
CHECKED_COUNT: Final = 2_000
"""Maximum number of pulls that an arrival compares in place before other work runs: about 2 ms if all the pulls are
woken."""
SQL_PART: Final = 4
"""Evaluating this many characters of an SQL expression counts as one more compared pull."""
_DEADLINE_MS: Final[Callable[[Pull], int]] = attrgetter("deadline_ms")


class Wake(msgspec.Struct, frozen=True, gc=False):
    """A pull that left the table in this traversal, with the cause."""

    pull: Pull
    cause: Cause
    """`woken`, `expired` or `thrown`."""


def _unknown() -> None:
    return None


@define(slots=True, eq=False)
class BucketTraversal:
    """One traversal of one bucket.

    Invariant: each pull of the bucket is in exactly one of these places: the table, `_waiting`, `_kept`, `_ready`,
    `_thrown`, or returned by `each`.
    """

    policy: Policy
    table: HoldTable
    key: Key
    visible_end: int
    """The visible end that the notifier knows: RocketMQ's `maxOffset` argument."""
    tags_code: int | None
    """The tag hash of the arriving message; None for a scan or a batch."""
    now_ms: int
    read_visible_end: Callable[[], int]
    """Reads the store's current visible end, as RocketMQ does for a pull whose offset is beyond the known end."""
    read_properties: Callable[[], Lookup | None] = _unknown
    """Reads the arriving message's properties; called at most once, when a filter needs them."""
    _properties: Lookup | None = field(default=None, init=False)
    _verdicts: dict[SqlFilter, bool] = field(factory=dict, init=False)
    """The result of each filter for the arriving message, so that equal filters run once."""
    _waiting: deque[Pull] = field(factory=deque, init=False)
    _kept: list[Pull] = field(factory=list, init=False)
    _ready: deque[Pull] = field(factory=deque, init=False)
    _thrown: deque[Pull] = field(factory=deque, init=False)
    _unsettled: list[Pull] = field(factory=list, init=False)
    """Pulls that were removed in place and that `end` must settle."""
    _rest: Iterator[Pull] | None = field(default=None, init=False)
    """The bucket's pulls that are not yet compared, except pulls inserted after `start`, which recheck themselves."""
    _sql_size: int = field(default=0, init=False)
    """Number of characters of SQL expressions evaluated since the traversal last let other work run."""
    has_rest: bool = field(default=False, init=False)
    """Whether `start` must be called again, because some pulls were not yet compared in place."""

    def start(self) -> list[Pull]:
        """Take the bucket's pulls, or remove the pulls to wake; returns the pulls that left the table.

        A large bucket is compared in place in several calls: see `has_rest`.
        """
        if self.policy.take == "clone_and_clear":
            taken = self.table.take(self.key)
            self._waiting.extend(taken)
            return taken
        self.has_rest = False
        woken, thrown = self.table.wake_in_place(self.key, self._choose)
        self._ready.extend(woken)
        self._thrown.extend(thrown)
        gone = [*woken, *thrown] if thrown else woken
        if len(gone) < LARGE_HERD:
            self.table.settle(gone)
        else:
            self._unsettled = gone
        return gone

    def each(self) -> Wake | None:
        """Check one pull; returns its wake, or None if it stays. Under `on_throw=drop_rest`, a filter may raise."""
        if self._ready:
            ready = self._ready.popleft()
            return Wake(ready, self._cause(ready))
        if self._thrown:
            return Wake(self._thrown.popleft(), "thrown")
        pull = self._waiting[0]
        try:
            wakes = self._wakes(pull)
        except FAULTS:
            if self.policy.on_throw == "answer_and_go_on":
                self._waiting.popleft()
                return Wake(pull, "thrown")
            if self.policy.on_throw == "keep_rest":
                self._kept.extend(self._waiting)
                self._waiting.clear()
                return None
            raise
        self._waiting.popleft()
        if wakes:
            return Wake(pull, self._cause(pull))
        self._kept.append(pull)
        return None

    def herd(self, count_max: int) -> list[Pull]:
        """Returns up to `count_max` woken pulls.

        Returns an empty list if one of these pulls has expired, because `each` must then find the cause of each pull.
        """
        ready = self._ready
        herd = [ready.popleft() for _ in range(min(count_max, len(ready)))]
        if herd and min(map(_DEADLINE_MS, herd)) <= self.now_ms:
            ready.extendleft(reversed(herd))
            return []
        return herd

    @property
    def unsettled(self) -> bool:
        """Whether `end` must settle a large herd that was woken in place."""
        return bool(self._unsettled)

    @property
    def unseen(self) -> bool:
        """Whether `each` has more pulls to check or return."""
        return bool(self._ready or self._waiting or self._thrown)

    def end(self) -> list[Pull]:
        """Put the remaining pulls back, and settle the pulls woken in place; returns the pulls that were put back."""
        self.table.settle(self._unsettled)
        self._unsettled = []
        return self.table.keep(self._kept)

    def _choose(self, pulls: Collection[Pull]) -> tuple[list[Pull], list[Pull]]:
        """Select the pulls to wake, and the pulls whose filter raises; an error must not affect other pulls.

        Most pulls of a herd have the same offset and filter, so one check serves all of them.
        """
        woken: list[Pull] = []
        thrown: list[Pull] = []
        offset, wanted = None, None
        if self._rest is None:
            self._rest = iter(tuple(pulls))
        left, self._sql_size = CHECKED_COUNT, 0
        while left * SQL_PART > self._sql_size:
            pull = next(self._rest, None)
            if pull is None:
                break
            left -= 1
            if pull not in pulls:
                continue
            if pull.offset == offset and pull.filter is wanted:
                woken.append(pull)
                continue
            try:
                if not self._wakes(pull):
                    continue
            except FAULTS:
                thrown.append(pull)
                continue
            woken.append(pull)
            if self.now_ms < pull.deadline_ms:
                offset, wanted = pull.offset, pull.filter
        else:
            self.has_rest = True
        return woken, thrown

    def _wakes(self, pull: Pull) -> bool:
        return self._has_news(pull) or self.now_ms >= pull.deadline_ms

    def _has_news(self, pull: Pull) -> bool:
        newest = self.visible_end
        if newest <= pull.offset:
            newest = self.read_visible_end()
        if newest <= pull.offset:
            return False
        if not self.policy.notify_only_if_tag_matches:
            return True
        wanted = pull.filter
        if wanted is None:
            return True
        if isinstance(wanted, SqlFilter):
            return self._has_properties(wanted)
        return wanted.all_tags or wanted.matches(self.tags_code)

    def _has_properties(self, wanted: SqlFilter) -> bool:
        """Whether the message's properties match; true for a scan or a batch, and if the message cannot be read."""
        if self.tags_code is None:
            return True
        if self._properties is None:
            self._properties = self.read_properties()
        if self._properties is None:
            return True
        verdict = self._verdicts.get(wanted)
        if verdict is None:
            verdict = self._verdicts[wanted] = wanted.matches_properties(self._properties)
            self._sql_size += len(wanted.expression)
        return verdict

    def _cause(self, pull: Pull) -> Cause:
        return "expired" if self.now_ms >= pull.deadline_ms else "woken"
