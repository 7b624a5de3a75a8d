"""What producers on threads and on an event loop share: their options, and the begin and the end of each send."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final, TypeAlias, TypedDict, Unpack, cast

import msgspec
from attrs import frozen

from longpoll_client.checks import check_group, check_plain, runtime_of
from longpoll_client.errors import ClientError
from longpoll_client.link.exchange import CALL_TIMEOUT_S, wait_ns
from longpoll_client.link.routes import Route
from longpoll_client.messages import ReceivedMessage
from longpoll_client.produce.attempts import (
    Attempt,
    QueueSelector,
    SendAttempts,
    SendResult,
    SlowBrokers,
    pick,
    selector,
)
from longpoll_client.produce.hooks import Outcome, SendHook, Sending, SendMetrics, Watch
from longpoll_client.produce.outgoing import (
    COMPRESS_OVER_BYTES,
    NO_MARKS,
    HeadTemplates,
    MessageIds,
    OutgoingMessage,
    Packing,
    Parcel,
    batch_parcel,
    check_batch,
    prepared_parcel,
    single_parcel,
)
from longpoll_client.produce.requests import ReplyCallback, reply_to
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.compression import Compression
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime
from longpoll_spec.errors import LongpollError
from longpoll_spec.tables import with_table

SendCallback: TypeAlias = Callable[[SendResult | LongpollError], object]
"""Is called once with where a message went, or why it did not; it must not wait."""
ReadHeader: TypeAlias = Callable[[Command], SendMessageResponseHeader]
"""Reads the fields of an answer to a send; raises HeaderError."""
_UNENDED: Final = ClientError("the send did not finish: it was interrupted, or its queue selector failed")


class ProducerOptions(TypedDict, total=False):
    """Options of every producer."""

    tls: ssl.SSLContext | None
    """How to connect over TLS. Default: plain connections."""
    credentials: Credentials | None
    """The account, for a broker with access control."""
    compression: Compression | None
    """How to compress bodies of `compress_over_bytes` or more; None: not at all. Batches never are."""
    compress_over_bytes: int
    """The least size of a body that is compressed; 4,096 by default."""
    hooks: Sequence[SendHook]
    """Called before and after every send."""
    runtime: Runtime | None
    """For tests."""


class MessageOptions(TypedDict, total=False):
    """Options of one message."""

    tag: str | None
    """One tag, by which subscriptions choose."""
    keys: str | Sequence[str] | None
    """Several as a list, or separated by spaces."""
    properties: Mapping[str, str] | None


class RequestOptions(MessageOptions, total=False):
    """Options of one request, or of one transaction."""

    queue_selector: QueueSelector | None
    """Picks the queue. Default: the queues have their turns."""
    timeout_s: float
    """For the whole call; 3 s by default."""


class SendOptions(RequestOptions, total=False):
    """Options of one send."""

    delay_s: float
    """Consumers get the message after this delay, rounded up to a delay that brokers have."""
    deliver_at: datetime | None
    """Consumers get the message at this time; needs a broker of 5.x."""
    queue_id: int | None
    """The queue, in place of `queue_selector`."""


_SEND_NAMES: Final = SendOptions.__annotations__.keys()
REQUEST_NAMES: Final = RequestOptions.__annotations__.keys()
_MESSAGE_NAMES: Final = MessageOptions.__annotations__.keys()


def _refuse_unknown(options: Mapping[str, object], known: Any) -> None:
    unknown = options.keys() - known
    if unknown:
        raise TypeError(f"unknown option {min(unknown)}")


@frozen
class SenderOptions:
    """The options of a producer, checked."""

    group: str
    packing: Packing
    hooks: Sequence[SendHook]
    runtime: Runtime
    credentials: Credentials | None
    slow: SlowBrokers | None

    @classmethod
    def of(cls, group: str, options: ProducerOptions, *, avoids_slow_brokers: bool = False) -> SenderOptions:
        """Check the options of a producer; raises ConfigError, and TypeError for an unknown one."""
        _refuse_unknown(options, ProducerOptions.__annotations__.keys())
        check_group(group)
        over_bytes = options.get("compress_over_bytes", COMPRESS_OVER_BYTES)
        return cls(
            group,
            Packing(options.get("compression", Compression.ZLIB), over_bytes),
            options.get("hooks", ()),
            runtime_of(options.get("runtime"), options.get("tls")),
            options.get("credentials"),
            SlowBrokers() if avoids_slow_brokers else None,
        )


@with_table
class StartedSend(msgspec.Struct, eq=False):
    """One send, with all its tries."""

    tries: SendAttempts
    told_of: Sending | None
    """What the hooks were told of it, if there are any."""
    begun_ns: int
    callback: SendCallback | None = None


def read_options(
    topic: str, body: bytes, options: MessageOptions, names: Any = _SEND_NAMES
) -> tuple[OutgoingMessage, QueueSelector | None, float]:
    """The message, queue selector and time-out of a send; raises ConfigError, and TypeError for an unknown option."""
    if not options:
        return OutgoingMessage(body), None, CALL_TIMEOUT_S
    _refuse_unknown(options, names)
    given = cast("SendOptions", options)
    timeout_s = given.pop("timeout_s", CALL_TIMEOUT_S)
    chosen = selector(topic, given.pop("queue_id", None), given.pop("queue_selector", None))
    properties = given.pop("properties", None)
    return OutgoingMessage(body, properties=properties or {}, **cast("Any", given)), chosen, timeout_s


def message_of(topic: str, body: bytes, options: MessageOptions) -> OutgoingMessage:
    """The message of a one-way send; raises as `read_options`."""
    return read_options(topic, body, options, _MESSAGE_NAMES)[0]


class Sender:
    """The sends of one producer, without I/O. It does not hold the producer, which may be garbage-collected."""

    def __init__(self, options: SenderOptions, read: ReadHeader) -> None:
        runtime = options.runtime
        self.group: str = options.group
        self.watch: Watch = Watch(runtime, options.hooks)
        self.ids: MessageIds = MessageIds(runtime)
        self.next_turn: Callable[[], int] = count().__next__
        self.templates: HeadTemplates = HeadTemplates()
        self.now_ns: Callable[[], int] = runtime.monotonic_ns
        self._unix_ms = runtime.unix_ms
        self._packing = options.packing
        self._slow = options.slow
        self._read = read

    def single(
        self,
        topic: str,
        message: OutgoingMessage,
        marks: Mapping[str, str] = NO_MARKS,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    ) -> Parcel:
        """One message, with the properties of the client and of the hooks; raises ConfigError."""
        msg_id, born_ms = self.ids.one()
        marks = self.watch.marks(topic, marks)
        return single_parcel(self.group, topic, message, msg_id, born_ms, packing=self._packing, marks=marks, code=code)

    def prepared(self, topic: str, message: OutgoingMessage) -> Parcel:
        """One message that waits for the end of its transaction; raises ConfigError."""
        msg_id, born_ms = self.ids.one()
        marks = self.watch.marks(topic)
        return prepared_parcel(self.group, topic, message, msg_id, born_ms, packing=self._packing, marks=marks)

    def batch(self, topic: str, messages: Sequence[OutgoingMessage]) -> Parcel:
        """Several messages that are stored next to each other; raises ConfigError."""
        check_batch(messages)
        messages = self.watch.marked(topic, messages)
        return batch_parcel(self.group, topic, messages, self.ids.new(len(messages)), self._unix_ms())

    def reply(self, request: ReceivedMessage, body: bytes) -> Parcel:
        """A reply to a request; raises ConfigError."""
        topic, marks = reply_to(request)
        return self.single(topic, OutgoingMessage(body), marks, RequestCode.SEND_REPLY_MESSAGE_V2)

    def pick(self, parcel: Parcel, route: Route) -> tuple[str, Any]:
        """The address and the header of a one-way send; raises NoRouteError."""
        queue = pick(route, None, self.next_turn, None, slow=self._slow, now_ns=self.now_ns())
        return route.addresses[queue.broker_name], parcel.header(queue.queue_id)

    def begin(
        self,
        parcel: Parcel,
        queue_selector: QueueSelector | None,
        timeout_s: float,
        callback: SendCallback | None = None,
    ) -> StartedSend:
        """A send begins, of which the hooks are told."""
        now_ns = self.now_ns()
        tries = SendAttempts(parcel, queue_selector, now_ns + wait_ns(timeout_s), self._slow, self._read)
        return StartedSend(tries, self.watch.begin(parcel), now_ns, callback)

    def attempt(self, sending: StartedSend, route: Route) -> Attempt:
        """The next try; raises as `SendAttempts.begin`."""
        return sending.tries.begin(route, self.next_turn, self.now_ns())

    def ended(self, sending: StartedSend, outcome: Outcome | None) -> None:
        """The send has ended, or was interrupted without an outcome; the hooks are told."""
        latency_ns = self.now_ns() - sending.begun_ns
        self.watch.ended(sending.told_of, sending.tries, _UNENDED if outcome is None else outcome, latency_ns)


class ProducerCore(ABC):
    """The methods that are the same on threads and on an event loop."""

    _sender: Sender

    @property
    def group(self) -> str:
        """The producer group."""
        return self._sender.group

    def metrics(self) -> SendMetrics:
        """The counts of all sends so far."""
        return self._sender.watch.metrics()

    def request_nowait(
        self, topic: str, body: bytes, *, callback: ReplyCallback, **options: Unpack[RequestOptions]
    ) -> None:
        """Send one message; `callback` gets the reply, or the ClientError instead, once. It must not wait.

        On threads this returns when the broker has the message, and `callback` is called on a thread of the client's;
        on an event loop it returns at once, and `callback` is called on the loop. Raises ConfigError, LifecycleError or
        another ClientError, on an event loop LocalProtocolError while 65,535 are on their way: then `callback` is not
        called.
        """
        check_plain("callback", callback)
        self._request_later(topic, *read_options(topic, body, options, REQUEST_NAMES), callback)

    @abstractmethod
    def _request_later(
        self,
        topic: str,
        message: OutgoingMessage,
        queue_selector: QueueSelector | None,
        timeout_s: float,
        on_reply: ReplyCallback,
    ) -> None:
        """Send the request."""
