"""How a packed search keeps its states when `memory_mb` limits its memory: sorted runs on disk.

What is new in a level is known when the level ends: the candidates, which were put down as sorted runs, are gone
through range by range of heads, each small enough for memory, and what no earlier run has is the next level. Runs of
states seen are merged so that there are few and each is more than twice the next.

| file                                     | holds                                                          |
|------------------------------------------|----------------------------------------------------------------|
| one run, without a name in the directory | word 0 of every state, room, word 1 of every state, room, ...   |

A file without a name goes with the process, however that ends. Leaves out how much memory there is (`plan_of`'s caller
says so) and the columns of a chunk, which the plan only estimates.
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
"""What the columns of a state in a chunk take at most at one time: about a thousand are alive at once, a byte each."""
COPIES: Final = 4
"""Copies of a state that are alive while states are sorted and sought."""


@frozen
class Plan:
    """How many states a process has in memory at one time, each way."""

    chunk_states: int
    stretch_states: int
    sorted_states: int
    """Candidates that are kept until they are sorted and written, and states of one range that are sought."""


def plan_of(memory_mb: int, program_mb: int, workers: int, words: int, actions: int) -> Plan:
    """Share a limit between processes, and in each between its chunk, its stretch and its store.

    Raises `MemoryShortError` where the least of all does not fit.
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
    # The least chunk may be more than a third: the other two parts share what it leaves.
    left = min(share // 3, (share - chunk * chunk_bytes) // 2)
    sorted_ = left // (state_bytes * COPIES)
    return Plan(chunk, min(STRETCH_STATES_MAX, sorted_), sorted_)


@define
class _Run:
    """A file that is being written. Invariant: the first `states` columns are whole, and room is left up to `room`."""

    width: int
    room: int
    file: int = field(init=False)
    states: int = 0

    def __attrs_post_init__(self) -> None:
        with TemporaryFile() as named:
            self.file = os.dup(named.fileno())
            named.truncate(self.width * self.room * WORD_BYTES)

    def append(self, words: Words) -> None:
        """Write states behind those that are there; `MemoryShortError` if the disk is full."""
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
        """The states, as pages of the file that the system may take back."""
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
    """Candidates of the next level in memory, and on disk."""
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
        """A new run of states seen; runs that are not more than twice the next become one."""
        if level.shape[1]:
            self.seen.append(level)
        while len(self.seen) > 1 and self.seen[-2].shape[1] <= 2 * self.seen[-1].shape[1]:
            self.seen[-2:] = [self._sorted_run(self.seen[-2:])]

    def _sorted_run(self, parts: Sequence[Words]) -> Words:
        """One run of several sorted parts."""
        run = _Run(self.width, sum(part.shape[1] for part in parts))
        for _, pieces in ranges(parts, self.sorted_states):
            run.append(merged(pieces, self.width))
        return run.close()


def ranges(parts: Sequence[Words], sorted_states: int) -> Iterator[tuple[int, list[Words]]]:
    """(the first head, what each part has) of ranges of heads, one after the other, each small enough to sort.

    Parts are sorted by heads. Mixed heads lie evenly, so equal ranges are about equal in number.
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
    """The states that are in no run; they and the runs are sorted by heads, and no state's is less than `low`."""
    for run in runs:
        states = taken(states, np.flatnonzero(find(states, _from(run, low, states)) < 0))
    return states


def _from(seen: Words, low: int, states: Words) -> Words:
    """The part of a run in which these states could be."""
    high = int(states[0, -1]) + 1 if states.shape[1] else low
    return seen[:, lesser(seen, low) : lesser(seen, high)]
