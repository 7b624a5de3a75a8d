"""The Python engine: breadth-first over tuples, with parents kept. Plain and slow; the faster engines must agree.

A level is finished before the next begins, so the first witness is a shortest one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from attrs import define, field

from longpoll_spec.engines.exploration import Exploration, Ledger, Progress, Report, Witness
from longpoll_spec.engines.python.compile import Packed, Question, Successors, questions, successors
from longpoll_spec.model import Action, Model, Property

NAME = "python"
REPORT_EVERY = 20_000
"""States between two reports of progress."""


@define
class _Search:
    """A breadth-first search. Invariant: `parents` has every state reached, and `level` those not expanded yet."""

    model: Model
    ledger: Ledger
    successors: Successors
    here: dict[int, Question]
    """Property index -> the question that decides it when true in a state."""
    closing: dict[int, list[tuple[int, Question]]]
    """Action index -> (property index, the question that decides it for the step)."""
    parents: dict[Packed, tuple[Packed, int] | None] = field(factory=dict)
    level: list[Packed] = field(factory=list)
    fired: Counter[int] = field(factory=Counter)
    depth: int = 0
    complete: bool = False

    def start(self) -> None:
        first = self.model.initial
        self.parents[first] = None
        self.level = [first]
        self._ask_here(first)

    def grow(self, limit: int | None, report: Report | None) -> None:
        """Expand level after level until there are no new states, or the limit is reached."""
        while self.level:
            following: list[Packed] = []
            for number, state in enumerate(self.level):
                self._expand(state, following)
                if report is not None and number % REPORT_EVERY == 0:
                    report(self.progress(len(self.level) - number + len(following)))
            if following:
                self.depth += 1
            self.level = following
            if limit is not None and len(self.parents) >= limit and following:
                return
        self.complete = True

    def _expand(self, state: Packed, following: list[Packed]) -> None:
        for index, after in self.successors(state):
            self.fired[index] += 1
            for item, ask in self.closing.get(index, ()):
                if self.ledger.is_open(item) and ask(state):
                    self.ledger.note(item, Witness(state, self.depth, index))
            if after not in self.parents:
                self.parents[after] = (state, index)
                following.append(after)
                self._ask_here(after, deeper=1)

    def _ask_here(self, state: Packed, deeper: int = 0) -> None:
        for item in [item for item, ask in self.here.items() if ask(state)]:
            self.ledger.note(item, Witness(state, self.depth + deeper, None))
            del self.here[item]

    def progress(self, frontier: int) -> Progress:
        """The progress so far."""
        return Progress(len(self.parents), self.fired.total(), self.depth, frontier)

    def runs_to(self, witnesses: Sequence[Witness]) -> list[list[Action]]:
        """The runs to witnesses."""
        return [self._run_to(witness) for witness in witnesses]

    def _run_to(self, witness: Witness) -> list[Action]:
        chosen = [] if witness.closing is None else [witness.closing]
        assert isinstance(witness.state, tuple)
        parent = self.parents[witness.state]
        while parent is not None:
            chosen.append(parent[1])
            parent = self.parents[parent[0]]
        return [self.model.actions[index] for index in reversed(chosen)]


def explore(
    model: Model, properties: Sequence[Property], *, report: Report | None = None, limit_states: int | None = None
) -> Exploration:
    """Explore the model; Ctrl-C ends the search and returns the results so far."""
    began = time.perf_counter()
    search = _Search(model, Ledger(properties), successors(model), *questions(model, properties))
    compiled = time.perf_counter()
    try:
        search.start()
        search.grow(limit_states, report)
    except KeyboardInterrupt:
        search.complete = False
    seconds = time.perf_counter() - compiled
    return Exploration(
        model=model,
        engine=NAME,
        distinct_states=len(search.parents),
        transitions=search.fired.total(),
        depth=search.depth,
        seconds=seconds,
        compile_seconds=compiled - began,
        complete=search.complete,
        verdicts=search.ledger.verdicts(model, search.complete, search.runs_to),
        fired={action.label: search.fired[index] for index, action in enumerate(model.actions)},
    )
