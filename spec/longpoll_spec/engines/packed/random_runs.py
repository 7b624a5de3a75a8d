"""Tries many random runs at once, for models that have too many states to explore them all.

Random runs can show that a property is violated or that a state is reachable, but never that a property holds. All runs
of a batch advance in lockstep: the packed engine expands their states, and each run takes one of its enabled steps at
random. Each run leaves out some random actions of the environment, which are the actions that are not urgent (time,
consumers, faults). For example, a run that leaves out `stop` reaches deeper states (Groce et al., Swarm Testing, ISSTA
2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import define, field

from longpoll_spec.engines.exploration import Ledger, Witness
from longpoll_spec.engines.packed.compile import Expand, Found, expand_of
from longpoll_spec.engines.packed.layout import Layout, layout_of
from longpoll_spec.engines.packed.partition import Successors
from longpoll_spec.engines.packed.words import Rows, Words, words_of
from longpoll_spec.engines.python import shorten
from longpoll_spec.model import Action, Model, Property

LEFT_OUT: Final = 0.25
"""The probability that a run leaves out an action that is not urgent."""
BATCH_RUNS: Final = 4096
"""The number of runs that advance in lockstep."""
_NOBODY: Final = -1
"""This value in place of an action's index marks a run that has ended."""


@define
class _Choice(Successors):
    """Chooses one random step for each run. Invariant: `chosen` is uniform over the steps offered so far.

    A left-out action is chosen only if no other action is enabled, so a run ends only in a state without enabled
    actions.
    """

    random: np.random.Generator = field(kw_only=True)
    left_out: npt.NDArray[np.bool_] = field(kw_only=True)
    """Whether a run (column) leaves out an action (row); shape (actions, runs)."""
    chosen: npt.NDArray[np.int64] = field(kw_only=True)
    """For each run the column of the chosen successor; -1 if no successor is chosen."""
    actions: npt.NDArray[np.int16] = field(kw_only=True)
    """For each run the index of the chosen action."""
    among: npt.NDArray[np.int64] = field(kw_only=True)
    """For each run the number of steps offered so far by actions that it does not leave out."""
    reluctant: npt.NDArray[np.int64] = field(kw_only=True)
    """For each run the number of steps offered so far by actions that it leaves out."""

    def make(self, index: int, words: Words, rows: Rows) -> Words:
        """Offer these successors to their runs (`compile.Make`)."""
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
class _Runs:
    """Runs a model at random, many runs at a time, and records the runs that decide a property.

    Invariant: `found` has for each witness in the ledger the actions that lead to it.
    """

    model: Model
    ledger: Ledger
    layout: Layout
    expand: Expand
    random: np.random.Generator
    steps: int
    found: dict[int, list[Action]] = field(factory=dict)
    runs: int = 0

    def batch(self, runs: int) -> None:
        """Try `runs` runs from the first state. A run ends after `steps` steps, or before if no action is enabled."""
        taken = np.full((self.steps, runs), _NOBODY, dtype=np.int16)
        states = np.repeat(words_of([self.layout.pack(self.model.initial)], self.layout.words), runs, axis=1)
        numbers = np.arange(runs)
        left_out = self._left_out(runs)
        for step in range(self.steps + 1):
            choice, hits = self._offer(states, left_out.take(numbers, axis=1))
            for item, closing, column, _ in hits:
                self._note(item, Witness(self.runs + int(numbers[column]), step, closing), taken[:, numbers[column]])
            going = np.flatnonzero(choice.chosen >= 0)
            if step == self.steps or not going.size:
                break
            states = choice.words.take(choice.chosen.take(going), axis=1)
            numbers = numbers.take(going)
            taken[step, numbers] = choice.actions.take(going)
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


def random_runs(
    model: Model, properties: Sequence[Property], *, runs: int, steps: int, seed: int = 0, once: bool = False
) -> dict[str, list[Action]]:
    """Map each decided property to the shortest run that decides it among those tried.

    Tries `runs` runs of at most `steps` steps; equal seeds give equal runs. With `once`, no run begins after every
    property is decided. A run that violates a property loses the steps that it does not need (`python.shorten`), while
    a run that reaches a `sometimes` property keeps all its steps.
    """
    layout = layout_of(model)
    tried = _Runs(
        model,
        Ledger(properties),
        layout,
        expand_of(model, layout, properties),
        np.random.default_rng(seed),
        steps,
    )
    while tried.runs < runs and not (once and len(tried.found) == len(properties)):
        tried.batch(min(BATCH_RUNS, runs - tried.runs))
    return {
        properties[item].name: run if properties[item].kind == "sometimes" else shorten(model, properties[item], run)
        for item, run in tried.found.items()
    }
