"""Asynchronous sends of 128 bytes with 64 in flight: our client on an event loop and on threads, and Java's 4.9.7.

    python -m model_tests.bench.client_bench [--count 40000] [--rounds 3] [--without-java] [--json]

Each client is a process of its own and sends to one broker, `longpoll serve`, in turn, round by round, after as many
messages that are not counted (Java after thrice as many, for its compiler). Printed are messages a second and messages
a second of the client process's own processor time, which the broker's has no part in: on a machine with other work the
second is the one to look at, of the best round. Exit code 1 when a message failed; without Java only ours are printed.

Leaves out what the Java broker makes of them (`broker_bench`), and latencies.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from model_tests.bench.broker_sides import COMMAND
from model_tests.conformance.java_broker import JavaUnavailableError, resolve
from rich.console import Console
from rich.table import Table

from longpoll_client import Admin, AsyncProducer, Producer
from longpoll_client.produce.tries import SendResult
from longpoll_runtime.real import RealRuntime

IN_FLIGHT: Final = 64
BODY: Final = bytes(128)
TOPIC: Final = "client-bench"
PATIENCE_S: Final = 300.0
JAVA: Final = Path(__file__).parents[1] / "peers" / "java" / "AsyncSends.java"


class Sent(msgspec.Struct):
    """What one process did."""

    count: int
    failed: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.count / self.wall_s

    @property
    def cpu_rate(self) -> float:
        """Messages a second of the process's own processor time."""
        return self.count / self.cpu_s


def timed(count: int, send: Callable[[], int]) -> Sent:
    """Send once for nothing and once to be counted; `send` returns how many failed."""
    send()
    wall, cpu = time.perf_counter(), time.process_time()
    failed = send()
    return Sent(count, failed, time.perf_counter() - wall, time.process_time() - cpu)


def on_loop(name_server: str, count: int) -> Sent:
    """Tasks of one event loop, each with one send on its way."""

    async def all_rounds() -> Sent:
        async with AsyncProducer(RealRuntime(), name_server) as producer:
            await producer.send(TOPIC, BODY)

            async def send() -> int:
                left = iter(range(count))

                async def one_of_many() -> None:
                    for _number in left:
                        await producer.send(TOPIC, BODY)

                await asyncio.gather(*(one_of_many() for _task in range(IN_FLIGHT)))
                return 0

            await send()
            wall, cpu = time.perf_counter(), time.process_time()
            failed = await send()
            return Sent(count, failed, time.perf_counter() - wall, time.process_time() - cpu)

    return asyncio.run(all_rounds())


def on_threads(name_server: str, count: int) -> Sent:
    """One thread that sends, and the callbacks of the connection's."""
    with Producer(RealRuntime(), name_server) as producer:
        producer.send(TOPIC, BODY)

        def send() -> int:
            room = threading.Semaphore(IN_FLIGHT)
            failed: list[object] = []

            def told(outcome: object) -> None:
                if not isinstance(outcome, SendResult):
                    failed.append(outcome)
                room.release()

            for _number in range(count):
                room.acquire()
                producer.send_async(TOPIC, BODY, told)
            for _number in range(IN_FLIGHT):
                room.acquire()
            return len(failed)

        return timed(count, send)


CLIENTS: Final = {"event loop": on_loop, "threads": on_threads}


def own_process(name: str, name_server: str, count: int) -> Sent:
    """One of ours."""
    return told_by([sys.executable, "-m", "model_tests.bench.client_bench", "--as", name, name_server, str(count)])


def java_process(class_path: str, directory: Path, name_server: str, count: int) -> Sent:
    """Java's."""
    options = [f"-Duser.home={directory}", f"-Drocketmq.client.logRoot={directory}"]
    return told_by(["java", "-Xmx512m", *options, "-cp", class_path, str(JAVA), name_server, TOPIC, str(count), "64"])


def told_by(command: Sequence[str]) -> Sent:
    """The last line that a process wrote."""
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S, cwd=root)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Sent)


@contextmanager
def serving(store: Path) -> Iterator[str]:
    """The name server's address of a broker of ours, in a process of its own."""
    options = ["--json", "--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0", "--store", str(store)]
    process = subprocess.Popen([*COMMAND, "serve", *options], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        try:
            yield msgspec.json.decode(process.stdout.readline())["name-server"]
        finally:
            process.terminate()


def measure(stack: ExitStack, count: int, rounds: int, *, with_java: bool) -> dict[str, Sent]:
    """The best round of each, by processor time."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="longpoll-client-bench-")))
    name_server = stack.enter_context(serving(directory / "store"))
    with Admin(RealRuntime(), name_server) as admin:
        admin.create_topic(TOPIC, 4)
    senders: dict[str, Callable[[], Sent]] = {
        name: lambda name=name: own_process(name, name_server, count)  # type: ignore[misc] # bound early
        for name in CLIENTS
    }
    if with_java:
        try:
            class_path = resolve(directory)
            senders["Java 4.9.7"] = lambda: java_process(class_path, directory, name_server, count)
        except JavaUnavailableError as error:
            sys.stderr.write(f"longpoll: {error}; measuring ours alone\n")
    found: dict[str, Sent] = {}
    for _round in range(rounds):
        for name, send in senders.items():
            one = send()
            found[name] = min(found.get(name, one), one, key=lambda each: each.cpu_s)
    return found


def show(found: dict[str, Sent]) -> None:
    """A table, with ratios to the last row: Java's, if it is there."""
    table = Table(title="asynchronous sends, 128 bytes, 64 in flight")
    for column in ("client", "a second", "a second of its processor time", "failed", "beside the last, of processor"):
        table.add_column(column, justify="left" if column == "client" else "right")
    last = list(found.values())[-1]
    for name, sent in found.items():
        ratio = f"{sent.cpu_rate / last.cpu_rate:.2f}"
        table.add_row(name, f"{sent.rate:,.0f}", f"{sent.cpu_rate:,.0f}", str(sent.failed), ratio)
    Console().print(table)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-java", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as", nargs=3, metavar=("CLIENT", "NAME_SERVER", "COUNT"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    part = getattr(chosen, "as")
    if part is not None:
        sent = CLIENTS[part[0]](part[1], int(part[2]))
        sys.stdout.write(msgspec.json.encode(sent).decode() + "\n")
        return 0
    if not 100 <= chosen.count <= 10_000_000 or not 1 <= chosen.rounds <= 20:
        parser.error("give 100 to 10000000 messages and 1 to 20 rounds")
    with ExitStack() as stack:
        found = measure(stack, chosen.count, chosen.rounds, with_java=not chosen.without_java)
    if chosen.json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        show(found)
    return 1 if any(sent.failed for sent in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
