"""Measures real servers: lost and late wakes, late deadlines, a thundering herd, and polls at close, restart, deletion.

    python -m model_tests.bench.services_bench [--seconds 20] [--only redis] [--json]

Prints the table of docs/services.md, measured through the subjects of `longpoll kit`, and draws docs/services.svg. For
a server that is not installed on this machine, it prints how to install the server. Exits with 1 if a wake was lost.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import msgspec
from attrs import define, field
from model_tests.bench import leaving, services_plot
from model_tests.bench.served import machine, parser_of, print_json
from model_tests.support.real_servers import KINDS, Server, running

from longpoll_kit.errors import ServiceError
from longpoll_kit.subject import LongPollSubject, Polled, abilities_of, wait_of
from longpoll_kit.subjects import SCHEMES, subject_for

MS: Final = 1_000_000
PAUSE: Final = threading.Event()
"""An event that is never set, used to wait."""
LATE_MS: Final = 500
WAIT_MS: Final = 5_000
SHORT_MS: Final = 300
AT_ONCE: Final = 8
HERD: Final = 200
START_MS: Final = 30_000
KEPT: Final = 20
"""The number of messages that must survive a restart."""
RACE_MS: Final = 2
"""In each race the publish starts at most this many ms after the poll."""
CONFIDENCE: Final = 3.0
"""If none of N trials fails, the failure rate is below this value divided by N, with 95 % confidence."""


class Row(msgspec.Struct):
    server: str
    mode: str
    races: int = 0
    lost: int = 0
    late: int = 0
    wake_ms: str = ""
    deadline_ms: str = ""
    herd_ms: float = 0.0
    close: str = ""
    restart: str = ""
    deletion: str = ""


@define(eq=False)
class Reader:
    subject: LongPollSubject
    queue: str
    position: Any = None
    sent_ns: int = 0
    ended_ns: int = 0
    abilities: frozenset[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.abilities = abilities_of(self.subject)

    def poll(self, wait_ms: int, begun: Callable[[Any], object] = lambda _handle: None) -> Polled:
        handle = self.subject.start_poll(self.queue, self.position, wait_of(self.subject, wait_ms))
        self.sent_ns = time.monotonic_ns()
        begun(handle)
        answer = self.subject.finish_poll(handle)
        self.ended_ns = time.monotonic_ns()
        if answer.bodies and "acknowledge" in self.abilities:
            self.subject.acknowledge(handle)
        if answer.position_next is not None:
            self.position = answer.position_next
        return answer

    def publish(self, body: str) -> int:
        self.subject.publish(self.queue, f"{self.queue}/{body}".encode())
        return time.monotonic_ns()


def spread(figures_ms: list[float]) -> str:
    cuts = quantiles(figures_ms, n=100, method="inclusive")
    return f"{cuts[49]:.1f}, {cuts[98]:.1f}, {max(figures_ms):.1f}"


def race(reader: Reader, pool: ThreadPoolExecutor, until_ns: int) -> Iterator[float]:
    """Race a poll with a publish until a time, and yield the delay of each answer in ms.

    The delay begins when the poll is sent and the message is acknowledged. The delay of a lost wake is infinity.
    """
    choose, number = random.Random(14), 0
    while time.monotonic_ns() < until_ns:
        poll = pool.submit(reader.poll, WAIT_MS)
        PAUSE.wait(choose.random() * RACE_MS / 1000)
        acked_ns = reader.publish(str(number))
        number += 1
        answer = poll.result()
        wake_ms = (reader.ended_ns - max(reader.sent_ns, acked_ns)) / MS
        yield max(0.0, wake_ms) if answer.bodies else float("inf")
        while not answer.bodies:
            answer = reader.poll(WAIT_MS)


def deadlines(subject: LongPollSubject, pool: ThreadPoolExecutor, name: str, until_ns: int) -> list[float]:
    """Return the lateness of empty answers, in ms after their deadlines."""
    found: list[float] = []
    wait_ms = wait_of(subject, SHORT_MS)
    while time.monotonic_ns() < until_ns or not found:
        readers = [Reader(subject, name) for _ in range(AT_ONCE)]
        for future in [pool.submit(reader.poll, wait_ms) for reader in readers]:
            future.result()
        found += [(reader.ended_ns - reader.sent_ns) / MS - wait_ms for reader in readers]
    return found


def herd(subject: LongPollSubject, pool: ThreadPoolExecutor, name: str) -> float:
    """Return the ms from the first publish until the last of many polls is answered.

    If a message goes to only one poll, each poll gets its own message; otherwise one message answers all polls.
    """
    readers = [Reader(subject, name) for _ in range(HERD)]
    polls = [pool.submit(reader.poll, 2 * WAIT_MS) for reader in readers]
    while not all(reader.sent_ns for reader in readers):
        PAUSE.wait(0.01)
    count = HERD if subject.semantics == "consuming" else 1
    begun_ns = time.monotonic_ns()
    for number in range(count):
        readers[0].publish(f"herd/{number}")
    for poll in polls:
        poll.result()
    return (max(reader.ended_ns for reader in readers) - begun_ns) / MS


def told(poll: Future[Polled], begun_ns: int, gone: tuple[type[Exception], ...]) -> str:
    try:
        answer = poll.result(4 * WAIT_MS / 1000)
    except FutureTimeoutError:
        return "never"
    except gone as error:
        what = f"{type(error).__name__}"
    else:
        what = "a message" if answer.bodies else "empty"
    return f"{what} after {(time.monotonic_ns() - begun_ns) / 1e9:.1f} s"


def closing(subject: LongPollSubject, pool: ThreadPoolExecutor, name: str) -> str:
    if "cancel" not in abilities_of(subject):
        return "not tried"
    slowest_ms = 0.0
    for number in range(KEPT):
        handles: list[Any] = []
        gone = Reader(subject, f"{name}-{number}")
        poll = pool.submit(gone.poll, WAIT_MS, handles.append)
        while not handles:
            PAUSE.wait(0.001)
        PAUSE.wait(0.05)
        subject.cancel(handles[0])
        reader = Reader(subject, gone.queue)
        acked_ns = reader.publish("after")
        answer = reader.poll(2 * WAIT_MS)
        if not answer.bodies:
            return "message lost"
        slowest_ms = max(slowest_ms, (reader.ended_ns - acked_ns) / MS)
        poll.exception(WAIT_MS)
    return f"no message lost; next poll has it within {slowest_ms:.0f} ms"


def deletion(make: Callable[[], LongPollSubject], subject: LongPollSubject, pool: ThreadPoolExecutor, name: str) -> str:
    other = make()
    owner = Reader(other, name)
    owner.publish("first")
    owner.poll(WAIT_MS)
    reader = Reader(subject, name, owner.position)
    begun_ns = time.monotonic_ns()
    poll = pool.submit(reader.poll, WAIT_MS)
    PAUSE.wait(0.3)
    if other.close is not None:
        other.close()
    return told(poll, begun_ns, (ServiceError, *subject.gone))


def serving(make: Callable[[], LongPollSubject]) -> LongPollSubject:
    end_ns = time.monotonic_ns() + START_MS * MS
    while True:
        try:
            return make()
        except ServiceError:
            if time.monotonic_ns() > end_ns:
                raise
            PAUSE.wait(0.1)


def restart(make: Callable[[], LongPollSubject], server: Server, pool: ThreadPoolExecutor, name: str) -> str:
    """Stop the server while a poll waits, start it again, and count the remaining messages."""
    subject = make()
    kept, held = Reader(subject, f"{name}-kept"), Reader(subject, f"{name}-held")
    for number in range(KEPT):
        kept.publish(str(number))
    begun_ns = time.monotonic_ns()
    poll = pool.submit(held.poll, WAIT_MS)
    PAUSE.wait(0.3)
    server.stop()
    how = told(poll, begun_ns, (ServiceError, *subject.gone))
    server.start()
    count = 0
    gone: tuple[type[Exception], ...] = (ServiceError, *subject.gone)
    try:
        reader = Reader(serving(make), kept.queue)
        while bodies := reader.poll(1_000).bodies:
            count += len(bodies)
    except gone as error:
        return f"{how}; queue gone ({type(error).__name__})"
    return f"{how}; {count} of {KEPT} messages left"


def measured(server: Server, name: str, mode: str, seconds: float) -> Row:
    make = subject_for(server.url, mode or None)
    subject, row = serving(make), Row(name, mode or next(iter(SCHEMES[server.kind.scheme])))
    with ThreadPoolExecutor(HERD + 2 * AT_ONCE) as pool:
        until_ns = time.monotonic_ns() + int(seconds * 1e9)
        readers = [Reader(subject, f"race-{mode}-{number}") for number in range(AT_ONCE)]
        races = [pool.submit(lambda each=reader: list(race(each, pool, until_ns))) for reader in readers]  # type: ignore[misc]
        wakes = [wake for each in races for wake in each.result()]
        row.races, row.lost = len(wakes), sum(wake == float("inf") for wake in wakes)
        row.late = sum(LATE_MS < wake < float("inf") for wake in wakes)
        row.wake_ms = spread([wake for wake in wakes if wake != float("inf")])
        row.deadline_ms = spread(deadlines(subject, pool, f"due-{mode}", time.monotonic_ns() + int(seconds * 5e8)))
        row.herd_ms = herd(subject, pool, f"herd-{mode}")
        row.close = closing(subject, pool, f"close-{mode}")
        row.deletion = deletion(make, subject, pool, f"delete-{mode}")
        row.restart = restart(make, server, pool, f"restart-{mode}")
    return row


def table(rows: list[Row], versions: dict[str, str]) -> str:
    heads = [
        "server",
        "racing deliveries",
        "lost",
        "late",
        "per million",
        "wake, ms",
        "deadline, ms",
        f"herd of {HERD}, ms",
    ]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        bad = row.lost + row.late
        rate = f"{bad / row.races * 1e6:,.0f}" if bad else f"< {CONFIDENCE / row.races * 1e6:,.0f}"
        name = f"{row.server} {versions[row.server]}, {row.mode}"
        counts = [f"{row.races:,}", f"{row.lost:,}", f"{row.late:,}", rate]
        lines.append([name, *counts, row.wake_ms, row.deadline_ms, f"{row.herd_ms:,.0f}"])
    lines += [[], ["server", "a poll is closed", "the queue is deleted", "the server restarts"], ["---"] * 4]
    lines += [[f"{row.server}, {row.mode}", row.close, row.deletion, row.restart] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" if line else "" for line in lines)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of races; half of it of deadlines")
    parser.add_argument("--only", choices=KINDS, action="append")
    chosen = parser.parse_args()
    rows, versions = [], {}
    for name in chosen.only or KINDS:
        kind = KINDS[name]
        if not kind.is_here:
            sys.stderr.write(f"{name} is left out; install {kind.where}\n")
            continue
        versions[name] = kind.told_version()
        for mode in kind.modes:
            with tempfile.TemporaryDirectory() as directory, running(name, Path(directory)) as server:
                rows.append(measured(server, name, mode, chosen.seconds))
    if chosen.json:
        print_json(rows)
    else:
        found = table(rows, versions)
        sys.stdout.write(f"{machine()}\n\n{found}\n")
        services_plot.write(found)
    return int(any(row.lost for row in rows))


if __name__ == "__main__":
    leaving.run(main)
