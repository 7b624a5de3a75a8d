"""The real runtime: queues, flags, pollers, and threads that end with an exception."""

from __future__ import annotations

import dis
import gc
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.ports import closed_port
from model_tests.support.spec.cases import quick_if

from longpoll_runtime import threads
from longpoll_runtime.interpreter import TURN_S, no_collections, rare_collections, short_switch_interval
from longpoll_runtime.real import RealPoller, RealRuntime
from longpoll_runtime.threads import EXIT_THREAD_DIED, RealEvent, RealQueue


def test_a_queue_is_first_in_first_out() -> None:
    """A queue is first in, first out, and never holds more than its capacity."""
    queue: RealQueue[int] = RealQueue(2)
    assert ([queue.offer(number) for number in (1, 2, 3)], len(queue)) == ([True, True, False], 2)
    assert (queue.take(), queue.take()) == (1, 2)
    assert queue.take(timeout=0.0) is None


def test_a_poller_reports_ready_sockets_and_wakes() -> None:
    runtime = RealRuntime()
    listener = runtime.bind("127.0.0.1", 0)
    listener.listen()
    client = runtime.connect(*listener.address, 5)
    poller = runtime.poller()
    try:
        poller.register(listener, read=True, write=False, data="door")
        assert poller.poll(5) == [("door", True, False)]
        server, peer = listener.accept()
        assert peer[0] == "127.0.0.1"
        with pytest.raises(BlockingIOError):
            listener.accept()
        poller.register(server, read=True, write=False, data="server")
        poller.wake()
        assert (poller.poll(5), client.send_parts([b"ab", memoryview(b"c")])) == ([], 3)
        assert poller.poll(5) == [("server", True, False)]
        poller.modify(server, read=True, write=True, data="server")
        assert poller.poll(5) == [("server", True, True)]
        buffer = bytearray(10)
        assert (server.recv_into(buffer), bytes(buffer[:3])) == (3, b"abc")
        poller.unregister(server)
        client.send(b"more")
        assert poller.poll(0) == []
        server.close()
    finally:
        client.close()
        listener.close()
        poller.close()


def test_a_poller_may_be_closed_while_it_is_woken(tmp_path: Path) -> None:
    written: list[int] = []
    opened: list[int] = []

    def write(descriptor: int, value: int) -> None:
        written.append(descriptor)
        poller.close()
        opened.extend(os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in range(3))
        os.eventfd_write(descriptor, value)

    poller = RealPoller(ring=write)
    try:
        poller.wake()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(written[0])
        assert [os.fstat(each).st_size for each in opened] == [0, 0, 0]
    finally:
        for each in opened:
            os.close(each)
    poller.wake()
    assert len(written) == 1


def test_an_address_in_use_is_an_os_error() -> None:
    """Two sockets may bind an address, but only one may listen; no client can connect before `listen`."""
    runtime = RealRuntime()
    with closed_port() as address:
        with ExitStack() as undo:
            first, second = (undo.enter_context(closing(runtime.bind(*at))) for at in (address, ("127.0.0.1", 0)))
            again = undo.enter_context(closing(runtime.bind(*first.address)))
            with pytest.raises(ConnectionRefusedError):
                runtime.connect(*first.address, 5)
            first.listen()
            runtime.connect(*first.address, 5).close()
            with pytest.raises(OSError, match="in use"):
                again.listen()
            with pytest.raises(OSError, match="in use"):
                runtime.bind(*first.address)
            second.listen()
        with closing(runtime.bind(*first.address)) as third:
            third.listen()
            assert third.address == first.address


@pytest.fixture
def usual_collections() -> Iterator[tuple[int, int, int]]:
    ours, usual = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*usual)
    yield usual
    gc.set_threshold(*ours)


def test_collections_are_rare_inside_and_as_before_outside(usual_collections: tuple[int, int, int]) -> None:
    gc.collect()
    with rare_collections():
        started = gc.get_stats()[0]["collections"]
        kept = [[number] for number in range(1_000)]
        inside = gc.get_stats()[0]["collections"] - started
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
        young_max, rounds, _old_rounds = gc.get_threshold()
        # The product is the number of objects in one middle-generation collection; a collection visits 10 million a
        # second.
        assert young_max * rounds <= 250_000
    again = [[number] for number in range(10_000)]
    assert (len(kept) + len(again), inside) == (11_000, 0)
    assert gc.get_stats()[0]["collections"] > started
    assert (gc.get_threshold(), gc.get_freeze_count()) == (usual_collections, 0)


def test_no_collections_applies_inside_the_block_only() -> None:
    collected = [stats["collections"] for stats in gc.get_stats()]
    with no_collections():
        kept = [[number] for number in range(100_000)]
        inside = [stats["collections"] for stats in gc.get_stats()]
    assert (len(kept), inside) == (100_000, collected)
    assert gc.isenabled()
    with pytest.raises(OSError, match="the disk"), no_collections():
        raise OSError("the disk")
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_turns_are_short_until_the_end_of_the_block() -> None:
    before = sys.getswitchinterval()
    with short_switch_interval():
        inside = sys.getswitchinterval()
    assert inside == pytest.approx(TURN_S)
    assert inside < before
    assert sys.getswitchinterval() == pytest.approx(before)


def beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_an_event_wakes_all_waiting_threads() -> None:
    flag, woken = RealEvent(), list[bool]()
    threads = [beside(lambda: woken.append(flag.wait(PATIENCE_S))) for _number in range(5)]
    wait_until(lambda: len(flag._waiting) == 5)
    flag.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert woken == [True] * 5
    assert (flag.is_set(), flag.wait(0.0), flag.wait()) == (True, True, True)
    flag.clear()
    assert (flag.is_set(), flag.wait(0.0), flag.wait(-1.0), flag.wait(0.001)) == (False,) * 4
    assert len(flag._waiting) == 0
    flag = RealEvent()
    flag._waiting = meeting = Meeting()
    meeting.flag = flag
    assert flag.wait(PATIENCE_S)
    assert len(meeting) == 0
    queue = RealQueue[int](1)
    assert queue.take(0.001) is None
    assert queue.take(-1.0) is None
    assert queue.offer(1)
    assert queue.take() == 1


class Meeting(deque[Any]):
    """The waiters of a flag, which is set just before the first waiter is registered."""

    flag: RealEvent

    def append(self, lock: Any) -> None:
        self.flag.set()
        super().append(lock)


def test_every_item_is_taken_once_by_many_threads() -> None:
    queue, taken, count = RealQueue[int](7), list[int](), 3000

    def take() -> None:
        while (item := queue.take(PATIENCE_S)) is not None and item >= 0:
            taken.append(item)

    def offer(first: int) -> None:
        for item in range(first, count, 2):
            wait_until(lambda: queue.offer(item))  # noqa: B023 - it is called at once

    takers = [beside(take) for _number in range(4)]
    offering = [beside(lambda first=first: offer(first)) for first in (0, 1)]  # type: ignore[misc]
    for thread in offering:
        thread.join(PATIENCE_S)
    for _taker in takers:
        wait_until(lambda: queue.offer(-1))
    for thread in takers:
        thread.join(PATIENCE_S)
    assert (sorted(taken), len(queue)) == (list(range(count)), 0)


class Interrupted(BaseException):
    """An exception that tests use instead of KeyboardInterrupt."""


SEES_SIGNALS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}
"""The interpreter checks for signals only after these instructions."""


class Interrupting:
    """Interrupts the traced thread at the n-th instruction of the queue's code at which a signal may be handled."""

    def __init__(self, place: int) -> None:
        self._left = place
        self._last: dict[FrameType, int] = {}

    def __call__(self, frame: FrameType, what: str, _about: object) -> Interrupting | None:
        if frame.f_code.co_filename != threads.__file__:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if what == "opcode":
            last, now = self._last.get(frame, 0), frame.f_lasti
            self._last[frame] = now
            is_place = dis.opname[frame.f_code.co_code[last]] in SEES_SIGNALS
            # An exception raised at this instruction is handled like one at the previous instruction if both are in the
            # same blocks.
            if is_place and blocks_at(frame, last) == blocks_at(frame, now):
                self._left -= 1
                if self._left == 0:
                    raise Interrupted
        return self


def blocks_at(frame: FrameType, place: int) -> list[int]:
    entries = vars(dis.Bytecode(frame.f_code))["exception_entries"]
    return [entry.target for entry in entries if entry.start <= place < entry.end]


def interrupted_at(place: int, work: Callable[[], object]) -> bool:
    before = sys.gettrace()
    sys.settrace(Interrupting(place))
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


class Between:
    """Runs a function between two instructions of the queue, as another thread could, unless the lock is held."""

    def __init__(self, queue: RealQueue[int], place: int, work: Callable[[], object]) -> None:
        self._queue = queue
        self._work = work
        self.left = place

    def __call__(self, frame: FrameType, what: str, _about: object) -> Between | None:
        if frame.f_code.co_filename != threads.__file__:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if what == "opcode" and not self._queue._lock.locked():
            self.left -= 1
            if self.left == 0:
                self._work()
        return self


@pytest.mark.parametrize(
    ("work", "other", "there", "left"),
    [
        (lambda queue: queue.offer(1), lambda queue: queue.offer(2), 0, 1),
        (lambda queue: queue.take(0.0), lambda queue: queue.take(0.0), 1, 0),
        (lambda queue: queue.take_if(bool), lambda queue: queue.take(0.0), 1, 0),
        (lambda queue: queue.take(0.0), lambda queue: queue.take_if(bool), 1, 0),
    ],
    ids=["two offers", "two takes", "take_if and take", "take and take_if"],
)
def test_one_of_two_concurrent_takers_gets_the_item(
    work: Callable[[RealQueue[int]], object], other: Callable[[RealQueue[int]], object], there: int, left: int
) -> None:
    place, is_between = 0, True
    while is_between:
        place += 1
        queue, had = RealQueue[int](1), list[object]()
        for item in range(there):
            assert queue.offer(item + 7)
        between = Between(queue, place, lambda: had.append(other(queue)))  # noqa: B023 - it is called below
        before = sys.gettrace()
        sys.settrace(between)
        try:
            had.append(work(queue))
        finally:
            sys.settrace(before)
        is_between = between.left <= 0
        if is_between:
            assert (sorted(map(bool, had)), len(queue)) == ([False, True], left)
    assert place > 4


class Gated:
    """A bell that wakes the other waiting threads only after the gate has opened."""

    def __init__(self, queue: RealQueue[int]) -> None:
        self._queue = queue
        self._bell = queue._bell
        self._owner = threading.current_thread()
        self.gate = threading.Event()
        self.waiting = 0
        self.locked, self.release = self._bell.locked, self._bell.release

    def acquire(self, *, timeout: float) -> bool:
        """Wait, and count the waiters other than the owner, which the first of two offered items wakes."""
        if threading.current_thread() is not self._owner:
            self.waiting += 1
            self.gate.wait(PATIENCE_S)
        elif timeout != 0.0:
            offering = beside(lambda: self._queue.offer(1) and self._queue.offer(2))
            offering.join(PATIENCE_S)
        return self._bell.acquire(timeout=timeout)


@pytest.mark.parametrize(
    ("work", "place_min"),
    [
        (lambda queue: queue.take(0.0), 5),
        (lambda queue: queue.take(PATIENCE_S), 8),
        (lambda queue: queue.offer(1), 3),
        (lambda queue: queue.offer(1) and queue.take(), 8),
        (lambda queue: queue.offer(1) and queue.take_if(bool), 6),
        (lambda queue: queue.offer(1) and queue.offer(2) and queue.take(), 10),
    ],
    ids=["take of nothing", "take after a wait", "offer", "take", "take_if", "take of two items"],
)
def test_an_interrupt_leaves_no_thread_asleep(work: Callable[[RealQueue[int]], object], place_min: int) -> None:
    place, is_at_work = 0, True
    while is_at_work:
        place += 1
        queue, got = RealQueue[int](8), list[int | None]()
        queue._bell = bell = Gated(queue)  # type: ignore[assignment] # it has what the queue asks of it
        others = [beside(lambda: got.append(queue.take())) for _ in range(3)]  # noqa: B023 - they are ended below
        wait_until(lambda: bell.waiting == 3)  # noqa: B023
        is_at_work = interrupted_at(place, lambda: work(queue))  # noqa: B023
        bell.gate.set()
        wait_until(lambda: not len(queue))  # noqa: B023
        for _ in others:
            queue.offer(7)
        for other in others:
            other.join(PATIENCE_S)
        assert len(got) == 3
    assert place >= place_min


def test_a_false_wakeup_continues_the_wait() -> None:
    queue = RealQueue[int](2)
    for item in range(100):
        assert queue.offer(item)
        assert (queue.take() if item % 2 else queue.take_if(lambda _item: True)) == item
    assert not queue._bell.locked()
    assert queue.take(0.01) is None
    assert queue._bell.locked()


def test_an_interrupted_set_can_be_repeated() -> None:
    place, is_at_work = 0, True
    while is_at_work:
        place += 1
        flag, woken = RealEvent(), list[bool]()
        waiting = [beside(lambda: woken.append(flag.wait(PATIENCE_S))) for _ in range(2)]  # noqa: B023
        wait_until(lambda: len(flag._waiting) == 2)  # noqa: B023
        is_at_work = interrupted_at(place, flag.set)
        flag.set()
        for thread in waiting:
            thread.join(PATIENCE_S)
        assert woken == [True, True]
    assert place > 3


ANYWHERE: Final = ("--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0")
POLLING: Final = ("serve", *ANYWHERE, "--policy", "rocketmq-4.9")
OBSERVE: Final = ("observe", "--listen", "127.0.0.1:0", "--broker", "127.0.0.1:1", "--record", "{directory}/history")
THREADS: Final[dict[str, Sequence[str]]] = {
    "io-0": ("serve", *ANYWHERE),
    "schedule": ("serve", *ANYWHERE),
    "timer": ("serve", *ANYWHERE, "--policy", "rocketmq-5"),
    "flusher": ("serve", *ANYWHERE),
    "table-saver": ("serve", *ANYWHERE),
    "committer": ("serve", *ANYWHERE, "--config", "{directory}/broker.conf"),
    "commit-watcher": ("serve", *ANYWHERE, "--config", "{directory}/broker.conf"),
    "dispatcher": POLLING,
    "pull-0": POLLING,
    "pull-watcher": POLLING,
    "scanner": POLLING,
    "history-writer": ("serve", *ANYWHERE, "--record", "{directory}/history"),
    "registrar": ("serve", *ANYWHERE, "--register-at", "127.0.0.1:1"),
    "relay": OBSERVE,
    "measure": (*OBSERVE, "--name-server", "127.0.0.1:1"),
    "look-up": (*OBSERVE, "--broker", "localhost:1"),
}
"""Maps every thread of a broker and of the proxy to a command that starts the thread."""
PLANT: Final = """
import struct, sys
from longpoll_runtime import real
from longpoll.cli import main
name, spawn = sys.argv.pop(1), real.spawn
def fail():
    raise struct.error("planted")
def planted(thread, target, died):
    return spawn(thread, fail if thread == name else target, died)
real.spawn = planted
main()
"""


@pytest.mark.parametrize("name", quick_if(THREADS, lambda name: name in {"io-0", "relay"}))
def test_a_thread_that_dies_ends_the_process(tmp_path: Path, name: str) -> None:
    (tmp_path / "broker.conf").write_text("flushDiskType=SYNC_FLUSH\n")
    command = [part.format(directory=tmp_path) for part in THREADS[name]]
    ended = subprocess.run(
        [sys.executable, "-c", PLANT, name, *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == EXIT_THREAD_DIED, ended.stderr
    assert f"thread {name} has ended by a fault of the program" in ended.stderr
    assert "struct.error: planted" in ended.stderr


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(0), KeyboardInterrupt(), AssertionError("planted")])
def test_any_exception_that_ends_a_thread_is_reported(error: BaseException) -> None:
    told: list[tuple[str, BaseException]] = []

    def fails() -> None:
        raise error

    RealRuntime(thread_died=lambda name, why: told.append((name, why))).spawn("planted", fails).join()
    assert told == [("planted", error)]
