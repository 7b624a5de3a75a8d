"""The states that a shard of a search has seen: its runs of all levels, merged so that there are few.

| directory         | holds                                                         |
|-------------------|---------------------------------------------------------------|
| `level-D`         | the states of one level                                       |
| `seen/Q/A-B`      | the states of shard Q in levels A to B, in fewer runs         |

Only whole levels are merged, and they stay: a directory missing under `seen` is made again or not needed.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Final, TypeAlias

from attrs import frozen

from longpoll_spec.engines.packed.spill import ranges
from longpoll_spec.engines.packed.words import Words, merged
from longpoll_spec.engines.spark.sorted_runs import count, runs_in, write_run

SEEN: Final = "seen"
Span: TypeAlias = tuple[int, int]
"""The first and the last of consecutive levels."""


def level_in(directory: Path, depth: int) -> Path:
    """The directory of a level."""
    return directory / f"level-{depth}"


@frozen
class Visited:
    """The states that one shard has seen."""

    directory: Path
    share: int
    sorted_states: int
    """The number of states sorted at once."""

    @property
    def _merged(self) -> Path:
        return self.directory / SEEN / str(self.share)

    def runs(self, last: int) -> list[Words]:
        """All states of the levels up to the last one; no state is in two runs."""
        spans = self._spans(last)
        while len(spans) > 1 and self._states(spans[-2]) <= 2 * self._states(spans[-1]):
            begin, end = spans[-2][0], spans[-1][1]
            self._merge(spans[-2:])
            spans[-2:] = [(begin, end)]
        for span in set(self._made()) - set(spans):
            shutil.rmtree(self._path(span), ignore_errors=True)
        return [run for span in spans for run in self._runs(span)]

    def _spans(self, last: int) -> list[Span]:
        """The levels up to the last one, in as few merged spans as exist."""
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
        """Merge two spans into one directory, which appears whole or not at all."""
        fresh = self._merged / f"new-{uuid.uuid4().hex}"
        fresh.mkdir(parents=True)
        runs = [run for span in spans for run in self._runs(span)]
        for number, (_, pieces) in enumerate(ranges(runs, self.sorted_states)):
            write_run(fresh, self.share, number, merged(pieces, len(pieces[0])))
        fresh.replace(self._path((spans[0][0], spans[-1][1])))
