"""Tables by queue in fastjson's form, with objects as keys: `{{"brokerName":"b","queueId":0,"topic":"T"}:5}`.

This is not valid JSON, so every RocketMQ client has special code to read it.

Source: the bodies that have a `Map<MessageQueue, ...>`: `TopicStatsTable.java`, `ConsumeStats.java`,
`ResetOffsetBody.java`, `ConsumerRunningInfo.java`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from longpoll_protocol.bodies import BODY_SIZE_MAX, ITEM_COUNT_MAX, MessageQueue, load_json
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.frame import Buffer

# A string, to be skipped, or an object without nested objects that is a key.
_STRING_OR_KEY: Final = re.compile(
    rb'("(?>[^"\\]+|\\.)*+")|(\{(?>[^{}"]+|"(?>[^"\\]+|\\.)*+")*+\})(?=\s*+:)', re.DOTALL
)


def encode_by_queue(table: Mapping[MessageQueue, Any]) -> msgspec.Raw:
    """Encode a table in fastjson's form, as part of a body."""
    rows = (msgspec.json.encode(queue) + b":" + msgspec.json.encode(row) for queue, row in table.items())
    return msgspec.Raw(b"{" + b",".join(rows) + b"}")


def decode_by_queue(body: Buffer, name: str) -> dict[MessageQueue, Any]:
    """Decode the table of this name in a body; also accepts C++ clients' list of queues with `offset`.

    Raises HeaderError.
    """
    if len(body) > BODY_SIZE_MAX:
        raise HeaderError("QueueTable", name, f"has {len(body)} bytes, over the limit of {BODY_SIZE_MAX}")
    try:
        content = msgspec.convert(load_json(_STRING_OR_KEY.sub(_quoted, bytes(body))), dict[str, Any])
        table = content.get(name) or {}
        if isinstance(table, list):
            rows = [(msgspec.convert(row, MessageQueue, strict=False), row.get("offset")) for row in table]
        else:
            keys = msgspec.convert(table, dict[str, Any])
            rows = [(msgspec.json.decode(key, type=MessageQueue, strict=False), row) for key, row in keys.items()]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise HeaderError("QueueTable", name, f"cannot be read: {error}") from None
    if len(rows) > ITEM_COUNT_MAX:
        raise HeaderError("QueueTable", name, f"has {len(rows)} queues, over the limit of {ITEM_COUNT_MAX}")
    return dict(rows)


def _quoted(found: re.Match[bytes]) -> bytes:
    if found[1] is not None:
        return found[1]
    return msgspec.json.encode(found[2].decode())
