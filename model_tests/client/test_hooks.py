"""Hooks of producers and consumers: their calls, the counts, the trace topic, and spans of OpenTelemetry."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import new_topic
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.client import STORED, Clients, OneServer, Told, from_first, polled, polling, route_of, send
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from longpoll_client import (
    AsyncProducer,
    ClientError,
    ConfigError,
    LongpollError,
    OutgoingMessage,
    Producer,
    ReceivedMessage,
    RefusedError,
    Retry,
    Sending,
    SendMetrics,
    SendResult,
    Tracing,
)
from longpoll_client.otel import OpenTelemetry
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames import Command


def is_alike(bad: Told, good: Told, count: int) -> bool:
    """Whether two hooks were called before and after each of this number of sends."""
    return bad.events == good.events and [event[0] for event in good.events] == ["before", "after"] * count


@pytest.mark.parametrize("is_loop", [False, True])
def test_hooks_see_each_send_and_sends_are_counted(is_loop: bool) -> None:
    """A hook is called once per send, with the result of all tries; a raising hook stops no send and no other hook."""
    busy, bad, good = OneServer(ResponseCode.SYSTEM_BUSY, 0, ResponseCode.MESSAGE_ILLEGAL), Told(is_bad=True), Told()
    with busy.served() as server, ExitStack() as stack:
        producer = Clients(server.address, stack, is_loop=is_loop).producer(hooks=[bad, good])
        assert producer.metrics() == SendMetrics()
        sent = producer.send("T", b"x", tag="t", keys="k1 k2")
        with pytest.raises(RefusedError):
            producer.send("T", b"y")
        batch = producer.send_batch("T", [OutgoingMessage(b"1"), OutgoingMessage(b"2")])
        producer.send_one_way("T", b"z")
        found = producer.metrics()
    assert is_alike(bad, good, 3)
    first, second, third = (good.events[at] for at in (1, 3, 5))
    assert good.events[0][1] is first[1]
    assert (first[1].group, first[1].topic, first[1].properties["TAGS"]) == ("P", "T", "t")
    assert (first[1].msg_ids, first[2], first[4]) == ((sent.msg_id,), (sent,), busy.address)
    assert isinstance(second[2], RefusedError)
    assert tuple(third[2]) == tuple(batch)
    assert (found.sends, found.failures, found.retries, found.one_way) == (3, 1, 1, 1)
    assert found.latency_s == pytest.approx(sum(event[3] for event in (first, second, third)))
    assert found.latency_s > 0


@pytest.mark.parametrize("is_loop", [False, True])
def test_hooks_see_sends_with_callbacks_too(is_loop: bool) -> None:
    """Callback sends are counted once each, whether retried, refused, or never begun."""
    busy, bad, good = OneServer(ResponseCode.SYSTEM_BUSY, 0, ResponseCode.MESSAGE_ILLEGAL), Told(is_bad=True), Told()
    outcomes: list[object] = []
    with busy.served() as server, ExitStack() as stack:
        producer = Clients(server.address, stack, is_loop=is_loop).producer(hooks=[bad, good])
        for number in range(2):
            producer.send_nowait("T", b"%d" % number, callback=outcomes.append)
            wait_until(lambda number=number: len(outcomes) > number)  # type: ignore[misc] # bound at once
        with pytest.raises(ConfigError, match="cannot be used together"):
            producer.send_nowait(
                "T", b"x", callback=outcomes.append, queue_id=0, queue_selector=lambda queues: queues[0]
            )
        if is_loop:
            producer.send_nowait("T", b"x", callback=outcomes.append, queue_id=7)
            wait_until(lambda: len(outcomes) == 3)
        else:
            with pytest.raises(ConfigError, match="no queue 7"):
                producer.send_nowait("T", b"x", callback=outcomes.append, queue_id=7)
        found = producer.metrics()
    assert is_alike(bad, good, 3)
    sent, refused, none = (good.events[at] for at in (1, 3, 5))
    assert (sent[2], sent[4]) == ((outcomes[0],), busy.address)
    assert isinstance(refused[2], RefusedError)
    assert "no queue 7" in str(none[2])
    assert (found.sends, found.failures, found.retries) == (3, 2, 1)


def test_hooks_see_cancelled_sends_as_failures() -> None:
    """A send that is cancelled before it has begun is not counted."""
    busy, good = OneServer(), Told()

    async def story(address: str) -> None:
        async with AsyncProducer(address, hooks=[good]) as producer:
            for turns in range(2):
                sending = asyncio.create_task(producer.send("T", b"x"))
                for _turn in range(turns):
                    await asyncio.sleep(0)
                sending.cancel()
                await asyncio.wait([sending])
            assert (producer.metrics().sends, producer.metrics().failures) == (1, 1)

    with busy.served() as server:
        asyncio.run(story(server.address))
    assert [event[0] for event in good.events] == ["before", "after"]
    assert type(good.events[1][2]) is ClientError


def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
    """Raise for one message, defer one, and consume the others."""
    if messages[0].body == b"raise":
        raise ValueError("planted")
    return Retry() if messages[0].body == b"later" else None


@pytest.mark.parametrize("is_orderly", [False, True])
def test_hooks_see_what_listeners_get(clients: Clients, topic: str, is_orderly: bool) -> None:
    """Hooks get the messages, the result and the error text of each call, and a raising hook changes nothing.

    A message may be sent or delivered twice, so the test waits for each message and not for a number of calls.
    """
    bad, good = Told(is_bad=True), Told()
    bodies = [b"good"] if is_orderly else [b"good", b"later", b"raise"]

    def ends() -> dict[bytes, tuple[Any, ...]]:
        return {event[3][0].body: event for event in tuple(good.events) if event[0] == "after"}

    send(clients.name_server, topic, *bodies)
    config = from_first(f"W-{topic}", thread_count=1, hooks=(bad, good))
    consumer = clients.pushing(topic, listen, config, is_orderly=is_orderly)
    wait_until(lambda: ends().keys() == set(bodies))
    consumer.close()
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
    """Return the lines of a trace topic, split into fields, each with the keys of its message."""
    found: list[tuple[list[str], str]] = []
    with polling(name_server, topic, f"dashboard-{topic}") as consumer:
        while len(found) < count:
            for message in polled(consumer, 1):
                lines = message.body.decode().split("\x02")[:-1]
                found += [(line.split("\x01"), " ".join(message.keys)) for line in lines]
    return found


def test_the_trace_has_lines_for_a_messages_send_and_consumption(clients: Clients, topic: str) -> None:
    """Trace lines have the fields of `TraceDataEncoder`, and the message's id and keys; traces are not traced."""
    with new_topic(clients.name_server, 1) as trace_topic, Tracing(clients.name_server, trace_topic) as tracing:
        sent = clients.producer(hooks=[tracing]).send(topic, b"x", tag="t", keys="k1")
        clients.pushing(topic, listen, from_first(f"C-{topic}", hooks=(tracing,)))
        found = lines_of(clients.name_server, trace_topic, 3)
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


def test_a_trace_that_cannot_be_written_is_dropped_and_counted(name_server: str, topic: str) -> None:
    """The traced sends succeed although the trace cannot be written."""
    tracing = Tracing(name_server, "no such topic")
    with tracing, Producer(name_server, hooks=[tracing]) as producer:
        producer.send(topic, b"x")
    assert tracing.dropped_count == 1


def sent_later(producer: Any, **options: Any) -> object:
    """Send with `send_nowait`, and return the argument of the callback."""
    told: list[object] = []
    producer.send_nowait("T", b"x", callback=told.append, **options)
    wait_until(lambda: bool(told))
    return told[0]


def test_a_callback_is_never_called_before_its_send_returns() -> None:
    """On an event loop the callback is called later even if the route is known and the send fails at once."""

    def refuse(_queues: object) -> Any:
        raise ValueError("planted")

    async def story(address: str) -> None:
        async with AsyncProducer(address) as producer:
            await producer.send("T", b"x")
            selects: list[Any] = [refuse, lambda _queues: None]
            for select in selects:
                came: asyncio.Future[object] = asyncio.get_running_loop().create_future()
                producer.send_nowait("T", b"x", callback=came.set_result, queue_selector=select)
                assert not came.done()
                assert isinstance(await came, LongpollError)
            assert producer.metrics().failures == 2

    with OneServer().served() as server:
        asyncio.run(story(server.address))


@pytest.mark.parametrize("is_loop", [False, True])
@pytest.mark.parametrize("waits", [True, False])
def test_a_failing_broker_is_avoided_on_request(is_loop: bool, waits: bool) -> None:
    """With `avoids_slow_brokers` the next sends use the other broker; without it each send begins at the failed one."""
    counts = []
    with ScriptedServer(busy) as bad:
        serve = OneServer(route=lambda address: route_of(("a", bad.address), ("b", address), queue_count=1))
        with serve.served() as good:
            for avoids in (True, False):
                before = len(bad.received)
                with ExitStack() as stack:
                    clients = Clients(good.address, stack, is_loop=is_loop)
                    producer = clients.producer(avoids_slow_brokers=avoids)
                    for _number in range(6):
                        sent = producer.send("T", b"x") if waits else sent_later(producer)
                        assert isinstance(sent, SendResult)
                counts.append(len(bad.received) - before)
    assert counts == [1, 6]


def busy(peer: Peer, command: Command) -> None:
    """A broker that refuses every send as busy."""
    peer.answer(command, ResponseCode.SYSTEM_BUSY, STORED)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """A span exporter that collects the spans."""
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> OpenTelemetry:
    """The OpenTelemetry hook with this exporter."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetry(provider)


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name.startswith(name)]


def linked(span: ReadableSpan) -> set[int]:
    """Return the spans that a span links to."""
    return {link.context.span_id for link in span.links}


def ids(spans: Sequence[ReadableSpan]) -> set[int]:
    return {span.context.span_id for span in spans if span.context is not None}


def test_a_message_is_followed_from_its_send_to_its_listener(
    clients: Clients, topic: str, spans: OpenTelemetry, exporter: InMemorySpanExporter
) -> None:
    """A message's properties have the trace context of its creation, to which the spans of send and listener link."""
    current: list[Any] = []

    def listen(messages: Sequence[ReceivedMessage]) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        assert "traceparent" in messages[0].properties
        if len(current) == 2:
            raise ValueError("planted")

    producer = clients.producer(hooks=[spans])
    sent = producer.send(topic, b"12345", tag="red", keys="k1")
    config = MemberConfig(group=f"G-{topic}", start_at="first", hooks=[spans], thread_count=1)
    clients.pushing(topic, listen, config)
    wait_until(lambda: len(named(exporter, "process")) == 1)
    producer.send(topic, b"2")
    wait_until(lambda: len(named(exporter, "process")) == 2)

    creates, sends, processes = (named(exporter, name) for name in ("create", "send", "process"))
    assert [span.kind for span in (creates[0], sends[0], processes[0])] == [
        SpanKind.PRODUCER,
        SpanKind.CLIENT,
        SpanKind.CONSUMER,
    ]
    assert linked(sends[0]) == linked(processes[0]) == ids(creates[:1])
    assert [span.parent for span in processes] == [None, None]  # Each call ends with the context that it began with.
    assert current == [span.context.span_id for span in processes if span.context is not None]
    broker, said = sent.broker_msg_id, dict(sends[0].attributes or {})
    assert broker
    assert said.pop("server.port")
    assert said == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.message.id": sent.msg_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "red",
        "messaging.rocketmq.message.keys": ("k1",),
        "server.address": "127.0.0.1",
    }
    said = dict(processes[0].attributes or {})
    assert (said["messaging.consumer.group.name"], said["messaging.message.id"]) == (f"G-{topic}", sent.msg_id)
    assert processes[0].status.status_code is StatusCode.UNSET
    assert (processes[1].status.status_code, (processes[1].attributes or {})["error.type"]) == (
        StatusCode.ERROR,
        "ValueError",
    )


def test_a_poll_links_to_each_message_of_a_batch(
    clients: Clients, topic: str, spans: OpenTelemetry, exporter: InMemorySpanExporter
) -> None:
    producer = clients.producer(hooks=[spans])
    producer.send_batch(topic, [OutgoingMessage(b"1"), OutgoingMessage(b"2")])
    consumer = clients.pulling(topic, MemberConfig(group=f"G-{topic}", start_at="first", hooks=[spans]))
    assert [message.body for message in consumer.poll(10.0)] == [b"1", b"2"]

    (received,) = named(exporter, "receive")
    creates = named(exporter, "create")
    assert len(creates) == 2
    assert linked(received) == ids(creates)
    assert (received.attributes or {})["messaging.batch.message_count"] == 2
    assert (named(exporter, "send")[0].attributes or {})["messaging.batch.message_count"] == 2


def test_a_send_that_fails_is_an_error(spans: OpenTelemetry, exporter: InMemorySpanExporter, clients: Clients) -> None:
    """The span of a send that reached no broker is an error too, and a refused message leaves no open span."""
    sending = Sending("P", "T", ("1",), {"DELAY": "1"}, 1, 0, 1.0)
    spans.before_send(sending)
    spans.after_send(sending, RefusedError("sending", 1, "no"), 0.1, "")
    (failed,) = named(exporter, "send")
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "RefusedError"
    assert (failed.attributes or {})["messaging.rocketmq.message.type"] == "delay"
    assert "server.address" not in (failed.attributes or {})
    with pytest.raises(ConfigError):
        clients.producer(hooks=[spans]).send("no topic!", b"1")
    assert not spans._sends
