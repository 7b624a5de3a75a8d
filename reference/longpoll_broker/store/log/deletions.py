"""Deleted topics and queues, with the log's end at the deletion, so that a crash does not restore them.

A deleted topic's records stay in the log, and recovery would dispatch them again. So the deletion is made durable
first, in `deletedTopics.json`, a file unknown to RocketMQ; there deleted queues return after a crash. An entry is
removed when no recovery can reach such old records.

    {"Topic": physical offset of the log's end when it was deleted, "Topic/3": that of one queue, ...}

Removing files: see `queue_table`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Container
from typing import Final

import msgspec

from longpoll_broker.errors import StoreUserError
from longpoll_runtime import Files

NAME: Final = "deletedTopics.json"


def queue_name(topic: str, queue_id: int) -> str:
    """The name of one queue's deletion; topic names contain no slash."""
    return f"{topic}/{queue_id}"


def topic_of(name: str) -> str:
    """The topic of a deletion."""
    return name.partition("/")[0]


class Deletions:
    """The deletions. Invariant: `ends` is durable, and no queue lists an older record of such a name."""

    __slots__ = ("_directory", "_files", "_path", "ends")

    def __init__(self, files: Files, directory: str) -> None:
        """Read the file; raises StoreUserError if its content is invalid."""
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{NAME}"
        self.ends: dict[str, int] = {}
        if files.exists(self._path):
            try:
                self.ends = msgspec.json.decode(files.read(self._path), type=dict[str, int])
            except msgspec.DecodeError as error:
                raise StoreUserError(
                    f"{self._path} cannot be read ({error}); move it away: deleted topics may then come back, once"
                ) from None

    def add(self, names: Collection[str], log_end: int, safe_start: int, left: Container[str]) -> None:
        """Add deletions durably; drop those before `safe_start`, where a recovery would begin. Raises OSError.

        Deletions of topics in `left`, whose files still exist, are kept.
        """
        known = self.ends
        ends = {name: end for name, end in known.items() if end > safe_start or topic_of(name) in left}
        try:
            self._write({**ends, **dict.fromkeys(names, log_end)})
        except OSError:
            # The write may have succeeded; then the next opening would delete the topic's new messages.
            with contextlib.suppress(OSError):
                self._write(known)
                self._files.sync_directory(self._directory)
            raise

    def limit(self, log_end: int) -> None:
        """After a crash, limit deletions to the log's end: later records do not belong to the deleted topics.

        Raises OSError.
        """
        ends = {name: min(end, log_end) for name, end in self.ends.items()}
        if ends != self.ends:
            self._write(ends)

    def forget_before(self, cursor: int, left: Container[str]) -> None:
        """Drop deletions before `cursor`, except those with files `left`. Raises OSError."""
        ends = {name: end for name, end in self.ends.items() if end > cursor or topic_of(name) in left}
        if ends != self.ends:
            self._write(ends)

    def covers(self, topic: str, queue_id: int, physical_offset: int) -> bool:
        """Whether the queue or its topic was deleted after the record at this offset was stored."""
        ends = self.ends
        if not ends:
            return False
        return physical_offset < max(ends.get(topic, 0), ends.get(queue_name(topic, queue_id), 0))

    def _write(self, ends: dict[str, int]) -> None:
        if ends:
            self._files.write_atomic(self._path, msgspec.json.encode(ends))
        else:
            self._files.remove(self._path)
        self.ends = ends
