"""The proxy's relay: every byte as it came, in both directions, whatever either side does."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.service.observed import events_of, observing
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import send_message
from model_tests.support.ports import closed_port

from longpoll_observe import Observer, observer
from longpoll_observe.links import Link
from longpoll_observe.relay_loop import CHUNK_SIZE
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames.command import Command, encode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import Event

PATIENCE_S = 10.0
MAX_OFFSET = {"topic": "T", "queueId": "0"}


class Upstream:
    """A plain listening socket in a broker's place, and a proxy before it."""

    def __init__(self, record_directory: Path) -> None:
        self.history = record_directory
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(PATIENCE_S)
        address: tuple[str, int] = self.listening.getsockname()
        self.observer = Observer.start(RealRuntime(), brokers=[address], record_directory=str(record_directory))
        for _ in range(observer.HANDSHAKES):
            self.listening.accept()[0].close()

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """A client through the proxy, and the broker's end of its connection."""
        (door,) = self.observer.doors.values()
        client = socket.create_connection(door, PATIENCE_S)
        behind, _peer = self.listening.accept()
        behind.settimeout(PATIENCE_S)
        return client, behind

    def close(self) -> None:
        self.observer.stop()
        self.listening.close()


@pytest.fixture(scope="module")
def shared_upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with closing(Upstream(tmp_path_factory.mktemp("history"))) as upstream:
        yield upstream


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    """An upstream whose history is the test's own."""
    with closing(Upstream(tmp_path / "history")) as made:
        yield made


def link_of(upstream: Upstream) -> Link:
    """The one connection through the proxy."""
    wait_until(lambda: upstream.observer.loop.link_count == 1)
    (link,) = upstream.observer.loop._links
    return link


def read_exactly(from_socket: socket.socket, size: int) -> bytes:
    """So many bytes, or those that came before the end."""
    content = bytearray()
    while len(content) < size and (chunk := from_socket.recv(size - len(content))):
        content += chunk
    return bytes(content)


chunks = st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=300)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(chunks)
def test_bytes_pass_unchanged_in_both_directions(shared_upstream: Upstream, said: list[tuple[bool, bytes]]) -> None:
    # A client whose first byte begins a TLS connection is refused, which is another test.
    said = [(True, b"\0"), *said]
    client, behind = shared_upstream.connect()
    with client, behind:
        for by_client, content in said:
            (client if by_client else behind).sendall(content)
        for by_client, reader in ((True, behind), (False, client)):
            expected = b"".join(content for who, content in said if who == by_client)
            assert read_exactly(reader, len(expected)) == expected
        client.close()
        assert behind.recv(1) == b""


def test_what_was_sent_before_the_end_still_arrives(upstream: Upstream) -> None:
    """A side that sends a megabyte and closes at once has it delivered."""
    content = bytes(range(256)) * 4096
    client, behind = upstream.connect()
    with client, behind:

        def write_and_close() -> None:
            behind.sendall(content)
            behind.close()

        writer = threading.Thread(target=write_and_close)
        writer.start()
        assert read_exactly(client, len(content) + 1) == content
        writer.join()


def test_an_unreadable_frame_is_relayed_and_reported(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    client, behind = upstream.connect()
    with client, behind:
        client.sendall(b"\xff" * 100)
        assert read_exactly(behind, 100) == b"\xff" * 100
        behind.sendall(b"what?")
        assert read_exactly(client, 5) == b"what?"
        client.sendall(b"more")
        assert read_exactly(behind, 4) == b"more"
    upstream.close()
    events = events_of(upstream.history)
    lost = [event for event in events if event.event == "lost"]
    # What was not read, and all that passed until the end.
    assert [event.lost_count for event in lost] == [1, 1]
    assert lost[1].after_ns == lost[0].after_ns
    assert lost[1].before_ns > lost[0].before_ns
    assert len([event for event in events if event.event == "connection_closed"]) == 1
    assert ["could not be read" in record.message for record in caplog.records] == [True]


def test_tls_is_refused_with_one_line(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    client, behind = upstream.connect()
    with client, behind:
        client.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert client.recv(1) == b""
        assert behind.recv(1) == b""
    (line,) = caplog.records
    assert "TLS" in line.message
    assert "plain text" in line.message
    wait_until(lambda: upstream.observer.loop.link_count == 0)


def test_a_broker_that_is_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with (
        closed_port() as address,
        Observer.start(RealRuntime(), brokers=[address], record_directory=str(tmp_path / "history")) as proxy,
    ):
        (door,) = proxy.doors.values()
        for _ in range(3):
            with socket.create_connection(door, PATIENCE_S) as client:
                assert client.recv(1) == b""
        assert ["cannot be reached" in record.message for record in caplog.records] == [True]
        with socket.create_server(address) as back, socket.create_connection(door, PATIENCE_S) as client:
            behind, _peer = back.accept()
            with behind:
                client.sendall(b"\0\0\0\x20h")
                assert read_exactly(behind, 5) == b"\0\0\0\x20h"
    assert "answers again" in caplog.records[-1].message
    events = events_of(tmp_path / "history")
    assert len([event for event in events if event.event == "connection_closed"]) == 4


def test_a_slow_reader_stops_the_fast_side_and_loses_nothing(upstream: Upstream) -> None:
    total = 64 * 1024 * 1024
    content = bytes(range(251)) * 4178
    client, behind = upstream.connect()
    with client, behind:
        link = link_of(upstream)
        behind.setblocking(False)
        sent = 0
        while not link.client.out or select.select([], [behind], [], 0.1)[1]:
            with suppress(BlockingIOError):
                sent += behind.send(content[sent % len(content) :])
            assert sent < total, "the proxy takes everything although nobody reads"
        assert 0 < len(link.client.out) <= CHUNK_SIZE
        received = 0
        while received < sent:
            chunk = client.recv(1 << 20)
            start = received % len(content)
            assert (content + content)[start : start + len(chunk)] == chunk
            received += len(chunk)
        # And it goes on: the pause has ended.
        behind.setblocking(True)
        behind.sendall(b"end")
        assert read_exactly(client, 3) == b"end"


FRAME = b"".join(encode(Command(0, 77, int(CommandFlag.RESPONSE), body=bytes(100_000))))
"""An answer to nothing that was asked."""


def stuff(into: socket.socket, is_stuck: Callable[[], object]) -> int:
    """Send frames until the proxy is stuck; how many bytes were taken."""
    sent = 0
    into.setblocking(False)
    while not is_stuck():
        if select.select([], [into], [], 0.02)[1]:
            sent += into.send(memoryview(FRAME)[sent % len(FRAME) :])
    into.setblocking(True)
    return sent


@pytest.mark.parametrize("direction", ["answers", "requests"])
def test_a_side_that_does_not_read_is_told_of(direction: str, upstream: Upstream) -> None:
    client, behind = upstream.connect()
    with client, behind:
        link = link_of(upstream)
        writer, reader = (behind, client) if direction == "answers" else (client, behind)
        stopped_side = link.client if direction == "answers" else link.broker
        begun_ns = time.monotonic_ns()
        sent = stuff(writer, lambda: stopped_side.stuck_told)
        stuffed_ns = time.monotonic_ns()
        reading_ns = time.monotonic_ns()
        assert len(read_exactly(reader, sent)) == sent
        wait_until(lambda: not upstream.observer.loop._stuck)
        rest = FRAME[sent % len(FRAME) :]
        writer.sendall(rest)
        assert read_exactly(reader, len(rest)) == rest
    upstream.close()
    told = [event for event in events_of(upstream.history) if event.direction]
    pair = [("blocked", direction), ("unblocked", direction)]
    assert [(event.event, event.direction) for event in told] == pair * max(len(told) // 2, 1)
    blocked, unblocked = told[0], told[-1]
    assert begun_ns <= blocked.after_ns <= blocked.before_ns <= stuffed_ns
    assert blocked.before_ns <= unblocked.after_ns
    assert reading_ns <= unblocked.before_ns
    assert blocked.connection == unblocked.connection == "1"


def test_answers_that_a_closing_client_leaves_unread_are_told_of(upstream: Upstream) -> None:
    client, behind = upstream.connect()
    with client, behind:
        begun_ns = time.monotonic_ns()
        link = link_of(upstream)
        stuff(behind, lambda: link.client.stuck_told)
        client.close()
        wait_until(lambda: upstream.observer.loop.link_count == 0)
    upstream.close()
    told = [event for event in events_of(upstream.history) if event.event in {"blocked", "connection_closed"}]
    assert [event.event for event in told] == ["blocked", "connection_closed"]
    assert begun_ns - 100_000_000 < told[0].after_ns


def test_a_client_that_reads_is_told_of_by_nothing(upstream: Upstream) -> None:
    client, behind = upstream.connect()
    with client, behind:
        for _ in range(50):
            behind.sendall(FRAME)
            assert read_exactly(client, len(FRAME)) == FRAME
        wait_until(lambda: not upstream.observer.loop._stuck)
        (link,) = upstream.observer.loop._links
        read = link.broker.arrivals
        wait_until(lambda: read.since_ns > 0 and upstream.observer.loop._quiet_ns - read._permits[-1][0] > 10_000_000)
    wait_until(lambda: upstream.observer.loop.link_count == 0)
    upstream.close()
    assert [event.event for event in events_of(upstream.history) if event.direction] == []


def send_and_half_close(client: socket.socket, content: bytes) -> None:
    """The last that a client says."""
    client.sendall(content)
    client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "while its requests wait"])
def test_a_client_that_only_says_that_it_sends_no_more_is_answered(waits: bool, upstream: Upstream) -> None:
    client, behind = upstream.connect()
    with client, behind:
        broker_side = link_of(upstream).broker
        sent = stuff(client, lambda: broker_side.stuck) if waits else 0
        asked = FRAME[sent % len(FRAME) :] + FRAME
        sender = threading.Thread(target=send_and_half_close, args=(client, asked))
        sender.start()
        assert len(read_exactly(behind, sent + len(asked))) == sent + len(asked)
        sender.join()
        half_closed_ns = time.monotonic_ns()
        assert behind.recv(1) == b""
        assert upstream.observer.loop.link_count == 1
        behind.sendall(FRAME)
        assert read_exactly(client, len(FRAME)) == FRAME
        answered_ns = time.monotonic_ns()
        behind.close()
        assert client.recv(1) == b""
    upstream.close()
    (closed,) = [event for event in events_of(upstream.history) if event.event == "connection_closed"]
    assert closed.after_ns <= half_closed_ns
    assert answered_ns <= closed.before_ns


def test_two_hundred_connections_share_a_thread(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    broker = start_broker()
    with ExitStack() as stack:
        proxy = stack.enter_context(observing(broker.address, tmp_path / "history"))
        (door,) = proxy.doors.values()
        threads = threading.active_count()
        clients = [connect(door) for _ in range(200)]
        send_message(clients[0], "T")
        for client in clients:
            assert client.call(RequestCode.GET_MAX_OFFSET, MAX_OFFSET).code == 0
        assert proxy.loop.link_count == 200
        assert threading.active_count() == threads
    events: list[Event] = events_of(tmp_path / "history")
    for kind in ("connection_opened", "connection_closed"):
        assert len({event.connection for event in events if event.event == kind}) == 200
    assert events[-1].event == "source_stopped"
