"""A disk in memory that models kills, power cuts and bit rot.

Live names and bytes are what every process sees. Bytes are durable once synced (`file_bytes`), names once their
directory is synced. Anything else may or may not survive a power cut. An `Order` says how unsynced changes of names and
lengths may survive: POSIX promises less than file systems keep.

Process operations: `files`. Not modelled: links, permissions and capacity; a full disk is a planned error.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from attrs import frozen

from longpoll_simulation.file_bytes import FileBytes, Survives

ROOT: Final = "/"
Order = Literal["none", "directory", "all"]
"""How unsynced changes reach the disk. none: each independently, as POSIX allows. directory: those of a directory and
of its files' lengths in order. all: all in order, and a sync includes every earlier change, like the journals of
ext4 and XFS.
"""
_CHANCES: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""The probability that a change survives: cuts that keep nearly all or nearly none show the most."""


@frozen
class Change:
    """One atomic change of a directory's names: a rename removes one name and adds another."""

    number: int
    names: Mapping[str, Node | None]
    """Each name with its new node; None for removed."""


class Directory:
    """One directory. Invariant: `names` is `durable` after all of `pending`, which are changes after `synced`."""

    __slots__ = ("durable", "names", "pending", "synced")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[Change] = []
        self.synced = 0

    def change(self, number: int, names: Mapping[str, Node | None]) -> None:
        """Change names for every process, not yet on the disk."""
        _apply(self.names, names)
        self.pending.append(Change(number, names))

    def sync(self, number: int) -> None:
        """Make the names durable; `number` is the last change on the whole disk."""
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
    """The changes that survive a power cut. With `all`, those up to `last`, of `number` in total."""

    def __init__(self, choose: random.Random, order: Order, last: int, number: int) -> None:
        self._choose = choose
        self._order = order
        self._last = last
        self._number = number
        self._chance = choose.choice(_CHANCES)

    def by_number(self, directory: Directory) -> Survives:
        """Whether a change of this directory's names, or of the length of a file in it, survives."""
        if self._order == "none":
            return lambda _number: self._choose.random() < self._chance
        last = self._last if self._order == "all" else self._choose.randint(directory.synced, self._number)
        return lambda number: number <= last


class Disk:
    """Directories and files. Invariant: the durable state depends on the calls alone, so equal runs leave equal disks.

    `number` counts the changes of names and lengths; those up to `committed` precede a sync.
    """

    def __init__(self) -> None:
        self.root = Directory()
        self.locked: set[str] = set()
        self.number = 0
        self.committed = 0
        self._directories: dict[str, Directory] = {ROOT: self.root}

    # ------------------------------------------------------------------ names

    def next_number(self) -> int:
        """The number of the next change of names or lengths."""
        self.number += 1
        return self.number

    def commit(self) -> None:
        """Record a sync: an ordered disk now has all changes."""
        self.committed = self.number

    def directory(self, path: str) -> Directory:
        """A directory; raises FileNotFoundError and NotADirectoryError."""
        found = self._directories.get(path)
        if found is None:
            raise self._why_none(path, path)
        return found

    def _why_none(self, path: str, asked: str) -> OSError:
        """Why a path is not a directory, as an error for the requested path."""
        known, name = path, ""
        while known not in self._directories:
            known, name = posixpath.split(known)
        is_file = name in self._directories[known].names
        return _error(errno.ENOTDIR if is_file else errno.ENOENT, asked)

    def place(self, path: str) -> tuple[Directory, str]:
        """The directory of a path's last name, and that name; raises as `directory` does."""
        holder, _, name = path.rpartition("/")
        found = self._directories.get(holder or ROOT)
        if found is None:
            raise self._why_none(holder, path)
        return found, name

    def find(self, path: str) -> Node | None:
        """The node of a path; None if there is none, or if a part of the path is not a directory."""
        if path == ROOT:
            return self.root
        holder, _, name = path.rpartition("/")
        found = self._directories.get(holder or ROOT)
        return found.names.get(name) if found is not None else None

    def file(self, path: str) -> FileBytes:
        """The file of a path; raises FileNotFoundError, NotADirectoryError and IsADirectoryError."""
        if path == ROOT:
            raise _error(errno.EISDIR, path)
        holder, name = self.place(path)
        found = holder.names.get(name)
        if isinstance(found, FileBytes):
            return found
        raise _error(errno.ENOENT if found is None else errno.EISDIR, path)

    def make_directory(self, path: str) -> None:
        """Create one directory in an existing one; raises FileExistsError."""
        holder, name = self.place(path)
        if not name or name in holder.names:
            raise _error(errno.EEXIST, path)
        made = Directory()
        holder.change(self.next_number(), {name: made})
        self._directories[path] = made

    def paths(self) -> list[str]:
        """The paths of all files, sorted."""
        return sorted(path for path, node in _walk(ROOT, self.root) if isinstance(node, FileBytes))

    # ------------------------------------------------------------------ what is left

    def kill(self) -> Disk:
        """The disk after every process is killed: live content, as durable as before, without locks."""
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
        """The disk after a power cut: durable content, plus a random part of everything else.

        Each page written since its last sync is old, new, or a mix of sectors. Any part of appended data may survive,
        perhaps with zeros. Unsynced names and lengths survive according to `order`.
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
        """Write some unsynced pages to the disk, as a kernel may at any time."""
        for path in self.paths():
            if choose.random() < 0.5:
                self.file(path).write_back(choose)

    def evict(self, choose: random.Random) -> bool:
        """Make the system reread pages that it wrongly takes for written; returns whether any changed.

        A failed sync leaves such pages. No process may use the disk meanwhile.
        """
        return sum(self.file(path).evict(choose) for path in self.paths()) > 0

    def rot(self, choose: random.Random, path: str, count: int) -> list[int]:
        """Flip random bits of a file, on the disk and for every reader; returns the byte positions."""
        file = self.file(path)
        assert file.size > 0
        positions = [choose.randrange(file.size) for _ in range(count)]
        for position in positions:
            file.flip(position, choose.randrange(8))
        return positions


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _walk(path: str, directory: Directory) -> Iterator[tuple[str, Node]]:
    """Every live path below a directory, sorted."""
    for name in sorted(directory.names):
        node, below = directory.names[name], f"{path.rstrip('/')}/{name}"
        yield below, node
        if isinstance(node, Directory):
            yield from _walk(below, node)


def _all_directories(root: Directory) -> Iterator[Directory]:
    """Every directory once, including those that are only on the disk."""
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
