"""RemotingCommand: one request or reply, and its two header encodings, in both directions.

A `RemoteProtocolError` means that the peer's connection must be closed, as RocketMQ does; fields that a request lacks
are not its business (`headers`).
Leaves out framing (`frame`), what extension fields mean (`headers`) and what bodies mean (`bodies`, `message`).

Source: `remoting/protocol/RemotingCommand.java`, `RemotingSerializable.java`, `RocketMQSerializable.java`; what real
brokers accept beyond it was seen by running 4.9.7 and 5.5.0.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from longpoll_broker.errors import LocalProtocolError, RemoteProtocolError
from longpoll_broker.wire.codes import (
    LANGUAGE_OTHER,
    LANGUAGES,
    OPAQUE_MADE_UP,
    VERSION,
    CommandFlag,
    RequestCode,
    ResponseCode,
)
from longpoll_broker.wire.frame import EMPTY, FRAME_SIZE_MAX, Buffer, Frame, Serialisation, frame_head

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

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]

# Looking a member up in its enum, and `&` on an IntFlag, cost more than what is done with them here.
_JSON: Final = Serialisation.JSON
_ROCKETMQ: Final = Serialisation.ROCKETMQ
_RESPONSE: Final = int(CommandFlag.RESPONSE)
_ONE_WAY: Final = int(CommandFlag.ONE_WAY)


class Command(msgspec.Struct, frozen=True, gc=False):
    """One request or reply. It holds no reference cycles, so the collector need not know it (`gc=False`)."""

    code: int
    """A `RequestCode` in a request, a `ResponseCode` in a reply; unknown numbers are allowed."""
    opaque: int = 0
    """Chosen by the one who asks, copied by the one who replies."""
    flag: int = 0
    """`CommandFlag` bits."""
    ext_fields: dict[str, str] | None = None
    """The extension fields, all text; None when the header has none, which is not the same on the wire as {}."""
    body: Buffer = EMPTY
    """The bytes behind the header; see `Frame.body` on how long a received one is valid."""
    remark: str | None = None
    """In a reply, why it is not a success."""
    language: str = "JAVA"
    """The peer's language, any text. Our replies say JAVA, the one name that every client's parser knows."""
    version: int = VERSION
    """Ordinal of the peer's release in `MQVersion.java`."""
    serialisation: Serialisation = Serialisation.JSON
    """How the header was or will be written."""

    @property
    def is_response(self) -> bool:
        """Whether this is a reply."""
        return self.flag & _RESPONSE != 0

    @property
    def is_one_way(self) -> bool:
        """Whether the sender wants no reply."""
        return self.flag & _ONE_WAY != 0


def reply(
    request: Command,
    code: int,
    *,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: Buffer = EMPTY,
) -> Command:
    """The reply to a request: its opaque and serialisation, its flag with the response bit."""
    return Command(
        code=code,
        opaque=request.opaque,
        flag=request.flag | _RESPONSE,
        ext_fields=ext_fields,
        body=body,
        remark=remark,
        serialisation=request.serialisation,
    )


# ---------------------------------------------------------------- both encodings


def decode_frame(frame: Frame) -> Command:
    """Read the header of a frame; raises RemoteProtocolError."""
    if frame.serialisation is _JSON:
        return _decode_json(frame.header, frame.body)
    return _decode_rocketmq(frame.header, frame.body)


def encode(command: Command, size_max: int = FRAME_SIZE_MAX) -> list[Buffer]:
    """The command as buffers to write one after the other; the body is passed on uncopied.

    Raises LocalProtocolError when it does not fit the protocol.
    """
    body = command.body
    head = encode_head(command, len(body), size_max)
    return [head, body] if len(body) else [head]


def encode_head(command: Command, body_size: int, size_max: int = FRAME_SIZE_MAX) -> bytes:
    """Everything of the frame before a body of `body_size` bytes; `command.body` is not looked at.

    Raises LocalProtocolError when it does not fit the protocol.
    """
    if command.serialisation is _JSON:
        header = _encode_json(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            command.remark,
            command.ext_fields,
        )
    else:
        header = _encode_rocketmq(
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
    """The hot path of answers: everything of the frame before the body, without making a Command.

    Write it and then `body_size` bytes, in as many buffers as they come in (one `sendmsg`).
    `serialisation` None copies the request's; 4.9 answers woken pulls in JSON whatever the request was in.
    Raises LocalProtocolError when it does not fit the protocol.
    """
    kind = request.serialisation if serialisation is None else serialisation
    write = _encode_json if kind is _JSON else _encode_rocketmq
    flag = request.flag | _RESPONSE
    return frame_head(kind, write(code, "JAVA", VERSION, request.opaque, flag, remark, ext_fields), body_size, size_max)


# ---------------------------------------------------------------- JSON header


class _JsonHeader(msgspec.Struct, gc=False):
    """What nearly every peer sends; read in one typed pass."""

    code: Int32 = 0
    language: str = "JAVA"
    version: Int32 = 0
    opaque: Int32 = OPAQUE_MADE_UP
    flag: Int32 = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815 - the key on the wire


class _OddJsonHeader(msgspec.Struct):
    """What fastjson accepts beyond it: null for a number, anything as a language, numbers and booleans as fields."""

    code: Int32 | None = 0
    language: msgspec.Raw = msgspec.Raw(b'"JAVA"')
    version: Int32 | None = 0
    opaque: Int32 | None = OPAQUE_MADE_UP
    flag: Int32 | None = 0
    remark: msgspec.Raw = msgspec.Raw(b"null")
    extFields: dict[str, msgspec.Raw] | None = None  # noqa: N815 - the key on the wire


class _JsonHeaderOut(msgspec.Struct, gc=False, omit_defaults=True):
    """What is written. fastjson leaves out a null remark and null extension fields, and so do we."""

    code: int
    language: str
    version: int
    opaque: int
    flag: int
    serializeTypeCurrentRPC: str  # noqa: N815 - the key on the wire
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815 - the key on the wire


# Lax: a number may come as text ("code": "11").
_json_decoder: Final = msgspec.json.Decoder(_JsonHeader, strict=False)
_odd_json_decoder: Final = msgspec.json.Decoder(_OddJsonHeader, strict=False)
_text_decoder: Final = msgspec.json.Decoder(str)
_json_encoder: Final = msgspec.json.Encoder()
# RecursionError: an unknown key with a value nested deeper than the decoder goes.
_JSON_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _decode_json(header: memoryview, body: memoryview) -> Command:
    try:
        read = _json_decoder.decode(header)
    except msgspec.ValidationError:
        return _decode_odd_json(header, body)
    except _JSON_ERRORS as error:
        raise RemoteProtocolError(f"JSON header cannot be read: {error}") from None
    return Command(
        read.code,
        read.opaque,
        read.flag,
        read.extFields,
        body,
        read.remark,
        read.language,
        read.version,
        _JSON,
    )


def _decode_odd_json(header: memoryview, body: memoryview) -> Command:
    try:
        read = _odd_json_decoder.decode(header)
        fields = None
        if read.extFields is not None:
            texts = ((name, _as_text(raw)) for name, raw in read.extFields.items())
            fields = {name: text for name, text in texts if text is not None}
        remark = _as_text(read.remark)
        language = _as_text(read.language)
    except _JSON_ERRORS as error:
        raise RemoteProtocolError(f"JSON header cannot be read: {error}") from None
    return Command(
        code=read.code or 0,
        opaque=OPAQUE_MADE_UP if read.opaque is None else read.opaque,
        flag=read.flag or 0,
        ext_fields=fields,
        body=body,
        remark=remark,
        language="JAVA" if language is None else language,
        version=read.version or 0,
        serialisation=_JSON,
    )


def _as_text(raw: msgspec.Raw) -> str | None:
    """A JSON value as RocketMQ's map of strings holds it: text as it is, null absent, else what was written."""
    source = bytes(raw).strip()
    if source.startswith(b'"'):
        return _text_decoder.decode(source)
    text = source.decode()
    return None if text == "null" else text


def _encode_json(  # noqa: PLR0917 - positional, for it is called once an answer
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: dict[str, str] | None,
) -> bytes:
    try:
        return _json_encoder.encode(_JsonHeaderOut(code, language, version, opaque, flag, "JSON", remark, ext_fields))
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"text is not Unicode: {error}") from None


# ---------------------------------------------------------------- ROCKETMQ header

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


def _decode_rocketmq(header: memoryview, body: memoryview) -> Command:
    raw = bytes(header)
    if len(raw) < _SIZE_MIN:
        raise RemoteProtocolError(f"ROCKETMQ header of {len(raw)} bytes is cut short: it has at least {_SIZE_MIN}")
    code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(raw)
    fields_at = _FIXED_SIZE + remark_size
    if remark_size < 0 or fields_at + 4 > len(raw):
        raise RemoteProtocolError(f"remark of {remark_size} bytes does not fit in a header of {len(raw)}")
    (fields_size,) = _INT32.unpack_from(raw, fields_at)
    start = fields_at + 4
    if fields_size < 0 or start + fields_size > len(raw):
        raise RemoteProtocolError(f"extension fields of {fields_size} bytes do not fit in a header of {len(raw)}")
    try:
        remark = raw[_FIXED_SIZE:fields_at].decode() if remark_size else None
        fields = _decode_fields(raw, start, start + fields_size) if fields_size else None
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"ROCKETMQ header is not UTF-8: {error}") from None
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else "OTHER"
    return Command(code, opaque, flag, fields, body, remark, name, version, _ROCKETMQ)


def _decode_fields(raw: bytes, start: int, stop: int) -> dict[str, str]:
    """Read the extension fields in raw[start:stop]; a text of size 0 is null in Java and so absent here."""
    fields: dict[str, str] = {}
    at = start
    try:
        while at < stop:
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


def _encode_rocketmq(  # noqa: PLR0917 - the same
    code: int,
    language: str,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext_fields: dict[str, str] | None,
) -> bytes:
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
