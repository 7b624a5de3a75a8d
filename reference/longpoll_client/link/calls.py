"""The calls of one connection that wait for an answer: found by opaque, ended by deadline.

The owner holds its lock and passes the time in.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec
from attrs import define, field

from longpoll_client.errors import ClientError
from longpoll_protocol.frames import Buffer, Command
from longpoll_spec.tables import with_table

OPAQUE_MAX: Final = 2**31 - 1
LOOK_NS: Final = 1_000
"""A deadline may be noticed later by this for each call that waits.

Looking at one call took 51 to 71 ns where it was measured (decision 6), so looking takes some twentieth of the time
where tens of thousands of calls end one after the other without an answer.
"""

Answer: TypeAlias = Command | ClientError
Callback: TypeAlias = Callable[[Answer], None]
Write: TypeAlias = Callable[[int], list[Buffer]]
"""The bytes of a request with this opaque; may raise LocalProtocolError."""
_deadline_ns: Final = attrgetter("deadline_ns")


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
    """The waiting calls, in the order in which they were made.

    Their deadlines are not sorted, because nearly every answer comes long before. When the earliest known deadline has
    come, all calls are checked.

    Invariant: no call of `pending` has a deadline before `due_ns`, except as `LOOK_NS` allows. Changes under the lock.
    """

    pending: dict[int, PendingCall] = field(factory=dict)
    due_ns: int | None = None
    """When `expired` is to be asked next; None: not before another call is added."""
    rests_until_ns: int = 0
    """When the calls may be looked at again, whatever deadlines are added meanwhile."""
    opaque_next: int = 0

    def add(self, call: PendingCall) -> int:
        """Register a call and return its opaque."""
        opaque = self.opaque_next
        while opaque in self.pending:
            opaque = (opaque + 1) & OPAQUE_MAX
        self.opaque_next = (opaque + 1) & OPAQUE_MAX
        self.pending[opaque] = call
        if self.due_ns is None or call.deadline_ns < self.due_ns:
            self.due_ns = max(call.deadline_ns, self.rests_until_ns)
        return opaque

    def expired(self, now_ns: int) -> list[PendingCall]:
        """Take out every call whose deadline has come, the first deadline first."""
        if self.due_ns is None or now_ns < self.due_ns:
            return []
        late = [opaque for opaque, call in self.pending.items() if call.deadline_ns <= now_ns]
        found = sorted([self.pending.pop(opaque) for opaque in late], key=_deadline_ns)
        first_ns = min(map(_deadline_ns, self.pending.values()), default=None)
        self.rests_until_ns = now_ns + LOOK_NS * len(self.pending)
        self.due_ns = None if first_ns is None else max(first_ns, self.rests_until_ns)
        return found
