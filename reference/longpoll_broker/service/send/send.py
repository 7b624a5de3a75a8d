"""Serves sends: 10, 310 and 320, one pass from received bytes to the log.

A delayed message goes to the schedule topic, a prepared one to the half topic, one tried too often to the dead letters.
Leaves out making messages visible (`service.pull.dispatch_service`).

Source: `SendMessageProcessor.java`, `AbstractSendMessageProcessor.java` 4.9, checks in their order.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import Final

from attrs import define, field
from msgspec.structs import replace

from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.pull import FAQ
from longpoll_broker.core.tables.topics import Groups, TopicConfig, Topics
from longpoll_broker.core.traits import STRICT_TRAITS, Traits
from longpoll_broker.service.io.channel import Channel, Outbox, Parts
from longpoll_broker.service.io.exchange import answer
from longpoll_broker.service.send.append import HALF_TOPIC, TRANSACTION_MASK, Appender, delayed, moved
from longpoll_broker.service.send.batches import BatchLimits, no_message
from longpoll_broker.service.send.group_commit import GroupCommit
from longpoll_broker.service.send.inner_queues import InnerQueueService, SendRefusedError
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import EMPTY, Buffer, Serialisation
from longpoll_protocol.frames.send_answer import encode_send_head
from longpoll_protocol.frames.send_request import SendCommand
from longpoll_protocol.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from longpoll_protocol.log_record import host_bytes
from longpoll_protocol.names import DEAD_PREFIX, NOT_FOR_SENDING, RETRY_PREFIX, name_problem
from longpoll_protocol.properties import (
    CLUSTER,
    DELAY,
    INNER_OFFSETS,
    INNER_QUEUES,
    PREPARED,
    REGION,
    TAGS,
    TRACE,
    TRANSACTION_ID,
    UNIQUE_KEY,
    WAIT,
    read_properties,
    write_properties,
)
from longpoll_protocol.tags import tags_code
from longpoll_recorder.recorder import HistoryRecorder
from longpoll_runtime import Runtime

REGION_FIELDS: Final = {TRACE: "true", REGION: "DefaultRegion"}
"""What every reply to a send carries, also a refusal."""
_JSON: Final = Serialisation.JSON
_RESPONSE: Final = CommandFlag.RESPONSE.value
_LEVEL: Final = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)
_LEADING_ELSEWHERE: Final = frozenset({DELAY, PREPARED, INNER_QUEUES})
"""Properties that may bring a message into other topics, or into further queues."""
_tags_code: Final = lru_cache(maxsize=256)(tags_code)
"""With the hashes of some tags kept, for producers use a few again and again."""
FIRST_OFFSET: Final = 0
"""That of a queue's first message, with which its files are made: as much work as fifty sends."""
DEFAULT_QUEUE_COUNT: Final = 4
"""What a client that names no count gets (`defaultTopicQueueNums` of the clients)."""


@define(slots=True, eq=False)
class SendService:
    """The processor of the send codes."""

    runtime: Runtime
    config: BrokerConfig
    topics: Topics
    groups: Groups
    appender: Appender
    store_host: bytes
    """The broker's own address, as records hold it."""
    recorder: HistoryRecorder | None
    commits: GroupCommit | None
    """`SYNC_FLUSH`: a send is answered when its bytes are durable; None answers before."""
    traits: Traits = STRICT_TRAITS
    inner_queues: InnerQueueService | None = None
    """Who says which further queues a message may name; None when multi-dispatch is off."""
    _next_queue: itertools.count[int] = field(factory=itertools.count, init=False)
    _next_key: itertools.count[int] = field(factory=itertools.count, init=False)
    _added_properties: bytes = field(init=False)
    """The stored properties of a message that came without any."""
    _batches: BatchLimits = field(init=False)
    host_digits: bytes = field(init=False)
    """How a message's id begins: the broker's address in hexadecimal."""

    def __attrs_post_init__(self) -> None:
        self.host_digits = self.store_host.hex().upper().encode()
        self._batches = BatchLimits.of(self.appender.store.message_size_max, len(self.host_digits), self.traits)
        added = {CLUSTER: self.config.cluster_name}
        self._added_properties = write_properties(added, self.traits.properties_form)

    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Serve a send request; None when its answer waits for the disk."""
        try:
            header = self._decode(command)
        except SendRefusedError as error:
            return answer(command, error.code, str(error), REGION_FIELDS)
        channel.request_count += 1
        number = channel.request_count
        if self.recorder is not None and not command.is_one_way:
            self._record_request(channel, command, header, number)
        try:
            queue_id = self._checked_queue(header, channel)
            if header.batch and command.code != RequestCode.SEND_MESSAGE:
                return self._put_batch(channel, command, header, queue_id, outbox)
            return self._put_one(channel, command, header, queue_id, number, outbox)
        except SendRefusedError as error:
            code, remark = error.code, str(error)
        except MessageRefusedError as error:
            code, remark = ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}"
        except OSError as error:
            code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}"
        if self.recorder is not None:
            self._record_refused(channel, command, header, number, code, outbox)
        return answer(command, code, remark, REGION_FIELDS)

    def _decode(self, command: Command) -> SendMessageRequestHeader:
        """The request's header; raises HeaderError, or SendRefusedError where 4.9 looks at the topic first."""
        if type(command) is SendCommand:
            return command.header
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
        """The queue to write to; raises SendRefusedError."""
        topic = self.topics.get(header.topic)
        if topic is None or header.topic in NOT_FOR_SENDING:
            topic = self._make_topic(header)
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

    def _make_topic(self, header: SendMessageRequestHeader) -> TopicConfig:
        """The topic of a first send; raises SendRefusedError when there must be none."""
        problem = name_problem(header.topic)
        if problem is not None:
            raise SendRefusedError(self.traits.bad_parameter_code, problem)
        if header.topic in NOT_FOR_SENDING:
            raise SendRefusedError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{header.topic}] is forbidden."
            )
        count = header.default_topic_queue_nums
        topic = self.topics.make_for_send(
            header.topic, header.default_topic or "", DEFAULT_QUEUE_COUNT if count is None else count
        )
        if topic is None:
            raise SendRefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        return topic

    def plain_message(self, channel: Channel, command: SendCommand) -> MessageToStore | None:
        """The message of a send that passes all checks and goes the shortest way; None for any other."""
        header = command.header
        topic, queue_id = self.topics.get(header.topic), header.queue_id
        if topic is None or header.batch or header.topic in NOT_FOR_SENDING or header.topic.startswith(RETRY_PREFIX):
            return None
        if not 0 <= queue_id < max(topic.write_queue_nums, topic.read_queue_nums) or not channel.host_bytes:
            return None
        if not header.properties and not self.traits.stores_region:
            return self._message(channel, header, queue_id, command.body, self._added_properties, "", header.flag)
        properties = self._properties(header)
        if not _LEADING_ELSEWHERE.isdisjoint(properties):
            return None
        stored = self._stored(properties)
        return self._message(channel, header, queue_id, command.body, stored, properties.get(TAGS, ""), header.flag)

    def _put_one(  # noqa: PLR0917 - the parts of one request
        self,
        channel: Channel,
        command: Command,
        header: SendMessageRequestHeader,
        queue_id: int,
        number: int,
        outbox: Outbox,
    ) -> Parts | None:
        traits = self.traits
        properties = self._properties(header)
        tag = properties.get(TAGS, "")
        stored = self._stored(properties)
        message = self._message(channel, header, queue_id, command.body, stored, tag, header.flag)
        if header.topic.startswith(RETRY_PREFIX):
            message = self._dead_if_tried_out(message, header, properties)
        if DELAY in properties or PREPARED in properties:
            message = self._elsewhere(message, properties)
        elif self.inner_queues is not None and INNER_QUEUES in properties:
            message = self.inner_queues.named(message, properties)
        result = self.appender.append(message, tag)
        if result.queue_offset == FIRST_OFFSET:
            channel.gives_way = True
        if self.commits is None and command.serialisation is _JSON and not traits.returns_transaction_id:
            if self.recorder is not None and not command.is_one_way:
                self._record_acknowledged(channel, message, result, tag, number, outbox)
            flag = command.flag | _RESPONSE
            place = (result.physical_offset, result.queue_offset)
            return (encode_send_head(command.opaque, flag, queue_id, self.host_digits, *place),)
        fields = REGION_FIELDS | {
            "queueId": str(queue_id),
            "msgId": result.msg_id,
            "queueOffset": str(result.queue_offset),
        }
        if traits.returns_transaction_id:
            fields["transactionId"] = properties[UNIQUE_KEY]
        waits = properties.get(WAIT, "true").lower() == "true"
        return self._acknowledge(channel, command, fields, [(message, tag, result)], number, outbox, waits=waits)

    def _acknowledge(  # noqa: PLR0917 - the parts of one answer
        self,
        channel: Channel,
        command: Command,
        fields: dict[str, str],
        stored: list[tuple[MessageToStore, str, PutResult]],
        number: int,
        outbox: Outbox,
        *,
        waits: bool,
    ) -> Parts | None:
        """The answer to messages that are in the log; None when it follows once they are durable."""
        # Without the body, which is a part of the connection's buffer.
        command = replace(command, body=EMPTY)

        def tell(told_outbox: Outbox) -> None:
            if self.recorder is not None and not command.is_one_way:
                for message, tag, result in stored:
                    self._record_acknowledged(channel, message, result, tag, number, told_outbox)

        def done(is_durable: bool, done_outbox: Outbox) -> None:
            code = ResponseCode.SUCCESS if is_durable else ResponseCode.FLUSH_DISK_TIMEOUT
            tell(done_outbox)
            if not command.is_one_way:
                done_outbox.write(channel, answer(command, code, None, fields))

        if self.commits is not None and waits:
            self.commits.submit(stored[-1][2].log_end, done, outbox)
            return None
        tell(outbox)
        return answer(command, ResponseCode.SUCCESS, None, fields)

    def _properties(self, header: SendMessageRequestHeader) -> dict[str, str]:
        """A message's properties with those that the broker adds, in the order in which Java puts them into its map."""
        properties = self._without_offsets(header.properties)
        if self.traits.stores_region:
            properties[REGION] = REGION_FIELDS[REGION]
            properties[TRACE] = REGION_FIELDS[TRACE]
            if UNIQUE_KEY not in properties:
                properties[UNIQUE_KEY] = self._unique_key()
        properties[CLUSTER] = self.config.cluster_name
        return properties

    def _stored(self, properties: dict[str, str]) -> bytes:
        """Properties as they are stored."""
        if len(properties) == 1:
            # What the broker adds, and nothing else.
            return self._added_properties
        # A message that only goes through another topic first keeps WAIT, as in Java.
        without = "" if self.traits.stores_wait else WAIT
        return write_properties(properties, self.traits.properties_form, without=without)

    def _without_offsets(self, text: str | None) -> dict[str, str]:
        """The properties of a request but for the offsets in further queues, which the store alone gives out.

        After a crash a record is listed where this property says.
        """
        properties = read_properties(text)
        if self.inner_queues is not None:
            properties.pop(INNER_OFFSETS, None)
        return properties

    def _unique_key(self) -> str:
        """A key that no other message of this store has: host, time and a count, in the 32 digits of Java's."""
        count = next(self._next_key)
        return f"{self.store_host.hex()}{self.runtime.unix_ms():012x}{count & 0xFFFF:04x}".upper()[-32:].rjust(32, "0")

    def _put_batch(
        self, channel: Channel, command: Command, header: SendMessageRequestHeader, queue_id: int, outbox: Outbox
    ) -> Parts | None:
        """Store a batch's messages one after the other, all or none."""
        if header.topic.startswith(RETRY_PREFIX) and not self.traits.batches_retries:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {header.topic}"
            )
        if not len(command.body):
            raise no_message()
        properties = self._without_offsets(header.properties)
        if header.sys_flag & TRANSACTION_MASK or self._level(properties) > 0:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, "a batch as a whole can be neither part of a transaction nor delayed"
            )
        parts = self._batches.read(command.body)
        messages = []
        # Each message's own properties stay as they came; the request's, and with them CLUSTER, follow in 4.9.
        shared: dict[str, str] = {}
        if self.traits.merges_batch_properties:
            shared = properties
            shared[CLUSTER] = self.config.cluster_name
        shared_text = write_properties(shared, without=WAIT)
        for part in parts:
            own = part.properties.encode("utf-8", "surrogatepass")
            if self.inner_queues is not None and INNER_OFFSETS in part.properties:
                own = write_properties(self._without_offsets(part.properties), self.traits.properties_form)
            mark = b"\x02" if shared_text and own and not own.endswith(b"\x02") else b""
            stored = own + mark + shared_text
            tag = read_properties(part.properties).get(TAGS) or shared.get(TAGS, "")
            messages.append((self._message(channel, header, queue_id, part.body, stored, tag, part.flag), tag))
        results = self.appender.append_batch(messages)
        if results[0].queue_offset == FIRST_OFFSET:
            channel.gives_way = True
        put = [(message, tag, result) for (message, tag), result in zip(messages, results, strict=True)]
        fields = REGION_FIELDS | {
            "queueId": str(queue_id),
            "msgId": ",".join(result.msg_id for _message, _tag, result in put),
            "queueOffset": str(put[0][2].queue_offset),
        }
        waits = shared.get(WAIT, "true").lower() == "true"
        return self._acknowledge(channel, command, fields, put, channel.request_count, outbox, waits=waits)

    def _dead_if_tried_out(
        self, message: MessageToStore, header: SendMessageRequestHeader, properties: dict[str, str]
    ) -> MessageToStore:
        """A message to a retry topic, or to its group's dead letters after too many tries (`handleRetryAndDLQ`)."""
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self.groups.find(name)
        if group is None:
            raise SendRefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name} {FAQ}"
            )
        retries_max = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        # More than, not as many as: the client has counted this time already.
        if message.reconsume_times <= retries_max:
            return message
        dead = self.topics.make_retry(DEAD_PREFIX + name, 1)
        if dead is None:
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, f"topic[{DEAD_PREFIX}{name[:128]}] not exist")
        dead_message = replace(message, topic=dead.topic_name, queue_id=0)
        if not self.traits.marks_dead_letters:
            return dead_message
        properties[DELAY] = "-1"
        return replace(dead_message, properties=write_properties(properties, self.traits.properties_form))

    def _elsewhere(self, message: MessageToStore, properties: dict[str, str]) -> MessageToStore:
        """A prepared message in the half topic, a delayed one in the schedule topic; any other as it is.

        Raises SendRefusedError for a level that is no number.
        """
        form = self.traits.properties_form
        if properties.get(PREPARED, "").lower() == "true":
            if self.traits.names_transactions and UNIQUE_KEY in properties:
                properties[TRANSACTION_ID] = properties[UNIQUE_KEY]
            half = moved(message, properties, HALF_TOPIC, 0, form)
            return replace(half, sys_flag=half.sys_flag & ~TRANSACTION_MASK)
        level = self._level(properties)
        return delayed(message, properties, level, form) if level > 0 else message

    @staticmethod
    def _level(properties: dict[str, str]) -> int:
        """The delay level that is asked for, 0 for none; raises SendRefusedError for one that is no number."""
        level = properties.get(DELAY, "0")
        if not _LEVEL.fullmatch(level):
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, f"the delay level {level[:40]!r} is not a whole number")
        return int(level)

    def _message(  # noqa: PLR0917 - the parts of one message
        self,
        channel: Channel,
        header: SendMessageRequestHeader,
        queue_id: int,
        body: Buffer,
        properties: bytes,
        tag: str,
        flag: int,
    ) -> MessageToStore:
        return MessageToStore(
            topic=header.topic,
            queue_id=queue_id,
            body=body if isinstance(body, (bytes, memoryview)) else bytes(body),
            properties=properties,
            tags_code=_tags_code(tag),
            born_ms=header.born_timestamp,
            born_host=channel.host_bytes,
            store_host=self.store_host,
            flag=flag,
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )

    def _record_request(
        self, channel: Channel, command: Command, header: SendMessageRequestHeader, number: int
    ) -> None:
        assert self.recorder is not None
        self.recorder.put(
            "request_received",
            channel.received_ns,
            topic=header.topic,
            queue=header.queue_id,
            request=f"{channel.number}-{number}",
            connection=str(channel.number),
            code=command.code,
        )

    def _record_refused(  # noqa: PLR0917 - the fields of one event
        self,
        channel: Channel,
        command: Command,
        header: SendMessageRequestHeader,
        number: int,
        code: int,
        outbox: Outbox,
    ) -> None:
        recorder = self.recorder
        assert recorder is not None
        if command.is_one_way:
            return
        after_ns = recorder.now_ns()
        outbox.after_answer(
            channel,
            lambda: recorder.put(
                "answer_sent",
                after_ns,
                topic=header.topic,
                queue=header.queue_id,
                request=f"{channel.number}-{number}",
                connection=str(channel.number),
                code=code,
                cause="error",
            ),
        )

    def _record_acknowledged(  # noqa: PLR0917 - the fields of one event
        self, channel: Channel, message: MessageToStore, result: PutResult, tag: str, number: int, outbox: Outbox
    ) -> None:
        recorder = self.recorder
        assert recorder is not None
        after_ns = recorder.now_ns()
        outbox.after_answer(
            channel,
            lambda: recorder.put(
                "message_acknowledged",
                after_ns,
                topic=message.topic,
                queue=message.queue_id,
                request=f"{channel.number}-{number}",
                connection=str(channel.number),
                queue_offset=result.queue_offset,
                tag=tag,
            ),
        )
