"""Checks of a store: topic names, message sizes, settings, and store times."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.messages import MessageToStore
from longpoll_broker.store.queues.consume_queue import UNIT_SIZE
from longpoll_broker.store.queues.consume_queue_ext import END_SIZE, UNIT_SIZE_MIN
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import (
    BLANK_SIZE_MIN,
    FIXED_SIZE,
    with_zeros,
)
from longpoll_protocol.message import PROPERTIES_SIZE_MAX
from longpoll_protocol.names import NAME_SIZE_MAX
from longpoll_protocol.properties import delay_levels_ms

EXTENDED_SIZE_MIN: Final = UNIT_SIZE_MIN + END_SIZE
QUEUE_ID_MAX: Final = 2**31 - 1
FOUND_NAME_SIZE_MAX: Final = 255
"""Maximum bytes of a topic in an existing log, as for a directory's name: RocketMQ 5 has long retry topics."""
FUTURE_MS: Final = 10 * 365 * 24 * 3_600_000
"""Ten years: clocks may be set back, but a later time can only be damage."""

_lines = logging.getLogger(__name__)


def is_storable(message: MessageToStore, body_size_max: int) -> bool:
    """Whether a message is within the limits and can be stored unchanged."""
    properties = message.properties
    return len(message.body) <= body_size_max and len(properties) <= PROPERTIES_SIZE_MAX and b"\0" not in properties


def storable(message: MessageToStore, body_size_max: int) -> MessageToStore:
    """Returns the message in its stored form; raises MessageRefusedError above a limit."""
    properties = message.properties
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise MessageRefusedError(
            f"the properties have {len(properties)} bytes, at most {PROPERTIES_SIZE_MAX} are allowed"
        )
    if len(message.body) > body_size_max:
        raise MessageRefusedError(f"the body has {len(message.body)} bytes, at most {body_size_max} are allowed")
    return replace(message, properties=with_zeros(properties)) if b"\0" in properties else message


def check_place(topic: str, queue_id: int, *, size_max: int = NAME_SIZE_MAX) -> None:
    """Raise MessageRefusedError if a queue's name is not a safe path or does not fit a record."""
    check_topic(topic, size_max)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise MessageRefusedError(f"queue id {queue_id} is not from 0 to {QUEUE_ID_MAX}")


def check_topic(topic: str, size_max: int = NAME_SIZE_MAX) -> None:
    """Raise MessageRefusedError unless the name fits a record and is a safe path component."""
    size = len(topic.encode("utf-8", "surrogatepass"))
    if not 0 < size <= size_max:
        raise MessageRefusedError(f"the topic's name has {size} bytes, from 1 to {size_max} are allowed")
    if topic in {".", ".."} or "/" in topic or not topic.isprintable():
        raise MessageRefusedError(f"the topic name {topic!r} cannot be a directory name")


def check_config(config: StoreConfig) -> None:
    """Raise StoreUserError unless files of these sizes can be written."""
    if config.consume_queue_file_size <= 0 or config.consume_queue_file_size % UNIT_SIZE:
        raise StoreUserError(
            f"mappedFileSizeConsumeQueue is {config.consume_queue_file_size}; write a multiple of {UNIT_SIZE}"
        )
    if config.index_slot_count < 1 or config.index_entry_count < 2:
        raise StoreUserError(
            f"maxHashSlotNum is {config.index_slot_count}, maxIndexNum {config.index_entry_count}; set at least 1 and 2"
        )
    if config.extended_file_size <= EXTENDED_SIZE_MIN:
        raise StoreUserError(
            f"mappedFileSizeConsumeQueueExt is {config.extended_file_size}; set more than {EXTENDED_SIZE_MIN}"
        )
    try:
        delay_levels_ms(config.delay_levels)
    except ValueError as error:
        raise StoreUserError(f"messageDelayLevel cannot be {config.delay_levels[:200]!r}: {error}") from None
    minimum = FIXED_SIZE + BLANK_SIZE_MIN
    if config.commit_log_file_size < minimum:
        raise StoreUserError(f"mappedFileSizeCommitLog is {config.commit_log_file_size}; set at least {minimum}")


def believed_ms(store_ms: int, unix_ms: Callable[[], int], *, tell: bool = True) -> int:
    """Returns a record's store time, or 0 if it is in the future; no checksum covers it.

    Later messages get no earlier time, so one wrong bit would move all of them into the future. `tell` logs the error;
    set it for the first record only, because a wrong clock affects every record.
    """
    if not store_ms or store_ms <= unix_ms() + FUTURE_MS:
        return store_ms
    if tell:
        _lines.error(
            "a record of the log speaks of a time to come (%d ms): it is damaged, or this machine's clock is wrong; "
            "what is stored after it gets the clock's time",
            store_ms,
        )
    return 0
