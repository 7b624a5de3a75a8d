"""An independent reader of store files, with which tests compare `longpoll_broker.store`.

The reader is slow and simple: it reads whole files into memory, recovers nothing, and stops at the first unexpected
byte.
"""

from __future__ import annotations

import base64
import ipaddress
import pathlib
import struct
import zlib
from typing import Any


def read_log(store: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
    """Returns {"records": [fields], "blanks": [{physicalOffset, size}]} in log order.

    Reading stops at the first byte that belongs neither to a record nor to a blank.
    """
    found: dict[str, list[dict[str, Any]]] = {"records": [], "blanks": []}
    for path in sorted((store / "commitlog").iterdir()):
        content, base, position = path.read_bytes(), int(path.name), 0
        while position < len(content):
            size, magic = struct.unpack_from(">i4s", content, position)
            if magic == bytes.fromhex("CBD43194"):
                found["blanks"].append({"physicalOffset": base + position, "size": size})
                position = len(content)
            elif magic in (bytes.fromhex("DAA320A7"), bytes.fromhex("DAA320AB")):
                found["records"].append(read_record(content[position : position + size]))
                position += size
            else:
                return found
    return found


def read_record(content: bytes) -> dict[str, Any]:
    """Returns the fields of one record under RocketMQ's names; raises ValueError if its size differs from `content`."""
    names = ("totalSize", "magic", "bodyCRC", "queueId", "flag", "queueOffset", "physicalOffset", "sysFlag", "born")
    record: dict[str, Any] = dict(zip(names, struct.unpack_from(">i4siiiqqiq", content), strict=True))
    rest = content[48:]
    record["bornTimestamp"] = record.pop("born")
    record["magic"] = record["magic"].hex().upper()
    record["bornHost"], rest = _host(rest, bool(record["sysFlag"] & 0x10))
    (record["storeTimestamp"],), rest = struct.unpack(">q", rest[:8]), rest[8:]
    record["storeHost"], rest = _host(rest, bool(record["sysFlag"] & 0x20))
    record["reconsumeTimes"], record["preparedTransactionOffset"], body_size = struct.unpack(">iqi", rest[:16])
    body, rest = rest[16 : 16 + body_size], rest[16 + body_size :]
    wide = record["magic"].endswith("AB")
    topic_size, rest = (int.from_bytes(rest[:2]), rest[2:]) if wide else (rest[0], rest[1:])
    record["topic"], rest = rest[:topic_size].decode(), rest[topic_size:]
    properties, rest = rest[2 : 2 + int.from_bytes(rest[:2])], rest[2 + int.from_bytes(rest[:2]) :]
    if rest or record["totalSize"] != len(content) or record["bodyCRC"] != zlib.crc32(body) & 0x7FFFFFFF:
        raise ValueError(
            f"{len(rest)} bytes left, size {len(content)}, CRC of the body {zlib.crc32(body):08X}: {record}"
        )
    record["bodyLength"], record["body"] = body_size, base64.b64encode(body).decode()
    record["propertiesRaw"] = properties.decode()
    pairs = [pair.split("\x01", 1) for pair in record["propertiesRaw"].split("\x02") if "\x01" in pair]
    record["properties"] = dict(pairs)
    return record


def _host(content: bytes, wide: bool) -> tuple[str, bytes]:
    size = 16 if wide else 4
    address = ipaddress.ip_address(content[:size])
    return f"{address}:{int.from_bytes(content[size : size + 4])}", content[size + 4 :]


def read_queues(store: pathlib.Path) -> dict[str, list[list[int]]]:
    """Maps "topic@queue" to [queue offset, physical offset, size, tags code] of every unit with a size above 0."""
    queues: dict[str, list[list[int]]] = {}
    for path in sorted((store / "consumequeue").glob("*/*/*")):
        content, base = path.read_bytes(), int(path.name) // 20
        units = queues.setdefault(f"{path.parent.parent.name}@{path.parent.name}", [])
        for index, (physical, size, tags) in enumerate(struct.iter_unpack(">qiq", content)):
            if size > 0:
                units.append([base + index, physical, size, tags])
    return queues


def java_hash(text: str) -> int:
    """Compute `String.hashCode` by its definition, a sum of powers."""
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    code: int = sum(unit * 31 ** (len(units) - 1 - index) for index, unit in enumerate(units)) % 2**32
    return code - 2**32 if code >= 2**31 else code
