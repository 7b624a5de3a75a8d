"""The head of a pull's answer in JSON, written without the objects between: the hottest of all replies.

Byte for byte what `encode_head` makes of the same command. Leaves out refusals, which carry text and no offsets,
answers with fields that only some policies have, and the ROCKETMQ encoding: those take the common way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import frozen

from longpoll_protocol.codes import VERSION
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.frames.frame import FRAME_SIZE_MAX, HEAD

_OPAQUE: Final = '"opaque":'
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


@frozen
class PullHeads:
    """Heads that differ in their opaque only, as of many pulls that one message wakes."""

    _before: bytes
    """The header up to the opaque."""
    _after: bytes
    _size: int
    """Of both."""
    _body_size: int

    def head(self, opaque: int) -> bytes:
        """The head of one of them, a body of their common size follows."""
        digits = b"%d" % opaque
        header_size = self._size + len(digits)
        return b"".join((_pack(4 + header_size + self._body_size, header_size), self._before, digits, self._after))

    def frames(self, opaques: Iterable[int], body: bytes) -> bytes:
        """Each one's head and body, one after the other."""
        after = self._after + body
        begins: dict[int, bytes] = {}
        parts: list[bytes] = []
        for opaque in opaques:
            digits = b"%d" % opaque
            begin = begins.get(len(digits))
            if begin is None:
                header_size = self._size + len(digits)
                begin = _pack(4 + header_size + self._body_size, header_size) + self._before
                begins[len(digits)] = begin
            parts += (begin, digits, after)
        return b"".join(parts)


def pull_heads(  # noqa: PLR0917 - as `encode_pull_head`
    code: int, flag: int, status: str, offset_next: int, offset_min: int, offset_max: int, body_size: int
) -> PullHeads:
    """The heads that `encode_pull_head` makes of these and any opaque.

    Raises LocalProtocolError when the longest would be refused by the peer.
    """
    longest = encode_pull_head(code, -(2**31), flag, status, offset_next, offset_min, offset_max, body_size)
    mark = f"{_OPAQUE}{-(2**31)}".encode()
    before, found, after = longest[HEAD.size :].partition(mark)
    assert found
    before += _OPAQUE.encode()
    return PullHeads(before, after, len(before) + len(after), body_size)
