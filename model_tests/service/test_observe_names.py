"""A broker that is named and not numbered: nobody's bytes wait for the look-up of its name."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import PATIENCE_S, send_message

from longpoll_observe import Observer, relay_loop
from longpoll_observe.links import Door, Tap, Visitor
from longpoll_observe.name_lookup import NameLookup, is_literal
from longpoll_runtime import Listener, Socket
from longpoll_runtime.real import RealRuntime

NAME = "broker.test"


class SlowNames(RealRuntime):
    """Finds a name when it may; `localhost` only."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.threads = set[str]()

    def look_up(self, host: str, port: int) -> str:
        """Wait, as for a name server that does not answer."""
        self.threads.add(threading.current_thread().name)
        self.asked.set()
        self.may_answer.wait(PATIENCE_S)
        return super().look_up("localhost" if host == NAME else host, port)


@pytest.fixture
def names() -> SlowNames:
    return SlowNames()


def test_a_slow_name_look_up(names: SlowNames, start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    """Clients of another broker are served meanwhile, and those of the named one once its address is there."""
    broker = start_broker()
    port = broker.address[1]
    with Observer.start(
        names, brokers=[broker.address, (NAME, port)], record_directory=str(tmp_path / "history")
    ) as proxy:
        waiting = [socket.create_connection(proxy.doors[f"{NAME}:{port}"], PATIENCE_S) for _ in range(3)]
        assert names.asked.wait(PATIENCE_S)
        assert send_message(connect(proxy.doors[f"127.0.0.1:{port}"]), "T") == 0
        names.may_answer.set()
        wait_until(lambda: proxy.loop.link_count == 4)
        assert send_message(connect(proxy.doors[f"{NAME}:{port}"]), "T") == 1
        assert names.threads == {"look-up"}
        for one in waiting:
            one.close()


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "no-such-host.invalid"])
def test_a_name_that_is_none_closes_its_clients_and_ends_nothing(
    host: str, start_broker: StartBroker, connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    died = list[str]()
    runtime = RealRuntime(thread_died=lambda name, _error: died.append(name))
    broker = start_broker()
    with Observer.start(
        runtime, brokers=[broker.address], name_server=broker.name_server_address, record_directory=str(tmp_path / "h")
    ) as proxy:
        at, _colon, port = proxy._door_of(f"{host}:1").rpartition(":")
        with socket.create_connection((at, int(port)), PATIENCE_S) as client:
            assert client.recv(1) == b""
        assert "cannot be reached" in caplog.text
        assert send_message(connect(proxy.doors["{}:{}".format(*broker.address)]), "T") == 0
    assert died == []


@pytest.mark.parametrize("host", ["", "\ud800", "a b", "a/../b", "a\0b", "\x1b[2J", "é", "x" * 256])
def test_what_is_no_host_stays_in_the_route_as_it_is(host: str, tmp_path: Path) -> None:
    with Observer.start(RealRuntime(), brokers=[("127.0.0.1", 1)], record_directory=str(tmp_path / "h")) as proxy:
        assert proxy._door_of(f"{host}:1") == f"{host}:1"
        assert len(proxy.doors) == 1


def test_a_name_that_is_never_found_is_given_up(
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
    """Finds an address that says whose it is."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = list[str]()
        self.answers = threading.Semaphore(0)

    def look_up(self, host: str, port: int) -> str:
        self.asked.append(host)
        return f"{port} of {host}"


class Line:
    """A client's connection, of which only the end matters."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def visitor(host: str, came_ns: int = 0) -> Visitor:
    """A client of a named broker."""
    door = Door(cast("Listener", None), (host, 1), cast("Callable[[], tuple[Tap, None]]", None))
    return Visitor(door, cast("Socket", Line()), "peer", came_ns)


def test_each_name_is_asked_for_once_and_answered_to_its_own_clients() -> None:
    """Two brokers, and two clients of the one: two look-ups, each with word that it is answered."""
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


def test_who_waited_for_long_waits_no_more_and_the_end_closes_the_others() -> None:
    names = NameLookup(NamedAddresses(), lambda: None)
    early, late = visitor("a", 5), visitor("a", 10)
    assert all(names.admit(client) for client in (early, late))
    assert (names.overdue(7), names.overdue(7)) == ([early], [])
    names.stop()
    assert [cast("Line", one.socket).is_closed for one in (early, late)] == [False, True]


def test_addresses_need_no_look_up() -> None:
    assert all(is_literal(host) for host in ("127.0.0.1", "::1", "fe80::1%lo"))
    assert not any(is_literal(host) for host in ("localhost", "127.1", "", "10.0.0.1.example"))
