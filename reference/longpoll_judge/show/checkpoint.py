"""A directory with the reported findings, so that a follower of a history can be killed and restarted.

Each finding goes to `findings.ndjson` first. `posted.ndjson` has the names of those that the webhook accepted. The next
start sends the missing ones. `checkpoint.json` names the histories and thresholds to which the findings belong.

The state of a long history is in the same directory (`run.incremental.state_file`). Without it the whole history is
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
    """The histories and thresholds of a checkpoint."""

    format: int
    paths: list[str]
    thresholds: dict[str, float]


@frozen(eq=False)
class Checkpoint:
    """The reported findings."""

    told: Stream
    posted: Stream


@contextmanager
def open_checkpoint(directory: Path, paths: Sequence[str], thresholds: Mapping[str, float]) -> Iterator[Checkpoint]:
    """The checkpoint in a directory, which is created if needed and locked for this process in the block.

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
    """Lock out other processes; the kernel releases the lock when this process ends."""
    with (directory / LOCK_FILE).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another process uses the checkpoint {directory}; end it, or name another directory"
            raise CheckpointError(text) from None
        yield


def _check(directory: Path, about: About) -> None:
    """Check that the checkpoint belongs to this judgement, or write a new one."""
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
    """Write a file atomically."""
    temporary = file.with_suffix(".tmp")
    with temporary.open("wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    temporary.replace(file)
