"""The sends of an example: one, many, a batch, one-way; each waits until the waiting pulls have the message.

Deferred and transactional messages are not sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define

from longpoll.wire.load import LONG_MS
from longpoll.wire.suite.answers import header_of
from longpoll.wire.suite.connection import Reply
from longpoll.wire.suite.example import Example
from longpoll.wire.suite.model import Message, Queue, ViolationError, Wanted
from longpoll.wire.suite.pulls import Pulls
from longpoll.wire.suite.requests import Form, PullTerms, send_request
from longpoll_protocol.codes import SEND_SUCCESS_CODES, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_protocol.message import BatchMessage, encode_batch, message_id_position
from longpoll_protocol.properties import encode_properties

EMPTY_REFUSED: Final = "empty body refused"
"""The remark of 5.x; 4.9 accepts an empty body."""
ONE_WAY_TRIES: Final = 3


@define(eq=False)
class Sends:
    """The sends of one example."""

    example: Example
    pulls: Pulls

    def send(self, number: int, queue: Queue, body: bytes, properties: Mapping[str, str], form: Form) -> str:
        """Send one message, and wait until the waiting pulls have it."""
        link = self.example.links.get(number)
        code, fields = send_request(queue.topic, queue.queue_id, properties, form)
        opaque = link.ask(code, fields, body, serialisation=form.serialisation)
        reply = self.example.reply(link, opaque)
        if not body and reply.command.code == ResponseCode.SYSTEM_ERROR:
            return EMPTY_REFUSED
        self._stored(queue, [(reply, body, properties)])
        return f"offset {queue.end - 1}"

    def send_anywhere(self, number: int, topic: int, body: bytes, properties: Mapping[str, str]) -> str:
        """Send one message to queue -1: the broker chooses."""
        link = self.example.links.get(number)
        name = self.example.queues[topic, 0].topic
        code, fields = send_request(name, -1, properties, Form())
        reply = self.example.reply(link, link.ask(code, fields, body))
        if not body and reply.command.code == ResponseCode.SYSTEM_ERROR:
            return EMPTY_REFUSED
        queue_id = header_of(reply.command, SendMessageResponseHeader).queue_id
        queue = self.example.queues.get((topic, queue_id))
        if queue is None:
            raise ViolationError(f"the broker put a message into queue {queue_id} of {name}, which has no such queue")
        self._stored(queue, [(reply, body, properties)])
        return f"queue {queue_id}"

    def send_many(self, number: int, queue: Queue, messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> str:
        """Send messages in one write, without waiting for replies in between."""
        link = self.example.links.get(number)
        prepared = []
        for body, properties in messages:
            code, fields = send_request(queue.topic, queue.queue_id, properties, Form())
            prepared.append(link.prepare(code, fields, body))
        link.write(b"".join(content for _, content in prepared))
        replies = [self.example.reply(link, opaque) for opaque, _ in prepared]
        self._stored(queue, [(reply, *message) for reply, message in zip(replies, messages, strict=True)])
        return f"end {queue.end}"

    def send_batch(self, number: int, queue: Queue, messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> str:
        """Send messages as one batch (code 320)."""
        link = self.example.links.get(number)
        code, fields = send_request(queue.topic, queue.queue_id, {}, Form(), batch=True)
        parts = [BatchMessage(body, encode_properties(properties)) for body, properties in messages]
        command = self.example.expect(link, link.ask(code, fields, encode_batch(parts)), SEND_SUCCESS_CODES)
        header = header_of(command, SendMessageResponseHeader)
        if header.queue_offset != queue.end:
            raise ViolationError(f"a batch was stored at {queue} offset {header.queue_offset}; expected {queue.end}")
        ids = header.msg_id.split(",")
        if len(ids) != len(messages):
            raise ViolationError(f"a batch of {len(messages)} messages got {len(ids)} ids")
        now_ns = self.example.runtime.monotonic_ns()
        queue.messages.extend(
            Message(body, properties, now_ns, _physical_offset(msg_id))
            for (body, properties), msg_id in zip(messages, ids, strict=True)
        )
        self._made_visible(queue)
        return f"end {queue.end}"

    def cross(self, puller: int, sender: int, queue: Queue, wanted: Wanted, tag: str, *, pull_first: bool) -> str:
        """Pull the next message on one connection and send it on another, without waiting in between."""
        pull, asked = self.pulls.prepare(puller, queue, queue.end, wanted, PullTerms(timeout_ms=LONG_MS))
        code, fields = send_request(queue.topic, queue.queue_id, {"TAGS": tag}, Form())
        link = self.example.links.get(sender)
        opaque, sent = link.prepare(code, fields, b"cross")
        if not pull_first:
            link.write(sent)
        self.example.links.get(puller).write(asked)
        if pull_first:
            link.write(sent)
        self._stored(queue, [(self.example.reply(link, opaque), b"cross", {"TAGS": tag})])
        return "held" if pull in self.pulls.asked else "answered"

    def send_one_way(self, number: int, queue: Queue, body: bytes, properties: Mapping[str, str], form: Form) -> str:
        """Send one message without a reply; the queue's end shows when it is stored.

        Such a send is not acknowledged, and a busy broker may drop it silently (`BrokerFastFailure`), so it is
        repeated; a message that is dropped every time is a violation.
        """
        code, fields = send_request(queue.topic, queue.queue_id, properties, form)
        for tries in range(1, ONE_WAY_TRIES + 1):
            self.example.links.get(number).ask(code, fields, body, serialisation=form.serialisation, one_way=True)
            came = self._end_in_time(queue, queue.end + 1) - queue.end
            if came > tries:
                raise ViolationError(f"{queue} got {came} more messages, although one was sent {tries} times")
            if came > 0:
                now_ns = self.example.runtime.monotonic_ns()
                queue.messages.extend(Message(body, properties, now_ns, None) for _ in range(came))
                self.pulls.await_wakes(queue)
                return f"offset {queue.end - 1}"
        raise ViolationError(
            f"the end of {queue} stays at {queue.end}, although message {queue.end} was sent {ONE_WAY_TRIES} times"
        )

    def _stored(self, queue: Queue, sent: Sequence[tuple[Reply, bytes, Mapping[str, str]]]) -> None:
        """Record acknowledged messages: they are at the end of the queue, in any order."""
        by_offset: dict[int, Message] = {}
        for reply, body, properties in sent:
            if reply.command.code not in SEND_SUCCESS_CODES:
                raise ViolationError(f"a valid send was rejected: code {reply.command.code} {reply.command.remark}")
            header = header_of(reply.command, SendMessageResponseHeader)
            if header.queue_id != queue.queue_id:
                raise ViolationError(f"a message for {queue} was put into queue {header.queue_id}")
            by_offset[header.queue_offset] = Message(body, properties, reply.read_ns, _physical_offset(header.msg_id))
        if sorted(by_offset) != list(range(queue.end, queue.end + len(sent))):
            raise ViolationError(
                f"{len(sent)} messages were stored at {queue} offsets {sorted(by_offset)}; expected {queue.end} and up"
            )
        queue.messages.extend(by_offset[offset] for offset in sorted(by_offset))
        self._made_visible(queue)

    def _made_visible(self, queue: Queue) -> None:
        if not self.example.expectations.visible_at_ack:
            self._wait_end(queue, queue.end)
        self.pulls.await_wakes(queue)

    def _wait_end(self, queue: Queue, end: int) -> None:
        seen = self._end_in_time(queue, end)
        if seen < end:
            raise ViolationError(f"the end of {queue} stays at {seen}, although message {seen} was acknowledged")

    def _end_in_time(self, queue: Queue, end: int) -> int:
        """The queue's end as the broker reports it, once it is that far or the patience is over."""
        begun_ns = self.example.runtime.monotonic_ns()
        while (seen := self.example.ask_end(0, queue, RequestCode.GET_MAX_OFFSET)) < end:
            now_ns = self.example.runtime.monotonic_ns()
            stalled_ns = self.example.links.stalled_ms(begun_ns, now_ns) * 1e6
            if now_ns - begun_ns > self.example.expectations.patience_ns + stalled_ns:
                break
        return seen


def _physical_offset(message_id: str) -> int:
    try:
        return message_id_position(message_id)[2]
    except HeaderError as error:
        raise ViolationError(str(error)) from None
