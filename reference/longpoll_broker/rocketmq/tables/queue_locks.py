"""Which client of a group may consume a queue alone: `RebalanceLockManager.java`.

A lock lives for a minute and is renewed by asking again. Time is an argument. Leaves out the requests (`service`).
Threads that share the table call it with a lock held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Final, TypeVar

from attrs import define, field, frozen

from longpoll_broker.shared.quota import Quota

LIFE_MS: Final = 60_000
"""`REBALANCE_LOCK_MAX_LIVE_TIME`."""
LOCK_COUNT_MAX: Final = 1_000_000
"""Most locks in all; over this nobody gets another one."""
EXPIRED_MAX: Final = 20_000
"""Most expired locks that are forgotten when somebody asks."""

Queue = TypeVar("Queue", bound=Hashable)


@frozen
class _Holder:
    client_id: str
    renewed_ms: int


@define(slots=True, eq=False)
class QueueLocks:
    """Every lock, by group and queue, the one first that was renewed longest ago."""

    quota: Quota = field(factory=lambda: Quota("queue locks", LOCK_COUNT_MAX), init=False)
    _holders: OrderedDict[tuple[str, Hashable], _Holder] = field(factory=OrderedDict, init=False)

    def lock(
        self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int, channel: Hashable = None
    ) -> list[Queue]:
        """Take or renew what is free, expired or the client's own; which queues it holds now."""
        self._expire(now_ms)
        got: list[Queue] = []
        for queue in queues:
            key = (group, queue)
            holder = self._holders.get(key)
            if holder is not None and holder.client_id != client_id:
                if now_ms - holder.renewed_ms <= LIFE_MS:
                    continue
                self.quota.release(key)
                del self._holders[key]
            if not self.quota.take(key, channel):
                continue
            self._holders[key] = _Holder(client_id, now_ms)
            self._holders.move_to_end(key)
            got.append(queue)
        return got

    def unlock(self, group: str, client_id: str, queues: Iterable[Hashable]) -> None:
        """Let go of the client's own locks; those of others stay."""
        for queue in queues:
            key = (group, queue)
            holder = self._holders.get(key)
            if holder is not None and holder.client_id == client_id:
                del self._holders[key]
                self.quota.release(key)

    def _expire(self, now_ms: int) -> None:
        """Forget locks that were not renewed in time."""
        for _ in range(EXPIRED_MAX):
            key = next(iter(self._holders), None)
            if key is None or now_ms - self._holders[key].renewed_ms <= LIFE_MS:
                return
            del self._holders[key]
            self.quota.release(key)
