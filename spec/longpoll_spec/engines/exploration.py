"""What an exploration says: counts as SPIN defines them, three-valued verdicts, and a token for each counterexample.

distinct_states: states reached. transitions: enabled action instances, over every distinct state. depth: the length of
the longest shortest path. Leaves out how a frontier is grown: each engine does that its own way and must agree here.
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
    """What is known of one property. `depth` and `token` belong to the shortest run that decides it, if a run does."""

    name: str
    kind: Kind
    verdict: Answer
    depth: int | None = None
    token: str | None = None
    by_construction: bool = False
    """It holds, whatever is reached: the text says nothing here that could be broken."""


@frozen
class Progress:
    """How far an exploration has got."""

    distinct_states: int
    transitions: int
    depth: int
    frontier: int
    """States whose successors are still to be found."""


@frozen
class Exploration:
    """The result of an exploration. `complete` is false if a limit or the user ended it early."""

    model: Model
    engine: str
    distinct_states: int
    transitions: int
    depth: int
    seconds: float
    """Without start-up and compilation."""
    compile_seconds: float
    complete: bool
    verdicts: tuple[Verdict, ...]
    fired: Mapping[str, int]
    """Action label -> transitions by that instance."""
    seen: Mapping[str, int] | None = None
    """Of a simulation: property -> how often its runs came to what decides it."""

    @property
    def urgent(self) -> tuple[str, ...]:
        """The actions that time waits for."""
        return self.model.urgent

    def verdict(self, name: str) -> Verdict:
        """The verdict on the property of this name."""
        return next(verdict for verdict in self.verdicts if verdict.name == name)


Report: TypeAlias = Callable[[Progress], None]


@frozen
class Witness:
    """The run that decides a property: it ends in `state`, and then with the step `closing` if there is one."""

    state: object
    """The state in the engine's own words."""
    depth: int
    closing: int | None
    """Index of an action instance."""

    @property
    def length(self) -> int:
        """How many actions the run has."""
        return self.depth + (self.closing is not None)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Of two witnesses the one with the lesser rank is shown, whatever was found first."""
        return (self.length, -1 if self.closing is None else self.closing, self.state)


RunsTo: TypeAlias = Callable[[Sequence[Witness]], Sequence[Sequence[Action]]]


@define
class Ledger:
    """Which properties are decided already. Invariant: a property's witness is the least of those that were noted."""

    properties: Sequence[Property]
    witnesses: dict[int, Witness] = field(factory=dict)

    def is_open(self, index: int) -> bool:
        """Whether the property is still worth looking at."""
        return index not in self.witnesses

    def note(self, index: int, witness: Witness) -> None:
        """Keep a witness if the property has none, or none of lesser rank."""
        known = self.witnesses.get(index)
        if known is None or witness.rank < known.rank:
            self.witnesses[index] = witness

    def verdicts(self, model: Model, complete: bool, runs_to: RunsTo) -> tuple[Verdict, ...]:
        """The verdicts; `runs_to` rebuilds the runs that lead to witnesses, each with its closing step."""
        runs = dict(zip(self.witnesses, runs_to(list(self.witnesses.values())), strict=True))
        return tuple(self._verdict(model, index, complete, runs.get(index)) for index in range(len(self.properties)))

    def _verdict(self, model: Model, index: int, complete: bool, run: Sequence[Action] | None) -> Verdict:
        item = self.properties[index]
        found, exhausted = ("reached", "unreached") if item.kind == "sometimes" else ("violated", "holds")
        if run is None:
            known = "holds" if item.by_construction else exhausted if complete else "unknown"
            return Verdict(item.name, item.kind, known, by_construction=item.by_construction)  # type: ignore[arg-type]
        return Verdict(item.name, item.kind, found, len(run), token_of(model, run, item.name))  # type: ignore[arg-type]
