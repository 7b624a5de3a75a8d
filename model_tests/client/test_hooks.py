"""Hooks, counts and the trace: they see every send and everything that a listener gets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
from model_tests.support.client import PATIENCE_S, RUNTIME, OneServer, Told

from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import (
    AsyncProducer,
    ConsumerConfig,
    ConsumeStatus,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendMetrics,
    SendResult,
    StartAt,
    Tracing,
)
from longpoll_client.errors import ClientError, RefusedError
from longpoll_protocol.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_spec.errors import LongpollError

SENT_BACK_S: Final = 30.0
"""A pull that fails rests for 3 s, and a message is sent back within 3 s or not at all: busy machines need more."""


def test_sends_are_told_and_counted() -> None:
    """Once each, over all tries, with how they ended; a hook that raises harms neither the send nor the next hook."""
    busy, bad, good = OneServer(ResponseCode.SYSTEM_BUSY, 0, ResponseCode.MESSAGE_ILLEGAL), Told(is_bad=True), Told()
    with busy.served() as server, Producer(RUNTIME, server.address, "P", hooks=[bad, good]) as producer:
        sent = producer.send("T", b"x", tags="t", keys="k1 k2")
        with pytest.raises(RefusedError):
            producer.send("T", b"y")
        batch = producer.send_batch("T", [OutgoingMessage(b"1"), OutgoingMessage(b"2")])
        producer.send_one_way("T", b"z")
        found = producer.metrics()
    assert bad.events == good.events
    assert [event[0] for event in good.events] == ["before", "after"] * 3
    first, second, third = (good.events[at] for at in (1, 3, 5))
    assert good.events[0][1] is first[1]
    assert (first[1].group, first[1].topic, first[1].properties["TAGS"]) == ("P", "T", "t")
    assert (first[1].msg_ids, first[2], first[4]) == ((sent.msg_id,), (sent,), busy.address)
    assert isinstance(second[2], RefusedError)
    assert third[2] == batch
    assert (found.sends, found.failures, found.retries, found.one_way) == (3, 1, 1, 1)
    assert found.latency_s == sum(event[3] for event in (first, second, third)) / 1e9 > 0


def test_sends_that_nobody_waits_for_are_told_and_counted_too() -> None:
    """Once each, whether tried again, refused, or never begun."""
    busy, hook, outcomes, all_told = (
        OneServer(ResponseCode.SYSTEM_BUSY, 0, ResponseCode.MESSAGE_ILLEGAL),
        Told(),
        [],
        Event(),
    )

    def told(outcome: object) -> None:
        outcomes.append(outcome)
        if len(outcomes) == 2:
            all_told.set()

    with busy.served() as server, Producer(RUNTIME, server.address, "P", hooks=[hook]) as producer:
        for number in range(2):
            producer.send_async("T", b"%d" % number, told)
            wait_until(lambda number=number: len(outcomes) > number)  # type: ignore[misc] # bound at once
        assert all_told.wait(PATIENCE_S)
        with pytest.raises(Exception, match="cannot both pick"):
            producer.send_async("T", b"x", told, queue_id=0, select=lambda queues: queues[0])
        with pytest.raises(Exception, match="no queue 7"):
            producer.send_async("T", b"x", told, queue_id=7)
        found = producer.metrics()
    assert [event[0] for event in hook.events] == ["before", "after"] * 3
    sent, refused, none = (hook.events[at] for at in (1, 3, 5))
    assert (sent[2], sent[4]) == ((outcomes[0],), busy.address)
    assert isinstance(refused[2], RefusedError)
    assert "no queue 7" in str(none[2])
    assert (found.sends, found.failures, found.retries) == (3, 2, 1)


def test_a_new_producer_has_sent_nothing() -> None:
    """And a send that finds no route is one that failed, without a broker."""
    told = Told()
    with (
        ScriptedServer(lambda peer, command: peer.answer(command, ResponseCode.TOPIC_NOT_EXIST)) as server,
        Producer(RUNTIME, server.address, hooks=[told]) as producer,
    ):
        assert producer.metrics() == SendMetrics()
        with pytest.raises(Exception, match="not known"):
            producer.send("T", b"x")
        assert (producer.metrics().sends, producer.metrics().failures, producer.metrics().retries) == (1, 1, 0)
    assert told.events[1][4] == ""


def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
    """One message raises, one is put off, the others are consumed."""
    if messages[0].body == b"raise":
        raise ValueError("planted")
    return ConsumeStatus.LATER if messages[0].body == b"later" else ConsumeStatus.SUCCESS


@pytest.mark.parametrize("is_orderly", [False, True])
def test_listeners_are_watched(name_server: str, is_orderly: bool) -> None:
    """Each call with its messages, how it ended, and a text of its own; hooks that raise change nothing.

    On a busy machine a message may be sent, or come, twice; so each is waited for, and not a number of calls.
    """
    bad, good = Told(is_bad=True), Told()
    bodies = [b"good"] if is_orderly else [b"good", b"later", b"raise"]

    def ends() -> dict[bytes, tuple[Any, ...]]:
        return {event[3][0].body: event for event in tuple(good.events) if event[0] == "after"}

    with new_topic(name_server, 1) as topic, Producer(RUNTIME, name_server) as producer:
        for body in bodies:
            producer.send(topic, body)
        config = ConsumerConfig(f"W-{topic}", start_at=StartAt.FIRST, thread_count=1, hooks=(bad, good))
        with PushConsumer(RUNTIME, name_server, config, listen, is_orderly=is_orderly) as consumer:
            consumer.subscribe(topic)
            consumer.start()
            wait_until(lambda: ends().keys() == set(bodies), SENT_BACK_S)
    assert bad.events == good.events
    ended = ends()
    assert ended[b"good"][4:6] == (None, True)
    if not is_orderly:
        assert ended[b"later"][4:6] == (None, False)
        assert isinstance(ended[b"raise"][4], ValueError)
        assert ended[b"raise"][5] is False
    assert len({event[2] for event in good.events}) == len(good.events) // 2
    assert all(event[1] == f"W-{topic}" for event in good.events)


def lines_of(name_server: str, topic: str, count: int) -> list[tuple[list[str], str]]:
    """The lines of a trace topic, in parts, each with the keys of its message."""
    found: list[tuple[list[str], str]] = []
    config = ConsumerConfig("dashboard", start_at=StartAt.FIRST)
    with PullConsumer(RUNTIME, name_server, config) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        while len(found) < count:
            messages = consumer.poll(PATIENCE_S)
            assert messages
            for message in messages:
                lines = message.body.decode().split("\x02")[:-1]
                found += [(line.split("\x01"), message.keys or "") for line in lines]
    return found


def test_the_trace_tells_of_a_message_from_its_send_to_its_end(name_server: str) -> None:
    """In the fields of `TraceDataEncoder`, under the message's id and keys; the trace itself is not traced."""
    with (
        new_topic(name_server, 1) as topic,
        new_topic(name_server, 1) as trace_topic,
        Tracing(RUNTIME, name_server, trace_topic) as tracing,
        Producer(RUNTIME, name_server, "P", hooks=[tracing]) as producer,
    ):
        sent = producer.send(topic, b"x", tags="t", keys="k1")
        config = ConsumerConfig(f"C-{topic}", start_at=StartAt.FIRST, hooks=(tracing,))
        with PushConsumer(RUNTIME, name_server, config, listen) as consumer:
            consumer.subscribe(topic)
            consumer.start()
            found = lines_of(name_server, trace_topic, 3)
        assert tracing.dropped_count == 0
    assert len(found) == 3
    assert all({sent.msg_id, "k1"} <= set(keys.split()) for _line, keys in found)
    (pub, before, after) = (line for line, _keys in found)
    assert pub[0] == "Pub"
    assert pub[2:8] == ["DefaultRegion", "P", topic, sent.msg_id, "t", "k1"]
    assert pub[9] == "1"
    assert pub[11:] == ["0", sent.broker_msg_id, "true"]
    assert (before[0], before[3], before[5:]) == ("SubBefore", f"C-{topic}", [sent.msg_id, "0", "k1"])
    assert (after[0], after[1:3]) == ("SubAfter", [before[4], sent.msg_id])
    assert (after[4:7], after[8]) == (["true", "k1", "0"], f"C-{topic}")


def test_a_trace_that_cannot_be_written_is_dropped_and_counted(name_server: str, tmp_path: Path) -> None:
    """The sends that it tells of are none the worse."""
    with new_topic(name_server, 1) as topic:
        tracing = Tracing(RUNTIME, name_server, "no such topic")
        with tracing, Producer(RUNTIME, name_server, hooks=[tracing]) as producer:
            producer.send(topic, b"x")
        assert tracing.dropped_count == 1


def with_producer(name_server: str, story: Callable[[AsyncProducer], Awaitable[None]], **options: Any) -> None:
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


def test_sends_of_a_loop_are_told_and_counted() -> None:
    """Once each, over all tries, however they are sent and end; a hook that raises harms nobody."""
    busy, bad, good = OneServer(0), Told(is_bad=True), Told()
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

    with busy.served() as server:
        with_producer(server.address, story, hooks=[bad, good])
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
    busy = OneServer()

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

    with busy.served() as server:
        with_producer(server.address, story)


def test_the_trace_is_written() -> None:
    """A line for a send of an event loop, by the trace's own thread."""
    traced: list[bytes] = []
    busy = OneServer()

    def serve(peer: Peer, command: Command) -> None:
        if command.code == RequestCode.SEND_MESSAGE_V2 and bytes(command.body).startswith(b"Pub"):
            traced.append(bytes(command.body))
        busy(peer, command)

    async def story(producer: AsyncProducer) -> None:
        await producer.send("T", b"x", keys="k")

    with busy.served(serve) as server:
        with Tracing(RUNTIME, server.address) as trace:
            with_producer(server.address, story, hooks=[trace])
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
            with_producer(good.address, story, avoids_slow_brokers=avoids)
            retries.append(len(bad.received) - before)
    assert retries == [1, 6]
