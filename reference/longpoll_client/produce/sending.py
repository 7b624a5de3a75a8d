"""Many sends on their way from threads: each begun by its caller, ended by a callback, tried again on a thread for it.

What is decided is decided by `tries`. Leaves out what waits for its result (`producer`), and event loops (`aio`).

Source: `DefaultMQProducerImpl.send(Message, SendCallback)`, `MQClientAPIImpl.onExceptionImpl`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from attrs import define

from longpoll_client.errors import ClientError, ConnectionLostError, LifecycleError
from longpoll_client.instance import ClientInstance
from longpoll_client.link.calls import Answer
from longpoll_client.produce.outgoing import Parcel
from longpoll_client.produce.slow_brokers import SlowBrokers
from longpoll_client.produce.tries import Select, SendResult, Tries, Turn, is_lost
from longpoll_client.timer import Timer
from longpoll_runtime import Runtime
from longpoll_runtime.faults import FAULTS, KeepGoing
from longpoll_spec.errors import LongpollError

log = logging.getLogger(__name__)

Told: TypeAlias = Callable[[SendResult | LongpollError], object]
"""Is called once with where a message went, or why it did not; it must not wait."""


@define(slots=True, eq=False)
class _Sending:
    """One send."""

    tries: Tries
    told: Told

    def tell(self, outcome: SendResult | LongpollError) -> None:
        """Tell its caller; what that raises harms nobody else."""
        with KeepGoing(log, "the callback of a send failed"):
            self.told(outcome)


class ManySends:
    """The sends of one producer that nobody waits for.

    Invariant: `_again` are those that are to be tried again; it and `_timer` change under `_lock`. Each send is told
    once: where it ends, where it cannot be tried again, or by `close`.
    """

    def __init__(self, runtime: Runtime, instance: ClientInstance, turn: Turn, slow: SlowBrokers | None = None) -> None:
        self._runtime = runtime
        self._instance = instance
        self._turn = turn
        self._slow = slow
        self._lock = runtime.lock()
        self._timer: Timer | None = None
        self._again: set[_Sending] = set()
        self._is_closed = False

    def begin(self, parcel: Parcel, select: Select | None, timeout_s: float, told: Told) -> None:
        """Send, and have `told` called on another thread.

        Raises a ConfigError, NoRouteError, LifecycleError or LocalProtocolError at once; then `told` is not called.
        """
        tries = Tries(parcel, select, self._runtime.monotonic_ns() + int(timeout_s * 1e9), self._slow)
        self._try(_Sending(tries, told))

    def close(self) -> None:
        """Tell those that were to be tried again; after the connections are closed, which told the others."""
        with self._lock:
            self._is_closed = True
            again, self._again = list(self._again), set()
            timer = self._timer
        for sending in again:
            sending.tell(_closed())
        if timer is not None:
            timer.close()

    def _try(self, sending: _Sending) -> None:
        """Ask one broker; raises what the send has failed with, unless it is told later."""
        tries = sending.tries
        while True:
            route = self._instance.publish_route(tries.parcel.topic)
            attempt = tries.begin(route, self._turn, self._runtime.monotonic_ns())
            header = tries.parcel.header(attempt.queue.queue_id)
            try:
                self._instance.client(attempt.address).call_async(
                    tries.parcel.code,
                    header,
                    tries.parcel.body,
                    callback=lambda answer: self._answered(sending, answer),
                    timeout_s=attempt.timeout_s,
                )
            except LifecycleError:
                raise
            except ClientError as error:
                self._doubt(tries, error)
                tries.ended(error, self._runtime.monotonic_ns())
            else:
                return

    def _answered(self, sending: _Sending, answer: Answer) -> None:
        """Tell, or have it tried again; on a reader thread, which must not connect."""
        if isinstance(answer, ClientError):
            self._doubt(sending.tries, answer)
        try:
            found = sending.tries.ended(answer, self._runtime.monotonic_ns())
        except ClientError as error:
            sending.tell(error)
            return
        if found is not None:
            sending.tell(found[0])
            return
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._again.add(sending)
                self._timer = self._timer or Timer(self._runtime, "sends-again")
                self._timer.after(0.0, lambda: self._try_again(sending))
        if is_closed:
            sending.tell(_closed())

    def _try_again(self, sending: _Sending) -> None:
        with self._lock:
            if sending not in self._again:
                return
            self._again.remove(sending)
        try:
            self._try(sending)
        except LongpollError as error:
            sending.tell(error)
        except FAULTS as error:
            sending.tell(ClientError(f"the send could not be tried again: {error!r}"))

    def _doubt(self, tries: Tries, error: ClientError) -> None:
        if is_lost(error):
            self._instance.doubt_route(tries.parcel.topic)


def _closed() -> ClientError:
    return ConnectionLostError("the producer was closed before the message could be sent again")
