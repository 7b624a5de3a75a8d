"""A disk in memory that knows what a kill, a power cut and age leave of it.

Live names and bytes are what every process sees. Durable are bytes that were synced (`file_bytes`) and names whose
directory was. Everything else may be found after a power cut or not. How changes of names and lengths may be found says
an `Order`: POSIX promises less than file systems keep.

Leaves out what processes do (`files`), links, rights, and a size of its own: a full disk is an error that is planned.
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
"""How changes that were not synced come to the disk: each by itself, as POSIX allows; those of a directory and of the
lengths of its files in the order in which they were made; or all in order, and whatever is synced takes every earlier
one with it, as the journals of ext4 and XFS keep it."""
_CHANCES: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""How likely it is that a change is found: cuts in which nearly all or nearly none of them are tell the most."""


@frozen
class Change:
    """One change of a directory's names, all of it or nothing: a rename takes a name away and gives another."""

    number: int
    names: Mapping[str, Node | None]
    """Each name with what it stands for from now on; None for nothing."""


class Directory:
    """One directory. Invariant: `names` is `durable` after all of `pending`, which are changes after `synced`."""

    __slots__ = ("durable", "names", "pending", "synced")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[Change] = []
        self.synced = 0

    def change(self, number: int, names: Mapping[str, Node | None]) -> None:
        """Change names, for every process and not yet on the disk."""
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
    """Which changes a power cut finds. With `all` those up to `last`; there were `number` in all."""

    def __init__(self, choose: random.Random, order: Order, last: int, number: int) -> None:
        self._choose = choose
        self._order = order
        self._last = last
        self._number = number
        self._chance = choose.choice(_CHANCES)

    def by_number(self, directory: Directory) -> Survives:
        """Whether a change of this directory's names, or of the length of a file in it, is found."""
        if self._order == "none":
            return lambda _number: self._choose.random() < self._chance
        last = self._last if self._order == "all" else self._choose.randint(directory.synced, self._number)
        return lambda number: number <= last


class Disk:
    """Directories and files. Invariant: what is durable of it depends on the calls alone, so equal runs leave equals.

    `number` counts the changes of names and lengths; those up to `committed` came before something that was synced.
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
        """Note that something was synced: a disk that keeps changes in order has all of them by now."""
        self.committed = self.number

    def directory(self, path: str) -> Directory:
        """A directory; raises FileNotFoundError and NotADirectoryError."""
        found = self._directories.get(path)
        if found is None:
            raise self._why_none(path, path)
        return found

    def _why_none(self, path: str, asked: str) -> OSError:
        """Why a path is no directory, as an error for the path that was asked for."""
        known, name = path, ""
        while known not in self._directories:
            known, name = posixpath.split(known)
        is_file = name in self._directories[known].names
        return _error(errno.ENOTDIR if is_file else errno.ENOENT, asked)

    def place(self, path: str) -> tuple[Directory, str]:
        """The directory that holds a path's last name, and that name; raises as `directory` does."""
        holder, _, name = path.rpartition("/")
        found = self._directories.get(holder or ROOT)
        if found is None:
            raise self._why_none(holder, path)
        return found, name

    def find(self, path: str) -> Node | None:
        """What a path stands for; None for nothing, or where a part of it is no directory."""
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
        """Make one directory in one that is there; raises FileExistsError."""
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
        """What is left when every process is killed: all that is live, as durable as it was; and no locks."""
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
        """What is left after a power cut: what was durable, and of all else what chance had put on the disk.

        Of each page written since its last sync the old one, the new one, or some sectors of either; of what was
        appended any part, perhaps with zeros; names and lengths that were not synced are there or not, as `order` has
        it.
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
        """Put some pages of some files on the disk that nobody has synced, as a kernel does whenever it likes."""
        for path in self.paths():
            if choose.random() < 0.5:
                self.file(path).write_back(choose)

    def evict(self, choose: random.Random) -> bool:
        """Have the system read again what a sync could not write and it takes for written; whether any is another now.

        Nobody may be at work on it.
        """
        return sum(self.file(path).evict(choose) for path in self.paths()) > 0

    def rot(self, choose: random.Random, path: str, count: int) -> list[int]:
        """Turn bits of a file round, `count` times, on the disk and for everyone who reads it; at which bytes."""
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
    """Every directory once, live ones and those that are on the disk only."""
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
