"""A fast encoder for the head of a pull's JSON answer, the most frequent reply.

Byte-identical to `encode_head`. Refusals, answers with additional fields, and the ROCKETMQ encoding take the normal
path.
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
    """Returns the frame up to a body of `body_size` bytes: mark 0 for JSON, sizes and header.

    `status` is a name of `GetMessageStatus`, without characters that JSON escapes. Raises LocalProtocolError when the
    frame is too large for the peer.
    """
    header = (_HEADER % (code, opaque, flag, status, offset_next, offset_min, offset_max)).encode()
    header_size = len(header)
    length = 4 + header_size + body_size
    if length > FRAME_SIZE_MAX:
        raise LocalProtocolError(f"frame of {length} bytes is over the limit of {FRAME_SIZE_MAX}: send less at once")
    return _pack(length, header_size) + header


@frozen
class PullHeads:
    """Heads that differ only in their opaque, as for the pulls that one message wakes."""

    _before: bytes
    """The header up to the opaque."""
    _after: bytes
    _size: int
    """Size of both parts."""
    _body_size: int

    def head(self, opaque: int) -> bytes:
        """Returns one head; a body of the common size follows."""
        digits = b"%d" % opaque
        header_size = self._size + len(digits)
        return b"".join((_pack(4 + header_size + self._body_size, header_size), self._before, digits, self._after))

    def frames(self, opaques: Iterable[int], body: bytes) -> bytes:
        """Returns the heads and bodies for these opaques, concatenated."""
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
    """Create the heads that `encode_pull_head` returns for these arguments and any opaque.

    Raises LocalProtocolError if the longest is too large for the peer.
    """
    longest = encode_pull_head(code, -(2**31), flag, status, offset_next, offset_min, offset_max, body_size)
    mark = f"{_OPAQUE}{-(2**31)}".encode()
    before, found, after = longest[HEAD.size :].partition(mark)
    assert found
    before += _OPAQUE.encode()
    return PullHeads(before, after, len(before) + len(after), body_size)
