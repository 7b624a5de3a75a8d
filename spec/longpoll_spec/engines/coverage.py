"""What a list of runs exercises of the law, and what it does not.

| part      | one item is                                                                                         |
|-----------|-----------------------------------------------------------------------------------------------------|
| actions   | an action of the policy, by name                                                                    |
| places    | a word that a variable can stand at: a request's phase, a notifier's place in its program           |
| moves     | (phase, action, phase after): an action that finds a request in a phase and moves it to another     |
| sometimes | a property that must be reached                                                                     |

What there is to exercise is read off the law's text (`moves`), so that runs of two laws are never added up: each law
has a coverage of its own. Leaves out whether the runs show what they claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python.compile import Question, question
from longpoll_spec.law import properties_of
from longpoll_spec.model import Model, Trace
from longpoll_spec.moves import Move, moves_of, places_of
from longpoll_spec.policy import Policy

PARTS: Final = ("actions", "places", "moves", "sometimes")


@frozen
class Part:
    """One part of a coverage: what there is, in the law's order, and what of it was seen."""

    name: str
    all: tuple[str, ...]
    seen: frozenset[str]

    @property
    def missing(self) -> tuple[str, ...]:
        """What no run exercises."""
        return tuple(item for item in self.all if item not in self.seen)


@frozen
class Coverage:
    """What some runs of one law exercise."""

    policy: str
    bounds: Bounds
    """Those of the first run; a law's other runs may have more requests or messages."""
    runs: int
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        """The part of this name."""
        return next(part for part in self.parts if part.name == name)


def coverage_of(traces: Iterable[Trace]) -> list[Coverage]:
    """The coverage of each law among the runs, in the order in which the laws first occur."""
    known: dict[tuple[Policy, Bounds], _Domain] = {}
    laws: dict[tuple[str, tuple[tuple[str, ...], ...]], tuple[list[Trace], _Domain]] = {}
    for trace in traces:
        key = (trace.model.policy, trace.model.bounds)
        domain = known[key] if key in known else _domain(trace.model)
        known[key] = domain
        laws.setdefault((trace.model.policy.name, domain.all), ([], domain))[0].append(trace)
    return [_coverage(runs, domain, known) for runs, domain in laws.values()]


@frozen
class _Domain:
    """What there is to exercise in one model. Models of one law differ in their bounds, and so in their questions."""

    all: tuple[tuple[str, ...], ...]
    """In the order of `PARTS`."""
    meant: tuple[tuple[str, Question], ...]


def _domain(model: Model) -> _Domain:
    meant = [(item.name, question(model, item.term)) for item in properties_of(model) if item.kind == "sometimes"]
    parts = (
        (action.name for action in model.actions),
        (_place(variable, label) for variable, label in places_of(model)),
        map(_words, moves_of(model)),
        (name for name, _ in meant),
    )
    return _Domain(tuple(tuple(dict.fromkeys(part)) for part in parts), tuple(meant))


def _coverage(runs: Sequence[Trace], domain: _Domain, known: Mapping[tuple[Policy, Bounds], _Domain]) -> Coverage:
    seen: list[set[str]] = [set() for _ in PARTS]
    for trace in runs:
        model = trace.model
        for part, items in zip(seen, _seen(trace, known[model.policy, model.bounds].meant), strict=True):
            part.update(items)
    parts = (Part(name, items, frozenset(part)) for name, items, part in zip(PARTS, domain.all, seen, strict=True))
    first = runs[0].model
    return Coverage(first.policy.name, first.bounds, len(runs), tuple(parts))


def _seen(trace: Trace, meant: Sequence[tuple[str, Question]]) -> Iterator[set[str]]:
    yield {step.action.name for step in trace.steps if step.action is not None}
    labelled = [(index, variable) for index, variable in enumerate(trace.model.variables) if variable.labels]
    yield {
        _place(variable.name, variable.labels[step.state[index]])
        for step in trace.steps
        for index, variable in labelled
    }
    yield set(_moves(trace))
    yield {name for name, ask in meant if any(ask(step.state) for step in trace.steps)}


def _moves(trace: Trace) -> Iterator[str]:
    names = [variable.name for variable in trace.model.variables]
    labels = trace.model.state.phases.labels
    for number, step in enumerate(trace.steps[1:], start=1):
        assert step.action is not None
        for slot in range(trace.model.bounds.requests):
            place = names.index(f"phase_{slot}")
            before, after = trace.steps[number - 1].state[place], step.state[place]
            if before != after:
                yield _words(Move(step.action.name, labels[before], labels[after]))


def _words(move: Move) -> str:
    return f"{move.before} --{move.action}--> {move.after}"


def _place(variable: str, label: str) -> str:
    stem, _, slot = variable.rpartition("_")
    return f"{stem if slot.isdecimal() else variable} {label}"
