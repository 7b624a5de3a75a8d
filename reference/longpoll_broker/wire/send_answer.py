"""The head of a stored message's answer in JSON, written without the objects between, as `pull_answer` does.

Byte for byte what `encode_reply_head` makes of the same fields. Leaves out refusals, batches' ids joined by commas,
fields that only some policies have, and the ROCKETMQ encoding: those take the common way.
"""

from __future__ import annotations

from typing import Final

from longpoll_broker.wire.codes import VERSION
from longpoll_broker.wire.frame import HEAD

_HEADER: Final = (
    '{"code":0,"language":"JAVA","version":' + str(VERSION) + ',"opaque":%d,"flag":%d,'
    '"serializeTypeCurrentRPC":"JSON","extFields":{"TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    '"queueId":"%d","msgId":"%s","queueOffset":"%d"}}'
)
_pack: Final = HEAD.pack


def encode_send_head(opaque: int, flag: int, queue_id: int, msg_id: str, queue_offset: int) -> bytes:
    """The whole frame: JSON's mark 0, sizes and header; `msg_id` is hexadecimal, nothing that JSON would escape."""
    header = (_HEADER % (opaque, flag, queue_id, msg_id, queue_offset)).encode()
    header_size = len(header)
    return _pack(4 + header_size, header_size) + header
