"""A client that sends and pulls during an attack, and prints each round's time and the broker's part of it.

    python -m model_tests.bench.bystander HOST:PORT [--broker PID] [--asks-again]

It prints a line for each round until its standard input ends: milliseconds from a send to the answer of the pull that
fetches the message. With the broker's process id it also prints the time left without waits for a processor, by this
client's or the broker's threads (`longpoll_runtime.host_pauses`). A busy machine causes these. Waits for another
request, a lock, the interpreter or the disk count for the broker. The waiting thread may not be the answering one, so
the broker's part is at least the time left.

A pull is held until its message comes. If the policy may lose a wakeup, as RocketMQ's does, a pull would sometimes wait
up to five seconds for the scan. With `--asks-again` pulls are not held but repeated.

The attacks: `attacks_bench`, `model_tests/service/test_fuzz.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Self

from attrs import frozen
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_message

from longpoll_protocol.codes import RequestCode
from longpoll_runtime import Address
from longpoll_runtime.host_pauses import HostPauseWatch

TOPIC: Final = "Bystander"
PAUSE_S: Final = 0.001
HELD_MS: Final = 30_000
PAUSE: Final = threading.Event()
"""Never set: waiting for it lets time go by."""
LONG_MS: Final = 5.0
"""A round that took less is taken as it is."""
LOOK_S: Final = 0.004
"""How often it is looked how long threads have waited: less would be work that itself takes a processor."""
SETTLE_NS: Final = 20_000_000
"""How long after a round's end every wait in it has been seen."""

Own = Callable[[int, int], float]
"""From two moments of the monotonic clock, ns: how much of the time between them was not the machine's, ms."""


@frozen
class Quantiles:
    """How long rounds took, ms."""

    p50_ms: float
    p99_ms: float
    worst_ms: float

    @classmethod
    def of(cls, times_ms: list[float]) -> Self:
        """Of at least one round."""
        ordered = sorted(times_ms)
        return cls(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.1f}, p99 {self.p99_ms:.1f}, worst {self.worst_ms:.0f} ms"


@frozen
class Times:
    """The rounds of a bystander: by the clock, and without what the machine made them wait."""

    count: int
    clock: Quantiles
    own: Quantiles

    @classmethod
    def of(cls, text: str) -> Times:
        """Parse a bystander's output, without a truncated last line."""
        rows = [[float(each) for each in line.split()] for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        assert rows, "the bystander was not served"
        return cls(len(rows), Quantiles.of([row[0] for row in rows]), Quantiles.of([row[-1] for row in rows]))

    def __str__(self) -> str:
        return f"{self.count} rounds, {self.clock}; without the machine's part {self.own}"


def command(address: Address, broker: int | None = None, *, is_held: bool = True) -> list[str]:
    """The command that runs a bystander, with the broker's process id if its own part is wanted."""
    options = [] if broker is None else ["--broker", str(broker)]
    if not is_held:
        options.append("--asks-again")
    return [sys.executable, "-m", "model_tests.bench.bystander", "{}:{}".format(*address), *options]


def stand_by(address: Address, own: Own | None, *, is_held: bool = True) -> None:
    """Be the bystander until standard input ends."""
    with RawClient(address) as client:
        topic = {"topic": TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
        assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}').code == 0
        os.set_blocking(0, False)
        while _goes_on():
            begun_ns = time.monotonic_ns()
            offset = send_message(client, TOPIC)
            fields = pull_fields(TOPIC, offset, timeout_ms=HELD_MS if is_held else 0)
            while client.call(RequestCode.PULL_MESSAGE, fields).code != 0:
                assert not is_held, "the message has not come in time"
                PAUSE.wait(PAUSE_S)
            ended_ns = time.monotonic_ns()
            took_ms = (ended_ns - begun_ns) / 1e6
            line = f"{took_ms:.3f}"
            if own is not None:
                line += f" {own(begun_ns, ended_ns) if took_ms > LONG_MS else took_ms:.3f}"
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            PAUSE.wait(PAUSE_S)


def _goes_on() -> bool:
    try:
        return bool(os.read(0, 1))
    except BlockingIOError:
        return True


def own_of(watch: HostPauseWatch) -> Own:
    """The rest without the host pauses that a watch has seen; waits until it has seen them."""

    def own(begin_ns: int, end_ns: int) -> float:
        watch.wait_seen(end_ns + SETTLE_NS)
        return (end_ns - begin_ns) / 1e6 - watch.stalled_ms(begin_ns, end_ns)

    return own


def main() -> None:
    """Stand by."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("--broker", type=int, metavar="PID", help="also say what is left without the machine's part")
    parser.add_argument("--asks-again", action="store_true", help="pulls are not held")
    options = parser.parse_args()
    host, _colon, port = options.address.rpartition(":")
    with ExitStack() as stack:
        own = None
        if options.broker is not None:
            own = own_of(stack.enter_context(HostPauseWatch(options.broker, sleep_s=LOOK_S)))
        stand_by((host, int(port)), own, is_held=not options.asks_again)


if __name__ == "__main__":
    main()
