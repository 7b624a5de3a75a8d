"""An independent codec of the remoting protocol, with which tests compare `longpoll_protocol`.

The codec is simple: frames are bytes, commands are dicts, only the standard library is used, and there are no limits.
The codec was checked against real brokers.
"""

from __future__ import annotations

import json
import struct
from typing import Any

LANGUAGES = ["JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST"]


def encode_command(command: dict[str, Any], serialisation: str) -> bytes:
    """Encode a whole frame from a dict with code, language, version, opaque, flag, remark, extFields and body."""
    body: bytes = command["body"]
    if serialisation == "JSON":
        header = {name: value for name, value in command.items() if name != "body" and value is not None}
        raw = json.dumps(header | {"serializeTypeCurrentRPC": "JSON"}, ensure_ascii=False).encode()
        kind = 0
    else:
        remark = (command["remark"] or "").encode()
        fields = b""
        for name, value in (command["extFields"] or {}).items():
            fields += struct.pack(">h", len(name.encode())) + name.encode()
            fields += struct.pack(">i", len(value.encode())) + value.encode()
        language = LANGUAGES.index(command["language"])
        raw = struct.pack(">hbhii", command["code"], language, command["version"], command["opaque"], command["flag"])
        raw += struct.pack(">i", len(remark)) + remark + struct.pack(">i", len(fields)) + fields
        kind = 1
    return struct.pack(">iI", 4 + len(raw) + len(body), kind << 24 | len(raw)) + raw + body


def decode_command(frame: bytes) -> dict[str, Any]:
    """Decode a whole frame to a dict."""
    length, mark = struct.unpack_from(">iI", frame)
    assert length == len(frame) - 4, frame
    raw, body = frame[8 : 8 + (mark & 0xFFFFFF)], frame[8 + (mark & 0xFFFFFF) :]
    if mark >> 24 == 0:
        command: dict[str, Any] = {"remark": None, "extFields": None} | json.loads(raw)
        del command["serializeTypeCurrentRPC"]
        return command | {"body": body}
    code, language, version, opaque, flag, remark_size = struct.unpack_from(">hbhiii", raw)
    at = 17 + remark_size
    remark = raw[17:at].decode() if remark_size else None
    (left,) = struct.unpack_from(">i", raw, at)
    at += 4
    assert at + left == len(raw), frame
    fields = {}
    while at < len(raw):
        (size,) = struct.unpack_from(">h", raw, at)
        name = raw[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", raw, at)
        fields[name] = raw[at + 4 : at + 4 + size].decode()
        at += 4 + size
    return {
        "code": code,
        "language": LANGUAGES[language],
        "version": version,
        "opaque": opaque,
        "flag": flag,
        "remark": remark,
        "extFields": fields or None,
        "body": body,
    }
