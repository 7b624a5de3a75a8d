"""Which client of a group may consume a queue alone: `RebalanceLockManager.java`.

A lock lives for a minute and is renewed by asking again. Time is an argument. Leaves out the requests (`service`).
Threads that share the table call it with a lock held.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

from attrs import define, field, frozen

LIFE_MS: Final = 60_000
"""`REBALANCE_LOCK_MAX_LIVE_TIME`."""
LOCK_COUNT_MAX: Final = 1_000_000
"""Most locks in all; over this nobody gets another one."""

Queue = TypeVar("Queue", bound=Hashable)


@frozen
class _Holder:
    client_id: str
    renewed_ms: int


@define(slots=True, eq=False)
class QueueLocks:
    """Every lock, by group and queue. Invariant: `_count` is the number of entries in all groups."""

    _groups: dict[str, dict[Hashable, _Holder]] = field(factory=dict, init=False)
    _count: int = field(default=0, init=False)

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int) -> list[Queue]:
        """Take or renew what is free, expired or the client's own; which queues it holds now."""
        held = self._groups.setdefault(group, {})
        got: list[Queue] = []
        for queue in queues:
            holder = held.get(queue)
            if holder is not None and holder.client_id != client_id and now_ms - holder.renewed_ms <= LIFE_MS:
                continue
            if holder is None:
                if self._count >= LOCK_COUNT_MAX:
                    continue
                self._count += 1
            held[queue] = _Holder(client_id, now_ms)
            got.append(queue)
        if not held:
            del self._groups[group]
        return got

    def unlock(self, group: str, client_id: str, queues: Iterable[Hashable]) -> None:
        """Let go of the client's own locks; those of others stay."""
        held = self._groups.get(group, {})
        for queue in queues:
            holder = held.get(queue)
            if holder is not None and holder.client_id == client_id:
                del held[queue]
                self._count -= 1
        if not held:
            self._groups.pop(group, None)
