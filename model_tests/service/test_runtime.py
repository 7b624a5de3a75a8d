"""The real runtime's queue and poller; files are tested with the store."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from longpoll_runtime.garbage_collection import no_collections, rare_collections
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.sockets import RealPoller
from longpoll_runtime.switch_interval import TURN_S, short_switch_interval
from longpoll_runtime.threads import RealQueue


def test_a_full_queue_refuses_and_keeps_its_order() -> None:
    """First in, first out, never more than its capacity."""
    queue: RealQueue[int] = RealQueue(2)
    assert [queue.offer(number) for number in (1, 2, 3)] == [True, True, False]
    assert len(queue) == 2
    assert (queue.take(), queue.take()) == (1, 2)
    assert queue.take(timeout=0.0) is None


def test_a_waiting_taker_is_woken() -> None:
    queue: RealQueue[int] = RealQueue(1)
    taken: list[int | None] = []
    taker = threading.Thread(target=lambda: taken.append(queue.take(timeout=10)))
    taker.start()
    assert queue.offer(7)
    taker.join()
    assert taken == [7]


def test_a_poller_tells_what_is_ready_and_ends_a_wait_when_woken() -> None:
    runtime = RealRuntime()
    listener = runtime.listen("127.0.0.1", 0)
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
        assert poller.poll(5) == []
        assert client.send_parts([b"ab", memoryview(b"c")]) == 3
        assert poller.poll(5) == [("server", True, False)]
        poller.modify(server, read=True, write=True, data="server")
        assert poller.poll(5) == [("server", True, True)]
        buffer = bytearray(10)
        assert server.recv_into(buffer) == 3
        assert bytes(buffer[:3]) == b"abc"
        poller.unregister(server)
        client.send(b"more")
        assert poller.poll(0) == []
        server.close()
    finally:
        client.close()
        listener.close()
        poller.close()


def test_a_poller_may_be_closed_while_it_is_woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poller = RealPoller()
    written: list[int] = []
    opened: list[int] = []
    honest = os.eventfd_write

    def write(descriptor: int, value: int) -> None:
        written.append(descriptor)
        poller.close()
        opened.extend(os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in range(3))
        honest(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", write)
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
    runtime = RealRuntime()
    listener = runtime.listen("127.0.0.1", 0)
    try:
        with pytest.raises(OSError, match="in use"):
            runtime.listen(*listener.address)
    finally:
        listener.close()
    again = runtime.listen(*listener.address)
    assert again.address == listener.address
    again.close()


@pytest.fixture
def usual_collections() -> Iterator[tuple[int, int, int]]:
    """The thresholds that Python has by itself, which the tests' own are not."""
    ours, usual = gc.get_threshold(), (700, 10, 10)
    gc.set_threshold(*usual)
    yield usual
    gc.set_threshold(*ours)


def test_collections_are_rare_inside_and_as_before_outside(usual_collections: tuple[int, int, int]) -> None:
    """A thousand new objects start no collection inside the block, and cycles are still collected in the end."""
    gc.collect()
    with rare_collections():
        started = gc.get_stats()[0]["collections"]
        kept = [[number] for number in range(1_000)]
        inside = gc.get_stats()[0]["collections"] - started
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    again = [[number] for number in range(10_000)]

    assert len(kept) + len(again) == 11_000
    assert inside == 0
    assert gc.get_stats()[0]["collections"] > started
    assert (gc.get_threshold(), gc.get_freeze_count()) == (usual_collections, 0)


def test_there_are_no_collections_inside_and_they_come_again_outside() -> None:
    collected = [stats["collections"] for stats in gc.get_stats()]
    with no_collections():
        kept = [[number] for number in range(100_000)]
        inside = [stats["collections"] for stats in gc.get_stats()]

    assert len(kept) == 100_000
    assert inside == collected
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
