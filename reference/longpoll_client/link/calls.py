"""The calls of one connection that wait for an answer: found by opaque, ended by deadline.

Leaves out locks, clock and sockets: the owner holds its lock and passes the time in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from attrs import define, field

from longpoll_client.errors import ClientError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import Buffer
from longpoll_spec.tables import with_table

OPAQUE_MAX: Final = 2**31 - 1
STALE_COUNT_MAX: Final = 4096
"""Deadlines of calls that have ended: with more of them than this and than calls that wait, they are thrown away."""

Answer: TypeAlias = Command | ClientError
Callback: TypeAlias = Callable[[Answer], None]
Write: TypeAlias = Callable[[int], list[Buffer]]
"""The bytes of a request with this opaque; may raise LocalProtocolError."""


@with_table
class PendingCall(msgspec.Struct, frozen=True, eq=False):
    """A call that waits for its answer."""

    code: int
    """What it asks."""
    begun_ns: int
    deadline_ns: int
    callback: Callback


@define(slots=True, eq=False)
class Calls:
    """The calls that wait. Invariant: every key of `pending` is in `deadlines` at least once; change under the lock."""

    pending: dict[int, PendingCall] = field(factory=dict)
    deadlines: list[tuple[int, int]] = field(factory=list)
    """A heap of (deadline_ns, opaque); an opaque no longer pending is skipped."""
    opaque_next: int = 0

    def add(self, call: PendingCall) -> int:
        """Register a call and return its opaque."""
        while self.opaque_next in self.pending:
            self.opaque_next = (self.opaque_next + 1) & OPAQUE_MAX
        opaque = self.opaque_next
        self.opaque_next = (opaque + 1) & OPAQUE_MAX
        self.pending[opaque] = call
        heapq.heappush(self.deadlines, (call.deadline_ns, opaque))
        if len(self.deadlines) > 2 * len(self.pending) + STALE_COUNT_MAX:
            # Answers come long before their deadlines, so the heap's first alone would keep all the others.
            self.deadlines = [entry for entry in self.deadlines if self._is_live(entry)]
            heapq.heapify(self.deadlines)
        return opaque

    @property
    def earliest_ns(self) -> int:
        """No call that waits has an earlier deadline; right after `add`, and quicker than `first_deadline_ns`."""
        return self.deadlines[0][0]

    def first_deadline_ns(self) -> int | None:
        """The earliest deadline of a waiting call."""
        while self.deadlines and not self._is_live(self.deadlines[0]):
            heapq.heappop(self.deadlines)
        return self.deadlines[0][0] if self.deadlines else None

    def expired(self, now_ns: int) -> list[PendingCall]:
        """Take out every call whose deadline has come."""
        found = []
        while (deadline_ns := self.first_deadline_ns()) is not None and deadline_ns <= now_ns:
            _deadline, opaque = heapq.heappop(self.deadlines)
            found.append(self.pending.pop(opaque))
        return found

    def _is_live(self, entry: tuple[int, int]) -> bool:
        call = self.pending.get(entry[1])
        return call is not None and call.deadline_ns == entry[0]
