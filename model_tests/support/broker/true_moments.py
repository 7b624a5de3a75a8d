"""A broker and a client that record when they really sent and received, to check the times of a proxy.

The broker is a separate process. It answers after random pauses, in bursts, cut at random bytes. Both sides use the
machine's monotonic clock, and record the start and end of each call.
"""

from __future__ import annotations

import random
import re
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic_ns

import msgspec
from attrs import define, field, frozen
from model_tests.support.broker.observed import events_of
from model_tests.support.broker.raw_client import pull_fields

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command, encode
from longpoll_spec.history import META_FILE, Meta

LARGE_SIZE = 3 * 1024 * 1024
CHUNK = 1 << 18
OPAQUE = re.compile(rb'"opaque":(-?\d+)')


@frozen
class Truth:
    """True times of one request: its last byte received, and the calls that took its answer's first and last byte."""

    received_ns: int
    first_ended_ns: int
    last_begun_ns: int


@define(eq=False)
class BrokerEnd:
    """One connection of the broker. Invariant: `ends` are the positions in the stream at which answers end."""

    socket: socket.socket
    waiting: bytearray = field(factory=bytearray)
    asked: deque[tuple[int, int]] = field(factory=deque)
    """Requests without an answer: number, and when it was received."""
    out: bytearray = field(factory=bytearray)
    sent: int = 0
    made: int = 0
    answers: deque[list[int]] = field(factory=deque)
    """Answers not yet sent: first position, end, number, received_ns, and the end of the first call (0: none yet)."""
    not_before_ns: int = 0


class TruthfulBroker:
    """Answers every pull once, sooner or later, and remembers when."""

    def __init__(self, load: Load, seed: int, stopping: Connection) -> None:
        self._random = random.Random(seed)
        self._load = load
        self._stopping = stopping
        self.truths: dict[int, Truth] = {}
        self.listening = socket.create_server(("127.0.0.1", 0))
        self._poller = select.epoll()
        self._poller.register(self.listening, select.EPOLLIN)
        self._poller.register(stopping.fileno(), select.EPOLLIN)
        self._ends: dict[int, BrokerEnd] = {}

    def run(self) -> None:
        while True:
            for descriptor, _events in self._poller.poll(0.0005 if self._ends else None):
                if descriptor == self._stopping.fileno():
                    return
                if descriptor == self.listening.fileno():
                    self._accept()
                elif descriptor in self._ends:
                    self._read(self._ends[descriptor])
            for end in list(self._ends.values()):
                self._answer(end)
                self._send(end)

    def _accept(self) -> None:
        connected, _peer = self.listening.accept()
        connected.setblocking(False)
        if self._load.nodelay:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ends[connected.fileno()] = BrokerEnd(connected)
        self._poller.register(connected, select.EPOLLIN)

    def _read(self, end: BrokerEnd) -> None:
        content = end.socket.recv(CHUNK)
        now_ns = monotonic_ns()
        if not content:
            self._poller.unregister(end.socket)
            del self._ends[end.socket.fileno()]
            end.socket.close()
            return
        waiting = end.waiting
        waiting += content
        at = 0
        while len(waiting) - at >= 4:
            (length,) = struct.unpack_from(">i", waiting, at)
            if len(waiting) - at < 4 + length:
                break
            found = OPAQUE.search(waiting, at, at + 4 + length)
            assert found is not None
            end.asked.append((int(found[1]), now_ns))
            at += 4 + length
        del waiting[:at]

    def _answer(self, end: BrokerEnd) -> None:
        """Make answers to some of the requests; now and then none for a while."""
        now_ns = monotonic_ns()
        if not end.asked or now_ns < end.not_before_ns:
            return
        if self._random.random() < 0.3:
            end.not_before_ns = now_ns + int(self._random.choice((0.1, 1, 5, 30)) * 1e6)
            return
        for _ in range(min(len(end.asked), self._random.choice((1, 3, 50, 5_000)))):
            number, received_ns = end.asked.popleft()
            content = self._content(number)
            end.answers.append([end.made, end.made + len(content), number, received_ns, 0])
            end.out += content
            end.made += len(content)

    def _content(self, number: int) -> bytes:
        is_large = self._load.large_one_in and self._random.randrange(self._load.large_one_in) == 0
        size = LARGE_SIZE if is_large else self._random.choice((0, 91, 300, self._load.small_size_max))
        body = struct.pack(">i", size) + bytes(16) + struct.pack(">q", 7) + bytes(size - 28) if size else b""
        header = (
            b'{"code":%d,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"8","minOffset":"0",'
            b'"maxOffset":"8"},"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":397}'
            % (0 if size else 19, number)
        )
        return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body

    def _send(self, end: BrokerEnd) -> None:
        """Send some of the bytes: pieces that end anywhere, or exactly one answer."""
        calls = 0
        while end.out and calls < 64:
            calls += 1
            whole = end.answers[0][1] - end.sent
            size = self._random.choice((whole, whole, whole, self._random.randint(1, 2_000), CHUNK, 1 << 22))
            begun_ns = monotonic_ns()
            try:
                taken = end.socket.send(memoryview(end.out)[:size].toreadonly())
            except BlockingIOError:
                return
            except OSError:
                end.out.clear()
                return
            self._note(end, taken, begun_ns, monotonic_ns())
            end.sent += taken
            del end.out[:taken]

    def _note(self, end: BrokerEnd, taken: int, begun_ns: int, ended_ns: int) -> None:
        stop = end.sent + taken
        for answer in end.answers:
            if answer[0] >= stop:
                break
            answer[4] = answer[4] or ended_ns
        while end.answers and end.answers[0][1] <= stop:
            _start, _stop, number, received_ns, first_ended_ns = end.answers.popleft()
            self.truths[number] = Truth(received_ns, first_ended_ns, begun_ns)


def _serve(load: Load, seed: int, ends: Connection) -> None:
    broker = TruthfulBroker(load, seed, ends)
    ends.send(broker.listening.getsockname())
    broker.run()
    ends.send(broker.truths)


@contextmanager
def truthful_broker(truths: dict[int, Truth], load: Load, seed: int) -> Iterator[tuple[str, int]]:
    """The broker as a process; its address. Its records, by the request's number, are in `truths` when this ends."""
    spawning = get_context("spawn")
    ours, ends = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(load, seed, ends))
    process.start()
    try:
        yield ours.recv()
        ours.send(None)
        truths |= ours.recv()
        process.join()
    finally:
        process.kill()


class TruthfulClient:
    """A connection that asks bursts of pulls, and remembers when each began to be sent. Numbers are queue offsets."""

    def __init__(self, door: tuple[str, int], first_number: int) -> None:
        self._socket = socket.create_connection(door, 60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = first_number
        self._left = bytearray()
        self.begun_ns: dict[int, int] = {}

    def ask(self, count: int) -> None:
        """Send a burst of pulls on a thread, so that reading goes on."""
        numbers = range(self._number, self._number + count)
        self._number += count
        burst = b"".join(
            b"".join(encode(Command(PULL, number, ext_fields=pull_fields("T", number, timeout_ms=60_000))))
            for number in numbers
        )
        now_ns = monotonic_ns()
        self.begun_ns.update(dict.fromkeys(numbers, now_ns))
        sender = threading.Thread(target=self._socket.sendall, args=(burst,))
        sender.start()
        self._senders = [sender]

    def read(self, count: int, piece: int = CHUNK) -> None:
        left = self._left
        while count:
            while len(left) >= 4:
                (length,) = struct.unpack_from(">i", left)
                if len(left) < 4 + length:
                    break
                del left[: 4 + length]
                count -= 1
            if count:
                content = self._socket.recv(piece)
                assert content, "the connection was closed"
                left += content
        for sender in self._senders:
            sender.join()

    def close(self) -> None:
        self._socket.close()


PULL = RequestCode.PULL_MESSAGE.value
CONNECTIONS = 3


@frozen
class Load:
    """So many pulls in bursts of these sizes; most answers have up to a size, one in `large_one_in` has 3 MB."""

    events: int
    bursts: tuple[int, ...]
    small_size_max: int = 2_000
    large_one_in: int = 0
    nodelay: bool = True


def run_load(door: tuple[str, int], load: Load, seed: int) -> dict[int, int]:
    """Ask until there were so many answers, with pauses and slow reads; when the asking of each request began."""
    begun_ns: dict[int, int] = {}
    clients = [TruthfulClient(door, number * 10_000_000) for number in range(CONNECTIONS)]
    never = threading.Event()

    def work(number: int) -> None:
        chance = random.Random(seed * 1_000 + number)
        left = load.events // CONNECTIONS
        while left > 0:
            burst = chance.choice(load.bursts)
            left -= burst
            clients[number].ask(burst)
            kind = chance.random()
            if kind < 0.1:
                never.wait(chance.choice((0.02, 0.1, 0.3)))
            clients[number].read(burst, CHUNK if kind > 0.2 else 20_000)
            if kind > 0.9:
                never.wait(0.005)

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        for done in [threads.submit(work, number) for number in range(CONNECTIONS)]:
            done.result()
    for client in clients:
        begun_ns.update(client.begun_ns)
        client.close()
    return begun_ns


def outside(history: Path, truths: dict[int, Truth], begun_ns: dict[int, int]) -> tuple[int, list[str]]:
    """How many answers a history has, and the events whose interval misses that of the call of the kernel.

    An answer is sent when its first byte is, and not read before its last one was sent.
    """
    uncertainty_ns = msgspec.json.decode((history / META_FILE).read_bytes(), type=Meta).sources[0].uncertainty_ns
    numbers: dict[str, int] = {}
    count, found = 0, []
    for event in events_of(history):
        after_ns, before_ns = event.after_ns - uncertainty_ns, event.before_ns + uncertainty_ns
        if event.event == "request_received":
            numbers[event.request] = event.offset
            if not begun_ns[event.offset] <= before_ns or after_ns > truths[event.offset].received_ns:
                found.append(f"request {event.offset}")
        elif event.event == "answer_sent":
            truth = truths[numbers[event.request]]
            count += 1
            early_ns = max(after_ns - truth.first_ended_ns, truth.last_begun_ns - before_ns)
            if early_ns > 0:
                found.append(f"answer {numbers[event.request]}, by {early_ns / 1e6} ms")
    assert len(numbers) == count
    return count, found
