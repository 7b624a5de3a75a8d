"""A file of findings, one JSON line each, without duplicates even if the writer is killed.

Each line is written with its newline and synced to disk. When the file is opened again, an incomplete last line is cut
off; its finding is then missing and can be added again. Only one process writes at a time. The names of all findings
are kept as 64 bits of their checksums, as many as a name has.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np
from attrs import define, field

from longpoll_judge.errors import StreamNotReadableError
from longpoll_spec.tables import with_table

SUM_BYTES: Final = 8
RECENT_MAX: Final = 4_096
"""Names that are kept apart, some 100 bytes each, until they are put in their place among the others."""


@define(eq=False)
class Names:
    """A set that only grows."""

    _sorted: np.ndarray[tuple[int], np.dtype[np.uint64]] = field(factory=lambda: np.zeros(0, dtype=np.uint64))
    _recent: set[int] = field(factory=set)

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """These names."""
        found = cls()
        for name in names:
            found.add(name)
        return found

    def add(self, name: str) -> None:
        """Put a name into the set, unless it is there."""
        if name in self:
            return
        self._recent.add(_sum_of(name))
        if len(self._recent) > RECENT_MAX:
            recent = np.fromiter(self._recent, np.uint64, len(self._recent))
            self._sorted = np.sort(np.concatenate((self._sorted, recent)))
            self._recent.clear()

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        wanted = _sum_of(name)
        if wanted in self._recent:
            return True
        # Another thread may add: what it moves is in its new place before it leaves the old one.
        found = self._sorted
        at = int(np.searchsorted(found, np.uint64(wanted)))
        return at < len(found) and int(found[at]) == wanted

    def __len__(self) -> int:
        return len(self._sorted) + len(self._recent)

    @property
    def nbytes(self) -> int:
        """The size of the stored names in bytes."""
        return self._sorted.nbytes


def _sum_of(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=SUM_BYTES).digest(), "big")


BEGINS: Final = (b'{"property":', b'{"id":')
"""How lines of ours begin: what begins otherwise is no part of one, and is not cut off."""


@with_table
class _Named(msgspec.Struct):
    """The required fields of a line."""

    id: str


_DECODER = msgspec.json.Decoder(_Named)


@define(eq=False)
class Stream:
    """An open file of lines. Invariant: `ids` are those of its lines, and the file ends with a newline or is empty."""

    path: Path
    _file: BinaryIO
    ids: Names = field(factory=Names)

    def put(self, name: str, line: bytes) -> bool:
        """Add a line without its newline, unless there is one of this name; returns whether it was added.

        Raises `OSError` where it cannot be written; the next opening cuts off what there is of it.
        """
        if name in self.ids:
            return False
        _write_whole(self._file, line + b"\n")
        os.fsync(self._file.fileno())
        self.ids.add(name)
        return True


def _write_whole(file: BinaryIO, content: bytes) -> None:
    """Write everything: one write to an unbuffered file may take only a part."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def open_stream(path: Path) -> Iterator[Stream]:
    """The stream in a file, which is made if it is not there, and is the caller's alone in the block.

    Raises `StreamNotReadableError` and `OSError`.
    """
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise StreamNotReadableError(f"{path} is not a regular file, so its contents cannot be checked; name a file")
    with path.open("ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"{path} is added to already, by another process; name another file"
            raise StreamNotReadableError(text) from None
        ids, end = _read(path)
        file.truncate(end)
        yield Stream(path, file, ids)


def _read(path: Path) -> tuple[Names, int]:
    """The names in a file, and the byte after its last whole line."""
    ids = Names()
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                if not any(line.startswith(begin) or begin.startswith(line) for begin in BEGINS):
                    raise _not_ours(path, number)
                break
            try:
                ids.add(_DECODER.decode(line).id)
            except msgspec.DecodeError:
                raise _not_ours(path, number) from None
            end += len(line)
    return ids, end


def _not_ours(path: Path, number: int) -> StreamNotReadableError:
    return StreamNotReadableError(
        f"line {number} of {path} is not a finding, so the file was not changed; name another file"
    )
