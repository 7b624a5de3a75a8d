"""Serves sends: 10, 310 and 320, one pass from received bytes to the log.

Delayed and prepared messages are refused: without the schedule service and the transaction service they would be
delivered at the wrong time. Leaves out making messages visible (`service.dispatch_service`).

Source: `SendMessageProcessor.java`, `AbstractSendMessageProcessor.java` 4.9, checks in their order.
"""

from __future__ import annotations

import itertools
import logging
import re
from typing import Final

from attrs import define, field

from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.filter import java_hash
from longpoll_broker.core.topics import NOT_FOR_SENDING, TopicConfig, Topics, name_problem
from longpoll_broker.errors import BrokerError, HeaderError, MessageRefusedError
from longpoll_broker.record import HistoryRecorder
from longpoll_broker.runtime import Runtime
from longpoll_broker.service.channel import Channel, Outbox, Parts
from longpoll_broker.service.exchange import answer
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_broker.store.record import host_bytes
from longpoll_broker.wire.codes import RequestCode, ResponseCode
from longpoll_broker.wire.command import Command
from longpoll_broker.wire.frame import Buffer
from longpoll_broker.wire.headers import SendMessageRequestHeader, SendMessageRequestHeaderV2
from longpoll_broker.wire.message import PROPERTY_DELAY, PROPERTY_TAGS, PROPERTY_WAIT, decode_batch, decode_properties

log = logging.getLogger(__name__)

TRANSACTION_MASK: Final = 0xC
PROPERTY_PREPARED: Final = "TRAN_MSG"
REGION: Final = {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
"""What every reply to a send carries, also a refusal."""
_LEVEL: Final = re.compile(r"[+-]?[0-9]{1,9}")
DEFAULT_QUEUE_COUNT: Final = 4
"""What a client that names no count gets (`defaultTopicQueueNums` of the clients)."""


class SendRefusedError(BrokerError):
    """A check before the store refuses a send; `code` is the answer's."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code


@define(slots=True, eq=False)
class SendService:
    """The processor of the send codes."""

    runtime: Runtime
    config: BrokerConfig
    topics: Topics
    store: MessageStore
    store_host: bytes
    """The broker's own address, as records hold it."""
    recorder: HistoryRecorder | None
    flush_sync: bool
    """`SYNC_FLUSH`: a send is answered when its bytes are durable."""
    _next_queue: itertools.count[int] = field(factory=itertools.count, init=False)

    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts:
        """Serve a send request."""
        kind = SendMessageRequestHeader if command.code == RequestCode.SEND_MESSAGE else SendMessageRequestHeaderV2
        header = kind.decode(command.ext_fields)
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
        return answer(command, code, remark, REGION)

    def _checked_queue(self, header: SendMessageRequestHeader, channel: Channel) -> int:
        """The queue to write to; raises SendRefusedError."""
        topic = self.topics.get(header.topic)
        if topic is None or header.topic in NOT_FOR_SENDING:
            topic = self._make_topic(header)
        if header.queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise SendRefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, {topic.topic_name} Producer: {channel}",
            )
        if header.sys_flag & TRANSACTION_MASK:
            raise self._no_transactions()
        if not channel.host_bytes:
            channel.host_bytes = host_bytes(*channel.peer_host)
        if header.queue_id < 0:
            return next(self._next_queue) % max(topic.write_queue_nums, 1)
        return header.queue_id

    def _make_topic(self, header: SendMessageRequestHeader) -> TopicConfig:
        """The topic of a first send; raises SendRefusedError when there must be none."""
        problem = name_problem(header.topic)
        if problem is not None:
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, problem)
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

    def _no_transactions(self) -> SendRefusedError:
        return SendRefusedError(
            ResponseCode.NO_PERMISSION,
            f"the broker[{self.config.broker_name}] sending transaction message is forbidden",
        )

    def _put_one(  # noqa: PLR0917 - the parts of one request
        self,
        channel: Channel,
        command: Command,
        header: SendMessageRequestHeader,
        queue_id: int,
        number: int,
        outbox: Outbox,
    ) -> Parts:
        properties, tag = self._properties(header.properties)
        message = self._message(channel, header, queue_id, command.body, properties, tag, header.flag)
        result = self._append(message, tag)
        code = self._flush()
        if self.recorder is not None and not command.is_one_way:
            self._record_acknowledged(channel, message, result, tag, number, outbox)
        return answer(
            command,
            code,
            None,
            REGION
            | {
                "queueId": str(queue_id),
                "msgId": result.msg_id,
                "queueOffset": str(result.queue_offset),
            },
        )

    def _put_batch(
        self, channel: Channel, command: Command, header: SendMessageRequestHeader, queue_id: int, outbox: Outbox
    ) -> Parts:
        """Store a batch's messages one after the other; all are checked before the first is stored."""
        parts = decode_batch(command.body)
        if not parts:
            # Java fails on it, and so its reply lacks the fields of a refusal.
            raise HeaderError("a batch", "body", "has no message")
        messages = []
        shared = header.properties or ""
        for part in parts:
            text = f"{part.properties}\x02{shared}" if shared and part.properties else part.properties or shared
            properties, tag = self._properties(text, batch=True)
            messages.append((self._message(channel, header, queue_id, part.body, properties, tag, part.flag), tag))
        results = [self._append(message, tag) for message, tag in messages]
        code = self._flush()
        if self.recorder is not None and not command.is_one_way:
            for (message, tag), result in zip(messages, results, strict=True):
                self._record_acknowledged(channel, message, result, tag, channel.request_count, outbox)
        return answer(
            command,
            code,
            None,
            REGION
            | {
                "queueId": str(queue_id),
                "msgId": ",".join(result.msg_id for result in results),
                "queueOffset": str(results[0].queue_offset),
            },
        )

    def _properties(self, text: str | None, *, batch: bool = False) -> tuple[bytes, str]:
        """The properties as they are stored, and the tag: WAIT and empty values go, CLUSTER comes.

        Raises SendRefusedError for a delayed or prepared message; inside a batch RocketMQ heeds neither.
        """
        cluster = f"CLUSTER\x01{self.config.cluster_name}"
        if not text:
            return cluster.encode(), ""
        properties = decode_properties(text)
        if not batch and (PROPERTY_DELAY in properties or PROPERTY_PREPARED in properties):
            self._check_kind(properties)
        properties.pop(PROPERTY_WAIT, None)
        properties["CLUSTER"] = self.config.cluster_name
        stored = "\x02".join(f"{name}\x01{value}" for name, value in properties.items() if value)
        return stored.encode("utf-8", "surrogatepass"), properties.get(PROPERTY_TAGS, "")

    def _check_kind(self, properties: dict[str, str]) -> None:
        if properties.get(PROPERTY_PREPARED, "").lower() == "true":
            raise self._no_transactions()
        level = properties.get(PROPERTY_DELAY, "0")
        if not _LEVEL.fullmatch(level):
            raise SendRefusedError(ResponseCode.SYSTEM_ERROR, f"the delay level {level[:40]!r} is not a whole number")
        if int(level) > 0:
            raise SendRefusedError(
                ResponseCode.MESSAGE_ILLEGAL, "delayed messages are not served: send it without the property DELAY"
            )

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
            tags_code=java_hash(tag) if tag else 0,
            born_ms=header.born_timestamp,
            born_host=channel.host_bytes,
            store_host=self.store_host,
            flag=flag,
            sys_flag=header.sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )

    def _append(self, message: MessageToStore, tag: str) -> PutResult:
        recorder = self.recorder
        self.runtime.step("append")
        if recorder is None:
            return self.store.put(message)
        after_ns = recorder.now_ns()
        result = self.store.put(message)
        recorder.put(
            "append",
            after_ns,
            topic=message.topic,
            queue=message.queue_id,
            queue_offset=result.queue_offset,
            tag=tag,
        )
        return result

    def _flush(self) -> int:
        """The code of the answer: with `flush_sync`, 10 when the disk did not take what is in the log."""
        if not self.flush_sync:
            return ResponseCode.SUCCESS
        try:
            self.store.flush()
        except OSError:
            log.exception("a message could not be made durable")
            return ResponseCode.FLUSH_DISK_TIMEOUT
        return ResponseCode.SUCCESS

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
        outbox.after_flush(
            lambda: recorder.put(
                "answer_sent",
                after_ns,
                topic=header.topic,
                queue=header.queue_id,
                request=f"{channel.number}-{number}",
                connection=str(channel.number),
                code=code,
                cause="error",
            )
        )

    def _record_acknowledged(  # noqa: PLR0917 - the fields of one event
        self, channel: Channel, message: MessageToStore, result: PutResult, tag: str, number: int, outbox: Outbox
    ) -> None:
        recorder = self.recorder
        assert recorder is not None
        after_ns = recorder.now_ns()
        outbox.after_flush(
            lambda: recorder.put(
                "message_acknowledged",
                after_ns,
                topic=message.topic,
                queue=message.queue_id,
                request=f"{channel.number}-{number}",
                connection=str(channel.number),
                queue_offset=result.queue_offset,
                tag=tag,
            )
        )
