"""The hash that stands for a tag in the consume queue, and for a key in the index: Java's `String.hashCode`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_PIECE_SIZE: Final = 64
"""Units that are hashed at once: the topic and a key of most messages."""
_PIECE_COUNT: Final = 64
"""As many pieces are joined side by side at most."""
_JOINS: Final = tuple(
    (
        width,
        # Of every two the right one.
        int.from_bytes((bytes(width // 8) + b"\xff" * (width // 8)) * (_PIECE_COUNT * _PIECE_SIZE * 4 // width)),
        (1 << width) - 31 ** (width // 8),
    )
    for width in (8, 16, 32, 64, 128, 256)
)
"""By the bits of what two are joined of, from a unit to half a piece."""
_JOINS_OF: Final = tuple(_JOINS[: max(size - 1, 0).bit_length()] for size in range(_PIECE_SIZE + 1))
"""By the size of a piece those that it takes."""
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
    """`java_hash` of each, mostly at the cost of a few: keys of messages are many."""
    if len(texts) > _PIECE_COUNT:
        starts = range(0, len(texts), _PIECE_COUNT)
        return [hashed for start in starts for hashed in java_hashes(texts[start : start + _PIECE_COUNT])]
    # Zeros in front change no hash.
    pieces = "".join([text.rjust(_PIECE_SIZE, "\0") for text in texts])
    if len(pieces) != _PIECE_SIZE * len(texts) or not pieces.isascii():
        return list(map(java_hash, texts))
    joined = _join(int.from_bytes(pieces.encode()), _JOINS)
    return _last_words(len(texts)).unpack(joined.to_bytes(len(pieces)))


def _join(value: int, joins: Sequence[tuple[int, int, int]]) -> int:
    """The same, not wrapped, of the units that lie side by side in a long number; of pieces, each where it was.

    Neighbours are joined everywhere at once: units to pairs, pairs to fours, and so on. Where a stands before b, that
    is 2**width a + b, and what is wanted is 31**units a + b: the difference is taken away. Each join doubles the width,
    and no value outgrows it.
    """
    for width, right_ones, excess in joins:
        value -= (value >> width & right_ones) * excess
    return value


@lru_cache(maxsize=_PIECE_COUNT + 1)
def _last_words(count: int) -> struct.Struct:
    """The last 32 bits of each of `count` pieces."""
    return struct.Struct(">" + f"{_PIECE_SIZE - 4}xi" * count)


def tags_code(tags: str | None) -> int:
    """What the consume queue holds of a message's tags; 0 when it has none."""
    return java_hash(tags) if tags else 0


def word_hash(word: str) -> int:
    """`java_hash` of a word that comes again and again, such as a tag of a subscription or the name of a property."""
    return _kept_hash(word) if len(word) <= KEPT_SIZE_MAX else java_hash(word)


_kept_hash: Final = lru_cache(maxsize=4096)(java_hash)
KEPT_SIZE_MAX: Final = 255
"""Longest word, characters, whose hash is kept: peers choose the words."""
