"""Keep the states of a packed search within `memory_mb`: sorted runs on disk.

Candidates of a level are written as sorted runs. At the end of the level they are read range by range of heads, each
range small enough for memory; states that no earlier run has form the next level. Runs of seen states are merged, so
there are few and each is more than twice the next.

| file                                     | holds                                                          |
|------------------------------------------|----------------------------------------------------------------|
| one run, without a name in the directory | word 0 of every state, room, word 1 of every state, room, ...  |

An unnamed file disappears with the process, however that ends. The plan only estimates the columns of a chunk.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from tempfile import TemporaryFile, gettempdir
from typing import Final

import numpy as np
from attrs import define, field, frozen

from longpoll_spec.engines.packed.words import WORD_BITS, Words, find, lesser, merged, no_words, taken
from longpoll_spec.errors import MemoryShortError

MEGABYTE: Final = 1 << 20
WORD_BYTES: Final = WORD_BITS // 8
CHUNK_STATES_MAX: Final = 1 << 16
CHUNK_STATES_MIN: Final = 1 << 8
STRETCH_STATES_MAX: Final = 6 << 20
COLUMNS_BYTES: Final = 1 << 10
"""Bytes that the columns of one state in a chunk take at once: about a thousand are alive, a byte each."""
COPIES: Final = 4
"""Copies of a state that are alive during sorting and lookup."""


@frozen
class Plan:
    """How many states a process holds in memory for each purpose."""

    chunk_states: int
    stretch_states: int
    sorted_states: int
    """Candidates kept until they are sorted and written, and states of one range that are looked up."""


def plan_of(memory_mb: int, program_mb: int, workers: int, words: int, actions: int) -> Plan:
    """Divide a limit between processes, and within each between its chunk, its batch and its store.

    Raises `MemoryShortError` if the minimum does not fit.
    """
    state_bytes = words * WORD_BYTES
    chunk_bytes = state_bytes * actions + COLUMNS_BYTES
    least = workers * CHUNK_STATES_MIN * (chunk_bytes + 2 * state_bytes * COPIES * actions)
    needed_mb = program_mb + 1 + least // MEGABYTE
    if memory_mb < needed_mb:
        raise MemoryShortError(
            f"{memory_mb} MB is too little memory; this search needs {needed_mb} MB: "
            "increase --memory-mb, or use fewer --workers or smaller bounds"
        )
    share = (memory_mb - program_mb) * MEGABYTE // workers
    chunk = min(CHUNK_STATES_MAX, max(CHUNK_STATES_MIN, share // 3 // chunk_bytes))
    # The smallest chunk may be more than a third: the other two parts share the rest.
    left = min(share // 3, (share - chunk * chunk_bytes) // 2)
    sorted_ = left // (state_bytes * COPIES)
    return Plan(chunk, min(STRETCH_STATES_MAX, sorted_), sorted_)


@define
class _Run:
    """A file being written. Invariant: the first `states` columns are whole, and room is reserved up to `room`."""

    width: int
    room: int
    file: int = field(init=False)
    states: int = 0

    def __attrs_post_init__(self) -> None:
        with TemporaryFile() as named:
            self.file = os.dup(named.fileno())
            named.truncate(self.width * self.room * WORD_BYTES)

    def append(self, words: Words) -> None:
        """Append states; raises `MemoryShortError` if the disk is full."""
        for row, word in enumerate(words):
            self._write(np.ascontiguousarray(word), (row * self.room + self.states) * WORD_BYTES)
        self.states += words.shape[1]

    def _write(self, word: Words, offset: int) -> None:
        left = word.data.cast("B")
        try:
            while left:
                count = os.pwrite(self.file, left, offset)
                left, offset = left[count:], offset + count
        except OSError as error:
            raise MemoryShortError(
                f"cannot write to {gettempdir()}: {error.strerror}; set TMPDIR to a larger disk, or lower the bounds"
            ) from error

    def close(self) -> Words:
        """The states, as mapped pages that the system may drop."""
        try:
            if not self.states:
                return no_words(self.width)
            mapped = mmap.mmap(self.file, self.width * self.room * WORD_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(self.file)
        return np.frombuffer(mapped, dtype=np.uint64).reshape(self.width, self.room)[:, : self.states]


@define
class SpillStore:
    """States as sorted runs. Invariant: no state is in two runs of `seen`, and each run is more than twice the next."""

    width: int
    sorted_states: int
    seen: list[Words] = field(factory=list)
    levels: list[Words] = field(factory=list)
    coming: list[Words] = field(factory=list)
    """Candidates of the next level, in memory and on disk."""
    written: list[Words] = field(factory=list)

    def take(self, words: Words) -> None:
        """See `part.Store`."""
        self.coming.append(words)
        if sum(part.shape[1] for part in self.coming) > self.sorted_states:
            self.written.append(self._sorted_run(self.coming))
            self.coming = []

    def next_level(self) -> Words:
        """See `part.Store`."""
        parts = [*self.written, *self.coming]
        run = _Run(self.width, sum(part.shape[1] for part in parts))
        for low, pieces in ranges(parts, self.sorted_states):
            run.append(not_in(merged(pieces, self.width), self.seen, low))
        level = run.close()
        self.coming, self.written = [], []
        self.levels.append(level)
        self._note(level)
        return level

    def level(self, depth: int) -> Words:
        """See `part.Store`."""
        return self.levels[depth]

    def _note(self, level: Words) -> None:
        """Add a run of seen states; runs that are not more than twice the next are merged."""
        if level.shape[1]:
            self.seen.append(level)
        while len(self.seen) > 1 and self.seen[-2].shape[1] <= 2 * self.seen[-1].shape[1]:
            self.seen[-2:] = [self._sorted_run(self.seen[-2:])]

    def _sorted_run(self, parts: Sequence[Words]) -> Words:
        run = _Run(self.width, sum(part.shape[1] for part in parts))
        for _, pieces in ranges(parts, self.sorted_states):
            run.append(merged(pieces, self.width))
        return run.close()


def ranges(parts: Sequence[Words], sorted_states: int) -> Iterator[tuple[int, list[Words]]]:
    """Yield (the first head, the states of each part) for consecutive ranges of heads, each small enough to sort.

    Parts are sorted by heads. Mixed heads are uniform, so equal ranges hold about equal numbers.
    """
    parts = [part for part in parts if part.shape[1]]
    if not parts:
        return
    first = min(int(part[0, 0]) for part in parts)
    end = max(int(part[0, -1]) for part in parts) + 1
    count = -(-2 * sum(part.shape[1] for part in parts) // sorted_states)
    edges = [first + (end - first) * number // count for number in range(count + 1)]
    for low, high in pairwise(edges):
        yield low, [part[:, lesser(part, low) : lesser(part, high)] for part in parts]


def not_in(states: Words, runs: Sequence[Words], low: int) -> Words:
    """The states that are in no run; they and the runs are sorted by heads, and no head is less than `low`."""
    for run in runs:
        states = taken(states, np.flatnonzero(find(states, _from(run, low, states)) < 0))
    return states


def _from(seen: Words, low: int, states: Words) -> Words:
    high = int(states[0, -1]) + 1 if states.shape[1] else low
    return seen[:, lesser(seen, low) : lesser(seen, high)]
