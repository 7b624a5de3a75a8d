"""Which topics and queues were deleted, and where the log ended then: a crash must not bring their queues back.

A deleted topic's records stay in the log, and recovery dispatches records again. So the deletion itself is made
durable first, in `deletedTopics.json`, a file that RocketMQ does not know; its own deleted queues return after a crash.
An entry goes when no recovery can reach records that old.

    {"Topic": physical offset of the log's end when it was deleted, "Topic/3": that of one queue, ...}

Leaves out removing files (`queue_table`).
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
    """The name of one queue's deletion; no topic has a name with such a mark."""
    return f"{topic}/{queue_id}"


def topic_of(name: str) -> str:
    """The topic that a deletion is of."""
    return name.partition("/")[0]


class Deletions:
    """Invariant: what `ends` says is on the disk, and no queue lists a record of such a name from before its end."""

    __slots__ = ("_directory", "_files", "_path", "ends")

    def __init__(self, files: Files, directory: str) -> None:
        """Read the file; raises StoreUserError when it is there and not as we write it."""
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
        """Note deletions, durably; forget those before `safe_start`, where a recovery would begin. Raises OSError.

        Those of topics that have files `left` are kept.
        """
        known = self.ends
        ends = {name: end for name, end in known.items() if end > safe_start or topic_of(name) in left}
        try:
            self._write({**ends, **dict.fromkeys(names, log_end)})
        except OSError:
            # It may stand there all the same, and what the topic gets from now on would go with the next opening.
            with contextlib.suppress(OSError):
                self._write(known)
                self._files.sync_directory(self._directory)
            raise

    def limit(self, log_end: int) -> None:
        """After a crash the log may end before a deletion: what is written there from now on is no deleted topic's.

        Raises OSError.
        """
        ends = {name: min(end, log_end) for name, end in self.ends.items()}
        if ends != self.ends:
            self._write(ends)

    def forget_before(self, cursor: int, left: Container[str]) -> None:
        """Forget deletions that everything from `cursor` on comes after, unless files are `left`. Raises OSError."""
        ends = {name: end for name, end in self.ends.items() if end > cursor or topic_of(name) in left}
        if ends != self.ends:
            self._write(ends)

    def covers(self, topic: str, queue_id: int, physical_offset: int) -> bool:
        """Whether the queue, or its topic, was deleted after the record at this offset was stored."""
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
