"""A second, independent codec for RocketMQ's bytes: frames, commit-log records, properties, batch bodies.

Values are plain dicts with the names of RocketMQ's JSON, as in vectors. This codec shares no code with
`longpoll_protocol`, the codec of our own broker. `connection` opens the connections.

Sources: `RemotingCommand.java`, `RocketMQSerializable.java`, `MessageDecoder.java`.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

MAGIC_V2: Final = 0xDAA320AB
LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
)  # fmt: skip
OTHER: Final = LANGUAGES.index("OTHER")
VERSION: Final = 401
"""The client version that requests contain: `MQVersion` V4_9_4."""
FRAME_SIZE_MAX: Final = 16 << 20
BODY_SIZE_SHOWN: Final = 128
"""A recording contains a message body of up to this many bytes; of a longer body, it contains only the hash."""
V6_BORN, V6_STORE = 0x10, 0x20
CRC_MASK: Final = 0x7FFFFFFF
"""Removes the highest bit of a CRC-32, because RocketMQ's checksum of a message body lacks this bit."""
_HEAD: Final = struct.Struct(">iIiiiqqiq")
_BINARY_HEAD: Final = struct.Struct(">hbhiii")


class NotReadableError(ValueError):
    """The bytes are not a frame or a record; the message says at which position decoding failed."""


def encode_command(command: Mapping[str, Any], serialize: str = "JSON") -> bytes:
    """Encode a command as a whole frame.

    The command's keys are `code`, `opaque`, and optionally `flag`, `extFields`, `remark`, `language`, `body`.
    """
    body = command.get("body") or b""
    raw = encode_header(command, serialize)
    mark = (serialize != "JSON") << 24 | len(raw)
    return struct.pack(">iI", 4 + len(raw) + len(body), mark) + raw + bytes(body)


def encode_header(command: Mapping[str, Any], serialize: str) -> bytes:
    """Encode the header of a command's frame."""
    return _json_header(command) if serialize == "JSON" else _binary_header(command)


def _json_header(command: Mapping[str, Any]) -> bytes:
    header = {
        "code": command["code"],
        "language": command.get("language", "JAVA"),
        "version": command.get("version", VERSION),
        "opaque": command["opaque"],
        "flag": command.get("flag", 0),
        "serializeTypeCurrentRPC": "JSON",
    }
    header |= {name: command[name] for name in ("remark", "extFields") if command.get(name) is not None}
    return json.dumps(header, ensure_ascii=False).encode()


def _binary_header(command: Mapping[str, Any]) -> bytes:
    remark = (command.get("remark") or "").encode()
    fields = b""
    for name, value in (command.get("extFields") or {}).items():
        if value is not None:
            text = (value if isinstance(value, str) else json.dumps(value)).encode()
            fields += struct.pack(">h", len(name.encode())) + name.encode() + struct.pack(">i", len(text)) + text
    language = command.get("language", "JAVA")
    number = LANGUAGES.index(language) if language in LANGUAGES else OTHER
    fixed = _BINARY_HEAD.pack(
        command["code"], number, command.get("version", VERSION), command["opaque"], command.get("flag", 0), len(remark)
    )
    return fixed + remark + struct.pack(">i", len(fields)) + fields


def decode_command(frame: bytes) -> dict[str, Any]:
    """Decode the content of a frame to a command with `serialize` and `body`. Raises NotReadableError."""
    try:
        (mark,) = struct.unpack_from(">I", frame)
        size = mark & 0xFFFFFF
        raw, body = frame[4 : 4 + size], frame[4 + size :]
        if len(raw) < size:
            raise NotReadableError(f"header of {size} bytes does not fit in a frame of {len(frame)}")
        header: Any = json.loads(raw.decode()) if mark >> 24 == 0 else _read_binary(raw)
    except (struct.error, IndexError, RecursionError, ValueError) as error:
        raise NotReadableError(f"the header cannot be read: {error}") from error
    command = _checked(header)
    whole = {"code": 0, "flag": 0, "opaque": 0, "remark": None, "extFields": None, "language": None} | command
    return whole | {"serialize": "JSON" if mark >> 24 == 0 else "ROCKETMQ", "body": body}


def _checked(header: Any) -> dict[str, Any]:
    if not isinstance(header, dict):
        raise NotReadableError("the header is not a JSON object")
    for name in ("code", "flag", "opaque"):
        if type(header.get(name, 0)) is not int:
            raise NotReadableError(f"{name} of the header is not a number")
    if not isinstance(header.get("remark"), str | None):
        raise NotReadableError("remark of the header is not a string")
    fields = header.get("extFields")
    if fields is not None and not (isinstance(fields, dict) and all(isinstance(each, str) for each in fields.values())):
        raise NotReadableError("extFields of the header are not a map of strings")
    return header


def _read_binary(raw: bytes) -> dict[str, Any]:
    code, language, version, opaque, flag, size = _BINARY_HEAD.unpack_from(raw)
    place = _BINARY_HEAD.size
    remark = raw[place : place + size].decode() if size else None
    place += size
    (size,) = struct.unpack_from(">i", raw, place)
    place += 4
    fields, end = {}, place + size
    while place < end:
        name, place = _text(raw, place, ">h")
        fields[name], place = _text(raw, place, ">i")
    name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else str(language)
    return {
        "code": code, "language": name, "version": version, "opaque": opaque, "flag": flag,
        "remark": remark, "extFields": fields,
    }  # fmt: skip


def _text(raw: bytes, place: int, of: str) -> tuple[str, int]:
    (size,) = struct.unpack_from(of, raw, place)
    place += struct.calcsize(of)
    if size < 0 or place + size > len(raw):
        raise NotReadableError(f"text of {size} bytes at byte {place} does not fit in {len(raw)} bytes")
    return raw[place : place + size].decode(), place + size


def lenient_json(text: bytes) -> Any:
    """Parse JSON in fastjson's form, in which object names may be unquoted integers. Raises ValueError."""
    try:
        try:
            return json.loads(text)
        except ValueError:
            return json.loads(re.sub(r"([{,]\s*)(-?\d+)\s*:", r'\1"\2":', text.decode()))
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


def each_text(value: Any, change: Callable[[str], Any]) -> Any:
    """Return a copy of a JSON value in which `change` was applied to each text, including the names in objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {each_text(name, change): each_text(each, change) for name, each in value.items()}
    return [each_text(each, change) for each in value] if isinstance(value, list | tuple) else value


def properties_text(properties: Mapping[str, str]) -> str:
    """Encode message properties as in a commit-log record."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def read_properties(text: str) -> dict[str, str]:
    """Parse the properties in a commit-log record; a property without a value is skipped."""
    return dict(part.split("\x01", 1) for part in text.split("\x02") if "\x01" in part)


def batch_body(messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> bytes:
    """Encode several messages into one body, as `MessageDecoder.encodeMessages` does."""
    whole = b""
    for body, properties in messages:
        text = properties_text(properties).encode()
        rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", len(text)) + text
        whole += struct.pack(">i", 4 + len(rest)) + rest
    return whole


def read_records(raw: bytes) -> list[dict[str, Any]]:
    """Decode the records in a body, in order. Raises NotReadableError."""
    found, place = [], 0
    while place < len(raw):
        try:
            record, size = _read_record(raw, place)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise NotReadableError(f"the record at byte {place} of {len(raw)} cannot be read: {error}") from error
        if size <= 0 or record["totalSize"] != size:
            raise NotReadableError(f"the record at byte {place} claims {record['totalSize']} bytes, but has {size}")
        found.append(record)
        place += size
    return found


def _read_record(raw: bytes, start: int) -> tuple[dict[str, Any], int]:
    total, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born = _HEAD.unpack_from(raw, start)
    place = start + _HEAD.size
    born_host, place = _host(raw, place, is_v6=bool(sys_flag & V6_BORN))
    (stored,) = struct.unpack_from(">q", raw, place)
    store_host, place = _host(raw, place + 8, is_v6=bool(sys_flag & V6_STORE))
    again, prepared, size = struct.unpack_from(">iqi", raw, place)
    place += 16
    if size < 0:
        raise NotReadableError(f"the record at byte {start} claims a body of {size} bytes")
    body, place = raw[place : place + size], place + size
    # From RocketMQ 5.0, the length of a topic may take two bytes.
    wide = magic == MAGIC_V2
    (size,) = struct.unpack_from(">h" if wide else ">B", raw, place)
    place += 2 if wide else 1
    topic, place = raw[place : place + size].decode(), place + size
    (size,) = struct.unpack_from(">h", raw, place)
    text = raw[place + 2 : place + 2 + size].decode()
    if place + 2 + size > len(raw):
        raise NotReadableError(f"the record at byte {start} of {len(raw)} claims {total} bytes and ends early")
    kept = (
        {"body": base64.b64encode(body).decode()}
        if len(body) <= BODY_SIZE_SHOWN
        else {"bodySha256": hashlib.sha256(body).hexdigest()}
    )
    record = {
        "totalSize": total, "magic": f"{magic:08X}", "bodyCRC": crc, "queueId": queue_id, "flag": flag,
        "queueOffset": queue_offset, "physicalOffset": physical, "sysFlag": sys_flag, "bornTimestamp": born,
        "bornHost": born_host, "storeTimestamp": stored, "storeHost": store_host, "reconsumeTimes": again,
        "preparedTransactionOffset": prepared, "bodyLength": len(body),
        "bodyCRCok": zlib.crc32(body) & CRC_MASK == crc, "topic": topic, "properties": read_properties(text),
        "propertiesRaw": text,
    }  # fmt: skip
    return record | kept, place + 2 + size - start


def _host(raw: bytes, place: int, *, is_v6: bool) -> tuple[str, int]:
    size = 16 if is_v6 else 4
    address = ipaddress.ip_address(raw[place : place + size])
    (port,) = struct.unpack_from(">i", raw, place + size)
    return f"{address}:{port}", place + size + 4


def physical_offset(message_id: str) -> int:
    """Return the log position of a message, which is part of the broker's message id."""
    return int(message_id[-16:], 16)
