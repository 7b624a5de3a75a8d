"""Sends messages: picks a queue, asks its broker, tries another when the connection fails.

Leaves out batches, transactions and asynchronous sends.

Source: `DefaultMQProducerImpl.sendDefaultImpl`, `TopicPublishInfo.selectOneMessageQueue`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from attrs import frozen

from longpoll_broker.config import MIB
from longpoll_broker.errors import (
    ClientError,
    ConfigError,
    ConnectionLostError,
    HeaderError,
    LocalProtocolError,
    NoRouteError,
    RefusedError,
    UnreachableError,
)
from longpoll_broker.runtime import Runtime
from longpoll_broker.service.client.instance import DEFAULT_QUEUE_COUNT, ClientInstance
from longpoll_broker.service.client.remoting import CALL_TIMEOUT_S
from longpoll_broker.wire.bodies import MessageQueue
from longpoll_broker.wire.codes import SEND_SUCCESS_CODES, RequestCode
from longpoll_broker.wire.command import Command
from longpoll_broker.wire.headers import SendMessageRequestHeaderV2, SendMessageResponseHeader
from longpoll_broker.wire.headers.send import DEFAULT_TOPIC
from longpoll_broker.wire.message import (
    PROPERTIES_SIZE_MAX,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    encode_properties,
)

BODY_SIZE_MAX: Final = 4 * MIB
"""`maxMessageSize` of producers."""
ATTEMPT_COUNT: Final = 3
"""`retryTimesWhenSendFailed` 2, and the first try."""
TOPIC_SIZE_MAX: Final = 127
TOPIC_PATTERN: Final = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{TOPIC_SIZE_MAX}}}")
"""`TopicValidator.VALID_PATTERN_STR` and its longest name."""
RESERVED_PROPERTIES: Final = frozenset({PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_UNIQ_KEY, PROPERTY_WAIT})


@frozen
class SendResult:
    """Where a message went."""

    msg_id: str
    """The id that the producer gave it (`UNIQ_KEY`)."""
    broker_msg_id: str
    """The id that the broker gave it, which names its place in the log."""
    queue: MessageQueue
    queue_offset: int
    code: int
    """SUCCESS, or one of `SEND_SUCCESS_CODES` when it is stored but not yet flushed or copied."""


class Producer:
    """Sends messages to any topic; may be used from many threads.

    Invariant: `_sequence` counts the messages made, `_turn` the queues picked in turn; both change under `_lock`.
    """

    def __init__(self, runtime: Runtime, name_server: str, group: str = "longpoll-producer") -> None:
        self.group = group
        self._instance = ClientInstance(runtime, name_server)
        self._runtime = runtime
        self._lock = runtime.lock()
        self._sequence = 0
        self._turn = 0
        self._id_prefix = f"{runtime.unix_ms() & 0xFFFFFFFFFF:010X}{runtime.monotonic_ns() & 0xFFFFFFFFFFFF:012X}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._instance.close()

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> SendResult:
        """Send one message and wait until the broker has it, trying up to three queues when connections fail.

        After an error the message may be stored all the same, or even twice, as with every RocketMQ producer.
        Raises ConfigError for a message that no broker takes, else a ClientError.
        """
        message = self._message(topic, body, tags, keys, properties)
        failure: ClientError | None = None
        for _attempt in range(ATTEMPT_COUNT):
            queue, address = self._pick(topic, queue_id)
            try:
                answer = self._instance.client(address).call(
                    RequestCode.SEND_MESSAGE_V2, message.header(queue.queue_id), body, timeout_s=timeout_s
                )
            except (UnreachableError, ConnectionLostError) as error:
                self._instance.forget_route(topic)
                failure = error
                continue
            return _result(message, queue, answer)
        assert failure is not None
        raise failure

    def send_one_way(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Send one message and wait for nothing; the id that it was given.

        Whether it was stored is never known. Raises ConfigError, or a ClientError when it could not even be sent.
        """
        message = self._message(topic, body, tags, keys, properties)
        queue, address = self._pick(topic, None)
        self._instance.client(address).one_way(RequestCode.SEND_MESSAGE_V2, message.header(queue.queue_id), body)
        return message.msg_id

    def _pick(self, topic: str, queue_id: int | None) -> tuple[MessageQueue, str]:
        """The next queue in turn, or the one that is asked for, and its broker's address."""
        route = self._instance.publish_route(topic)
        if not route.writable:
            raise NoRouteError(f"topic {topic!r} cannot be written: its permission has no W")
        if queue_id is None:
            with self._lock:
                turn = self._turn
                self._turn += 1
            queue = route.writable[turn % len(route.writable)]
        else:
            wanted = [queue for queue in route.writable if queue.queue_id == queue_id]
            if not wanted:
                raise ConfigError(f"topic {topic!r} has no queue {queue_id}: it has {len(route.writable)}")
            queue = wanted[0]
        return queue, route.addresses[queue.broker_name]

    def _message(
        self,
        topic: str,
        body: bytes,
        tags: str | None,
        keys: str | None,
        properties: Mapping[str, str] | None,
    ) -> _Message:
        check_message(topic, body, properties or {})
        with self._lock:
            self._sequence += 1
            msg_id = f"{self._id_prefix}{self._sequence & 0xFFFFFFFF:08X}"
        own = {PROPERTY_TAGS: tags, PROPERTY_KEYS: keys, PROPERTY_UNIQ_KEY: msg_id, PROPERTY_WAIT: "true"}
        try:
            text = encode_properties(dict(properties or {}) | {name: value for name, value in own.items() if value})
        except LocalProtocolError as error:
            raise ConfigError(str(error)) from None
        if len(text.encode()) > PROPERTIES_SIZE_MAX:
            raise ConfigError(f"properties of {len(text.encode())} bytes are over the limit of {PROPERTIES_SIZE_MAX}")
        return _Message(self.group, topic, text, msg_id, self._runtime.unix_ms())


@frozen
class _Message:
    """What is the same for every attempt to send a message."""

    group: str
    topic: str
    properties: str
    msg_id: str
    born_ms: int

    def header(self, queue_id: int) -> SendMessageRequestHeaderV2:
        """The request for one queue."""
        return SendMessageRequestHeaderV2(
            producer_group=self.group,
            topic=self.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUE_COUNT,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=self.born_ms,
            flag=0,
            properties=self.properties,
            reconsume_times=0,
        )


def check_message(topic: str, body: bytes, properties: Mapping[str, str]) -> None:
    """Check what every broker checks, before anything is sent; raises ConfigError."""
    if not TOPIC_PATTERN.fullmatch(topic):
        raise ConfigError(
            f"topic {topic[:140]!r} is not allowed: 1 to {TOPIC_SIZE_MAX} letters, digits and _ - % | only"
        )
    if len(body) > BODY_SIZE_MAX:
        raise ConfigError(f"body of {len(body)} bytes is over the limit of {BODY_SIZE_MAX}")
    reserved = RESERVED_PROPERTIES & properties.keys()
    if reserved:
        raise ConfigError(f"property {min(reserved)} is set by the client itself: use the option for it")


def _result(message: _Message, queue: MessageQueue, answer: Command) -> SendResult:
    if answer.code not in SEND_SUCCESS_CODES:
        raise RefusedError(f"send to topic {message.topic!r}", answer.code, answer.remark)
    try:
        header = SendMessageResponseHeader.decode(answer.ext_fields)
    except HeaderError as error:
        raise ClientError(f"send to topic {message.topic!r}: the answer cannot be read: {error}") from None
    stored = MessageQueue(topic=message.topic, broker_name=queue.broker_name, queue_id=header.queue_id)
    return SendResult(message.msg_id, header.msg_id, stored, header.queue_offset, answer.code)
