"""One file's bytes: live, as every process sees them, and durable, as on the disk.

Live bytes are memory of exactly the file's length, shared by every mapping. Durable bytes are kept per page, as of the
last sync; later writes are found by comparison, so writes through a map need no notification. Names: `disk`. Errors:
`files`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Final

from longpoll_runtime.interface import Buffer

PAGE_SIZE: Final = 4096
"""The unit of syncing and write-back; a power cut leaves the old page, the new one, or a torn one."""
SECTOR_SIZE: Final = 512
"""The unit that a disk writes atomically."""
SMALL_SIZE_MAX: Final = 64 * 1024
"""Up to this size, bytes, a file is a `bytearray`; beyond it, sparse memory, whose untouched pages cost nothing."""

_OLD, _NEW, _MIXED = "old", "new", "mixed"

Survives = Callable[[int], bool]
"""Whether a change of names or lengths, by its number, survives a power cut."""


class FileBytes:
    """One file, whatever its names. Invariant: `_durable[n]` is page n as last synced, zeros where missing.

    `lengths` are the numbers and results of length changes since the last sync; the first is durable. `_lost` are
    pages, with their content, that a failed sync did not write: the system takes them for written until they change.
    `appended` says that bytes were appended since then: any length in between may survive.
    """

    __slots__ = (
        "__weakref__",
        "_descriptor",
        "_durable",
        "_lost",
        "appended",
        "changed_ms",
        "lengths",
        "map_count",
        "memory",
        "was_mapped",
    )

    def __init__(self, size: int, changed_ms: int) -> None:
        self._descriptor = -1
        self._durable: dict[int, bytes] = {}
        self._lost: dict[int, bytes] = {}
        self.memory: bytearray | mmap.mmap = self._zeros(size)
        self.lengths: list[tuple[int, int]] = [(0, 0)]
        self.appended = False
        self.changed_ms = changed_ms
        self.map_count = 0
        self.was_mapped = False

    def _zeros(self, size: int) -> bytearray | mmap.mmap:
        self._descriptor = -1
        if size <= SMALL_SIZE_MAX:
            return bytearray(size)
        self._descriptor = os.memfd_create("simulated")
        weakref.finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, size)
        return mmap.mmap(self._descriptor, size)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.memory)

    def content(self) -> bytes:
        """All of the bytes."""
        return bytes(self.memory)

    # ------------------------------------------------------------------ changes of what is live

    def lengthen(self, size: int, number: int) -> None:
        """Extend the file with zeros; it must not be mapped."""
        assert self.map_count == 0, "a mapped file does not grow in the simulation"
        held = self.memory
        self.memory = self._zeros(size)
        self.memory[: len(held)] = held[:]
        self.lengths.append((number, size))

    def append(self, content: Buffer) -> None:
        """Append bytes; the file must not be mapped."""
        assert self.map_count == 0, "a mapped file does not grow in the simulation"
        try:
            self.memory += content  # type: ignore[operator] # of sparse memory it is the TypeError below
        except (BufferError, TypeError):
            # Slices outlived their map, or the file was created long: from now on it is an appended file.
            self.memory = bytearray(self.memory) + content
            self._descriptor = -1
        self.appended = True

    def clear_from(self, start: int) -> None:
        """Zero everything from `start` on."""
        size = self.size
        for page in self._pages_with_data(start, size):
            begin, end = max(start, page * PAGE_SIZE), min(size, (page + 1) * PAGE_SIZE)
            zeros = bytes(end - begin)
            if self.memory[begin:end] != zeros:
                self.memory[begin:end] = zeros
                # It was changed: the system treats later content as changed, even if equal to the old one.
                self._lost.pop(page, None)

    # ------------------------------------------------------------------ what is durable

    def sync(self, start: int, stop: int) -> bool:
        """Make the pages of bytes [start, stop) and the length durable; returns whether anything was not."""
        durable, changed = self._durable, False
        for page in self._candidates(start, stop):
            live = self._live(page)
            if durable.get(page) != live and not self._is_lost(page, live):
                durable[page] = live
                changed = True
        self.lengths = [(0, self.size)]
        self.appended = False
        return changed

    def _is_lost(self, page: int, live: bytes) -> bool:
        """Whether the system wrongly takes a page for written; false once it has changed."""
        lost = self._lost.get(page)
        if lost is not None and lost != live:
            del self._lost[page]
        return lost == live

    def lose(self, start: int, stop: int) -> None:
        """Fail a sync of bytes [start, stop) as Linux does: unwritten pages count as written."""
        for page in self._candidates(start, stop):
            live = self._live(page)
            if live != self._old(page, len(live)):
                self._lost[page] = live

    def write_anew(self, start: int, stop: int) -> None:
        """Make the next sync write bytes [start, stop) again."""
        for page in range(start // PAGE_SIZE, -(-stop // PAGE_SIZE)):
            self._lost.pop(page, None)

    def evict(self, choose: random.Random) -> bool:
        """Make the system reread some pages that it wrongly takes for written; returns whether any changed."""
        changed = False
        for page, lost in sorted(self._lost.items()):
            if self._is_lost(page, self._live(page)) and choose.random() < 0.5:
                old = self._old(page, len(lost))
                self.memory[page * PAGE_SIZE : page * PAGE_SIZE + len(old)] = old
                del self._lost[page]
                changed = True
        return changed

    def sync_all(self) -> None:
        """Make the whole file durable."""
        # The durable part of a file that was never mapped has not changed since.
        self.sync(0 if self.was_mapped else self.lengths[0][1], self.size)

    def dirty_pages(self) -> list[int]:
        """The pages whose content is not durable, in order."""
        return [
            page
            for page in self._candidates(0, self.size)
            if self._live(page) != self._old(page, self._page_size(page))
        ]

    def _page_size(self, page: int) -> int:
        return min(PAGE_SIZE, self.size - page * PAGE_SIZE)

    def _live(self, page: int) -> bytes:
        return bytes(self.memory[page * PAGE_SIZE : (page + 1) * PAGE_SIZE])

    def _old(self, page: int, size: int) -> bytes:
        return self._durable.get(page, b"")[:size].ljust(size, b"\0")

    def _candidates(self, start: int, stop: int) -> list[int]:
        """The pages of bytes [start, stop) that are not zeros both live and durable, in order."""
        pages = range(start // PAGE_SIZE, -(-stop // PAGE_SIZE))
        if self._descriptor < 0:
            return list(pages)
        few, many = (pages, self._durable) if len(pages) < len(self._durable) else (self._durable, pages)
        return sorted({page for page in few if page in many}.union(self._pages_with_data(start, stop)))

    def _pages_with_data(self, start: int, stop: int) -> Iterator[int]:
        """The pages of bytes [start, stop) in which a byte may not be zero, in order."""
        if self._descriptor < 0:
            yield from range(start // PAGE_SIZE, -(-stop // PAGE_SIZE))
            return
        position = start - start % PAGE_SIZE
        while position < stop:
            try:
                position = os.lseek(self._descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return
            end = os.lseek(self._descriptor, position, os.SEEK_HOLE)
            yield from range(position // PAGE_SIZE, -(-min(end, stop) // PAGE_SIZE))
            position = end

    def data_from(self, position: int) -> int:
        """The first position from this one on whose byte may not be zero; the length if there is none."""
        for page in self._pages_with_data(position, self.size):
            begin = max(position, page * PAGE_SIZE)
            if bytes(self.memory[begin : (page + 1) * PAGE_SIZE]).strip(b"\0"):
                return begin
        return self.size

    def write_back(self, choose: random.Random) -> None:
        """Write some pages to the disk, as a kernel may at any time."""
        for page in self.dirty_pages():
            live = self._live(page)
            if choose.random() < 0.5 and not self._is_lost(page, live):
                self._durable[page] = live

    # ------------------------------------------------------------------ what is left

    def copy(self) -> FileBytes:
        """A copy with its own memory: the file after a process is killed, including dirty pages."""
        made = FileBytes(self.size, self.changed_ms)
        made._fill({page: self._live(page) for page in self._pages_with_data(0, self.size)})
        made._durable = dict(self._durable)
        made._lost = dict(self._lost)
        made.lengths = list(self.lengths)
        made.appended = self.appended
        made.was_mapped = self.was_mapped
        return made

    def cut(self, choose: random.Random, survives: Survives) -> FileBytes:
        """The file on the disk after a power cut, all durable."""
        size = next((length for number, length in reversed(self.lengths[1:]) if survives(number)), self.lengths[0][1])
        if self.appended:
            size = choose.choice((size, choose.randint(min(size, self.size), self.size), self.size))
        pages = dict(self._durable)
        mode = choose.choice((_OLD, _NEW, _MIXED, _MIXED))
        for page in self.dirty_pages() if mode != _OLD else ():
            pages[page] = self._live(page) if mode == _NEW else self._left_of(page, choose)
        made = FileBytes(size, self.changed_ms)
        made._fill({page: content for page, content in pages.items() if page * PAGE_SIZE < size})
        made._durable = {page: content for page, content in pages.items() if page * PAGE_SIZE < size}
        made.lengths = [(0, size)]
        return made

    def _left_of(self, page: int, choose: random.Random) -> bytes:
        """The old page, the new one, or one with some new sectors."""
        new = self._live(page)
        old = self._old(page, len(new))
        fate = choose.randrange(3)
        if fate < 2:
            return new if fate else old
        return b"".join(
            (new if choose.random() < 0.5 else old)[start : start + SECTOR_SIZE]
            for start in range(0, len(new), SECTOR_SIZE)
        )

    def _fill(self, pages: dict[int, bytes]) -> None:
        size = self.size
        for page, content in pages.items():
            start = page * PAGE_SIZE
            stop = min(start + len(content), size)
            self.memory[start:stop] = content[: stop - start]

    def flip(self, position: int, bit: int) -> None:
        """Flip one bit, on the disk and for every reader."""
        self.memory[position] ^= 1 << bit
        page = position // PAGE_SIZE
        if page in self._durable:
            old = bytearray(self._durable[page])
            with contextlib.suppress(IndexError):
                old[position % PAGE_SIZE] ^= 1 << bit
            self._durable[page] = bytes(old)
