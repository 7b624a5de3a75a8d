"""Which of the log's oldest files may be removed: by age at certain hours or on a filling disk, or on a full disk.

RocketMQ's rules: only whole files, oldest first, never the newest, at most ten at a time. A file's age counts from its
last change. We also keep messages that no queue lists yet or that are not durable.

Removal: see `MessageStore.remove_expired`. Times of checks: see `upkeep.retention`.

Source: `DefaultMessageStore.CleanCommitLogService`, `MappedFileQueue.deleteExpiredFileByTime`, `UtilAll.isItTimeToDo`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.segment import Segment

REMOVED_COUNT_MAX: Final = 10
"""`DELETE_FILES_BATCH_MAX`."""
FORCE_RATIO: Final = 0.85
"""`diskSpaceCleanForciblyRatio`: above this share of used disk, age no longer counts."""
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

    `needed_from` is the physical offset from which the log is still needed. `used_ratio` is the used share of the disk,
    0 to 1. `changed_ms` returns a file's last change. `at_any_hour` removes old files now.
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
