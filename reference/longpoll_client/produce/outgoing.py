"""Checks and encodes messages and batches for a producer, with their ids.

`attempts` chooses the queue. A template per queue holds the constant part of the request header. Message ids have the
layout of Java's ids, so that Java's tools read their time and address:

| offset | size | field                                                                        |
|--------|------|------------------------------------------------------------------------------|
| 0      | 4    | IPv4 address of the sender                                                   |
| 4      | 2    | the low bits of the sender's process id                                      |
| 6      | 4    | a random number (Java: the hash of a class loader)                           |
| 10     | 4    | milliseconds since the month began, in the sender's own time zone            |
| 14     | 2    | a counter                                                                    |

An id is written as 32 upper-case hexadecimal digits. The longer form that Java uses on hosts with only IPv6 is not
supported. For the id that a broker gives a message see `longpoll_protocol.message`.

Source: `Message.java`, `MessageBatch.java`, `Validators.checkMessage`, `DefaultMQProducerImpl.sendKernelImpl`,
`MessageClientIDSetter.java` 4.9.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Protocol

import msgspec
from attrs import field, frozen
from msgspec.structs import replace

from longpoll_client.checks import check_one_of, check_tag, check_topic, check_whole, delay_level, keys_text, unix_ms
from longpoll_client.link.exchange import Write
from longpoll_client.link.routes import DEFAULT_QUEUE_COUNT
from longpoll_protocol.codes import VERSION, MessageSysFlag, RequestCode
from longpoll_protocol.compression import Compression, check_installed, pack
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.frames import Buffer, Serialisation, frame_head
from longpoll_protocol.headers import Header, SendMessageRequestHeaderV2
from longpoll_protocol.message import BATCH_COUNT_MAX, PROPERTIES_SIZE_MAX, BatchMessage, encode_batch
from longpoll_protocol.names import DEFAULT_TOPIC, name_problem
from longpoll_protocol.properties import (
    DELAY,
    KEYS,
    NAME_END,
    PAIR_END,
    PREPARED,
    PRODUCER_GROUP,
    TAGS,
    TIMER_DELIVER_MS,
    UNIQUE_KEY,
    WAIT,
    encode_properties,
)
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Runtime
from longpoll_spec.errors import ConfigError
from longpoll_spec.tables import with_table

COUNT_MAX: Final = 1 << 16
"""Maximum ids of one millisecond, which differ by the counter."""


class MessageIds:
    """Creates the ids of one producer; any thread may call the methods.

    All ids are unique. The counter separates ids of one millisecond. A new random prefix is drawn when time and counter
    could repeat: after a fork, a change of the month, a clock that was set back, or an overflow of the counter. Every
    producer and process has its own prefix.

    Invariant, under `_lock`: the ids with the current `_prefix` were made in process `_process_id`, in the month from
    `_begin_ms` up to `_end_ms`, and not after `_last_ms`. Of the millisecond `_last_ms` there are `_count` ids, which
    begin with `_written` and end with counters up to `_counter`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._unix_ms = runtime.unix_ms
        self._current_process_id = runtime.process_id
        self.forked()
        runtime.when_forked(self)
        self._prefix = self._written = ""
        self._process_id = -1
        self._begin_ms = self._end_ms = self._last_ms = 0
        self._count = 0
        self._counter = 0

    def forked(self) -> None:
        """Replace the lock after a fork; the next id gets a new prefix, because the process id differs."""
        self._lock = self._runtime.lock()

    def new(self, count: int) -> list[str]:
        """Returns `count` new ids, in order."""
        with self._lock:
            self._look_at_clock()
            return [self._one() for _number in range(count)]

    def one(self) -> tuple[str, int]:
        """Returns one new id and its Unix time, ms."""
        with self._lock:
            now_ms = self._look_at_clock()
            return self._one(), now_ms

    def _look_at_clock(self) -> int:
        """Begin a new millisecond or prefix if necessary; returns the Unix time, ms."""
        now_ms = self._unix_ms()
        is_of_process = self._process_id == self._current_process_id()
        if is_of_process and now_ms == self._last_ms:
            return now_ms
        if is_of_process and self._last_ms < now_ms < self._end_ms:
            self._begin(now_ms)
        else:
            self._draw(now_ms)
        return now_ms

    def _one(self) -> str:
        if self._count == COUNT_MAX:
            self._draw(self._last_ms)
        self._count += 1
        self._counter = (self._counter + 1) % COUNT_MAX
        return f"{self._written}{self._counter:04X}"

    def _draw(self, now_ms: int) -> None:
        self._process_id = self._runtime.process_id()
        identity = self._runtime.identity()
        self._prefix = f"{identity[:4].hex()}{self._process_id % (1 << 16):04x}{identity[4:].hex()}".upper()
        self._begin_ms, self._end_ms = month_of(now_ms)
        self._begin(now_ms)

    def _begin(self, now_ms: int) -> None:
        self._last_ms, self._count = now_ms, 0
        self._written = f"{self._prefix}{now_ms - self._begin_ms:08X}"


def month_of(unix_ms: int) -> tuple[int, int]:
    """Return the begin and end of the local month of a time. All times are Unix times, ms."""
    now = datetime.fromtimestamp(unix_ms // 1000)  # noqa: DTZ006 - the sender's own zone, as `Calendar.getInstance`
    begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (begin + timedelta(days=31)).replace(day=1)
    return int(begin.timestamp()) * 1000, int(end.timestamp()) * 1000


BODY_SIZE_MAX: Final = 4 * MIB
"""`maxMessageSize` of producers: the maximum bytes of a message, and of all messages of a batch."""
COMPRESS_OVER_BYTES: Final = 4096
_BYTES: Final = (bytes, bytearray, memoryview)
_MAPPINGS: Final = (dict, Mapping)
"""Types of mappings for `isinstance`. A check for `dict` takes a tenth of the time of a check for `Mapping`."""
NO_MARKS: Final[Mapping[str, str]] = MappingProxyType({})
RESERVED_PROPERTIES: Final = frozenset({TAGS, KEYS, UNIQUE_KEY, WAIT, DELAY, PREPARED, TIMER_DELIVER_MS})


@with_table
class OutgoingMessage(msgspec.Struct, frozen=True):
    """One message to send."""

    body: bytes
    tag: str | None = None
    """The message's tag; subscriptions select messages by tag."""
    keys: str | Sequence[str] | None = None
    """The keys of the message, as a list or separated by spaces."""
    properties: Mapping[str, str] = {}
    delay_s: float = 0.0
    """Consumers get the message after this delay, rounded up to a broker's delay level (`Retry`); 0 means at once."""
    deliver_at: datetime | None = None
    """Consumers get the message at this time; this needs a 5.x broker."""

    @property
    def is_delayed(self) -> bool:
        """Whether the message has a delay or a delivery time."""
        return bool(self.delay_s) or self.deliver_at is not None

    def _check(self) -> None:
        """Check that the fields can be sent unchanged; raises ConfigError."""
        check_tag(self.tag)
        for name, value in self.properties.items():
            if not (isinstance(name, str) and isinstance(value, str) and name and value):
                raise ConfigError(f"property {name!r} is {value!r}; pass non-empty texts as name and value")
        if self.delay_s and self.deliver_at is not None:
            raise ConfigError("delay_s and deliver_at cannot be used together; pass one of them")

    def property_text(self, msg_id: str) -> str:
        """Returns all properties in their encoded form; raises ConfigError."""
        if not (self.properties or self.tag or self.keys or self.is_delayed):
            return f"{UNIQUE_KEY}{NAME_END}{msg_id}{PAIR_END}{WAIT}{NAME_END}true{PAIR_END}"
        self._check()
        own = {
            TAGS: self.tag,
            KEYS: None if self.keys is None else keys_text(self.keys),
            UNIQUE_KEY: msg_id,
            WAIT: "true",
            DELAY: str(delay_level(self.delay_s)) if self.delay_s else None,
            TIMER_DELIVER_MS: None if self.deliver_at is None else str(unix_ms("deliver_at", self.deliver_at)),
        }
        try:
            text = encode_properties(dict(self.properties) | {name: value for name, value in own.items() if value})
        except LocalProtocolError as error:
            raise ConfigError(str(error)) from None
        # A character has at most four bytes, so most texts are known to be short enough without encoding them.
        if 4 * len(text) > PROPERTIES_SIZE_MAX and len(text.encode()) > PROPERTIES_SIZE_MAX:
            raise ConfigError(f"properties of {len(text.encode())} bytes are over the limit of {PROPERTIES_SIZE_MAX}")
        return text


@frozen
class Packing:
    """Whether and how message bodies are compressed. Batches are never compressed."""

    compression: Compression | None
    over_bytes: int = field(default=COMPRESS_OVER_BYTES)
    """Bodies shorter than this many bytes are sent uncompressed (`compressMsgBodyOverHowmuch`)."""

    def __attrs_post_init__(self) -> None:
        """Check the settings; raises ConfigError."""
        check_whole("compress_over_bytes", self.over_bytes, 0)
        if self.compression is not None:
            check_one_of("compression", self.compression, Compression)
            try:
                check_installed(self.compression)
            except LocalProtocolError as error:
                raise ConfigError(f"compression: {error}") from None

    def packed(self, body: bytes) -> tuple[bytes, int]:
        """Return the body to send and its system flag. A body that compression does not shorten stays as it is."""
        if self.compression is None or len(body) < self.over_bytes:
            return body, 0
        packed = pack(self.compression, body)
        return (packed, self.compression.sys_flag) if len(packed) < len(body) else (body, 0)


UNPACKED: Final = Packing(None)


@with_table
class Parcel(msgspec.Struct, frozen=True, gc=False):
    """An encoded message or batch, the same for every attempt."""

    group: str
    topic: str
    code: RequestCode
    properties: str
    body: bytes
    msg_ids: tuple[str, ...]
    """The ids of the messages, in order."""
    born_ms: int
    sys_flag: int = 0
    """`MessageSysFlag` bits."""

    def header(self, queue_id: int) -> SendMessageRequestHeaderV2:
        """Returns the request header for one queue."""
        return SendMessageRequestHeaderV2(
            producer_group=self.group,
            topic=self.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=DEFAULT_QUEUE_COUNT,
            queue_id=queue_id,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_ms,
            flag=0,
            properties=self.properties,
            reconsume_times=0,
            batch=self.code == RequestCode.SEND_BATCH_MESSAGE,
        )


def single_parcel(
    group: str,
    topic: str,
    message: OutgoingMessage,
    msg_id: str,
    born_ms: int,
    *,
    packing: Packing = UNPACKED,
    marks: Mapping[str, str] = NO_MARKS,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
) -> Parcel:
    """Encode one message; raises ConfigError. `marks` are the properties that the client adds."""
    check_message(topic, message.body, message.properties)
    if marks:
        message = replace(message, properties={**message.properties, **marks})
    text = message.property_text(msg_id)
    # `bytes` copies a mutable body, so that later changes are not sent, and does not copy an immutable one.
    body, flag = packing.packed(bytes(message.body))
    return Parcel(group, topic, code, text, body, (msg_id,), born_ms, flag)


def prepared_parcel(
    group: str,
    topic: str,
    message: OutgoingMessage,
    msg_id: str,
    born_ms: int,
    *,
    packing: Packing = UNPACKED,
    marks: Mapping[str, str] = NO_MARKS,
) -> Parcel:
    """Encode one message that waits for the end of its transaction; raises ConfigError."""
    marks = {**marks, PREPARED: "true", PRODUCER_GROUP: group}
    parcel = single_parcel(group, topic, message, msg_id, born_ms, packing=packing, marks=marks)
    return replace(parcel, sys_flag=parcel.sys_flag | MessageSysFlag.TRANSACTION_PREPARED.value)


def check_batch(messages: Sequence[OutgoingMessage]) -> None:
    """Check the types of a batch; raises ConfigError."""
    if not isinstance(messages, Sequence):
        raise ConfigError(f"a {type(messages).__name__} is not a batch; pass a list of OutgoingMessages")
    for message in messages:
        if not isinstance(message, OutgoingMessage):
            raise ConfigError(f"a {type(message).__name__} is not a message of a batch; pass an OutgoingMessage")


def batch_parcel(
    group: str, topic: str, messages: Sequence[OutgoingMessage], msg_ids: Sequence[str], born_ms: int
) -> Parcel:
    """Encode messages of one topic that the broker stores together or not at all; raises ConfigError."""
    if not 0 < len(messages) <= BATCH_COUNT_MAX:
        raise ConfigError(f"a batch of {len(messages)} messages is not allowed: 1 to {BATCH_COUNT_MAX}")
    for message in messages:
        check_message(topic, message.body, message.properties)
        if message.is_delayed:
            raise ConfigError("a message in a batch cannot be delayed; send it alone")
    body = encode_batch(
        BatchMessage(bytes(message.body), message.property_text(msg_id))
        for message, msg_id in zip(messages, msg_ids, strict=True)
    )
    check_message(topic, body, {})
    text = encode_properties({WAIT: "true"})
    return Parcel(group, topic, RequestCode.SEND_BATCH_MESSAGE, text, body, tuple(msg_ids), born_ms)


def check_message(topic: str, body: bytes, properties: Mapping[str, str]) -> None:
    """Check a message as every broker does before it is sent; raises ConfigError."""
    if not isinstance(topic, str) or not _is_named_well(topic):
        check_topic(topic)
    if not isinstance(body, _BYTES):
        raise ConfigError(f"a body of type {type(body).__name__} cannot be sent; pass bytes, such as text.encode()")
    size = len(body) if type(body) is bytes else _size_of(body)
    if size > BODY_SIZE_MAX:
        raise ConfigError(f"body of {size} bytes is over the limit of {BODY_SIZE_MAX}")
    if not isinstance(properties, _MAPPINGS):
        raise ConfigError(f"properties are {str(properties)[:40]!r}; pass a mapping of text to text")
    reserved = RESERVED_PROPERTIES & properties.keys() if properties else ()
    if reserved:
        raise ConfigError(f"property {min(reserved)} is reserved for the client; use the matching option instead")


def _size_of(body: Buffer) -> int:
    """Returns a body's size in bytes; `len` of a `memoryview` counts only the items of its first dimension."""
    if not isinstance(body, memoryview):
        return len(body)
    try:
        return body.nbytes
    except ValueError:
        raise ConfigError("the body is a released memoryview; release it after the send") from None


def as_given(topic: str, message: OutgoingMessage) -> OutgoingMessage:
    """Returns a copy of the message, so that later changes of its body and properties are not sent.

    Raises ConfigError for a message that cannot be sent.
    """
    check_message(topic, message.body, message.properties)
    message.property_text("")
    return replace(message, body=bytes(message.body), properties=dict(message.properties))


@lru_cache(maxsize=1024)
def _is_named_well(topic: str) -> bool:
    """Returns whether a topic name is valid. The result is cached, because every message needs it."""
    return not name_problem(topic)


TEMPLATE_COUNT_MAX: Final = 10_000
"""Maximum cached templates, one per queue, of 300 bytes each."""
BORN: Final = "g"
PROPERTIES: Final = "i"
"""`BORN` and `PROPERTIES` are the wire names (`SendMessageRequestHeaderV2`) of the two fields that differ between
messages of a queue."""

_JSON: Final = Serialisation.JSON
_encode: Final = msgspec.json.Encoder().encode


class _RequestWriter(Protocol):
    @property
    def is_signed(self) -> bool: ...
    def writer(self, code: int, header: Header | None, body: Buffer, /) -> Write: ...


class HeadTemplates:
    """The header templates of one producer. Several threads at once may create a template, at its first use."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int, int, int], bytes] = {}

    def writer(self, connection: _RequestWriter, parcel: Parcel, queue_id: int) -> Write:
        """Return the function that encodes a send request, from a template unless the request is signed."""
        if connection.is_signed:
            return connection.writer(parcel.code, parcel.header(queue_id), parcel.body)
        return lambda opaque: [self.head(parcel, queue_id, opaque), parcel.body]

    def head(self, parcel: Parcel, queue_id: int, opaque: int) -> bytes:
        """Returns the bytes that precede the body in the frame; raises LocalProtocolError if the header is invalid."""
        key = (parcel.topic, parcel.group, queue_id, parcel.code, parcel.sys_flag)
        template = self._known.get(key)
        if template is None:
            if len(self._known) >= TEMPLATE_COUNT_MAX:
                self._known.clear()
            template = self._known[key] = _template(parcel, queue_id)
        try:
            header = template % (opaque, parcel.born_ms, _encode(parcel.properties))
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"text is not Unicode: {error}") from None
        return frame_head(_JSON, header, len(parcel.body))


def _template(parcel: Parcel, queue_id: int) -> bytes:
    """Returns the encoded header with placeholders for opaque, time and properties."""
    places = {BORN: b'"%d"', PROPERTIES: b"%b"}
    fields = parcel.header(queue_id).encode()
    written = [_fixed(name) + b":" + (places.get(name) or _fixed(value)) for name, value in fields.items()]
    return b"".join(
        (
            b'{"code":%d,"language":"PYTHON","version":%d,"opaque":' % (parcel.code, VERSION),
            b'%d,"flag":0,"serializeTypeCurrentRPC":"JSON","extFields":{',
            b",".join(written),
            b"}}",
        )
    )


def _fixed(text: str) -> bytes:
    """Return text in JSON with `%` escaped, so that it contains no placeholders."""
    return _encode(text).replace(b"%", b"%%")
