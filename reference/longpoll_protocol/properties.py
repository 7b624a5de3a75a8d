"""Message properties: clients' text, and a broker's stored form in the order of a Java `HashMap`.

A broker decodes the text into a `HashMap` and encodes that again, so the stored order is the map's. The order may
differ if the map uses trees (eight colliding names in one bucket of a table of 64).

Sources: `MessageDecoder.string2messageProperties`, `messageProperties2String`; `java.util.HashMap`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from attrs import frozen

from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.tags import word_hash

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
    """The form of properties in one version."""

    table_size: int
    """Initial buckets of the map; they double above three quarters of their number."""
    marks_last: bool
    """Whether the last pair has an end mark too."""


FORM_4_9: Final = PropertiesForm(16, marks_last=False)
"""`HashMap.DEFAULT_INITIAL_CAPACITY`."""
FORM_5: Final = PropertiesForm(128, marks_last=True)


def read_properties(text: str | None) -> dict[str, str]:
    """Parse names and values in order; skips a pair with an empty side or without a mark."""
    properties: dict[str, str] = {}
    if text:
        for pair in text.split(PAIR_END):
            name, _mark, value = pair.partition(NAME_END)
            if name and value:
                properties[name] = value
    return properties


def decode_properties(encoded: bytes) -> dict[str, str]:
    """`read_properties` for stored bytes; replaces invalid UTF-8."""
    return read_properties(encoded.decode("utf-8", "replace"))


def encode_properties(properties: Mapping[str, str]) -> str:
    """Encode a client's text, with an end mark for every pair; raises LocalProtocolError for a text with a mark."""
    for text in (*properties.keys(), *properties.values()):
        if NAME_END in text or PAIR_END in text:
            raise LocalProtocolError(f"property text {text[:40]!r} contains \\x01 or \\x02, which separate properties")
    return "".join(f"{name}{NAME_END}{value}{PAIR_END}" for name, value in properties.items())


def write_properties(properties: Mapping[str, str], form: PropertiesForm = FORM_4_9, *, without: str = "") -> bytes:
    """Encode the stored form, in the order of a Java `HashMap` filled name by name.

    `without` was in the map and is removed.
    """
    names = hash_order(tuple(properties), form.table_size) if len(properties) > 1 else properties
    text = PAIR_END.join([f"{name}{NAME_END}{properties[name]}" for name in names if name != without])
    if form.marks_last and text:
        text += PAIR_END
    return text.encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1024)
def hash_order(names: tuple[str, ...], table_size: int = FORM_4_9.table_size) -> tuple[str, ...]:
    """Returns names in the order of a `HashMap`: by bucket, and within a bucket in order of insertion."""
    size = table_size
    while len(names) * 4 > size * 3:
        size *= 2
    return tuple(sorted(names, key=lambda name: _spread(word_hash(name)) & (size - 1)))


def _spread(code: int) -> int:
    """`HashMap.hash`: combines the high half with the low one."""
    code &= 0xFFFFFFFF
    return code ^ code >> 16


DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""`messageDelayLevel` of RocketMQ: the delays of levels 1, 2, ..."""
LEVEL_COUNT_MAX: Final = 1024
"""Maximum delay levels; each is a queue of the schedule topic."""
LEVEL_DAYS_MAX: Final = 3650
"""Maximum delay of a level, days."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL_TIME: Final = re.compile("([0-9]{1,9})([smhd])")
_LONGEST_MS: Final = LEVEL_DAYS_MAX * _UNITS_MS["d"]


@lru_cache(maxsize=16)
def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Parse the delays of levels, ms; raises ValueError with the invalid one.

    As `ScheduleMessageService.parseDelayLevel` 4.9.7, which also accepts negative times, but only single spaces.
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
