"""A file of findings, one JSON line each, without duplicates even if the writer is killed.

Each line is written with its newline and synced to disk. When the file is opened again, an incomplete last line is
removed, so that its finding can be added again. Only one process writes at a time.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from attrs import define, field

from longpoll_judge.errors import StreamNotReadableError
from longpoll_spec.tables import with_table

BEGINS: Final = (b'{"property":', b'{"id":')
"""The first bytes of lines that this module writes. A file whose incomplete last line begins otherwise is rejected."""


@with_table
class _Named(msgspec.Struct):
    """The fields that every line must have."""

    id: str


_DECODER = msgspec.json.Decoder(_Named)


@define(eq=False)
class Stream:
    """An open file of lines. Invariant: `ids` has the ids of all lines; the file is empty or ends with a newline."""

    path: Path
    _file: BinaryIO
    ids: set[str] = field(factory=set)

    def put(self, name: str, line: bytes) -> bool:
        """Add a line without its newline, unless the name exists already; returns whether it was added.

        Raises `OSError` if the line cannot be written; the next opening then removes the incomplete line.
        """
        if name in self.ids:
            return False
        _write_whole(self._file, line + b"\n")
        os.fsync(self._file.fileno())
        self.ids.add(name)
        return True


def _write_whole(file: BinaryIO, content: bytes) -> None:
    """Write all bytes, because one write to an unbuffered file may write only a part."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def open_stream(path: Path) -> Iterator[Stream]:
    """Open a file of findings, or create it, and lock it for this process.

    Raises `StreamNotReadableError` if the file has other content, and `OSError`.
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


def _read(path: Path) -> tuple[set[str], int]:
    ids: set[str] = set()
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
