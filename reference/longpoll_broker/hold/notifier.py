"""A notifier's way through one bucket: take, look at each, keep the rest. Pure, one method a critical section.

A `Walk` is made for every arrival (or bucket of a scan) that may concern somebody. `start` and `end` are called with
the shard's lock held; `each` without it. What a policy changes is here and nowhere else: taking by clone-and-clear or
in place, and what becomes of the list when a filter raises. A passed deadline wakes as well as an arrival.

Leaves out threads and the executor (`hold.hold_service`). Source:
`PullRequestHoldService.notifyMessageArriving`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final

import msgspec
from attrs import define, field

from longpoll_broker.hold.hold_table import Cause, HoldTable, Key, Pull
from longpoll_broker.shared.filter.filters import SqlFilter
from longpoll_broker.shared.filter.sql92 import Lookup
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.policy import Policy

LARGE_HERD: Final = 16
"""Fewest pulls woken in place that are handed out in herds; the table forgets them when they have been answered."""
_DEADLINE_MS: Final[Callable[[Pull], int]] = attrgetter("deadline_ms")


class Wake(msgspec.Struct, frozen=True, gc=False):
    """A pull that left the table in this walk, and why."""

    pull: Pull
    cause: Cause
    """`woken`, `expired` or `thrown`."""


def _unknown() -> None:
    return None


@define(slots=True, eq=False)
class BucketTraversal:
    """One notifier in one bucket.

    Invariant: a pull of the bucket is in exactly one place: still in the table, in `_waiting`, in `_kept`, or handed
    out by `each` (in `_ready` or `_thrown` just before that).
    """

    policy: Policy
    table: HoldTable
    key: Key
    visible_end: int
    """The end that the notifier knows; RocketMQ's `maxOffset` argument."""
    tags_code: int | None
    """The arriving message's tag hash; None when the walk stands for no single message (a scan, a batch)."""
    now_ms: int
    read_visible_end: Callable[[], int]
    """Reads the store's visible end now; RocketMQ asks it once more for a pull that the known end does not help."""
    read_properties: Callable[[], Lookup | None] = _unknown
    """Finds the arriving message's properties; asked once, and only when a filter needs them."""
    _properties: Lookup | None = field(default=None, init=False)
    _verdicts: dict[SqlFilter, bool] = field(factory=dict, init=False)
    """What each filter says of the arriving message: however many pulls have it, it looks once."""
    _waiting: deque[Pull] = field(factory=deque, init=False)
    _kept: list[Pull] = field(factory=list, init=False)
    _ready: deque[Pull] = field(factory=deque, init=False)
    _thrown: deque[Pull] = field(factory=deque, init=False)
    _unsettled: list[Pull] = field(factory=list, init=False)
    """What has left the table in place, for `end` to settle."""

    def start(self) -> list[Pull]:
        """Take the bucket, or what wakes in it; returns the pulls that left the table."""
        if self.policy.take == "clone_and_clear":
            taken = self.table.take(self.key)
            self._waiting.extend(taken)
            return taken
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
        """Look at one pull; the wake, if it is one. Raises what a filter raises under `on_throw=drop_rest`."""
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
        """The next pulls of the herd, up to `count_max`, if all are `woken` in place; else none: ask `each`."""
        ready = self._ready
        herd = [ready.popleft() for _ in range(min(count_max, len(ready)))]
        if herd and min(map(_DEADLINE_MS, herd)) <= self.now_ms:
            ready.extendleft(reversed(herd))
            return []
        return herd

    @property
    def unsettled(self) -> bool:
        """Whether a large herd was woken in place, which `end` settles."""
        return bool(self._unsettled)

    @property
    def unseen(self) -> bool:
        """Whether `each` still has a pull to look at or hand out."""
        return bool(self._ready or self._waiting or self._thrown)

    def end(self) -> list[Pull]:
        """Put the rest back, or settle what was woken in place; returns the pulls that were kept."""
        self.table.settle(self._unsettled)
        self._unsettled = []
        return self.table.keep(self._kept)

    def _choose(self, pulls: Iterable[Pull]) -> tuple[list[Pull], list[Pull]]:
        """Those that wake, and those whose filter raises: that must not cost another pull its turn.

        One message mostly wakes a herd of pulls with one offset and filter, so what is news to one is to the next.
        """
        woken: list[Pull] = []
        thrown: list[Pull] = []
        offset, wanted = None, None
        for pull in pulls:
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
        if wanted is None or not wanted.matches(self.tags_code):
            return wanted is None
        return not isinstance(wanted, SqlFilter) or self._has_properties(wanted)

    def _has_properties(self, wanted: SqlFilter) -> bool:
        """Whether the arriving message matches; true when no single message arrives, or it cannot be read."""
        if self.tags_code is None:
            return True
        if self._properties is None:
            self._properties = self.read_properties()
        if self._properties is None:
            return True
        verdict = self._verdicts.get(wanted)
        if verdict is None:
            verdict = self._verdicts[wanted] = wanted.matches_properties(self._properties)
        return verdict

    def _cause(self, pull: Pull) -> Cause:
        return "expired" if self.now_ms >= pull.deadline_ms else "woken"
