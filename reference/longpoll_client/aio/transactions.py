"""Transactions on an event loop: what `TransactionProducer` does on threads, with work and checks that are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias, Unpack

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.aio.producer import AsyncPreparedProducer
from longpoll_client.checks import Addresses, check_callable
from longpoll_client.lifecycle import Closing
from longpoll_client.messages import ReceivedMessage
from longpoll_client.produce.hooks import SendMetrics
from longpoll_client.produce.requests import HEARTBEAT_S
from longpoll_client.produce.sender import (
    REQUEST_NAMES,
    ProducerOptions,
    RequestOptions,
    SenderOptions,
    read_options,
)
from longpoll_client.produce.transactions import TransactionCore, TransactionResult, TransactionState
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command

AsyncCheck: TypeAlias = Callable[[ReceivedMessage], Awaitable[TransactionState]]
"""Says how the transaction of a message ended, by what the sender's work left behind."""
AsyncWork: TypeAlias = Callable[[], Awaitable[TransactionState]]


class AsyncTransactionProducer(TransactionCore):
    """A producer of one group whose members can all answer for each other's transactions; of one event loop.

    Invariant: `_checking` has the task of each check that has not ended.
    """

    def __init__(
        self, name_server: Addresses, *, group: str, check_transaction: AsyncCheck, **options: Unpack[ProducerOptions]
    ) -> None:
        """As `TransactionProducer`; raises ConfigError. Connections are made by the first send."""
        check_callable("check_transaction", check_transaction)
        given = SenderOptions.of(group, options)
        self._instance = AsyncInstance(
            given.runtime, name_server, on_request=self._requested, credentials=given.credentials
        )
        super().__init__(given, self._instance, check_transaction)
        self._producer = AsyncPreparedProducer(self._instance, given)
        self._closing = Closing()
        self._checking: set[asyncio.Task[None]] = set()
        self._has_heartbeat = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As `TransactionProducer.close`. It waits for running checks, except one that calls it.

        If the caller is cancelled, the close continues, and a second call waits for it.
        """
        self._lifecycle.end()
        me = asyncio.current_task()
        await self._closing.wait(lambda: self._close([task for task in self._checking if task is not me]))

    async def _close(self, checking: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*checking, return_exceptions=True)
        await self._instance.end_jobs()
        await self._instance.run(self._heartbeat.leave())
        await self._producer.close()

    def metrics(self) -> SendMetrics:
        """As `TransactionProducer.metrics`."""
        return self._producer.metrics()

    async def send(
        self, topic: str, body: bytes, local_transaction: AsyncWork, **options: Unpack[RequestOptions]
    ) -> TransactionResult:
        """As `TransactionProducer.send`, with its errors; the local transaction is awaited.

        If the caller is cancelled during the local transaction, the broker asks later.
        """
        self._lifecycle.check_open()
        check_callable("local_transaction", local_transaction)
        given = read_options(topic, body, options, REQUEST_NAMES)
        self._heartbeat_later()
        prepare = partial(self._producer.send_prepared, topic, *given)
        return await self._instance.run(self._send_steps(prepare, local_transaction))

    # ------------------------------------------------------------ what brokers ask

    def _requested(self, command: Command, address: str) -> bool:
        """Handle a broker's request."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return False
        if not self._lifecycle.is_closed:
            task = asyncio.create_task(self._instance.run(self._answer_steps(command, address)))
            self._checking.add(task)
            task.add_done_callback(self._checking.discard)
        return True

    # ------------------------------------------------------------ saying who we are

    def _heartbeat_later(self) -> None:
        """Have brokers told again from the first message on."""
        if self._has_heartbeat:
            return
        self._has_heartbeat = True

        def again() -> None:
            self._instance.begin(self._instance.run(self._heartbeat.heartbeat_all()))
            self._instance.after(HEARTBEAT_S, again)

        self._instance.after(HEARTBEAT_S, again)
