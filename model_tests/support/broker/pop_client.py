"""A client of RocketMQ 5 that pops over one connection and has the calls of `PopConsumer`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

from attrs import define, field, frozen

from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import SendMessageRequestHeaderV2
from longpoll_protocol.log_record import HEAD, Record, decode, property_of
from longpoll_protocol.pop_headers import (
    POP_HANDLE,
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    NotificationRequestHeader,
    PopCode,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    read_handle,
)
from longpoll_runtime.real import RealRuntime

RUNTIME: Final = RealRuntime()
PATIENCE_S: Final = 60.0
_PHYSICAL_OFFSET_FIELD: Final = 6


@frozen
class Got:
    body: bytes
    handle: str
    topic: str
    queue: int
    offset: int
    is_retry: bool


def messages_of(answer: Command, broker: str = "b") -> list[Got]:
    if answer.code != 0:
        return []
    header, body, start, found = PopMessageResponseHeader.decode(answer.ext_fields), memoryview(answer.body), 0, []
    starts = dict(part.rsplit(" ", 1) for part in (header.start_offset_info or "").split(";") if part)
    while start < len(body):
        record = decode(body, start, len(body), HEAD.unpack_from(body, start)[_PHYSICAL_OFFSET_FIELD])
        assert isinstance(record, Record), record
        own = " ".join(
            map(str, (starts.get(f"0 {record.queue_id}", 0), header.pop_time, header.invisible_time, header.revive_qid))
        )
        plain = f"{own} 0 {broker} {record.queue_id} {record.queue_offset}"
        handle = property_of(record.properties, POP_HANDLE) or plain
        place = record.topic, record.queue_id, record.queue_offset
        found.append(Got(bytes(record.body), handle, *place, is_retry=read_handle(handle).is_retry))
        start += record.size
    return found


@define
class PopClient:
    """A member of the group, or a producer. Every call waits for its answer."""

    group: str
    topic: str
    broker: str
    _connection: RemotingClient
    codes: list[int] = field(factory=list)
    """The codes of the answers to the client's pops."""

    @classmethod
    @contextmanager
    def of(cls, group: str, topic: str, address: tuple[str, int], broker: str = "java-broker") -> Iterator[Self]:
        """Yields a client that stays connected until the end of the block."""
        connection = RemotingClient(RUNTIME, *address)
        try:
            yield cls(group, topic, broker, connection)
        finally:
            connection.close()

    def send(self, key: str, body: bytes = b"x", *, queue: int = 0) -> int:
        header = SendMessageRequestHeaderV2(
            producer_group=self.group,
            topic=self.topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue,
            sys_flag=0,
            born_timestamp=RUNTIME.unix_ms(),
            flag=0,
            properties=f"UNIQ_KEY\x01{key}\x02TAGS\x01red\x02",
        )
        answer = self._call(RequestCode.SEND_MESSAGE_V2, header, body)
        assert answer.code == 0, answer.remark
        return int((answer.ext_fields or {})["queueOffset"])

    def pop(self, poll_ms: int, *, invisible_ms: int = 60_000, queue: int = -1, count: int = 32) -> list[Got]:
        header = PopMessageRequestHeader(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=queue,
            max_msg_nums=count,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=RUNTIME.unix_ms(),
            exp_type="TAG",
            exp="*",
            order=False,
        )
        answer = self._call(PopCode.POP_MESSAGE, header)
        self.codes.append(answer.code)
        return messages_of(answer, self.broker)

    def notified(self, poll_ms: int, queue: int = -1) -> bool:
        """Send a notification request; returns whether its answer reports a message."""
        header = NotificationRequestHeader(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=queue,
            poll_time=poll_ms,
            born_time=RUNTIME.unix_ms(),
        )
        return (self._call(PopCode.NOTIFICATION, header).ext_fields or {}).get("hasMsg") == "true"

    def acknowledge(self, message: Got) -> int:
        return self._call(PopCode.ACK_MESSAGE, AckMessageRequestHeader(**self._about(message))).code

    def change(self, message: Got, invisible_ms: int) -> int:
        header = ChangeInvisibleTimeRequestHeader(**self._about(message), invisible_time=invisible_ms)
        return self._call(PopCode.CHANGE_MESSAGE_INVISIBLETIME, header).code

    def _about(self, message: Got) -> dict[str, Any]:
        topic = f"%RETRY%{self.group}_{self.topic}" if message.is_retry else self.topic
        place = {"topic": topic, "queue_id": message.queue, "offset": message.offset}
        return place | {"consumer_group": self.group, "extra_info": message.handle}

    def _call(self, code: int, header: Any, body: bytes = b"") -> Command:
        return self._connection.call(code, header, body, timeout_s=PATIENCE_S)
