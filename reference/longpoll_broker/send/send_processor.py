"""Serves sends (codes 10, 310 and 320), from received bytes to the log.

At the end of the loop's pass `BrokerHandler.end_pass` makes the messages visible and wakes waiting pulls
(`hold.dispatch_service`). `send.message_builder` creates a message from a request.

Source: `SendMessageProcessor.java`, `AbstractSendMessageProcessor.java` 4.9, checks in their order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

from attrs import define, field
from msgspec.structs import replace

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.send.append import HALF_TOPIC, TRANSACTION_MASK, Appender
from longpoll_broker.send.batches import BatchLimits, no_message
from longpoll_broker.send.durability import Durability
from longpoll_broker.send.inner_queues import SendRefusedError
from longpoll_broker.send.long_batches import LONG_SIZE, TURN_COUNT, LongBatches, Turns
from longpoll_broker.send.message_builder import REGION_NAME, MessageBuilder
from longpoll_broker.send.send_events import Asked, SendEvents, Stored
from longpoll_broker.shared.topics import TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import EMPTY
from longpoll_protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.names import NOT_FOR_SENDING, RETRY_PREFIX, name_problem
from longpoll_protocol.properties import (
    CLUSTER,
    INNER_OFFSETS,
    REGION,
    TAGS,
    TRACE,
    UNIQUE_KEY,
    WAIT,
    read_properties,
    write_properties,
)

REGION_FIELDS: Final = {TRACE: "true", REGION: REGION_NAME}
"""Fields of every reply to a send, including refusals."""
FIRST_OFFSET: Final = 0
"""The offset of a queue's first message, which creates its files: as much work as fifty sends."""
REFUSED: Final = (SendRefusedError, MessageRefusedError, OSError)
"""Raised when a message cannot be stored."""
DEFAULT_QUEUE_COUNT: Final = 4
"""Queue count of a new topic if the client names none (`defaultTopicQueueNums` of the clients)."""


@define(slots=True, eq=False)
class SendProcessor(Serving):
    """The processor of the send codes."""

    topics: Topics
    maker: MessageBuilder
    appender: Appender
    events: SendEvents
    keepers: Durability
    """Decide when a send is answered: after the disk under `SYNC_FLUSH`, after a slave under `SYNC_MASTER`."""
    traits: Traits = STRICT_TRAITS
    _next_queue: itertools.count[int] = field(factory=itertools.count, init=False)
    _batches: BatchLimits = field(init=False)
    _long_batches: LongBatches = field(init=False)
    host_digits: bytes = field(init=False)
    """First part of a message id: the broker's address in hexadecimal."""

    def __attrs_post_init__(self) -> None:
        self.host_digits = self.maker.store_host.hex().upper().encode()
        self._long_batches = LongBatches(self.appender.runtime.lock())
        self._batches = BatchLimits.of(self.appender.store.message_size_max, len(self.host_digits), self.traits)

    @serves(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Serve a send request; returns None when its answer waits for the disk or a slave."""
        try:
            header = self.header_of(command)
        except SendRefusedError as error:
            return answer(command, error.code, str(error), REGION_FIELDS)
        channel.request_count += 1
        asked = Asked(channel, command, header, channel.request_count)
        self.events.received(asked)
        try:
            queue_id = self._checked_queue(header, channel)
            if header.batch:
                return self._put_batch(asked, queue_id, outbox)
            return self._put_one(asked, queue_id, outbox)
        except REFUSED as error:
            return self._refused(asked, error, outbox)

    def _refused(self, asked: Asked, error: Exception, outbox: Outbox) -> Parts:
        fields: dict[str, str] | None = REGION_FIELDS
        if isinstance(error, SendRefusedError):
            code, remark = error.code, str(error)
            fields = REGION_FIELDS if error.tells_region else None
        elif isinstance(error, MessageRefusedError):
            code, remark = ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}"
        else:
            code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}"
        self.events.refused(asked, code, outbox)
        return answer(asked.command, code, remark, fields)

    def header_of(self, command: Command) -> SendMessageRequestHeader:
        """Decode the header; raises HeaderError, or SendRefusedError where 4.9 checks the topic first."""
        kind = SendMessageRequestHeader if command.code == RequestCode.SEND_MESSAGE else SendMessageRequestHeaderV2
        fields = command.ext_fields or {}
        topic_field = "topic" if kind is SendMessageRequestHeader else "b"
        if self.traits.blank_topic_is_told:
            try:
                return kind.decode(fields)
            except HeaderError:
                if fields.get(topic_field):
                    raise
                raise SendRefusedError(ResponseCode.SYSTEM_ERROR, name_problem("") or "") from None
        if topic_field not in fields:
            raise HeaderError(kind.__name__, topic_field, "is missing")
        if self.traits.refuses_empty_body and not command.body:
            raise HeaderError("a send", "body", "is empty")
        return kind.decode(fields)

    def _checked_queue(self, header: SendMessageRequestHeader, channel: Channel) -> int:
        """Returns the queue to write to; raises SendRefusedError."""
        topic = self.topics.get(header.topic)
        if topic is None or header.topic in NOT_FOR_SENDING:
            topic = self._make_topic(header, channel)
        queue_id = header.queue_id
        if queue_id >= topic.write_queue_nums and queue_id >= topic.read_queue_nums:
            raise SendRefusedError(
                self.traits.bad_parameter_code,
                f"request queueId[{queue_id}] is illegal, {topic.topic_name} Producer: {channel}",
            )
        if not channel.host_bytes:
            channel.host_bytes = host_bytes(*channel.peer_host)
        if queue_id < 0:
            return next(self._next_queue) % max(topic.write_queue_nums, 1)
        return queue_id

    def _make_topic(self, header: SendMessageRequestHeader, channel: Channel) -> TopicConfig:
        """Create the topic of a first send; raises SendRefusedError if that is not allowed."""
        problem = name_problem(header.topic)
        if problem is not None:
            raise SendRefusedError(self.traits.bad_parameter_code, problem)
        if header.topic in NOT_FOR_SENDING:
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden."
            )
        count = header.default_topic_queue_nums
        topic = self.topics.make_for_send(
            header.topic,
            header.default_topic or "",
            DEFAULT_QUEUE_COUNT if count is None else count,
            unit=header.unit_mode,
            channel=channel,
        )
        if topic is None:
            raise SendRefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        return topic

    def _put_one(self, asked: Asked, queue_id: int, outbox: Outbox) -> Parts | None:
        channel, command, header = asked.channel, asked.command, asked.header
        properties = self.maker.properties(header)
        tag = properties.get(TAGS, "")
        message = self.maker.of_request(channel, header, queue_id, command.body, properties)
        stored = (message, tag, self.appender.append(message, tag))
        if stored[2].queue_offset == FIRST_OFFSET:
            channel.gives_way = True
        return self.acknowledge_one(asked, queue_id, stored, properties, outbox)

    def acknowledge_one(
        self, asked: Asked, queue_id: int, stored: Stored, properties: Mapping[str, str], outbox: Outbox
    ) -> Parts | None:
        """Returns the answer to an appended message; None when it follows later."""
        result = stored[2]
        fields = REGION_FIELDS | {
            "queueId": str(queue_id),
            "msgId": result.msg_id,
            "queueOffset": str(result.queue_offset),
        }
        traits = self.traits
        is_told = traits.returns_transaction_id or (traits.returns_prepared_id and stored[0].topic == HALF_TOPIC)
        if is_told and UNIQUE_KEY in properties:
            fields["transactionId"] = properties[UNIQUE_KEY]
        handle = self.maker.recall_handle(stored[0], properties)
        if handle is not None:
            fields["recallHandle"] = handle
        return self._acknowledge(
            asked, fields, (stored,), result.log_end, outbox, topic=stored[0].topic, waits=_waits(properties)
        )

    def _acknowledge(
        self,
        asked: Asked,
        fields: dict[str, str],
        stored: Iterable[Stored],
        log_end: int,
        outbox: Outbox,
        *,
        topic: str,
        waits: bool,
    ) -> Parts | None:
        """Returns the answer to appended messages; None when it follows later.

        `topic` is where they are stored: not the header's topic for a message with too many retries.
        """
        # Without the body, which is a part of the connection's buffer.
        command = replace(asked.command, body=EMPTY)
        asked = replace(asked, command=command)

        def done(code: int, done_outbox: Outbox) -> None:
            self.events.acknowledged(asked, stored, done_outbox)
            if not command.is_one_way:
                done_outbox.write(asked.channel, answer(command, code, None, fields))

        keepers, unsaved = self.keepers, self.topics.unsaved
        # A delayed or prepared message has also created the header's topic.
        wants_topics = topic in unsaved or asked.header.topic in unsaved
        if waits and keepers.are_there:
            keepers.submit(log_end, done, self.appender.runtime.lock(), outbox, wants_topics=wants_topics)
            return None
        if wants_topics and keepers.when_told is not None:
            keepers.when_told(partial(done, ResponseCode.SUCCESS), outbox)
            return None
        self.events.acknowledged(asked, stored, outbox)
        return answer(command, ResponseCode.SUCCESS, None, fields)

    def _put_batch(self, asked: Asked, queue_id: int, outbox: Outbox) -> Parts | None:
        """Store all messages of a batch, or none; a long batch in turns."""
        properties = self._batch_properties(asked)
        # A message's own properties stay unchanged; 4.9 adds the request's after them, with CLUSTER.
        shared = properties | {CLUSTER: self.maker.cluster_name} if self.traits.merges_batch_properties else {}
        messages = self._batch_messages(asked, queue_id, shared)
        if len(asked.command.body) > LONG_SIZE:
            turns = self._put_in_turns(asked, queue_id, properties, messages)
            return self._long_batches.begin(asked.channel, asked.command, turns, outbox)
        batch = list(messages)
        results = self.appender.append_batch(batch)
        if results[0].queue_offset == FIRST_OFFSET:
            asked.channel.gives_way = True
        put = [(message, tag, result) for (message, tag), result in zip(batch, results, strict=True)]
        fields = self._batch_fields(properties, queue_id, results[0], (result.physical_offset for result in results))
        return self._acknowledge(
            asked, fields, put, results[-1].log_end, outbox, topic=batch[0][0].topic, waits=_waits(properties)
        )

    def _put_in_turns(
        self, asked: Asked, queue_id: int, properties: Mapping[str, str], messages: Iterator[tuple[MessageToStore, str]]
    ) -> Turns:
        """Store a long batch's messages; see `long_batches`."""
        try:
            batch = self.appender.store.prepare(asked.header.topic, queue_id)
            tags: list[str] = []
            for part in iter(lambda: list(islice(messages, TURN_COUNT)), []):
                if tags:
                    yield
                batch.add([message for message, _tag in part])
                tags += [tag for _message, tag in part]
            first = self.appender.append_prepared(batch, tags)
        except REFUSED as error:
            return partial(self._refused, asked, error)
        if first.queue_offset == FIRST_OFFSET:
            asked.channel.gives_way = True
        if len(tags) > TURN_COUNT:
            yield
        fields = self._batch_fields(properties, queue_id, first, batch.starts(first))
        put = ((batch.first, *each) for each in zip(tags, batch.results(first), strict=True))
        log_end = first.physical_offset + len(batch.content)
        return partial(
            self._acknowledge, asked, fields, put, log_end, topic=batch.first.topic, waits=_waits(properties)
        )

    def _batch_fields(
        self, properties: Mapping[str, str], queue_id: int, first: PutResult, starts: Iterable[int]
    ) -> dict[str, str]:
        host = self.host_digits.decode()
        fields = REGION_FIELDS | {
            "queueId": str(queue_id),
            "msgId": ",".join([f"{host}{start:016X}" for start in starts]),
            "queueOffset": str(first.queue_offset),
        }
        if self.traits.returns_transaction_id and UNIQUE_KEY in properties:
            fields["transactionId"] = properties[UNIQUE_KEY]
        return fields

    def _batch_properties(self, asked: Asked) -> dict[str, str]:
        """The properties of a batch as a whole; raises SendRefusedError for an illegal batch."""
        header = asked.header
        if header.topic.startswith(RETRY_PREFIX) and not self.traits.batches_retries:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}"
            )
        if not len(asked.command.body):
            raise no_message()
        properties = self.maker.without_offsets(header.properties)
        if header.sys_flag & TRANSACTION_MASK or self.maker.level(properties) > 0:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, "a batch as a whole can be neither part of a transaction nor delayed"
            )
        return properties

    def _batch_messages(
        self, asked: Asked, queue_id: int, shared: dict[str, str]
    ) -> Iterator[tuple[MessageToStore, str]]:
        """Iterate over a batch's messages with their tags; raises what `BatchLimits.read` raises."""
        shared_text = write_properties(shared, without=WAIT)
        for part in self._batches.read(asked.command.body):
            own = part.properties.encode("utf-8", "surrogatepass")
            if self.maker.inner_queues is not None and INNER_OFFSETS in part.properties:
                own = write_properties(self.maker.without_offsets(part.properties), self.traits.properties_form)
            mark = b"\x02" if shared_text and own and not own.endswith(b"\x02") else b""
            # The request's properties come last, and a reader uses the last of two equal names.
            tag = shared.get(TAGS) or read_properties(part.properties).get(TAGS, "")
            message = self.maker.message(
                asked.channel, asked.header, queue_id, part.body, own + mark + shared_text, tag, part.flag
            )
            yield message, tag


def _waits(properties: Mapping[str, str]) -> bool:
    """Whether the answer waits until the message is kept (`isWaitStoreMsgOK`)."""
    return properties.get(WAIT, "true").lower() == "true"
