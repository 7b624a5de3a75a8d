"""Sends messages to a queue's broker, and to another broker after a failure, as `attempts` decides.

The caller of `send_nowait` starts a send, a callback ends it, and no retry blocks a thread. Transactions: see
`transactions`.

Source: `DefaultMQProducerImpl.java`, `MQClientAPIImpl.onExceptionImpl`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Unpack, overload

from longpoll_client.checks import Addresses, check_plain
from longpoll_client.errors import AnswerTimeoutError, ClientError, LifecycleError
from longpoll_client.instance import ClientInstance
from longpoll_client.lifecycle import when_garbage_collected
from longpoll_client.link.exchange import CALL_TIMEOUT_S, Answer, wait_ns
from longpoll_client.link.routes import Route
from longpoll_client.messages import ReceivedMessage
from longpoll_client.produce.attempts import Attempt, QueueSelector, SendAttempts, SendResult, is_lost, selector
from longpoll_client.produce.hooks import Outcome
from longpoll_client.produce.outgoing import OutgoingMessage, Parcel
from longpoll_client.produce.requests import ReplyCallback, Requests
from longpoll_client.produce.sender import (
    MessageOptions,
    ProducerCore,
    ProducerOptions,
    RequestOptions,
    SendCallback,
    Sender,
    SenderOptions,
    SendOptions,
    StartedSend,
    message_of,
    read_options,
)
from longpoll_client.remoting import RemotingClient
from longpoll_client.timer import SingleFlight
from longpoll_protocol.frames.command import Command
from longpoll_runtime import Runtime
from longpoll_runtime.closeable import Closeable
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.errors import ConfigError, LongpollError

log: logging.Logger = logging.getLogger(__name__)


class InFlightSends:
    """The sends of one producer that have callbacks.

    A retry waits for its route or connection together with other sends. Each callback is called once: at the end, when
    no retry is possible, or by `close`.
    """

    def __init__(self, runtime: Runtime, instance: ClientInstance, sender: Sender) -> None:
        self._now_ns = runtime.monotonic_ns
        self._instance = instance
        self._sender = sender
        self._single_flight = SingleFlight(runtime, "sends-again")

    def begin(
        self, parcel: Parcel, queue_selector: QueueSelector | None, timeout_s: float, callback: SendCallback
    ) -> None:
        """Send; another thread calls `callback`.

        Raises a ConfigError, NoRouteError, LifecycleError or LocalProtocolError at once; then `callback` is not called.
        """
        sending = self._sender.begin(parcel, queue_selector, timeout_s, callback)
        try:
            self._try(sending)
        except FAULTS as error:
            self._sender.ended(sending, error if isinstance(error, LongpollError) else None)
            raise

    def close(self) -> None:
        """End the sends that wait for a retry; after the connections are closed, which ended the others."""
        self._single_flight.close()

    def _tell(self, sending: StartedSend, outcome: SendResult | LongpollError) -> None:
        """Call the hooks and the callback. Their errors are logged."""
        try:
            self._sender.ended(sending, (outcome,) if isinstance(outcome, SendResult) else outcome)
        finally:
            # Without `KeepGoing`, which costs as much as half of an id, for this is done for every send.
            try:
                assert sending.callback is not None
                sending.callback(outcome)
            except FAULTS:
                log.exception("the callback of a send failed")

    def _try(self, sending: StartedSend) -> None:
        """Ask one broker; raises the send's error, unless the callback gets it later."""
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

    # ------------------------------------------------------------ where nobody may wait: on a reader thread, or beside

    def _answered(self, sending: StartedSend, answer: Answer) -> None:
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

    def _routed(self, sending: StartedSend, route: Route | LongpollError) -> None:
        """Pick a broker, and ask it."""
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

    def _ask(self, client: RemotingClient, sending: StartedSend, attempt: Attempt, timeout_s: float) -> None:
        """Ask one broker; raises a ClientError if nothing was sent."""
        parcel = sending.tries.parcel
        write = self._sender.templates.writer(client, parcel, attempt.queue.queue_id)
        client.begin(parcel.code, write, partial(self._answered, sending), timeout_s)

    def _doubt(self, tries: SendAttempts, error: ClientError) -> None:
        if is_lost(error):
            self._instance.doubt_route(tries.parcel.topic)


class Producer(ProducerCore, Closeable):
    """Sends messages to any topic; may be used from many threads."""

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
            name_server: HOST:PORT; several as a list, or separated by semicolons.
            group: The producer group.
            avoids_slow_brokers: Stay away for seconds from brokers that were slow or failed (`sendLatencyFaultEnable`).
            options: Those of `ProducerOptions`.
        """
        given = SenderOptions.of(group, options, avoids_slow_brokers=avoids_slow_brokers)
        instance = ClientInstance(given.runtime, name_server, credentials=given.credentials)
        self._set_up(instance, given)
        instance.on_request = self._requests.requested
        self._closed: Callable[[], object] = when_garbage_collected(
            self, instance.abandon, f"a producer of group {group}"
        )

    def _set_up(self, instance: ClientInstance, options: SenderOptions) -> None:
        self._instance = instance
        self._runtime = options.runtime
        self._sender = Sender(options, RemotingClient.sent_header)
        self._requests = Requests(instance, options.group)
        self._in_flight = InFlightSends(options.runtime, instance, self._sender)

    def close(self) -> None:
        """Close every connection. Sends of `send_nowait` in progress fail, and their callbacks get the error."""
        self._closed()
        self._requests.close()
        self._instance.close()
        self._in_flight.close()

    def send(self, topic: str, body: bytes, **options: Unpack[SendOptions]) -> SendResult:
        """Send one message and wait until the broker has it.

        It goes to the next queue in turn, to `queue_id`, or to the one that `queue_selector` picks. When that fails, it
        is sent up to twice more within `timeout_s`: to the next queues, of another broker if there is one; with
        `queue_id` to the same one, and with `queue_selector` to what this picks then. After an error the message may be
        stored anyway, or even twice, as with every RocketMQ producer.
        Raises ConfigError for a message that no broker takes, else a ClientError.
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
        """Send messages that one queue gets next to each other, or none of them; 4 MiB in all at most.

        Otherwise as `send`.
        """
        parcel = self._sender.batch(topic, messages)
        return self._send(parcel, selector(topic, queue_id, queue_selector), timeout_s)

    def send_one_way(self, topic: str, body: bytes, **options: Unpack[MessageOptions]) -> str:
        """Send one message without waiting for an answer; its id.

        Whether it was stored is never known. Raises ConfigError, or a ClientError if it could not be sent.
        """
        parcel = self._sender.single(topic, message_of(topic, body, options))
        address, header = self._sender.pick(parcel, self._instance.publish_route(topic))
        self._instance.client(address).one_way(parcel.code, header, parcel.body)
        self._sender.watch.sent_one_way()
        return parcel.msg_ids[0]

    def request(self, topic: str, body: bytes, **options: Unpack[RequestOptions]) -> ReceivedMessage:
        """Send one message and wait for the consumer's reply, at most `timeout_s` in all.

        Raises ReplyTimeoutError if none comes in time, else as `send`. A retried request may be served twice.
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
        """Reply to a message that was sent by `request`, also by Java's. Returns when the requester has the reply.

        Raises ConfigError if the message is not a request, and RefusedError (1) if the requester is gone.
        """
        self._send(self._sender.reply(request, body), None, timeout_s)

    def _send(self, parcel: Parcel, queue_selector: QueueSelector | None, timeout_s: float) -> tuple[SendResult, ...]:
        """Try up to three queues; raises the last one's error."""
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
        """Ask one broker, and wait for what comes of it."""
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

    def __init__(self, instance: ClientInstance, options: SenderOptions) -> None:
        self._closed = lambda: None
        self._set_up(instance, options)

    def send_prepared(
        self, topic: str, message: OutgoingMessage, queue_selector: QueueSelector | None, timeout_s: float
    ) -> SendResult:
        """Send a message that consumers get only after its commit; otherwise as `send`."""
        (result,) = self._send(self._sender.prepared(topic, message), queue_selector, timeout_s)
        return result


def _settle(future: Future[SendResult], outcome: SendResult | LongpollError) -> None:
    """End a send's Future, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, LongpollError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
