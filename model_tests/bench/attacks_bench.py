"""What attacks cost a bystander and the broker's memory, with the broker's limits and without them.

    python -m model_tests.bench.attacks_bench [--members 2000] [--attack members] [--json]

Each attack is made on `longpoll serve` as a process of its own, anew for each way. Meanwhile a bystander, a process of
its own as well, sends messages and pulls each one; measured are its times from send to answer of the pull, the broker's
processor time, and how much the most memory it had in its life grew. Without limits means that the settings of
`docs/safety.md` are far away and that every member is told of every change at once.

Exits with 1 when a bystander with limits was not served, or waited longer than half a second without what the machine
made it wait.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from model_tests.bench import bystander
from rich.console import Console
from rich.table import Table

from longpoll_broker.testing.raw_client import RawClient, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Address

MAIN: Final = "from longpoll.cli import main; main()"
TOLD_AT_ONCE: Final = "from longpoll_broker.service.admin import member_notices; member_notices.NOTICES_MAX = 1 << 60; "
FAR: Final = 1 << 40
WITHOUT: Final = f"unfinishedBytesMax={FAR}\nunsentBytesMax={FAR}\noutputBytesMax={FAR}\n"
GREEDY_COUNT: Final = 60
PATIENCE_S: Final = 60.0
WORST_MS_MAX: Final = 500
CALM_S: Final = 4.0
"""How long the bystander goes on after an attack is over."""


class Result(msgspec.Struct):
    """What one attack came to."""

    attack: str
    limits: bool
    round_trips: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    own_p99_ms: float
    own_worst_ms: float
    """The same without the time for which threads of bystander and broker waited for a processor."""
    processor_s: float
    memory_mib: float
    """Growth of the most memory that the process has had."""


class Served:
    """A serving process; `status` and `processor_s` read what the kernel says of it."""

    def __init__(self, process: subprocess.Popen[str], address: Address) -> None:
        self.process = process
        self.address = address

    def most_memory_kib(self) -> int:
        """The most memory it has had, KiB."""
        found = re.search(r"^VmHWM:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    def processor_s(self) -> float:
        """The processor time it has had, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def frame(code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> bytes:
    """A request as it is written."""
    return b"".join(encode(Command(code, 1, ext_fields=fields, body=body)))


def heartbeat(client_id: str) -> bytes:
    """A heartbeat that joins the group of the attack."""
    consumer = {"groupName": "crowd", "subscriptionDataSet": []}
    return frame(
        RequestCode.HEART_BEAT, {}, msgspec.json.encode({"clientID": client_id, "consumerDataSet": [consumer]})
    )


def crowd(served: Served, count: int, stack: ExitStack) -> list[socket.socket]:
    """Connections that are members of one group, which read nothing unless somebody does it for them."""
    # Nobody is told while they join: without limits that alone is two million notices.
    tell_changes(served, wanted=False)
    found = []
    for number in range(count):
        member = stack.enter_context(socket.create_connection(served.address, PATIENCE_S))
        member.sendall(heartbeat(f"m{number}"))
        found.append(member)
    wait_for_quiet(served)
    tell_changes(served, wanted=True)
    return found


def tell_changes(served: Served, *, wanted: bool) -> None:
    """Have the group's members told of its changes, or not."""
    with RawClient(served.address) as client:
        group = msgspec.json.encode({"groupName": "crowd", "notifyConsumerIdsChangedEnable": wanted})
        assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group).code == 0


def wait_for_quiet(served: Served) -> None:
    """Wait until the broker has used little of the processor for a while."""
    last_s = served.processor_s()
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        bystander.PAUSE.wait(0.3)
        now_s = served.processor_s()
        if now_s - last_s < 0.05:
            return
        last_s = now_s


# -- the attacks: what is made ready, and then what is done ------------------------------------------------------------

Attack = Callable[[Served, int, ExitStack], Callable[[], None]]


def members(served: Served, count: int, stack: ExitStack) -> Callable[[], None]:
    """One connection joins and leaves a large group a hundred times, in one piece of 39 KB."""
    crowd(served, count, stack)
    restless = stack.enter_context(socket.create_connection(served.address, PATIENCE_S))
    leave = frame(RequestCode.UNREGISTER_CLIENT, {"clientID": "x", "consumerGroup": "crowd"})
    return lambda: restless.sendall((heartbeat("x") + leave) * 100)


def members_gone(served: Served, count: int, stack: ExitStack) -> Callable[[], None]:
    """A large group closes all its connections at once."""
    found = crowd(served, count, stack)

    def go() -> None:
        for member in found:
            member.close()

    return go


def unfinished(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """Sixty connections each send all but the end of a frame of 16 MiB."""
    greedy = [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(GREEDY_COUNT)]
    content = struct.pack(">iI", 16 * MIB, 100) + bytes(16 * MIB - 1_000)

    def send() -> None:
        for each in greedy:
            try:
                each.sendall(content)
            except OSError:
                continue

    return send


def unsent(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """Sixty connections each ask for 27 MB of tables that the broker has to write for them, and read nothing."""
    with RawClient(served.address) as client:
        for number in range(300):
            send_message(client, f"T{number}")
    greedy = [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(GREEDY_COUNT)]
    content = frame(RequestCode.GET_ALL_TOPIC_CONFIG) * 600

    def ask() -> None:
        for each in greedy:
            try:
                each.sendall(content)
            except OSError:
                continue

    return ask


ATTACKS: Final[dict[str, Attack]] = {
    "members": members,
    "members gone": members_gone,
    "unfinished frames": unfinished,
    "unsent answers": unsent,
}


# -- measuring ---------------------------------------------------------------------------------------------------------


@contextmanager
def serving(directory: Path, *, limits: bool) -> Iterator[Served]:
    """A broker of its own process."""
    config = directory / "broker.conf"
    config.write_text("mappedFileSizeCommitLog=67108864\nmappedFileSizeConsumeQueue=20000\n" + ("" if limits else WITHOUT))  # noqa: E501 - one text  # fmt: skip
    code = MAIN if limits else TOLD_AT_ONCE + MAIN
    command = [sys.executable, "-c", code, "serve", "--store", str(directory / "store"), "--config", str(config)]
    command += ["--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0", "--json", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = msgspec.json.decode(process.stdout.readline())
            host, _colon, port = ready["broker"].rpartition(":")
            yield Served(process, (host, int(port)))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)


def measured(name: str, count: int, *, limits: bool) -> Result:
    """One attack, one way."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served = stack.enter_context(serving(directory, limits=limits))
        attack = ATTACKS[name](served, count, stack)
        memory_kib, processor_s = served.most_memory_kib(), served.processor_s()
        command = bystander.command(served.address, served.process.pid)
        out = stack.enter_context((directory / "times").open("w+"))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, text=True) as standing:
            assert standing.stdin is not None
            try:
                while out.tell() < 1_000 and standing.poll() is None:
                    bystander.PAUSE.wait(0.01)
                    out.seek(0, os.SEEK_END)
                attack()
                bystander.PAUSE.wait(CALM_S)
            finally:
                standing.stdin.close()
        out.seek(0)
        times = bystander.Times.of(out.read())
        return Result(
            name,
            limits,
            times.count,
            times.clock.p50_ms,
            times.clock.p99_ms,
            times.clock.worst_ms,
            times.own.p99_ms,
            times.own.worst_ms,
            served.processor_s() - processor_s,
            (served.most_memory_kib() - memory_kib) / 1024,
        )


def show(results: Sequence[Result]) -> None:
    """A row for each attack and way."""
    table = Table(
        "attack",
        "limits",
        "round trips",
        "p50 ms",
        "p99 ms",
        "worst ms",
        "own p99",
        "own worst",
        "processor s",
        "memory MiB",
    )
    for each in results:
        table.add_row(
            each.attack,
            "with" if each.limits else "without",
            str(each.round_trips),
            f"{each.p50_ms:.2f}",
            f"{each.p99_ms:.1f}",
            f"{each.worst_ms:.0f}",
            f"{each.own_p99_ms:.1f}",
            f"{each.own_worst_ms:.0f}",
            f"{each.processor_s:.2f}",
            f"{each.memory_mib:.0f}",
        )
    Console(width=130).print(table)


def main() -> int:
    """Measure, and say it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=2_000)
    parser.add_argument("--attack", choices=ATTACKS, help="one attack instead of all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    names = [options.attack] if options.attack else list(ATTACKS)
    results = [measured(name, options.members, limits=limits) for name in names for limits in (False, True)]
    if options.json:
        sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
    else:
        show(results)
    return int(any(each.limits and each.own_worst_ms > WORST_MS_MAX for each in results))


if __name__ == "__main__":
    sys.exit(main())
