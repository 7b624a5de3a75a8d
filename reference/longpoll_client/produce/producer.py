"""Sends messages to a queue's broker, and to another broker after a failure, as `attempts` decides.

The caller of `send_nowait` starts a send, a callback ends it, and no retry blocks a thread. Transactions: see
`transactions`.

Source: `DefaultMQProducerImpl.java`, `MQClientAPIImpl.onExceptionImpl`.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from itertools import count
from typing import TypeAlias, overload

import msgspec
from attrs import define

from longpoll_client.checks import Addresses, check_group, check_plain, runtime_of
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
    Turn,
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
from longpoll_client.produce.requests import ReplyCallback, RequestNowait, Requests, SenderOptions, reply_to
from longpoll_client.remoting import RemotingClient
from longpoll_client.timer import SingleFlight
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.compression import Compression
from longpoll_protocol.frames.command import Command
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime
from longpoll_runtime.closeable import Closeable
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.errors import ConfigError, LongpollError
from longpoll_spec.tables import with_table

log: logging.Logger = logging.getLogger(__name__)

SendCallback: TypeAlias = Callable[[SendResult | LongpollError], object]
"""Is called once with where a message went, or why it did not; it must not wait."""


@with_table
class StartedSend(msgspec.Struct, eq=False):
    """One send, with all its tries."""

    tries: SendAttempts
    told_of: Sending | None
    """What the hooks were told of it, if there are any."""
    begun_ns: int


@with_table
class _Sending(StartedSend, eq=False):
    """One send with a callback."""

    callback: SendCallback


class InFlightSends:
    """The sends of one producer that have callbacks.

    A retry waits for its route or connection together with other sends. Each callback is called once: at the end, when
    no retry is possible, or by `close`.
    """

    def __init__(
        self,
        runtime: Runtime,
        instance: ClientInstance,
        turn: Turn,
        *,
        templates: HeadTemplates,
        watch: Watch,
        slow: SlowBrokers | None = None,
    ) -> None:
        self._now_ns = runtime.monotonic_ns
        self._instance = instance
        self._turn = turn
        self._slow = slow
        self._templates = templates
        self._watch = watch
        self._single_flight = SingleFlight(runtime, "sends-again")

    def begin(
        self, parcel: Parcel, queue_selector: QueueSelector | None, timeout_s: float, callback: SendCallback
    ) -> None:
        """Send; another thread calls `callback`.

        Raises a ConfigError, NoRouteError, LifecycleError or LocalProtocolError at once; then `callback` is not called.
        """
        begun_ns = self._now_ns()
        tries = SendAttempts(
            parcel, queue_selector, begun_ns + wait_ns(timeout_s), self._slow, RemotingClient.sent_header
        )
        sending = _Sending(tries, self._watch.begin(parcel), begun_ns, callback)
        try:
            self._try(sending)
        except FAULTS as error:
            self._ended(sending, error if isinstance(error, LongpollError) else ())
            raise

    def close(self) -> None:
        """End the sends that wait for a retry; after the connections are closed, which ended the others."""
        self._single_flight.close()

    def _ended(self, sending: _Sending, outcome: Outcome) -> None:
        self._watch.ended(sending.told_of, sending.tries, outcome, self._now_ns() - sending.begun_ns)

    def _tell(self, sending: _Sending, outcome: SendResult | LongpollError) -> None:
        """Call the hooks and the callback. Their errors are logged."""
        try:
            self._ended(sending, (outcome,) if isinstance(outcome, SendResult) else outcome)
        finally:
            # Without `KeepGoing`, which costs as much as half of an id, for this is done for every send.
            try:
                sending.callback(outcome)
            except FAULTS:
                log.exception("the callback of a send failed")

    def _try(self, sending: _Sending) -> None:
        """Ask one broker; raises the send's error, unless the callback gets it later."""
        tries = sending.tries
        while True:
            route = self._instance.publish_route(tries.parcel.topic)
            attempt = tries.begin(route, self._turn, self._now_ns())
            try:
                self._ask(self._instance.client(attempt.address), sending, attempt, attempt.timeout_s)
            except LifecycleError:
                raise
            except ClientError as error:
                self._doubt(tries, error)
                tries.ended(error, self._now_ns())
            else:
                return

    # ------------------------------------------------------------ where nobody may wait: on a reader thread, or beside

    def _answered(self, sending: _Sending, answer: Answer) -> None:
        """Report the result, or try again."""
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

    def _routed(self, sending: _Sending, route: Route | LongpollError) -> None:
        """Pick a broker, and ask it."""
        try:
            if isinstance(route, LongpollError):
                raise route
            attempt = sending.tries.begin(route, self._turn, self._now_ns())
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

    def _connected(self, sending: _Sending, attempt: Attempt, client: RemotingClient | LongpollError) -> None:
        """Ask the broker, if there is time left."""
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

    def _ask(self, client: RemotingClient, sending: _Sending, attempt: Attempt, timeout_s: float) -> None:
        """Ask one broker; raises a ClientError if nothing was sent."""
        parcel = sending.tries.parcel
        write = self._templates.writer(client, parcel, attempt.queue.queue_id)
        client.begin(parcel.code, write, partial(self._answered, sending), timeout_s)

    def _doubt(self, tries: SendAttempts, error: ClientError) -> None:
        if is_lost(error):
            self._instance.doubt_route(tries.parcel.topic)


@define(slots=True, eq=False)
class _BrokerRequests:
    """Handles brokers' requests.

    It does not hold the producer, which may be garbage-collected with open connections.
    """

    requests: Requests | None = None

    def requested(self, command: Command, address: str) -> bool:
        """On a reader thread."""
        is_reply = command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        return is_reply and self.requests is not None and self.requests.requested(command, address)


class Producer(Closeable, RequestNowait):
    """Sends messages to any topic; may be used from many threads."""

    def __init__(
        self,
        name_server: Addresses,
        *,
        group: str = "longpoll-producer",
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        compression: Compression | None = Compression.ZLIB,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        avoids_slow_brokers: bool = False,
        hooks: Sequence[SendHook] = (),
        runtime: Runtime | None = None,
    ) -> None:
        """Create a producer; it connects with its first send. Raises ConfigError.

        Args:
            name_server: HOST:PORT; several as a list, or separated by semicolons.
            group: The producer group.
            tls: How to connect over TLS. Default: plain connections.
            credentials: The account, for a broker with access control.
            compression: How to compress bodies of `compress_over_bytes` or more; None: not at all. Batches never are.
            compress_over_bytes: The least size of a body that is compressed.
            avoids_slow_brokers: Stay away for seconds from brokers that were slow or failed (`sendLatencyFaultEnable`).
            hooks: Called before and after every send.
            runtime: For tests.
        """
        check_group(group)
        asked = _BrokerRequests()
        instance = ClientInstance(
            runtime_of(runtime, tls), name_server, on_request=asked.requested, credentials=credentials
        )
        slow = SlowBrokers() if avoids_slow_brokers else None
        self._set_up(instance, SenderOptions(group, Packing(compression, compress_over_bytes), hooks, slow))
        asked.requests = self._requests
        self._closed: Callable[[], object] = when_garbage_collected(
            self, instance.abandon, f"a producer of group {group}"
        )

    def _set_up(self, instance: ClientInstance, options: SenderOptions) -> None:
        runtime = instance.runtime
        self.group: str = options.group
        self._instance = instance
        self._runtime = runtime
        self._options = options
        self._watch = Watch(runtime, options.hooks)
        self._requests = Requests(instance, options.group)
        self._now_ns = runtime.monotonic_ns
        self._next_turn = count().__next__
        self._ids = MessageIds(runtime)
        self._templates = HeadTemplates()
        self._in_flight = InFlightSends(
            runtime, instance, self._next_turn, templates=self._templates, watch=self._watch, slow=self._options.slow
        )

    def close(self) -> None:
        """Close every connection. Sends of `send_nowait` in progress fail, and their callbacks get the error."""
        self._closed()
        self._requests.close()
        self._instance.close()
        self._in_flight.close()

    def metrics(self) -> SendMetrics:
        """The counts of all sends so far."""
        return self._watch.metrics()

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_s: float = 0.0,
        deliver_at: datetime | None = None,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> SendResult:
        """Send one message and wait until the broker has it.

        It goes to the next queue in turn, to `queue_id`, or to the one that `queue_selector` picks. When that fails, it
        is sent up to twice more within `timeout_s`: to the next queues, of another broker if there is one; with
        `queue_id` to the same one, and with `queue_selector` to what this picks then. After an error the message may be
        stored anyway, or even twice, as with every RocketMQ producer.
        Raises ConfigError for a message that no broker takes, else a ClientError.
        """
        message = OutgoingMessage(body, tag, keys, properties or {}, delay_s, deliver_at)
        (result,) = self._send(self._single(topic, message), selector(topic, queue_id, queue_selector), timeout_s)
        return result

    @overload
    def send_nowait(
        self,
        topic: str,
        body: bytes,
        *,
        callback: SendCallback,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_s: float = 0.0,
        deliver_at: datetime | None = None,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None: ...

    @overload
    def send_nowait(
        self,
        topic: str,
        body: bytes,
        *,
        callback: None = None,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_s: float = 0.0,
        deliver_at: datetime | None = None,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Future[SendResult]: ...

    def send_nowait(
        self,
        topic: str,
        body: bytes,
        *,
        callback: SendCallback | None = None,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        delay_s: float = 0.0,
        deliver_at: datetime | None = None,
        queue_id: int | None = None,
        queue_selector: QueueSelector | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Future[SendResult] | None:
        """Send as `send` does, without waiting for the broker; a Future of the result.

        With a `callback`, which is faster, there is no Future. Another thread calls it once with the result or the
        error; it must not wait. The first send to a topic or broker waits here for the route and the connection. Errors
        before the send are raised here, such as LocalProtocolError while 65,535 sends to one broker are in progress.
        """
        future: Future[SendResult] | None = None
        if callback is None:
            future = Future()
            callback = partial(_settle, future)
        else:
            check_plain("callback", callback)
        parcel = self._single(topic, OutgoingMessage(body, tag, keys, properties or {}, delay_s, deliver_at))
        self._in_flight.begin(parcel, selector(topic, queue_id, queue_selector), timeout_s, callback)
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
        """Send messages that one queue gets next to each other, or none of them; 4 MiB in all at most.

        Otherwise as `send`.
        """
        check_batch(messages)
        messages = self._watch.marked(topic, messages)
        parcel = batch_parcel(self.group, topic, messages, self._ids.new(len(messages)), self._runtime.unix_ms())
        return self._send(parcel, selector(topic, queue_id, queue_selector), timeout_s)

    def send_one_way(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Send one message without waiting for an answer; its id.

        Whether it was stored is never known. Raises ConfigError, or a ClientError if it could not be sent.
        """
        parcel = self._single(topic, OutgoingMessage(body, tag, keys, properties or {}))
        route = self._instance.publish_route(topic)
        queue = pick(route, None, self._next_turn, None, slow=self._options.slow, now_ns=self._runtime.monotonic_ns())
        self._instance.client(route.addresses[queue.broker_name]).one_way(
            parcel.code, parcel.header(queue.queue_id), parcel.body
        )
        self._watch.sent_one_way()
        return parcel.msg_ids[0]

    def request(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        queue_selector: QueueSelector | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> ReceivedMessage:
        """Send one message and wait for the consumer's reply, at most `timeout_s` in all.

        Raises ReplyTimeoutError if none comes in time, else as `send`. A retried request may be served twice.
        """
        answered = self._runtime.event()
        outcomes: list[ReceivedMessage | ClientError] = []

        def receive(outcome: ReceivedMessage | ClientError) -> None:
            outcomes.append(outcome)
            answered.set()

        message = OutgoingMessage(body, tag, keys, properties or {})
        self._request_later(topic, message, receive, queue_selector, timeout_s)
        answered.wait()
        if isinstance(outcomes[0], ClientError):
            raise outcomes[0]
        return outcomes[0]

    def _request_later(
        self,
        topic: str,
        message: OutgoingMessage,
        on_reply: ReplyCallback,
        queue_selector: QueueSelector | None,
        timeout_s: float,
    ) -> None:
        self._instance.publish_route(topic)
        (correlation_id,) = self._ids.new(1)
        marks = self._requests.expect(correlation_id, wait_ns(timeout_s) / 1e9, on_reply)
        try:
            self._send(self._single(topic, message, marks), queue_selector, timeout_s)
        except (ClientError, ConfigError):
            if self._requests.forget(correlation_id):
                raise

    def reply(self, request: ReceivedMessage, body: bytes, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Reply to a message that was sent by `request`, also by Java's. Returns when the requester has the reply.

        Raises ConfigError if the message is not a request, and RefusedError (1) if the requester is gone.
        """
        topic, marks = reply_to(request)
        parcel = self._single(topic, OutgoingMessage(body), marks, RequestCode.SEND_REPLY_MESSAGE_V2)
        self._send(parcel, None, timeout_s)

    def _send(self, parcel: Parcel, queue_selector: QueueSelector | None, timeout_s: float) -> tuple[SendResult, ...]:
        """Try up to three queues; raises the last one's error."""
        begun_ns = self._now_ns()
        tries = SendAttempts(
            parcel, queue_selector, begun_ns + wait_ns(timeout_s), self._options.slow, RemotingClient.sent_header
        )
        sending = self._watch.begin(parcel)
        outcome: Outcome = ()
        try:
            outcome = found = self._tried(parcel, tries)
        except LongpollError as error:
            outcome = error
            raise
        finally:
            self._watch.ended(sending, tries, outcome, self._now_ns() - begun_ns)
        return found

    def _tried(self, parcel: Parcel, tries: SendAttempts) -> tuple[SendResult, ...]:
        while True:
            route = self._instance.publish_route(parcel.topic)
            attempt = tries.begin(route, self._next_turn, self._now_ns())
            found = tries.ended(self._try(parcel, attempt), self._now_ns())
            if found is not None:
                return found

    def _try(self, parcel: Parcel, attempt: Attempt) -> Command | ClientError:
        """Ask one broker, and wait for what comes of it."""
        try:
            client = self._instance.client(attempt.address)
            write = self._templates.writer(client, parcel, attempt.queue.queue_id)
            return client.ask(parcel.code, write, attempt.timeout_s)
        except ClientError as error:
            if is_lost(error):
                self._instance.doubt_route(parcel.topic)
            return error

    def _single(
        self,
        topic: str,
        message: OutgoingMessage,
        marks: Mapping[str, str] = NO_MARKS,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    ) -> Parcel:
        msg_id, born_ms = self._ids.one()
        marks = self._watch.marks(topic, marks)
        return single_parcel(
            self.group, topic, message, msg_id, born_ms, packing=self._options.packing, marks=marks, code=code
        )


class PreparedProducer(Producer):
    """Sends the prepared messages of a `TransactionProducer`, over its connections."""

    def __init__(self, instance: ClientInstance, options: SenderOptions) -> None:
        self._closed = lambda: None
        self._set_up(instance, options)

    def send_prepared(
        self, topic: str, message: OutgoingMessage, queue_selector: QueueSelector | None, timeout_s: float
    ) -> SendResult:
        """Send a message that consumers get only after its commit; otherwise as `send`."""
        msg_id, born_ms = self._ids.one()
        marks = self._watch.marks(topic)
        parcel = prepared_parcel(
            self.group, topic, message, msg_id, born_ms, packing=self._options.packing, marks=marks
        )
        (result,) = self._send(parcel, queue_selector, timeout_s)
        return result


def _settle(future: Future[SendResult], outcome: SendResult | LongpollError) -> None:
    """End a send's Future, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, LongpollError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
