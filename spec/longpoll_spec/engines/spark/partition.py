"""The tasks of a Spark worker for one shard: expand the states of the shard, or add new states to it.

| step   | reads                                 | writes                                                             |
|--------|---------------------------------------|--------------------------------------------------------------------|
| expand | the shard's states of a level         | their successors in every shard, sorted, in `made`                 |
| take   | the shard's part of all successors    | those in no earlier level, as the shard's states of the next level |

The worker gets the packed engine's expanding function as text, and compiles it. States pass through files, so Spark
shuffles nothing. A run is a NumPy array of the form `Words`: mixed, sorted by heads, without duplicates. The driver and
every worker map runs into memory from these files:

| file or directory | holds                                                                                   |
|-------------------|-----------------------------------------------------------------------------------------|
| `share-Q-N.npy`   | run N of the states whose heads lie in shard Q of the heads (`words.first_head`)        |
| `level-D`         | the runs of one level                                                                   |
| `seen/Q/A-B`      | the states of shard Q in levels A to B, merged into fewer runs (`Visited`)              |

A file appears complete or not at all, and writing it again gives the same states, so a task that Spark retries does no
harm. A missing directory under `seen` can be made again, because only complete levels are merged and every level keeps
its own runs.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec
import numpy as np
from attrs import field, frozen

from longpoll_spec.engines.packed.compile import Source
from longpoll_spec.engines.packed.partition import CHUNK_STATES, STRETCH_STATES, Part, Stretch
from longpoll_spec.engines.packed.store import not_in, ranges
from longpoll_spec.engines.packed.words import Words, first_head, lesser, merged, unmixed
from longpoll_spec.tables import with_table


def write_run(directory: Path, share: int, number: int, words: Words) -> None:
    """Write run `number` of a shard, unless it has no states."""
    if not words.shape[1]:
        return
    with whole(directory / f"share-{share}-{number}.npy") as file:
        np.save(file, words)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when the block ends, so that no reader sees an incomplete file."""
    fresh = path.with_name(f"new-{uuid.uuid4().hex}")
    with fresh.open("wb") as file:
        yield file
    fresh.replace(path)


def write_cut(directory: Path, words: Words, shares: int) -> None:
    """Write mixed states, which are sorted by heads, as one run per shard."""
    for share in range(shares):
        write_run(directory, share, 0, of_share(words, share, shares))


def of_share(words: Words, share: int, shares: int) -> Words:
    """Select, from sorted states, those whose heads lie in a shard."""
    first, end = (lesser(words, first_head(number, shares)) for number in (share, share + 1))
    return words[:, first:end]


def runs_in(directory: Path, share: int | None = None) -> list[Words]:
    """The runs of a shard, or of all shards, mapped into memory; raises `ValueError` if a file is damaged."""
    return [_mapped(file) for file in sorted(directory.glob(f"share-{'*' if share is None else share}-*.npy"))]


def _mapped(file: Path) -> Words:
    try:
        return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except EOFError as error:
        raise ValueError(f"{file} is empty") from error


def count(runs: Iterable[Words]) -> int:
    """The number of states in the runs."""
    return sum(run.shape[1] for run in runs)


SEEN: Final = "seen"
Span: TypeAlias = tuple[int, int]
"""The first and the last depth of a range of consecutive levels."""


def level_in(directory: Path, depth: int) -> Path:
    """The directory of a level."""
    return directory / f"level-{depth}"


@frozen
class Visited:
    """The states of one shard in all levels so far."""

    directory: Path
    share: int
    sorted_states: int
    """The number of states that are sorted at once."""

    @property
    def _merged(self) -> Path:
        return self.directory / SEEN / str(self.share)

    def runs(self, last: int) -> list[Words]:
        """The states of the levels up to `last`, as runs; no state is in two runs."""
        spans = self._spans(last)
        while len(spans) > 1 and self._states(spans[-2]) <= 2 * self._states(spans[-1]):
            begin, end = spans[-2][0], spans[-1][1]
            self._merge(spans[-2:])
            spans[-2:] = [(begin, end)]
        for span in set(self._made()) - set(spans):
            shutil.rmtree(self._path(span), ignore_errors=True)
        return [run for span in spans for run in self._runs(span)]

    def _spans(self, last: int) -> list[Span]:
        """The levels up to `last`, as merged spans where these exist and as single levels otherwise."""
        made, spans, begin = self._made(), [], 0
        while begin <= last:
            spans.append((begin, max((end for first, end in made if first == begin), default=begin)))
            begin = spans[-1][1] + 1
        return spans

    def _made(self) -> list[Span]:
        names = [path.name.split("-") for path in self._merged.glob("[0-9]*-*")]
        return [(int(first), int(last)) for first, last in names]

    def _path(self, span: Span) -> Path:
        return self._merged / "{}-{}".format(*span)

    def _runs(self, span: Span) -> list[Words]:
        first, last = span
        return runs_in(level_in(self.directory, first) if first == last else self._path(span), self.share)

    def _states(self, span: Span) -> int:
        return count(self._runs(span))

    def _merge(self, spans: list[Span]) -> None:
        """Merge two spans into one directory, which appears complete or not at all."""
        fresh = self._merged / f"new-{uuid.uuid4().hex}"
        fresh.mkdir(parents=True)
        runs = [run for span in spans for run in self._runs(span)]
        for number, (_, pieces) in enumerate(ranges(runs, self.sorted_states)):
            write_run(fresh, self.share, number, merged(pieces, len(pieces[0])))
        fresh.replace(self._path((spans[0][0], spans[-1][1])))


MADE: Final = "made"
SORTED_STATES: Final = 4 << 20
"""The number of states that a task sorts at once."""
_parts: dict[tuple[tuple[str, ...], int], Part] = {}
"""Caches, in each worker process, the compiled part for (text of an expanding function, batch size)."""


@with_table
class Told(msgspec.Struct, frozen=True):
    """The results of expanding some states. Keys are hexadecimal strings, because JSON numbers are not exact."""

    fired: list[int]
    """The number of transitions of each action instance."""
    found: list[tuple[int, int | None, str]]
    """(property index, index of the closing action or None, key)."""

    def with_stretch(self, stretch: Stretch) -> Told:
        """Return these results with the results of a batch added."""
        fired = [before + more for before, more in zip(self.fired, stretch.fired, strict=True)]
        found = [(item, closing, f"{key:x}") for item, closing, key in stretch.found]
        return Told(fired, [*self.found, *found])


@with_table
class Sources(msgspec.Struct, frozen=True):
    """For some states, the least states that lead to them."""

    rows: list[tuple[str, str, int]]
    """(key, least key of a state in the shard that leads to the key's state, index of the action)."""


@frozen
class Partition:
    """The data that a worker needs for the tasks of a search.

    The methods `expand`, `take` and `before` do one task each.
    """

    directory: Path
    """The directory of the search, which the driver and all workers can read and write."""
    shares: int
    source: Source
    words: int
    actions: int
    properties: int
    stretch_states: int = field(factory=lambda: STRETCH_STATES)
    sorted_states: int = field(factory=lambda: SORTED_STATES)

    def part(self) -> Part:
        """The `Part` with which this process expands states of the model, compiled only once."""
        name = (self.source.lines, self.stretch_states)
        if name not in _parts:
            expand = self.source.function("expand")
            _parts[name] = Part(
                expand, self.words, self.actions, self.properties, None, stretch_states=self.stretch_states
            )
        return _parts[name]

    def expand(self, share: int, depth: int, still_open: Sequence[bool]) -> Told:
        """Expand the shard's states of a level, and write their successors to `made`."""
        part, made, number = self.part(), self.directory / MADE, 0
        told = Told([0] * self.actions, [])
        for run in runs_in(level_in(self.directory, depth), share):
            part.go_on_with(run)
            over = False
            while not over:
                stretch, words = part.stretch(still_open)
                write_run(made, share, number, words)
                told, number, over = told.with_stretch(stretch), number + 1, stretch.over
        return told

    def take(self, share: int, depth: int) -> None:
        """Write the shard's states of a level: the successors that no earlier level has."""
        seen = Visited(self.directory, share, self.sorted_states).runs(depth - 1)
        made = [of_share(run, share, self.shares) for run in runs_in(self.directory / MADE)]
        for number, (low, pieces) in enumerate(ranges(made, self.sorted_states)):
            states = merged(pieces, self.words)
            write_run(level_in(self.directory, depth), share, number, not_in(states, seen, low))

    def before(self, keys: Sequence[int], depth: int, share: int) -> Sources:
        """Map each key to the least of the shard's states of a level that leads to it; other keys are missing."""
        runs = runs_in(level_in(self.directory, depth), share)
        found = self.part().sources(keys, (chunk for run in runs for chunk in _chunks(run)))
        return Sources([(f"{key:x}", f"{source:x}", index) for key, (source, index) in found.items()])


def sources_in(several: Iterable[Sources]) -> dict[int, tuple[int, int]]:
    """Merge answers: map each key to the least state that leads to it in any answer, and the index of the action."""
    sources: dict[int, tuple[int, int]] = {}
    for name, text, action in (row for each in several for row in each.rows):
        key, source = int(name, 16), (int(text, 16), action)
        sources[key] = min(source, sources.get(key, source))
    return sources


def _chunks(run: Words) -> Iterator[Words]:
    for start in range(0, run.shape[1], CHUNK_STATES):
        yield unmixed(run[:, start : start + CHUNK_STATES].copy())
