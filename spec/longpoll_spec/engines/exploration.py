"""The result of an exploration: counts as in SPIN, three-valued verdicts, and a token for each counterexample.

`distinct_states` counts the states reached. `transitions` counts the enabled action instances, summed over all distinct
states. `depth` is the greatest distance of a state from the first state, in steps. All engines must find the same three
numbers, although they expand states in different orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import define, field, frozen

from longpoll_spec.engines.tokens import token_of
from longpoll_spec.model import Action, Kind, Model, Property

Answer: TypeAlias = Literal["holds", "violated", "reached", "unreached", "unknown"]


@frozen
class Verdict:
    """The verdict on one property. `depth` and `token` belong to the shortest run that decides it, if there is one."""

    name: str
    kind: Kind
    verdict: Answer
    depth: int | None = None
    token: str | None = None
    by_construction: bool = False
    """Whether the property holds vacuously, because the model contains nothing that could break it."""


@frozen
class Progress:
    """The progress of an exploration."""

    distinct_states: int
    transitions: int
    depth: int
    frontier: int
    """The number of states whose successors are not computed yet."""


@frozen
class Exploration:
    """The result of an exploration. `complete` is false if a limit or the user ended it early."""

    model: Model
    engine: str
    distinct_states: int
    transitions: int
    depth: int
    seconds: float
    """The seconds that the search took, without start-up and compilation."""
    compile_seconds: float
    complete: bool
    verdicts: tuple[Verdict, ...]
    fired: Mapping[str, int]
    """Maps the label of an action instance to the number of its transitions."""

    @property
    def urgent(self) -> tuple[str, ...]:
        """The names of the urgent actions: time cannot pass while one of them is enabled."""
        return self.model.urgent

    def verdict(self, name: str) -> Verdict:
        """The verdict on the property of this name."""
        return next(verdict for verdict in self.verdicts if verdict.name == name)


Report: TypeAlias = Callable[[Progress], None]


@frozen
class Witness:
    """The end of a run that decides a property: the state that it leads to, then the step `closing` if there is one."""

    state: object
    """The state as the engine represents it."""
    depth: int
    closing: int | None
    """The index of the action instance that decides the property; None if the state itself does."""

    @property
    def length(self) -> int:
        """The number of actions in the run."""
        return self.depth + (self.closing is not None)

    @property
    def rank(self) -> tuple[Any, ...]:
        """The order of preference: of several witnesses, the search reports the one with the least rank."""
        return (self.length, -1 if self.closing is None else self.closing, self.state)


RunsTo: TypeAlias = Callable[[Sequence[Witness]], Sequence[Sequence[Action]]]


@define
class Ledger:
    """The witnesses found so far. Invariant: for each property, the noted witness of least rank is kept."""

    properties: Sequence[Property]
    witnesses: dict[int, Witness] = field(factory=dict)

    def is_open(self, index: int) -> bool:
        """Whether the property has no witness yet.

        Once a property has a witness, the search looks for no other one in later levels, because these only give longer
        runs.
        """
        return index not in self.witnesses

    def note(self, index: int, witness: Witness) -> None:
        """Keep this witness, unless the property has one of lesser or equal rank."""
        known = self.witnesses.get(index)
        if known is None or witness.rank < known.rank:
            self.witnesses[index] = witness

    def verdicts(self, model: Model, complete: bool, runs_to: RunsTo) -> tuple[Verdict, ...]:
        """The verdict on each property.

        `runs_to` rebuilds the runs that lead to the witnesses, closing steps included.
        """
        runs = dict(zip(self.witnesses, runs_to(list(self.witnesses.values())), strict=True))
        return tuple(self._verdict(model, index, complete, runs.get(index)) for index in range(len(self.properties)))

    def _verdict(self, model: Model, index: int, complete: bool, run: Sequence[Action] | None) -> Verdict:
        item = self.properties[index]
        found, exhausted = ("reached", "unreached") if item.kind == "sometimes" else ("violated", "holds")
        if run is None:
            known = "holds" if item.by_construction else exhausted if complete else "unknown"
            return Verdict(item.name, item.kind, known, by_construction=item.by_construction)  # type: ignore[arg-type]
        return Verdict(item.name, item.kind, found, len(run), token_of(model, run, item.name))  # type: ignore[arg-type]
