"""Measures our clients, on an event loop and on threads, and Java's 4.9.7 client on the same broker in one run.

    python -m model_tests.bench.client_bench [--broker java-4.9.7 | ours | both] [--rounds 2] [--count 20000] [--json]

Each client runs in a separate process and takes its measurements one after the other. It warms up by taking each once
without counting, Java three times because of its compiler. The clients alternate, round by round, and the best round of
each measurement counts. Before the first round the event loop takes one uncounted turn, which warms up the broker.

- `async`: sends of 128 bytes, 64 in flight, with callbacks. `awaited`: 64 tasks that each await one send. `sync`: one
  send after the other. The output is messages per second, and messages per second of the client's processor time. A
  plain socket that repeats one prepared frame shows the most that the broker allows any client.
- `latency`: from before a send until a listener of the same process has the message. Then the next one is sent. Each
  message has a number in its body; repeated and late ones are ignored.
- `drain`: stored messages, one by one to an empty listener, from the first to the last; then again by a second group.

Exit code 1 if a message failed. Without Java only our broker and clients are measured. More clients: `broker_bench`.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from model_tests.bench import leaving
from model_tests.bench.client_sides import BODY, Row
from model_tests.bench.served import parser_of, print_json, serving
from model_tests.conformance.java_broker import JavaUnavailableError, resolve, running
from model_tests.support.broker.brokers import wait_until
from rich.console import Console
from rich.table import Table

from longpoll_client import Admin, OutgoingMessage, Producer
from longpoll_client.errors import ClientError
from longpoll_client.instance import ClientInstance
from longpoll_runtime.real import RealRuntime

ROOT: Final = Path(__file__).parents[2]
JAVA_CLIENT: Final = ROOT / "model_tests" / "peers" / "java" / "ClientBench.java"
JAVA: Final = "Java's client 4.9.7"
SIDES: Final = {"event loop": "loop", "threads": "threads", "a plain socket": "socket"}
MEASURES: Final = ("async", "awaited", "sync", "latency", "drain")
TO_SEND, TO_TIME, STORED = "client-bench", "client-bench-latency", "client-bench-stored"
PATIENCE_S: Final = 300.0
BATCH: Final = 500

Found = dict[str, dict[str, Row]]
"""Client -> measure -> its best round."""


class Shape(msgspec.Struct, frozen=True):
    """How much is done."""

    rounds: int
    many: int
    """Asynchronous sends."""
    few: int
    """Synchronous ones."""
    timed: int
    """Messages whose latency is taken."""
    stored: int


@contextmanager
def at_java(directory: Path, class_path: str) -> Iterator[str]:
    """The name server's address of a Java broker."""
    with running(class_path, directory / "java", heap="1g") as broker:
        yield "{}:{}".format(*broker.name_server)


@contextmanager
def at_ours(directory: Path) -> Iterator[str]:
    """The name server's address of `longpoll serve`."""
    with serving(directory / "ours") as served:
        yield "{}:{}".format(*served.name_server)


def prepare(name_server: str, stored: int) -> None:
    """Make the topics, as soon as the broker is known, and store what is to be drained."""
    with Admin(name_server) as admin:
        for topic in (TO_SEND, TO_TIME, STORED):
            wait_until(partial(succeeds, partial(admin.create_topic, topic, 4)))
    with Producer(name_server) as producer:
        wait_until(partial(succeeds, partial(look_up, name_server)))
        for first in range(0, stored, BATCH):
            producer.send_batch(STORED, [OutgoingMessage(BODY)] * min(BATCH, stored - first))


def succeeds(action: Callable[[], object]) -> bool:
    """Whether a broker does it by now."""
    try:
        action()
    except ClientError:
        return False
    return True


def look_up(name_server: str) -> None:
    """Raise a ClientError while the topic to be drained has no route."""
    with ClientInstance(RealRuntime(), name_server) as instance:
        instance.route(STORED)


def rows_of(command: Sequence[str]) -> dict[str, Row]:
    """The rows that a client's process printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{command[:4]} ended with {done.returncode}: {done.stderr[-2000:]}")
    # Java's client may log that it closes a connection after it has said all.
    (said,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    return msgspec.json.decode(said, type=dict[str, Row])


def measure(name_server: str, shape: Shape, java: Sequence[str]) -> Found:
    """The best round of each measure of each client."""
    counts = [str(number) for number in (shape.stored, shape.many, shape.few, shape.timed)]
    commands = {name: [sys.executable, "-m", "model_tests.bench.client_sides", side] for name, side in SIDES.items()}
    if java:
        commands[JAVA] = list(java)

    def turn(name: str, mark: str) -> dict[str, Row]:
        return rows_of([*commands[name], name_server, TO_SEND, TO_TIME, STORED, *counts, mark])

    turn(next(iter(SIDES)), "warming")
    found: Found = {name: {} for name in commands}
    for number in range(shape.rounds):
        for name in commands:
            mark = f"{name.replace(' ', '-')}-{number}".replace("'", "").replace(".", "-")
            for measured, row in turn(name, mark).items():
                found[name][measured] = better(measured, found[name].get(measured), row)
    return found


def better(measured: str, known: Row | None, row: Row) -> Row:
    """The better of each figure of two rounds."""
    if known is None:
        return row
    if measured == "latency":
        return msgspec.structs.replace(
            row, p50_ms=min(known.p50_ms, row.p50_ms), p99_ms=min(known.p99_ms, row.p99_ms)
        )  # fmt: skip
    return msgspec.structs.replace(
        row, failed=known.failed + row.failed, wall_s=min(known.wall_s, row.wall_s), cpu_s=min(known.cpu_s, row.cpu_s)
    )


def show(broker: str, found: Found) -> None:
    """A table of one broker, with ratios to Java's client where it is there."""
    table = Table(
        title=f"at {broker}, {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    )
    for column in ("measure", "client", "figure", "of its processor time", "failed", "beside Java's"):
        table.add_column(column, justify="left" if column in {"measure", "client"} else "right")
    for measured in MEASURES:
        java = found.get(JAVA, {}).get("async" if measured == "awaited" else measured)
        for name, rows in found.items():
            row = rows.get(measured)
            if row is not None:
                table.add_row(measured, name, *cells(measured, row, java))
    Console().print(table)


def cells(measured: str, row: Row, java: Row | None) -> tuple[str, str, str, str]:
    """The figures of one measure, compared with Java's: more than 1 is better."""
    if measured == "latency":
        ratio = f"{java.p50_ms / row.p50_ms:.2f}, {java.p99_ms / row.p99_ms:.2f}" if java else ""
        return f"p50 {row.p50_ms:.2f} ms, p99 {row.p99_ms:.2f} ms", "", str(row.failed), ratio
    ratio = f"{row.rate / java.rate:.2f}, {row.cpu_rate / java.cpu_rate:.2f}" if java else ""
    return f"{row.rate:,.0f} a second", f"{row.cpu_rate:,.0f} a second", str(row.failed), ratio


def main() -> int:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--broker", choices=("java-4.9.7", "ours", "both"), default="both")
    parser.add_argument("--count", type=int, default=20_000, help="asynchronous sends; the others follow from it")
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    if not 1000 <= chosen.count <= 10_000_000 or not 1 <= chosen.rounds <= 20:
        parser.error("give 1000 to 10000000 messages and 1 to 20 rounds")
    shape = Shape(chosen.rounds, chosen.count, chosen.count // 10, chosen.count // 20, 2 * chosen.count)
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
                    prepare(name_server, shape.stored)
                    found[name] = measure(name_server, shape, java)
                if not chosen.json:
                    show(name, found[name])
    if chosen.json:
        print_json(found)
    return int(any(row.failed for sides in found.values() for rows in sides.values() for row in rows.values()))


if __name__ == "__main__":
    leaving.run(main)
