"""The hash that stands for a tag in the consume queue, and for a key in the index: Java's `String.hashCode`."""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_HASH_POWERS: Final = tuple(31**exponent & 0xFFFFFFFF for exponent in range(255, -1, -1))


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 units, wrapped to a signed 32-bit number."""
    if text.isascii():
        units: Sequence[int] = text.encode()
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    value = 0
    # A sum of products instead of one step a unit: keys of messages are hashed one by one as they are indexed.
    for start in range(0, len(units), len(_HASH_POWERS)):
        piece = units[start : start + len(_HASH_POWERS)]
        powers = _HASH_POWERS[len(_HASH_POWERS) - len(piece) :]
        value = value * 31 * powers[0] + sum(map(operator.mul, piece, powers)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def tags_code(tags: str | None) -> int:
    """What the consume queue holds of a message's tags; 0 when it has none."""
    return java_hash(tags) if tags else 0


@lru_cache(maxsize=4096)
def word_hash(word: str) -> int:
    """`java_hash` of a word that comes again and again, such as a tag of a subscription or the name of a property."""
    return java_hash(word)
