"""Fast decoders and encoders for sends and pulls, with the same results as `frames` and `headers`.

The decoders read the extension fields together with the rest of the header, because reading the fields as text first
takes three times as long. The encoders fill a template. The normal path handles other commands, invalid commands and
commands with ROCKETMQ headers, and also creates the error texts. Java's brokers and ours write a successful answer as
JSON with the code first, so a client can recognise such an answer by its first bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec
from attrs import frozen

from longpoll_protocol.codes import VERSION, CommandFlag
from longpoll_protocol.errors import HeaderError, LocalProtocolError
from longpoll_protocol.frames import (
    FEW_SIZE,
    FIELD_COUNT_MAX,
    FRAME_SIZE_MAX,
    HEAD,
    Command,
    Connection,
    Frame,
    HeaderNumbers,
    Serialisation,
    decode_frame,
    mark_count,
)
from longpoll_protocol.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2, SendMessageResponseHeader
from longpoll_spec.tables import with_table

SEND_START: Final = b'{"code":310,'
"""The first bytes of the header of SEND_MESSAGE_V2 (310) from every client that writes JSON."""
_JSON: Final = Serialisation.JSON


class SendCommand(Command, frozen=True, gc=False, kw_only=True):
    """A SEND_MESSAGE_V2 request (310) whose extension fields are in `header`; `ext_fields` is None."""

    header: SendMessageRequestHeaderV2


@with_table
class _SendValues(HeaderNumbers, gc=False, kw_only=True):
    extFields: SendMessageRequestHeaderV2  # noqa: N815 - the key on the wire


_send_decoder: Final = msgspec.json.Decoder(_SendValues, strict=False)


def read_send(header: bytes, body: memoryview) -> SendCommand | None:
    """Decode a send whose JSON header begins with `SEND_START`; returns None if `decode_frame` must decode it."""
    try:
        if not header.isascii():
            # Check that the whole header is UTF-8, because the decoder does not check the names of unknown fields.
            str(header, "utf-8")
        read = _send_decoder.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(header) >= FEW_SIZE and mark_count(header) > FIELD_COUNT_MAX:
        return None
    return SendCommand(
        read.code, read.opaque, read.flag, None, body, read.remark, read.language, read.version, _JSON,
        header=read.extFields,
    )  # fmt: skip


PULL_START: Final = b'{"code":11,'
"""The first bytes of the header of PULL_MESSAGE (11) from every client that writes JSON."""


class PullCommand(Command, frozen=True, gc=False, kw_only=True):
    """A PULL_MESSAGE request (11) whose extension fields are in `header`; `ext_fields` is None."""

    header: PullMessageRequestHeader


@with_table
class _PullValues(HeaderNumbers, gc=False, kw_only=True):
    extFields: PullMessageRequestHeader  # noqa: N815 - the key on the wire


_pull_decoder: Final = msgspec.json.Decoder(_PullValues, strict=False)


def read_pull(header: bytes, body: memoryview) -> PullCommand | None:
    """Decode a pull whose JSON header begins with `PULL_START`; returns None if `decode_frame` must decode it."""
    if len(header) >= FEW_SIZE and mark_count(header) > FIELD_COUNT_MAX:
        # Let the normal path count the fields, because this decoder does not count unknown fields.
        return None
    try:
        if not header.isascii():
            # Check that the whole header is UTF-8, because the decoder does not check the names of unknown fields.
            str(header, "utf-8")
        read = _pull_decoder.decode(header)
        fields = read.extFields
        fields.check()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, HeaderError):
        return None
    return PullCommand(
        read.code, read.opaque, read.flag, None, body, read.remark, read.language, read.version, _JSON, header=fields
    )


class TypedConnection(Connection):
    """A connection that may return a send (310) as a `SendCommand` and a pull (11) as a `PullCommand`.

    `next_sends` may return several adjacent sends at once.
    """

    __slots__ = ()

    def _decode(self, frame: Frame) -> Command:
        """Decode a frame into a command, with typed fields for a send or a pull; raises RemoteProtocolError."""
        if frame.serialisation is not _JSON:
            return decode_frame(frame)
        header = bytes(frame.header)
        read: Command | None = None
        if header.startswith(SEND_START):
            read = read_send(header, frame.body)
        elif header.startswith(PULL_START):
            read = read_pull(header, frame.body)
        return read or decode_frame(frame)

    def next_sends(self, count_max: int | None = None) -> list[SendCommand]:
        """Return the next sends that are complete in the last received data, at most `count_max`, or [].

        This method raises no error, because `next_event` handles the first frame that is not a valid send.
        """
        return self._frames.next_alike(SEND_START, read_send, count_max)

    def keep(self, count: int) -> None:
        """Accept only the first `count` sends of the last `next_sends`, which will return the other sends again."""
        self._frames.keep_alike(count)


_OPAQUE: Final = '"opaque":'
_PULL_HEADER: Final = (
    '{"code":%d,"language":"JAVA","version":' + str(VERSION) + ',"opaque":%d,"flag":%d,'
    '"serializeTypeCurrentRPC":"JSON","remark":"%s","extFields":{"suggestWhichBrokerId":"0",'
    '"nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"}}'
)
_pack: Final = HEAD.pack


def encode_pull_head(  # noqa: PLR0917 - positional, for it is called once an answer
    code: int, opaque: int, flag: int, status: str, offset_next: int, offset_min: int, offset_max: int, body_size: int
) -> bytes:
    """Return the bytes of a pull's answer that precede its body of `body_size` bytes: sizes, JSON mark and header.

    `status` is a name of `GetMessageStatus`, without characters that JSON escapes. Raises LocalProtocolError if the
    frame is too large for the peer.
    """
    header = (_PULL_HEADER % (code, opaque, flag, status, offset_next, offset_min, offset_max)).encode()
    header_size = len(header)
    length = 4 + header_size + body_size
    if length > FRAME_SIZE_MAX:
        raise LocalProtocolError(f"frame of {length} bytes is over the limit of {FRAME_SIZE_MAX}: send less at once")
    return _pack(length, header_size) + header


@frozen
class PullHeads:
    """Encodes answers that differ only in their opaque, such as the answers to all pulls that one message wakes."""

    _before: bytes
    """The header up to the opaque."""
    _after: bytes
    _size: int
    """The total bytes of the header's parts before and after the opaque."""
    _body_size: int

    def head(self, opaque: int) -> bytes:
        """Return the bytes that precede the body in the answer to the request with this opaque."""
        digits = b"%d" % opaque
        header_size = self._size + len(digits)
        return b"".join((_pack(4 + header_size + self._body_size, header_size), self._before, digits, self._after))

    def frames(self, opaques: Iterable[int], body: bytes) -> bytes:
        """Returns the concatenated answers to the requests with these opaques, each with the same body."""
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
    """Create an encoder that returns the same bytes as `encode_pull_head` with these arguments, for any opaque.

    Raises LocalProtocolError if the longest head is too large for the peer.
    """
    longest = encode_pull_head(code, -(2**31), flag, status, offset_next, offset_min, offset_max, body_size)
    mark = f"{_OPAQUE}{-(2**31)}".encode()
    before, found, after = longest[HEAD.size :].partition(mark)
    assert found
    before += _OPAQUE.encode()
    return PullHeads(before, after, len(before) + len(after), body_size)


_SEND_HEADER: Final = (
    b'{"code":0,"language":"JAVA","version":' + str(VERSION).encode() + b',"opaque":%d,"flag":%d,'
    b'"serializeTypeCurrentRPC":"JSON","extFields":{"TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"queueId":"%d","msgId":"%b%016X","queueOffset":"%d"}}'
)


def encode_send_head(  # noqa: PLR0917 - what differs between two answers
    opaque: int, flag: int, queue_id: int, host: bytes, physical_offset: int, queue_offset: int
) -> bytes:
    """Returns the frame of a send's answer. `host` is the first part of the message id, in hexadecimal."""
    header = _SEND_HEADER % (opaque, flag, queue_id, host, physical_offset, queue_offset)
    header_size = len(header)
    return _pack(4 + header_size, header_size) + header


SENT_START: Final = b'{"code":0,'
"""The first bytes of the header of every successful answer."""
SENT_MARK: Final = b'"msgId"'
"""Of all successful answers, only answers to sends have this key in their header."""
Failure = TypeVar("Failure", bound=Exception)
_RESPONSE: Final = int(CommandFlag.RESPONSE)


class SentAnswer(Command, frozen=True, gc=False, kw_only=True):
    """A successful answer to a send, with all extension fields in `header`; `ext_fields` is None."""

    header: SendMessageResponseHeader


class _SentFields(SendMessageResponseHeader, gc=False, forbid_unknown_fields=True):
    """The fields of an answer that `read_sent` decodes.

    Answers with more fields, such as 5.x's `recallHandle`, take the normal path.
    """


@with_table
class _SentValues(HeaderNumbers, gc=False, kw_only=True):
    extFields: _SentFields  # noqa: N815 - the key on the wire


_sent_decoder: Final = msgspec.json.Decoder(_SentValues, strict=False)


def read_sent(header: bytes, body: memoryview) -> SentAnswer | None:
    """Decode a send's answer that begins with `SENT_START`; returns None if `decode_frame` must decode it."""
    if SENT_MARK not in header or not header.isascii():
        # Let the normal path check the names of unknown fields, which may be invalid text.
        return None
    try:
        read = _sent_decoder.decode(header)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not read.flag & _RESPONSE:
        return None
    return SentAnswer(
        read.code, read.opaque, read.flag, None, body, read.remark, read.language, read.version, _JSON,
        header=read.extFields,
    )  # fmt: skip


def header_of(answer: Command) -> SendMessageResponseHeader:
    """Return the fields of a send's answer, however it was decoded; raises HeaderError."""
    return answer.header if isinstance(answer, SentAnswer) else SendMessageResponseHeader.decode(answer.ext_fields)


def plain(answer: Command) -> Command:
    """Return the answer as a plain command with `ext_fields`, for callers that handle any request code."""
    if not isinstance(answer, SentAnswer):
        return answer
    return Command(
        answer.code, answer.opaque, answer.flag, answer.header.encode(), answer.body, answer.remark, answer.language,
        answer.version, answer.serialisation,
    )  # fmt: skip


def with_fields(callback: Callable[[Command | Failure], None]) -> Callable[[Command | Failure], None]:
    """Wrap a callback so that it gets every answer as a plain command (`plain`)."""
    return lambda answer: callback(answer if isinstance(answer, Exception) else plain(answer))


class SentConnection(Connection):
    """A connection that may return answers to sends as `SentAnswer`s, several at once if they are adjacent."""

    __slots__ = ()

    def _decode(self, frame: Frame) -> Command:
        if frame.serialisation is not _JSON or bytes(frame.header[: len(SENT_START)]) != SENT_START:
            return decode_frame(frame)
        return read_sent(bytes(frame.header), frame.body) or decode_frame(frame)

    def next_sent(self) -> list[SentAnswer]:
        """Return the next answers to sends that are complete in the last received data, or [].

        This method raises no error, because `next_event` handles the first frame that is not such an answer.
        """
        return self._frames.next_alike(SENT_START, read_sent)
