"""Several name servers of which the first does not answer: its time is spent once, and by nobody who need not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import Admin, AsyncProducer, ConsumerConfig, Producer, PullConsumer, StartAt
from longpoll_client.errors import LifecycleError, RefusedError, UnreachableError
from longpoll_client.link.name_servers import NameServers
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()


@pytest.fixture
def first() -> Iterator[ScriptedServer]:
    """One that closes the connection where it is asked, which is as no answer at all, and sooner told."""

    def close(peer: Peer, _command: Command) -> None:
        peer.close()

    with ScriptedServer(close) as server:
        yield server


def test_the_one_that_answered_last_is_asked_first() -> None:
    """The others in their order after it."""
    servers = NameServers("a:1;b:2;c:3")
    assert servers.in_turn() == [("a", 1), ("b", 2), ("c", 3)]
    servers.answered(("b", 2))
    assert servers.in_turn() == [("b", 2), ("c", 3), ("a", 1)]


def test_one_that_does_not_answer_is_asked_once_a_client(name_server: str, first: ScriptedServer) -> None:
    """It was asked for each topic, each time: 3 s each, which a consumer's timer spent instead of its heartbeats."""
    names = f"{first.address};{name_server}"
    topics = [f"Named-{number}" for number in range(4)]
    with Producer(RUNTIME, names) as producer:
        for topic in topics:
            producer.send(topic, b"x")
        assert len(first.received) == 1
    config = ConsumerConfig("named", start_at=StartAt.FIRST)
    with PullConsumer(RUNTIME, names, config) as consumer:
        for topic in topics:
            consumer.subscribe(topic)
        consumer.start()
        assert len(first.received) == 2

    async def send() -> None:
        async with AsyncProducer(RUNTIME, names) as producer:
            for topic in topics:
                await producer.send(topic, b"x")

    asyncio.run(send())
    assert len(first.received) == 3


def test_an_admin_asks_the_next_one_too(name_server: str, first: ScriptedServer) -> None:
    """It took the first one that let it connect, and failed by that one's silence for ever."""
    with Admin(RUNTIME, f"{first.address};{name_server}") as admin:
        assert admin.masters()
        assert isinstance(admin.topic_names(), list)
    assert len(first.received) == 1
    with Admin(RUNTIME, first.address) as admin, pytest.raises(UnreachableError, match="cannot reach any name server"):
        admin.masters()


def test_an_admin_that_is_closed_says_so() -> None:
    """It said that no name server answers, of which none was asked."""
    admin = Admin(RUNTIME, "127.0.0.1:1")
    admin.close()
    for ask in (admin.masters, admin.topic_names):
        with pytest.raises(LifecycleError, match="is closed"):
            ask()


def test_an_admin_is_told_what_a_name_server_refuses() -> None:
    """It is not taken for an answer that has no broker and no topic."""

    def refuse(peer: Peer, command: Command) -> None:
        peer.answer(command, ResponseCode.SYSTEM_ERROR)

    with ScriptedServer(refuse) as server, Admin(RUNTIME, server.address) as admin:
        for ask in (admin.masters, admin.topic_names):
            with pytest.raises(RefusedError, match="the name server"):
                ask()
