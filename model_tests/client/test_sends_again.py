"""Sends of callbacks that are tried again: none waits for what another waits for, and each is told once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from model_tests.client.test_aio_producer import Cluster, take

from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import Producer, SendResult
from longpoll_client.errors import AnswerTimeoutError, ClientError, LifecycleError
from longpoll_client.instance import ClientInstance
from longpoll_client.link import shared_waits
from longpoll_client.link.shared_waits import SharedWaits
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
PATIENCE_S = 10.0


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """With topics `bad` and `flaky`, whose brokers lose the connection of each one's first message."""
    with ExitStack() as stack:
        found = Cluster(stack)
        found.name_server = stack.enter_context(ScriptedServer(found.route)).address
        for topic in ("bad", "flaky"):
            found.serve(topic, loses_first())
        yield found


def loses_first() -> Callable[[Peer, Command], None]:
    """Close the first connection on which a message comes, then store what comes."""
    lost: list[Peer] = []

    def handle(peer: Peer, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE_V2 and not lost:
            lost.append(peer)
            peer.close()
        else:
            take(peer, command)

    return handle


@pytest.fixture
def released(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, connecting to the broker of `bad` takes long, but for the first time."""
    released, connect, times = threading.Event(), ClientInstance.client, list[str]()

    def slow(self: ClientInstance, address: str) -> RemotingClient:
        times.append(address)
        if address == cluster.brokers["bad"] and times.count(address) > 1:
            assert released.wait(PATIENCE_S)
        return connect(self, address)

    monkeypatch.setattr(ClientInstance, "client", slow)
    yield released
    released.set()


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_send_waits_for_no_other_s_connection(
    cluster: Cluster, released: threading.Event, monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """One that is tried again comes back while another's broker does not answer. Planted: one thread for all."""
    told: dict[str, object] = {}
    if is_planted:
        monkeypatch.setattr(shared_waits, "WAIT_COUNT_MAX", 1)
    with Producer(RUNTIME, cluster.name_server) as producer:
        producer.send_async("bad", b"x", lambda outcome: told.setdefault("bad", outcome))
        wait_until(lambda: ("connection", cluster.brokers["bad"]) in producer._many._waits._waiting)
        producer.send_async("flaky", b"x", lambda outcome: told.setdefault("flaky", outcome))
        if is_planted:
            wait_until(lambda: len(producer._many._waits._queued) == 1)
            assert told == {}
        else:
            wait_until(lambda: "flaky" in told)
            assert list(told) == ["flaky"]
        released.set()
        wait_until(lambda: len(told) == 2)
    assert all(isinstance(outcome, SendResult) for outcome in told.values()), told


def test_a_close_tells_those_that_wait_for_a_connection(cluster: Cluster, released: threading.Event) -> None:
    """Once, and leaves no thread behind."""
    told: list[object] = []
    with Producer(RUNTIME, cluster.name_server) as producer:
        producer.send_async("bad", b"x", told.append)
        wait_until(lambda: ("connection", cluster.brokers["bad"]) in producer._many._waits._waiting)
        threading.Timer(0.05, released.set).start()
    assert [type(outcome) for outcome in told] == [LifecycleError]
    wait_until(lambda: not any(thread.name == "sends-again" for thread in threading.enumerate()))


def test_nothing_is_sent_when_the_time_was_up_once_it_was_connected(
    cluster: Cluster, released: threading.Event
) -> None:
    """The broker would store what its sender has been told is late."""
    told: list[object] = []
    with Producer(RUNTIME, cluster.name_server) as producer:
        producer.send_async("bad", b"x", told.append, timeout_s=0.6)
        wait_until(lambda: ("connection", cluster.brokers["bad"]) in producer._many._waits._waiting)
        threading.Timer(0.8, released.set).start()
        wait_until(lambda: bool(told))
    assert [type(outcome) for outcome in told] == [AnswerTimeoutError]
    assert "the time-out passed" in str(told[0])


def test_a_mistake_of_who_picks_queues_is_told() -> None:
    """Also where the queue is picked again."""
    told: list[object] = []
    with ExitStack() as stack:
        cluster = Cluster(stack)
        cluster.name_server = stack.enter_context(ScriptedServer(cluster.route)).address
        cluster.serve("bad", loses_first())
        picked = iter([0])
        with Producer(RUNTIME, cluster.name_server) as producer:
            producer.send_async("bad", b"x", told.append, select=lambda queues: queues[next(picked)])
            wait_until(lambda: bool(told))
    assert "could not be retried: StopIteration" in str(told[0])
    assert isinstance(told[0], ClientError)


def test_what_many_wait_for_is_done_once_and_only_so_much_at_a_time() -> None:
    """Those who come later share it; what it raises is told to all; a closed one tells at once."""
    waits = SharedWaits(RUNTIME, "waits")
    going, begun, told = threading.Event(), list[int](), list[object]()

    def work(number: int) -> int:
        begun.append(number)
        assert going.wait(PATIENCE_S)
        if number % 2:
            raise KeyError(number)
        return number

    for number in range(40):
        for _time in range(3):
            waits.wait(("kind", str(number)), lambda number=number: work(number), told.append)  # type: ignore[misc] # bound early
    wait_until(lambda: len(begun) == shared_waits.WAIT_COUNT_MAX == 32)
    assert told == []
    going.set()
    wait_until(lambda: len(told) == 120)
    assert sorted(begun) == list(range(40))
    assert sorted(one for one in told if isinstance(one, int)) == sorted(list(range(0, 40, 2)) * 3)
    assert (
        sum(isinstance(one, ClientError) and "waiting for kind 7 failed: KeyError(7)" in str(one) for one in told) == 3
    )
    waits.close()
    told.clear()
    waits.wait(("kind", "x"), lambda: 1, told.append)
    assert [type(one) for one in told] == [LifecycleError]
