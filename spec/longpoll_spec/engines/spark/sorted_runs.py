"""Sorted runs of states as files that the driver and every worker map: the storage of a search on Spark.

A run is a NumPy array of the form `Words`, mixed, sorted by heads, without duplicates. A directory has runs of every
shard of the heads (`words.first_head`):

| file                | holds                                              |
|---------------------|----------------------------------------------------|
| `share-Q-N.npy`     | run N of the states whose heads lie in shard Q     |

A file appears whole or not at all, and writing it again gives the same states: a task that Spark retries does no harm.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from longpoll_spec.engines.packed.words import Words, first_head, lesser


def write_run(directory: Path, share: int, number: int, words: Words) -> None:
    """Write a run, unless it has no states."""
    if not words.shape[1]:
        return
    with whole(directory / f"share-{share}-{number}.npy") as file:
        np.save(file, words)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to; it gets its name when the block ends, whole or not at all."""
    fresh = path.with_name(f"new-{uuid.uuid4().hex}")
    with fresh.open("wb") as file:
        yield file
    fresh.replace(path)


def write_cut(directory: Path, words: Words, shares: int) -> None:
    """Write mixed states, sorted by heads, as one run per shard."""
    for share in range(shares):
        write_run(directory, share, 0, of_share(words, share, shares))


def of_share(words: Words, share: int, shares: int) -> Words:
    """The sorted states whose heads lie in a shard."""
    first, end = (lesser(words, first_head(number, shares)) for number in (share, share + 1))
    return words[:, first:end]


def runs_in(directory: Path, share: int | None = None) -> list[Words]:
    """The runs of a shard, or of all, as mapped pages that the system may drop; raises ValueError for a damaged one."""
    return [_mapped(file) for file in sorted(directory.glob(f"share-{'*' if share is None else share}-*.npy"))]


def _mapped(file: Path) -> Words:
    try:
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except EOFError as error:
        raise ValueError(f"{file} is empty") from error


def count(runs: Iterable[Words]) -> int:
    """The number of states in the runs."""
    return sum(run.shape[1] for run in runs)
