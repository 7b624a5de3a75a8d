"""Locks by which one client of a group consumes a queue exclusively: `RebalanceLockManager.java`.

A lock lasts a minute and is renewed by another request. Time is an argument. Callers hold a lock. Requests: see
`rocketmq.admin.lock_processor`.
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
"""Maximum locks in total; further ones are refused."""
EXPIRED_MAX: Final = 20_000
"""Maximum expired locks removed per request."""

Queue = TypeVar("Queue", bound=Hashable)


@frozen
class _Holder:
    client_id: str
    renewed_ms: int


@define(slots=True, eq=False)
class QueueLocks:
    """Every lock, by group and queue, the least recently renewed first."""

    quota: Quota = field(factory=lambda: Quota("queue locks", LOCK_COUNT_MAX), init=False)
    _holders: OrderedDict[tuple[str, Hashable], _Holder] = field(factory=OrderedDict, init=False)

    def lock(
        self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int, channel: Hashable = None
    ) -> list[Queue]:
        """Acquire or renew locks that are free, expired or the client's; returns the queues it holds now."""
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
        """Release the client's locks; those of others stay."""
        for queue in queues:
            key = (group, queue)
            holder = self._holders.get(key)
            if holder is not None and holder.client_id == client_id:
                del self._holders[key]
                self.quota.release(key)

    def _expire(self, now_ms: int) -> None:
        for _ in range(EXPIRED_MAX):
            key = next(iter(self._holders), None)
            if key is None or now_ms - self._holders[key].renewed_ms <= LIFE_MS:
                return
            del self._holders[key]
            self.quota.release(key)
