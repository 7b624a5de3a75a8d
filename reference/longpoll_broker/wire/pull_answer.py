"""The head of a pull's answer in JSON, written without the objects between: the hottest of all replies.

Byte for byte what `encode_head` makes of the same command. Leaves out refusals, which carry text and no offsets,
answers with fields that only some policies have, and the ROCKETMQ encoding: those take the common way.
"""

from __future__ import annotations

from typing import Final

from longpoll_broker.errors import LocalProtocolError
from longpoll_broker.wire.codes import VERSION
from longpoll_broker.wire.frame import FRAME_SIZE_MAX, HEAD

_HEADER: Final = (
    '{"code":%d,"language":"JAVA","version":' + str(VERSION) + ',"opaque":%d,"flag":%d,'
    '"serializeTypeCurrentRPC":"JSON","remark":"%s","extFields":{"suggestWhichBrokerId":"0",'
    '"nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"}}'
)
_pack: Final = HEAD.pack


def encode_pull_head(  # noqa: PLR0917 - positional, for it is called once an answer
    code: int, opaque: int, flag: int, status: str, offset_next: int, offset_min: int, offset_max: int, body_size: int
) -> bytes:
    """Everything of the frame before a body of `body_size` bytes, which is JSON's mark 0, sizes and header.

    `status` is a name of `GetMessageStatus`: letters and underscores, nothing that JSON would escape. Raises
    LocalProtocolError when the peer would refuse the frame for its size.
    """
    header = (_HEADER % (code, opaque, flag, status, offset_next, offset_min, offset_max)).encode()
    header_size = len(header)
    length = 4 + header_size + body_size
    if length > FRAME_SIZE_MAX:
        raise LocalProtocolError(f"frame of {length} bytes is over the limit of {FRAME_SIZE_MAX}: send less at once")
    return _pack(length, header_size) + header
