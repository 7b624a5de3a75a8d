"""The simulator: many random runs at once, for bounds that are too large to explore.

It can show that a property is violated or that a state is reached, but never that a property holds. All runs of a batch
step together: the packed engine expands their states, and each run takes one enabled step at random. For each run some
actions of the environment (time, consumers, faults: all that are not urgent) are left out at random. A run without
`stop`, for example, gets deep (Groce et al., Swarm Testing, ISSTA 2012).

A reported run is the shortest of those tried, without the steps that it does not need.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import define, field

from longpoll_spec.engines.exploration import Exploration, Ledger, Progress, Report, Witness
from longpoll_spec.engines.packed.compile import Expand, Found, expand_of
from longpoll_spec.engines.packed.layout import Layout, layout_of
from longpoll_spec.engines.packed.partition import Successors
from longpoll_spec.engines.packed.store import WordTable
from longpoll_spec.engines.packed.words import Rows, Words, distinct, mixed, words_of
from longpoll_spec.engines.python import shorten
from longpoll_spec.model import Action, Model, Property

NAME: Final = "simulate"
RUNS: Final = 40_000
STEPS: Final = 40
LEFT_OUT: Final = 0.25
"""The chance that a run leaves out an action that is not urgent."""
BATCH_RUNS: Final = 4096
"""Runs that step together."""
_NOBODY: Final = -1
"""The action of a run that has ended."""


@define
class _Choice(Successors):
    """One random step for each run. Invariant: `chosen` is uniform over the steps offered so far.

    A left-out action is chosen only if no other is enabled.
    """

    random: np.random.Generator = field(kw_only=True)
    left_out: npt.NDArray[np.bool_] = field(kw_only=True)
    """Whether an action (row) is left out by a run (column)."""
    chosen: npt.NDArray[np.int64] = field(kw_only=True)
    """The column of the successor that each run takes; -1 for none."""
    actions: npt.NDArray[np.int16] = field(kw_only=True)
    """The index of the action that each run takes."""
    among: npt.NDArray[np.int64] = field(kw_only=True)
    """The number of acceptable steps offered to each run."""
    reluctant: npt.NDArray[np.int64] = field(kw_only=True)
    """The number of offered steps that the run leaves out."""

    def make(self, index: int, words: Words, rows: Rows) -> Words:
        """See `compile.Make`."""
        start = self.used
        unwanted = self.left_out[index].take(rows)
        self.among[rows] += ~unwanted
        self.reluctant[rows] += unwanted
        offers = np.where(unwanted, self.reluctant.take(rows), self.among.take(rows))
        may_take = ~unwanted | (self.among.take(rows) == 0)
        first_wanted = ~unwanted & (offers == 1)
        takes = may_take & (first_wanted | (self.random.integers(0, offers) == 0))
        taken = np.flatnonzero(takes)
        self.chosen[rows.take(taken)] = start + taken
        self.actions[rows.take(taken)] = index
        return super().make(index, words, rows)


@define
class _Simulation:
    """Runs of a model. Invariant: `found` has for each witness in the ledger the actions that lead to it."""

    model: Model
    ledger: Ledger
    layout: Layout
    expand: Expand
    random: np.random.Generator
    steps: int
    visited: WordTable
    fired: npt.NDArray[np.int64]
    seen: npt.NDArray[np.int64]
    found: dict[int, list[Action]] = field(factory=dict)
    depth: int = 0
    runs: int = 0

    def batch(self, runs: int, report: Report | None) -> None:
        """Try `runs` runs from the first state, each until no action is enabled or it has taken all its steps."""
        taken = np.full((self.steps, runs), _NOBODY, dtype=np.int16)
        states = np.repeat(words_of([self.layout.pack(self.model.initial)], self.layout.words), runs, axis=1)
        numbers = np.arange(runs)
        left_out = self._left_out(runs)
        for step in range(self.steps + 1):
            self.visited.add(distinct(mixed(states.copy())))
            choice, hits = self._offer(states, left_out.take(numbers, axis=1))
            for item, closing, column, count in hits:
                self.seen[item] += count
                self._note(item, Witness(self.runs + int(numbers[column]), step, closing), taken[:, numbers[column]])
            going = np.flatnonzero(choice.chosen >= 0)
            if step == self.steps or not going.size:
                break
            states = choice.words.take(choice.chosen.take(going), axis=1)
            numbers, actions = numbers.take(going), choice.actions.take(going)
            taken[step, numbers] = actions
            self.fired += np.bincount(actions, minlength=len(self.model.actions))
            self.depth = max(self.depth, step + 1)
            if report is not None:
                report(Progress(self.visited.used, int(self.fired.sum()), self.depth, numbers.size))
        self.runs += runs

    def _offer(self, states: Words, left_out: npt.NDArray[np.bool_]) -> tuple[_Choice, list[Found]]:
        runs, actions = states.shape[1], len(self.model.actions)
        choice = _Choice(
            np.empty((self.layout.words, runs * actions), dtype=np.uint64),
            random=self.random,
            left_out=left_out,
            chosen=np.full(runs, -1, dtype=np.int64),
            actions=np.full(runs, _NOBODY, dtype=np.int16),
            among=np.zeros(runs, dtype=np.int64),
            reluctant=np.zeros(runs, dtype=np.int64),
        )
        hits: list[Found] = []
        self.expand(states, [True] * len(self.ledger.properties), len, choice.make, [0] * actions, hits)
        return choice, hits

    def _left_out(self, runs: int) -> npt.NDArray[np.bool_]:
        names = list(dict.fromkeys(action.name for action in self.model.actions if not action.urgent))
        drawn = dict(zip(names, self.random.random((len(names), runs)) < LEFT_OUT, strict=True))
        kept = np.zeros(runs, dtype=bool)
        return np.stack([kept if action.urgent else drawn[action.name] for action in self.model.actions])

    def _note(self, item: int, witness: Witness, taken: npt.NDArray[np.int16]) -> None:
        self.ledger.note(item, witness)
        if self.ledger.witnesses[item] is witness:
            last = [] if witness.closing is None else [witness.closing]
            run = [*taken[: witness.depth].tolist(), *last]
            self.found[item] = [self.model.actions[index] for index in run]

    def runs_to(self, _witnesses: Sequence[Witness]) -> list[list[Action]]:
        """The runs to the ledger's witnesses, without unneeded steps."""
        stated = self.ledger.properties
        return [
            run if stated[item].kind == "sometimes" else shorten(self.model, stated[item], run)
            for item, run in ((item, self.found[item]) for item in self.ledger.witnesses)
        ]


def explore(
    model: Model,
    properties: Sequence[Property],
    *,
    report: Report | None = None,
    limit_states: int | None = None,
    runs: int = RUNS,
    steps: int = STEPS,
    seed: int = 0,
    once: bool = False,
) -> Exploration:
    """Try `runs` random runs of at most `steps` steps; equal seeds give equal runs. Ctrl-C keeps the results so far.

    Counts cover what was seen: distinct states, steps taken, longest run. Undecided properties are `unknown`. Past
    `limit_states` no more runs begin, nor, with `once`, when a run has decided each property.
    """
    began = time.perf_counter()
    layout = layout_of(model)
    simulation = _Simulation(
        model,
        Ledger(properties),
        layout,
        expand_of(model, layout, properties),
        np.random.default_rng(seed),
        steps,
        WordTable(layout.words),
        np.zeros(len(model.actions), dtype=np.int64),
        np.zeros(len(properties), dtype=np.int64),
    )
    compiled = time.perf_counter()
    try:
        while (
            simulation.runs < runs
            and (limit_states is None or simulation.visited.used < limit_states)
            and not (once and len(simulation.found) == len(properties))
        ):
            simulation.batch(min(BATCH_RUNS, runs - simulation.runs), report)
    except KeyboardInterrupt:
        simulation.runs = runs  # no more begin, and what was seen is reported
    seconds = time.perf_counter() - compiled
    return Exploration(
        model=model,
        engine=NAME,
        distinct_states=simulation.visited.used,
        transitions=int(simulation.fired.sum()),
        depth=simulation.depth,
        seconds=seconds,
        compile_seconds=compiled - began,
        complete=False,
        verdicts=simulation.ledger.verdicts(model, complete=False, runs_to=simulation.runs_to),
        fired={action.label: int(count) for action, count in zip(model.actions, simulation.fired, strict=True)},
        seen={item.name: int(count) for item, count in zip(properties, simulation.seen, strict=True)},
    )
