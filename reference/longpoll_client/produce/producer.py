"""Sends messages to a queue's broker, and to another broker after a failure, as `attempts` decides.

Producers on threads and on an event loop share `ProducerCore` and `Sender`. The caller of `send_nowait` starts a send,
a callback ends it, and no retry blocks a thread. For transactions see `transactions`.

Source: `DefaultMQProducerImpl.java`, `MQClientAPIImpl.onExceptionImpl`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, Final, TypeAlias, TypedDict, Unpack, cast, overload

import msgspec

from longpoll_client.checks import Addresses, ConnectOptions, check_group, check_plain, refuse_unknown, runtime_of
from longpoll_client.errors import AnswerTimeoutError, ClientError, LifecycleError
from longpoll_client.instance import ClientInstance
from longpoll_client.lifecycle import when_garbage_collected
from longpoll_client.link.exchange import CALL_TIMEOUT_S, Answer, wait_ns
from longpoll_client.link.routes import Route
from longpoll_client.messages import ReceivedMessage
from longpoll_client.produce.attempts import (
    Attempt,
    QueueSelector,
    SendAttempts,
    SendResult,
    SlowBrokers,
    is_lost,
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
from longpoll_client.produce.requests import ReplyCallback, Requests, reply_to
from longpoll_client.remoting import RemotingClient
from longpoll_client.timer import SingleFlight
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.compression import Compression
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import FAULTS
from longpoll_runtime.services import Closeable
from longpoll_spec.errors import ConfigError, LongpollError
from longpoll_spec.tables import with_table

log: logging.Logger = logging.getLogger(__name__)

SendCallback: TypeAlias = Callable[[SendResult | LongpollError], object]
"""Called once with the result or the error of a send. A thread of the client calls it, so it must return quickly."""
ReadHeader: TypeAlias = Callable[[Command], SendMessageResponseHeader]
"""Decodes the fields of an answer to a send; raises HeaderError."""
_UNENDED: Final = ClientError("the send did not finish: it was interrupted, or its queue selector failed")


class ProducerOptions(ConnectOptions, total=False):
    """Options of every producer."""

    compression: Compression | None
    """How to compress bodies of `compress_over_bytes` or more; None means never. Batches are never compressed."""
    compress_over_bytes: int
    """The minimum size of a compressed body, bytes; 4,096 by default."""
    hooks: Sequence[SendHook]
    """Called before and after every send."""


class MessageOptions(TypedDict, total=False):
    """Options of one message."""

    tag: str | None
    """The message's tag; subscriptions select messages by tag."""
    keys: str | Sequence[str] | None
    """The keys of the message, as a list or separated by spaces."""
    properties: Mapping[str, str] | None


class RequestOptions(MessageOptions, total=False):
    """Options of one request, or of one transaction."""

    queue_selector: QueueSelector | None
    """Picks the queue. By default, the queues are used in turn."""
    timeout_s: float
    """The timeout of the whole call, seconds; 3 by default."""


class SendOptions(RequestOptions, total=False):
    """Options of one send."""

    delay_s: float
    """Consumers get the message after this delay, rounded up to a delay that brokers support."""
    deliver_at: datetime | None
    """Consumers get the message at this time; this needs a 5.x broker."""
    queue_id: int | None
    """The id of the queue, instead of a `queue_selector`."""


@with_table
class StartedSend(msgspec.Struct, eq=False):
    """One send, with all its attempts."""

    tries: SendAttempts
    told_of: Sending | None
    """The hooks' record of the send; None if there are no hooks."""
    begun_ns: int
    callback: SendCallback | None = None


def read_options(
    topic: str, body: bytes, options: MessageOptions, kind: Any = SendOptions
) -> tuple[OutgoingMessage, QueueSelector | None, float]:
    """Returns message, selector and time-out of a send; raises ConfigError, and TypeError for an unknown option."""
    if not options:
        return OutgoingMessage(body), None, CALL_TIMEOUT_S
    refuse_unknown(options, kind)
    given = cast("SendOptions", options)
    timeout_s = given.pop("timeout_s", CALL_TIMEOUT_S)
    chosen = selector(topic, given.pop("queue_id", None), given.pop("queue_selector", None))
    properties = given.pop("properties", None)
    return OutgoingMessage(body, properties=properties or {}, **cast("Any", given)), chosen, timeout_s


class Sender:
    """The sends of one producer, without I/O.

    A sender has no reference to its producer, so a producer that is no longer used can be garbage-collected.
    """

    def __init__(
        self, group: str, options: ProducerOptions, read: ReadHeader, *, avoids_slow_brokers: bool = False
    ) -> None:
        """Check the options; raises ConfigError, and TypeError for an unknown option."""
        refuse_unknown(options, ProducerOptions)
        check_group(group)
        self.group: str = group
        self.runtime: Runtime = runtime_of(options.get("runtime"), options.get("tls"))
        self.credentials: Credentials | None = options.get("credentials")
        self.watch: Watch = Watch(self.runtime, options.get("hooks", ()))
        self.ids: MessageIds = MessageIds(self.runtime)
        self.next_turn: Callable[[], int] = count().__next__
        self.templates: HeadTemplates = HeadTemplates()
        self.now_ns: Callable[[], int] = self.runtime.monotonic_ns
        over_bytes = options.get("compress_over_bytes", COMPRESS_OVER_BYTES)
        self._packing = Packing(options.get("compression", Compression.ZLIB), over_bytes)
        self._slow = SlowBrokers() if avoids_slow_brokers else None
        self._read = read

    def single(
        self,
        topic: str,
        message: OutgoingMessage,
        marks: Mapping[str, str] = NO_MARKS,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    ) -> Parcel:
        """Encode one message with the properties of the client and of the hooks; raises ConfigError."""
        msg_id, born_ms = self.ids.one()
        marks = self.watch.marks(topic, marks)
        return single_parcel(self.group, topic, message, msg_id, born_ms, packing=self._packing, marks=marks, code=code)

    def prepared(self, topic: str, message: OutgoingMessage) -> Parcel:
        """Encode one message that waits for the end of its transaction; raises ConfigError."""
        msg_id, born_ms = self.ids.one()
        marks = self.watch.marks(topic)
        return prepared_parcel(self.group, topic, message, msg_id, born_ms, packing=self._packing, marks=marks)

    def batch(self, topic: str, messages: Sequence[OutgoingMessage]) -> Parcel:
        """Encode a batch, whose messages are stored next to each other; raises ConfigError."""
        check_batch(messages)
        messages = self.watch.marked(topic, messages)
        return batch_parcel(self.group, topic, messages, self.ids.new(len(messages)), self.runtime.unix_ms())

    def reply(self, request: ReceivedMessage, body: bytes) -> Parcel:
        """Encode a reply to a request; raises ConfigError."""
        topic, marks = reply_to(request)
        return self.single(topic, OutgoingMessage(body), marks, RequestCode.SEND_REPLY_MESSAGE_V2)

    def pick(self, parcel: Parcel, route: Route) -> tuple[str, Any]:
        """Return the address and the header of a one-way send; raises NoRouteError."""
        queue = pick(route, None, self.next_turn, None, slow=self._slow, now_ns=self.now_ns())
        return route.addresses[queue.broker_name], parcel.header(queue.queue_id)

    def begin(
        self,
        parcel: Parcel,
        queue_selector: QueueSelector | None,
        timeout_s: float,
        callback: SendCallback | None = None,
    ) -> StartedSend:
        """Begin a send, and call the hooks."""
        now_ns = self.now_ns()
        tries = SendAttempts(parcel, queue_selector, now_ns + wait_ns(timeout_s), self._slow, self._read)
        return StartedSend(tries, self.watch.begin(parcel), now_ns, callback)

    def attempt(self, sending: StartedSend, route: Route) -> Attempt:
        """Begin the next attempt; raises the errors of `SendAttempts.begin`."""
        return sending.tries.begin(route, self.next_turn, self.now_ns())

    def ended(self, sending: StartedSend, outcome: Outcome | None) -> None:
        """End a send, even if it was interrupted without an outcome, and call the hooks."""
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
        """Returns the counts of all sends so far."""
        return self._sender.watch.metrics()

    def request_nowait(
        self, topic: str, body: bytes, *, callback: ReplyCallback, **options: Unpack[RequestOptions]
    ) -> None:
        """Send one message. `callback` gets the reply or the ClientError once, and must return quickly.

        On threads this method returns when the broker has the message, and a thread of the client calls `callback`. On
        an event loop this method returns at once, and the loop calls `callback`. Raises ConfigError, LifecycleError or
        another ClientError, and on an event loop LocalProtocolError while 65,535 sends are in progress. If this method
        raises an error, `callback` is not called.
        """
        check_plain("callback", callback)
        self._request_later(topic, *read_options(topic, body, options, RequestOptions), callback)

    @abstractmethod
    def _request_later(
        self,
        topic: str,
        message: OutgoingMessage,
        queue_selector: QueueSelector | None,
        timeout_s: float,
        on_reply: ReplyCallback,
    ) -> None:
        """Send the request of `request_nowait`, and call `on_reply` later."""


class InFlightSends:
    """The sends of one producer that have callbacks.

    Retries that need the same route or connection wait for it together. Each callback is called once: when its send
    ends, when no retry is possible, or by `close`.
    """

    def __init__(self, runtime: Runtime, instance: ClientInstance, sender: Sender) -> None:
        self._now_ns = runtime.monotonic_ns
        self._instance = instance
        self._sender = sender
        self._single_flight = SingleFlight(runtime, "sends-again")

    def begin(
        self, parcel: Parcel, queue_selector: QueueSelector | None, timeout_s: float, callback: SendCallback
    ) -> None:
        """Send a message; another thread calls `callback`.

        Raises a ConfigError, NoRouteError, LifecycleError or LocalProtocolError at once; then `callback` is not called.
        """
        sending = self._sender.begin(parcel, queue_selector, timeout_s, callback)
        try:
            self._try(sending)
        except FAULTS as error:
            self._sender.ended(sending, error if isinstance(error, LongpollError) else None)
            raise

    def close(self) -> None:
        """End the sends that wait for a retry. Call this after closing the connections, which ends all other sends."""
        self._single_flight.close()

    def _tell(self, sending: StartedSend, outcome: SendResult | LongpollError) -> None:
        """Call the hooks and the callback, and log their errors."""
        try:
            self._sender.ended(sending, (outcome,) if isinstance(outcome, SendResult) else outcome)
        finally:
            # `KeepGoing` is not used here, because it would make each send slower.
            try:
                assert sending.callback is not None
                sending.callback(outcome)
            except FAULTS:
                log.exception("the callback of a send failed")

    def _try(self, sending: StartedSend) -> None:
        """Send to one broker; raises the send's error, unless the callback gets it later."""
        tries = sending.tries
        while True:
            route = self._instance.publish_route(tries.parcel.topic)
            attempt = self._sender.attempt(sending, route)
            try:
                self._ask(self._instance.client(attempt.address), sending, attempt, attempt.timeout_s)
            except LifecycleError:
                raise
            except ClientError as error:
                self._doubt(tries, error)
                tries.ended(error, self._now_ns())
            else:
                return

    # ------------------------------------------------------------ without waiting: on a reader thread, or next to

    def _answered(self, sending: StartedSend, answer: Answer) -> None:
        if isinstance(answer, ClientError):
            self._doubt(sending.tries, answer)
        try:
            found = sending.tries.ended(answer, self._now_ns())
        except ClientError as error:
            self._tell(sending, error)
            return
        if found is not None:
            self._tell(sending, found[0])
            return
        topic = sending.tries.parcel.topic
        route = self._instance.fresh_route(topic)
        if route is not None:
            self._routed(sending, route)
        else:
            self._single_flight.wait(
                ("route", topic),
                lambda: self._instance.publish_route(topic),
                lambda found: self._routed(sending, found),
            )

    def _routed(self, sending: StartedSend, route: Route | LongpollError) -> None:
        try:
            if isinstance(route, LongpollError):
                raise route
            attempt = self._sender.attempt(sending, route)
            client = self._instance.opened(attempt.address)
        except LongpollError as error:
            self._tell(sending, error)
        except FAULTS as error:
            self._tell(sending, ClientError(f"the send could not be retried: {error!r}"))
        else:
            if client is not None:
                self._connected(sending, attempt, client)
            else:
                self._single_flight.wait(
                    ("connection", attempt.address),
                    lambda: self._instance.client(attempt.address),
                    lambda found: self._connected(sending, attempt, found),
                )

    def _connected(self, sending: StartedSend, attempt: Attempt, client: RemotingClient | LongpollError) -> None:
        tries = sending.tries
        left_s = (tries.deadline_ns - self._now_ns()) / 1e9
        try:
            if isinstance(client, LongpollError):
                raise client
            if left_s <= 0.0:
                raise AnswerTimeoutError(f"the time-out passed while connecting to {attempt.address}")
            self._ask(client, sending, attempt, left_s)
        except ClientError as error:
            self._answered(sending, error)
        except LongpollError as error:
            self._tell(sending, error)

    def _ask(self, client: RemotingClient, sending: StartedSend, attempt: Attempt, timeout_s: float) -> None:
        """Send to one broker; raises a ClientError if nothing was sent."""
        parcel = sending.tries.parcel
        write = self._sender.templates.writer(client, parcel, attempt.queue.queue_id)
        client.begin(parcel.code, write, partial(self._answered, sending), timeout_s)

    def _doubt(self, tries: SendAttempts, error: ClientError) -> None:
        if is_lost(error):
            self._instance.doubt_route(tries.parcel.topic)


class Producer(ProducerCore, Closeable):
    """Sends messages to any topic; many threads may use one producer."""

    def __init__(
        self,
        name_server: Addresses,
        *,
        group: str = "longpoll-producer",
        avoids_slow_brokers: bool = False,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Create a producer; it connects with its first send. Raises ConfigError.

        Args:
            name_server: HOST:PORT; several addresses as a list, or separated by semicolons.
            group: The producer group.
            avoids_slow_brokers: Avoid brokers for seconds after they were slow or failed (`sendLatencyFaultEnable`).
            options: The options of `ProducerOptions`.
        """
        sender = Sender(group, options, RemotingClient.sent_header, avoids_slow_brokers=avoids_slow_brokers)
        instance = ClientInstance(sender.runtime, name_server, credentials=sender.credentials)
        self._set_up(instance, sender)
        instance.on_request, instance.producer_group = self._requests.requested, group
        self._closed: Callable[[], object] = when_garbage_collected(
            self, instance.abandon, f"a producer of group {group}"
        )

    def _set_up(self, instance: ClientInstance, sender: Sender) -> None:
        self._instance = instance
        self._sender = sender
        self._runtime = sender.runtime
        self._requests = Requests(instance, sender.group)
        self._in_flight = InFlightSends(sender.runtime, instance, sender)

    def close(self) -> None:
        """Close every connection. Sends of `send_nowait` in progress fail, and their callbacks get the error."""
        self._closed()
        self._requests.close()
        self._instance.close()
        self._in_flight.close()

    def send(self, topic: str, body: bytes, **options: Unpack[SendOptions]) -> SendResult:
        """Send one message and wait until the broker has it.

        The message goes to the next queue in turn, to `queue_id`, or to the queue that `queue_selector` picks. If the
        send fails, the message is sent up to twice more within `timeout_s`: to the next queues, if possible of another
        broker; with `queue_id` to the same queue; with `queue_selector` to the queue that it picks then. After an error
        the message may be stored anyway, or even twice, as with every RocketMQ producer. Raises ConfigError for a
        message that no broker accepts, and otherwise a ClientError.
        """
        message, queue_selector, timeout_s = read_options(topic, body, options)
        (result,) = self._send(self._sender.single(topic, message), queue_selector, timeout_s)
        return result

    @overload
    def send_nowait(
        self, topic: str, body: bytes, *, callback: SendCallback, **options: Unpack[SendOptions]
    ) -> None: ...

    @overload
    def send_nowait(
        self, topic: str, body: bytes, *, callback: None = None, **options: Unpack[SendOptions]
    ) -> Future[SendResult]: ...

    def send_nowait(
        self, topic: str, body: bytes, *, callback: SendCallback | None = None, **options: Unpack[SendOptions]
    ) -> Future[SendResult] | None:
        """Send as `send` does, without waiting for the broker; returns a Future of the result.

        If `callback` is given, which is faster, no Future is returned. Another thread calls `callback` once with the
        result or the error, so `callback` must return quickly. The first send to a topic or broker waits for the route
        and the connection. Errors before the send are raised here, such as LocalProtocolError while 65,535 sends to one
        broker are in progress.
        """
        future: Future[SendResult] | None = None
        if callback is None:
            future = Future()
            callback = partial(_settle, future)
        else:
            check_plain("callback", callback)
        message, queue_selector, timeout_s = read_options(topic, body, options)
        self._in_flight.begin(self._sender.single(topic, message), queue_selector, timeout_s, callback)
        return future

    def send_batch(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> tuple[SendResult, ...]:
        """Send messages that one queue stores next to each other, or not at all; at most 4 MiB in total.

        Otherwise see `send`.
        """
        parcel = self._sender.batch(topic, messages)
        return self._send(parcel, selector(topic, queue_id, queue_selector), timeout_s)

    def send_one_way(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> str:
        """Send one message without waiting for an answer, and return the message's id.

        The client never learns whether the message was stored. Raises ConfigError, or a ClientError if the message
        could not be sent.
        """
        parcel = self._sender.single(topic, read_options(topic, body, options, MessageOptions)[0])
        address, header = self._sender.pick(parcel, self._instance.publish_route(topic))
        self._instance.client(address).one_way(parcel.code, header, parcel.body)
        self._sender.watch.sent_one_way()
        return parcel.msg_ids[0]

    def request(self, topic: str, body: bytes, **options: Unpack[RequestOptions]) -> ReceivedMessage:
        """Send one message and wait for the consumer's reply, at most `timeout_s` in total.

        Raises ReplyTimeoutError if no reply comes in time, and the errors of `send`. A retried request may be served
        twice.
        """
        answered = self._runtime.event()
        outcomes: list[ReceivedMessage | ClientError] = []

        def receive(outcome: ReceivedMessage | ClientError) -> None:
            outcomes.append(outcome)
            answered.set()

        self.request_nowait(topic, body, callback=receive, **options)
        answered.wait()
        if isinstance(outcomes[0], ClientError):
            raise outcomes[0]
        return outcomes[0]

    def _request_later(
        self,
        topic: str,
        message: OutgoingMessage,
        queue_selector: QueueSelector | None,
        timeout_s: float,
        on_reply: ReplyCallback,
    ) -> None:
        self._instance.publish_route(topic)
        (correlation_id,) = self._sender.ids.new(1)
        marks = self._requests.expect(correlation_id, wait_ns(timeout_s) / 1e9, on_reply)
        try:
            self._send(self._sender.single(topic, message, marks), queue_selector, timeout_s)
        except (ClientError, ConfigError):
            if self._requests.forget(correlation_id):
                raise

    def reply(self, request: ReceivedMessage, body: bytes, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Reply to a message that `request` has sent, here or in a Java client.

        Returns when the requester has the reply. Raises ConfigError if the message is not a request, and RefusedError
        (1) if the requester is gone.
        """
        self._send(self._sender.reply(request, body), None, timeout_s)

    def _send(self, parcel: Parcel, queue_selector: QueueSelector | None, timeout_s: float) -> tuple[SendResult, ...]:
        """Try up to three queues; raises the error of the last attempt."""
        sending = self._sender.begin(parcel, queue_selector, timeout_s)
        outcome: Outcome | None = None
        try:
            found = None
            while found is None:
                attempt = self._sender.attempt(sending, self._instance.publish_route(parcel.topic))
                answer = self._try(parcel, attempt)
                outcome = found = sending.tries.ended(answer, self._sender.now_ns())
        except LongpollError as error:
            outcome = error
            raise
        finally:
            self._sender.ended(sending, outcome)
        return found

    def _try(self, parcel: Parcel, attempt: Attempt) -> Command | ClientError:
        try:
            client = self._instance.client(attempt.address)
            write = self._sender.templates.writer(client, parcel, attempt.queue.queue_id)
            return client.ask(parcel.code, write, attempt.timeout_s)
        except ClientError as error:
            if is_lost(error):
                self._instance.doubt_route(parcel.topic)
            return error


class PreparedProducer(Producer):
    """Sends the prepared messages of a `TransactionProducer`, over its connections."""

    def __init__(self, instance: ClientInstance, sender: Sender) -> None:
        self._closed = lambda: None
        self._set_up(instance, sender)

    def send_prepared(
        self, topic: str, message: OutgoingMessage, queue_selector: QueueSelector | None, timeout_s: float
    ) -> SendResult:
        """Send a message that consumers get only after its commit; otherwise see `send`."""
        (result,) = self._send(self._sender.prepared(topic, message), queue_selector, timeout_s)
        return result


def _settle(future: Future[SendResult], outcome: SendResult | LongpollError) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, LongpollError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
