"""How pullers reach brokers from an event loop, and the tasks and timers of a client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.errors import ClientError
from longpoll_client.link.calls import Callback
from longpoll_protocol.frames import EMPTY, Buffer, Command
from longpoll_protocol.headers import Header
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import KeepGoing

log: logging.Logger = logging.getLogger(__name__)


class LoopConnections:
    """The connections of a client for `Puller` and `BrokerRequests`, and its tasks and timers.

    Invariant: `_tasks` and `_handles` have every task and timer that has not ended; `close` ends them.
    """

    def __init__(self, instance: AsyncInstance) -> None:
        self._instance = instance
        self._tasks: set[asyncio.Task[None]] = set()
        self._handles: set[asyncio.TimerHandle] = set()
        self._is_closed = False

    @property
    def runtime(self) -> Runtime:
        """The clock and locks. A lock never blocks here, because no task holds one while it waits."""
        return self._instance.runtime

    def client(self, address: str) -> _Asking:
        """A connection to HOST:PORT, which is made on demand."""
        return _Asking(self, self._instance, address)

    def broker_address(self, broker_name: str) -> str:
        """HOST:PORT of a broker; raises NoRouteError."""
        return self._instance.routes.address(broker_name)

    def broker_address_of(self, broker_name: str, broker_id: int) -> str:
        """The address of one broker of that name; if it is unknown, that of its master. Raises NoRouteError."""
        return self._instance.routes.address_of(broker_name, broker_id)

    def other_broker_id(self, broker_name: str, address: str) -> int | None:
        """The lowest id of a broker of that name at another address; None without one."""
        return self._instance.routes.other_id(broker_name, address)

    def reply(self, address: str, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """Answer a request of the peer at HOST:PORT, if there is a connection to it."""
        connection = self._instance.opened(address)
        if connection is not None:
            connection.reply(request, code, remark, body)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something after the delay, unless the client is closed by then."""
        if self._is_closed:
            return

        def act() -> None:
            self._handles.discard(handle)
            with KeepGoing(log, "something that was due later failed"):
                action()

        handle = asyncio.get_running_loop().call_later(delay_s, act)
        self._handles.add(handle)

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in a task, unless the client is closed. Errors are logged."""
        if self._is_closed:
            work.close()
            return

        async def kept() -> None:
            with KeepGoing(log, "what a consumer does beside the loop failed"):
                await work

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # Of a task that was cancelled before its first step this was never begun, which Python warns of.
            work.close()

        task = asyncio.create_task(kept())
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def close(self) -> None:
        """End every task and timer, except the calling task."""
        self._is_closed = True
        await asyncio.gather(*self.cut(), return_exceptions=True)

    def cut(self) -> list[asyncio.Task[None]]:
        """Cancel every task and timer, except the calling task; the cancelled tasks."""
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        return tasks


class _Asking:
    """A broker that a puller asks."""

    def __init__(self, reach: LoopConnections, instance: AsyncInstance, address: str) -> None:
        self._reach = reach
        self._instance = instance
        self._address = address

    def call_async(self, code: int, header: Header | None, /, *, callback: Callback, timeout_s: float) -> None:
        """Send a request once connected; raises a LongpollError if nothing is sent."""
        connection = self._instance.opened(self._address)
        if connection is not None:
            connection.call_async(code, header, callback=callback, timeout_s=timeout_s)
            return

        async def connect() -> None:
            try:
                made = await self._instance.connection(self._address)
                made.call_async(code, header, callback=callback, timeout_s=timeout_s)
            except ClientError as error:
                callback(error)

        self._reach.begin(connect())
