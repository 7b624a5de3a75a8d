"""The packed engine: it packs a state into a few 64-bit words, and a level of its search is an array of states.

The search keeps each state twice: in its level, from which counterexamples are rebuilt without parent pointers, and in
a table that decides whether a state is new (with limited memory, in sorted runs on disk). `partition` has the work of
one process, `workers` starts several, and `store` has the table and the runs. Of the shortest counterexamples, the
search returns the one whose states have the least keys, so that the result does not depend on the number of workers.
"""

from __future__ import annotations

import operator
import resource
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from attrs import define, field

from longpoll_spec.engines.exploration import Exploration, Ledger, Progress, Report, Witness
from longpoll_spec.engines.packed.compile import expand_of
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.packed.orbits import Orbits, orbits_of
from longpoll_spec.engines.packed.partition import Part, Stretch, runs_backwards
from longpoll_spec.engines.packed.store import SpillStore, plan_of
from longpoll_spec.engines.packed.words import distinct, mixed, words_of
from longpoll_spec.engines.packed.workers import INSTEAD, Workers, workers_of
from longpoll_spec.errors import MemoryShortError
from longpoll_spec.model import Action, Model, Property

NAME: Final = "packed"


@define
class _Alone:
    """A search in one process, with the interface of `Workers`."""

    part: Part
    interrupted: bool = False

    def begin(self, first: int) -> None:
        self.part.begin()
        self.part.take(distinct(mixed(words_of([first], self.part.words))))

    def next_level(self) -> int:
        return self.part.next_level()

    def stretch(self, still_open: Sequence[bool]) -> list[Stretch]:
        made, words = self.part.stretch(still_open)
        self.part.take(words)
        return [made]

    def before(self, keys: Sequence[int], depth: int) -> dict[int, tuple[int, int]]:
        return self.part.before(keys, depth)

    def close(self) -> None:
        """Do nothing, because no other process runs."""


@define
class _Search:
    """A breadth-first search: its counts, and the processes that expand its states."""

    model: Model
    ledger: Ledger
    orbits: Orbits | None
    crew: Workers | _Alone
    fired: list[int] = field(factory=list)
    distinct: int = 0
    depth: int = 0
    complete: bool = False

    def grow(self, first: int, limit: int | None, report: Report | None) -> None:
        self.fired = [0] * len(self.model.actions)
        self.crew.begin(first)
        level = self.crew.next_level()
        while level and not self.crew.interrupted:
            self.distinct += level
            if limit is not None and self.distinct >= limit:
                return
            if self._expand(level, report):
                level = self.crew.next_level()
                self.depth += bool(level)
        self.complete = not self.crew.interrupted

    def _expand(self, level: int, report: Report | None) -> bool:
        """Expand the current level of `level` states; returns whether all of it was expanded."""
        over = False
        still_open = [self.ledger.is_open(item) for item in range(len(self.ledger.properties))]
        while not over and not self.crew.interrupted:
            made = self.crew.stretch(still_open)
            over = all(each.over for each in made)
            for each in made:
                self.fired = list(map(operator.add, self.fired, each.fired))
                for item, closing_step, key in each.found:
                    self.ledger.note(item, Witness(key, self.depth, closing_step))
            if report is not None:
                report(Progress(self.distinct, sum(self.fired), self.depth, level))
        return over

    def transitions(self) -> list[int]:
        return self.fired if self.orbits is None else self.orbits.spread(self.fired)

    def runs_to(self, witnesses: Sequence[Witness]) -> list[list[Action]]:
        return runs_backwards(self.model, witnesses, self.crew.before, self.orbits)


def explore(
    model: Model,
    properties: Sequence[Property],
    *,
    report: Report | None = None,
    limit_states: int | None = None,
    symmetry: bool = False,
    workers: int = 1,
    memory_mb: int | None = None,
) -> Exploration:
    """Explore the model; Ctrl-C ends the search and returns the results so far.

    With `symmetry`, the search explores one state per orbit, and counts the whole orbit. `workers` is the number of
    processes. `memory_mb` limits the memory of all processes, in megabytes, and keeps the states on disk.

    Raises `SymmetryError` if requests or queues are not interchangeable, `EngineLimitError` if the workers cannot
    start, `MemoryShortError` if memory or the disk is too small or a worker dies, and `BoundsError` for an unbounded
    log.
    """
    began = time.perf_counter()
    orbits = orbits_of(model, properties) if symmetry else None
    layout = layout_of(model) if orbits is None else orbits.layout
    part = Part(expand_of(model, layout, properties), layout.words, len(model.actions), len(properties), orbits)
    if memory_mb is not None:
        plan = plan_of(memory_mb, program_mb(), workers, layout.words, len(model.actions))
        part.chunk_states, part.stretch_states = plan.chunk_states, plan.stretch_states
        part.new_store = partial(SpillStore, layout.words, plan.sorted_states)
    with closing(_Alone(part) if workers == 1 else workers_of(part, workers)) as crew:
        search = _Search(model, Ledger(properties), orbits, crew)
        compiled = time.perf_counter()
        try:
            search.grow(layout.pack(model.initial), limit_states, report)
        except KeyboardInterrupt:
            search.complete = False
        except MemoryError as error:
            raise MemoryShortError(f"this search ran out of memory; {INSTEAD}") from error
        seconds = time.perf_counter() - compiled
        fired = search.transitions()
        return Exploration(
            model=model,
            engine=NAME,
            distinct_states=search.distinct,
            transitions=sum(fired),
            depth=search.depth,
            seconds=seconds,
            compile_seconds=compiled - began,
            complete=search.complete,
            verdicts=search.ledger.verdicts(model, search.complete, search.runs_to),
            fired={action.label: fired[index] for index, action in enumerate(model.actions)},
        )


def program_mb() -> int:
    """The resident memory of this process, in megabytes.

    `ru_maxrss` is unsuitable, because on Linux it includes the memory that the parent had before the exec.
    """
    resident_pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return resident_pages * resource.getpagesize() >> 20
