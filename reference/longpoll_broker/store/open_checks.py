"""Checks before a store is opened: its settings, and parts of RocketMQ 5.x that no broker here can read.

These are batch queues, compacted topics, RocksDB, and logs of DLedger. Their contents exist nowhere else, so `verify`
never accepts such a store, and a broker refuses to open it.

Sources: `StorePathConfigHelper.java`, `RocksDBConsumeQueueStore.java`, `RocksDBConfigManager.java` 5.5.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.consume_queue import END_SIZE, EXTENDED_UNIT_SIZE_MIN, UNIT_SIZE
from longpoll_protocol.log_record import (
    BLANK_SIZE_MIN,
    FIXED_SIZE,
)
from longpoll_protocol.properties import delay_levels_ms
from longpoll_runtime import Files

EXTENDED: Final = "consumequeue_ext"
_PARTS: Final = {
    "batchconsumequeue": "batch consume queues",
    "consumequeue_r": "consume queues in RocksDB",
    "compaction": "compacted topics",
}
_DLEDGER: Final = "dledger-"
"""Prefix of the directory of a log with `enableDLegerCommitLog`."""
_ROCKSDB_FILE: Final = "CURRENT"
"""A file in every RocksDB directory."""


@frozen
class Unsupported:
    """A directory below the store, and its contents."""

    path: str
    what: str


def unsupported_parts(files: Files, directory: str) -> list[Unsupported]:
    """Returns the parts that a broker cannot read, by path, except empty directories. Raises OSError."""
    return sorted(_found(files, directory), key=lambda part: part.path)


def unsupported_extensions(files: Files, directory: str) -> list[Unsupported]:
    """Returns the extended consume queues, which need `enableConsumeQueueExt`. Raises OSError."""
    is_there = bool(_names(files, f"{directory}/{EXTENDED}"))
    return [Unsupported(EXTENDED, "extended consume queues")] if is_there else []


def _found(files: Files, directory: str) -> Iterator[Unsupported]:
    for below in ("", "config/"):
        for name in _names(files, f"{directory}/{below}"):
            names = _names(files, f"{directory}/{below}{name}")
            if names and not below and (name in _PARTS or name.startswith(_DLEDGER)):
                yield Unsupported(name, _PARTS.get(name, "a log of DLedger"))
            elif _ROCKSDB_FILE in names:
                yield Unsupported(f"{below}{name}", "a RocksDB database")


def _names(files: Files, path: str) -> list[str]:
    try:
        return files.list(path)
    except NotADirectoryError:
        return []


EXTENDED_SIZE_MIN: Final = EXTENDED_UNIT_SIZE_MIN + END_SIZE


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


_lines = logging.getLogger(__name__)


def check_parts(files: Files, directory: str, config: StoreConfig) -> None:
    """Raise StoreUserError for unsupported parts of a store; warn about parts that the settings ignore."""
    unread = unsupported_parts(files, directory)
    if unread:
        told = ", ".join(f"{part.what} in {part.path}" for part in unread)
        raise StoreUserError(
            f"{directory} has {told}, which this broker does not read: their messages and offsets would be missing; "
            "serve it with RocketMQ 5"
        )
    if not config.extended_queues and unsupported_extensions(files, directory):
        _lines.warning(
            "%s has extended consume queues, which are not read, so pulls by tag get messages of other tags too: set "
            "enableConsumeQueueExt=true",
            directory,
        )
