"""Decides which of the log's oldest files may be removed, and records which topics and queues were deleted.

RocketMQ's rules for files: only whole files are removed, oldest first, never the newest, at most ten at a time. Files
expire by age at certain hours or when the disk fills up; on a full disk, age does not count. A file's age counts from
its last change. This broker also keeps files with messages that are not yet in a queue or not durable.

The records of a deleted topic stay in the log, and recovery would dispatch them again. Therefore a deletion is first
made durable in `deletedTopics.json`. RocketMQ has no such file, so a crash restores the queues that it deleted. An
entry is removed when the log no longer has records from before the deletion. Entries have this form:

    {"Topic": the log's end when the topic was deleted, "Topic/3": the log's end when queue 3 was deleted, ...}

Removal: see `MessageStore.remove_expired`. Times of checks: see `upkeep.flush_service`.

Sources: `DefaultMessageStore.CleanCommitLogService`, `MappedFileQueue.deleteExpiredFileByTime`, `UtilAll.isItTimeToDo`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Collection, Container
from typing import Final

import msgspec

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.segment import Segment
from longpoll_runtime import Files, NotRegularError

REMOVED_COUNT_MAX: Final = 10
"""Maximum files removed at a time (`DELETE_FILES_BATCH_MAX`)."""
FORCE_RATIO: Final = 0.85
"""`diskSpaceCleanForciblyRatio`: if more than this part of the disk is used, files of any age are removed."""
HOUR_MS: Final = 3_600_000


def is_hour(delete_when: str, now_ms: int) -> bool:
    """Whether the current local hour is in a list like `04` or `04;16`."""
    hour = dt.datetime.fromtimestamp(now_ms / 1000).astimezone().hour
    return hour in {int(text) for text in delete_when.split(";")}


def count_expired(
    config: StoreConfig,
    segments: tuple[Segment, ...],
    needed_from: int,
    *,
    now_ms: int,
    used_ratio: float,
    changed_ms: Callable[[str], int],
    at_any_hour: bool = False,
) -> int:
    """Returns how many of the oldest files may be removed now.

    `needed_from` is the physical offset from which the log is still needed. `used_ratio` is the used fraction of the
    disk, 0 to 1. `changed_ms` returns the time of a file's last change. With `at_any_hour`, expired files may be
    removed at once, not only at the hours of `delete_when`.
    """
    at_once = config.clean_forcibly and used_ratio > FORCE_RATIO
    if not (at_once or at_any_hour or used_ratio > config.disk_ratio_max / 100 or is_hour(config.delete_when, now_ms)):
        return 0
    count = 0
    for segment in segments[:-1][:REMOVED_COUNT_MAX]:
        is_old = now_ms >= changed_ms(segment.path) + config.file_reserved_hours * HOUR_MS
        if segment.stop > needed_from or not (is_old or at_once):
            break
        count += 1
    return count


NAME: Final = "deletedTopics.json"


def queue_name(topic: str, queue_id: int) -> str:
    """Returns the key of a queue's deletion. A topic's name contains no slash."""
    return f"{topic}/{queue_id}"


def topic_of(name: str) -> str:
    """Returns the topic in a deletion's key."""
    return name.partition("/")[0]


class Deletions:
    """The known deletions. Invariant: `ends` is durable, and no queue has a record from before its deletion."""

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
            except (msgspec.DecodeError, NotRegularError, IsADirectoryError) as error:
                raise StoreUserError(
                    f"{self._path} cannot be read ({error}); move it away: deleted topics may then come back, once"
                ) from None

    def add(self, names: Collection[str], log_end: int, log_start: int, left: Container[str]) -> None:
        """Add deletions durably, and drop entries before the log's start, because no rebuild can reach their records.

        The entries of topics in `left` are kept, because files of these topics still exist. Raises OSError.
        """
        known = self.ends
        ends = {name: end for name, end in known.items() if end > log_start or topic_of(name) in left}
        try:
            self._write({**ends, **dict.fromkeys(names, log_end)})
        except OSError:
            # The write may have succeeded despite the error. Restore the old content, because the next opening would
            # otherwise delete newer messages.
            with contextlib.suppress(OSError):
                self._write(known)
                self._files.sync_directory(self._directory)
            raise

    def limit(self, log_end: int) -> None:
        """After a crash, limit deletions to the log's end, because records written later belong to new topics.

        Raises OSError.
        """
        ends = {name: min(end, log_end) for name, end in self.ends.items()}
        if ends != self.ends:
            self._write(ends)

    def forget_before(self, log_start: int, left: Container[str]) -> None:
        """Drop deletions before the log's start. Raises OSError.

        The entries of topics in `left` are kept, because files of these topics still exist.
        """
        ends = {name: end for name, end in self.ends.items() if end > log_start or topic_of(name) in left}
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
