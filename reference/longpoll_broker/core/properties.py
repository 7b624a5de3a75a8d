"""Message properties as the broker stores them: read, and written again in the order of a Java `HashMap`.

A 4.9 broker decodes a message's property text into a `HashMap` and encodes that again, so the stored order is the
map's. Leaves out the map's trees (eight colliding names in one bucket of a table of 64), whose order may differ.

Sources: `MessageDecoder.string2messageProperties`, `messageProperties2String`; `java.util.HashMap`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from longpoll_broker.core.filter import java_hash

CLUSTER: Final = "CLUSTER"
DELAY: Final = "DELAY"
KEYS: Final = "KEYS"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PREPARED: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
REAL_QUEUE_ID: Final = "REAL_QID"
REAL_TOPIC: Final = "REAL_TOPIC"
RETRY_TOPIC: Final = "RETRY_TOPIC"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"

_TABLE_SIZE: Final = 16
"""`HashMap.DEFAULT_INITIAL_CAPACITY`; it doubles when it is more than three quarters full."""


def read_properties(text: str | None) -> dict[str, str]:
    """Names and values in the order given; a pair with an empty side, or without a mark, is passed over."""
    properties: dict[str, str] = {}
    if text:
        for pair in text.split("\x02"):
            name, _mark, value = pair.partition("\x01")
            if name and value:
                properties[name] = value
    return properties


def write_properties(properties: Mapping[str, str], *, without: str = "") -> bytes:
    """The stored form: in the map's order, the last pair without its end mark; `without` was in the map, then removed.

    The order is that of a map into which the names were put one after the other.
    """
    names = hash_order(tuple(properties)) if len(properties) > 1 else properties
    text = "\x02".join([f"{name}\x01{properties[name]}" for name in names if name != without])
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def hash_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """The order in which a `HashMap` lists these names: by bucket, and in a bucket as they came."""
    size = _TABLE_SIZE
    while len(names) * 4 > size * 3:
        size *= 2
    return tuple(sorted(names, key=lambda name: _spread(java_hash(name)) & (size - 1)))


def _spread(code: int) -> int:
    """`HashMap.hash`: the high half folded onto the low one."""
    code &= 0xFFFFFFFF
    return code ^ code >> 16
