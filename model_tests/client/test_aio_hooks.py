"""On an event loop: hooks, counts and the trace are told of every send, and slow brokers are stayed away from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from model_tests.client.test_hooks import PATIENCE_S, RUNTIME, Busy, Told

from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import AsyncProducer, OutgoingMessage, SendResult, Tracing
from longpoll_client.errors import ClientError, RefusedError
from longpoll_protocol.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_spec.errors import LongpollError


def run(name_server: str, story: Callable[[AsyncProducer], Awaitable[None]], **options: Any) -> None:
    """Tell a story of one producer."""

    async def told() -> None:
        async with asyncio.timeout(PATIENCE_S), AsyncProducer(RUNTIME, name_server, "P", **options) as producer:
            await story(producer)

    asyncio.run(told())


async def sent_async(producer: AsyncProducer, body: bytes, **options: Any) -> SendResult | LongpollError:
    """What `send_async` tells of one message."""
    future: asyncio.Future[SendResult | LongpollError] = asyncio.get_running_loop().create_future()
    producer.send_async("T", body, future.set_result, **options)
    return await future


def test_sends_are_told_and_counted() -> None:
    """Once each, over all tries, however they are sent and end; a hook that raises harms nobody."""
    busy, bad, good = Busy(0), Told(is_bad=True), Told()
    busy.codes += [ResponseCode.SYSTEM_BUSY, 0, ResponseCode.MESSAGE_ILLEGAL] * 2
    found: list[object] = []

    async def story(producer: AsyncProducer) -> None:
        found.append(await producer.send("T", b"0", tags="t"))
        found.append(await producer.send("T", b"1"))
        with pytest.raises(RefusedError):
            await producer.send("T", b"2")
        found.append(await sent_async(producer, b"3"))
        assert isinstance(await sent_async(producer, b"4"), RefusedError)
        assert await producer.send_batch("T", [OutgoingMessage(b"1"), OutgoingMessage(b"2")])
        await producer.send_one_way("T", b"z")
        cancelled = asyncio.create_task(producer.send("T", b"5"))
        cancelled.cancel()
        await asyncio.wait([cancelled])
        begun = asyncio.create_task(producer.send("T", b"6"))
        await asyncio.sleep(0)
        begun.cancel()
        await asyncio.wait([begun])
        counts = producer.metrics()
        assert (counts.sends, counts.failures, counts.retries, counts.one_way) == (7, 3, 2, 1)
        assert counts.latency_s > 0

    with ScriptedServer(busy.serve) as server:
        busy.address = server.address
        run(server.address, story, hooks=[bad, good])
    assert bad.events == good.events
    assert [event[0] for event in good.events] == ["before", "after"] * 7
    begun, ended = good.events[::2], good.events[1::2]
    assert [event[1] for event in begun] == [event[1] for event in ended]
    assert [ended[at][2] for at in (0, 1, 3)] == [(result,) for result in found]
    assert begun[0][1].properties["TAGS"] == "t"
    assert all(type(ended[at][2]) is RefusedError for at in (2, 4))
    assert type(ended[6][2]) is ClientError
    assert {event[4] for event in ended} == {busy.address}


def test_what_cannot_be_begun_is_told_in_a_later_turn() -> None:
    """Also by `send_async` with its route known: its callback is never called before it returns."""
    busy = Busy()

    def refuse(_queues: object) -> Any:
        raise ValueError("planted")

    async def story(producer: AsyncProducer) -> None:
        assert isinstance(await sent_async(producer, b"x"), SendResult)
        selects: list[Any] = [refuse, lambda _queues: None]
        for select in selects:
            told: list[object] = []
            producer.send_async("T", b"x", told.append, select=select)
            assert told == []
            assert isinstance(await sent_async(producer, b"x", select=select), LongpollError)
            assert len(told) == 1
        assert producer.metrics().failures == 4

    with ScriptedServer(busy.serve) as server:
        busy.address = server.address
        run(server.address, story)


def test_the_trace_is_written() -> None:
    """A line for a send of an event loop, by the trace's own thread."""
    traced: list[bytes] = []
    busy = Busy()

    def serve(peer: Peer, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE_V2 and bytes(command.body).startswith(b"Pub"):
            traced.append(bytes(command.body))
        busy.serve(peer, command)

    async def story(producer: AsyncProducer) -> None:
        await producer.send("T", b"x", keys="k")

    with ScriptedServer(serve) as server:
        busy.address = server.address
        with Tracing(RUNTIME, server.address) as trace:
            run(server.address, story, hooks=[trace])
        wait_until(lambda: bool(traced))
    assert b"\x01P\x01T\x01" in traced[0]


@pytest.mark.parametrize("awaited", [True, False])
def test_a_broker_that_fails_is_left_alone(*, awaited: bool) -> None:
    """With `avoids_slow_brokers` the sends after a failed try go to the other; without it each begins there."""
    fields = SendMessageResponseHeader(msg_id="AB", queue_id=0, queue_offset=7).encode()

    def serve(peer: Peer, command: Command) -> None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            peer.answer(command, body=route.encode())
        else:
            peer.answer(command, 0, fields)

    def fail(peer: Peer, command: Command) -> None:
        peer.answer(command, ResponseCode.SYSTEM_BUSY, fields)

    async def story(producer: AsyncProducer) -> None:
        for _number in range(6):
            sent = await producer.send("T", b"x") if awaited else await sent_async(producer, b"x")
            assert isinstance(sent, SendResult)

    retries = []
    with ScriptedServer(serve) as good, ScriptedServer(fail) as bad:
        route = TopicRouteData(
            broker_datas=[
                BrokerData(broker_name=name, broker_addrs={0: server.address})
                for name, server in (("a", bad), ("b", good))
            ],
            queue_datas=[QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6) for name in "ab"],
        )
        for avoids in (True, False):
            before = len(bad.received)
            run(good.address, story, avoids_slow_brokers=avoids)
            retries.append(len(bad.received) - before)
    assert retries == [1, 6]
