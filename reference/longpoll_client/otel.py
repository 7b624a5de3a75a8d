"""Spans of OpenTelemetry for producers and consumers, by its semantic conventions for messaging.

| span | kind | begins and ends with |
| --- | --- | --- |
| `create TOPIC` | producer | the creation of one message; its context goes into the message's properties |
| `send TOPIC` | client | one send, with its retries; links to the message's context |
| `receive TOPIC` | client | one `poll` that returns messages; links to their contexts |
| `process TOPIC` | consumer | one call of a listener; current while it runs; links to the messages' contexts |

Needs `opentelemetry-api` (the extra `opentelemetry`).

Source: OpenTelemetry semantic conventions, "Messaging spans" and "RocketMQ", 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider

from longpoll_client.messages import ReceivedMessage
from longpoll_client.produce.hooks import Outcome, Sending
from longpoll_protocol.codes import MessageSysFlag
from longpoll_protocol.properties import DELAY, KEYS, TAGS, TIMER_DELIVER_MS

__all__ = ["OpenTelemetry"]


class OpenTelemetry:
    """A hook for any number of producers (`hooks=`) and consumers (`ConsumerConfig.hooks`).

    Invariant: `_sends` has the span of each send that has not ended, and `_processes` the span of each listener call.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """Create a hook.

        Args:
            tracer_provider: The provider that gets the spans. Default: the global provider.
        """
        self._tracer = trace.get_tracer("longpoll_client", tracer_provider=tracer_provider)
        self._sends: dict[str, Span] = {}
        self._processes: dict[str, tuple[Span, Any]] = {}

    # ------------------------------------------------------------ sending

    def properties(self, topic: str) -> Mapping[str, str]:
        """Return the properties that carry the context of a new message, such as `traceparent`."""
        carrier: dict[str, str] = {}
        attributes = _attributes("create", "create", topic)
        with self._tracer.start_as_current_span(f"create {topic}", kind=SpanKind.PRODUCER, attributes=attributes):
            propagate.inject(carrier)
        return carrier

    def before_send(self, sending: Sending) -> None:
        """Begin the span of a send."""
        attributes = _attributes("send", "send", sending.topic) | {
            "messaging.message.body.size": sending.body_size,
            "messaging.rocketmq.message.type": _message_type(sending),
        }
        if len(sending.msg_ids) == 1:
            attributes["messaging.message.id"] = sending.msg_ids[0]
        else:
            attributes["messaging.batch.message_count"] = len(sending.msg_ids)
        attributes |= _names(sending.properties)
        self._sends[sending.msg_ids[0]] = self._tracer.start_span(
            f"send {sending.topic}", kind=SpanKind.CLIENT, attributes=attributes, links=_links([sending.properties])
        )

    def after_send(self, sending: Sending, outcome: Outcome, latency_s: float, address: str) -> None:  # noqa: ARG002
        """End the span of a send, with the address of the last attempt's broker."""
        span = self._sends.pop(sending.msg_ids[0], None)
        if span is None:
            return
        if address:
            host, _colon, port = address.rpartition(":")
            span.set_attributes({"server.address": host, "server.port": int(port)})
        if isinstance(outcome, Exception):
            _failed(span, outcome)
        span.end()

    # ------------------------------------------------------------ receiving

    def after_receive(self, group: str, messages: Sequence[ReceivedMessage], begun_s: float, latency_s: float) -> None:
        """Add the span of a `poll` that returned messages."""
        span = self._tracer.start_span(
            f"receive {messages[0].topic}",
            kind=SpanKind.CLIENT,
            attributes=_received("receive", "receive", group, messages),
            links=_links([message.properties for message in messages]),
            start_time=int(begun_s * 1e9),
        )
        span.end(int((begun_s + latency_s) * 1e9))

    def before_consume(self, group: str, delivery: str, messages: Sequence[ReceivedMessage]) -> None:
        """Begin the span of a listener call, and make it the current span."""
        span = self._tracer.start_span(
            f"process {messages[0].topic}",
            kind=SpanKind.CONSUMER,
            attributes=_received("process", "process", group, messages),
            links=_links([message.properties for message in messages]),
        )
        self._processes[delivery] = span, context.attach(trace.set_span_in_context(span))

    def after_consume(
        self,
        group: str,  # noqa: ARG002
        delivery: str,
        messages: Sequence[ReceivedMessage],  # noqa: ARG002
        error: Exception | None,
        *,
        is_consumed: bool,
        latency_s: float,  # noqa: ARG002
    ) -> None:
        """End the span of a listener call."""
        span, token = self._processes.pop(delivery)
        context.detach(token)
        if error is not None:
            _failed(span, error)
        elif not is_consumed:
            # The listener retried or rejected the messages.
            span.set_attribute("error.type", "retry")
            span.set_status(StatusCode.ERROR)
        span.end()


def _attributes(operation: str, kind: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }


def _received(operation: str, kind: str, group: str, messages: Sequence[ReceivedMessage]) -> dict[str, Any]:
    found = _attributes(operation, kind, messages[0].topic) | {
        "messaging.consumer.group.name": group,
        "messaging.batch.message_count": len(messages),
    }
    if len(messages) == 1:
        found |= {"messaging.message.id": messages[0].msg_id, "messaging.message.body.size": len(messages[0].body)}
        found |= _names(messages[0].properties)
    return found


def _names(properties: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if TAGS in properties:
        found["messaging.rocketmq.message.tag"] = properties[TAGS]
    if KEYS in properties:
        found["messaging.rocketmq.message.keys"] = properties[KEYS].split()
    return found


def _message_type(sending: Sending) -> str:
    if sending.sys_flag & MessageSysFlag.TRANSACTION_ROLLBACK == MessageSysFlag.TRANSACTION_PREPARED:
        return "transaction"
    return "delay" if DELAY in sending.properties or TIMER_DELIVER_MS in sending.properties else "normal"


def _links(carriers: Sequence[Mapping[str, str]]) -> list[Link]:
    """Return a link to the context in each message's properties, if the message has a context."""
    found = [trace.get_current_span(propagate.extract(carrier, context.Context())) for carrier in carriers]
    return [Link(span.get_span_context()) for span in found if span.get_span_context().is_valid]


def _failed(span: Span, error: Exception) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR, str(error))
