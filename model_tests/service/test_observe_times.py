"""The recording proxy's timestamps: their bounds, compared with true times, also for bytes that are read late."""

from __future__ import annotations

import bisect
import itertools
import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

import msgspec
import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.observed import Upstream, events_of
from model_tests.support.broker.raw_client import PATIENCE_S, pull_fields

from longpoll_observe import Observer, arrival_time
from longpoll_observe import relay_loop as loop
from longpoll_observe.arrival_time import LARGE_FLIGHT, RECOVER_NS, SETTLE_NS, STEP, THIN_NS, ArrivalTimes
from longpoll_observe.links import PIECE_SIZE, TapQueue
from longpoll_observe.relay_loop import RelayLoop
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames import Command, Connection, encode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import META_FILE, Meta

SETTLE = 10

HELD_MAX = 4 * STEP


def arrivals() -> ArrivalTimes:
    return ArrivalTimes(100, SETTLE, HELD_MAX)


LATER_NS = 200 + 3 * RECOVER_NS
FAR_NS = 3 * RECOVER_NS
WHOLE = LARGE_FLIGHT
Step = tuple[str, int] | tuple[str, int, int]
CASES: dict[str, list[Step]] = {
    "a connection that stays empty is bound by each look": [
        ("look", 109, 0), ("since", 100), ("look", 110, 0), ("since", 110),
    ],
    "empty after a read counts once the acknowledgement has settled": [
        ("read", 50), ("look", 120, 50), ("since", 100), ("permit", 121, 50), ("look", 130, 50), ("since", 100),
        ("look", 131, 50), ("since", 131),
    ],
    "an acknowledgement that was not used up binds": [
        ("read", 10), ("permit", 120, 1_000), ("read", 1_000), ("look", 130, 1_000), ("since", 120),
    ],
    "one that was used up does not": [
        ("read", 10), ("permit", 120, 1_000), ("read", 1_001), ("look", 130, 1_001), ("since", 100),
    ],
    "a sender that used up what it was permitted may take long to go on": [
        ("read", 1_000), ("permit", 120, 2_000), ("read", 3_000), ("look", 130, 3_000), ("permit", 131, 9_000),
        ("look", 131 + RECOVER_NS - 1, 3_000), ("since", 100),
        ("look", 131 + RECOVER_NS, 3_000), ("since", 131 + RECOVER_NS),
        ("permit", LATER_NS, 9_000), ("look", LATER_NS + SETTLE, 4_000), ("read", 4_000), ("since", LATER_NS),
    ],
    "a large flight settles quickly up to its limit": [
        ("permit", 120, 10 * WHOLE), ("read", WHOLE), ("look", 121, WHOLE), ("permit", 121, 10 * WHOLE),
        ("look", 120 + SETTLE, WHOLE), ("since", 100), ("look", 121 + SETTLE, WHOLE), ("since", 121 + SETTLE),
    ],
    "a larger one needs as long as a sender that recovers": [
        ("permit", 120, 10 * WHOLE), ("read", WHOLE + 1), ("look", 121, WHOLE + 1), ("permit", 121, 10 * WHOLE),
        ("look", 120 + RECOVER_NS, WHOLE + 1), ("since", 100),
        ("look", 121 + RECOVER_NS, WHOLE + 1), ("since", 121 + RECOVER_NS),
    ],
    "acknowledgements of a sender that recovers are kept until it has": [
        ("read", 3_000), ("permit", 120, 2_000), ("look", 130, 3_000),
        *(("permit", 131 + number * THIN_NS, 9_000) for number in range(RECOVER_NS // THIN_NS + 2)),
        ("look", 131 + RECOVER_NS + THIN_NS, 3_000), ("since", 131 + RECOVER_NS + THIN_NS),
    ],
    "a bound is never taken back": [
        ("permit", 120, 1_000), ("look", 200, 0), ("since", 200), ("look", 210, 60), ("read", 60), ("since", 200),
    ],
    "a look ahead binds what comes later and not what lies there": [
        ("permit", 120, 1_000), ("look", 130, 600), ("since", 100), ("read", 599), ("since", 100),
        ("read", 600), ("since", 120),
    ],
    "a sender that is always ahead is bound by what its kernel can hold": [
        *(step for at in range(10) for step in (("read", at * STEP), ("look", 1_000 + at, at * STEP))),
        ("since", 1_000 + 9 - HELD_MAX // STEP),
    ],
    "the end of the stream binds": [("read", 5), ("end", 200), ("since", 200)],
}  # fmt: skip
"""Maps each rule to steps that the relay sees. The step `since` checks the earliest time of the next byte."""


@pytest.mark.parametrize("name", CASES)
def test_the_earliest_time_at_which_bytes_may_have_been_sent(name: str) -> None:
    play(arrivals(), CASES[name])


def play(one: ArrivalTimes, steps: list[Step]) -> None:
    for step in steps:
        match step:
            case ("read", size):
                one.read = size
            case ("look", now_ns, come):
                one.looked(now_ns, come)
            case ("permit", now_ns, permitted):
                one.acknowledged(now_ns, permitted)
            case ("end", now_ns):
                one.ended(now_ns)
            case ("since", since_ns):
                assert one.since_ns == since_ns, step


def test_bounds_of_arrivals() -> None:
    steps: list[Step] = [("read", 3_000), ("permit", 1_000, 2_000), ("look", 1_000, 3_000), ("permit", 1_001, 9_000)]
    play(ArrivalTimes(100, FAR_NS, HELD_MAX), [*steps, ("look", 1_001 + RECOVER_NS, 3_000), ("since", 100)])
    one = ArrivalTimes(100)
    step_ns = THIN_NS // 2
    for number in range(100):
        one.acknowledged(1_000 + number * step_ns, LARGE_FLIGHT)
    now_ns = 1_000 + 99 * step_ns
    one.looked(now_ns, 10)
    one.read = 10
    assert now_ns - SETTLE_NS - 2 * THIN_NS <= one.since_ns <= now_ns - SETTLE_NS
    one = arrivals()
    for number in range(10_000):
        one.looked(1_000 * number, 5)
    assert len(one._far) < 3
    one = arrivals()
    for number in range(10_000):
        one.acknowledged(1_000_000 * number, number)
    assert len(one._permits) < 100


Change = tuple[int, bool, int, int]

changes = st.lists(
    st.tuples(st.integers(1, 30), st.booleans(), st.integers(0, 80), st.integers(0, 60)), min_size=1, max_size=40
)


def sent_too_early(script: list[Change], make: Callable[[], ArrivalTimes]) -> list[tuple[int, int]]:
    """Simulate a sender that is limited by the TCP window and Nagle's algorithm.

    Returns (bound, true time) of each violation.

    Each change is a pause, a write (perhaps empty) and a read. An acknowledgement lets bytes arrive within `SETTLE`.
    """
    one, now_ns, broken = make(), 200, []
    sent: list[int] = []
    come, window, released_ns = 0, 30, 0
    for passed_ns, sends, size, wanted in script:
        now_ns += passed_ns
        if sends:
            sent += [now_ns] * size
        # The kernel sends bytes up to the window, and then sends none until the last acknowledgement has arrived.
        if now_ns >= released_ns:
            come = max(come, min(len(sent), window))
        one.looked(now_ns, come)
        since_ns = one.since_ns
        taken = min(wanted, come - one.read)
        broken += [(since_ns, sent_ns) for sent_ns in sent[one.read : one.read + taken] if sent_ns < since_ns]
        one.read += taken
        if taken and one.read == come:
            window = one.read + 30
            released_ns = now_ns + SETTLE
            one.acknowledged(now_ns, window - 1)
    return broken


@settings(max_examples=120)
@given(changes)
def test_no_byte_was_sent_before_its_bound(script: list[Change]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrival_time, "RECOVER_NS", SETTLE)
        assert sent_too_early(script, arrivals) == []


CALL_NS = 10


class Part:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class Kernel:
    """A clock and a broker's socket whose calls are slow; `come` bytes can be read and `room` bytes can be written."""

    def __init__(self, come: int, room: int) -> None:
        self.now_ns = 100
        self.come, self.room = come, room

    def acknowledge(self) -> None:
        self.now_ns += CALL_NS

    def arrived(self) -> tuple[int, int]:
        self.now_ns += CALL_NS
        return self.come, self.room


class Noted:
    def __init__(self, read: int, since_ns: int = 0) -> None:
        self.read, self.since_ns = read, since_ns
        self.looks: list[tuple[int, int]] = []
        self.acknowledgements: list[tuple[int, int]] = []

    def looked(self, looked_ns: int, come: int) -> None:
        self.looks.append((looked_ns, come))

    def acknowledged(self, now_ns: int, permitted: int) -> None:
        self.acknowledgements.append((now_ns, permitted))


@pytest.fixture
def relay_loop() -> Iterator[RelayLoop]:
    made = RelayLoop(RealRuntime())
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("come", "looks", "acknowledgements"),
    [(50, [(100, 50)], [(100 + 2 * CALL_NS, 57)]), (60, [(100, 60)], []), (49, [], [])],
    ids=["all bytes read", "more bytes waiting", "fewer bytes than were read"],
)
def test_when_the_relay_checks_and_acknowledges_a_connection(
    relay_loop: RelayLoop, come: int, looks: object, acknowledgements: object
) -> None:
    kernel, noted = Kernel(come, 7), Noted(50)
    relay_loop._now_ns = lambda: kernel.now_ns
    link: Any = Part(onward=kernel)
    arrivals: Any = noted
    relay_loop._acknowledge(link, arrivals)
    assert (noted.looks, noted.acknowledgements) == (looks, acknowledgements)


@pytest.mark.parametrize(("since_ns", "is_over"), [(0, False), (19, False), (20, True)])
def test_a_block_ends_after_the_bytes_received_meanwhile(relay_loop: RelayLoop, since_ns: int, is_over: bool) -> None:
    told: list[tuple[object, ...]] = []
    tap = Part(unblocked=lambda *what: told.append(what), blocked=lambda *what: told.append(what))
    side: Any = Part(stuck=(10, 20), stuck_told=True, out=b"")
    broker = Part(busy_pass=relay_loop._pass, look_ns=0, arrivals=Noted(50, since_ns))
    side.link = Part(client=side, broker=broker, tap=tap)
    relay_loop._stuck[side] = None
    relay_loop._now_ns = lambda: 900
    relay_loop._look_at_stuck()
    relay_loop.untold.tell_all()
    assert told == ([("answers", 20, 900)] if is_over else [])
    assert (side in relay_loop._stuck) == (not is_over)


PULL_CODE: Final = RequestCode.PULL_MESSAGE.value
CONNECTIONS: Final = 3
LARGE_SIZE: Final = 3 * 1024 * 1024
CHUNK: Final = 1 << 18


@frozen
class Load:
    """A number of pulls in bursts of the given sizes. One answer in `large_one_in` has 3 MB, and others are smaller."""

    events: int
    bursts: tuple[int, ...]
    small_size_max: int = 2_000
    large_one_in: int = 0
    nodelay: bool = True


@frozen
class Truth:
    """True times of a request: its last byte received, and the calls that received its answer's first and last byte."""

    received_ns: int
    first_ended_ns: int
    last_begun_ns: int


class TruthfulBroker:
    """Answers every pull once, split at random bytes; broker and client record each system call's begin and end."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.truths: dict[int, Truth] = {}
        self.begun_ns: dict[int, int] = {}
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.never = threading.Event()

    def stall(self) -> None:
        self.never.wait(0.02)

    def accept(self) -> None:
        with ThreadPoolExecutor(2 * CONNECTIONS) as threads, suppress(OSError):
            for number in itertools.count():
                connected, _peer = self.listening.accept()
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, self.load.nodelay)
                threads.submit(self.serve, connected, random.Random(number))

    def serve(self, connected: socket.socket, chance: random.Random) -> None:
        reader, asked = Connection(), list[tuple[int, int]]()
        with closing(connected):
            while True:
                if not asked or select.select([connected], [], [], 0)[0]:
                    content = connected.recv(CHUNK)
                    now_ns = monotonic_ns()
                    if not content:
                        return
                    reader.receive_data(content)
                    while isinstance(command := reader.next_event(), Command):
                        asked.append((command.opaque, now_ns))
                elif chance.random() < 0.3:
                    self.never.wait(chance.choice((0.0001, 0.001, 0.005, 0.03)))
                else:
                    count = chance.choice((1, 3, 50, 5_000))
                    self.answer(connected, asked[:count], chance)
                    del asked[:count]

    def answer(self, connected: socket.socket, asked: list[tuple[int, int]], chance: random.Random) -> None:
        """Send the answers in pieces that end at any byte, or in pieces of exactly one answer each."""
        contents = [self.content(number, chance) for number, _received_ns in asked]
        left, calls = memoryview(b"".join(contents)), list[tuple[int, int, int]]()
        while left:
            size = chance.choice((len(contents[0]), len(contents[0]), chance.randint(1, 2_000), CHUNK, 1 << 22))
            select.select([], [connected], [])
            begun_ns = monotonic_ns()
            taken = connected.send(left[:size], socket.MSG_DONTWAIT)
            calls.append((taken, begun_ns, monotonic_ns()))
            left = left[taken:]
        ends = list(itertools.accumulate(taken for taken, _begun_ns, _ended_ns in calls))
        start = 0
        for (number, received_ns), content in zip(asked, contents, strict=True):
            first, last = bisect.bisect_right(ends, start), bisect.bisect_left(ends, start + len(content))
            self.truths[number] = Truth(received_ns, calls[first][2], calls[last][1])
            start += len(content)

    def content(self, number: int, chance: random.Random) -> bytes:
        is_large = self.load.large_one_in and chance.randrange(self.load.large_one_in) == 0
        size = LARGE_SIZE if is_large else chance.choice((0, 91, 300, self.load.small_size_max))
        body = struct.pack(">i16xq", size, 7).ljust(size, b"\0") if size else b""
        fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "8", "minOffset": "0", "maxOffset": "8"}
        code = 0 if size else 19
        return b"".join(encode(Command(code, number, CommandFlag.RESPONSE, ext_fields=fields, body=body)))

    def ask(self, door: tuple[str, int], first: int) -> None:
        """Send bursts of pulls, numbered by queue offset, on a connection, with pauses and slow reads."""
        chance, number, last = random.Random(first), first, first + self.load.events // CONNECTIONS
        reader = Connection()
        with closing(socket.create_connection(door, 60)) as asking:
            while number < last:
                burst, kind = chance.choice(self.load.bursts), chance.random()
                pulls = [
                    b"".join(encode(Command(PULL_CODE, each, ext_fields=pull_fields("T", each, timeout_ms=60_000))))
                    for each in range(number, number + burst)
                ]
                number += burst
                self.begun_ns |= dict.fromkeys(range(number - burst, number), monotonic_ns())
                sender = threading.Thread(target=asking.sendall, args=(b"".join(pulls),))
                sender.start()
                if kind < 0.1:
                    self.never.wait(chance.choice((0.02, 0.1, 0.3)))
                while burst:
                    content = asking.recv(CHUNK if kind > 0.2 else 20_000)
                    assert content, "the connection was closed"
                    reader.receive_data(content)
                    while isinstance(reader.next_event(), Command):
                        burst -= 1
                sender.join()

    def outside(self, history: Path) -> tuple[int, list[str]]:
        """Returns the number of answers, and the events whose interval misses the time of their system call.

        An answer counts as sent with its first byte, and cannot be read before its last byte was sent.
        """
        uncertainty_ns = msgspec.json.decode((history / META_FILE).read_bytes(), type=Meta).sources[0].uncertainty_ns
        numbers: dict[str, int] = {}
        count, found = 0, []
        for event in events_of(history):
            after_ns, before_ns = event.after_ns - uncertainty_ns, event.before_ns + uncertainty_ns
            if event.event == "request_received":
                numbers[event.request] = event.offset
                is_within = self.begun_ns[event.offset] <= before_ns
                if not is_within or after_ns > self.truths[event.offset].received_ns:
                    found.append(f"request {event.offset}")
            elif event.event == "answer_sent":
                truth, count = self.truths[numbers[event.request]], count + 1
                early_ns = max(after_ns - truth.first_ended_ns, truth.last_begun_ns - before_ns)
                if early_ns > 0:
                    found.append(f"answer {numbers[event.request]}, by {early_ns / 1e6} ms")
        assert len(numbers) == count
        return count, found


LOADS = {
    "bursts": Load(3_000, (1, 5, 64, 500, 2_000)),
    "large": Load(60, (1, 3, 20), large_one_in=10),
    "kept small pieces": Load(150, (3, 10), small_size_max=300, nodelay=False),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_every_event_happened_within_its_interval(load: Load, tmp_path: Path) -> None:
    """Each recorded interval contains the true time, although the proxy's thread is paused now and then."""
    history, broker = tmp_path / "history", TruthfulBroker(load)
    with ThreadPoolExecutor(1 + CONNECTIONS) as threads, closing(broker.listening):
        threads.submit(broker.accept)
        with Observer.start(
            RealRuntime(), brokers=[broker.listening.getsockname()], record_directory=str(history)
        ) as proxy:
            (door,) = proxy.doors.values()
            for _ in range(3):
                proxy.loop.untold.add(broker.stall)
            for asking in [threads.submit(broker.ask, door, 10**7 * number) for number in range(CONNECTIONS)]:
                asking.result()
        broker.listening.shutdown(socket.SHUT_RDWR)
    count, found = broker.outside(history)
    assert count >= load.events
    assert found == []


ANSWER = b"".join(encode(Command(0, 77, int(CommandFlag.RESPONSE), body=bytes(3_000))))
PULL = b"".join(encode(Command(RequestCode.PULL_MESSAGE, 1, ext_fields=pull_fields("T", 0))))


@given(st.lists(st.integers(0, 3 * PIECE_SIZE), max_size=6))
def test_bytes_are_passed_on_in_order_with_their_times(sizes: list[int]) -> None:
    untold, told = TapQueue(), list[tuple[bytes, int, int]]()
    contents = [bytes([number]) * size for number, size in enumerate(sizes)]
    for number, content in enumerate(contents):
        untold.add_bytes(lambda *what: told.append(what), content, number, number + 1)
    assert untold.size == sum(sizes)
    untold.tell_down_to(sum(sizes) // 2)
    assert untold.size == sum(sizes) - sum(len(piece) for piece, _after, _before in told) <= sum(sizes) // 2
    untold.tell_all()
    for number, content in enumerate(contents):
        assert b"".join(piece for piece, *moments in told if moments == [number, number + 1]) == content
    assert all(len(piece) <= PIECE_SIZE for piece, _after, _before in told)
    assert [after for _piece, after, _before in told] == sorted(after for _piece, after, _before in told)
    assert (len(untold.calls), untold.size) == (0, 0)


def test_answers_are_read_without_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy's relay must not pause, so until `go` is set the proxy decodes no commands."""
    tell, go = TapQueue.tell, threading.Event()
    monkeypatch.setattr(loop, "UNTOLD_STOP", 1_000_000)
    monkeypatch.setattr(loop, "UNTOLD_GO", 500_000)
    monkeypatch.setattr(TapQueue, "tell", lambda queue, *words: tell(queue, *words) if go.is_set() else None)
    go.set()
    with ExitStack() as stack:
        upstream = stack.enter_context(closing(Upstream(tmp_path / "history")))
        client, behind = map(stack.enter_context, upstream.connect())
        stack.callback(go.set)
        wait_until(lambda: upstream.observer.loop.link_count == 1)
        go.clear()
        writer = threading.Thread(target=behind.sendall, args=(ANSWER * 1_700,))
        writer.start()
        left = len(ANSWER) * 1_700
        while left:
            content = client.recv(1 << 20)
            assert content
            left -= len(content)
        writer.join()
        wait_until(lambda: upstream.observer.loop._is_behind)
        client.sendall(PULL)
        behind.settimeout(0.05)
        with pytest.raises(TimeoutError):
            behind.recv(1)
        behind.settimeout(PATIENCE_S)
        go.set()
        assert behind.recv(len(PULL)) == PULL
