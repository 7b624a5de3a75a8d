"""What fails between a client and its servers and comes back: silent connections, name servers that forget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from attrs import define, field
from model_tests.client.relay import Relay

from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import AsyncProducer, Producer, SendResult, instance
from longpoll_client.aio import instance as aio_instance
from longpoll_client.errors import AnswerTimeoutError, ClientError, NoRouteError, UnreachableError
from longpoll_client.link import exchange, routes
from longpoll_client.link.exchange import Exchange
from longpoll_client.link.name_servers import NameServers
from longpoll_client.link.routes import split_address
from longpoll_client.produce import tries
from longpoll_protocol.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
PATIENCE_S = 10.0
SENT = SendMessageResponseHeader(msg_id="00", queue_id=0, queue_offset=0).encode()


@define
class Cluster:
    """A broker and a name server, each with what is wrong with it."""

    broker_address: str = ""
    peers: list[Peer] = field(factory=list)
    """Connections to the broker, in order; the first `dead_count` of them get no answer any more."""
    dead_count: int = 0
    is_empty: bool = False
    """The name server knows no topic."""
    is_mute: bool = False
    """The name server says nothing."""
    asked: int = 0
    """How often it was asked for a route."""

    def broker(self, peer: Peer, command: Command) -> None:
        """Take what is sent."""
        if peer not in self.peers:
            self.peers.append(peer)
        if self.peers.index(peer) >= self.dead_count:
            peer.answer(command, ResponseCode.SUCCESS, SENT)

    def name_server(self, peer: Peer, command: Command) -> None:
        """Tell the route."""
        assert command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        self.asked += 1
        if self.is_mute:
            return
        if self.is_empty:
            peer.answer(command, ResponseCode.TOPIC_NOT_EXIST)
            return
        route = TopicRouteData(
            broker_datas=[BrokerData(cluster="C", broker_name="a", broker_addrs={0: self.broker_address})],
            queue_datas=[QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)],
        )
        peer.answer(command, body=route.encode())


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A good one, whose name server's address is `names`."""
    found = Cluster()
    with ScriptedServer(found.broker) as server:
        found.broker_address = server.address
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed after 0.1 s."""
    monkeypatch.setattr(exchange, "SILENCE_S", 0.1)


def test_a_connection_that_fell_silent_is_replaced(cluster: Cluster) -> None:
    """Half-open: nobody says that it is gone, and a new one works. One send fails at most."""
    with ScriptedServer(cluster.name_server) as names, Producer(RUNTIME, names.address) as producer:
        producer.send("T", b"x")
        cluster.dead_count = len(cluster.peers)
        with pytest.raises(AnswerTimeoutError):
            producer.send("T", b"y", timeout_s=0.2)
        for _number in range(3):
            producer.send("T", b"z")
    assert len(cluster.peers) == 2


def test_planted_a_connection_that_is_kept_fails_for_good(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nobody gives it up."""
    monkeypatch.setattr(exchange, "SILENCE_S", 3600.0)
    with ScriptedServer(cluster.name_server) as names, Producer(RUNTIME, names.address) as producer:
        producer.send("T", b"x")
        cluster.dead_count = len(cluster.peers)
        for _number in range(3):
            with pytest.raises(AnswerTimeoutError):
                producer.send("T", b"y", timeout_s=0.2)
    assert len(cluster.peers) == 1


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_connection_is_replaced_whose_calls_are_all_cancelled(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_planted: bool
) -> None:
    """On an event loop, where who waits has a time-out of its own. Planted: what is cancelled says nothing."""
    if is_planted:
        monkeypatch.setattr(Exchange, "abandon", lambda self, opaque, _now_ns: self.cancel(opaque))

    async def story(names: ScriptedServer) -> list[SendResult | None]:
        async with AsyncProducer(RUNTIME, names.address) as producer:
            await producer.send("T", b"x")
            cluster.dead_count = len(cluster.peers)
            outcomes: list[SendResult | None] = []
            while not any(outcomes) and len(outcomes) < (4 if is_planted else 20):
                outcomes.append(await sent_within(0.05 * (1 + len(outcomes)), producer))
            return outcomes

    async def sent_within(time_s: float, producer: AsyncProducer) -> SendResult | None:
        try:
            async with asyncio.timeout(time_s):
                return await producer.send("T", b"y", timeout_s=60.0)
        except TimeoutError:
            return None

    with ScriptedServer(cluster.name_server) as names:
        outcomes = asyncio.run(story(names))
    assert outcomes[0] is None
    if is_planted:
        assert (outcomes, len(cluster.peers)) == ([None] * 4, 1)
    else:
        assert outcomes[-1] is not None
        assert len(cluster.peers) > 1


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("is_loop", [False, True])
def test_a_connection_whose_answer_trickles_is_replaced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_loop: bool, is_planted: bool
) -> None:
    """A byte of it now and then is no silence, and the frame does not end. Planted: its end is waited for."""
    monkeypatch.setattr(exchange, "SILENCE_S", PATIENCE_S)
    monkeypatch.setattr(exchange, "FRAME_S", PATIENCE_S if is_planted else 0.3)
    monkeypatch.setattr(tries, "ATTEMPT_COUNT", 1)
    with ExitStack() as stack:
        names = stack.enter_context(ScriptedServer(cluster.name_server))
        relay = stack.enter_context(Relay(split_address(cluster.broker_address)))
        cluster.broker_address = "{}:{}".format(*relay.address)
        send = stack.enter_context(looped(names.address) if is_loop else threaded(names.address))
        assert isinstance(told(send), SendResult)
        relay.begin("trickle")
        outcomes = [told(send) for _number in range(3)]
    assert isinstance(outcomes[0], AnswerTimeoutError)
    assert isinstance(outcomes[-1], AnswerTimeoutError if is_planted else SendResult)
    assert len(cluster.peers) == (1 if is_planted else 2)


@contextmanager
def threaded(name_server: str) -> Iterator[Callable[[], SendResult]]:
    """What sends and waits a while."""
    with Producer(RUNTIME, name_server) as producer:
        yield lambda: producer.send("T", b"x", timeout_s=0.4)


@contextmanager
def looped(name_server: str) -> Iterator[Callable[[], SendResult]]:
    """The same on an event loop."""
    with asyncio.Runner() as runner:
        producer = AsyncProducer(RUNTIME, name_server)
        try:
            yield lambda: runner.run(producer.send("T", b"x", timeout_s=0.4))
        finally:
            runner.run(producer.close())


def told(send: Callable[[], SendResult]) -> SendResult | ClientError:
    """What comes of it."""
    try:
        return send()
    except ClientError as error:
        return error


@pytest.mark.parametrize("keeps", [True, False])
def test_a_restarted_name_server_takes_no_route_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """It says that there is no such topic, after a failed send and after a route's age. Planted: it is believed."""
    monkeypatch.setattr(routes, "ROUTE_RETRY_S", 0.0)
    if not keeps:
        monkeypatch.setattr(instance.ClientInstance, "doubt_route", instance.ClientInstance.forget_route)
    with ScriptedServer(cluster.name_server) as names, Producer(RUNTIME, names.address) as producer:
        producer.send("T", b"x")
        cluster.is_empty = True
        cluster.dead_count = len(cluster.peers)
        with pytest.raises(AnswerTimeoutError):
            producer.send("T", b"y", timeout_s=0.2)
        if keeps:
            producer.send("T", b"z")
            monkeypatch.setattr(routes, "ROUTE_AGE_S_MAX", 0.0)
            producer.send("T", b"z")
            cluster.is_empty = False
            producer.send("T", b"z")
        else:
            with pytest.raises(NoRouteError):
                producer.send("T", b"z")
    assert cluster.asked >= 2


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("is_loop", [False, True])
def test_a_mute_name_server_keeps_no_send_from_its_broker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_loop: bool, is_planted: bool
) -> None:
    """Also after a send that failed, and after a route's age. Planted: its answer is waited for."""
    monkeypatch.setattr(aio_instance if is_loop else instance, "DOUBT_WAIT_S", PATIENCE_S if is_planted else 0.05)

    async def story(send: Callable[[], Coroutine[Any, Any, SendResult]], doubt: Callable[[str], None]) -> None:
        await send()
        cluster.is_mute = True
        with monkeypatch.context() as old:
            old.setattr(routes, "ROUTE_AGE_S_MAX", 0.0)
            await send()
        doubt("T")
        sending = asyncio.create_task(send())
        done, _pending = await asyncio.wait([sending], timeout=0.3 if is_planted else PATIENCE_S)
        assert bool(done) is not is_planted

    async def told(names: ScriptedServer) -> None:
        if is_loop:
            async with AsyncProducer(RUNTIME, names.address) as made:
                await story(lambda: made.send("T", b"x"), made._instance.doubt_route)
        else:
            with Producer(RUNTIME, names.address) as producer:
                await story(lambda: asyncio.to_thread(producer.send, "T", b"x"), producer._instance.doubt_route)

    with ScriptedServer(cluster.name_server) as names:
        asyncio.run(told(names))


def test_a_lost_name_server_and_a_lost_broker_are_two_things(cluster: Cluster) -> None:
    """While both are gone sends fail; as soon as the broker is back they are kept, whatever the name server does."""
    with ScriptedServer(cluster.name_server) as names, Producer(RUNTIME, names.address) as producer:
        producer.send("T", b"x")
        host, port = cluster.broker_address.split(":")
        producer._instance._name_servers = NameServers("127.0.0.1:1")
        producer._instance._clients.pop((host, int(port))).close()
        producer._instance._routes._routes["T"].addresses["a"] = "127.0.0.1:1"
        for _number in range(2):
            with pytest.raises(ClientError):
                producer.send("T", b"y")
        producer._instance._routes._routes["T"].addresses["a"] = cluster.broker_address
        producer.send("T", b"z")


def test_a_topic_that_nobody_knows_is_told_of(cluster: Cluster) -> None:
    """Where no route was ever known there is none to keep; and an instance that forgets believes the name server."""
    cluster.is_empty = True
    with ScriptedServer(cluster.name_server) as names, Producer(RUNTIME, names.address) as producer:
        with pytest.raises(NoRouteError):
            producer.send("T", b"x")
        cluster.is_empty = False
        producer.send("T", b"x")
        cluster.is_empty = True
        producer._instance.forget_route("T")
        with pytest.raises(NoRouteError):
            producer.send("T", b"x")


def test_a_route_without_better_is_not_asked_for_with_each_send(cluster: Cluster) -> None:
    """A name server that is slow or wrong costs a look a second, and not one a send."""
    with ScriptedServer(cluster.name_server) as names, Producer(RUNTIME, names.address) as producer:
        producer.send("T", b"x")
        cluster.is_empty = True
        producer._instance.doubt_route("T")
        before = cluster.asked
        for _number in range(50):
            producer.send("T", b"y")
        assert cluster.asked == before + 1


def test_nobody_is_reached_when_all_are_gone() -> None:
    """Which is said with the address."""
    with Producer(RUNTIME, "127.0.0.1:1") as producer, pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        producer.send("T", b"x")
