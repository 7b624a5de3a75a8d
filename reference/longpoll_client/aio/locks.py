"""Locks queues at their brokers for one member of an event loop, so that their messages are consumed in order.

`member` chooses the times. Source: `RebalanceImpl.lockAll`, `RebalanceImpl.unlock`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from longpoll_client.aio.group import GroupCalls
from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.consume.membership import LOCK_LIVE_S, by_broker, lock_body, read_locks
from longpoll_client.consume.puller import Puller
from longpoll_protocol.bodies import LockBatchResponse, MessageQueue
from longpoll_protocol.codes import RequestCode
from longpoll_spec.errors import LongpollError

log = logging.getLogger(__name__)


class AsyncLocks:
    """The locks of one member; of one whose messages may come in any order each queue counts as locked."""

    def __init__(self, instance: AsyncInstance, calls: GroupCalls, group: str, *, is_orderly: bool) -> None:
        self.held: set[MessageQueue] = set()
        """What the brokers may keep for it: also what it has closed before it could begin it."""
        self._instance = instance
        self._calls = calls
        self._group = group
        self._is_orderly = is_orderly

    @property
    def end_ns(self) -> int | None:
        """Until when what is locked now stays so, by the monotonic clock; None where nothing is."""
        return self._instance.runtime.monotonic_ns() + int(LOCK_LIVE_S * 1e9) if self._is_orderly else None

    def is_locked(self, puller: Puller) -> bool:
        """Whether the queue's messages may be consumed now."""
        return puller.is_locked

    async def lock(self, queues: Iterable[MessageQueue]) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """The queues that this client has for itself now, and those that others have.

        A queue whose broker did not answer is in neither set, and the log has a line.
        """
        if not self._is_orderly:
            return set(queues), set()
        asked = by_broker(queues)
        self.held.update(*asked.values())
        answers = await asyncio.gather(
            *(self._ask(RequestCode.LOCK_BATCH_MQ, name, wanted) for name, wanted in asked.items())
        )
        told = [(wanted, answer) for wanted, answer in zip(asked.values(), answers, strict=True) if answer is not None]
        got = {queue for wanted, answer in told for queue in wanted if queue in answer.lock_ok_mq_set}
        refused = {queue for wanted, _answer in told for queue in wanted} - got
        self.held -= refused
        return got, refused

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Let others have the queues, if they are locked at all; what fails ends by itself after 60 s."""
        if self._is_orderly:
            asked = by_broker(queues)
            self.held.difference_update(*asked.values())
            await asyncio.gather(
                *(self._ask(RequestCode.UNLOCK_BATCH_MQ, name, wanted) for name, wanted in asked.items())
            )

    async def _ask(self, code: RequestCode, broker_name: str, queues: list[MessageQueue]) -> LockBatchResponse | None:
        try:
            body = lock_body(self._group, self._instance.client_id, queues)
            return read_locks(await self._calls.ask(self._instance.routes.address(broker_name), code, None, body))
        except LongpollError as error:
            log.warning("locks of group %s at %s: %s", self._group, broker_name, error)
            return None
