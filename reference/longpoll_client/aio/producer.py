"""Sends messages from an event loop, many at once: what `Producer` does on threads, decided by the same `tries`.

Leaves out transactions. Source: `DefaultMQProducerImpl.java`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.credentials import Credentials
from longpoll_client.errors import ClientError, LifecycleError
from longpoll_client.link.exchange import CALL_TIMEOUT_S, PENDING_COUNT_MAX
from longpoll_client.produce.message_ids import MessageIds
from longpoll_client.produce.outgoing import (
    COMPRESS_OVER_BYTES,
    OutgoingMessage,
    Packing,
    Parcel,
    batch_parcel,
    single_parcel,
)
from longpoll_client.produce.producer import Producer
from longpoll_client.produce.sending import Told
from longpoll_client.produce.slow_brokers import SlowBrokers
from longpoll_client.produce.templates import HeadTemplates
from longpoll_client.produce.tries import Attempt, Select, SendResult, Tries, is_lost, pick, selector
from longpoll_protocol.compression import Compression
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.fast.sent_answer import header_of
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import Buffer
from longpoll_runtime import Runtime
from longpoll_runtime.faults import FAULTS, KeepGoing
from longpoll_spec.errors import ConfigError, LongpollError

log = logging.getLogger(__name__)


class AsyncProducer:
    """Sends messages to any topic, from the tasks of one event loop.

    A send that is cancelled is not tried again; its message may be stored all the same.

    Invariant: `_sending` has the task of every `send_async` that has not ended.
    """

    def __init__(
        self,
        runtime: Runtime,
        name_server: str = "",
        group: str = "longpoll-producer",
        *,
        credentials: Credentials | None = None,
        compression: Compression | None = Compression.ZLIB,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        avoids_slow_brokers: bool = False,
    ) -> None:
        """As `Producer`; raises ConfigError for what cannot be. Connections are made by the first send."""
        if isinstance(runtime, Producer):
            raise ConfigError(
                "AsyncProducer has connections of its own: write AsyncProducer(runtime, name_server, group)"
            )
        self.group = group
        self._runtime = runtime
        self._instance = AsyncInstance(runtime, name_server, credentials=credentials)
        self._slow = SlowBrokers() if avoids_slow_brokers else None
        self._packing = Packing(compression, compress_over_bytes)
        self._ids = MessageIds(runtime)
        self._turns = count()
        self._templates = HeadTemplates()
        self._sending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; sends on their way fail with a ClientError, and later ones with LifecycleError."""
        await self._instance.close()
        while self._sending:
            await asyncio.wait(self._sending)

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        queue_id: int | None = None,
        select: Select | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> SendResult:
        """As `Producer.send`, with its errors: AnswerTimeoutError also where the broker reads nothing."""
        message = OutgoingMessage(body, tags, keys, properties or {}, delay_level)
        (result,) = await self._send(self._single(topic, message), selector(topic, queue_id, select), timeout_s)
        return result

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        queue_id: int | None = None,
        select: Select | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> tuple[SendResult, ...]:
        """As `Producer.send_batch`, with its errors."""
        parcel = batch_parcel(self.group, topic, messages, self._ids.new(len(messages)), self._runtime.unix_ms())
        return await self._send(parcel, selector(topic, queue_id, select), timeout_s)

    async def send_one_way(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """As `Producer.send_one_way`: the id; whether it was stored is never known."""
        parcel = self._single(topic, OutgoingMessage(body, tags, keys, properties or {}))
        route = await self._instance.publish_route(topic, CALL_TIMEOUT_S)
        queue = pick(route, None, self._turns.__next__, None)
        connection = await self._instance.connection(route.addresses[queue.broker_name], CALL_TIMEOUT_S)
        await connection.one_way(parcel.code, parcel.header(queue.queue_id), parcel.body)
        return parcel.msg_ids[0]

    def send_async(
        self,
        topic: str,
        body: bytes,
        told: Told,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        queue_id: int | None = None,
        select: Select | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Send as `send` does, without waiting: `told` is called once, with the result or the error.

        Raises ConfigError and LifecycleError at once, and LocalProtocolError while 65,535 are on their way: then `told`
        is not called.
        """
        self._instance.check()
        if len(self._sending) >= PENDING_COUNT_MAX:
            raise LocalProtocolError(f"{PENDING_COUNT_MAX} sends are on their way already")
        parcel = self._single(topic, OutgoingMessage(body, tags, keys, properties or {}, delay_level))
        work = self._tell(self._send(parcel, selector(topic, queue_id, select), timeout_s), told)
        task = asyncio.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _tell(self, sending: Coroutine[Any, Any, tuple[SendResult, ...]], told: Told) -> None:
        outcome: SendResult | LongpollError
        try:
            (outcome,) = await sending
        except LongpollError as error:
            outcome = error
        except FAULTS as error:
            outcome = ClientError(f"the message could not be sent: {error!r}")
        with KeepGoing(log, "the callback of a send failed"):
            told(outcome)

    def _single(self, topic: str, message: OutgoingMessage) -> Parcel:
        (msg_id,) = self._ids.new(1)
        return single_parcel(self.group, topic, message, msg_id, self._runtime.unix_ms(), packing=self._packing)

    async def _send(self, parcel: Parcel, select: Select | None, timeout_s: float) -> tuple[SendResult, ...]:
        """Try up to three queues; raises the last one's error."""
        self._instance.check()
        now_ns = self._runtime.monotonic_ns()
        tries = Tries(parcel, select, now_ns + int(timeout_s * 1e9), self._slow, header_of)
        while True:
            route = self._instance.routes.fresh(parcel.topic, now_ns)
            if route is None:
                left_s = max(0.0, (tries.deadline_ns - now_ns) / 1e9)
                route = await self._instance.publish_route(parcel.topic, left_s)
                now_ns = self._runtime.monotonic_ns()
            attempt = tries.begin(route, self._turns.__next__, now_ns)
            outcome = await self._try(parcel, attempt)
            now_ns = self._runtime.monotonic_ns()
            found = tries.ended(outcome, now_ns)
            if found is not None:
                return found

    async def _try(self, parcel: Parcel, attempt: Attempt) -> Command | ClientError:
        """Ask one broker, and wait for what comes of it."""
        try:
            connection = self._instance.opened(attempt.address)
            if connection is None:
                connection = await self._instance.connection(attempt.address, attempt.timeout_s)
            if connection.is_signed:
                header = parcel.header(attempt.queue.queue_id)
                return await connection.call(parcel.code, header, parcel.body, timeout_s=attempt.timeout_s)

            def write(opaque: int) -> list[Buffer]:
                return [self._templates.head(parcel, attempt.queue.queue_id, opaque), parcel.body]

            return await connection.ask(parcel.code, write, attempt.timeout_s)
        except LifecycleError:
            raise
        except ClientError as error:
            if is_lost(error):
                self._instance.doubt_route(parcel.topic)
            return error
