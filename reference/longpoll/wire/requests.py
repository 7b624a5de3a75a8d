"""The fields of a send and of a pull, and the messages of a pull's answer."""

from __future__ import annotations

import struct
from typing import Final

from longpoll_protocol.frames.command import Command
from longpoll_protocol.log_record import Record, decode

_PHYSICAL_OFFSET: Final = struct.Struct(">q")


def send_fields(topic: str, queue_id: int = 0, properties: str = "") -> dict[str, str]:
    """The fields of a 310 request."""
    values = ("PG", topic, "TBW102", "4", str(queue_id), "0", "1700000000000", "0", properties, "0", "false")
    return dict(zip("abcdefghijk", values, strict=True))


def pull_fields(
    topic: str,
    offset: int,
    *,
    queue_id: int = 0,
    timeout_ms: int = 0,
    subscription: str = "*",
    group: str = "G",
) -> dict[str, str]:
    """The fields of an 11 request that contains its subscription; it may be held if it has a timeout."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6" if timeout_ms else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(timeout_ms),
        "subVersion": "0",
        "subscription": subscription,
        "expressionType": "TAG",
    }


def records_of(reply: Command) -> list[Record]:
    """The messages of a pull's answer, decoded and checked."""
    body = memoryview(reply.body)
    records = []
    start = 0
    while start < len(body):
        (physical_offset,) = _PHYSICAL_OFFSET.unpack_from(body, start + 28)
        record = decode(body, start, len(body), physical_offset)
        assert isinstance(record, Record), record
        records.append(record)
        start += record.size
    return records
