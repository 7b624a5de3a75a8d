"""The index: finds messages by topic and key (`IndexService.java` 4.9). It follows the log with a cursor of its own.

The files stand in `index/`, named by the time they were made, `yyyyMMddHHmmssSSS`; their order is that of the names.
Nothing waits for the index: the flush thread moves the cursor, and a query moves it first. So a send does not pay for
it, where RocketMQ writes it on the dispatch thread.

What a crash leaves is believed only where it cannot have changed since it was synced: a full file that the checkpoint
knows, and never the newest. Everything after that is indexed again from the log. RocketMQ drops the same files, but
indexes again only what its recovery dispatches.

Leaves out the layout (`index_file`), reading records and locks (`message_store`).
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
"""Characters of a key that are hashed in the time of one entry."""
WALKED_MAX: Final = 2048
"""Entries that a search looks at in one turn: a millisecond or two."""


class Keyed(NamedTuple):
    """A record and the keys that it is found by."""

    physical_offset: int
    topic: str
    keys: Sequence[str]
    store_ms: int
    stop: int
    """Where it ends in the log."""


def keys_of(sys_flag: int, properties: bytes) -> list[str]:
    """The keys that a record is found by, the unique one first; a rolled-back message has none (`buildIndex`)."""
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
        """Map every file; raises StoreUserError when one has another length than these counts say."""
        self._runtime = runtime
        self._directory = directory
        self._counts = (slot_count, entry_count)
        self._files: tuple[IndexFile, ...] = ()
        # The last message, and how many of its keys are in; not all of them after a full disk or a crash.
        self._begun = (-1, 0)
        self.flushed_ms = 0
        """Store timestamp of the last entry of the newest full file that is durable."""
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
            # A crash between making a file and giving it its length leaves an empty one.
            if found not in {0, size}:
                raise StoreUserError(
                    f"{path} has {found} bytes, maxHashSlotNum={self._counts[0]} and maxIndexNum={self._counts[1]} "
                    f"make {size}; open the store with its original settings"
                )
            made = IndexFile(files, path, *self._counts)
            if not made.is_plausible:
                # Everything from there on is indexed again.
                _lines.error("%s is damaged: it and the files after it are made anew from the log", path)
                later = [later for later in names if later >= name]
                for each in later:
                    files.remove(f"{self._directory}/{each}")
                return
            self._files = (*self._files, made)

    def forget_unsure(self, durable_ms: int, log_end: int) -> None:
        """After a crash: keep the oldest files as far as they are sure, and remove the others; raises OSError.

        Sure is a full file, not the newest, that was durable by the checkpoint and speaks of no record that was lost.
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
        """Find out how many keys of the last message are in; its physical offset, -1 when there is none.

        A message's keys may be in several files, of which a crash took the last.
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
        """Remove files of which the log has no message any more, never the newest (`deleteExpiredFile`)."""
        gone = 0
        while gone < len(self._files) - 1 and self._files[gone].header.end_offset < log_start:
            gone += 1
        removed, self._files = self._files[:gone], self._files[gone:]
        self._remove(removed)

    def _remove(self, files: tuple[IndexFile, ...]) -> None:
        # Not unmapped: a reader may be at work in one.
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
        # A file without entries may be one that a crash left, or say nothing yet.
        return next((file for file in reversed(files) if file.header.entry_next > 1), None)

    def put(self, records: Sequence[Keyed], work_max: int) -> tuple[int, int]:
        """Index records by their keys for about `work_max`; the work that it was, and how many are in with all keys.

        Called again with the first that is not, it goes on where it stopped. A key counts for one, and for one more
        every `KEY_WORTH` characters, a record without any for one. When the disk becomes full the entries before stay,
        and the next call meets the same; raises OSError when there are none.
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
        """How many keys of a record are in that is not before the last one."""
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
            # The next try gives it another name: this one would stay, empty, between full ones.
            if made is not None:
                made.close()
            with contextlib.suppress(OSError):
                files.remove(path)
            raise
        self._files = (*self._files, made)
        return made

    def _next_name(self, last: IndexFile | None) -> str:
        """The present time in UTC, but after the last file's name, whatever clock or time zone that was made by."""
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
        """Physical offsets of up to `count_max` messages, the newest ones, in log order (`queryOffset`).

        `is_meant` tells apart those of equal hash. It yields every `WALKED_MAX` entries, so that others can have their
        turn.
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
        """Make the newest file durable; the older ones are. Raises OSError."""
        if self._files:
            self._files[-1].flush()

    def close(self) -> None:
        """Unmap every file."""
        files, self._files = self._files, ()
        for file in files:
            file.close()
