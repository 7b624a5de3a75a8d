"""JSON headers: a typed decoder for nearly all peers, and a lenient one for the rest.

Source: `RemotingSerializable.java`; leniency as seen on 4.9.7 and 5.5.0.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from longpoll_protocol.codes import OPAQUE_MADE_UP
from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_spec.tables import with_table

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
FIELD_COUNT_MAX: Final = 1_000
"""Maximum extension fields of a header; RocketMQ's largest have some thirty. More would only burn processor time."""
FEW_SIZE: Final = FIELD_COUNT_MAX * len(b'"":0,')
"""A JSON header with fewer bytes cannot have more fields than that."""
_MARK_COUNT_MAX: Final = 20_000
"""Maximum name ends, `":`, in a header; properties that contain JSON have some, too."""
_SPACE: Final = b" \t\r\n"


@with_table
class HeaderNumbers(msgspec.Struct, gc=False):
    """A header without its extension fields, in either encoding; attributes have their JSON names."""

    code: Int32 = 0
    language: str = "JAVA"
    version: Int32 = 0
    opaque: Int32 = OPAQUE_MADE_UP
    flag: Int32 = 0
    remark: str | None = None


@with_table
class HeaderValues(HeaderNumbers, gc=False):
    """A header with its fields; the typed form of nearly all peers."""

    extFields: dict[str, str] | None = None  # noqa: N815 - the key on the wire


@with_table
class _OddHeader(msgspec.Struct):
    """Forms that fastjson also accepts: null for a number, any language, numbers and booleans as fields."""

    code: Int32 | None = 0
    language: msgspec.Raw = msgspec.Raw(b'"JAVA"')
    version: Int32 | None = 0
    opaque: Int32 | None = OPAQUE_MADE_UP
    flag: Int32 | None = 0
    remark: msgspec.Raw = msgspec.Raw(b"null")
    extFields: dict[str, msgspec.Raw] | None = None  # noqa: N815 - the key on the wire


@with_table
class _HeaderOut(msgspec.Struct, gc=False, omit_defaults=True):
    """The written form. As fastjson, it omits a null remark and null extension fields."""

    code: int
    language: str
    version: int
    opaque: int
    flag: int
    serializeTypeCurrentRPC: str  # noqa: N815 - the key on the wire
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815 - the key on the wire


# Lax: a number may be text ("code": "11").
_decoder: Final = msgspec.json.Decoder(HeaderValues, strict=False)
_odd_decoder: Final = msgspec.json.Decoder(_OddHeader, strict=False)
_text_decoder: Final = msgspec.json.Decoder(str)
_encoder: Final = msgspec.json.Encoder()
# RecursionError: an unknown key with deeply nested values.
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def mark_count(header: bytes | memoryview) -> int:
    """Returns an upper bound of the names in a JSON header, much faster than decoding it."""
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
    """Convert a JSON value to RocketMQ's string: text unchanged, null absent, others as written."""
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
