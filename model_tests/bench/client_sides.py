"""One side of `client_bench`, in its own process: the async client, the threaded client, or a plain socket.

    python -m model_tests.bench.client_sides loop|threads|socket NAME_SERVER TO_SEND TO_TIME STORED COUNTS... MARK

The plain socket is the upper limit for any client. The arguments and the printed line are those of
`ClientBench.java`. Each measure runs once as a warm-up.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from model_tests.support.broker.client_scenarios import member_options

from longpoll_client import (
    AsyncProducer,
    AsyncPushConsumer,
    OutgoingMessage,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SendResult,
)
from longpoll_client.instance import ClientInstance
from longpoll_client.produce.outgoing import HeadTemplates, single_parcel
from longpoll_client.settings import MemberConfig
from longpoll_runtime.real import RealRuntime

IN_FLIGHT: Final = 64
BODY: Final = bytes(128)
PATIENCE_S: Final = 120.0
QUIET_S: Final = 0.5


class Row(msgspec.Struct):
    """The result of one measurement."""

    count: int
    failed: int
    wall_s: float
    cpu_s: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.count / self.wall_s

    @property
    def cpu_rate(self) -> float:
        """Messages a second of the process's own processor time."""
        return self.count / self.cpu_s


class Plan(msgspec.Struct, frozen=True):
    """The work of one process."""

    name_server: str
    to_send: str
    """A topic."""
    to_time: str
    """A topic without other senders."""
    stored_topic: str
    stored: int
    """The number of its messages."""
    many: int
    few: int
    timed: int
    mark: str
    """A suffix of group names that no earlier process used."""


class Timer:
    """Measures wall time and processor time."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def row(self, count: int, failed: int = 0) -> Row:
        """The row for the work since the start."""
        return Row(count, failed, time.perf_counter() - self.wall, time.process_time() - self.cpu)


def numbered(number: int) -> bytes:
    """A body that contains a message's number."""
    return number.to_bytes(8, "big") + BODY[8:]


def number_of(message: ReceivedMessage) -> int:
    """The number of a message. A duplicate, or one from an earlier use of the topic, is not the awaited one."""
    return int.from_bytes(message.body[:8], "big")


def latency_row(took_s: Sequence[float]) -> Row:
    """The median and the 99th percentile."""
    found = sorted(took_s)
    return Row(
        len(found), 0, sum(found), 0.0, found[len(found) // 2] * 1e3, found[len(found) * 99 // 100] * 1e3
    )  # fmt: skip


# ------------------------------------------------------------ an event loop


async def on_loop(plan: Plan) -> dict[str, Row]:
    """Measure callbacks, tasks with one awaited send each, latencies, and a listener."""
    rows = {}
    async with AsyncProducer(plan.name_server) as producer:
        for name, send in (("async", called_back), ("awaited", awaited)):
            await send(producer, plan.to_send, plan.many, IN_FLIGHT)
            timer = Timer()
            rows[name] = timer.row(plan.many, await send(producer, plan.to_send, plan.many, IN_FLIGHT))
        await awaited(producer, plan.to_send, plan.few, 1)
        timer = Timer()
        rows["sync"] = timer.row(plan.few, await awaited(producer, plan.to_send, plan.few, 1))
        rows["latency"] = latency_row(await loop_latencies(producer, plan))
    for group in ("before", "drain"):
        rows["drain"] = await loop_drain(plan, f"{group}-{plan.mark}")
    return rows


async def called_back(producer: AsyncProducer, topic: str, count: int, in_flight: int) -> int:
    """Send with callbacks, `in_flight` at a time; returns the number of failures."""
    ended = asyncio.get_running_loop().create_future()
    left, flying, failed = count, 0, 0

    def begin() -> None:
        nonlocal left, flying
        left -= 1
        flying += 1
        producer.send_nowait(topic, BODY, callback=told)

    def told(outcome: object) -> None:
        nonlocal flying, failed
        flying -= 1
        failed += not isinstance(outcome, SendResult)
        if left:
            begin()
        elif not flying:
            ended.set_result(None)

    for _number in range(min(in_flight, count)):
        begin()
    await ended
    return failed


async def awaited(producer: AsyncProducer, topic: str, count: int, in_flight: int) -> int:
    """Send from `in_flight` tasks, each with one send at a time."""
    left = iter(range(count))

    async def one_of_many() -> None:
        for _number in left:
            await producer.send(topic, BODY)

    await asyncio.gather(*(one_of_many() for _task in range(in_flight)))
    return 0


async def loop_latencies(producer: AsyncProducer, plan: Plan) -> list[float]:
    """Seconds from a send until the listener has the message, one message at a time."""
    delivered: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    async def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        at = time.perf_counter()
        for message in messages:
            delivered.put_nowait((number_of(message), at))
        return None

    async def arrival(number: int) -> float:
        while (came := await asyncio.wait_for(delivered.get(), PATIENCE_S))[0] != number:
            pass
        return came[1]

    def told(_outcome: object) -> None:
        """Ignore the result: the delivery is measured."""

    config = MemberConfig(group=f"latency-{plan.mark}", start_at="last")
    consumer = AsyncPushConsumer(plan.name_server, topics=plan.to_time, listener=listen, **member_options(config))
    took_s = []
    async with consumer:
        await producer.send(plan.to_time, numbered(0))
        await arrival(0)
        for number in range(1, 2 * plan.timed + 1):
            begun = time.perf_counter()
            producer.send_nowait(plan.to_time, numbered(number), callback=told)
            took_s.append(await arrival(number) - begun)
    return took_s[plan.timed :]


async def loop_drain(plan: Plan, group: str) -> Row:
    """Measure a new group's consumption, from its listener's first call to the last."""
    drain = Drain(plan.stored, asyncio.get_running_loop().create_future)

    async def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        if drain.is_last(len(messages)):
            drain.ended.set_result(drain.row())
        return None

    config = MemberConfig(group=group, start_at="first")
    consumer = AsyncPushConsumer(plan.name_server, topics=plan.stored_topic, listener=listen, **member_options(config))
    async with consumer:
        return await asyncio.wait_for(drain.ended, PATIENCE_S)


class Drain:
    """Counts a listener's messages. Invariant: `_left` changes under `_lock`, and is 0 once."""

    def __init__(self, count: int, ended: Callable[[], Any]) -> None:
        self.ended = ended()
        self._count = self._left = count
        self._lock = threading.Lock()
        self._timer: Timer | None = None

    def is_last(self, count: int) -> bool:
        """Whether these are the last messages."""
        with self._lock:
            self._timer = self._timer or Timer()
            self._left -= count
            return self._left <= 0 < self._left + count

    def row(self) -> Row:
        """The row for all messages, from the first call."""
        assert self._timer is not None
        return self._timer.row(self._count)


# ------------------------------------------------------------ a plain socket


def on_socket(plan: Plan) -> dict[str, Row]:
    """Send one prebuilt frame again and again on a blocking socket."""
    with ClientInstance(RealRuntime(), plan.name_server) as instance:
        route = instance.publish_route(plan.to_send)
    to = route.writable[0]
    parcel = single_parcel("bench", plan.to_send, OutgoingMessage(BODY), "0" * 32, 0)
    frame = HeadTemplates().head(parcel, to.queue_id, 0) + BODY
    host, _mark, port = route.addresses[to.broker_name].rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain_sends(link, frame, plan.few)
        timer = Timer()
        failed = plain_sends(link, frame, plan.few)
        return {"sync": timer.row(plan.few, failed)}


def plain_sends(link: socket.socket, frame: bytes, count: int) -> int:
    """Send each frame after the previous answer; returns the number of failures."""
    failed = 0
    for _number in range(count):
        link.sendall(frame)
        failed += b'"code":0,' not in answer_of(link)
    return failed


def answer_of(link: socket.socket) -> bytes:
    """Receive the next frame."""
    answer = link.recv(65_536)
    while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
        more = link.recv(65_536)
        if not more:
            raise ConnectionError("the broker has closed the connection")
        answer += more
    return answer


# ------------------------------------------------------------ threads


def on_threads(plan: Plan) -> dict[str, Row]:
    """Measure callbacks from one thread, blocking sends, latencies, and a listener."""
    rows = {}
    with Producer(plan.name_server) as producer:
        producer.send(plan.to_send, BODY)
        thread_sends(producer, plan.to_send, plan.many)
        timer = Timer()
        rows["async"] = timer.row(plan.many, thread_sends(producer, plan.to_send, plan.many))
        for _round in range(2):
            timer = Timer()
            for _number in range(plan.few):
                producer.send(plan.to_send, BODY)
            rows["sync"] = timer.row(plan.few)
        rows["latency"] = latency_row(thread_latencies(producer, plan))
    for group in ("before", "drain"):
        rows["drain"] = thread_drain(plan, f"{group}-{plan.mark}")
    return rows


def thread_sends(producer: Producer, topic: str, count: int) -> int:
    """Send with callbacks from one thread; returns the number of failures."""
    room = threading.Semaphore(IN_FLIGHT)
    failed: list[object] = []

    def told(outcome: object) -> None:
        if not isinstance(outcome, SendResult):
            failed.append(outcome)
        room.release()

    for _number in range(count):
        room.acquire()
        producer.send_nowait(topic, BODY, callback=told)
    for _number in range(IN_FLIGHT):
        room.acquire()
    return len(failed)


def thread_latencies(producer: Producer, plan: Plan) -> list[float]:
    """As `loop_latencies`."""
    delivered: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        at = time.perf_counter()
        for message in messages:
            delivered.put((number_of(message), at))
        return None

    def arrival(number: int) -> float:
        while (came := delivered.get(timeout=PATIENCE_S))[0] != number:
            pass
        return came[1]

    def told(_outcome: object) -> None:
        """Ignore the result: the delivery is measured."""

    config = MemberConfig(group=f"latency-{plan.mark}", start_at="last")
    took_s = []
    with PushConsumer(plan.name_server, topics=plan.to_time, listener=listen, **member_options(config)):
        producer.send(plan.to_time, numbered(0))
        arrival(0)
        for number in range(1, 2 * plan.timed + 1):
            begun = time.perf_counter()
            producer.send_nowait(plan.to_time, numbered(number), callback=told)
            took_s.append(arrival(number) - begun)
    return took_s[plan.timed :]


def thread_drain(plan: Plan, group: str) -> Row:
    """As `loop_drain`."""
    drain = Drain(plan.stored, queue.SimpleQueue)

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        if drain.is_last(len(messages)):
            drain.ended.put(drain.row())
        return None

    config = MemberConfig(group=group, start_at="first")
    with PushConsumer(plan.name_server, topics=plan.stored_topic, listener=listen, **member_options(config)):
        row: Row = drain.ended.get(timeout=PATIENCE_S)
        return row


def main(arguments: Sequence[str]) -> None:
    """Measure and print one line."""
    side, name_server, to_send, to_time, stored_topic, *counts, mark = arguments
    stored, many, few, timed = map(int, counts)
    plan = Plan(name_server, to_send, to_time, stored_topic, stored, many, few, timed, mark)
    measures = {"loop": lambda plan: asyncio.run(on_loop(plan)), "threads": on_threads, "socket": on_socket}
    rows = measures[side](plan)
    sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
