"""A member of a consumer group on an event loop. Its exchanges are tasks.

Source: `RebalanceImpl.java`, `RebalancePushImpl.java`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from attrs import frozen

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.aio.loop_connections import LoopConnections
from longpoll_client.checks import Sql
from longpoll_client.consume.broker_requests import DirectConsumer
from longpoll_client.consume.group_member import GroupMember
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.link.steps import Steps
from longpoll_client.settings import MemberOptions
from longpoll_runtime.recoverable import ANYTHING

T = TypeVar("T")


@frozen
class _Delivery:
    deliver: Callable[[Batch], None]
    is_busy: Callable[[Puller], bool]


class AsyncMember(GroupMember):
    """Keeps this client in its group and its queues pulled; `deliver` gets the messages.

    Invariant: an exchange that begins or gives up queues holds `_rebalancing`.
    """

    def __init__(
        self,
        options: MemberOptions,
        deliver: Callable[[Batch], None],
        *,
        direct: DirectConsumer | None = None,
        is_orderly: bool = False,
        is_busy: Callable[[Puller], bool] = lambda _puller: False,
    ) -> None:
        """As `GroupMember`. `is_busy` says whether the listener has messages of an orderly queue."""
        self._rebalancing = asyncio.Lock()
        self._instance = AsyncInstance(
            options.runtime,
            options.name_server,
            client_id=options.config.client_id,
            on_request=self._requested,
            credentials=options.credentials,
        )
        self.connections: LoopConnections = LoopConnections(self._instance)
        super().__init__(
            options,
            self.connections,
            self.connections,
            _Delivery(deliver, is_busy),
            client_id=lambda: self._instance.client_id,
            direct=direct,
            is_orderly=is_orderly,
        )

    async def run(self, steps: Steps[T]) -> T:
        """Run an exchange, and await each answer; raises a LongpollError."""
        return await self._instance.run(steps)

    async def _run_exclusively(self, make: Callable[[], Steps[T]]) -> T:
        async with self._rebalancing:
            return await self.run(make())

    def soon(self, make: Callable[[], Steps[object]], delay_s: float = 0.0, *, rebalances: bool = False) -> None:
        """As `GroupMember.soon`, in a task."""

        def begin() -> None:
            self.connections.begin(self._run_exclusively(make) if rebalances else self.run(make()))

        if delay_s:
            self.after(delay_s, begin)
        else:
            begin()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """As `GroupMember.after`, on the loop."""
        self.connections.after(delay_s, action)

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """As `GroupMember.every`, on the loop."""

        def act() -> None:
            action()
            self.after(period_s, act)

        self.after(period_s, act)

    def subscribe(self, topic: str, expression: str) -> None:
        """Subscribe to a topic, or change its expression. Takes effect soon on a running member.

        Raises ConfigError and LifecycleError. `Sql` is possible only before the start, because brokers are asked.
        """
        subscription = self.membership.make(topic, expression)
        if isinstance(expression, Sql):
            self.lifecycle.check_created("a subscription by SQL92")
        else:
            self.lifecycle.check_open()
        self.membership.subscribe(subscription)
        self._subscription_changed()

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Join the group and begin to pull; raises as `Member.start`. A cancelled start may be tried again."""
        self.lifecycle.begin()
        try:
            await self.run(self.join())
            await self._run_exclusively(self.rebalancer.rebalance)
            self._start_periods()
        except ANYTHING as error:
            await self._undo_start(is_cancelled=not isinstance(error, Exception))
            raise

    async def _undo_start(self, *, is_cancelled: bool) -> None:
        """Leave no task, connection or queue of a failed start.

        After a cancellation this waits for no broker: locks end by themselves after 60 s.
        """
        queues = sorted(self.assigned_queues.pullers())
        for queue in queues:
            self.assigned_queues.let_go(queue, is_for_good=True)
        try:
            if queues and not is_cancelled:
                await self.run(self.locks.unlock(queues))
        finally:
            self.assigned_queues.announce()
            # The brokers notice the lost connections.
            self._started_ms = 0
            self.lifecycle.begin_failed()
            ending = [*self.connections.cut(), *self._instance.disconnect()]
            await asyncio.gather(*ending, return_exceptions=True)

    async def close(self) -> None:
        """Stop pulling, store the offsets and leave the group, once; after `lifecycle.end`. Errors are logged."""
        await self.connections.close()
        await self.run(self.leave(self.assigned_queues.drop_all()))
        await self._instance.written()
        await self._instance.close()

    async def store_now(self) -> None:
        """Store every changed offset; raises a LongpollError."""
        errors = await self._run_exclusively(self.rebalancer.persist)
        if errors:
            raise errors[0]
