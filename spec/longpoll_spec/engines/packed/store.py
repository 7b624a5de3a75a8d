"""Stores the states of a packed search: in a table in memory (`HeldStore`), or in sorted runs on disk (`SpillStore`).

The table is a hash table with open addressing, to which states are added in batches. No state is ever removed. A slot
holds all words of a state, so membership is exact. States are stored in mixed form (`words`), and the upper bits of the
head give the first slot to probe. So sorted states probe slots in ascending order, and the processor can wait for many
cache misses at once.

On disk, the candidates for a level are written as sorted runs. At the end of the level the runs are read one range of
heads after another, each small enough for memory, and the states that no earlier run has form the next level. The runs
of seen states are merged so that each is more than twice as long as the next, which keeps their number small.

| file                                     | holds                                                          |
|------------------------------------------|----------------------------------------------------------------|
| one run, without a name in the directory | word 0 of every state, room, word 1 of every state, room, ...  |

An unnamed file disappears with the process, however the process ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from tempfile import TemporaryFile, gettempdir
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from longpoll_spec.engines.packed.words import (
    WORD_BITS,
    Words,
    differ,
    find,
    first_head,
    joined,
    key_of,
    lesser,
    merged,
    no_words,
    taken,
)
from longpoll_spec.errors import MemoryShortError

Slots: TypeAlias = npt.NDArray[np.int64]
"""Indices of slots."""
LOAD_MAX: Final = 0.6
"""The greatest share of used slots; in a fuller table the probe sequences would get long."""
SLOTS_FIRST_BITS: Final = 14
SLOTS_BITS_BIG: Final = 24
"""A table of at least 2**24 slots doubles when it is full. A smaller table grows fourfold, because each move costs
time."""
BLOCK_STATES: Final = 1 << 16
"""The number of states that are probed at once, so that the temporary columns stay in the second-level cache."""
BLOCK_SLOTS: Final = 1 << 20
"""The number of slots that are moved at once to a larger table."""
_FREE: Final = np.uint64(0)
"""The head of a free slot. States with this head are kept outside the slots, in `headless`."""
_NEXT: Final = np.int64(1)


@define
class WordTable:
    """A growing set of mixed states.

    Invariant: no slot is free from the first slot to probe for a state up to its slot.
    """

    width: int = 1
    """The number of words in a state."""
    bits: int = SLOTS_FIRST_BITS
    number: int = 0
    """The index of the range of heads that this table has (`words.first_head`), from 0 to `shares` - 1."""
    shares: int = 1
    """The number of tables in the search, each with a range of equal size."""
    slots: Words = field(init=False)
    used: int = 0
    headless: set[int] = field(factory=set)
    """The keys of states whose head equals `_FREE`; if states have only one word, there is one such state."""

    def __attrs_post_init__(self) -> None:
        self.slots = np.zeros((self.width, 1 << self.bits), dtype=np.uint64)

    def add(self, words: Words) -> Words:
        """Add mixed states, sorted by heads and without duplicates; returns those that the table did not have."""
        self._make_room(words.shape[1])
        headless = int(np.searchsorted(words[0], _FREE, side="right"))
        new = [self._add_headless(words[:, :headless])]
        blocks = range(headless, words.shape[1], BLOCK_STATES)
        new += [self._put(words[:, start : start + BLOCK_STATES]) for start in blocks]
        self.used += sum(part.shape[1] for part in new)
        return joined(new, self.width)

    def _add_headless(self, words: Words) -> Words:
        keys = [key_of(words, column) for column in range(words.shape[1])]
        new = [column for column, key in enumerate(keys) if key not in self.headless]
        self.headless.update(keys)
        return taken(words, np.array(new, dtype=np.intp))

    def _put(self, words: Words) -> Words:
        """Probe for all these sorted states at once; a state that reaches a free slot is new and gets that slot."""
        new: list[Words] = []
        last = np.int64(self.slots.shape[1] - 1)
        at = self._first_slots(words[0])
        while words.shape[1]:
            held = taken(self.slots, at)
            left = np.flatnonzero(differ(held, words))
            words, at, heads = taken(words, left), at.take(left), held[0].take(left)
            free = np.flatnonzero(heads == _FREE)
            if free.size:
                placed = free.compress(_first_of_each(at.take(free)))
                new.append(taken(words, placed))
                self.slots[:, at.take(placed)] = new[-1]
                stays = np.ones(at.size, dtype=bool)
                stays[placed] = False
                left = np.flatnonzero(stays)
                words, at = taken(words, left), at.take(left)
            at = (at + _NEXT) & last
        return joined(new, self.width)

    def _first_slots(self, heads: Words) -> Slots:
        """The first slot to probe for each head. First slots ascend with the heads, spread over all slots."""
        if self.shares > 1:
            heads = (heads - np.uint64(first_head(self.number, self.shares))) * np.uint64(self.shares)
        return (heads >> np.uint64(WORD_BITS - self.bits)).view(np.int64)

    def _make_room(self, more: int) -> None:
        bits = self.bits
        while self.used + more > LOAD_MAX * (1 << bits):
            bits += 1 if bits >= SLOTS_BITS_BIG else 2
        if bits > self.bits:
            before = self.slots
            self.bits, self.slots = bits, np.zeros((self.width, 1 << bits), dtype=np.uint64)
            self._move(before)

    def _move(self, before: Words) -> None:
        """Move all states of the smaller table into these slots, in ascending order of heads.

        The full slots between two free slots form a group. The first slot to probe for a state is in the state's own
        group, so heads only grow from one group to the next. Each state, sorted within its group, goes into its first
        slot. If that slot is taken, the state goes behind the previous state: the slots between are then full, as the
        invariant requires. Two kinds of states are left for the end: those before the first free slot, which may have
        wrapped around, and those that would pass the end of the new slots.
        """
        heads, slots = before[0], self.slots.shape[1]
        begin = int((heads == _FREE).argmax())
        rest, behind = [_sorted(_held(before[:, :begin]))], 0
        while begin < heads.size:
            end = begin + BLOCK_SLOTS
            while end < heads.size and heads[end]:
                end += 1
            words = _sorted(_held(before[:, begin:end]))
            number = np.arange(words.shape[1])
            at = self._first_slots(words[0])
            at[:1] = np.maximum(at[:1], behind)
            at = np.maximum.accumulate(at - number) + number
            inside = int(at.searchsorted(slots))
            self.slots[:, at[:inside]] = words[:, :inside]
            rest.append(words[:, inside:])
            begin, behind = end, int(at[-1]) + 1 if at.size else behind
        for words in rest:
            self._put(words)


def _held(slots: Words) -> Words:
    return taken(slots, np.flatnonzero(slots[0]))


def _sorted(words: Words) -> Words:
    return taken(words, words[0].argsort()) if len(words) > 1 else np.sort(words)


def _first_of_each(at: Slots) -> npt.NDArray[np.bool_]:
    first = np.ones(at.size, dtype=bool)
    np.not_equal(at[1:], at[:-1], out=first[1:])
    return first


@define
class HeldStore:
    """Stores all states in memory. Invariant: `levels[d]` has the states whose shortest run has d actions."""

    seen: WordTable
    levels: list[Words] = field(factory=list)
    coming: list[Words] = field(factory=list)
    """The states of the next level that were found so far."""

    def take(self, words: Words) -> None:
        """See `partition.Store`."""
        self.coming.append(self.seen.add(words))

    def next_level(self) -> Words:
        """See `partition.Store`."""
        level = joined(self.coming, self.seen.width)
        self.coming = []
        self.levels.append(level)
        return level

    def level(self, depth: int) -> Words:
        """See `partition.Store`."""
        return self.levels[depth]


MEGABYTE: Final = 1 << 20
WORD_BYTES: Final = WORD_BITS // 8
CHUNK_STATES_MAX: Final = 1 << 16
CHUNK_STATES_MIN: Final = 1 << 8
STRETCH_STATES_MAX: Final = 6 << 20
COLUMNS_BYTES: Final = 1 << 10
"""An estimate of the bytes that a state takes while its chunk is expanded: about a thousand columns of one byte."""
COPIES: Final = 4
"""The number of copies of a state in memory during sorting and lookup."""


@frozen
class Plan:
    """The number of states that a process may hold in memory for each purpose."""

    chunk_states: int
    stretch_states: int
    sorted_states: int
    """The number of candidates that are sorted and written at once, and of states of one range that are looked up at
    once."""


def plan_of(memory_mb: int, program_mb: int, workers: int, words: int, actions: int) -> Plan:
    """Divide a limit of memory between processes, and each part between the chunk, the batch and the store.

    Raises `MemoryShortError` if the limit is too low for the smallest chunk.
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
    # The smallest chunk may take more than a third of the memory, so the batch and the store share the rest.
    left = min(share // 3, (share - chunk * chunk_bytes) // 2)
    sorted_ = left // (state_bytes * COPIES)
    return Plan(chunk, min(STRETCH_STATES_MAX, sorted_), sorted_)


@define
class _Run:
    """A run that is being written to a file of `room` columns. Invariant: the first `states` columns are written."""

    width: int
    room: int
    file: int = field(init=False)
    states: int = 0

    def __attrs_post_init__(self) -> None:
        with TemporaryFile() as named:
            self.file = os.dup(named.fileno())
            named.truncate(self.width * self.room * WORD_BYTES)

    def append(self, words: Words) -> None:
        """Append states; raises `MemoryShortError` if it cannot write the file, such as because the disk is full."""
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
        """Finish the file; returns its states as mapped pages, which the system may drop from memory and read again."""
        try:
            if not self.states:
                return no_words(self.width)
            mapped = mmap.mmap(self.file, self.width * self.room * WORD_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(self.file)
        return np.frombuffer(mapped, dtype=np.uint64).reshape(self.width, self.room)[:, : self.states]


@define
class SpillStore:
    """Stores states in sorted runs.

    Invariant: no state is in two runs of `seen`, and each run is more than twice as long as the next run.
    """

    width: int
    sorted_states: int
    seen: list[Words] = field(factory=list)
    levels: list[Words] = field(factory=list)
    coming: list[Words] = field(factory=list)
    """Candidates for the next level that are in memory and not sorted yet."""
    written: list[Words] = field(factory=list)

    def take(self, words: Words) -> None:
        """See `partition.Store`."""
        self.coming.append(words)
        if sum(part.shape[1] for part in self.coming) > self.sorted_states:
            self.written.append(self._sorted_run(self.coming))
            self.coming = []

    def next_level(self) -> Words:
        """See `partition.Store`."""
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
        """See `partition.Store`."""
        return self.levels[depth]

    def _note(self, level: Words) -> None:
        """Add a run of seen states, and merge runs until each is more than twice as long as the next."""
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
    """Yield (first head, states of each part) for consecutive ranges of heads that are small enough to sort.

    The parts must be sorted by heads. Mixing distributes heads evenly, so ranges of equal size have about equally many
    states.
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
    """The states that are in none of the runs.

    The states and the runs are sorted by heads, and no state has a head less than `low`.
    """
    for run in runs:
        states = taken(states, np.flatnonzero(find(states, _from(run, low, states)) < 0))
    return states


def _from(seen: Words, low: int, states: Words) -> Words:
    high = int(states[0, -1]) + 1 if states.shape[1] else low
    return seen[:, lesser(seen, low) : lesser(seen, high)]
