"""A client that is dropped without `close` is told of, and keeps no connection and no thread."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import Admin, OutgoingMessage, Producer, SendResult, remoting
from longpoll_client.instance import ClientInstance
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import LongpollError

PATIENCE_S = 30.0
RUNTIME = RealRuntime()


def threads() -> set[threading.Thread]:
    """Those that live."""
    return set(threading.enumerate())


@pytest.fixture(autouse=True)
def none_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every thread of the test's clients ends, before what the test has changed is as it was."""
    assert monkeypatch is not None
    before = threads()
    yield
    wait_until(lambda: threads() <= before)


def test_a_producer_that_is_dropped_ends(name_server: str) -> None:
    """With a warning, as a file or a socket."""
    with new_topic(name_server, 1) as topic:
        producer = Producer(RUNTIME, name_server)
        before = threads()
        producer.send(topic, b"body")
        assert threads() > before
        with pytest.warns(ResourceWarning, match="a producer of group longpoll-producer was dropped and not closed"):
            del producer


def test_so_does_one_whose_sends_are_on_their_way_and_they_are_told(name_server: str) -> None:
    """Each once, where it went."""
    told: SimpleQueue[SendResult | LongpollError] = SimpleQueue()
    with new_topic(name_server, 1) as topic:
        producer = Producer(RUNTIME, name_server)
        for _number in range(100):
            producer.send_async(topic, b"body", told.put)
        with pytest.warns(ResourceWarning, match="dropped"):
            del producer
        outcomes = [told.get(timeout=PATIENCE_S) for _number in range(100)]
    assert [type(outcome) for outcome in outcomes] == [SendResult] * 100
    assert told.empty()


def test_one_that_asks_for_replies_ends_too(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timer looks as often as it greets brokers."""
    monkeypatch.setattr("longpoll_client.produce.requests.HEARTBEAT_S", 0.01)
    with new_topic(name_server, 1) as topic:
        producer = Producer(RUNTIME, name_server)
        producer.request_async(topic, OutgoingMessage(b"anybody?"), lambda _reply: None, timeout_s=PATIENCE_S)
        instance = producer._instance
        with pytest.warns(ResourceWarning, match="dropped"):
            del producer
        assert instance.is_abandoned


def test_an_admin_that_is_dropped_ends(name_server: str) -> None:
    """Likewise."""
    admin = Admin(RUNTIME, name_server)
    assert admin.topic_names() is not None
    with pytest.warns(ResourceWarning, match="an Admin was dropped"):
        del admin


def test_who_is_closed_is_not_told_of(name_server: str) -> None:
    """Nor one that shares another client's connections, which are that one's to close."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ClientInstance(RUNTIME, name_server) as instance:
            sharing = Producer(RUNTIME, name_server, instance=instance)
            del sharing
            assert instance.client(name_server).is_open
        with Admin(RUNTIME, name_server) as admin, Producer(RUNTIME, name_server) as producer:
            admin.topic_names()
        del admin, producer
        gc.collect()


def test_one_may_be_dropped_by_a_thread_that_has_its_lock(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector may find it there: its connection ends with what that thread is doing."""
    monkeypatch.setattr(remoting, "LOCK_WAIT_S", 0.01)
    with new_topic(name_server, 1) as topic:
        producer = Producer(RUNTIME, name_server)
        producer.send(topic, b"body")
        instance = producer._instance
        client = next(iter(instance._clients.values()))
        with client._lock, pytest.warns(ResourceWarning, match="dropped"):
            del producer
        assert client.is_open
        client.call(105, timeout_s=PATIENCE_S)
        wait_until(lambda: not client.is_open)
