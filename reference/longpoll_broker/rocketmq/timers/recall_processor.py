"""Serves code 370: recalls a timed message before its delivery, if enabled.

The recall is a message too: it waits for the same second, and then neither is delivered. Waiting: see
`rocketmq.timers.timer_service`.

Source: `RecallMessageProcessor.java` 5.5; answers as seen on 5.5.0, where it is off without `recallMessageEnable`.
"""

from __future__ import annotations

import re
from typing import Final

from attrs import define

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.send.append import Appender
from longpoll_broker.send.message_builder import DELAY_MS_MAX, SendRefusedError, timer_message
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.topics import Topics
from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import RecallMessageRequestHeader
from longpoll_protocol.message import RecallHandle, read_handle
from longpoll_protocol.names import PERM_WRITE
from longpoll_protocol.properties import (
    CLUSTER,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_RECALLED_KEY,
    UNIQUE_KEY,
    PropertiesForm,
    java_hash,
)
from longpoll_runtime import Runtime

RECALL_TAG: Final = "_RECALL_TAG_"
_FIELDS: Final = {"MSG_REGION": "DefaultRegion"}
_NOT_HERE: Final = "recall failed, broker service not available"
_NO_HANDLE: Final = (ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
_MARKS: Final = re.compile(r"[\0\1\2]")
"""Characters that a key must not contain: they would add properties to the recall message."""
_TIME: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


@define(slots=True, eq=False)
class RecallProcessor(Serving):
    """The processor."""

    runtime: Runtime
    config: BrokerConfig
    standing: BrokerRole
    topics: Topics
    appender: Appender
    store_host: bytes
    form: PropertiesForm

    @serves(RequestCode.RECALL_MESSAGE)
    def recall(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """370: recall a message by its handle; success even if it was delivered or recalled already."""
        header = RecallMessageRequestHeader.decode(command.ext_fields)
        handle = read_handle(header.recall_handle)
        if handle is not None and (not handle.key or _MARKS.search(handle.key)):
            handle = None
        refusal = self._off() or self._refusal(header.topic, handle)
        if refusal is not None or handle is None:
            return answer(command, *(refusal or _NO_HANDLE), _FIELDS)
        try:
            self.appender.append(self._message(channel, handle), RECALL_TAG)
        except (SendRefusedError, MessageRefusedError, OSError) as error:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"recall failed, execute error: {error}", _FIELDS)
        # Java's reply carries this text even on success.
        return answer(command, ResponseCode.SUCCESS, "not set any response code", {"msgId": handle.key, **_FIELDS})

    def _off(self) -> tuple[int, str] | None:
        if not self.config.recall_message:
            return ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden"
        if self.standing.is_slave:
            return ResponseCode.SLAVE_NOT_AVAILABLE, _NOT_HERE
        if not self.config.permission & PERM_WRITE:
            return ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_HERE
        return None

    def _refusal(self, topic: str, handle: RecallHandle | None) -> tuple[int, str] | None:
        """Returns why a recall is refused; None if it is allowed or the handle is invalid."""
        if self.topics.get(topic) is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic[:127]}] not exist"
        if handle is None:
            return None
        if handle.topic != topic:
            return ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match"
        if handle.broker_name != self.config.broker_name:
            return ResponseCode.ILLEGAL_OPERATION, _NOT_HERE
        left_ms = int(handle.time) - self.runtime.unix_ms() if _TIME.fullmatch(handle.time) else 0
        if not 0 < left_ms < DELAY_MS_MAX:
            return ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid"
        return None

    def _message(self, channel: Channel, handle: RecallHandle) -> MessageToStore:
        now_ms = self.runtime.unix_ms()
        properties = {
            TIMER_RECALLED_KEY: handle.key,
            UNIQUE_KEY: handle.key,
            TIMER_DELIVER_MS: handle.time,
            TAGS: RECALL_TAG,
            CLUSTER: self.config.cluster_name,
        }
        message = MessageToStore(
            topic=handle.topic,
            queue_id=0,
            body=b"0",
            properties=b"",
            tags_code=java_hash(RECALL_TAG),
            born_ms=now_ms,
            born_host=channel.host_bytes or self.store_host,
            store_host=self.store_host,
        )
        return timer_message(message, properties, self.form, now_ms)
