"""The head of a stored message's answer in JSON, written without the objects between, as `pull_answer` does.

Byte for byte what `encode_reply_head` makes of the same fields. Leaves out refusals, batches' ids joined by commas,
fields that only some policies have, and the ROCKETMQ encoding: those take the common way.
"""

from __future__ import annotations

from typing import Final

from longpoll_protocol.codes import VERSION
from longpoll_protocol.frames.frame import HEAD

_HEADER: Final = (
    b'{"code":0,"language":"JAVA","version":' + str(VERSION).encode() + b',"opaque":%d,"flag":%d,'
    b'"serializeTypeCurrentRPC":"JSON","extFields":{"TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"queueId":"%d","msgId":"%b%016X","queueOffset":"%d"}}'
)
_pack: Final = HEAD.pack


def encode_send_head(  # noqa: PLR0917 - what differs between two answers
    opaque: int, flag: int, queue_id: int, host: bytes, physical_offset: int, queue_offset: int
) -> bytes:
    """The whole frame: JSON's mark 0, sizes and header; `host` is the message id's first part, in hexadecimal."""
    header = _HEADER % (opaque, flag, queue_id, host, physical_offset, queue_offset)
    header_size = len(header)
    return _pack(4 + header_size, header_size) + header
