"""The hash of a tag in the consume queue, and of a key in the index: Java's `String.hashCode`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_PIECE_SIZE: Final = 64
"""Units hashed at once: the topic and a key of most messages."""
_PIECE_COUNT: Final = 64
"""Maximum pieces joined at once."""
_JOINS: Final = tuple(
    (
        width,
        # The right one of every two.
        int.from_bytes((bytes(width // 8) + b"\xff" * (width // 8)) * (_PIECE_COUNT * _PIECE_SIZE * 4 // width)),
        (1 << width) - 31 ** (width // 8),
    )
    for width in (8, 16, 32, 64, 128, 256)
)
"""By bit width of the joined values, from a unit to half a piece."""
_JOINS_OF: Final = tuple(_JOINS[: max(size - 1, 0).bit_length()] for size in range(_PIECE_SIZE + 1))
"""The joins needed for each piece size."""
_POWERS: Final = tuple(31**exponent & 0xFFFFFFFF for exponent in range(_PIECE_SIZE + 1))


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 units, wrapped to a signed 32-bit number."""
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
    """Returns `java_hash` of each text; many short texts cost little more than a few."""
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
    """Combine the adjacent units of a long number into hashes without wrapping, one per piece, in place.

    Neighbours are joined everywhere at once: units to pairs, pairs to fours, and so on. Where a precedes b, the number
    has 2**width a + b, and the result needs 31**units a + b, so the difference is subtracted. Each join doubles the
    width, and no value outgrows it.
    """
    for width, right_ones, excess in joins:
        value -= (value >> width & right_ones) * excess
    return value


@lru_cache(maxsize=_PIECE_COUNT + 1)
def _last_words(count: int) -> struct.Struct:
    """The last 32 bits of each of `count` pieces."""
    return struct.Struct(">" + f"{_PIECE_SIZE - 4}xi" * count)


def tags_code(tags: str | None) -> int:
    """Returns the consume queue's code for a message's tags; 0 without tags."""
    return java_hash(tags) if tags else 0


def word_hash(word: str) -> int:
    """`java_hash` of a frequent word, such as a subscribed tag or a property's name; cached if short."""
    return _kept_hash(word) if len(word) <= KEPT_SIZE_MAX else java_hash(word)


_kept_hash: Final = lru_cache(maxsize=4096)(java_hash)
KEPT_SIZE_MAX: Final = 255
"""Maximum characters of a cached word: peers choose the words."""
