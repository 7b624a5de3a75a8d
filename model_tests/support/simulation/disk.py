"""A disk in memory that models kills and power cuts.

Processes see live names and bytes. Bytes are durable once they are synced, and names once their directory is synced.
Everything else may or may not survive a power cut. An `Order` defines how unsynced changes of names and lengths
survive, because POSIX promises less than file systems keep.

A file's live bytes are memory of exactly the file's length, which all its mappings share. Durable bytes are kept per
page, as of the last sync. Later writes are found by comparison, so a write through a map needs no notification.

Operations of processes and their errors: see `files`. Links, permissions and capacity are not modelled; a full disk is
a planned error.
"""

from __future__ import annotations

import errno
import mmap
import os
import posixpath
import random
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from attrs import frozen

from longpoll_runtime import Buffer

PAGE_SIZE: Final = 4096
"""The unit of syncs in bytes. After a power cut, an unsynced page is old, new or torn."""
SECTOR_SIZE: Final = 512
"""The unit in bytes that a disk writes atomically."""
SMALL_SIZE_MAX: Final = 64 * 1024
"""Up to this size in bytes, a file is a `bytearray`. A larger file is sparse memory, whose unused pages cost nothing.
"""

_OLD, _NEW, _MIXED = "old", "new", "mixed"

Survives = Callable[[int], bool]
"""Returns whether the change of names or lengths with this number survives a power cut."""


class FileBytes:
    """One file, which may have several names. Invariant: `_durable[n]` is page n as last synced, or zeros if missing.

    `lengths` has (number, length) of each length change since the last sync; its first entry is durable. `_lost` has
    the pages that a failed sync did not write, with their content: the system treats them as written until they change.
    `appended` means that bytes were appended since the last sync, so any length in between may survive.
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
        return len(self.memory)

    def content(self) -> bytes:
        return bytes(self.memory)

    # ------------------------------------------------------------------ changes of what is live

    def lengthen(self, size: int, number: int) -> None:
        """Extend the file with zeros. The file must not be mapped."""
        assert self.map_count == 0, "a mapped file does not grow in the simulation"
        held = self.memory
        self.memory = self._zeros(size)
        self.memory[: len(held)] = held[:]
        self.lengths.append((number, size))

    def append(self, content: Buffer) -> None:
        """Append bytes. The file must not be mapped."""
        assert self.map_count == 0, "a mapped file does not grow in the simulation"
        try:
            self.memory += content  # type: ignore[operator] # of sparse memory it is the TypeError below
        except (BufferError, TypeError):
            # The memory cannot grow, because slices outlived their map or the file is sparse, so copy it.
            self.memory = bytearray(self.memory) + content
            self._descriptor = -1
        self.appended = True

    def clear_from(self, start: int) -> None:
        """Overwrite all bytes from `start` on with zeros."""
        size = self.size
        for page in self._pages_with_data(start, size):
            begin, end = max(start, page * PAGE_SIZE), min(size, (page + 1) * PAGE_SIZE)
            zeros = bytes(end - begin)
            if self.memory[begin:end] != zeros:
                self.memory[begin:end] = zeros
                # The page was changed, so the next sync writes it even if it gets its old content again.
                self._lost.pop(page, None)

    # ------------------------------------------------------------------ what is durable

    def sync(self, start: int, stop: int) -> bool:
        """Make the pages of bytes [start, stop) and the length durable; returns whether any page was written."""
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
        """Whether the system treats a page as written although a failed sync lost it, until the page changes."""
        lost = self._lost.get(page)
        if lost is not None and lost != live:
            del self._lost[page]
        return lost == live

    def lose(self, start: int, stop: int) -> None:
        """Fail a sync of bytes [start, stop) as on Linux, where the unwritten pages then count as written."""
        for page in self._candidates(start, stop):
            live = self._live(page)
            if live != self._old(page, len(live)):
                self._lost[page] = live

    def write_anew(self, start: int, stop: int) -> None:
        """Make the next sync write bytes [start, stop) again."""
        for page in range(start // PAGE_SIZE, -(-stop // PAGE_SIZE)):
            self._lost.pop(page, None)

    def evict(self, choose: random.Random) -> bool:
        """Let some pages that a failed sync lost be read again from the disk; returns whether any page changed."""
        changed = False
        for page, lost in sorted(self._lost.items()):
            if self._is_lost(page, self._live(page)) and choose.random() < 0.5:
                old = self._old(page, len(lost))
                self.memory[page * PAGE_SIZE : page * PAGE_SIZE + len(old)] = old
                del self._lost[page]
                changed = True
        return changed

    def sync_all(self) -> None:
        # If a file was never mapped, only bytes after its durable length may be unsynced.
        self.sync(0 if self.was_mapped else self.lengths[0][1], self.size)

    def dirty_pages(self) -> list[int]:
        """Returns the pages whose content is not durable, in order."""
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
        """Returns the pages of bytes [start, stop) that may differ from their durable content, in order."""
        pages = range(start // PAGE_SIZE, -(-stop // PAGE_SIZE))
        if self._descriptor < 0:
            return list(pages)
        few, many = (pages, self._durable) if len(pages) < len(self._durable) else (self._durable, pages)
        return sorted({page for page in few if page in many}.union(self._pages_with_data(start, stop)))

    def _pages_with_data(self, start: int, stop: int) -> Iterator[int]:
        """Iterate in order over the pages of bytes [start, stop) that may contain a byte other than zero."""
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
        """Returns the first position from `position` on that may have a byte other than zero, or else the length."""
        for page in self._pages_with_data(position, self.size):
            begin = max(position, page * PAGE_SIZE)
            if bytes(self.memory[begin : (page + 1) * PAGE_SIZE]).strip(b"\0"):
                return begin
        return self.size

    def write_back(self, choose: random.Random) -> None:
        """Write some pages to the disk, as a kernel may do at any time."""
        for page in self.dirty_pages():
            live = self._live(page)
            if choose.random() < 0.5 and not self._is_lost(page, live):
                self._durable[page] = live

    # ------------------------------------------------------------------ what is left

    def copy(self) -> FileBytes:
        """Returns the file with its own memory, as it is after a kill of its process, including unsynced pages."""
        made = FileBytes(self.size, self.changed_ms)
        made._fill({page: self._live(page) for page in self._pages_with_data(0, self.size)})
        made._durable = dict(self._durable)
        made._lost = dict(self._lost)
        made.lengths = list(self.lengths)
        made.appended = self.appended
        made.was_mapped = self.was_mapped
        return made

    def cut(self, choose: random.Random, survives: Survives) -> FileBytes:
        """Returns the file as the disk has it after a power cut. All its bytes are durable."""
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
        """Returns the old content of a page, the new content, or a mix of old and new sectors."""
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


ROOT: Final = "/"
Order = Literal["none", "directory", "all"]
"""How unsynced changes reach the disk.

- none: each change independently, as POSIX allows.
- directory: the changes of one directory's names, and of the lengths of its files, in order.
- all: all changes in order, and a sync includes every earlier change, as with the journals of ext4 and XFS."""
_CHANCES: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""The possible probabilities that a change survives. Power cuts that keep nearly all or nearly none reveal the most."""


@frozen
class Change:
    """One atomic change of a directory's names. A rename removes one name and adds another name."""

    number: int
    names: Mapping[str, Node | None]
    """Maps each changed name to its new node, or to None if the name is removed."""


class Directory:
    """One directory. Invariant: `names` equals `durable` after all `pending` changes, which are later than `synced`."""

    __slots__ = ("durable", "names", "pending", "synced")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[Change] = []
        self.synced = 0

    def change(self, number: int, names: Mapping[str, Node | None]) -> None:
        """Change names for every process, but not yet on the disk."""
        _apply(self.names, names)
        self.pending.append(Change(number, names))

    def sync(self, number: int) -> None:
        """Make the names durable; `number` is the number of the whole disk's last change."""
        for change in self.pending:
            _apply(self.durable, change.names)
        self.pending.clear()
        self.synced = number


Node: TypeAlias = FileBytes | Directory


def _apply(names: dict[str, Node], changes: Mapping[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class _Survival:
    """Decides which changes survive a power cut. With the order `all`, changes up to `last` survive."""

    def __init__(self, choose: random.Random, order: Order, last: int, number: int) -> None:
        self._choose = choose
        self._order = order
        self._last = last
        self._number = number
        self._chance = choose.choice(_CHANCES)

    def by_number(self, directory: Directory) -> Survives:
        """Returns a function that tells by its number whether a change of this directory survives.

        Changes of a directory are those of its names and of its files' lengths.
        """
        if self._order == "none":
            return lambda _number: self._choose.random() < self._chance
        last = self._last if self._order == "all" else self._choose.randint(directory.synced, self._number)
        return lambda number: number <= last


class Disk:
    """Directories and files. Invariant: the durable state depends only on the calls, so equal runs leave equal disks.

    `number` counts the changes of names and lengths. The changes up to `committed` precede a sync.
    """

    def __init__(self) -> None:
        self.root = Directory()
        self.locked: set[str] = set()
        self.number = 0
        self.committed = 0
        self._directories: dict[str, Directory] = {ROOT: self.root}

    # ------------------------------------------------------------------ names

    def next_number(self) -> int:
        """Count one more change of names or lengths, and return its number."""
        self.number += 1
        return self.number

    def commit(self) -> None:
        """Record a sync, after which a disk of the order `all` has all changes so far."""
        self.committed = self.number

    def directory(self, path: str) -> Directory:
        """Returns a directory; raises FileNotFoundError or NotADirectoryError."""
        found = self._directories.get(path)
        if found is None:
            raise self._why_none(path, path)
        return found

    def _why_none(self, path: str, asked: str) -> OSError:
        """Returns the error for the path `asked`, because `path` is not a directory."""
        known, name = path, ""
        while known not in self._directories:
            known, name = posixpath.split(known)
        is_file = name in self._directories[known].names
        return _error(errno.ENOTDIR if is_file else errno.ENOENT, asked)

    def place(self, path: str) -> tuple[Directory, str]:
        """Returns the directory that holds a path's last name, and this name; raises the errors of `directory`."""
        holder, _, name = path.rpartition("/")
        found = self._directories.get(holder or ROOT)
        if found is None:
            raise self._why_none(holder, path)
        return found, name

    def find(self, path: str) -> Node | None:
        """Returns the node of a path, or None if it does not exist or if a part of the path is not a directory."""
        if path == ROOT:
            return self.root
        holder, _, name = path.rpartition("/")
        found = self._directories.get(holder or ROOT)
        return found.names.get(name) if found is not None else None

    def file(self, path: str) -> FileBytes:
        """Returns the file of a path; raises FileNotFoundError, NotADirectoryError or IsADirectoryError."""
        if path == ROOT:
            raise _error(errno.EISDIR, path)
        holder, name = self.place(path)
        found = holder.names.get(name)
        if isinstance(found, FileBytes):
            return found
        raise _error(errno.ENOENT if found is None else errno.EISDIR, path)

    def make_directory(self, path: str) -> None:
        """Create a directory in an existing directory; raises FileExistsError."""
        holder, name = self.place(path)
        if not name or name in holder.names:
            raise _error(errno.EEXIST, path)
        made = Directory()
        holder.change(self.next_number(), {name: made})
        self._directories[path] = made

    def paths(self) -> list[str]:
        """Returns the paths of all files, sorted."""
        return sorted(path for path, node in _walk(ROOT, self.root) if isinstance(node, FileBytes))

    # ------------------------------------------------------------------ what is left

    def kill(self) -> Disk:
        """Returns the disk after every process is killed: all written content, durable as before, and no locks."""
        memory: dict[int, FileBytes] = {}

        def copied(node: Node) -> Node:
            if isinstance(node, FileBytes):
                if id(node) not in memory:
                    memory[id(node)] = node.copy()
                return memory[id(node)]
            return directories.setdefault(id(node), Directory())

        directories = {id(self.root): (root := Directory())}
        for directory in _all_directories(self.root):
            made = directories.setdefault(id(directory), Directory())
            made.names = {name: copied(node) for name, node in directory.names.items()}
            made.durable = {name: copied(node) for name, node in directory.durable.items()}
            made.pending = [
                Change(each.number, {name: None if node is None else copied(node) for name, node in each.names.items()})
                for each in directory.pending
            ]
            made.synced = directory.synced
        left = Disk()
        left.number, left.committed = self.number, self.committed
        left._stand_on(root)
        return left

    def cut(self, choose: random.Random, order: Order = "directory") -> Disk:
        """Returns the disk after a power cut: durable content, and a random part of everything else.

        Each page written since its last sync is old, new, or a mix of old and new sectors. Any part of appended data
        may survive, perhaps followed by zeros. Unsynced names and lengths survive according to `order`.
        """
        memory: dict[int, FileBytes] = {}
        survives_on = _Survival(choose, order, choose.randint(self.committed, self.number), self.number)

        def left_of(directory: Directory) -> Directory:
            survives = survives_on.by_number(directory)
            names = dict(directory.durable)
            for change in directory.pending:
                if survives(change.number):
                    _apply(names, change.names)
            made = Directory()
            for name in sorted(names):
                node = names[name]
                if isinstance(node, Directory):
                    made.names[name] = left_of(node)
                else:
                    if id(node) not in memory:
                        memory[id(node)] = node.cut(choose, survives)
                    made.names[name] = memory[id(node)]
            made.durable = dict(made.names)
            return made

        left = Disk()
        left._stand_on(left_of(self.root))
        return left

    def _stand_on(self, root: Directory) -> None:
        self.root = root
        self._directories = {ROOT: root}
        self._directories.update((path, node) for path, node in _walk(ROOT, root) if isinstance(node, Directory))

    def write_back(self, choose: random.Random) -> None:
        """Write some unsynced pages to the disk, as a kernel may do at any time."""
        for path in self.paths():
            if choose.random() < 0.5:
                self.file(path).write_back(choose)

    def evict(self, choose: random.Random) -> bool:
        """Let some pages that failed syncs lost be read again from the disk; returns whether any page changed.

        No process may use the disk during this call.
        """
        return sum(self.file(path).evict(choose) for path in self.paths()) > 0


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _walk(path: str, directory: Directory) -> Iterator[tuple[str, Node]]:
    """Iterate over every live path below a directory, in sorted order."""
    for name in sorted(directory.names):
        node, below = directory.names[name], f"{path.rstrip('/')}/{name}"
        yield below, node
        if isinstance(node, Directory):
            yield from _walk(below, node)


def _all_directories(root: Directory) -> Iterator[Directory]:
    """Iterate over every directory once, including removed directories that are still on the disk."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        directory = waiting.pop()
        yield directory
        changes = (change.names for change in directory.pending)
        for names in (directory.names, directory.durable, *changes):
            for node in names.values():
                if isinstance(node, Directory) and id(node) not in seen:
                    seen.add(id(node))
                    waiting.append(node)
