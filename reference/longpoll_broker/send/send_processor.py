"""Serves sends (codes 10, 310 and 320), from received bytes to the log.

At the end of a pass of the I/O loop, `BrokerHandler.end_pass` makes the messages visible and wakes waiting pulls
(`hold.hold_service`). `send.message_builder` creates a message from a request.

A long batch is stored in steps (turns), so that short sends of other connections are served in between. Each step
reads, encodes or indexes `TURN_COUNT` messages. The records of a batch are appended in one piece. Only one long batch
is processed at a time: if several connections have sent long batches, each step continues the oldest batch. Therefore
the records of at most one long batch are in memory.

Sources: `SendMessageProcessor.java`, `AbstractSendMessageProcessor.java` 4.9 (also for the order of the checks);
`DefaultMessageStore.checkMessages` 4.9.7, `MessageExtEncoder.encode` 5.x.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, Self, TypeAlias

from attrs import define, field, frozen
from msgspec.structs import replace

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, failure, refuse, serves
from longpoll_broker.send.append import HALF_TOPIC, TRANSACTION_MASK, Appender, SendEvents, SendRequest, Stored
from longpoll_broker.send.durability import Durability
from longpoll_broker.send.message_builder import REGION_NAME, MessageBuilder, SendRefusedError, count, has_timer
from longpoll_broker.shared.topics import TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.fast import SendCommand, encode_send_head
from longpoll_protocol.frames import EMPTY, HEADER_SIZE_MAX, Buffer, Command, Serialisation
from longpoll_protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.message import BATCH_MESSAGE_SIZE_MIN, BatchMessage, read_batch
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
from longpoll_protocol.sizes import KIB
from longpoll_runtime import Lock
from longpoll_runtime.recoverable import FAULTS

RESPONSE: Final = CommandFlag.RESPONSE.value
ID_REST_SIZE: Final = 17
"""Number of characters of a message id after its host part, including the comma between ids."""
OTHER_FIELDS_SIZE: Final = 4_096
"""Bytes of an answer's header that are reserved for the fields other than the message ids."""


@frozen
class BatchLimits:
    """The limits of one batch and of its messages."""

    size_max: int
    """Maximum bytes of the body (`maxMessageSize`)."""
    count_max: int
    """Maximum messages, because their ids must fit in the answer's header. RocketMQ allows headers of 16 MiB."""
    size_is_an_error: bool

    @classmethod
    def of(cls, size_max: int, host_size: int, traits: Traits) -> Self:
        """Returns the limits of a broker whose address takes `host_size` characters of a message id."""
        count_max = (HEADER_SIZE_MAX - OTHER_FIELDS_SIZE) // (host_size + ID_REST_SIZE)
        return cls(size_max, count_max, traits.batch_size_is_an_error)

    def read(self, body: Buffer) -> Iterator[BatchMessage]:
        """Iterate over the messages of a batch.

        Raises HeaderError for a damaged or empty batch, and MessageRefusedError if a limit is exceeded. Do not store
        any message before the last message was read.
        """
        if len(body) > self.size_max:
            problem = f"the batch has {len(body)} bytes, at most {self.size_max} are allowed"
            raise (
                HeaderError("a batch", "body", f"is too large: {problem}")
                if self.size_is_an_error
                else (MessageRefusedError(problem))
            )
        if not len(body):
            raise no_message()
        return read_batch(body, self.count_max)


def no_message() -> HeaderError:
    """Returns the error for an empty batch. RocketMQ throws an exception, so the reply has no fields of a refusal."""
    return HeaderError("a batch", "body", "has no message")


TURN_COUNT: Final = 500
"""Maximum number of messages in one step of a long batch, which takes about 3 ms."""
TURN_SIZE: Final = 256 * KIB
"""Maximum number of bytes of properties in one step of a long batch, which takes about 5 ms."""
LONG_SIZE: Final = TURN_COUNT * BATCH_MESSAGE_SIZE_MIN
"""A batch of at most this many bytes certainly has no more than `TURN_COUNT` messages."""

Turns: TypeAlias = Generator[None, None, Callable[[Outbox], Parts | None]]
"""The work on one batch, which yields between its steps. The last step calls its result, which returns the answer, or
None if the answer follows."""


@define(eq=False)
class _Batch:
    """A batch that is in progress or waits. Only the connection refers to its batch, so both are dropped together."""

    channel: Channel
    command: Command
    turns: Turns
    is_over: bool = field(default=False, init=False)
    """Whether the batch is finished: its answer has been sent or will follow."""

    def turn(self, outbox: Outbox) -> None:
        parts: Parts | None
        try:
            next(self.turns)
        except StopIteration as ended:
            parts = ended.value(outbox)
        except FAULTS as error:
            parts = failure(self.channel, self.command, error)
        else:
            return
        self.is_over = True
        if parts is not None:
            refuse(self.channel, self.command, parts, outbox)


@define(slots=True, eq=False)
class LongBatches:
    """The long batches of one broker; callable from the thread of any I/O loop.

    Invariant: `_waiting` has every unfinished batch whose connection is open.
    """

    lock: Lock
    """Protects `_waiting`, and the work on its first batch."""
    _waiting: deque[weakref.ref[_Batch]] = field(factory=deque, init=False)

    def begin(self, channel: Channel, command: Command, turns: Turns, outbox: Outbox) -> Parts | None:
        """Do the first step of a batch; returns the answer if one step was enough, or None."""
        try:
            next(turns)
        except StopIteration as ended:
            parts: Parts | None = ended.value(outbox)
            return parts
        batch = _Batch(channel, command, turns)
        with self.lock:
            self._waiting.append(weakref.ref(batch))
        self._leave(batch)
        return None

    def _leave(self, batch: _Batch) -> None:
        channel = batch.channel
        channel.rest, channel.rest_size = partial(self._go_on, batch), len(batch.command.body)
        channel.gives_way = True

    def _go_on(self, own: _Batch, outbox: Outbox) -> None:
        """Do a step of the oldest batch, and schedule further steps until this connection's batch is finished."""
        with self.lock:
            first = None if own.is_over else self._first()
            if first is not None:
                first.turn(outbox)
        if not own.is_over:
            self._leave(own)

    def _first(self) -> _Batch | None:
        """Returns the oldest unfinished batch whose connection is open; the caller holds the lock."""
        while self._waiting:
            first = self._waiting[0]()
            if first is not None and not first.is_over:
                return first
            self._waiting.popleft()
        return None


REGION_FIELDS: Final = {TRACE: "true", REGION: REGION_NAME}
"""Fields of every reply to a send, including refusals."""
TIMER: Final = "TIMER_DEL"
"""The common prefix of all properties that set a delivery time."""
FIRST_OFFSET: Final = 0
"""The offset of a queue's first message, whose send also creates the queue's files and takes as long as 50 sends."""
REFUSED: Final = (SendRefusedError, MessageRefusedError, OSError)
"""The errors that mean that a message cannot be stored."""
DEFAULT_QUEUE_COUNT: Final = 4
"""Number of queues of a new topic if the client gives none (`defaultTopicQueueNums` of the clients)."""


@define(slots=True, eq=False)
class SendProcessor(Serving):
    """The processor of the send codes."""

    topics: Topics
    builder: MessageBuilder
    appender: Appender
    events: SendEvents
    durability: Durability
    """Decides when a send is answered; under `SYNC_FLUSH`, after the sync."""
    traits: Traits = STRICT_TRAITS
    _next_queue: itertools.count[int] = field(factory=itertools.count, init=False)
    _batches: BatchLimits = field(init=False)
    _long_batches: LongBatches = field(init=False)
    host_digits: bytes = field(init=False)
    """The first part of each message id: the broker's address in hexadecimal digits."""
    _answers_at_once: bool = field(init=False)
    """Whether a stored message is answered at once, with no other result than the message's position."""

    def __attrs_post_init__(self) -> None:
        self.host_digits = self.builder.store_host.hex().upper().encode()
        self._answers_at_once = not self.durability.syncs and not self.traits.returns_transaction_id
        self._long_batches = LongBatches(self.appender.runtime.lock())
        self._batches = BatchLimits.of(self.appender.store.message_size_max, len(self.host_digits), self.traits)

    @serves(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Serve a send request; returns None if its answer waits for the disk or a name server."""
        try:
            header = self._header_of(command)
        except SendRefusedError as error:
            return answer(command, error.code, str(error), REGION_FIELDS)
        channel.request_count += 1
        asked = SendRequest(channel, command, header, channel.request_count)
        self.events.received(asked)
        try:
            queue_id = self._checked_queue(header, channel)
            if header.batch:
                return self._put_batch(asked, queue_id, outbox)
            return self._put_one(asked, queue_id, outbox)
        except REFUSED as error:
            return self._refused(asked, error, outbox)

    def _refused(self, asked: SendRequest, error: Exception, outbox: Outbox) -> Parts:
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

    def _header_of(self, command: Command) -> SendMessageRequestHeader:
        """Decode the header; raises HeaderError, or SendRefusedError where 4.9 checks the topic before the header."""
        if type(command) is SendCommand:
            return command.header
        kind = SendMessageRequestHeader if command.code == RequestCode.SEND_MESSAGE else SendMessageRequestHeaderV2
        fields = command.ext_fields or {}
        topic_field = "topic" if kind is SendMessageRequestHeader else "b"
        if self.traits.reports_blank_topic:
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
        """Returns the queue to write to; raises SendRefusedError if a check fails."""
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
            queue_id = next(self._next_queue) % max(topic.write_queue_nums, 1)
        place = (header.topic, queue_id)
        if place not in self.builder.queues.known:
            count(self.builder.queues, [place], channel)
        return queue_id

    def _make_topic(self, header: SendMessageRequestHeader, channel: Channel) -> TopicConfig:
        """Create the topic of a first send; raises SendRefusedError if creating it is not allowed."""
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

    def _put_one(self, asked: SendRequest, queue_id: int, outbox: Outbox) -> Parts | None:
        channel, command, header = asked.channel, asked.command, asked.header
        properties = self.builder.properties(header)
        tag = properties.get(TAGS, "")
        message = self.builder.of_request(channel, header, queue_id, command.body, properties)
        stored = (message, tag, self.appender.append(message, tag))
        if stored[2].queue_offset == FIRST_OFFSET:
            channel.gives_way = True
        return self._acknowledge_one(asked, queue_id, stored, properties, outbox)

    def _acknowledge_one(
        self, asked: SendRequest, queue_id: int, stored: Stored, properties: Mapping[str, str], outbox: Outbox
    ) -> Parts | None:
        """Returns the answer to an appended message, or None if the answer follows later."""
        command, topic, result = asked.command, asked.header.topic, stored[2]
        is_plain = self._answers_at_once and command.serialisation is Serialisation.JSON and stored[0].topic == topic
        if is_plain and topic not in self.topics.unsaved:
            self.events.acknowledged(asked, (stored,), outbox)
            place = (result.physical_offset, result.queue_offset)
            return (encode_send_head(command.opaque, RESPONSE, queue_id, self.host_digits, *place),)
        fields = REGION_FIELDS | {
            "queueId": str(queue_id),
            "msgId": result.msg_id,
            "queueOffset": str(result.queue_offset),
        }
        traits = self.traits
        is_told = traits.returns_transaction_id or (traits.returns_prepared_id and stored[0].topic == HALF_TOPIC)
        if is_told and UNIQUE_KEY in properties:
            fields["transactionId"] = properties[UNIQUE_KEY]
        handle = self.builder.recall_handle(stored[0], properties)
        if handle is not None:
            fields["recallHandle"] = handle
        return self._acknowledge(
            asked, fields, (stored,), result.log_end, outbox, topic=stored[0].topic, waits=_waits(properties)
        )

    def _acknowledge(
        self,
        asked: SendRequest,
        fields: dict[str, str],
        stored: Iterable[Stored],
        log_end: int,
        outbox: Outbox,
        *,
        topic: str,
        waits: bool,
    ) -> Parts | None:
        """Returns the answer to appended messages, or None if the answer follows later.

        `topic` is the topic in which the messages are stored. If a message had too many retries, `topic` differs from
        the topic in the header.
        """
        # The waiting answer must not keep the body, because the body is a part of the connection's receive buffer.
        command = replace(asked.command, body=EMPTY)
        asked = replace(asked, command=command)

        def done(code: int, done_outbox: Outbox) -> None:
            self.events.acknowledged(asked, stored, done_outbox)
            if not command.is_one_way:
                done_outbox.write(asked.channel, answer(command, code, None, fields))

        unsaved = self.topics.unsaved
        # A delayed or prepared message is stored in another topic, but the topic in its header may be new too.
        wants_topics = topic in unsaved or asked.header.topic in unsaved
        end = log_end if waits and self.durability.syncs else None
        if wants_topics or end is not None:
            self.durability.submit(end, done, self.appender.runtime.lock(), outbox, wants_topics=wants_topics)
            return None
        self.events.acknowledged(asked, stored, outbox)
        return answer(command, ResponseCode.SUCCESS, None, fields)

    def _put_batch(self, asked: SendRequest, queue_id: int, outbox: Outbox) -> Parts | None:
        """Store all messages of a batch, or none. A long batch is stored in steps."""
        properties = self._batch_properties(asked)
        # 4.9 appends the request's properties and CLUSTER to the properties of each message; 5.x stores them as sent.
        shared = properties | {CLUSTER: self.builder.cluster_name} if self.traits.merges_batch_properties else {}
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
        self,
        asked: SendRequest,
        queue_id: int,
        properties: Mapping[str, str],
        messages: Iterator[tuple[MessageToStore, str]],
    ) -> Turns:
        try:
            batch = self.appender.store.prepare(asked.header.topic, queue_id)
            tags: list[str] = []
            for part in _parts(messages):
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

    def _batch_properties(self, asked: SendRequest) -> dict[str, str]:
        """Returns the properties of a batch as a whole; raises SendRefusedError for an illegal batch."""
        header = asked.header
        if header.topic.startswith(RETRY_PREFIX) and not self.traits.batches_retries:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}"
            )
        if not len(asked.command.body):
            raise no_message()
        properties = self.builder.without_offsets(header.properties)
        is_timed = self.traits.refuses_timed_batches and has_timer(properties)
        if is_timed or header.sys_flag & TRANSACTION_MASK or self.builder.level(properties) > 0:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, "a batch as a whole can be neither part of a transaction nor delayed"
            )
        return properties

    def _batch_messages(
        self, asked: SendRequest, queue_id: int, shared: dict[str, str]
    ) -> Iterator[tuple[MessageToStore, str]]:
        """Iterate over a batch's messages with their tags; raises what `BatchLimits.read` raises."""
        shared_text, refuses_timed = write_properties(shared, without=WAIT), self.traits.refuses_timed_batches
        for part in self._batches.read(asked.command.body):
            own = part.properties.encode("utf-8", "surrogatepass")
            if self.builder.inner_queues is not None and INNER_OFFSETS in part.properties:
                own = write_properties(self.builder.without_offsets(part.properties), self.traits.properties_form)
            mark = b"\x02" if shared_text and own and not own.endswith(b"\x02") else b""
            # The request's properties come last, and a reader uses the last of two properties with the same name.
            tag = shared.get(TAGS) or read_properties(part.properties).get(TAGS, "")
            # This substring check comes first because it is quick, and a batch may have thousands of messages.
            if TIMER in part.properties and refuses_timed and has_timer(read_properties(part.properties)):
                raise SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, "messages of a batch cannot wait for a time")
            message = self.builder.message(
                asked.channel, asked.header, queue_id, part.body, own + mark + shared_text, tag, part.flag
            )
            yield message, tag


def _parts(messages: Iterable[tuple[MessageToStore, str]]) -> Iterator[list[tuple[MessageToStore, str]]]:
    """Yields a batch's messages in parts of at most `TURN_COUNT` messages and `TURN_SIZE` bytes of properties."""
    part, size = [], 0
    for each in messages:
        part.append(each)
        size += len(each[0].properties)
        if len(part) == TURN_COUNT or size >= TURN_SIZE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _waits(properties: Mapping[str, str]) -> bool:
    """Whether the producer wants the answer only when the message is durable (`isWaitStoreMsgOK`)."""
    return properties.get(WAIT, "true").lower() == "true"
