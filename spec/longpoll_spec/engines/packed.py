"""The packed engine: a state is one 64-bit word, a level of the search is an array of words.

The states seen are kept twice: as levels, from which a counterexample is rebuilt backwards without a parent for each
state, and in a table that holds whole words. Keys are exact. What one process does is in `packed_part`, how several
share a search in `packed_workers`.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from contextlib import closing

import numpy as np
from attrs import define, field

from longpoll_spec.engines.compile_packed import expand_of
from longpoll_spec.engines.exploration import Exploration, Ledger, Progress, Report, Witness
from longpoll_spec.engines.layout import layout_of
from longpoll_spec.engines.orbits import Orbits, orbits_of
from longpoll_spec.engines.packed_part import Part, Stretch
from longpoll_spec.engines.packed_workers import INSTEAD, Crew, crew_of
from longpoll_spec.engines.word_table import distinct, mixed
from longpoll_spec.errors import EngineLimitError
from longpoll_spec.model import Action, Model, Property

NAME = "packed"


@define
class _Alone:
    """A search without other processes: what a crew is for several."""

    part: Part
    interrupted: bool = False

    def begin(self, first: int) -> None:
        self.part.take(distinct(mixed(np.array([first], dtype=np.uint64))))

    def next_level(self) -> int:
        return self.part.next_level()

    def stretch(self, still_open: Sequence[bool]) -> list[Stretch]:
        made, words = self.part.stretch(still_open)
        self.part.take(words)
        return [made]

    def before(self, word: int, depth: int) -> tuple[int, int] | None:
        return self.part.before(word, depth)

    def close(self) -> None:
        """Nothing is to be ended."""


@define
class _Search:
    """A breadth-first search: the counts, and who does it."""

    model: Model
    ledger: Ledger
    orbits: Orbits | None
    crew: Crew | _Alone
    fired: list[int] = field(factory=list)
    distinct: int = 0
    depth: int = 0
    complete: bool = False

    def grow(self, first: int, limit: int | None, report: Report | None) -> None:
        """Expand level after level until nothing is new, or the limit is reached."""
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
        """Expand a level, which counts for so many states; gives whether all of it was."""
        over = False
        while not over and not self.crew.interrupted:
            still_open = [self.ledger.is_open(item) for item in range(len(self.ledger.properties))]
            made = self.crew.stretch(still_open)
            over = all(each.over for each in made)
            for each in made:
                self.fired = list(map(operator.add, self.fired, each.fired))
                for item, closing_step, word in each.found:
                    self.ledger.note(item, Witness(word, self.depth, closing_step))
            if report is not None:
                report(Progress(self.distinct, sum(self.fired), self.depth, level))
        return over

    def transitions(self) -> list[int]:
        """What each action instance fired."""
        return self.fired if self.orbits is None else self.orbits.spread(self.fired)

    def actions_to(self, witness: Witness) -> list[Action]:
        """The run to a witness, backwards: at each level find a state that leads to the one known."""
        assert isinstance(witness.state, int)
        last = None if witness.closing is None else self.model.actions[witness.closing]
        words, actions = [witness.state], [] if last is None else [last]
        for depth in range(witness.depth, 0, -1):
            found = self.crew.before(words[-1], depth - 1)
            assert found is not None, f"no state of level {depth - 1} leads to {words[-1]:#x}"
            words.append(found[0])
            actions.append(self.model.actions[found[1]])
        return actions[::-1] if self.orbits is None else self.orbits.run_through(words[::-1], last)


def explore(
    model: Model,
    properties: Sequence[Property],
    *,
    report: Report | None = None,
    limit_states: int | None = None,
    symmetry: bool = False,
    workers: int = 1,
) -> Exploration:
    """Explore the model; Ctrl-C ends it with what is known so far. Raises `BoundsError` if a word is too narrow.

    With `symmetry` one state is explored for all that renaming requests makes of it; counts are of them all, and
    `SymmetryError` is raised where requests are not interchangeable. More than one of `workers` are processes that
    share the search; `EngineLimitError` is raised if one is lost.
    """
    began = time.perf_counter()
    orbits = orbits_of(model, properties) if symmetry else None
    layout = layout_of(model) if orbits is None else orbits.layout
    part = Part(expand_of(model, layout, properties), len(model.actions), len(properties), orbits)
    with closing(_Alone(part) if workers == 1 else crew_of(part, workers)) as crew:
        search = _Search(model, Ledger(properties), orbits, crew)
        compiled = time.perf_counter()
        try:
            search.grow(layout.pack(model.initial), limit_states, report)
        except KeyboardInterrupt:
            search.complete = False
        except MemoryError as error:
            raise EngineLimitError(f"there is no memory left for this search; {INSTEAD}") from error
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
            verdicts=search.ledger.verdicts(model, search.complete, search.actions_to),
            fired={action.label: fired[index] for index, action in enumerate(model.actions)},
        )
