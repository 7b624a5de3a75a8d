"""A directory that remembers what was told, so that who follows a history can be killed and started again.

`findings.ndjson` takes each finding before anything else does, and `posted.ndjson` the names of those that a webhook
has taken. What is in the first and not elsewhere is told there at the next start. `checkpoint.json` says of which
histories and thresholds it is: with others the same finding would not be the same.

What was judged of a long history stands beside these (`run.growing.kept`); where that is missing the whole history is
judged again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from attrs import frozen

from longpoll_judge.errors import CheckpointError
from longpoll_judge.show.stream import Stream, open_stream
from longpoll_spec.tables import with_table

FORMAT: Final = 1
ABOUT_FILE: Final = "checkpoint.json"
TOLD_FILE: Final = "findings.ndjson"
POSTED_FILE: Final = "posted.ndjson"
LOCK_FILE: Final = "lock"


@with_table
class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint is of."""

    format: int
    paths: list[str]
    thresholds: dict[str, float]


@frozen(eq=False)
class Checkpoint:
    """What was told."""

    told: Stream
    posted: Stream


@contextmanager
def open_checkpoint(directory: Path, paths: Sequence[str], thresholds: Mapping[str, float]) -> Iterator[Checkpoint]:
    """The checkpoint in a directory, which is made if it is not there, and is this process's alone in the block.

    Raises `CheckpointError`, `StreamNotReadableError` and `OSError`.
    """
    about = About(FORMAT, sorted(paths), dict(thresholds))
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory):
        _check(directory, about)
        with open_stream(directory / TOLD_FILE) as told, open_stream(directory / POSTED_FILE) as posted:
            yield Checkpoint(told, posted)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep others out; the kernel lets them in when this process ends, however it does."""
    with (directory / LOCK_FILE).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another process uses the checkpoint {directory}; end it, or name another directory"
            raise CheckpointError(text) from None
        yield


def _check(directory: Path, about: About) -> None:
    """See that the checkpoint is of this judgement, or make it so where it is new."""
    file = directory / ABOUT_FILE
    if not file.exists():
        if (directory / TOLD_FILE).exists():
            raise CheckpointError(f"{directory} has findings but no {ABOUT_FILE}; name another directory")
        _write(file, msgspec.json.encode(about))
        return
    try:
        known = msgspec.json.decode(file.read_bytes(), type=About)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{file} cannot be read: {error}; choose another directory") from None
    if known != about:
        told = f"histories {', '.join(known.paths)} with {known.thresholds} (format {known.format})"
        raise CheckpointError(f"the checkpoint {directory} belongs to {told}; choose another directory")


def _write(file: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all."""
    temporary = file.with_suffix(".tmp")
    with temporary.open("wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    temporary.replace(file)
