"""Transactions on an event loop: what `TransactionProducer` does on threads, with work and checks that are awaited.

Source: `DefaultMQProducerImpl.sendMessageInTransaction`, `checkTransactionState`, `endTransaction` 4.9.7.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias

from longpoll_client.aio.instance import AsyncInstance, LoopConnections
from longpoll_client.aio.producer import AsyncPreparedProducer
from longpoll_client.checks import Addresses, check_callable, check_group, runtime_of
from longpoll_client.errors import ClientError
from longpoll_client.lifecycle import Closing, Lifecycle
from longpoll_client.link.exchange import CALL_TIMEOUT_S
from longpoll_client.messages import ReceivedMessage
from longpoll_client.produce.attempts import QueueSelector, SendResult
from longpoll_client.produce.hooks import SendHook, SendMetrics
from longpoll_client.produce.outgoing import COMPRESS_OVER_BYTES, OutgoingMessage, Packing
from longpoll_client.produce.requests import HEARTBEAT_S, ProducerHeartbeat, SenderOptions
from longpoll_client.produce.transactions import (
    Question,
    TransactionResult,
    TransactionState,
    end_of,
    read_question,
    state_of,
)
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.compression import Compression
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import EndTransactionRequestHeader
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import FAULTS

log: logging.Logger = logging.getLogger(__name__)

AsyncCheck: TypeAlias = Callable[[ReceivedMessage], Awaitable[TransactionState]]
"""Says how the transaction of a message ended, by what the sender's work left behind."""
AsyncWork: TypeAlias = Callable[[], Awaitable[TransactionState]]


class AsyncTransactionProducer:
    """A producer of one group whose members can all answer for each other's transactions; of one event loop.

    Invariant: `_checking` has the task of each check that has not ended.
    """

    def __init__(
        self,
        name_server: Addresses,
        *,
        group: str,
        check_transaction: AsyncCheck,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        compression: Compression | None = Compression.ZLIB,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        hooks: Sequence[SendHook] = (),
        runtime: Runtime | None = None,
    ) -> None:
        """As `TransactionProducer`; raises ConfigError. Connections are made by the first send."""
        runtime = runtime_of(runtime, tls)
        check_callable("check_transaction", check_transaction)
        check_group(group)
        self.group = group
        self._check = check_transaction
        self._instance = AsyncInstance(runtime, name_server, on_request=self._requested, credentials=credentials)
        options = SenderOptions(group, Packing(compression, compress_over_bytes), hooks)
        self._producer = AsyncPreparedProducer(self._instance, options)
        self._loop = LoopConnections(self._instance)
        self._heartbeat = ProducerHeartbeat(self._instance, group)
        self._lifecycle = Lifecycle(runtime, f"the producer of group {group}")
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
        await self._loop.close()
        await self._instance.run(self._heartbeat.leave())
        await self._producer.close()

    def metrics(self) -> SendMetrics:
        """As `TransactionProducer.metrics`."""
        return self._producer.metrics()

    async def send(
        self,
        topic: str,
        body: bytes,
        local_transaction: AsyncWork,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue_selector: QueueSelector | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> TransactionResult:
        """As `TransactionProducer.send`, with its errors; the local transaction is awaited.

        If the caller is cancelled during the local transaction, the broker asks later.
        """
        self._lifecycle.check_open()
        check_callable("local_transaction", local_transaction)
        message = OutgoingMessage(body, tag, keys, properties or {})
        sent = await self._producer.send_prepared(topic, message, queue_selector, timeout_s)
        self._heartbeat_later()
        await self._instance.run(self._heartbeat.heartbeat_new())
        state = TransactionState.UNKNOWN
        try:
            state = (
                state_of(await local_transaction()) if sent.code == ResponseCode.SUCCESS else TransactionState.ROLLBACK
            )
        finally:
            await self._end(sent, state)
        return TransactionResult(sent, state)

    async def _end(self, sent: SendResult, state: TransactionState) -> None:
        header = end_of(self.group, sent, state)
        if header is not None:
            await self._tell(self._instance.routes.address(sent.queue.broker_name), header)

    async def _tell(self, address: str, header: EndTransactionRequestHeader) -> None:
        try:
            connection = await self._instance.connection(address)
            await connection.one_way(RequestCode.END_TRANSACTION, header)
        except ClientError as error:
            log.warning("the end of transaction %s is not told: %s; the broker asks for it", header.msg_id, error)

    # ------------------------------------------------------------ what brokers ask

    def _requested(self, command: Command, address: str) -> bool:
        """Handle a broker's request."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return False
        question = read_question(self.group, command, address)
        if question is not None and not self._lifecycle.is_closed:
            task = asyncio.create_task(self._answer(question, address))
            self._checking.add(task)
            task.add_done_callback(self._checking.discard)
        return True

    async def _answer(self, question: Question, address: str) -> None:
        """Check a transaction, and send its state."""
        state = TransactionState.UNKNOWN
        try:
            state = state_of(await self._check(question.message))
        except FAULTS as error:
            msg_id = question.message.msg_id
            log.warning("the check of transaction %s failed: %r; the broker asks again", msg_id, error)
        await self._tell(address, question.answered(self.group, state))

    # ------------------------------------------------------------ saying who we are

    def _heartbeat_later(self) -> None:
        """Have brokers told again from the first message on."""
        if self._has_heartbeat:
            return
        self._has_heartbeat = True

        def again() -> None:
            self._loop.begin(self._instance.run(self._heartbeat.heartbeat_all()))
            self._loop.after(HEARTBEAT_S, again)

        self._loop.after(HEARTBEAT_S, again)
