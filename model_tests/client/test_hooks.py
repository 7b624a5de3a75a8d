"""Hooks, counts and the trace: what is told of every send and of everything that a listener is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
from attrs import define, field

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import (
    ConsumerConfig,
    ConsumeStatus,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Sending,
    SendMetrics,
    StartAt,
    Tracing,
)
from longpoll_client.errors import RefusedError
from longpoll_client.produce.hooks import Outcome
from longpoll_protocol.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_runtime.real import RealRuntime

RUNTIME: Final = RealRuntime()
PATIENCE_S: Final = 10.0
SENT_BACK_S: Final = 30.0
"""A pull that fails rests for 3 s, and a message is sent back within 3 s or not at all: busy machines need more."""


@define
class Told:
    """What a hook was told, in order; with `is_bad` it raises each time."""

    is_bad: bool = False
    events: list[tuple[Any, ...]] = field(factory=list)

    def before_send(self, sending: Sending) -> None:
        """A send begins."""
        self._note("before", sending)

    def after_send(self, sending: Sending, outcome: Outcome, latency_ns: int, address: str) -> None:
        """A send has ended."""
        self._note("after", sending, outcome, latency_ns, address)

    def before_consume(self, group: str, delivery: str, messages: Sequence[ReceivedMessage]) -> None:
        """A listener is called."""
        self._note("before", group, delivery, messages)

    def after_consume(
        self,
        group: str,
        delivery: str,
        messages: Sequence[ReceivedMessage],
        error: Exception | None,
        *,
        is_consumed: bool,
        latency_ns: int,
    ) -> None:
        """A listener has answered."""
        self._note("after", group, delivery, messages, error, is_consumed, latency_ns)

    def _note(self, *event: object) -> None:
        self.events.append(event)
        if self.is_bad:
            raise ValueError("planted")


class Busy:
    """A name server and a broker that answers with these codes, one after the other, and then with success."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.address = ""

    def serve(self, peer: Peer, command: Command) -> None:
        """Answer routes and sends."""
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = TopicRouteData(
                broker_datas=[BrokerData(broker_name="a", broker_addrs={0: self.address})],
                queue_datas=[QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2, perm=6)],
            )
            peer.answer(command, body=route.encode())
        elif not command.is_one_way:
            fields = SendMessageResponseHeader(msg_id="AB", queue_id=1, queue_offset=7).encode()
            peer.answer(command, self.codes.pop(0) if self.codes else 0, fields)


def test_sends_are_told_and_counted() -> None:
    """Once each, over all tries, with how they ended; a hook that raises harms neither the send nor the next hook."""
    busy, bad, good = Busy(ResponseCode.SYSTEM_BUSY, 0, ResponseCode.MESSAGE_ILLEGAL), Told(is_bad=True), Told()
    with ScriptedServer(busy.serve) as server:
        busy.address = server.address
        with Producer(RUNTIME, server.address, "P", hooks=[bad, good]) as producer:
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
        Busy(ResponseCode.SYSTEM_BUSY, 0, ResponseCode.MESSAGE_ILLEGAL),
        Told(),
        [],
        Event(),
    )

    def told(outcome: object) -> None:
        outcomes.append(outcome)
        if len(outcomes) == 2:
            all_told.set()

    with ScriptedServer(busy.serve) as server:
        busy.address = server.address
        with Producer(RUNTIME, server.address, "P", hooks=[hook]) as producer:
            for number in range(2):
                producer.send_async("T", b"%d" % number, told)
                wait_until(lambda number=number: len(outcomes) > number)  # type: ignore[misc] # bound at once
            assert all_told.wait(PATIENCE_S)
            with pytest.raises(Exception, match="cannot be used together"):
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
        with pytest.raises(Exception, match="unknown to the name server"):
            producer.send("T", b"x")
        assert (producer.metrics().sends, producer.metrics().failures, producer.metrics().retries) == (1, 1, 0)
    assert told.events[1][4] == ""


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """That of an embedded broker."""
    directory = str(tmp_path_factory.mktemp("hooks") / "store")
    with Broker.start(RUNTIME, directory, store_config=SMALL_STORE) as broker:
        yield "{}:{}".format(*broker.name_server_address)


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
