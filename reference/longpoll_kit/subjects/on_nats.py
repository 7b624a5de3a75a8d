"""NATS JetStream: a stream as a queue, read by pull requests of nats-py to one durable consumer.

Promised by docs.nats.io (JetStream, consumers; "Pull consumers" and ADR-37): a request waits until `expires` and then
gets status 408; a message that is not acknowledged within `ack_wait` is delivered again; messages are delivered in the
order of the stream. A request with `no_wait` is answered at once.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import closing, suppress
from typing import Any, Final

import nats
import nats.errors
import nats.js.errors
from attrs import define
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from longpoll_kit.errors import ServiceError
from longpoll_kit.subject import LongPollSubject, Polled
from longpoll_kit.subjects.addresses import MadeOnce, address_of, closed_on_error, local_process
from longpoll_kit.subjects.event_loop import EventLoop

PORT: Final = 4_222
CONSUMER: Final = "kit"
ACK_WAIT_S: Final = 3
CALL_S: Final = 10
NOTHING: Final = {"404", "408"}
"""Status codes for an empty answer: 404 if the stream has no message, and 408 if the request timed out."""


class CancelledPullError(Exception):
    """A pull request ended without an answer because the kit cancelled the request."""


@define(eq=False)
class Pull:
    """A pull request. Its answer is a message or a status, or `CancelledPullError` if the request was cancelled."""

    answer: asyncio.Future[Any]
    inbox: Any = None

    async def take(self, message: Any) -> None:
        """Store the first message that arrives."""
        if not self.answer.done():
            self.answer.set_result(message)


async def _raised(_error: Exception) -> None:
    """Ignore a connection error, because the affected call raises it."""


class NatsSubject(LongPollSubject):
    """The streams of a server; `close` deletes them. The client runs on an event loop with its own thread."""

    semantics = "consuming"
    redelivery_ms = ACK_WAIT_S * 1_000
    gone = (OSError, nats.errors.Error, nats.js.errors.Error, TimeoutError)

    def __init__(self, url: str, _mode: str) -> None:
        """Connect. Raises one of the exceptions in `gone` if the server does not answer."""
        self.process_id = local_process(*address_of(url, PORT))
        self._loop = EventLoop("kit-nats", 2 * CALL_S)
        self._use = MadeOnce(lambda stream: self._loop.do(self._create(stream)))
        self._open: set[Pull] = set()
        with closed_on_error(self._loop):
            own = {"allow_reconnect": False, "connect_timeout": CALL_S, "disconnected_cb": self._lose}
            self._nats: Any = self._loop.do(nats.connect(url, **own, error_cb=_raised))
            self._jetstream: Any = self._nats.jetstream()
            self._loop.do(self._jetstream.account_info())

    async def _lose(self) -> None:
        """Fail all open pulls after the connection was lost."""
        for pull in self._open:
            if not pull.answer.done():
                pull.answer.set_exception(ConnectionError("the server closed the connection"))

    def publish(self, queue: str, body: bytes) -> None:
        """Publish to the stream, and wait for its acknowledgement."""
        self._use(queue)
        self._loop.do(self._jetstream.publish(queue, body))

    def start_poll(self, queue: str, position: None, timeout_ms: int) -> Pull:  # noqa: ARG002 - the consumer has it
        """Send a request for one message."""
        self._use(queue)
        wanted = {"expires": timeout_ms * 1_000_000} if timeout_ms else {"no_wait": True}
        return self._loop.do(self._ask(queue, json.dumps({"batch": 1} | wanted).encode()))

    async def _ask(self, queue: str, wanted: bytes) -> Pull:
        pull, name = Pull(asyncio.get_running_loop().create_future()), self._nats.new_inbox()
        self._open.add(pull)
        pull.inbox = await self._nats.subscribe(name, cb=pull.take)
        await pull.inbox.unsubscribe(1)  # Unsubscribe after one message.
        await self._nats.publish(f"$JS.API.CONSUMER.MSG.NEXT.{queue}.{CONSUMER}", wanted, reply=name)
        await self._nats.flush(CALL_S)
        return pull

    def finish_poll(self, handle: Pull) -> Polled:
        """Wait for the message or a status."""
        answer = self._loop.wait(handle.answer)
        status = answer.headers.get("Status") if answer.headers and not answer.reply else None
        if status in NOTHING:
            return Polled()
        if status is not None:
            raise ServiceError(f"a pull request got {status} {answer.headers.get('Description', '')}")
        return Polled([answer.data])

    def acknowledge(self, handle: Pull) -> None:
        """Acknowledge the message, and wait until the server has confirmed it."""
        self._loop.do(handle.answer.result().ack_sync(CALL_S))

    def cancel(self, handle: Pull) -> None:
        """Unsubscribe the inbox, because the server sends no message for a request whose inbox has no subscriber."""
        self._loop.do(self._cancel(handle))

    async def _cancel(self, pull: Pull) -> None:
        # The inbox is already unsubscribed if the request was answered.
        with suppress(nats.errors.BadSubscriptionError):
            await pull.inbox.drain()
        # An empty answer would claim that the request took no message. But the server may have sent a message to the
        # inbox just before the inbox was unsubscribed; then it delivers that message again only after `ack_wait`.
        if not pull.answer.done():
            pull.answer.set_exception(CancelledPullError())

    def close(self) -> None:
        """Delete the streams, and close the connection."""
        with closing(self._loop):
            for stream in self._use.made:
                self._loop.do(self._jetstream.delete_stream(stream))
            self._loop.do(self._nats.close())

    async def _create(self, queue: str) -> None:
        await self._jetstream.add_stream(StreamConfig(queue, subjects=[queue], storage=StorageType.MEMORY))
        limits: dict[str, Any] = {"ack_wait": ACK_WAIT_S, "max_waiting": 10_000}
        consumer = ConsumerConfig(durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, **limits)
        await self._jetstream.add_consumer(queue, consumer)
