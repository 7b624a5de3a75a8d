"""Encodes and decodes parts of a message on the wire: message ids, bodies of batches, and recall handles.

`log_record` has records of the commit log.

Source: `common/message/MessageDecoder.java`, `MessageConst.java`, `MessageClientIDSetter.java`,
`java.lang.String.hashCode`.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from struct import Struct
from typing import Final

from attrs import frozen

from longpoll_protocol.errors import HeaderError, LocalProtocolError, MessageRefusedError
from longpoll_protocol.frames import Buffer

HANDLE_SIZE_MAX: Final = 4096
"""Maximum characters of a recall handle that is decoded."""
_HANDLE_VERSION: Final = "v1"
_HANDLE_PART_COUNT: Final = 5
PROPERTIES_SIZE_MAX: Final = 2**15 - 1
"""Maximum bytes of the property text in UTF-8, because a record stores its size as int16."""
BATCH_COUNT_MAX: Final = 18_000
"""Maximum number of messages in one batch, whose ids must fit in one header (`frames.HEADER_SIZE_MAX`).

The id from a broker with an IPv6 address has 56 characters. Java does not limit the messages of a batch."""

# Message id, upper-case hexadecimal of:
#
# | offset | size    | field                                  |
# |--------|---------|----------------------------------------|
# | 0      | 4 or 16 | address of the broker, IPv4 or IPv6    |
# | a      | 4       | its port                               |
# | a + 4  | 8       | physical offset in the commit log      |
_PORT_OFFSET: Final = Struct(">iq")


def message_id(host: str, port: int, physical_offset: int) -> str:
    """Returns the id of a stored message: 32 characters, or 56 if the broker's address is IPv6."""
    return (ip_address(host).packed + _PORT_OFFSET.pack(port, physical_offset)).hex().upper()


def message_id_position(text: str) -> tuple[str, int, int]:
    """Split a message id into host, port and physical offset; raises HeaderError if the text is not a message id."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) not in {16, 28}:
        raise HeaderError("a message id", "msgId", f"is not 32 or 56 hexadecimal digits: {text[:60]!r}")
    port, physical_offset = _PORT_OFFSET.unpack(raw[-12:])
    return str(ip_address(raw[:-12])), port, physical_offset


# One message of a batch body, big endian:
#
# | offset | size | field                           |
# |--------|------|---------------------------------|
# | 0      | 4    | total size                      |
# | 4      | 4    | magic, always 0                 |
# | 8      | 4    | body CRC, always 0              |
# | 12     | 4    | flag                            |
# | 16     | 4    | body size b                     |
# | 20     | b    | body                            |
# | 20 + b | 2    | property text size p            |
# | 22 + b | p    | property text                   |
_BATCH_HEAD: Final = Struct(">iiiii")
_BATCH_PROPERTIES: Final = Struct(">h")
BATCH_MESSAGE_SIZE_MIN: Final = _BATCH_HEAD.size + _BATCH_PROPERTIES.size
"""The bytes of the shortest message in a batch."""


@frozen
class BatchMessage:
    """One message of a batch."""

    body: Buffer
    properties: str
    """The properties as text: each property's name, the character 01, its value, and the character 02."""
    flag: int = 0


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """Encode the body of SEND_BATCH_MESSAGE (320).

    Raises LocalProtocolError if properties are too long or not Unicode.
    """
    parts: list[Buffer] = []
    for message in messages:
        try:
            properties = message.properties.encode()
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"text is not Unicode: {error}") from None
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise LocalProtocolError(
                f"{len(properties)} bytes of properties are over the limit of {PROPERTIES_SIZE_MAX}"
            )
        size = BATCH_MESSAGE_SIZE_MIN + len(message.body) + len(properties)
        parts.append(_BATCH_HEAD.pack(size, 0, 0, message.flag, len(message.body)))
        parts.extend((message.body, _BATCH_PROPERTIES.pack(len(properties)), properties))
    return b"".join(parts)


def decode_batch(body: Buffer, count_max: int = BATCH_COUNT_MAX) -> list[BatchMessage]:
    """Decode the body of SEND_BATCH_MESSAGE (320). The bodies of its messages are views of `body`.

    Raises HeaderError if the batch is damaged, and MessageRefusedError if it has more than `count_max` messages.
    """
    return list(read_batch(body, count_max))


def read_batch(body: Buffer, count_max: int = BATCH_COUNT_MAX) -> Iterator[BatchMessage]:
    """Yield the messages of SEND_BATCH_MESSAGE (320), and raise the error of `decode_batch` at the faulty message."""
    view = memoryview(body)
    at = count = 0
    while at < len(view):
        if count == count_max:
            raise MessageRefusedError(f"the batch has more than {count_max} messages")
        message, at = _decode_batch_message(view, at)
        count += 1
        yield message


def _decode_batch_message(view: memoryview, at: int) -> tuple[BatchMessage, int]:
    """Decode the message at an offset of a batch; returns the message and the offset of the next message."""
    damage = HeaderError("a batch", "body", f"is damaged at byte {at}")
    try:
        size, _magic, _crc, flag, body_size = _BATCH_HEAD.unpack_from(view, at)
        body_start = at + _BATCH_HEAD.size
        if body_size < 0 or size < BATCH_MESSAGE_SIZE_MIN + body_size:
            raise damage
        (properties_size,) = _BATCH_PROPERTIES.unpack_from(view, body_start + body_size)
    except struct.error:
        raise damage from None
    properties_start = body_start + body_size + _BATCH_PROPERTIES.size
    stop = properties_start + properties_size
    if properties_size < 0 or stop != at + size or stop > len(view):
        raise damage
    try:
        properties = bytes(view[properties_start:stop]).decode()
    except UnicodeDecodeError:
        raise damage from None
    return BatchMessage(view[body_start : body_start + body_size], properties, flag), stop


@frozen
class RecallHandle:
    """The handle from a send's answer by which a 5.x producer recalls a timed message.

    The handle is URL-safe base64 of the words `v1 TOPIC BROKER MILLISECONDS KEY`. Source: `RecallMessageHandle.java`
    5.4.
    """

    topic: str
    broker_name: str
    time: str
    """The time of delivery, in milliseconds since 1970, or any text in a forged handle."""
    key: str
    """The unique key of the message (its property UNIQ_KEY)."""

    def encode(self) -> str:
        """Encode the handle."""
        text = f"{_HANDLE_VERSION} {self.topic} {self.broker_name} {self.time} {self.key}"
        return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode()


def read_handle(handle: str) -> RecallHandle | None:
    """Decode a recall handle; returns None if it is invalid."""
    if len(handle) > HANDLE_SIZE_MAX:
        return None
    try:
        text = base64.b64decode(handle.encode("ascii"), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return None
    version, *parts = text.split(" ")
    if version != _HANDLE_VERSION or len(parts) != _HANDLE_PART_COUNT - 1:
        return None
    return RecallHandle(*parts)
