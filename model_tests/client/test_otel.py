"""Spans of OpenTelemetry: which there are, what they say, and how they are linked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.client import Clients
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from longpoll_client import ConfigError, OutgoingMessage, ReceivedMessage, RefusedError
from longpoll_client.otel import OpenTelemetry
from longpoll_client.produce.hooks import Sending
from longpoll_client.settings import MemberConfig


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Gets the spans."""
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> OpenTelemetry:
    """The hook."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetry(provider)


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name.startswith(name)]


def linked(span: ReadableSpan) -> set[int]:
    """The spans that it links to."""
    return {link.context.span_id for link in span.links}


def ids(spans: Sequence[ReadableSpan]) -> set[int]:
    return {span.context.span_id for span in spans if span.context is not None}


def test_a_message_is_followed_from_its_send_to_its_listener(
    clients: Clients, topic: str, spans: OpenTelemetry, exporter: InMemorySpanExporter
) -> None:
    """Its properties carry the context of its creation, to which the spans of send and listener link."""
    current: list[Any] = []

    def listen(messages: Sequence[ReceivedMessage]) -> None:
        current.append(trace.get_current_span().get_span_context().span_id)
        assert "traceparent" in messages[0].properties
        if len(current) == 2:
            raise ValueError("planted")

    producer = clients.producer(hooks=[spans])
    sent = producer.send(topic, b"12345", tag="red", keys="k1")
    config = MemberConfig(group=f"G-{topic}", start_at="first", hooks=[spans], thread_count=1)
    consumer = clients.push(config, listen)
    consumer.subscribe(topic)
    consumer.start()
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
    assert [span.parent for span in processes] == [None, None]  # each call ends with the context that it began with
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
    consumer = clients.pull(MemberConfig(group=f"G-{topic}", start_at="first", hooks=[spans]))
    consumer.subscribe(topic)
    consumer.start()
    assert [message.body for message in consumer.poll(10.0)] == [b"1", b"2"]

    (received,) = named(exporter, "receive")
    creates = named(exporter, "create")
    assert len(creates) == 2
    assert linked(received) == ids(creates)
    assert (received.attributes or {})["messaging.batch.message_count"] == 2
    assert (named(exporter, "send")[0].attributes or {})["messaging.batch.message_count"] == 2


def test_a_send_that_fails_is_an_error(spans: OpenTelemetry, exporter: InMemorySpanExporter, clients: Clients) -> None:
    """Also one that asked no broker; a message that is refused before it is sent leaves no open span."""
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
