"""Finds unsupported parts of a store: batch queues, compacted topics and RocksDB of RocketMQ 5.x.

Their contents exist nowhere else, so `verify` never accepts such a store, and a broker refuses to open it.

Sources: `StorePathConfigHelper.java`, `RocksDBConsumeQueueStore.java`, `RocksDBConfigManager.java` 5.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import frozen

from longpoll_runtime import Files

EXTENDED: Final = "consumequeue_ext"
_PARTS: Final = {
    "batchconsumequeue": "batch consume queues",
    "consumequeue_r": "consume queues in RocksDB",
    "compaction": "compacted topics",
}
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
            if names and not below and name in _PARTS:
                yield Unsupported(name, _PARTS[name])
            elif _ROCKSDB_FILE in names:
                yield Unsupported(f"{below}{name}", "a RocksDB database")


def _names(files: Files, path: str) -> list[str]:
    try:
        return files.list(path)
    except NotADirectoryError:
        return []
