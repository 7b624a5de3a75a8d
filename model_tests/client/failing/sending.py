"""Senders that retry until each message is acknowledged: on a thread, by callbacks, and on an event loop.

Each sender has separate keys and sends a key's messages in order.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

from attrs import define, field, frozen

from longpoll_client import AsyncProducer, LongpollError, MessageQueue, Producer, SendResult
from longpoll_runtime.real import RealRuntime

RUNTIME: Final = RealRuntime()
GAP_S: Final = 0.12
"""The pause between two messages of a sender."""
AGAIN_S: Final = 0.1
"""The pause before a retry."""
TOLD_S: Final = 30.0
"""The time limit of a callback: a send has 3 s, and may also wait for a route and a connection."""
KEYS: Final = 2
"""The number of keys of each sender."""


@frozen
class Sent:
    number: int
    key: str
    sender: str
    begun_ns: int
    acknowledged_ns: int
    failures: int
    place: tuple[int, int]


@define(eq=False)
class Sends:
    """The results of all senders of a schedule. Invariant: the fields change only under `_lock`."""

    acknowledged: list[Sent] = field(factory=list)
    errors: Counter[str] = field(factory=Counter)
    surprises: list[str] = field(factory=list)
    _lock: threading.Lock = field(factory=threading.Lock)
    _numbers: Iterator[int] = field(factory=count)

    def next_number(self) -> int:
        with self._lock:
            return next(self._numbers)

    def done(self, sent: Sent) -> None:
        with self._lock:
            self.acknowledged.append(sent)

    def failed(self, error: LongpollError) -> None:
        with self._lock:
            self.errors[type(error).__name__] += 1

    def surprised(self, what: str) -> None:
        with self._lock:
            self.surprises.append(what)


def by_key(key: str) -> Callable[[Sequence[MessageQueue]], MessageQueue]:
    """Return a selector of the queue for a key's messages."""
    return lambda queues: queues[zlib.crc32(key.encode()) % len(queues)]


@define(eq=False)
class _Message:
    number: int
    key: str
    sender: str
    begun_ns: int = field(factory=time.monotonic_ns)
    failures: int = 0

    def sent(self, result: SendResult) -> Sent:
        place = result.queue.queue_id, result.queue_offset
        return Sent(self.number, self.key, self.sender, self.begun_ns, time.monotonic_ns(), self.failures, place)

    @property
    def body(self) -> bytes:
        return b"%d" % self.number


def _messages(sends: Sends, sender: str, ending: threading.Event) -> Iterator[_Message]:
    """Yield new messages until `ending` is set."""
    turns = count()
    while not ending.is_set():
        yield _Message(sends.next_number(), f"{sender}-{next(turns) % KEYS}", sender)


def send_and_retry(send: Callable[[_Message], SendResult], sender: str, sends: Sends, ending: threading.Event) -> None:
    """Send each message until it is acknowledged."""
    for message in _messages(sends, sender, ending):
        while True:
            try:
                sends.done(message.sent(send(message)))
                break
            except LongpollError as error:
                sends.failed(error)
                message.failures += 1
                ending.wait(AGAIN_S)
        ending.wait(GAP_S)


class UntoldError(Exception):
    """The callback of a send was not called in time."""


def send_by_callback(producer: Producer, topic: str, sends: Sends, message: _Message) -> SendResult:
    """Send with `Producer.send_nowait`; a missing or second callback is a violation. Raises the callback's error."""
    told, outcomes = threading.Event(), list[SendResult | LongpollError]()

    def tell(outcome: SendResult | LongpollError) -> None:
        outcomes.append(outcome)
        if told.is_set():
            sends.surprised(f"a callback was called {len(outcomes)} times")
        told.set()

    producer.send_nowait(topic, message.body, callback=tell, keys=message.key, queue_selector=by_key(message.key))
    if not told.wait(TOLD_S):
        sends.surprised(f"nothing was told of message {message.number} within {TOLD_S:g} s")
        raise UntoldError
    if isinstance(outcomes[0], LongpollError):
        raise outcomes[0]
    return outcomes[0]


async def send_on_a_loop(name_server: str, topic: str, sends: Sends, ending: threading.Event) -> None:
    """Send with `AsyncProducer.send`. A message with an odd number has a short timeout, which may cancel its send."""
    async with AsyncProducer(name_server) as producer:
        for message in _messages(sends, "loop", ending):
            while True:
                try:
                    async with asyncio.timeout(1.0 if message.number % 2 else 60.0):
                        result = await producer.send(
                            topic, message.body, keys=message.key, queue_selector=by_key(message.key)
                        )
                except LongpollError as error:
                    sends.failed(error)
                except TimeoutError:
                    sends.failed(LongpollError("cancelled"))
                else:
                    sends.done(message.sent(result))
                    break
                message.failures += 1
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(GAP_S)


def senders(
    name_server: str, topic: str, producer: Producer, sends: Sends, ending: threading.Event
) -> list[threading.Thread]:
    """Start all three senders; each ends after the acknowledgement of its last message."""

    def send(message: _Message) -> SendResult:
        return producer.send(topic, message.body, keys=message.key, queue_selector=by_key(message.key))

    def by_callbacks() -> None:
        with suppress(UntoldError):
            send_and_retry(partial(send_by_callback, producer, topic, sends), "callback", sends, ending)

    targets: dict[str, Callable[[], None]] = {
        "thread": lambda: send_and_retry(send, "thread", sends, ending),
        "callback": by_callbacks,
        "loop": lambda: asyncio.run(send_on_a_loop(name_server, topic, sends, ending)),
    }
    threads = [threading.Thread(target=target, name=f"sends-{name}") for name, target in targets.items()]
    for thread in threads:
        thread.daemon = True
        thread.start()
    return threads
