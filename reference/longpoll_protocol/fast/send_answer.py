"""A fast encoder for the head of a stored message's JSON answer, like `pull_answer`.

Byte-identical to `encode_reply_head`. Refusals, batches, answers with additional fields, and the ROCKETMQ encoding take
the normal path.
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
    """Returns the frame: mark 0 for JSON, sizes and header. `host` is the message id's first part, in hexadecimal."""
    header = _HEADER % (opaque, flag, queue_id, host, physical_offset, queue_offset)
    header_size = len(header)
    return _pack(4 + header_size, header_size) + header
