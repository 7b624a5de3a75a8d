"""The work of a Spark worker for one shard: expand its states, or add the states that are new to it.

| step   | reads                                 | writes                                                             |
|--------|---------------------------------------|--------------------------------------------------------------------|
| expand | the shard's states of a level         | their successors in every shard, sorted, in `made`                 |
| take   | the shard's part of all successors    | those in no earlier level, as the shard's states of the next level |

It uses the packed engine's expanding function, sent as text, and its sorted runs. Spark shuffles nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from attrs import field, frozen

from longpoll_spec.engines.packed.partition import CHUNK_STATES, STRETCH_STATES, Part, Stretch
from longpoll_spec.engines.packed.source import Source
from longpoll_spec.engines.packed.spill import not_in, ranges
from longpoll_spec.engines.packed.words import Words, merged, unmixed
from longpoll_spec.engines.spark.sorted_runs import of_share, runs_in, write_run
from longpoll_spec.engines.spark.visited import Visited, level_in
from longpoll_spec.tables import with_table

MADE: Final = "made"
SORTED_STATES: Final = 4 << 20
"""States that a task sorts at once."""
_parts: dict[tuple[tuple[str, ...], int], Part] = {}
"""Cache of a worker process: (text of an expanding function, batch size) -> its compiled part."""


@with_table
class Told(msgspec.Struct, frozen=True):
    """The results of expanding some states. Keys are hexadecimal, because JSON numbers are not exact."""

    fired: list[int]
    """Transitions by action instance."""
    found: list[tuple[int, int | None, str]]
    """(property index, index of the closing action or None, key)."""

    def with_stretch(self, stretch: Stretch) -> Told:
        """These results and those of a batch."""
        fired = [before + more for before, more in zip(self.fired, stretch.fired, strict=True)]
        found = [(item, closing, f"{key:x}") for item, closing, key in stretch.found]
        return Told(fired, [*self.found, *found])


@with_table
class Sources(msgspec.Struct, frozen=True):
    """States that lead to others."""

    rows: list[tuple[str, str, int]]
    """(key, the least key of a state here that leads to it, index of the action)."""


@frozen
class Partition:
    """One shard of a search, as sent to a worker."""

    directory: Path
    """The search's directory, which the driver and all workers see."""
    shares: int
    source: Source
    words: int
    actions: int
    properties: int
    stretch_states: int = field(factory=lambda: STRETCH_STATES)
    sorted_states: int = field(factory=lambda: SORTED_STATES)

    def part(self) -> Part:
        """The part of this process that expands this model."""
        name = (self.source.lines, self.stretch_states)
        if name not in _parts:
            expand = self.source.function("expand")
            _parts[name] = Part(
                expand, self.words, self.actions, self.properties, None, stretch_states=self.stretch_states
            )
        return _parts[name]

    def expand(self, share: int, depth: int, still_open: Sequence[bool]) -> Told:
        """Expand the shard's states of a level."""
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
        """Write the shard's states of a level: the successors less those in earlier levels."""
        seen = Visited(self.directory, share, self.sorted_states).runs(depth - 1)
        made = [of_share(run, share, self.shares) for run in runs_in(self.directory / MADE)]
        for number, (low, pieces) in enumerate(ranges(made, self.sorted_states)):
            states = merged(pieces, self.words)
            write_run(level_in(self.directory, depth), share, number, not_in(states, seen, low))

    def before(self, keys: Sequence[int], depth: int, share: int) -> Sources:
        """For each key the least of the shard's states of a level that leads to it, if any."""
        runs = runs_in(level_in(self.directory, depth), share)
        found = self.part().sources(keys, (chunk for run in runs for chunk in _chunks(run)))
        return Sources([(f"{key:x}", f"{source:x}", index) for key, (source, index) in found.items()])


def sources_in(several: Iterable[Sources]) -> dict[int, tuple[int, int]]:
    """For each key the least state that leads to it, with the index of the action."""
    sources: dict[int, tuple[int, int]] = {}
    for name, text, action in (row for each in several for row in each.rows):
        key, source = int(name, 16), (int(text, 16), action)
        sources[key] = min(source, sources.get(key, source))
    return sources


def _chunks(run: Words) -> Iterator[Words]:
    for start in range(0, run.shape[1], CHUNK_STATES):
        yield unmixed(run[:, start : start + CHUNK_STATES].copy())
