"""Sends messages from an event loop, many at once, and in transactions.

`produce.attempts` and `produce.transactions` decide what to send, as for the producers on threads.

Source: `DefaultMQProducerImpl.java`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TypeAlias, Unpack

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.checks import Addresses, check_callable, check_plain
from longpoll_client.errors import ClientError, LifecycleError
from longpoll_client.lifecycle import AsyncCloseable, Closing
from longpoll_client.link.exchange import CALL_TIMEOUT_S, PENDING_COUNT_MAX, wait_ns
from longpoll_client.messages import ReceivedMessage
from longpoll_client.produce.attempts import Attempt, QueueSelector, SendResult, is_lost, selector
from longpoll_client.produce.hooks import Outcome
from longpoll_client.produce.outgoing import OutgoingMessage, Parcel, as_given
from longpoll_client.produce.producer import (
    MessageOptions,
    ProducerCore,
    ProducerOptions,
    RequestOptions,
    SendCallback,
    Sender,
    SendOptions,
    StartedSend,
    read_options,
)
from longpoll_client.produce.requests import HEARTBEAT_S, ProducerHeartbeat, Replies, ReplyCallback, too_late
from longpoll_client.produce.transactions import TransactionCore, TransactionResult, TransactionState
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.fast import header_of
from longpoll_protocol.frames import Command
from longpoll_runtime.recoverable import FAULTS, KeepGoing
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)


class AsyncRequests(Replies):
    """The requests of one producer of an event loop. The first request starts the periodic heartbeats."""

    def __init__(self, instance: AsyncInstance, group: str) -> None:
        super().__init__(instance)
        self._instance = instance
        self._heartbeat = ProducerHeartbeat(instance, group)
        self._is_begun = False

    async def ask(
        self, correlation_id: str, timeout_s: float, send: Callable[[Mapping[str, str]], Awaitable[object]]
    ) -> ReceivedMessage:
        """Pass the request's properties to `send`, and wait for the reply. Raises a ClientError, or an error of `send`.

        A request that is cancelled, or that gets no reply in time, is forgotten.
        """
        if not self._is_begun:
            self._is_begun = True
            again = self._heartbeat.heartbeat_all
            self._instance.every(HEARTBEAT_S, lambda: self._instance.begin(self._instance.run(again())))
        replied: asyncio.Future[ReceivedMessage | ClientError] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._instance.run(self._heartbeat.heartbeat_new())
                await send(self.expect(correlation_id, timeout_s, replied.set_result))
                outcome = await replied
        except ClientError:
            raise  # AnswerTimeoutError is a TimeoutError too, so it must be caught first.
        except TimeoutError:
            raise too_late(timeout_s) from None
        finally:
            self.forget(correlation_id)
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome

    async def leave(self) -> None:
        """Leave the group, if the producer has joined it. Waiting requests get a ConnectionLostError."""
        self.close()
        await self._instance.end_jobs()
        if self._is_begun:
            await self._instance.run(self._heartbeat.leave())


class AsyncProducer(ProducerCore, AsyncCloseable):
    """Sends messages to any topic, from the tasks of one event loop.

    A cancelled send is not retried, but its message may be stored.

    Invariant: `_on_way` counts the calls of `send_nowait` that wait for their answers; `_sending` has the tasks of all
    other unfinished `send_nowait` and of each `request_nowait`.
    """

    def __init__(
        self,
        name_server: Addresses,
        *,
        group: str = "longpoll-producer",
        avoids_slow_brokers: bool = False,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """See `Producer`. Raises ConfigError. Connections are made by the first send."""
        sender = Sender(group, options, header_of, avoids_slow_brokers=avoids_slow_brokers)
        instance = AsyncInstance(sender.runtime, name_server, credentials=sender.credentials)
        self._set_up(instance, sender)
        instance.on_request, instance.producer_group = self._requests.requested, group

    def _set_up(self, instance: AsyncInstance, sender: Sender) -> None:
        self._instance = instance
        self._sender = sender
        self._requests = AsyncRequests(instance, sender.group)
        self._now_ns = sender.now_ns
        self._on_way = 0
        self._sending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close every connection. Sends in progress fail with a ClientError, and later sends with LifecycleError.

        If the caller is cancelled, the close continues, and a second call waits for it.
        """
        await self._instance.closing.wait(self._close)

    async def _close(self) -> None:
        await self._requests.leave()
        await self._instance.close()
        while self._sending:
            await asyncio.wait(self._sending)

    async def send(self, topic: str, body: bytes, **options: Unpack[SendOptions]) -> SendResult:
        """See `Producer.send`, which raises the same errors.

        AnswerTimeoutError may also mean that the broker does not read.
        """
        message, queue_selector, timeout_s = read_options(topic, body, options)
        (result,) = await self._send(self._sender.single(topic, message), queue_selector, timeout_s)
        return result

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> tuple[SendResult, ...]:
        """See `Producer.send_batch`, which raises the same errors."""
        parcel = self._sender.batch(topic, messages)
        return await self._send(parcel, selector(topic, queue_id, queue_selector), timeout_s)

    async def send_one_way(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> str:
        """Send a message without an answer, and return its id; see `Producer.send_one_way`."""
        parcel = self._sender.single(topic, read_options(topic, body, options, MessageOptions)[0])
        address, header = self._sender.pick(parcel, await self._instance.publish_route(topic, CALL_TIMEOUT_S))
        connection = await self._instance.connection(address, CALL_TIMEOUT_S)
        await connection.one_way(parcel.code, header, parcel.body)
        self._sender.watch.sent_one_way()
        return parcel.msg_ids[0]

    async def request(self, topic: str, body: bytes, **options: Unpack[RequestOptions]) -> ReceivedMessage:
        """See `Producer.request`, which raises the same errors."""
        self._instance.check()
        message, queue_selector, timeout_s = read_options(topic, body, options, RequestOptions)
        return await self._replied(topic, as_given(topic, message), queue_selector, timeout_s)

    def _request_later(
        self,
        topic: str,
        message: OutgoingMessage,
        queue_selector: QueueSelector | None,
        timeout_s: float,
        on_reply: ReplyCallback,
    ) -> None:
        self._instance.check()
        self._check_room()
        replied = partial(self._replied, topic, as_given(topic, message), queue_selector, timeout_s)
        self._keep(self._reply_later(replied, on_reply))

    async def _replied(
        self, topic: str, message: OutgoingMessage, queue_selector: QueueSelector | None, timeout_s: float
    ) -> ReceivedMessage:
        await self._instance.publish_route(topic, timeout_s)
        (correlation_id,) = self._sender.ids.new(1)

        async def send(marks: Mapping[str, str]) -> None:
            await self._send(self._sender.single(topic, message, marks), queue_selector, timeout_s)

        return await self._requests.ask(correlation_id, wait_ns(timeout_s) / 1e9, send)

    async def _reply_later(self, replied: Callable[[], Awaitable[ReceivedMessage]], on_reply: ReplyCallback) -> None:
        outcome: ReceivedMessage | ClientError
        try:
            outcome = await replied()
        except ClientError as error:
            outcome = error
        except FAULTS as error:
            outcome = ClientError(f"the request did not finish: {error!r}")
        with KeepGoing(log, "the callback of a reply failed"):
            on_reply(outcome)

    async def reply(self, request: ReceivedMessage, body: bytes, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """See `Producer.reply`, which raises the same errors."""
        await self._send(self._sender.reply(request, body), None, timeout_s)

    def send_nowait(self, topic: str, body: bytes, *, callback: SendCallback, **options: Unpack[SendOptions]) -> None:
        """Send as `send` does, without waiting: `callback` is called once, with the result or the error.

        Raises ConfigError and LifecycleError at once, and LocalProtocolError while 65,535 sends are in progress. If
        this method raises an error, `callback` is not called.
        """
        check_plain("callback", callback)
        self._instance.check()
        self._check_room()
        message, queue_selector, timeout_s = read_options(topic, body, options)
        sending = self._sender.begin(self._sender.single(topic, message), queue_selector, timeout_s, callback)
        if not self._sent_at_once(sending, callback):
            self._send_later(sending, callback)

    def _check_room(self) -> None:
        """Raise LocalProtocolError if 65,535 sends that nothing awaits are in progress."""
        if self._on_way + len(self._sending) >= PENDING_COUNT_MAX:
            raise LocalProtocolError(f"{PENDING_COUNT_MAX} sends are already in progress; wait for some of them")

    # ------------------------------------------------------------ one send that is awaited

    async def _send(
        self, parcel: Parcel, queue_selector: QueueSelector | None, timeout_s: float
    ) -> tuple[SendResult, ...]:
        """Send to up to three queues in turn; raises the error of the last attempt."""
        self._instance.check()
        return await self._tried(self._sender.begin(parcel, queue_selector, timeout_s))

    async def _tried(self, sending: StartedSend) -> tuple[SendResult, ...]:
        """Try until the send has ended, and call the hooks. `send_nowait` uses this method for its retries."""
        outcome: Outcome | None = None
        tries = sending.tries
        try:
            while True:
                route = self._instance.fresh_route(tries.parcel.topic)
                if route is None:
                    left_s = max(0.0, (tries.deadline_ns - self._now_ns()) / 1e9)
                    route = await self._instance.publish_route(tries.parcel.topic, left_s)
                attempt = self._sender.attempt(sending, route)
                answer = await self._try(tries.parcel, attempt)
                found = tries.ended(answer, self._now_ns())
                if found is not None:
                    outcome = found
                    return found
        except LongpollError as error:
            outcome = error
            raise
        finally:
            self._sender.ended(sending, outcome)

    async def _try(self, parcel: Parcel, attempt: Attempt) -> Command | ClientError:
        try:
            connection = self._instance.opened(attempt.address)
            if connection is None:
                connection = await self._instance.connection(attempt.address, attempt.timeout_s)
            write = self._sender.templates.writer(connection, parcel, attempt.queue.queue_id)
            return await connection.ask(parcel.code, write, attempt.timeout_s)
        except LifecycleError:
            raise
        except ClientError as error:
            self._doubt(parcel, error)
            return error

    def _doubt(self, parcel: Parcel, error: ClientError) -> None:
        if is_lost(error):
            self._instance.doubt_route(parcel.topic)

    # ------------------------------------------------------------ one send without an awaiting task

    def _sent_at_once(self, sending: StartedSend, callback: SendCallback) -> bool:
        """Send without a task if route and connection are known and the broker reads; otherwise return false."""
        tries = sending.tries
        route = self._instance.fresh_route(tries.parcel.topic)
        if route is None:
            return False
        try:
            attempt = tries.begin(route, self._sender.next_turn, sending.begun_ns)
            connection = self._instance.opened(attempt.address)
            if connection is None or not connection.has_room:
                tries.cancel()
                return False
            write = self._sender.templates.writer(connection, tries.parcel, attempt.queue.queue_id)
            connection.begin(tries.parcel.code, write, partial(self._answered, sending, callback), attempt.timeout_s)
            self._on_way += 1
        except FAULTS as error:
            outcome = _as_told(error)
            self._sender.ended(sending, outcome)
            asyncio.get_running_loop().call_soon(_tell, callback, outcome)
        return True

    def _answered(self, sending: StartedSend, callback: SendCallback, answer: Command | ClientError) -> None:
        self._on_way -= 1
        if isinstance(answer, ClientError):
            self._doubt(sending.tries.parcel, answer)
        try:
            found = sending.tries.ended(answer, self._now_ns())
        except ClientError as error:
            self._sender.ended(sending, error)
            _tell(callback, error)
            return
        if found is None:
            self._send_later(sending, callback)
            return
        self._sender.ended(sending, found)
        _tell(callback, found[0])

    def _send_later(self, sending: StartedSend, callback: SendCallback) -> None:
        self._keep(self._tell_later(sending, callback))

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        """Run a task that the close waits for."""
        task = asyncio.create_task(work)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _tell_later(self, sending: StartedSend, callback: SendCallback) -> None:
        outcome: SendResult | LongpollError
        try:
            (outcome,) = await self._tried(sending)
        except FAULTS as error:
            outcome = _as_told(error)
        _tell(callback, outcome)


class AsyncPreparedProducer(AsyncProducer):
    """Sends the prepared messages of an `AsyncTransactionProducer`, over its connections."""

    def __init__(self, instance: AsyncInstance, sender: Sender) -> None:
        self._set_up(instance, sender)

    async def send_prepared(
        self, topic: str, message: OutgoingMessage, queue_selector: QueueSelector | None, timeout_s: float
    ) -> SendResult:
        """See `PreparedProducer.send_prepared`, which raises the same errors."""
        (result,) = await self._send(self._sender.prepared(topic, message), queue_selector, timeout_s)
        return result


def _as_told(error: Exception) -> LongpollError:
    """Return the error that the callback of a failed send gets, which is always a LongpollError."""
    return error if isinstance(error, LongpollError) else ClientError(f"the message could not be sent: {error!r}")


def _tell(callback: SendCallback, outcome: SendResult | LongpollError) -> None:
    # `KeepGoing` is not used here, because it would make each send slower.
    try:
        callback(outcome)
    except FAULTS:
        log.exception("the callback of a send failed")


AsyncCheck: TypeAlias = Callable[[ReceivedMessage], Awaitable[TransactionState]]
"""A coroutine function that finds out whether the local transaction of a message succeeded, and returns its state."""
AsyncWork: TypeAlias = Callable[[], Awaitable[TransactionState]]


class AsyncTransactionProducer(TransactionCore, AsyncCloseable):
    """A producer of one group on an event loop, for messages in transactions.

    Every member of the group can answer for the transactions of all members. Invariant: `_checking` has the task of
    each check that has not ended.
    """

    def __init__(
        self, name_server: Addresses, *, group: str, check_transaction: AsyncCheck, **options: Unpack[ProducerOptions]
    ) -> None:
        """See `TransactionProducer`. Raises ConfigError. Connections are made by the first send."""
        check_callable("check_transaction", check_transaction)
        sender = Sender(group, options, header_of)
        self._instance = AsyncInstance(
            sender.runtime, name_server, on_request=self._requested, credentials=sender.credentials
        )
        super().__init__(sender, self._instance, check_transaction)
        self._producer = AsyncPreparedProducer(self._instance, sender)
        self._closing = Closing()
        self._checking: set[asyncio.Task[None]] = set()
        self._has_heartbeat = False

    async def close(self) -> None:
        """Wait for running checks, except a check that calls this method; otherwise see `TransactionProducer.close`.

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

    async def send(
        self, topic: str, body: bytes, local_transaction: AsyncWork, **options: Unpack[RequestOptions]
    ) -> TransactionResult:
        """Send a message and await its local transaction; otherwise see `TransactionProducer.send`.

        If the caller is cancelled during the local transaction, the broker asks for its outcome later.
        """
        self._lifecycle.check_open()
        check_callable("local_transaction", local_transaction)
        given = read_options(topic, body, options, RequestOptions)
        if not self._has_heartbeat:
            self._has_heartbeat = True
            again = self._heartbeat.heartbeat_all
            self._instance.every(HEARTBEAT_S, lambda: self._instance.begin(self._instance.run(again())))
        prepare = partial(self._producer.send_prepared, topic, *given)
        return await self._instance.run(self._send_steps(prepare, local_transaction))

    # ------------------------------------------------------------ what brokers ask

    def _requested(self, command: Command, address: str) -> bool:
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return False
        if not self._lifecycle.is_closed:
            task = asyncio.create_task(self._instance.run(self._answer_steps(command, address)))
            self._checking.add(task)
            task.add_done_callback(self._checking.discard)
        return True
