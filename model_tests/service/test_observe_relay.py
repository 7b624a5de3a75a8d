"""The recording proxy's relay: bytes pass unchanged, host names are looked up, and the command ends cleanly."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.broker.brokers import Brokers, wait_until
from model_tests.support.broker.commands import StartCommand, commands
from model_tests.support.broker.observed import Upstream, events_of, observing
from model_tests.support.broker.raw_client import PATIENCE_S, send_message
from model_tests.support.ports import closed_port

from longpoll.cli import main
from longpoll.output import begin_recording
from longpoll_broker.broker import Broker
from longpoll_observe import Observer, relay_loop
from longpoll_observe.links import Door, Link, Tap, Visitor
from longpoll_observe.name_lookup import NameLookup
from longpoll_observe.relay_loop import CHUNK_SIZE
from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.frames import Command, encode
from longpoll_runtime import Listener, Socket
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import Event


@pytest.fixture(scope="module")
def shared_upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with closing(Upstream(tmp_path_factory.mktemp("history"))) as upstream:
        yield upstream


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Upstream]:
    with closing(Upstream(tmp_path / "history")) as made:
        yield made


def link_of(upstream: Upstream) -> Link:
    wait_until(lambda: upstream.observer.loop.link_count == 1)
    (link,) = upstream.observer.loop._links
    return link


def read_exactly(from_socket: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size and (chunk := from_socket.recv(size - len(content))):
        content += chunk
    return bytes(content)


chunks = st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=300)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(chunks)
def test_bytes_pass_unchanged_in_both_directions(shared_upstream: Upstream, said: list[tuple[bool, bytes]]) -> None:
    # A connection whose first byte starts TLS is refused, which another test covers.
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


def test_tls_through_the_proxy_is_refused_in_one_line(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    client, behind = upstream.connect()
    with client, behind:
        client.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert (client.recv(1), behind.recv(1)) == (b"", b"")
    (line,) = caplog.records
    assert "TLS" in line.message
    assert "plain text" in line.message
    wait_until(lambda: upstream.observer.loop.link_count == 0)


def test_clients_of_an_unreachable_broker_are_disconnected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
            assert sent < total, "the proxy reads without a limit although the peer does not read"
        assert 0 < len(link.client.out) <= CHUNK_SIZE
        received = 0
        while received < sent:
            chunk = client.recv(1 << 20)
            start = received % len(content)
            assert (content + content)[start : start + len(chunk)] == chunk
            received += len(chunk)
        # The proxy continues to read after its pause.
        behind.setblocking(True)
        behind.sendall(b"end")
        assert read_exactly(client, 3) == b"end"


FRAME = b"".join(encode(Command(0, 77, int(CommandFlag.RESPONSE), body=bytes(100_000))))
"""An answer that belongs to no request."""


def stuff(into: socket.socket, is_stuck: Callable[[], object]) -> int:
    """Send frames until the proxy stops reading; returns the number of bytes sent."""
    sent = 0
    into.setblocking(False)
    while not is_stuck():
        if select.select([], [into], [], 0.02)[1]:
            sent += into.send(memoryview(FRAME)[sent % len(FRAME) :])
    into.setblocking(True)
    return sent


def test_unread_answers_of_a_closing_client_are_recorded(upstream: Upstream) -> None:
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


def send_and_half_close(client: socket.socket, content: bytes) -> None:
    client.sendall(content)
    client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("waits", [False, True], ids=["proxy reads", "proxy has stopped reading"])
def test_a_half_closed_client_is_still_answered(waits: bool, upstream: Upstream) -> None:
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
        assert (behind.recv(1), upstream.observer.loop.link_count) == (b"", 1)
        behind.sendall(FRAME)
        assert read_exactly(client, len(FRAME)) == FRAME
        answered_ns = time.monotonic_ns()
        behind.close()
        assert client.recv(1) == b""
    upstream.close()
    (closed,) = [event for event in events_of(upstream.history) if event.event == "connection_closed"]
    assert closed.after_ns <= half_closed_ns
    assert answered_ns <= closed.before_ns


def test_two_hundred_connections_share_a_thread(broker: Broker, brokers: Brokers, tmp_path: Path) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(observing(broker.address, tmp_path / "history"))
        (door,) = proxy.doors.values()
        threads = threading.active_count()
        clients = [brokers.connect(door) for _ in range(200)]
        send_message(clients[0], "T")
        for client in clients:
            assert client.is_served()
        assert (proxy.loop.link_count, threading.active_count()) == (200, threads)
    events: list[Event] = events_of(tmp_path / "history")
    for kind in ("connection_opened", "connection_closed"):
        assert len({event.connection for event in events if event.event == kind}) == 200
    assert events[-1].event == "source_stopped"


NAME = "broker.test"


class SlowNames(RealRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.threads = set[str]()

    def look_up(self, host: str, port: int) -> str:
        """Block, as if the name server did not answer."""
        self.threads.add(threading.current_thread().name)
        self.asked.set()
        self.may_answer.wait(PATIENCE_S)
        return super().look_up("localhost" if host == NAME else host, port)


@pytest.fixture
def names() -> SlowNames:
    return SlowNames()


def test_a_slow_name_lookup_delays_no_other_broker(
    names: SlowNames, broker: Broker, brokers: Brokers, tmp_path: Path
) -> None:
    port = broker.address[1]
    with Observer.start(
        names, brokers=[broker.address, (NAME, port)], record_directory=str(tmp_path / "history")
    ) as proxy:
        waiting = [socket.create_connection(proxy.doors[f"{NAME}:{port}"], PATIENCE_S) for _ in range(3)]
        assert names.asked.wait(PATIENCE_S)
        assert send_message(brokers.connect(proxy.doors[f"127.0.0.1:{port}"]), "T") == 0
        names.may_answer.set()
        wait_until(lambda: proxy.loop.link_count == 4)
        assert send_message(brokers.connect(proxy.doors[f"{NAME}:{port}"]), "T") == 1
        assert names.threads == {"look-up"}
        for one in waiting:
            one.close()


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "no-such-host.invalid"])
def test_an_invalid_broker_name_closes_only_its_clients(
    host: str, brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    died = list[str]()
    runtime = RealRuntime(thread_died=lambda name, _error: died.append(name))
    broker = brokers.start()
    with Observer.start(
        runtime, brokers=[broker.address], name_server=broker.name_server_address, record_directory=str(tmp_path / "h")
    ) as proxy:
        at, _colon, port = proxy._door_of(f"{host}:1").rpartition(":")
        with socket.create_connection((at, int(port)), PATIENCE_S) as client:
            assert client.recv(1) == b""
        assert "cannot be reached" in caplog.text
        assert send_message(brokers.connect(proxy.doors["{}:{}".format(*broker.address)]), "T") == 0
    assert died == []


@pytest.mark.parametrize("host", ["", "\ud800", "a b", "a/../b", "a\0b", "\x1b[2J", "é", "x" * 256])
def test_an_invalid_host_in_a_route_is_not_changed(host: str, tmp_path: Path) -> None:
    with Observer.start(RealRuntime(), brokers=[("127.0.0.1", 1)], record_directory=str(tmp_path / "h")) as proxy:
        assert (proxy._door_of(f"{host}:1"), len(proxy.doors)) == (f"{host}:1", 1)


def test_a_name_lookup_has_a_time_limit(
    names: SlowNames, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_loop, "CONNECT_S", 0.05)
    with Observer.start(names, brokers=[(NAME, 1)], record_directory=str(tmp_path / "history")) as proxy:
        (door,) = proxy.doors.values()
        with socket.create_connection(door, PATIENCE_S) as client:
            assert client.recv(1) == b""
    assert "was not found" in caplog.text
    names.may_answer.set()


class NamedAddresses(RealRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.asked = list[str]()
        self.answers = threading.Semaphore(0)

    def look_up(self, host: str, port: int) -> str:
        self.asked.append(host)
        return f"{port} of {host}"


class Line:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def visitor(host: str, came_ns: int = 0) -> Visitor:
    door = Door(cast("Listener", None), (host, 1), cast("Callable[[], tuple[Tap, None]]", None))
    return Visitor(door, cast("Socket", Line()), "peer", came_ns)


def test_clients_of_one_name_share_a_lookup() -> None:
    runtime = NamedAddresses()
    names = NameLookup(runtime, runtime.answers.release)
    clients = [visitor("a"), visitor("a"), visitor("b")]
    assert all(names.admit(client) for client in clients)
    names.start()
    for _answer in range(2):
        assert runtime.answers.acquire(timeout=PATIENCE_S)
    assert [(one.door.target[0], found) for one, found in names.answered()] == [
        *(("a", "1 of a") for _client in range(2)),
        ("b", "1 of b"),
    ]
    names.stop()
    assert (runtime.asked, names.waiting) == (["a", "b"], {})


def test_overdue_clients_of_a_lookup_are_closed() -> None:
    names = NameLookup(NamedAddresses(), lambda: None)
    early, late = visitor("a", 5), visitor("a", 10)
    assert all(names.admit(client) for client in (early, late))
    assert (names.overdue(7), names.overdue(7)) == ([early], [])
    names.stop()
    assert [cast("Line", one.socket).is_closed for one in (early, late)] == [False, True]


@pytest.fixture
def observe() -> Iterator[StartCommand]:
    with commands("observe") as start:
        yield start


def address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


def test_an_earlier_history_in_the_directory_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin_recording(None)
    begin_recording(tmp_path)
    assert capsys.readouterr().err == ""
    (tmp_path / "part-broker-00000.ndjson").write_text("")
    begin_recording(tmp_path)
    assert capsys.readouterr().err == f"{tmp_path} has an earlier history, and `longpoll judge` reads both\n"


def test_a_usage_error_is_one_line_and_exit_2(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    record = ("--record", str(tmp_path / "history"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = "{}:{}".format(*taken.getsockname())
        any_port = ("--listen", "127.0.0.1:0")
        mistakes = (
            ((*any_port, *record), "add --broker or --name-server"),
            ((*any_port, "--broker", "there", *record), "HOST:PORT"),
            ((*any_port, "--broker", here, "--broker", here, *record), "given twice"),
            (("--listen", here, "--broker", here, *record), "choose another address"),
            ((*any_port, "--broker", here, "--record", str(file)), "choose a writable directory"),
        )
        for options, text in mistakes:
            done = CliRunner().invoke(main, ["observe", *options])
            assert (done.exit_code, done.stdout) == (2, ""), done.stderr
            assert text in done.stderr.replace("\n", " ")
            assert "Traceback" not in done.stderr
