"""Measures our clients, on an event loop and on threads, and Java's 4.9.7 client on the same broker in one run.

    python -m model_tests.bench.client_bench [--broker java-4.9.7 | ours | both] [--rounds 2] [--count 20000] [--json]

Each client runs in a separate process, which warms up by taking each measurement once without counting it (Java three
times, because of its compiler). The clients alternate, round by round, and the best round of each measurement counts.
Before the first round the event-loop client runs one uncounted round, which warms up the broker.

- `async`: sends of 128 bytes, 64 in flight, with callbacks. `sync`: one send after another. The output is messages per
  second, and messages per second of the client's processor time.
- `latency`: the time from before a send until a listener of the same process has the message, which starts the next
  send. Each message has a number in its body, so repeated and late messages are ignored.
- `drain`: the time in which a listener that only counts consumes the stored messages, measured with two groups.

The exit code is 1 if a message failed. Without Java only our broker and clients are measured. `broker_bench` measures
with more clients.
"""

from __future__ import annotations

import asyncio
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from model_tests.bench import leaving
from model_tests.bench.served import parser_of, print_json, serving
from model_tests.conformance.java_broker import JavaUnavailableError, resolve, running
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options
from rich.console import Console
from rich.table import Table

from longpoll_client import (
    Admin,
    AsyncProducer,
    AsyncPushConsumer,
    OutgoingMessage,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from longpoll_client.errors import ClientError
from longpoll_client.instance import ClientInstance
from longpoll_client.settings import MemberConfig
from longpoll_runtime.real import RealRuntime

ROOT: Final = Path(__file__).parents[2]
JAVA_CLIENT: Final = ROOT / "model_tests" / "peers" / "java" / "ClientBench.java"
JAVA: Final = "Java's client 4.9.7"
TO_SEND, TO_TIME, STORED = "client-bench", "client-bench-latency", "client-bench-stored"
PATIENCE_S: Final = 300.0
BATCH: Final = 500
IN_FLIGHT: Final = 64
BODY: Final = bytes(128)


class Row(msgspec.Struct):
    count: int
    failed: int
    wall_s: float
    cpu_s: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0

    def better(self, known: Row | None) -> Row:
        """Return a row with the better of two rounds for each figure."""
        if known is None:
            return self
        best = {
            name: min(getattr(known, name), getattr(self, name)) for name in ("wall_s", "cpu_s", "p50_ms", "p99_ms")
        }
        return msgspec.structs.replace(self, failed=known.failed + self.failed, **best)

    def cells(self, java: Row | None) -> Sequence[str]:
        """Return the figures, each with its ratio to Java's figure; a ratio above 1 means that our client is better."""
        if self.p50_ms:
            ratio = f"{java.p50_ms / self.p50_ms:.2f}, {java.p99_ms / self.p99_ms:.2f}" if java else ""
            return f"p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms", "", str(self.failed), ratio
        rate, cpu_rate = self.count / self.wall_s, self.count / self.cpu_s
        ratio = f"{rate * java.wall_s / java.count:.2f}, {cpu_rate * java.cpu_s / java.count:.2f}" if java else ""
        return f"{rate:,.0f} a second", f"{cpu_rate:,.0f} a second", str(self.failed), ratio


Found = dict[str, dict[str, Row]]
"""Client -> measurement -> its best round."""


class Plan(msgspec.Struct, frozen=True):
    stored: int
    many: int
    """The number of asynchronous sends."""
    few: int
    """The number of synchronous sends."""
    timed: int
    """The number of messages whose latency is measured."""


class Timer:
    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def row(self, count: int, failed: int = 0) -> Row:
        return Row(count, failed, time.perf_counter() - self.wall, time.process_time() - self.cpu)


class Arrivals:
    """Receives a listener's messages; `put` gets the number and the time of each message."""

    def __init__(self, put: Callable[[tuple[int, float]], object]) -> None:
        self._put = put

    def listen(self, messages: Sequence[ReceivedMessage]) -> None:
        at = time.perf_counter()
        for message in messages:
            self._put((int.from_bytes(message.body[:8], "big"), at))


class Drain:
    """Counts a listener's messages and calls `put` with the result.

    Invariant: `_left` changes under `_lock` and reaches 0 once.
    """

    def __init__(self, count: int, put: Callable[[Row], object]) -> None:
        self._put = put
        self._count = self._left = count
        self._lock = threading.Lock()
        self._timer: Timer | None = None

    def listen(self, messages: Sequence[ReceivedMessage]) -> None:
        with self._lock:
            self._timer = self._timer or Timer()
            self._left -= len(messages)
            if self._left <= 0 < self._left + len(messages):
                self._put(self._timer.row(self._count))


def numbered(number: int) -> bytes:
    return number.to_bytes(8, "big") + BODY[8:]


def latency_row(took_s: Sequence[float]) -> Row:
    found = sorted(took_s)
    p50_s, p99_s = found[len(found) // 2], found[len(found) * 99 // 100]
    return Row(len(found), 0, sum(found), 0.0, p50_s * 1e3, p99_s * 1e3)


def ignore(_outcome: object) -> None:
    """Ignore the result of a send whose delivery is measured."""


# -- an event loop -----------------------------------------------------------------------------------------------------


async def on_loop(name_server: str, plan: Plan, mark: str) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    async with AsyncProducer(name_server) as producer:
        for _round in range(2):
            timer = Timer()
            rows["async"] = timer.row(plan.many, await called_back(producer, plan.many))
            timer = Timer()
            for _number in range(plan.few):
                await producer.send(TO_SEND, BODY)
            rows["sync"] = timer.row(plan.few)
        rows["latency"] = latency_row(await loop_latencies(producer, name_server, plan, mark))
    for group in ("before", "drain"):
        ended = asyncio.get_running_loop().create_future()
        async with loop_consumer(name_server, STORED, f"{group}-{mark}", "first", Drain(plan.stored, ended.set_result)):
            rows["drain"] = await asyncio.wait_for(ended, PATIENCE_S)
    return rows


def loop_consumer(name_server: str, topic: str, group: str, start_at: Any, to: Arrivals | Drain) -> AsyncPushConsumer:
    async def listen(messages: Sequence[ReceivedMessage]) -> None:
        to.listen(messages)

    options = member_options(MemberConfig(group=group, start_at=start_at))
    return AsyncPushConsumer(name_server, topics=topic, listener=listen, **options)


async def called_back(producer: AsyncProducer, count: int) -> int:
    ended = asyncio.get_running_loop().create_future()
    left, flying, failed = count, 0, 0

    def begin() -> None:
        nonlocal left, flying
        left -= 1
        flying += 1
        producer.send_nowait(TO_SEND, BODY, callback=told)

    def told(outcome: object) -> None:
        nonlocal flying, failed
        flying -= 1
        failed += not isinstance(outcome, SendResult)
        if left:
            begin()
        elif not flying:
            ended.set_result(None)

    for _number in range(min(IN_FLIGHT, count)):
        begin()
    await ended
    return failed


async def loop_latencies(producer: AsyncProducer, name_server: str, plan: Plan, mark: str) -> list[float]:
    delivered: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    async def arrival(number: int) -> float:
        while (came := await asyncio.wait_for(delivered.get(), PATIENCE_S))[0] != number:
            pass
        return came[1]

    took_s = []
    async with loop_consumer(name_server, TO_TIME, f"latency-{mark}", "last", Arrivals(delivered.put_nowait)):
        await producer.send(TO_TIME, numbered(0))
        await arrival(0)
        for number in range(1, 2 * plan.timed + 1):
            begun = time.perf_counter()
            producer.send_nowait(TO_TIME, numbered(number), callback=ignore)
            took_s.append(await arrival(number) - begun)
    return took_s[plan.timed :]


# -- threads -----------------------------------------------------------------------------------------------------------


def on_threads(name_server: str, plan: Plan, mark: str) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    with Producer(name_server) as producer:
        producer.send(TO_SEND, BODY)
        for _round in range(2):
            timer = Timer()
            rows["async"] = timer.row(plan.many, thread_sends(producer, plan.many))
            timer = Timer()
            for _number in range(plan.few):
                producer.send(TO_SEND, BODY)
            rows["sync"] = timer.row(plan.few)
        rows["latency"] = latency_row(thread_latencies(producer, name_server, plan, mark))
    for group in ("before", "drain"):
        ended: queue.SimpleQueue[Row] = queue.SimpleQueue()
        with thread_consumer(name_server, STORED, f"{group}-{mark}", "first", Drain(plan.stored, ended.put)):
            rows["drain"] = ended.get(timeout=PATIENCE_S)
    return rows


def thread_consumer(name_server: str, topic: str, group: str, start_at: Any, to: Arrivals | Drain) -> PushConsumer:
    options = member_options(MemberConfig(group=group, start_at=start_at))
    return PushConsumer(name_server, topics=topic, listener=to.listen, **options)


def thread_sends(producer: Producer, count: int) -> int:
    room = threading.Semaphore(IN_FLIGHT)
    failed: list[object] = []

    def told(outcome: object) -> None:
        if not isinstance(outcome, SendResult):
            failed.append(outcome)
        room.release()

    for _number in range(count):
        room.acquire()
        producer.send_nowait(TO_SEND, BODY, callback=told)
    for _number in range(IN_FLIGHT):
        room.acquire()
    return len(failed)


def thread_latencies(producer: Producer, name_server: str, plan: Plan, mark: str) -> list[float]:
    delivered: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()

    def arrival(number: int) -> float:
        while (came := delivered.get(timeout=PATIENCE_S))[0] != number:
            pass
        return came[1]

    took_s = []
    with thread_consumer(name_server, TO_TIME, f"latency-{mark}", "last", Arrivals(delivered.put)):
        producer.send(TO_TIME, numbered(0))
        arrival(0)
        for number in range(1, 2 * plan.timed + 1):
            begun = time.perf_counter()
            producer.send_nowait(TO_TIME, numbered(number), callback=ignore)
            took_s.append(arrival(number) - begun)
    return took_s[plan.timed :]


SIDES: Final[dict[str, Callable[[str, Plan, str], dict[str, Row]]]] = {
    "event loop": lambda *asked: asyncio.run(on_loop(*asked)),
    "threads": on_threads,
}


# -- measurements of all clients ---------------------------------------------------------------------------------------


@contextmanager
def at_java(directory: Path, class_path: str) -> Iterator[str]:
    with running(class_path, directory / "java", heap="1g") as broker:
        yield "{}:{}".format(*broker.name_server)


@contextmanager
def at_ours(directory: Path) -> Iterator[str]:
    with serving(directory / "ours") as served:
        yield "{}:{}".format(*served.name_server)


def prepare(name_server: str, stored: int) -> None:
    """Create the topics as soon as the broker is known, and store the messages for `drain`."""
    with Admin(name_server) as admin, ClientInstance(RealRuntime(), name_server) as instance:
        for topic in (TO_SEND, TO_TIME, STORED):
            wait_until(partial(succeeds, partial(admin.create_topic, topic, 4)))
        wait_until(partial(succeeds, partial(instance.route, STORED)))
    with Producer(name_server) as producer:
        for first in range(0, stored, BATCH):
            producer.send_batch(STORED, [OutgoingMessage(BODY)] * min(BATCH, stored - first))


def succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except ClientError:
        return False
    return True


def measure(name_server: str, plan: Plan, rounds: int, java: Sequence[str]) -> Found:
    commands = {name: [sys.executable, "-m", "model_tests.bench.client_bench", "--side", name] for name in SIDES}
    if java:
        commands[JAVA] = list(java)

    def turn(name: str, mark: str) -> dict[str, Row]:
        words = [name_server, TO_SEND, TO_TIME, STORED, *map(str, msgspec.structs.astuple(plan)), mark]
        command = [*commands[name], *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=ROOT)
        if done.returncode:
            raise RuntimeError(f"{command[:4]} ended with {done.returncode}: {done.stderr[-2000:]}")
        # After its last result Java's client may log that it closes a connection.
        (said,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
        return msgspec.json.decode(said, type=dict[str, Row])

    turn(next(iter(SIDES)), "warming")
    found: Found = {name: {} for name in commands}
    for number in range(rounds):
        for place, name in enumerate(commands):
            for measured, row in turn(name, f"side-{place}-{number}").items():
                found[name][measured] = row.better(found[name].get(measured))
    return found


def show(broker: str, found: Found) -> None:
    about = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    heads = ("measure", "client", "figure", "of its processor time", "failed", "next to Java's")
    table = Table(*heads, title=f"at {broker}, {about}")
    for measured in next(iter(found.values())):
        for name, rows in found.items():
            table.add_row(measured, name, *rows[measured].cells(found.get(JAVA, {}).get(measured)))
    Console().print(table)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--broker", choices=("java-4.9.7", "ours", "both"), default="both")
    parser.add_argument("--count", type=int, default=20_000, help="asynchronous sends; the others follow from it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--side", nargs=10, help="be one of the clients, for these topics and counts")
    chosen = parser.parse_args()
    if chosen.side:
        side, name_server, *_topics, stored, many, few, timed, mark = chosen.side
        print_json(SIDES[side](name_server, Plan(int(stored), int(many), int(few), int(timed)), mark))
        return 0
    if not 1000 <= chosen.count <= 10_000_000 or not 1 <= chosen.rounds <= 20:
        parser.error("give 1000 to 10000000 messages and 1 to 20 rounds")
    plan = Plan(2 * chosen.count, chosen.count, chosen.count // 10, chosen.count // 20)
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory(prefix="longpoll-client-bench-") as made:
        directory = Path(made)
        java: list[str] = []
        brokers = {"ours": at_ours(directory)}
        try:
            class_path = resolve(directory)
            options = [f"-Duser.home={made}", f"-Drocketmq.client.logRoot={made}"]
            java = ["java", "-Xmx512m", *options, "-cp", class_path, str(JAVA_CLIENT)]
            brokers["java-4.9.7"] = at_java(directory, class_path)
        except JavaUnavailableError as error:
            sys.stderr.write(f"longpoll: {error}; measuring ours alone\n")
        for name, broker in brokers.items():
            if chosen.broker in {name, "both"}:
                with ExitStack() as stack:
                    name_server = stack.enter_context(broker)
                    prepare(name_server, plan.stored)
                    found[name] = measure(name_server, plan, chosen.rounds, java)
                if not chosen.json:
                    show(name, found[name])
    if chosen.json:
        print_json(found)
    return int(any(row.failed for sides in found.values() for rows in sides.values() for row in rows.values()))


if __name__ == "__main__":
    leaving.run(main)
