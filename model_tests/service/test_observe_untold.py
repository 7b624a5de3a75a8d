"""What the proxy reads beside the way of the bytes delays none of them, and has a bound."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.raw_client import PATIENCE_S, pull_fields

from longpoll_observe import Observer, relay_loop
from longpoll_observe.tap_queue import PIECE_SIZE, TapQueue
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_runtime.real import RealRuntime

ANSWER = b"".join(encode(Command(0, 77, int(CommandFlag.RESPONSE), body=bytes(3_000))))
PULL = b"".join(encode(Command(RequestCode.PULL_MESSAGE, 1, ext_fields=pull_fields("T", 0))))


@given(st.lists(st.integers(0, 3 * PIECE_SIZE), max_size=6))
def test_bytes_are_told_in_their_order_with_their_moments(sizes: list[int]) -> None:
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


def test_a_turn_ends_when_its_time_is_over() -> None:
    untold, calls, now_ns = TapQueue(), list[int](), 0

    def call(number: int) -> None:
        nonlocal now_ns
        calls.append(number)
        now_ns += 400

    for number in range(10):
        untold.add(lambda number=number: call(number))  # type: ignore[misc]
    untold.tell(lambda: now_ns, 1_000)
    first = len(calls)
    untold.tell(lambda: now_ns, 0)
    assert 1 < first < 6
    assert first < len(calls) < 10
    untold.tell_all()
    assert calls == list(range(10))


class Stopped:
    """A proxy whose taps are told nothing until `go`, before a broker that is a plain socket."""

    def __init__(self, directory: Path) -> None:
        self.go = threading.Event()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(PATIENCE_S)
        self.proxy = Observer.start(
            RealRuntime(), brokers=[self.listening.getsockname()], record_directory=str(directory)
        )
        while self.proxy.loop.link_count == 0:
            (door,) = self.proxy.doors.values()
            self.client = socket.create_connection(door, PATIENCE_S)
            wait_until(lambda: self.proxy.loop.link_count == 1)
        for _handshake in range(5):
            self.listening.accept()[0].close()
        self.behind, _peer = self.listening.accept()
        self.behind.settimeout(PATIENCE_S)

    def close(self) -> None:
        self.go.set()
        for one in (self.client, self.behind, self.listening):
            one.close()
        self.proxy.stop()


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopped]:
    """Every turn makes no call until `go`: reading commands takes for ever."""
    tell = TapQueue.tell
    monkeypatch.setattr(relay_loop, "UNTOLD_STOP", 1_000_000)
    monkeypatch.setattr(relay_loop, "UNTOLD_GO", 500_000)
    made = list[Stopped]()

    def none_yet(self: TapQueue, *words: object) -> None:
        if not made or made[0].go.is_set():
            tell(self, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(TapQueue, "tell", none_yet)
    made.append(Stopped(tmp_path / "history"))
    yield made[0]
    made[0].close()


def test_answers_are_read_while_others_are_not_told(stopped: Stopped) -> None:
    writer = threading.Thread(target=stopped.behind.sendall, args=(ANSWER * 1_700,))
    writer.start()
    left = len(ANSWER) * 1_700
    while left:
        content = stopped.client.recv(1 << 20)
        assert content
        left -= len(content)
    writer.join()
    wait_until(lambda: stopped.proxy.loop._is_behind)
    stopped.client.sendall(PULL)
    stopped.behind.settimeout(0.05)
    with pytest.raises(TimeoutError):
        stopped.behind.recv(1)
    stopped.behind.settimeout(PATIENCE_S)
    stopped.go.set()
    assert stopped.behind.recv(len(PULL)) == PULL
