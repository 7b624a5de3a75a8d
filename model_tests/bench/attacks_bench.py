"""The cost of attacks for an unrelated client and for the broker's memory, with the broker's limits and without them.

    python -m model_tests.bench.attacks_bench [--members 2000] [--attack members] [--json]

Each attack runs against a new `longpoll serve` process, once with limits and once without. Meanwhile an unrelated
client, also a process, sends messages and pulls each one. The bench measures its times from send to answer of the pull,
by the clock and without its waits and the broker's for a processor (`longpoll_runtime.host_pauses`), the broker's
processor time, and the growth of its peak memory. Without limits, the settings of `docs/safety.md` are out of reach and
every member is notified of every change at once.

Exits with 1 if the client was not served with limits, or waited longer than half a second beyond the machine's own
delays.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from attrs import frozen
from model_tests.bench import leaving
from model_tests.bench.served import Served, address_of, parser_of, print_json, serving
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_fields, send_message
from rich.console import Console
from rich.table import Table

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import FIELD_COUNT_MAX, Command, Serialisation, encode
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Address
from longpoll_runtime.host_pauses import HostPauseWatch

TOLD_AT_ONCE: Final = (
    "from longpoll_broker.rocketmq.admin import client_processor; client_processor.NOTICES_MAX = 1 << 60; "
)
FAR: Final = 1 << 40
WITHOUT: Final = f"unfinishedBytesMax={FAR}\nunsentBytesMax={FAR}\noutputBytesMax={FAR}\n"
WORST_MS_MAX: Final = 500
CALM_S: Final = 4.0
"""How long the unrelated client goes on after an attack is over."""
PAUSE: Final = threading.Event()
"""Never set: waiting for it lets time go by."""
LONG_MS: Final = 5.0
"""A round that took less is taken as it is."""
SETTLE_NS: Final = 20_000_000
"""How long after a round's end every wait in it has been seen."""
GREEDY_COUNT: Final = 60
PATIENCE_S: Final = 60.0
QUIET_S: Final = 3.0
"""A broker that answers nothing for so long has answered what it will."""

Prepare = Callable[[Served, int, ExitStack], Callable[[], None]]
"""Makes an attack ready, of a size in peers, and gives what does it."""


def frame(
    code: int, fields: dict[str, str] | None = None, body: bytes = b"", kind: Serialisation = Serialisation.JSON
) -> bytes:
    """A request as it is written."""
    return b"".join(encode(Command(code, 1, ext_fields=fields, body=body, serialisation=kind)))


def connections(served: Served, count: int, stack: ExitStack) -> list[socket.socket]:
    """So many, closed with the stack."""
    return [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(count)]


def wait_for_quiet(served: Served) -> None:
    """Wait until the broker has used little of the processor for a while."""
    last_s, deadline_s = served.processor_s(), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        PAUSE.wait(0.3)
        now_s = served.processor_s()
        if now_s - last_s < 0.05:
            return
        last_s = now_s


def to_each(peers: Sequence[socket.socket], content: bytes) -> None:
    """Send the same to all that are still connected."""
    for each in peers:
        with suppress(OSError):
            each.sendall(content)


def flood(address: Address, contents: Sequence[bytes]) -> None:
    """Write each item on a new connection and drop the answers, until there are no more items."""
    with ExitStack() as stack:
        chosen = stack.enter_context(selectors.DefaultSelector())
        for content in contents:
            peer = stack.enter_context(socket.create_connection(address, PATIENCE_S))
            peer.setblocking(False)
            chosen.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(content))
        while chosen.get_map():
            ready = chosen.select(QUIET_S)
            if not ready:
                return
            for key, events in ready:
                _turn(chosen, key, events)


def _turn(chosen: selectors.BaseSelector, key: selectors.SelectorKey, events: int) -> None:
    """Read a piece and write a piece; a connection that was closed is left."""
    peer = key.fileobj
    assert isinstance(peer, socket.socket)
    with suppress(BlockingIOError):
        try:
            if events & selectors.EVENT_READ and not peer.recv(MIB):
                chosen.unregister(peer)
                return
            if events & selectors.EVENT_WRITE:
                left = key.data[peer.send(key.data[:65_536]) :]
                chosen.modify(peer, selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0), left)
        except ConnectionError:
            chosen.unregister(peer)


# -- the attacks: what is made ready, and then what is done ------------------------------------------------------------


def heartbeat(client_id: str) -> bytes:
    """A heartbeat that joins the group of the attack."""
    consumer = {"groupName": "crowd", "subscriptionDataSet": []}
    body = msgspec.json.encode({"clientID": client_id, "consumerDataSet": [consumer]})
    return frame(RequestCode.HEART_BEAT, {}, body)


def crowd(served: Served, count: int, stack: ExitStack) -> list[socket.socket]:
    """Connections of members of one group, who are told of its changes once all have joined."""

    def tell_changes(*, wanted: bool) -> None:
        group = msgspec.json.encode({"groupName": "crowd", "notifyConsumerIdsChangedEnable": wanted})
        with RawClient(served.address) as client:
            assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group).code == 0

    # No notifications while they join: without limits that alone is two million.
    tell_changes(wanted=False)
    found = connections(served, count, stack)
    for number, member in enumerate(found):
        member.sendall(heartbeat(f"m{number}"))
    wait_for_quiet(served)
    tell_changes(wanted=True)
    return found


def members(served: Served, count: int, stack: ExitStack) -> Callable[[], None]:
    """One connection joins and leaves a large group a hundred times, in one piece of 39 KB."""
    crowd(served, count, stack)
    leave = frame(RequestCode.UNREGISTER_CLIENT, {"clientID": "x", "consumerGroup": "crowd"})
    return partial(to_each, connections(served, 1, stack), (heartbeat("x") + leave) * 100)


def members_gone(served: Served, count: int, stack: ExitStack) -> Callable[[], None]:
    """A large group closes all its connections at once."""
    found = crowd(served, count, stack)

    def go() -> None:
        for member in found:
            member.close()

    return go


def unfinished(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """Sixty connections each send all but the end of a frame of 16 MiB."""
    content = struct.pack(">iI", 16 * MIB, 100) + bytes(16 * MIB - 1_000)
    return partial(to_each, connections(served, GREEDY_COUNT, stack), content)


def unsent(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """Sixty connections each ask for 27 MB of tables that the broker has to write for them, and read nothing."""
    with RawClient(served.address) as client:
        for number in range(300):
            send_message(client, f"T{number}")
    content = frame(RequestCode.GET_ALL_TOPIC_CONFIG) * 600
    return partial(to_each, connections(served, GREEDY_COUNT, stack), content)


def headers(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Twenty-four connections send headers of up to a mebibyte: of 60,000 fields, of as many as are read, of brackets.

    The fields are in either encoding.
    """
    fields = {f"n{number}": "" for number in range(60_000)}
    most = {f"n{number}": "x" for number in range(FIELD_COUNT_MAX - 20)} | pull_fields("T", 0)
    nested = b'{"code":11,"extFields":' + b'{"a":' * 150_000
    deep = struct.pack(">ii", len(nested) + 4, len(nested)) + nested
    beat = frame(RequestCode.HEART_BEAT, {}, b"[" * MIB)
    wide, read = ([frame(RequestCode.PULL_MESSAGE, one, kind=kind) for kind in Serialisation] for one in (fields, most))
    contents = [one * 20 for one in (*wide, deep, beat) for _ in range(4)]
    return partial(flood, served.address, contents + [one * 1_000 for one in read for _ in range(4)])


def topics(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Eight connections send to 20,000 topics that do not exist, and pull from as many more."""
    contents = [
        b"".join(
            frame(RequestCode.SEND_MESSAGE_V2, send_fields(f"made{lane}x{number}"), b"x")
            + frame(RequestCode.PULL_MESSAGE, pull_fields(f"none{lane}x{number}", 0, group=f"g{lane}x{number}"))
            for number in range(2_500)
        )
        for lane in range(8)
    ]
    return partial(flood, served.address, contents)


def many_asked_for(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Eight connections ask ten times each for two billion messages of a queue of 200,000, and want none of them."""
    flood(served.address, [frame(RequestCode.SEND_MESSAGE_V2, send_fields("Long"), b"x") * 50_000] * 4)
    fields = pull_fields("Long", 0, subscription="none") | {"maxMsgNums": "2000000000"}
    return partial(flood, served.address, [frame(RequestCode.PULL_MESSAGE, fields) * 10] * 8)


def held_unlike(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """190 connections wait for one queue, a thousand times each, no pull is like another, and a message comes."""
    with RawClient(served.address) as client:
        send_message(client, "Held")
    peers = connections(served, 190, stack)
    for lane, each in enumerate(peers):
        fields = pull_fields("Held", 1, timeout_ms=300_000)
        wanted = range(lane * 1_000, lane * 1_000 + 1_000)
        each.sendall(b"".join(frame(RequestCode.PULL_MESSAGE, fields | {"maxMsgNums": str(one)}) for one in wanted))
    wait_for_quiet(served)

    def wake() -> None:
        with RawClient(served.address) as client:
            send_message(client, "Held")
        deadline_s = time.monotonic() + 6
        while time.monotonic() < deadline_s:
            for each in peers:
                each.setblocking(False)
                with suppress(OSError):
                    while each.recv(MIB):
                        pass

    return wake


@frozen
class Attack:
    """How one is made; `settings` are lines of `broker.conf`."""

    prepare: Prepare
    settings: str = ""
    has_limit: bool = False
    """Whether there are settings, or constants, without which it can be tried too."""


ATTACKS: Final[dict[str, Attack]] = {
    "members": Attack(members, has_limit=True),
    "members gone": Attack(members_gone, has_limit=True),
    "unfinished frames": Attack(unfinished, has_limit=True),
    "unsent answers": Attack(unsent, has_limit=True),
    "headers": Attack(headers),
    "topics": Attack(topics, "mappedFileSizeConsumeQueue=20000\n"),
    "many asked for": Attack(many_asked_for),
    "held unlike": Attack(held_unlike),
}


# -- the unrelated client ----------------------------------------------------------------------------------------------


def stand_by(place: str, broker_id: str) -> None:
    """Send and pull until standard input ends; print a line for each round: its ms, and without the machine's part.

    The waiting thread may not be the answering one, so the broker's part is at least what is left.
    """
    with RawClient(address_of(place)) as client, HostPauseWatch(int(broker_id), sleep_s=0.004) as watch:
        send_message(client, "Bystander")
        os.set_blocking(0, False)
        while _goes_on():
            begun_ns = time.monotonic_ns()
            fields = pull_fields("Bystander", send_message(client, "Bystander"), timeout_ms=30_000)
            assert client.call(RequestCode.PULL_MESSAGE, fields).code == 0, "the message has not come in time"
            ended_ns = time.monotonic_ns()
            own_ms = took_ms = (ended_ns - begun_ns) / 1e6
            if took_ms > LONG_MS:
                watch.wait_seen(ended_ns + SETTLE_NS)
                own_ms -= watch.stalled_ms(begun_ns, ended_ns)
            sys.stdout.write(f"{took_ms:.3f} {own_ms:.3f}\n")
            sys.stdout.flush()
            PAUSE.wait(0.001)


def _goes_on() -> bool:
    try:
        return bool(os.read(0, 1))
    except BlockingIOError:
        return True


# -- measuring ---------------------------------------------------------------------------------------------------------


class Result(msgspec.Struct):
    """The result of one attack: p50, p99 and worst of the rounds, ms."""

    attack: str
    limits: bool
    round_trips: int
    clock_ms: tuple[float, float, float]
    own_ms: tuple[float, float, float]
    """The same without the time for which threads of client and broker waited for a processor."""
    processor_s: float
    memory_mib: float
    """Growth of the most memory that the process has had."""


def quantiles(times_ms: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile and worst, of at least one."""
    ordered = sorted(times_ms)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1]


@contextmanager
def standing_by(served: Served, times: Path) -> Iterator[None]:
    """The unrelated client, served before the block begins; it writes its rounds to a file."""
    command = [sys.executable, "-m", "model_tests.bench.attacks_bench", "--stand-by", "{}:{}".format(*served.address)]
    with (
        times.open("w") as out,
        subprocess.Popen([*command, str(served.process.pid)], stdin=subprocess.PIPE, stdout=out) as standing,
    ):
        assert standing.stdin is not None
        try:
            while times.stat().st_size < 1_000 and standing.poll() is None:
                PAUSE.wait(0.01)
            yield
        finally:
            standing.stdin.close()


def measured(name: str, count: int, *, limits: bool) -> Result:
    """One attack, one way."""
    attack = ATTACKS[name]
    settings, before = attack.settings + ("" if limits else WITHOUT), "" if limits else TOLD_AT_ONCE
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served = stack.enter_context(serving(directory / "store", settings=settings, before=before))
        act = attack.prepare(served, count, stack)
        memory_kib, processor_s = served.most_memory_kib(), served.processor_s()
        with standing_by(served, directory / "times"):
            act()
            PAUSE.wait(CALM_S)
        lines = (directory / "times").read_text().splitlines()
        assert lines, "the unrelated client was not served"
        clock, own = zip(*(map(float, line.split()) for line in lines), strict=True)
        memory_mib = (served.most_memory_kib() - memory_kib) / 1024
        processor_s = served.processor_s() - processor_s
        return Result(name, limits, len(lines), quantiles(clock), quantiles(own), processor_s, memory_mib)


def show(results: Sequence[Result]) -> None:
    """A row for each attack and way."""
    table = Table("attack", "limits", "rounds", "p50, p99, worst ms", "without waits", "processor s", "memory MiB")
    for each in results:
        times = (", ".join(f"{one:.1f}" for one in ms) for ms in (each.clock_ms, each.own_ms))
        limits = "with" if each.limits else "without"
        used = f"{each.processor_s:.2f}", f"{each.memory_mib:.0f}"
        table.add_row(each.attack, limits, str(each.round_trips), *times, *used)
    Console(width=130).print(table)


def main() -> int:
    """Measure, and say it."""
    parser = parser_of(__doc__)
    parser.add_argument("--members", type=int, default=2_000)
    parser.add_argument("--attack", choices=ATTACKS, help="one attack instead of all")
    parser.add_argument("--stand-by", nargs=2, metavar=("HOST:PORT", "PID"), help="be the unrelated client")
    options = parser.parse_args()
    if options.stand_by:
        stand_by(*options.stand_by)
        return 0
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = [
        measured(name, options.members, limits=limits)
        for name in ([options.attack] if options.attack else ATTACKS)
        for limits in (False, True)
        if limits or ATTACKS[name].has_limit
    ]
    if options.json:
        print_json(results)
    else:
        show(results)
    return int(any(each.limits and each.own_ms[-1] > WORST_MS_MAX for each in results))


if __name__ == "__main__":
    leaving.run(main)
