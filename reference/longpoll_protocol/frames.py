"""Splits a byte stream into frames, decodes frames to commands, and encodes commands.

The reader has three goals, in this order: a hostile length costs nothing, each byte is copied a bounded number of
times, and a caller may keep a body for any time. A frame that is inside one chunk is returned as views, without a copy.
A frame that spans chunks is gathered in a growing array, and copied once when it is complete.

After a `RemoteProtocolError` the caller must close the peer's connection, as RocketMQ does. `headers` checks for
missing fields. For bodies see `bodies` and `message`.

Source: `RemotingCommand.java`, `NettyDecoder.java`, `RemotingSerializable.java`, `RocketMQSerializable.java`. Decoding
is as lenient as 4.9.7 and 5.5.0 were observed to be.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable, Collection
from struct import Struct
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from longpoll_protocol.codes import (
    LANGUAGE_OTHER,
    LANGUAGES,
    OPAQUE_MADE_UP,
    VERSION,
    CommandFlag,
    RequestCode,
    ResponseCode,
)
from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_protocol.sizes import MIB
from longpoll_spec.tables import with_table

# One frame, big endian. `length` counts everything after itself.
#
# | offset | size       | field                                             |
# |--------|------------|---------------------------------------------------|
# | 0      | 4          | length = 4 + header size + body size, signed      |
# | 4      | 1          | serialisation of the header: 0 JSON, 1 ROCKETMQ   |
# | 5      | 3          | header size                                       |
# | 8      | header     | header                                            |
# | 8 + h  | the rest   | body                                              |
LENGTH: Final = Struct(">i")
HEAD: Final = Struct(">iI")
LENGTH_SIZE: Final = 4
HEAD_SIZE: Final = 8

FRAME_SIZE_MAX: Final = 16 * MIB
"""Default maximum of the length field, bytes (`NettyDecoder.FRAME_MAX_LENGTH`)."""
HEADER_SIZE_MAX: Final = 1 * MIB
"""Maximum header size, bytes.

The largest regular header is that of a send, with 32,767 bytes of properties, or six times as many bytes if all
characters are escaped. Java has no such limit, but decoding a header of 16 MiB creates 1 GB of objects."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes to send, or received bytes. A memoryview must have items of one byte."""

EMPTY: Final = memoryview(b"")
T = TypeVar("T")


class Serialisation(enum.IntEnum):
    """The encoding of a header (`SerializeType.java`)."""

    JSON = 0
    ROCKETMQ = 1


@with_table
class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame, not decoded yet."""

    serialisation: Serialisation
    header: memoryview
    body: memoryview
    """A view of immutable bytes, which stays valid for as long as it is referenced. The view keeps its whole chunk in
    memory, so copy a body that you keep for long. An empty body keeps nothing in memory."""


_SERIALISATIONS: Final = {int(kind): kind for kind in Serialisation}
_unpack_head: Final = HEAD.unpack_from


def check_length(length: int, size_max: int) -> None:
    """Check the length field of a frame; raises RemoteProtocolError if it is too small or exceeds `size_max`."""
    if length < LENGTH_SIZE:
        raise RemoteProtocolError(f"frame length {length} is too short: a frame has at least {LENGTH_SIZE} bytes")
    if length > size_max:
        raise RemoteProtocolError(f"frame length {length} is over the limit of {size_max} bytes")


def check_mark(mark: int, length: int) -> tuple[Serialisation, int]:
    """Split the word after the length into serialisation and header size; raises RemoteProtocolError if invalid."""
    header_size = mark & 0xFFFFFF
    serialisation = _SERIALISATIONS.get(mark >> 24)
    if serialisation is None:
        raise RemoteProtocolError(f"header serialisation {mark >> 24} is unknown: 0 is JSON, 1 is ROCKETMQ")
    if header_size == 0:
        raise RemoteProtocolError("header is empty: even a request without fields has a code")
    if header_size > length - LENGTH_SIZE:
        raise RemoteProtocolError(f"header of {header_size} bytes does not fit in a frame of length {length}")
    if header_size > HEADER_SIZE_MAX:
        raise RemoteProtocolError(f"header of {header_size} bytes is over the limit of {HEADER_SIZE_MAX}")
    return serialisation, header_size


def frame_head(serialisation: Serialisation, header: bytes, body_size: int, size_max: int = FRAME_SIZE_MAX) -> bytes:
    """Returns the frame's first eight bytes and its header, to write before a body of `body_size` bytes.

    Raises LocalProtocolError if the frame is too large for the peer.
    """
    header_size = len(header)
    length = LENGTH_SIZE + header_size + body_size
    if header_size > HEADER_SIZE_MAX:
        raise LocalProtocolError(f"header of {header_size} bytes is over the limit of {HEADER_SIZE_MAX}")
    if length > size_max:
        raise LocalProtocolError(f"frame of {length} bytes is over the limit of {size_max}: send less in one command")
    return HEAD.pack(length, serialisation << 24 | header_size) + header


class FrameReader:
    """Splits a stream that arrives in chunks of any size into frames.

    Invariant: the unreturned bytes are `_gathered`, then `_chunk` from `_start`, then `_waiting`, in this order.
    `_gathered` is shorter than `_wanted` and belongs to one frame.
    """

    __slots__ = ("_alike_start", "_chunk", "_gathered", "_size_max", "_start", "_waiting", "_wanted", "first_size")

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self._size_max = size_max
        self.first_size = 0
        """The number of bytes that must arrive before the reader reads or refuses anything; 0 after that."""
        self._chunk = EMPTY
        self._start = 0
        self._waiting: deque[bytes] = deque()
        self._gathered = bytearray()
        self._wanted = LENGTH_SIZE
        self._alike_start = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether each received byte belongs to a frame that was returned."""
        return not self._gathered and self._start == len(self._chunk) and not self._waiting

    @property
    def unread_size(self) -> int:
        """The number of received bytes that belong to no returned frame."""
        return len(self._gathered) + len(self._chunk) - self._start + sum(map(len, self._waiting))

    def feed(self, data: Buffer) -> None:
        """Append the next bytes of the connection.

        An object of type `bytes` is not copied, and any other buffer is copied once.
        """
        if not data:
            return
        chunk = bytes(data)
        if self._start == len(self._chunk) and not self._waiting:
            self._chunk, self._start = memoryview(chunk), 0
        else:
            self._waiting.append(chunk)

    def next_frame(self) -> Frame | None:
        """Returns the next complete frame, or None if more bytes are needed; raises RemoteProtocolError."""
        if self.first_size:
            if self.unread_size < self.first_size:
                return None
            self.first_size = 0
        while True:
            frame = self._gather() if self._gathered else self._cut_in_place()
            if frame is not None:
                return frame
            if self._start < len(self._chunk):
                continue
            if not self._waiting:
                # The chunk is used up, so release it, because an idle connection would keep it in memory.
                self._chunk, self._start = EMPTY, 0
                return None
            self._chunk, self._start = memoryview(self._waiting.popleft()), 0

    def next_alike(
        self, start: bytes, read: Callable[[bytes, memoryview], T | None], count_max: int | None = None
    ) -> list[T]:
        """Decode at most `count_max` complete JSON frames of the chunk, until a header does not begin with `start`.

        `read` gets a header and its body, and raises no error. A frame that begins otherwise, or for which `read`
        returns None, stays for `next_frame`.
        """
        found: list[T] = []
        self._alike_start = self._start
        content, at = self._chunk.obj, self._start
        assert type(content) is bytes
        # While a frame is being gathered, the first bytes of the chunk belong to that frame.
        size = 0 if self._gathered else len(content)
        while at + HEAD_SIZE < size:
            length, header_size = _unpack_head(content, at)
            header_at = at + HEAD_SIZE
            body_at, stop = header_at + header_size, at + LENGTH_SIZE + length
            # These are the checks of `check_length` and `check_mark`. If the serialisation is not JSON, the mark looks
            # like the size of a header that is too large.
            if length > self._size_max or header_size > HEADER_SIZE_MAX or not header_at < body_at <= stop <= size:
                break
            if not content.startswith(start, header_at):
                break
            command = read(content[header_at:body_at], self._chunk[body_at:stop] if body_at < stop else EMPTY)
            if command is None:
                break
            found.append(command)
            at = stop
            if len(found) == count_max:
                break
        self._start = at
        return found

    def keep_alike(self, count: int) -> None:
        """Accept only the first `count` frames of the last `next_alike`, which will return the other frames again."""
        start = self._alike_start
        for _frame in range(count):
            start += LENGTH_SIZE + _unpack_head(self._chunk, start)[0]
        self._start = start

    def _cut_in_place(self) -> Frame | None:
        """Return the next frame if it is complete in the chunk; otherwise begin to gather it."""
        chunk, start = self._chunk, self._start
        left = len(chunk) - start
        if left >= HEAD_SIZE:
            length, mark = _unpack_head(chunk, start)
            check_length(length, self._size_max)
            serialisation, header_size = check_mark(mark, length)
            stop = start + LENGTH_SIZE + length
            if stop <= len(chunk):
                self._start = stop
                body_start = start + HEAD_SIZE + header_size
                body = chunk[body_start:stop] if body_start < stop else EMPTY
                return Frame(serialisation, chunk[start + HEAD_SIZE : body_start], body)
            self._wanted = LENGTH_SIZE + length
        elif left:
            self._wanted = LENGTH_SIZE
        else:
            return None
        taken = min(left, self._wanted)
        self._gathered += chunk[start : start + taken]
        self._start = start + taken
        return self._grow_wanted()

    def _gather(self) -> Frame | None:
        """Move bytes of the frame from the chunk to `_gathered`; returns the frame if it is complete."""
        start = self._start
        taken = min(self._wanted - len(self._gathered), len(self._chunk) - start)
        self._gathered += self._chunk[start : start + taken]
        self._start = start + taken
        return self._grow_wanted()

    def _grow_wanted(self) -> Frame | None:
        """Return the frame if all of its bytes are gathered; otherwise set how many bytes to gather next.

        The first step gathers the length field, the second the head, and the last the frame. Each length is checked
        when it arrives, so a hostile length is refused before the frame is received.
        """
        gathered = self._gathered
        if len(gathered) < self._wanted:
            return None
        if self._wanted == LENGTH_SIZE:
            (length,) = LENGTH.unpack_from(gathered)
            check_length(length, self._size_max)
            self._wanted = HEAD_SIZE
            return None
        length, mark = HEAD.unpack_from(gathered)
        serialisation, header_size = check_mark(mark, length)
        self._wanted = LENGTH_SIZE + length
        if len(gathered) < self._wanted:
            return None
        whole = memoryview(bytes(gathered))
        self._gathered = bytearray()
        self._wanted = LENGTH_SIZE
        body_start = HEAD_SIZE + header_size
        return Frame(
            serialisation, whole[HEAD_SIZE:body_start], whole[body_start:] if body_start < len(whole) else EMPTY
        )


Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
FIELD_COUNT_MAX: Final = 1_000
"""Maximum number of extension fields in a header. RocketMQ's largest headers have about thirty fields, so more would
only waste processor time."""
FEW_SIZE: Final = FIELD_COUNT_MAX * len(b'"":0,')
"""A JSON header with fewer bytes than this has at most `FIELD_COUNT_MAX` fields, so its fields need not be counted."""
_MARK_COUNT_MAX: Final = 20_000
"""Maximum number of name ends, `":`, in a header. The limit is higher than `FIELD_COUNT_MAX`, because properties that
contain JSON have name ends too."""
_SPACE: Final = b" \t\r\n"


@with_table
class HeaderNumbers(msgspec.Struct, gc=False):
    """A header without its extension fields, in either encoding. The attributes have the same names as in JSON."""

    code: Int32 = 0
    language: str = "JAVA"
    version: Int32 = 0
    opaque: Int32 = OPAQUE_MADE_UP
    flag: Int32 = 0
    remark: str | None = None


@with_table
class HeaderValues(HeaderNumbers, gc=False):
    """A header with its extension fields, in the form that nearly all peers write."""

    extFields: dict[str, str] | None = None  # noqa: N815 - the key on the wire


@with_table
class _OddHeader(msgspec.Struct):
    """A header with unusual values that fastjson accepts, such as null for a number, or a number for a text."""

    code: Int32 | None = 0
    language: msgspec.Raw = msgspec.Raw(b'"JAVA"')
    version: Int32 | None = 0
    opaque: Int32 | None = OPAQUE_MADE_UP
    flag: Int32 | None = 0
    remark: msgspec.Raw = msgspec.Raw(b"null")
    extFields: dict[str, msgspec.Raw] | None = None  # noqa: N815 - the key on the wire


@with_table
class _HeaderOut(msgspec.Struct, gc=False, omit_defaults=True):
    """A header to be written. Like fastjson, it omits a remark or extension fields that are null."""

    code: int
    language: str
    version: int
    opaque: int
    flag: int
    serializeTypeCurrentRPC: str  # noqa: N815 - the key on the wire
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815 - the key on the wire


# The decoder is not strict, because a number may be written as text ("code": "11").
_decoder: Final = msgspec.json.Decoder(HeaderValues, strict=False)
_odd_decoder: Final = msgspec.json.Decoder(_OddHeader, strict=False)
_text_decoder: Final = msgspec.json.Decoder(str)
_encoder: Final = msgspec.json.Encoder()
# A RecursionError occurs if an unknown key has deeply nested values.
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def mark_count(header: bytes | memoryview) -> int:
    """Returns an upper bound of the number of names in a JSON header, without decoding the header, which is slow."""
    return bytes(header).translate(None, _SPACE).count(b'":')


def read_json(header: memoryview) -> HeaderValues:
    """Decode a JSON header; raises RemoteProtocolError."""
    if len(header) < FEW_SIZE:
        return _read(header)
    if mark_count(header) > _MARK_COUNT_MAX:
        raise too_many_fields()
    read = _read(header)
    check_count(read.extFields)
    return read


def check_count(fields: Collection[str] | None) -> None:
    """Raise RemoteProtocolError for more fields than a header may have."""
    if fields is not None and len(fields) > FIELD_COUNT_MAX:
        raise too_many_fields()


def too_many_fields() -> RemoteProtocolError:
    """Returns the error for too many fields."""
    return RemoteProtocolError(f"a header may have {FIELD_COUNT_MAX} extension fields; this one has more")


def _read(header: memoryview) -> HeaderValues:
    try:
        return _decoder.decode(header)
    except msgspec.ValidationError:
        return _read_odd(header)
    except _ERRORS as error:
        raise RemoteProtocolError(f"JSON header cannot be read: {error}") from None


def _read_odd(header: memoryview) -> HeaderValues:
    try:
        read = _odd_decoder.decode(header)
        fields = None
        if read.extFields is not None:
            check_count(read.extFields)
            texts = ((name, _as_text(raw)) for name, raw in read.extFields.items())
            fields = {name: text for name, text in texts if text is not None}
        remark = _as_text(read.remark)
        language = _as_text(read.language)
    except _ERRORS as error:
        raise RemoteProtocolError(f"JSON header cannot be read: {error}") from None
    return HeaderValues(
        code=read.code or 0,
        language="JAVA" if language is None else language,
        version=read.version or 0,
        opaque=OPAQUE_MADE_UP if read.opaque is None else read.opaque,
        flag=read.flag or 0,
        remark=remark,
        extFields=fields,
    )


def _as_text(raw: msgspec.Raw) -> str | None:
    """Convert a JSON value to text as RocketMQ does: a string as it is, null as None, other values as written."""
    source = bytes(raw).strip()
    if source.startswith(b'"'):
        return _text_decoder.decode(source)
    text = source.decode()
    return None if text == "null" else text


def write_json(  # noqa: PLR0917 - positional, for it is called once an answer
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: dict[str, str] | None,
) -> bytes:
    """Encode a JSON header; raises LocalProtocolError."""
    try:
        return _encoder.encode(_HeaderOut(code, language, version, opaque, flag, "JSON", remark, ext_fields))
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"text is not Unicode: {error}") from None


# | offset   | size | field                                            |
# |----------|------|--------------------------------------------------|
# | 0        | 2    | code, signed                                     |
# | 2        | 1    | language, an index into LANGUAGES                |
# | 3        | 2    | version, signed                                  |
# | 5        | 4    | opaque                                           |
# | 9        | 4    | flag                                             |
# | 13       | 4    | remark size r                                    |
# | 17       | r    | remark, UTF-8; of size 0: no remark              |
# | 17 + r   | 4    | size of all extension fields e                   |
# | 21 + r   | e    | fields: int16 size, name, int32 size, value, ... |
_FIXED: Final = struct.Struct(">hbhiii")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_FIXED_SIZE: Final = _FIXED.size
_SIZE_MIN: Final = _FIXED_SIZE + 4
_INT16_MAX: Final = 2**15 - 1


def read_rocketmq(header: memoryview) -> HeaderValues:
    """Decode a ROCKETMQ header; raises RemoteProtocolError."""
    raw = bytes(header)
    if len(raw) < _SIZE_MIN:
        raise RemoteProtocolError(f"ROCKETMQ header of {len(raw)} bytes is cut short: it has at least {_SIZE_MIN}")
    code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(raw)
    fields_at = _FIXED_SIZE + remark_size
    if remark_size < 0 or fields_at + 4 > len(raw):
        raise RemoteProtocolError(f"remark of {remark_size} bytes does not fit in a header of {len(raw)}")
    (fields_size,) = _INT32.unpack_from(raw, fields_at)
    start = fields_at + 4
    # A negative size is accepted, because Java then reads no fields.
    if start + fields_size > len(raw):
        raise RemoteProtocolError(f"extension fields of {fields_size} bytes do not fit in a header of {len(raw)}")
    try:
        remark = raw[_FIXED_SIZE:fields_at].decode() if remark_size else None
        fields = _decode_fields(raw, start, start + fields_size) if fields_size > 0 else None
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"ROCKETMQ header is not UTF-8: {error}") from None
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return HeaderValues(code, name, version, opaque, flag, remark, fields)


def _decode_fields(raw: bytes, start: int, stop: int) -> dict[str, str]:
    """Decode the extension fields in raw[start:stop].

    A field with an empty value is left out, because Java reads it as null.
    """
    fields: dict[str, str] = {}
    at = start
    count = 0
    try:
        while at < stop:
            count += 1
            if count > FIELD_COUNT_MAX:
                raise too_many_fields()
            (name_size,) = _INT16.unpack_from(raw, at)
            name_stop = at + 2 + name_size
            (value_size,) = _INT32.unpack_from(raw, name_stop)
            value_stop = name_stop + 4 + value_size
            if name_size < 0 or value_size < 0 or value_stop > stop:
                raise RemoteProtocolError("an extension field does not fit in the ROCKETMQ header")
            if name_size and value_size:
                fields[raw[at + 2 : name_stop].decode()] = raw[name_stop + 4 : value_stop].decode()
            at = value_stop
    except struct.error:
        raise RemoteProtocolError("an extension field of the ROCKETMQ header is cut short") from None
    return fields


def write_rocketmq(  # noqa: PLR0917 - positional, as `write_json`
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: dict[str, str] | None,
) -> bytes:
    """Encode a ROCKETMQ header; raises LocalProtocolError."""
    number = LANGUAGES.index(language) if language in LANGUAGES else LANGUAGE_OTHER
    try:
        remark_bytes = remark.encode() if remark else b""
        fields = b"".join(_encode_field(name, value) for name, value in (ext_fields or {}).items())
        fixed = _FIXED.pack(code, number, version, opaque, flag, len(remark_bytes))
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"text is not Unicode: {error}") from None
    except struct.error as error:
        raise LocalProtocolError(f"code {code} or version {version} does not fit a ROCKETMQ header: {error}") from None
    return b"".join((fixed, remark_bytes, _INT32.pack(len(fields)), fields))


def _encode_field(name: str, value: str) -> bytes:
    name_bytes, value_bytes = name.encode(), value.encode()
    if len(name_bytes) > _INT16_MAX:
        raise LocalProtocolError(f"extension field name of {len(name_bytes)} bytes is over the limit of {_INT16_MAX}")
    return b"".join((_INT16.pack(len(name_bytes)), name_bytes, _INT32.pack(len(value_bytes)), value_bytes))


__all__ = [
    "Command",
    "CommandFlag",
    "RequestCode",
    "ResponseCode",
    "decode_frame",
    "encode",
    "encode_head",
    "encode_reply_head",
    "reply",
]

# Constants hold plain values, because looking up enum members and `&` on an IntFlag would take longer than the work
# itself.
_JSON: Final = Serialisation.JSON
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONE_WAY: Final = int(CommandFlag.ONE_WAY)


class Command(msgspec.Struct, frozen=True, gc=False):
    """One request or reply, which has no reference cycles, so it needs no garbage collection (`gc=False`)."""

    code: int
    """The number of a `RequestCode` in a request, or of a `ResponseCode` in a reply. Unknown numbers are allowed."""
    opaque: int = 0
    """A number that the requester chooses and the reply repeats, so that the requester can match the reply to its
    request."""
    flag: int = 0
    """`CommandFlag` bits."""
    ext_fields: dict[str, str] | None = None
    """The extension fields, whose values are all text. None means a header without fields, which differs on the wire
    from {}.
    """
    body: Buffer = EMPTY
    """The bytes after the header. For how long a received body is valid see `Frame.body`."""
    remark: str | None = None
    """In a reply, the reason why the request failed."""
    language: str = "JAVA"
    """The language of the sender, which may be any text. Our replies have JAVA, the only name that every client can
    parse.
    """
    version: int = VERSION
    """The ordinal of the sender's release in `MQVersion.java`."""
    serialisation: Serialisation = Serialisation.JSON
    """The encoding of the header."""

    @property
    def is_response(self) -> bool:
        """Whether the command is a reply to an earlier request."""
        return self.flag & _RESPONSE != 0

    @property
    def is_one_way(self) -> bool:
        """Whether the sender expects no reply."""
        return self.flag & _ONE_WAY != 0


def reply(
    request: Command,
    code: int,
    *,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: Buffer = EMPTY,
) -> Command:
    """Create the reply to a request, with the opaque and the serialisation of the request."""
    return Command(
        code=code,
        opaque=request.opaque,
        flag=_RESPONSE,
        ext_fields=ext_fields,
        body=body,
        remark=remark,
        serialisation=request.serialisation,
    )


def decode_frame(frame: Frame) -> Command:
    """Decode a frame; raises RemoteProtocolError."""
    kind = frame.serialisation
    read = read_json(frame.header) if kind is _JSON else read_rocketmq(frame.header)
    return Command(
        read.code,
        read.opaque,
        read.flag,
        read.extFields,
        frame.body,
        read.remark,
        read.language,
        read.version,
        kind,
    )


def encode(command: Command, size_max: int = FRAME_SIZE_MAX) -> list[Buffer]:
    """Encode a command as buffers, to be written in this order; the body is not copied.

    Raises LocalProtocolError if the command does not fit the protocol, for example because it is too large.
    """
    body = command.body
    head = encode_head(command, len(body), size_max)
    return [head, body] if len(body) else [head]


def encode_head(command: Command, body_size: int, size_max: int = FRAME_SIZE_MAX) -> bytes:
    """Return the bytes of a frame that precede its body of `body_size` bytes; ignores `command.body`.

    Raises LocalProtocolError if the command does not fit the protocol.
    """
    write = write_json if command.serialisation is _JSON else write_rocketmq
    header = write(
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        command.ext_fields,
    )
    return frame_head(command.serialisation, header, body_size, size_max)


def encode_reply_head(
    request: Command,
    code: int,
    *,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body_size: int = 0,
    serialisation: Serialisation | None = None,
    size_max: int = FRAME_SIZE_MAX,
) -> bytes:
    """Return the bytes of a reply's frame that precede its body. No Command is created, so this function is fast.

    Write the returned bytes and then `body_size` bytes, which may be in several buffers. The reply has the
    serialisation of the request unless you pass `serialisation`, because 4.9 always answers woken pulls in JSON. Raises
    LocalProtocolError if the reply does not fit the protocol.
    """
    kind = request.serialisation if serialisation is None else serialisation
    write = write_json if kind is _JSON else write_rocketmq
    # As in Java, the flag has only the response bit, whatever the flag of the request.
    header = write(code, "JAVA", VERSION, request.opaque, _RESPONSE, remark, ext_fields)
    return frame_head(kind, header, body_size, size_max)


class Signal(enum.Enum):
    """The result of `Connection.next_event` if it returns no command."""

    NEED_DATA = "more bytes must be received first"
    CLOSED = "the peer has closed its side, between two commands"


NEED_DATA: Literal[Signal.NEED_DATA] = Signal.NEED_DATA
CLOSED: Literal[Signal.CLOSED] = Signal.CLOSED


class Connection:
    """The protocol on one connection, without I/O.

    Pass received bytes to `receive_data`, and then call `next_event` until it returns NEED_DATA. Write the buffers that
    `send` returns. A connection is not thread-safe, but any thread may call `send`, which uses no state. Invariant:
    once `_error` is set, every call raises it again instead of returning a command, because the start of the next frame
    is unknown.
    """

    __slots__ = ("_error", "_frames", "_is_at_end", "_size_max")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._frames = FrameReader(frame_size_max)
        self._size_max = frame_size_max
        self._is_at_end = False
        self._error: RemoteProtocolError | None = None

    @property
    def unread_size(self) -> int:
        """The number of received bytes that belong to no returned command."""
        return self._frames.unread_size

    def wait_for(self, size: int) -> None:
        """Return no command and raise no error before the peer has sent `size` bytes in total."""
        self._frames.first_size = size

    def receive_data(self, data: Buffer) -> None:
        """Add received bytes.

        An object of type `bytes` is not copied; any other buffer is copied once, so you can reuse it.

        Raises LocalProtocolError after `receive_eof`.
        """
        if self._is_at_end:
            raise LocalProtocolError("receive_data was called after receive_eof")
        self._frames.feed(data)

    def receive_eof(self) -> None:
        """Record that the peer has closed its side. Commands that were received before are still returned."""
        self._is_at_end = True

    def next_event(self) -> Command | Signal:
        """Return the next command, or NEED_DATA, or CLOSED after the end of the stream.

        Raises RemoteProtocolError, in this and every later call; close the connection then.
        """
        if self._error is not None:
            raise self._error
        try:
            frame = self._frames.next_frame()
            if frame is not None:
                return self._decode(frame)
        except RemoteProtocolError as error:
            self._error = error
            raise
        if not self._is_at_end:
            return NEED_DATA
        if self._frames.is_between_frames:
            return CLOSED
        self._error = RemoteProtocolError("the connection was closed in the middle of a frame")
        raise self._error

    def _decode(self, frame: Frame) -> Command:
        return decode_frame(frame)

    def send(self, command: Command) -> list[Buffer]:
        """Return the buffers to write, in this order; the body is not copied.

        Raises the LocalProtocolError of `encode`.
        """
        return encode(command, self._size_max)
