"""Headers in RocketMQ's binary encoding.

Source: `RocketMQSerializable.java`.
"""

from __future__ import annotations

import struct
from typing import Final

from longpoll_protocol.codes import LANGUAGE_OTHER, LANGUAGES
from longpoll_protocol.errors import LocalProtocolError, RemoteProtocolError
from longpoll_protocol.frames.json_header import FIELD_COUNT_MAX, HeaderValues, too_many_fields

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
    # Java reads no fields if their size is negative.
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
    """Decode the extension fields in raw[start:stop]; an empty text is null in Java, so it is absent here."""
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
