"""A name server that is restarted last comes back empty, while brokers and members run on: nobody loses anybody."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from attrs import define, field

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.service.following import registrar
from longpoll_broker.service.following.asking import Asking
from longpoll_broker.service.following.registrar import Registrar
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_broker.testing.raw_client import RawClient, send_message
from longpoll_client import ConsumerConfig, ConsumeStatus, Producer, PushConsumer, ReceivedMessage, StartAt
from longpoll_client.errors import ClientError, NoRouteError
from longpoll_client.link import routes
from longpoll_client.link.routes import Route, Routes
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime.real import RealRuntime

RUNTIME: Final = RealRuntime()
CONFIG: Final = ConsumerConfig("G", start_at=StartAt.FIRST, rebalance_s=0.05, heartbeat_s=0.05, persist_s=0.1)
# A name server has a broker of its own here, that has no topic and makes none.
NONE: Final = BrokerConfig(broker_name="none", auto_create_topic=False)


@define(eq=False)
class Gate:
    """Whether brokers may register, and what happened meanwhile."""

    is_open: threading.Event = field(factory=threading.Event)
    held_back: threading.Event = field(factory=threading.Event)
    """Set when a broker would have registered."""
    told_nothing: list[str] = field(factory=list)
    """Topics that a name server told a client it does not know."""

    def close(self) -> None:
        """Let nobody register, and wait until somebody would have."""
        self.is_open.clear()
        self.held_back.clear()
        wait_until(self.held_back.is_set)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """An open one; brokers would register fifty times a second, and clients ask for routes as often."""
    made = Gate()
    register, fall_back = Registrar._register, Routes.fall_back

    def registered(self: Registrar, asking: Asking) -> bool:
        if made.is_open.is_set():
            return register(self, asking)
        made.held_back.set()
        return False

    def fallen_back(self: Routes, topic: str, error: ClientError, now_ns: int) -> Route:
        if isinstance(error, NoRouteError):
            made.told_nothing.append(topic)
        return fall_back(self, topic, error, now_ns)

    made.is_open.set()
    monkeypatch.setattr(registrar, "REGISTER_MS", 20)
    monkeypatch.setattr(registrar, "RETRY_MS", 20)
    monkeypatch.setattr(routes, "ROUTE_AGE_S_MAX", 0.02)
    monkeypatch.setattr(routes, "ROUTE_RETRY_S", 0.02)
    monkeypatch.setattr(Registrar, "_register", registered)
    monkeypatch.setattr(Routes, "fall_back", fallen_back)
    return made


@define(eq=False)
class World:
    """A name server that can be restarted, and one broker at it that runs on."""

    directory: Path
    alone: Broker
    member: Broker

    @property
    def name_server(self) -> str:
        """HOST:PORT, the same for ever."""
        return "{}:{}".format(*self.alone.name_server_address)

    def restart(self) -> None:
        """Have the name server forget everybody; it must be stopped."""
        at = self.alone.name_server_address
        self.alone = Broker.start(RUNTIME, str(self.directory), store_config=SMALL_STORE, config=NONE, name_server=at)

    def has_route(self) -> bool:
        """Whether the name server knows the topic."""
        with RawClient(self.alone.name_server_address) as client:
            code = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code
        assert code in {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST}
        return code == ResponseCode.SUCCESS

    def stop(self) -> None:
        """End both."""
        self.alone.stop()
        self.member.stop()


@pytest.fixture
def world(tmp_path: Path, gate: Gate) -> Iterator[World]:
    """One in which the member has the topic, and a route leads to it."""
    assert gate.is_open.is_set()
    alone = Broker.start(RUNTIME, str(tmp_path / "0"), store_config=SMALL_STORE, config=NONE)
    at = "{}:{}".format(*alone.name_server_address)
    config = BrokerConfig(broker_name="member", name_servers=at)
    member = Broker.start(RUNTIME, str(tmp_path / "1"), store_config=SMALL_STORE, config=config)
    made = World(tmp_path / "0", alone, member)
    with ExitStack() as stack:
        stack.callback(made.stop)
        with RawClient(member.address) as client:
            send_message(client, "T", b"first")
        wait_until(made.has_route)
        yield made


def test_clients_go_on_and_routes_come_back_with_the_next_registration(world: World, gate: Gate) -> None:
    """While it is gone, and while it knows nobody, whoever knows a route uses it; who is new finds one afterwards."""
    seen: set[bytes] = set()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        seen.update(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    numbers = itertools.count()
    consumer = PushConsumer(RUNTIME, world.name_server, CONFIG, listen)
    consumer.subscribe("T")
    with Producer(RUNTIME, world.name_server) as producer, consumer:
        consumer.start()

        def goes_on() -> None:
            body = b"%d" % next(numbers)
            assert producer.send("T", body).queue.broker_name == "member"
            wait_until(lambda: body in seen)

        goes_on()
        world.alone.stop()
        goes_on()
        gate.close()
        world.restart()
        assert not world.has_route()
        gate.told_nothing.clear()
        while len(gate.told_nothing) < 5:
            goes_on()
        with Producer(RUNTIME, world.name_server) as stranger, pytest.raises(NoRouteError):
            stranger.send("T", b"to nobody")
        gate.is_open.set()
        wait_until(world.has_route)
        with Producer(RUNTIME, world.name_server) as stranger:
            assert stranger.send("T", b"of a new one").queue.broker_name == "member"
        wait_until(lambda: b"of a new one" in seen)
        goes_on()
    assert seen == {b"first", b"of a new one", *(b"%d" % number for number in range(next(numbers)))}


def test_planted_a_client_that_believes_an_empty_name_server_is_noticed(
    world: World, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would know no broker any more, though all of them run."""

    def forget(self: Routes, topic: str, error: ClientError, _now_ns: int) -> Route:
        self.forget(topic)
        raise error

    monkeypatch.setattr(Routes, "fall_back", forget)
    with pytest.raises((NoRouteError, AssertionError)):
        test_clients_go_on_and_routes_come_back_with_the_next_registration(world, gate)
