"""Decodes and checks a record of the commit log, with its hosts and properties.

`longpoll_broker.store.commit_log` encodes records. The checksums of properties that 5.x can append are not supported.

All integers are big-endian, and signed except where noted (`CommitLog.java`, `MessageDecoder.java`):

    Offset  Size  What
    0       4     total size of the record, bytes
    4       4     magic: DAA320A7 (V1), DAA320AB (V2, from 5.0: the topic's length takes two bytes)
    8       4     CRC-32 of the body, without its highest bit
    12      4     queue id
    16      4     flag, the producer's
    20      8     queue offset; 0 for prepared and rolled-back transactional messages
    28      8     physical offset: where this record begins in the log
    36      4     system flag: 0x1 compressed body, 0xC transaction type, 0x10 born host IPv6, 0x20 store host IPv6
    40      8     born timestamp, milliseconds
    48      8|20  born host: address, then the port in 4 bytes
    .       8     store timestamp, milliseconds
    .       8|20  store host
    .       4     times it was consumed again
    .       8     prepared transaction offset
    .       4+n   body length, body
    .       1+n   topic length (V2: 2+n; unsigned), topic in UTF-8
    .       2+n   properties length, properties: name 01 value 02 ...

A blank fills the rest of a file when the next record does not fit: 4 bytes size of the rest, 4 bytes magic
CBD43194, anything after. A record and the 8 bytes of a blank always fit together, so a file never ends mid-record.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.message import PROPERTIES_SIZE_MAX
from longpoll_protocol.properties import DELAY, DELAY_LEVELS_MS, TAGS, decode_properties, tags_code
from longpoll_spec.tables import with_table

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
BLANK_SIZE_MIN: Final = 8
CRC_MASK: Final = 0x7FFFFFFF
SECTOR_SIZE: Final = 512
"""The number of bytes that a disk writes atomically."""
_SECTOR_OF_ZEROS: Final = bytes(SECTOR_SIZE)

SYS_FLAG_TRANSACTION_MASK: Final = 0xC
SYS_FLAG_TRANSACTION_PREPARED: Final = 0x4
SYS_FLAG_TRANSACTION_ROLLBACK: Final = 0xC
NOT_LISTED: Final = (SYS_FLAG_TRANSACTION_PREPARED, SYS_FLAG_TRANSACTION_ROLLBACK)
"""The transaction types of messages that no consume queue lists."""
SYS_FLAG_BORN_HOST_V6: Final = 0x10
SYS_FLAG_STORE_HOST_V6: Final = 0x20

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
LEVEL: Final = re.compile("[0-9]{1,9}")
"""The form of a delay level. Longer numbers overflow in Java."""

SIZE_AND_MAGIC: Final = struct.Struct(">iI")
HEAD: Final = struct.Struct(">iIiiiqqiq")
"""The first 48 bytes, up to the born host."""
HEAD_SIZE: Final = 48
FIXED_SIZE: Final = HEAD_SIZE + 8 + 8 + 8 + 4 + 8 + 4 + 1 + 2
"""The size of an empty V1 record with IPv4 hosts, 91 bytes."""
Lookup: TypeAlias = Callable[[str], str | None]
"""A function that returns a message's property by its name; None if the property is absent or empty."""
_AFTER_HOSTS: Final = struct.Struct(">iqi")
_LONG: Final = struct.Struct(">q")
_PLAIN: Final = struct.Struct(">4xI28xi16xq20xi")
"""The fields magic, system flag, store timestamp and body length of a V1 record with IPv4 hosts."""
_SHORT: Final = struct.Struct(">h")
_PORT: Final = struct.Struct(">i")


def as_int32(value: int) -> int:
    """Wrap a sum as Java's `int` arithmetic does, so that 2**31 becomes -2**31."""
    return (value + 2**31) % 2**32 - 2**31


@with_table
class Damage(msgspec.Struct, frozen=True):
    """Why bytes are not a complete record: `offset` bytes after the start, they have `found` instead of `expected`."""

    offset: int
    found: str
    expected: str


@with_table
class Record(msgspec.Struct, frozen=True):
    """One decoded record. The command `inspect` prints its fields with RocketMQ's names."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: memoryview
    topic: str
    properties: bytes

    @property
    def in_queue(self) -> bool:
        """Whether a consume queue lists the message. Prepared and rolled-back messages are only in the log."""
        return self.sys_flag & SYS_FLAG_TRANSACTION_MASK not in NOT_LISTED

    def lacks_sector(self, file_size: int) -> bool:
        """Whether topic and properties look as if a crash had lost a part: a sector of zeros, or zeros at the end.

        No checksum covers topic and properties, but `with_zeros` ensures that messages of our broker never look like
        this. `file_size` is the size of each file of the log, in bytes.
        """
        if b"\0" not in self.properties and "\0" not in self.topic:
            return False
        if self.properties.endswith(b"\0"):
            return True
        topic = self.topic.encode()
        unchecked = bytes((len(topic),)) + topic + _SHORT.pack(len(self.properties)) + self.properties
        stop = self.physical_offset % file_size + self.size
        start = stop - len(unchecked)
        borders = [start, *range(start - start % SECTOR_SIZE + SECTOR_SIZE, stop, SECTOR_SIZE), stop]
        return any(not any(unchecked[one - start : other - start]) for one, other in itertools.pairwise(borders))

    @property
    def tags_code(self) -> int:
        """The tags code in the message's entry of the consume queue, for RocketMQ's default delay levels.

        Source: `CommitLog.checkMessageAndReturnSize`.
        """
        return tags_code_of(self.topic, self.properties, self.store_ms)


def decode(buffer: memoryview, start: int, stop: int, physical_offset: int) -> Record | Damage:
    """Decode and check the record that begins at `start`; `buffer[:stop]` may contain only a part of the record.

    The checks cover the size, the magic number, the record's own physical offset, the sum of the inner lengths, the
    topic's UTF-8, and the CRC of the body.
    """
    if stop - start < HEAD_SIZE:
        return Damage(0, f"{stop - start} bytes to the end of the file", "a record")
    head = HEAD.unpack_from(buffer, start)
    size, magic = head[0], head[1]
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Damage(4, f"magic {magic:08X}", f"magic {MAGIC_V1:08X} or {MAGIC_V2:08X}")
    if not FIXED_SIZE <= size <= stop - start:
        return Damage(0, f"size {size}", f"a size from {FIXED_SIZE} to {stop - start}, the rest of the file")
    if head[6] != physical_offset:
        return Damage(28, f"physical offset {head[6]}", f"its own place, {physical_offset}")
    return _decode_rest(buffer, start, head)


def _decode_rest(  # noqa: PLR0911  one return a way to be damaged
    buffer: memoryview, start: int, head: tuple[int, int, int, int, int, int, int, int, int]
) -> Record | Damage:
    size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = head
    end = start + size
    position = start + HEAD_SIZE
    born_size = 20 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 8
    store_size = 20 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 8
    topic_length_size = 2 if magic == MAGIC_V2 else 1
    if FIXED_SIZE - 16 - 1 + born_size + store_size + topic_length_size > size:
        return Damage(0, f"size {size}", "room for its own fixed fields")
    born_host = bytes(buffer[position : position + born_size])
    position += born_size
    (store_ms,) = _LONG.unpack_from(buffer, position)
    position += 8
    store_host = bytes(buffer[position : position + store_size])
    position += store_size
    reconsume_times, prepared_offset, body_size = _AFTER_HOSTS.unpack_from(buffer, position)
    position += 16
    if not 0 <= body_size <= end - position - topic_length_size - 2:
        return Damage(position - 4 - start, f"body length {body_size}", f"room in a record of {size} bytes")
    body = buffer[position : position + body_size]
    position += body_size
    topic_size = _SHORT.unpack_from(buffer, position)[0] if magic == MAGIC_V2 else buffer[position]
    position += topic_length_size
    if not 0 < topic_size <= end - position - 2:
        return Damage(position - topic_length_size - start, f"topic length {topic_size}", "a topic inside the record")
    try:
        topic = str(buffer[position : position + topic_size], "utf-8")
    except UnicodeDecodeError as error:
        return Damage(position + error.start - start, "bytes that are not UTF-8", "the topic in UTF-8")
    position += topic_size
    (properties_size,) = _SHORT.unpack_from(buffer, position)
    position += 2
    if properties_size != end - position:
        return Damage(position - 2 - start, f"properties length {properties_size}", f"the rest, {end - position}")
    crc = zlib.crc32(body) & CRC_MASK
    if crc != body_crc:
        return Damage(8, f"body CRC {body_crc:08X}", f"{crc:08X}, computed from the body")
    return Record(
        size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms,
        store_host, reconsume_times, prepared_offset, body, topic, bytes(buffer[position:end]),
    )  # fmt: skip


def with_zeros(encoded: bytes) -> bytes:
    """Change encoded properties that have zero bytes, so that they do not look like bytes that a crash has lost.

    After a trailing zero this function adds an end mark, which decoders ignore. Raises MessageRefusedError if so many
    zeros are consecutive that they could fill a sector.
    """
    if _SECTOR_OF_ZEROS in encoded:
        raise MessageRefusedError(
            f"the properties hold {SECTOR_SIZE} consecutive zero bytes, which look as if a crash had lost them"
        )
    marked = encoded + b"\x02" if encoded.endswith(b"\0") else encoded
    if len(marked) > PROPERTIES_SIZE_MAX:
        raise MessageRefusedError(f"the properties end with a zero byte and have {len(encoded)} bytes, one too many")
    return marked


def property_of(encoded: bytes, name: str) -> str | None:
    """Return one property without decoding the others; None if the property is absent or empty."""
    key = name.encode() + b"\x01"
    # If a name occurs several times, the last occurrence counts. Several forward searches are much faster than one
    # backward search.
    mark = b"\x02" + key
    found = following = encoded.find(mark)
    while following >= 0:
        found = following
        following = encoded.find(mark, following + 1)
    if found >= 0:
        start = found + 1 + len(key)
    elif encoded.startswith(key):
        start = len(key)
    else:
        return None
    stop = encoded.find(b"\x02", start)
    value = encoded[start:] if stop < 0 else encoded[start:stop]
    # If the value is empty, an earlier pair with the same name counts, so decode all pairs. Empty values are rare.
    return value.decode("utf-8", "replace") if value else decode_properties(encoded).get(name)


SEARCHED_COUNT_MAX: Final = 4
"""The number of property names that a lookup searches in the encoded properties. For further names it decodes all
properties once, because an expression may have a thousand names."""


def lookup_in(record: memoryview) -> Lookup:
    """Return a lookup of a record's properties by name. In a damaged record, the lookup finds no property."""
    encoded, few = properties_in(record), dict[str, str | None]()
    decoded: dict[str, str] | None = None

    def lookup(name: str) -> str | None:
        nonlocal decoded
        if name in few:
            return few[name]
        if len(few) < SEARCHED_COUNT_MAX:
            found = few[name] = property_of(encoded, name)
            return found
        if decoded is None:
            decoded = decode_properties(encoded)
        return decoded.get(name)

    return lookup


def properties_in(record: memoryview) -> bytes:
    """Return the encoded properties of a record's bytes; empty if the record is damaged."""
    try:
        return bytes(record[_properties_start(record) :])
    except (struct.error, IndexError):
        return b""


def keyed_part(record: bytes) -> tuple[int, int, str, bytes] | None:
    """Returns (system flag, store timestamp, topic, properties) of a complete record's bytes, unchecked.

    Returns None if the record is incomplete or is not V1 with IPv4 hosts; use `decode` for such a record.
    """
    try:
        magic, sys_flag, store_ms, body_size = _PLAIN.unpack_from(record)
        topic_start = _PLAIN.size + body_size + 1
        properties_start = topic_start + record[topic_start - 1] + 2
        topic = record[topic_start : properties_start - 2].decode()
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    if magic != MAGIC_V1 or sys_flag & (SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6):
        return None
    return sys_flag, store_ms, topic, record[properties_start:]


def _properties_start(record: memoryview) -> int:
    """Returns the offset of the properties in a record, from the lengths before them, without checks."""
    head = HEAD.unpack_from(record)
    magic, sys_flag = head[1], head[7]
    position = HEAD_SIZE + 8 + (20 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 8)
    position += (20 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 8) + _AFTER_HOSTS.size
    body_size: int = _AFTER_HOSTS.unpack_from(record, position - _AFTER_HOSTS.size)[2]
    position += body_size
    topic_size: int = _SHORT.unpack_from(record, position)[0] if magic == MAGIC_V2 else record[position]
    return position + (2 if magic == MAGIC_V2 else 1) + topic_size + 2


def tags_code_of(topic: str, properties: bytes, store_ms: int, levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """Return the tags code of a stored message, or for a delayed message the time of delivery in milliseconds.

    Source: `CommitLog.checkMessageAndReturnSize`.
    """
    if topic == SCHEDULE_TOPIC:
        level = property_of(properties, DELAY)
        if level is not None and LEVEL.fullmatch(level) and int(level) > 0:
            return store_ms + levels_ms[min(int(level), len(levels_ms)) - 1]
    return tags_code(property_of(properties, TAGS))


def host_bytes(address: str, port: int) -> bytes:
    """Encode a host as in a record; raises ValueError if the IP address is invalid."""
    return ipaddress.ip_address(address).packed + _PORT.pack(port)


@functools.lru_cache(maxsize=1024)
def host_text(host: bytes) -> str:
    """Return a host in a record as text, such as `127.0.0.1:10911`. As in Java, an IPv6 address has no brackets."""
    return f"{ipaddress.ip_address(host[:-4])}:{_PORT.unpack_from(host, len(host) - 4)[0]}"
