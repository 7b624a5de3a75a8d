"""Sends of `send_nowait` on threads: the caller starts each, a callback ends it, and no retry blocks a thread.

`attempts` decides. For sends that block, see `producer`.

Source: `DefaultMQProducerImpl.send(Message, SendCallback)`, `MQClientAPIImpl.onExceptionImpl`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec

from longpoll_client.errors import AnswerTimeoutError, ClientError, LifecycleError
from longpoll_client.instance import ClientInstance
from longpoll_client.link.calls import Answer
from longpoll_client.link.routes import Route
from longpoll_client.link.single_flight import SingleFlight
from longpoll_client.link.timeouts import wait_ns
from longpoll_client.produce.attempts import Attempt, QueueSelector, SendAttempts, SendResult, Turn, is_lost
from longpoll_client.produce.hooks import Outcome, Sending, Watch
from longpoll_client.produce.outgoing import Parcel
from longpoll_client.produce.slow_brokers import SlowBrokers
from longpoll_client.produce.templates import HeadTemplates
from longpoll_client.remoting import RemotingClient
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.errors import LongpollError
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
