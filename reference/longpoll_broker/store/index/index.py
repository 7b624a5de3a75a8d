"""The index: finds messages by topic and key (`IndexService.java` 4.9), and follows the log with a separate cursor.

The files in `index/` are named by their creation time, `yyyyMMddHHmmssSSS`, which gives their order. The flush thread
moves the cursor, and a query moves it first. So sends do not wait for the index, unlike in RocketMQ, whose dispatch
thread writes it.

After a crash only full files that the checkpoint covers are kept, and never the newest. Everything later is indexed
again from the log. RocketMQ drops the same files, but indexes only what its recovery dispatches.

Layout: see `index_file`. Reading records: see `indexer`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.index.index_file import IndexFile, index_file_size, key_hashes
from longpoll_broker.store.segment import make_beside
from longpoll_protocol.log_record import (
    SYS_FLAG_TRANSACTION_MASK,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    property_of,
)
from longpoll_runtime import Runtime

_lines = logging.getLogger(__name__)

NAME_DIGITS: Final = 17
KEYS: Final = "KEYS"
UNIQUE_KEY: Final = "UNIQ_KEY"
KEY_WORTH: Final = 128
"""Characters of a key whose hashing takes as long as one entry."""
WALKED_MAX: Final = 2048
"""Entries that a search visits in one turn, a millisecond or two."""


class Keyed(NamedTuple):
    """A record and its keys."""

    physical_offset: int
    topic: str
    keys: Sequence[str]
    store_ms: int
    stop: int
    """The record's end in the log."""


def keys_of(sys_flag: int, properties: bytes) -> list[str]:
    """Returns the keys of a record, the unique one first; a rolled-back message has none (`buildIndex`)."""
    if sys_flag & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK:
        return []
    unique = property_of(properties, UNIQUE_KEY)
    own = property_of(properties, KEYS)
    keys = own.split(" ") if own else []
    if unique:
        keys.insert(0, unique)
    return keys if "" not in keys else list(filter(None, keys))


class Index:
    """The files of one directory, oldest first. Invariant: all but the last are full; times and offsets only grow.

    The tuple is replaced, never changed, so readers need no lock; writers hold the owner's.
    """

    def __init__(self, runtime: Runtime, directory: str, slot_count: int, entry_count: int) -> None:
        """Map every file; raises StoreUserError if a file's length does not match these counts."""
        self._runtime = runtime
        self._directory = directory
        self._counts = (slot_count, entry_count)
        self._files: tuple[IndexFile, ...] = ()
        # The last message and the number of its indexed keys, which may be incomplete after a full disk or a crash.
        self._begun = (-1, 0)
        self.flushed_ms = 0
        """Store timestamp of the last entry in the newest durable full file."""
        try:
            self._load()
        except StoreUserError:
            self.close()
            raise

    def _load(self) -> None:
        files, size = self._runtime.files, index_file_size(*self._counts)
        found_names = files.list(self._directory)
        names = [name for name in found_names if len(name) == NAME_DIGITS and name.isascii() and name.isdigit()]
        for name in names:
            path = f"{self._directory}/{name}"
            found = files.size(path)
            # A crash between creating a file and setting its length leaves an empty one.
            if found not in {0, size}:
                raise StoreUserError(
                    f"{path} has {found} bytes, maxHashSlotNum={self._counts[0]} and maxIndexNum={self._counts[1]} "
                    f"make {size}; open the store with its original settings"
                )
            made = IndexFile(files, path, *self._counts)
            if not made.is_plausible:
                # Everything from this file on is indexed again.
                _lines.error("%s is damaged: it and the files after it are made anew from the log", path)
                later = [later for later in names if later >= name]
                for each in later:
                    files.remove(f"{self._directory}/{each}")
                return
            self._files = (*self._files, made)

    def forget_unsure(self, durable_ms: int, log_end: int) -> None:
        """After a crash: keep the oldest files that are certainly intact, and remove the others; raises OSError.

        Intact is a full file, not the newest, that the checkpoint covers and that refers to no lost record.
        """
        kept = 0
        for file in self._files[:-1]:
            if not file.is_full or file.header.end_ms > durable_ms or file.header.end_offset >= log_end:
                break
            kept += 1
        self._remove(self._files[kept:])
        self._files = self._files[:kept]
        self.flushed_ms = self._files[-1].header.end_ms if self._files else 0

    def go_on(self) -> int:
        """Find how many keys of the last message are indexed; returns its physical offset, -1 without a message.

        A message's keys may be in several files, the last of which a crash removed.
        """
        offset, done = self.end_offset, 0
        for file in reversed(self._files):
            if file.header.entry_next > 1:
                done += file.last_entries() if file.header.end_offset == offset else 0
                if file.header.begin_offset != offset:
                    break
        self._begun = (offset, done)
        return offset

    def remove_before(self, log_start: int) -> None:
        """Remove files whose messages are all gone from the log, but never the newest (`deleteExpiredFile`)."""
        gone = 0
        while gone < len(self._files) - 1 and self._files[gone].header.end_offset < log_start:
            gone += 1
        removed, self._files = self._files[:gone], self._files[gone:]
        self._remove(removed)

    def _remove(self, files: tuple[IndexFile, ...]) -> None:
        # Not unmapped, because readers may use it.
        for file in files:
            self._runtime.files.remove(file.path)

    @property
    def end_offset(self) -> int:
        """Physical offset of the last indexed message; -1 when there is none."""
        last = self._last()
        return last.header.end_offset if last is not None else -1

    @property
    def end_ms(self) -> int:
        """Store timestamp of the last indexed message, ms; 0 when there is none."""
        last = self._last()
        return last.header.end_ms if last is not None else 0

    def _last(self) -> IndexFile | None:
        files = self._files
        # A file without entries is new or left by a crash.
        return next((file for file in reversed(files) if file.header.entry_next > 1), None)

    def put(self, records: Sequence[Keyed], work_max: int) -> tuple[int, int]:
        """Index records for about `work_max` of work; returns the work done and the number of fully indexed records.

        A further call that starts with the first incomplete record continues. A key costs one, plus one per `KEY_WORTH`
        characters; a record without keys costs one. On a full disk the earlier entries stay and the next call fails;
        raises OSError when nothing was indexed.
        """
        keys: list[str] = []
        offsets: list[int] = []
        times: list[int] = []
        stops: list[int] = []
        work = 0
        for physical_offset, topic, own, store_ms, _stop in records:
            done = self._done(physical_offset)
            for key in itertools.islice(own, done, None) if done else own:
                if work >= work_max:
                    break
                keys.append(f"{topic}#{key}")
                offsets.append(physical_offset)
                times.append(store_ms)
                work += 1 + len(key) // KEY_WORTH
            work += not own
            stops.append(len(keys))
        entries = list(zip(key_hashes(keys), offsets, times, strict=True))
        put = 0
        try:
            while put < len(entries):
                put += self._writable().put(entries[put:] if put else entries)
        except OSError:
            if not put:
                raise
        start = whole = 0
        for record, stop in zip(records, stops, strict=True):
            done = self._done(record.physical_offset) + min(put, stop) - start
            if done < len(record.keys):
                self._begun = (record.physical_offset, done)
                break
            start = stop
            whole += 1
        return work, whole

    def _done(self, physical_offset: int) -> int:
        """Returns how many keys are indexed of a record not before the last one."""
        return self._begun[1] if self._begun[0] == physical_offset else 0

    def _writable(self) -> IndexFile:
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full:
            return last
        files = self._runtime.files
        if last is None:
            make_beside(files, self._directory)
        else:
            last.flush()
            self.flushed_ms = last.header.end_ms
        path = f"{self._directory}/{self._next_name(last)}"
        made = None
        try:
            made = IndexFile(files, path, *self._counts)
            if last is not None:
                made.begin_after(last)
            files.sync_directory(self._directory)
        except OSError:
            # The retry uses another name; otherwise this file would stay empty between full ones.
            if made is not None:
                made.close()
            with contextlib.suppress(OSError):
                files.remove(path)
            raise
        self._files = (*self._files, made)
        return made

    def _next_name(self, last: IndexFile | None) -> str:
        """Returns the current UTC time, but after the last file's name even if the clock was set back."""
        now = dt.datetime.fromtimestamp(self._runtime.unix_ms() / 1000, dt.UTC)
        name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}"
        if last is None:
            return name
        return max(name, f"{int(last.path.rpartition('/')[2]) + 1:0{NAME_DIGITS}d}")

    def find(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        *,
        is_meant: Callable[[int], bool] = lambda _physical_offset: True,
    ) -> Generator[None, None, list[int]]:
        """Find the newest messages with a key, up to `count_max`, in log order (`queryOffset`).

        Returns physical offsets. `is_meant` rejects other keys with an equal hash. Yields every `WALKED_MAX` entries,
        so that other work can run.
        """
        (hashed,) = key_hashes([f"{topic}#{key}"])
        found: list[int] = []
        walked = 0
        for file in reversed(self._files):
            if file.overlaps(begin_ms, end_ms):
                for physical_offset in file.find(hashed, begin_ms, end_ms):
                    if len(found) >= count_max:
                        break
                    if physical_offset is not None and is_meant(physical_offset):
                        found.append(physical_offset)
                    walked += 1
                    if walked % WALKED_MAX == 0:
                        yield
            if file.header.begin_ms < begin_ms or len(found) >= count_max:
                break
        return sorted(found)

    def flush(self) -> None:
        """Make the newest file durable; the older ones already are. Raises OSError."""
        if self._files:
            self._files[-1].flush()

    def close(self) -> None:
        """Unmap every file."""
        files, self._files = self._files, ()
        for file in files:
            file.close()
