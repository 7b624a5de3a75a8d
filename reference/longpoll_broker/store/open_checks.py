"""Checks before a store is opened: its settings, and parts of RocketMQ 5.x that this broker cannot read.

The unreadable parts are batch queues, compacted topics, RocksDB, and logs of DLedger. The contents of these parts exist
nowhere else, so `verify` never accepts a store that has such contents, and a broker refuses to open it. A broker of 5.x
creates most of these parts empty, so the checks look at their contents instead of their names.

Sources: `StorePathConfigHelper.java`, `RocksDBConsumeQueueStore.java`, `RocksDBConfigManager.java` 5.5.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
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
"""A file in every RocksDB directory; it contains the name of the manifest."""
_ROCKSDB_ROWS: Final = (".sst", ".blob")
"""Suffixes of the RocksDB files that contain rows. Rows written since the last flush are in `.log` files."""
_POSITIONS: Final = ("position-checkpoint", "position-checkpoint.bak", "position-checkpoint.tmp")
"""Files with the offsets of the compacted queues, which RocketMQ writes for every store."""
_NO_POSITIONS: Final = {"empty": True, "queueOffsetMap": {}}
_CHUNK_SIZE: Final = 1024 * 1024


@frozen
class Unsupported:
    """A directory in the store, and a description of its contents."""

    path: str
    what: str


def unsupported_parts(files: Files, directory: str) -> list[Unsupported]:
    """Returns the parts with contents that a broker cannot read, by path. Raises OSError and StoreUserError."""
    return sorted(_found(files, directory), key=lambda part: part.path)


def unsupported_extensions(files: Files, directory: str) -> list[Unsupported]:
    """Returns the extended consume queues, which need `enableConsumeQueueExt`. Raises OSError."""
    has_some = _has_data(files, f"{directory}/{EXTENDED}")
    return [Unsupported(EXTENDED, "extended consume queues")] if has_some else []


def _found(files: Files, directory: str) -> Iterator[Unsupported]:
    for below in ("", "config/"):
        for name in _names(files, f"{directory}/{below}"):
            path = f"{directory}/{below}{name}"
            is_known = not below and (name in _PARTS or name.startswith(_DLEDGER))
            what = _PARTS.get(name, "a log of DLedger") if is_known else "a RocksDB database"
            names = _names(files, path)
            is_database = _ROCKSDB_FILE in names or any(each.endswith(_ROCKSDB_ROWS) for each in names)
            if _has_rows(files, path, names) if is_database else is_known and _has_data(files, path):
                yield Unsupported(f"{below}{name}", what)


def _has_rows(files: Files, path: str, names: list[str]) -> bool:
    """Whether a RocksDB database has rows; true also if its manifest is missing, because it may then have rows."""
    if any(name.endswith(_ROCKSDB_ROWS) for name in names):
        return True
    if any(name.removesuffix(".log").isdigit() and files.size(f"{path}/{name}") for name in names if "." in name):
        return True
    return files.read(f"{path}/{_ROCKSDB_FILE}").decode("ascii", "replace").strip() not in names


def _has_data(files: Files, path: str) -> bool:
    """Whether a file, or any file below a directory, has a byte that is not zero."""
    try:
        names = files.list(path)
    except NotADirectoryError:
        return _is_written(files, path)
    return any(
        not _has_no_positions(files, f"{path}/{name}") if name in _POSITIONS else _has_data(files, f"{path}/{name}")
        for name in names
    )


def _has_no_positions(files: Files, path: str) -> bool:
    with suppress(ValueError):
        return bool(json.loads(files.read(path)) == _NO_POSITIONS)
    return False


def _is_written(files: Files, path: str) -> bool:
    size = files.size(path)
    if not size:
        return False
    mapped = files.map(path, size, writable=False)
    try:
        position = mapped.data_from(0)
        while position < size:
            if any(mapped.view[position : position + _CHUNK_SIZE]):
                return True
            position = mapped.data_from(position + _CHUNK_SIZE)
        return False
    finally:
        mapped.close()


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
