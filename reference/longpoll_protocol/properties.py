"""Message properties: the text that clients send, and the stored form, in the order of a Java `HashMap`.

RocketMQ's broker decodes the text into a `HashMap` and encodes this map again, so the stored order is that of the map.
The order may differ if the map uses trees (eight colliding names in one bucket of a table of 64).

Sources: `MessageDecoder.string2messageProperties`, `messageProperties2String`; `java.util.HashMap`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from attrs import frozen

from longpoll_protocol.errors import LocalProtocolError

_PIECE_SIZE: Final = 64
"""The number of characters hashed at once, which is enough for the topic and a key of most messages."""
_PIECE_COUNT: Final = 64
_JOINS: Final = tuple(
    (
        width,
        # The mask selects the right one of every two neighbours.
        int.from_bytes((bytes(width // 8) + b"\xff" * (width // 8)) * (_PIECE_COUNT * _PIECE_SIZE * 4 // width)),
        (1 << width) - 31 ** (width // 8),
    )
    for width in (8, 16, 32, 64, 128, 256)
)
"""Triples of (width, mask, excess), one for each step that joins neighbouring values of `width` bits into one, from
single characters to halves of a piece."""
_JOINS_OF: Final = tuple(_JOINS[: max(size - 1, 0).bit_length()] for size in range(_PIECE_SIZE + 1))
"""The joins that a piece needs, indexed by its number of characters."""
_POWERS: Final = tuple(31**exponent & 0xFFFFFFFF for exponent in range(_PIECE_SIZE + 1))


def java_hash(text: str) -> int:
    """Return the hash of a text as Java's `String.hashCode`: over UTF-16 units, wrapped to a signed 32-bit number."""
    value = 0
    if text.isascii():
        units = text.encode()
        for start in range(0, len(units), _PIECE_SIZE):
            piece = units[start : start + _PIECE_SIZE]
            joined = _join(int.from_bytes(piece), _JOINS_OF[len(piece)])
            value = value * _POWERS[len(piece)] + joined & 0xFFFFFFFF
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
            value = value * 31 + unit & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def java_hashes(texts: Sequence[str]) -> Sequence[int]:
    """Returns the `java_hash` of each text. Many short texts take little more time than a few."""
    if len(texts) > _PIECE_COUNT:
        starts = range(0, len(texts), _PIECE_COUNT)
        return [hashed for start in starts for hashed in java_hashes(texts[start : start + _PIECE_COUNT])]
    # Leading zeros do not change the hash.
    pieces = "".join([text.rjust(_PIECE_SIZE, "\0") for text in texts])
    if len(pieces) != _PIECE_SIZE * len(texts) or not pieces.isascii():
        return list(map(java_hash, texts))
    joined = _join(int.from_bytes(pieces.encode()), _JOINS)
    return _last_words(len(texts)).unpack(joined.to_bytes(len(pieces)))


def _join(value: int, joins: Sequence[tuple[int, int, int]]) -> int:
    """Combine the characters in a long number into hashes, one per piece, without a loop over the characters.

    All neighbours are joined at once: characters to pairs, pairs to fours, and so on. Where a precedes b, the number
    has 2**width a + b, and the hash needs 31**units a + b, so the difference is subtracted. Each join doubles the
    width, and no value becomes wider than that.
    """
    for width, right_ones, excess in joins:
        value -= (value >> width & right_ones) * excess
    return value


@lru_cache(maxsize=_PIECE_COUNT + 1)
def _last_words(count: int) -> struct.Struct:
    """Return a struct that reads the last 32 bits of each of `count` pieces."""
    return struct.Struct(">" + f"{_PIECE_SIZE - 4}xi" * count)


def tags_code(tags: str | None) -> int:
    """Returns the tags code of the consume queue for a message's tags: their hash, or 0 without tags."""
    return word_hash(tags) if tags else 0


def word_hash(word: str) -> int:
    """Return the `java_hash` of a frequent word, such as a subscribed tag or property name. Short words are cached."""
    return _kept_hash(word) if len(word) <= KEPT_SIZE_MAX else java_hash(word)


_kept_hash: Final = lru_cache(maxsize=4096)(java_hash)
KEPT_SIZE_MAX: Final = 255
"""Maximum characters of a word whose hash is cached. The limit exists because peers choose the words."""


CLUSTER: Final = "CLUSTER"
CORRELATION_ID: Final = "CORRELATION_ID"
DELAY: Final = "DELAY"
KEYS: Final = "KEYS"
MESSAGE_TYPE: Final = "MSG_TYPE"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
REAL_QUEUE_ID: Final = "REAL_QID"
REAL_TOPIC: Final = "REAL_TOPIC"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
RETRY_TOPIC: Final = "RETRY_TOPIC"
TAGS: Final = "TAGS"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_RECALLED_KEY: Final = "TIMER_DEL_UNIQKEY"
TTL: Final = "TTL"
WAIT: Final = "WAIT"

INNER_QUEUES: Final = "INNER_MULTI_DISPATCH"
INNER_OFFSETS: Final = "INNER_MULTI_QUEUE_OFFSET"
REGION: Final = "MSG_REGION"
TRACE: Final = "TRACE_ON"
TRANSACTION_ID: Final = "__transactionId__"
UNIQUE_KEY: Final = "UNIQ_KEY"


NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"


@frozen
class PropertiesForm:
    """The stored form of properties in one version of RocketMQ."""

    table_size: int
    """The initial number of buckets in the map, which doubles when there are more names than three quarters of the
        buckets."""
    marks_last: bool
    """Whether the last pair has an end mark, like the other pairs."""


FORM_4_9: Final = PropertiesForm(16, marks_last=False)
"""The form in 4.9, whose map has `HashMap.DEFAULT_INITIAL_CAPACITY` buckets."""
FORM_5: Final = PropertiesForm(128, marks_last=True)


def read_properties(text: str | None) -> dict[str, str]:
    """Parse a text into names and values, in order. A pair without a mark, a name or a value is skipped."""
    properties: dict[str, str] = {}
    if text:
        for pair in text.split(PAIR_END):
            name, _mark, value = pair.partition(NAME_END)
            if name and value:
                properties[name] = value
    return properties


def decode_properties(encoded: bytes) -> dict[str, str]:
    """Decode stored properties as `read_properties` parses text. Invalid UTF-8 is replaced."""
    return read_properties(encoded.decode("utf-8", "replace"))


def encode_properties(properties: Mapping[str, str]) -> str:
    """Encode properties as the text that clients send, with an end mark after each pair.

    Raises LocalProtocolError if a name or value contains a mark.
    """
    for text in (*properties.keys(), *properties.values()):
        if NAME_END in text or PAIR_END in text:
            raise LocalProtocolError(f"property text {text[:40]!r} contains \\x01 or \\x02, which separate properties")
    return "".join(f"{name}{NAME_END}{value}{PAIR_END}" for name, value in properties.items())


def write_properties(properties: Mapping[str, str], form: PropertiesForm = FORM_4_9, *, without: str = "") -> bytes:
    """Encode properties in the stored form, in the order of a Java `HashMap` that was filled name by name.

    The property named `without` is not written, but it affects the order, because Java's map contained it.
    """
    names = hash_order(tuple(properties), form.table_size) if len(properties) > 1 else properties
    text = PAIR_END.join([f"{name}{NAME_END}{properties[name]}" for name in names if name != without])
    if form.marks_last and text:
        text += PAIR_END
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def hash_order(names: tuple[str, ...], table_size: int = FORM_4_9.table_size) -> tuple[str, ...]:
    """Returns names in the order of a `HashMap`: by bucket, and within a bucket in the order of insertion."""
    size = table_size
    while len(names) * 4 > size * 3:
        size *= 2
    return tuple(sorted(names, key=lambda name: _spread(word_hash(name)) & (size - 1)))


def _spread(code: int) -> int:
    """XOR the high half of a hash into the low half, as `HashMap.hash` does."""
    code &= 0xFFFFFFFF
    return code ^ code >> 16


DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""The delays of the levels 1, 2, ... by default in RocketMQ (`messageDelayLevel`)."""
LEVEL_COUNT_MAX: Final = 1024
"""Maximum number of delay levels, because each level is a queue of the schedule topic."""
LEVEL_DAYS_MAX: Final = 3650
"""Maximum delay of a level, in days."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL_TIME: Final = re.compile("([0-9]{1,9})([smhd])")
_LONGEST_MS: Final = LEVEL_DAYS_MAX * _UNITS_MS["d"]


@lru_cache(maxsize=16)
def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Parse the delays of levels into milliseconds; raises ValueError, which names the invalid level.

    `ScheduleMessageService.parseDelayLevel` of 4.9.7 also accepts negative times, but only single spaces.
    """
    levels = text.split()
    if not 0 < len(levels) <= LEVEL_COUNT_MAX:
        raise ValueError(f"{len(levels)} levels; write 1 to {LEVEL_COUNT_MAX}, such as '1s 30s 1m 2h 1d'")
    return tuple(_level_ms(number, level) for number, level in enumerate(levels, 1))


def _level_ms(number: int, text: str) -> int:
    found = _LEVEL_TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"level {number} is {text[:40]!r}; write a whole number with s, m, h or d, such as '30s'")
    time_ms = int(found[1]) * _UNITS_MS[found[2]]
    if time_ms > _LONGEST_MS:
        raise ValueError(f"level {number} is {text}; write at most {LEVEL_DAYS_MAX}d")
    return time_ms


DELAY_LEVELS_MS: Final = delay_levels_ms(DELAY_LEVELS)
