"""What a store refuses: names that are no directory's, settings that no file could follow.

Leaves out the sizes of bodies and properties, which are looked at for every message (`message_store`).
"""

from __future__ import annotations

from typing import Final

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import MessageRefusedError, StoreUserError
from longpoll_broker.store.consume_queue import UNIT_SIZE
from longpoll_broker.store.consume_queue_ext import END_SIZE, UNIT_SIZE_MIN
from longpoll_broker.store.record import BLANK_SIZE_MIN, FIXED_SIZE, TOPIC_SIZE_MAX

EXTENDED_SIZE_MIN: Final = UNIT_SIZE_MIN + END_SIZE


def check_topic(topic: str) -> None:
    """Raise MessageRefusedError unless the name fits a record and is a safe path component."""
    size = len(topic.encode("utf-8", "surrogatepass"))
    if not 0 < size <= TOPIC_SIZE_MAX:
        raise MessageRefusedError(f"the topic's name has {size} bytes, from 1 to {TOPIC_SIZE_MAX} are allowed")
    if topic in {".", ".."} or "/" in topic or not topic.isprintable():
        raise MessageRefusedError(f"topic {topic!r} cannot be a directory's name")


def check_config(config: StoreConfig) -> None:
    """Raise StoreUserError unless files of these sizes can be written."""
    if config.consume_queue_file_size <= 0 or config.consume_queue_file_size % UNIT_SIZE:
        raise StoreUserError(
            f"mappedFileSizeConsumeQueue is {config.consume_queue_file_size}: give a multiple of {UNIT_SIZE}"
        )
    if config.index_slot_count < 1 or config.index_entry_count < 2:
        raise StoreUserError(
            f"maxHashSlotNum is {config.index_slot_count}, maxIndexNum {config.index_entry_count}: give 1 and 2"
        )
    if config.extended_file_size <= EXTENDED_SIZE_MIN:
        raise StoreUserError(
            f"mappedFileSizeConsumeQueueExt is {config.extended_file_size}: give more than {EXTENDED_SIZE_MIN}"
        )
    if config.commit_log_file_size < FIXED_SIZE + BLANK_SIZE_MIN:
        raise StoreUserError(
            f"mappedFileSizeCommitLog is {config.commit_log_file_size}: give more than the largest message"
        )
