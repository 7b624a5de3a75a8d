"""All connections of one client on an event loop, its routes, tasks and timers.

All callers share one task that connects to an address, and one task that asks for a topic's route. If a caller is
cancelled or times out, the other callers go on waiting. An old route is used while the task asks again, as in Java's
client. After a failed send, callers wait up to a second for a new route.

Source: `MQClientInstance.java`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from longpoll_client.aio.connection import AsyncConnection
from longpoll_client.errors import ClientError, LifecycleError, UnreachableError
from longpoll_client.instance import InstanceCore
from longpoll_client.lifecycle import Closing
from longpoll_client.link.exchange import Callback
from longpoll_client.link.routes import DOUBT_WAIT_S, Route, split_address
from longpoll_client.link.steps import (
    Ask,
    Call,
    Connect,
    FindRoute,
    Question,
    Steps,
    Together,
    WriteFile,
    run_async,
    succeeded,
)
from longpoll_protocol.frames import EMPTY, Buffer, Command
from longpoll_protocol.headers import Header
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


class AsyncInstance(InstanceCore):
    """The connections, tasks and timers of a client, which belong to the first event loop that uses the client.

    A lock never blocks here, because no task holds a lock while it waits.

    Invariant: `_tasks` has every unfinished task that connects or asks for a route, `_jobs` every task of `begin`, and
    `_handles` every timer; `close` and `end_jobs` end them.
    """

    def _set_up(self) -> None:
        self.closing: Closing = Closing()
        """The closing of the client that owns these connections."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: dict[str, AsyncConnection] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._writes: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._jobs: set[asyncio.Task[None]] = set()
        self._handles: set[asyncio.TimerHandle] = set()
        self._is_ending = False

    def check(self) -> None:
        """Raise LifecycleError after the close, and on any event loop other than the first one."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise LifecycleError("the client belongs to another event loop; create one client per loop")
            self._loop = loop
        if self._lifecycle.is_closed:
            self._lifecycle.check_open()

    async def close(self) -> None:
        """Close every connection. Waiting calls get an error, and later calls raise LifecycleError."""
        self._lifecycle.end()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        connections = list(self._connections.values())
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections), *tasks, return_exceptions=True)

    def disconnect(self) -> list[asyncio.Future[Any]]:
        """Cut every connection, even if it is not established yet. Returns the tasks and transports that are ending.

        Waiting calls get an error; later calls connect again.
        """
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        connections = list(self._connections.values())
        self._connections.clear()
        return [*tasks, *(connection.cut() for connection in connections)]

    # ------------------------------------------------------------ connections

    def opened(self, address: str) -> AsyncConnection | None:
        """Return the open connection to host:port, or None."""
        found = self._connections.get(address)
        return found if found is not None and found.is_open else None

    async def connection(self, address: str, timeout_s: float | None = None) -> AsyncConnection:
        """Return an open connection to host:port, connecting if needed; raises UnreachableError after `timeout_s`."""
        self.check()
        found = self.opened(address)
        if found is not None:
            return found
        return await self._shared(
            ("connect", address), lambda: self._connect(address), timeout_s, f"cannot connect to {address} in time"
        )

    async def _connect(self, address: str) -> AsyncConnection:
        made = await AsyncConnection.open(
            self.runtime,
            *split_address(address),
            on_request=lambda command: self._requested(command, address),
            credentials=self._credentials,
        )
        if self._lifecycle.is_closed:
            await made.close()
            self._lifecycle.check_open()
        self._connections[address] = made
        self._greet(address)
        return made

    def _tell(self, address: str, code: int, body: bytes) -> None:
        connection = self.opened(address)
        if connection is not None:
            self.begin(connection.one_way(code, None, body))

    # ------------------------------------------------------------ routes

    async def route(self, topic: str, timeout_s: float | None = None) -> Route:
        """Return the topic's route; raises NoRouteError, UnreachableError or another ClientError."""
        return await self._route(topic, timeout_s, borrows=False)

    async def publish_route(self, topic: str, timeout_s: float | None = None) -> Route:
        """Return the route for sends: the topic's own, or the route of TBW102 if the send creates the topic."""
        return await self._route(topic, timeout_s, borrows=True)

    async def _route(self, topic: str, timeout_s: float | None, *, borrows: bool) -> Route:
        self.check()
        fresh = self.fresh_route(topic)
        if fresh is not None:
            return fresh
        key = ("publish" if borrows else "route", topic)

        def ask() -> Coroutine[Any, Any, Route]:
            return self.run(self._ask_publish_route(topic) if borrows else self._ask_route(topic, topic, None))

        usable = self._routes.usable(topic)
        if usable is not None:
            self._task_of(key, ask)
            return usable
        doubted = self._routes.known(topic)
        if doubted is not None:
            await asyncio.wait([self._task_of(key, ask)], timeout=min(DOUBT_WAIT_S, timeout_s or DOUBT_WAIT_S))
            self.check()
            return self._routes.known(topic) or doubted
        return await self._shared(key, ask, timeout_s, f"no name server answers in time for topic {topic!r}")

    # ------------------------------------------------------------ exchanges

    async def run(self, steps: Steps[T]) -> T:
        """Run an exchange, and await each answer; raises a LongpollError."""
        return await run_async(steps, self._answer)

    async def _answer(self, question: Question) -> object:
        if isinstance(question, Ask):
            return await self._ask(question)
        if isinstance(question, Call):
            found = question.work()
            return await found if isinstance(found, Awaitable) else found
        if isinstance(question, Connect):
            return await self.connection(question.address)
        if isinstance(question, FindRoute):
            if question.is_fresh:
                self.forget_route(question.topic)
            return await self.route(question.topic)
        if isinstance(question, Together):
            return await asyncio.gather(*(self._result(each) for each in question.steps))
        task = asyncio.create_task(self._write(question))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    async def _ask(self, question: Ask) -> Command:
        if not (question.address or question.broker_name):
            answer = await self.run(self._ask_name_servers(question.code, question.header))
            return succeeded(question, "the name server", answer)
        address = question.address or self.broker_address(question.broker_name)
        connection = await self.connection(address)
        return succeeded(question, address, await connection.call(question.code, question.header, question.body))

    async def _result(self, steps: Steps[object]) -> object:
        try:
            return await self.run(steps)
        except LongpollError as error:
            return error

    async def _write(self, file: WriteFile) -> None:
        """Write a file's new content, one write at a time, so that old content never replaces newer content."""
        async with self._writing:
            content = file.unwritten()
            if content is not None:
                await asyncio.to_thread(file.write, content)

    async def written(self) -> None:
        """Wait until every file is written. The callers of `run` get the errors of the writes."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    # ------------------------------------------------------------ one task for all who wait

    def _task_of(self, key: tuple[str, str], work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Return the task with this key, and start it if none is running."""
        task: asyncio.Task[T] | None = self._tasks.get(key)
        if task is None:
            task = asyncio.create_task(work(), name=" ".join(key))
            self._tasks[key] = task
            task.add_done_callback(lambda ended: self._forget(key, ended))
        return task

    def _forget(self, key: tuple[str, str], ended: asyncio.Task[Any]) -> None:
        if self._tasks.get(key) is ended:
            del self._tasks[key]
        if not ended.cancelled():
            # Mark the exception as seen, because the waiters may all have been cancelled.
            ended.exception()

    async def _shared(
        self, key: tuple[str, str], work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None, late: str
    ) -> T:
        """Return the result of a task that several callers may share; raises UnreachableError after the time-out."""
        task = self._task_of(key, work)
        done, _pending = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise UnreachableError(late)
        if task.cancelled():
            self._lifecycle.check_open()
            raise UnreachableError(late)
        return task.result()

    # ------------------------------------------------------------ tasks and timers, and brokers for pullers

    def call_async(self, address: str, code: int, header: Header, *, callback: Callback, timeout_s: float) -> None:
        """See `InstanceCore.call_async`. A task makes the connection."""
        connection = self.opened(address)
        if connection is not None:
            connection.call_async(code, header, callback=callback, timeout_s=timeout_s)
            return

        async def connect() -> None:
            try:
                made = await self.connection(address)
                made.call_async(code, header, callback=callback, timeout_s=timeout_s)
            except ClientError as error:
                callback(error)

        self.begin(connect())

    def reply(self, address: str, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """See `InstanceCore.reply`."""
        connection = self.opened(address)
        if connection is not None:
            connection.reply(request, code, remark, body)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call a function after the delay, unless the client is closed by then."""
        if self._is_ending:
            return

        def act() -> None:
            self._handles.discard(handle)
            with KeepGoing(log, "something that was due later failed"):
                action()

        handle = asyncio.get_running_loop().call_later(delay_s, act)
        self._handles.add(handle)

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """Call a function after each period, until the client is closed."""

        def act() -> None:
            action()
            self.after(period_s, act)

        self.after(period_s, act)

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in a task, unless the client is closed. Errors are logged."""
        if self._is_ending:
            work.close()
            return

        async def kept() -> None:
            with KeepGoing(log, "what a consumer does beside the loop failed"):
                await work

        def ended(task: asyncio.Task[None]) -> None:
            self._jobs.discard(task)
            # Close the coroutine of a task that was cancelled before its first step, because Python warns otherwise.
            work.close()

        task = asyncio.create_task(kept())
        self._jobs.add(task)
        task.add_done_callback(ended)

    async def end_jobs(self) -> None:
        """End every task and timer except the calling task. No new task or timer is accepted."""
        self._is_ending = True
        await asyncio.gather(*self.cut_jobs(), return_exceptions=True)

    def cut_jobs(self) -> list[asyncio.Task[None]]:
        """Cancel every task and timer except the calling task. Returns the cancelled tasks."""
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()
        tasks = [task for task in self._jobs if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        return tasks
