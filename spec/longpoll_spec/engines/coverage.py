"""Which parts of the specification a list of runs exercises, and which it does not.

| part      | one item is                                                                                     |
|-----------|-------------------------------------------------------------------------------------------------|
| actions   | an action of the policy, by name                                                                |
| places    | a named value of a variable: a request's phase, a notifier's program counter                    |
| moves     | (phase, action, phase after): an action that takes a request from one phase to another          |
| sometimes | a property that must be reached                                                                 |

For recorded runs, `Transitions` reports which transitions of the graph under small bounds occurred. Steps are in one
class if they do the same to the places of the notifiers and the requests, regardless of request numbers.

The items are derived from the spec (`moves`), so each policy has its own coverage. Whether a run shows what it claims
is not checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs
from attrs import define, field, frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python import Packed, Question, question, successors
from longpoll_spec.model import Action, Model, Trace, TraceStep
from longpoll_spec.phase_changes import PhaseChange, nodes_of, phase_changes_of
from longpoll_spec.policy import Policy
from longpoll_spec.specification import properties_of, specification_of

PARTS: Final = ("actions", "places", "moves", "sometimes")


@frozen
class Part:
    """One part of a coverage: the items, in the order of the spec, and those that occurred."""

    name: str
    all: tuple[str, ...]
    seen: frozenset[str]

    @property
    def missing(self) -> tuple[str, ...]:
        """The items that no run exercises."""
        return tuple(item for item in self.all if item not in self.seen)


@frozen
class Coverage:
    """The coverage of some runs of one policy."""

    policy: str
    bounds: Bounds
    """Those of the first run; other runs of the policy may have more requests or messages."""
    runs: int
    parts: tuple[Part, ...]

    def part(self, name: str) -> Part:
        """The part of this name."""
        return next(part for part in self.parts if part.name == name)


def coverage_of(traces: Iterable[Trace]) -> list[Coverage]:
    """The coverage of each policy among the runs, in order of first occurrence."""
    known: dict[tuple[Policy, Bounds], _Domain] = {}
    laws: dict[tuple[str, tuple[tuple[str, ...], ...]], list[tuple[Trace, _Domain]]] = {}
    for trace in traces:
        key = (trace.model.policy, trace.model.bounds)
        domain = known[key] if key in known else _domain(trace.model)
        known[key] = domain
        *text, _ = domain.all  # few messages have fewer situations, and the same law
        laws.setdefault((trace.model.policy.name, tuple(text)), []).append((trace, domain))
    return [
        _coverage([trace for trace, _ in runs], max((each for _, each in runs), key=_situations), known)
        for runs in laws.values()
    ]


SMALL: Final = Bounds("small", requests=2, messages=2, hold_ticks=1, scan_ticks=2)
"""The bounds of the graph that is explored whole: two requests race, and a second message comes."""


@define
class Transitions:
    """The classes of a policy's transitions, and which of them occurred in the runs.

    A class names the action, and the places of the notifiers and requests before and after it. An asterisk marks the
    request that acts.
    """

    model: Model
    of: dict[str, dict[str, int]] = field(init=False)
    """Action -> class -> number of occurrences."""
    beyond: dict[str, dict[str, int]] = field(factory=dict)
    """The same for classes that the small graph does not have."""

    def __attrs_post_init__(self) -> None:
        """Traverse the graph under small bounds, with the model's policy, features, queues and tags."""
        here = self.model.bounds
        bounds = attrs.evolve(SMALL, aspects=here.aspects, queues=here.queues, tags=here.tags)
        small = specification_of(self.model.policy, bounds)
        self.of = {name: {} for name in dict.fromkeys(action.name for action in small.actions)}
        law, known, pending = successors(small), {small.initial}, [small.initial]
        words = _classes(small)
        while pending:
            before = pending.pop()
            for index, after in law(before):
                action = small.actions[index]
                self.of[action.name].setdefault(words(action, before, after), 0)
                if after not in known:
                    known.add(after)
                    pending.append(after)

    def see(self, steps: Iterable[TraceStep]) -> int:
        """Count the transitions of one more run; return the number of its steps."""
        words, before, count = _classes(self.model), self.model.initial, 0
        for step in steps:
            if step.action is not None:
                name, word = step.action.name, words(step.action, before, step.state)
                known = self.of.get(name, {})
                seen = known if word in known else self.beyond.setdefault(name, {})
                seen[word] = seen.get(word, 0) + 1
                count += 1
            before = step.state
        return count


def _classes(model: Model) -> Callable[[Action, Packed, Packed], str]:
    labelled = [(place, each) for place, each in enumerate(model.variables) if each.labels]
    of_request = {f"phase_{each.index}": each.index for each in model.state.requests}
    places = [place for place, _ in labelled]
    said: dict[tuple[str, Packed, Packed], str] = {}

    def word(action: Action, before: Packed, after: Packed) -> str:
        key = (action.label, tuple(before[place] for place in places), tuple(after[place] for place in places))
        if key not in said:
            walkers, requests = [], []
            for (_, variable), one, other in zip(labelled, key[1], key[2], strict=True):
                change = variable.labels[one] + (f" -> {variable.labels[other]}" if one != other else "")
                if variable.name in of_request:
                    requests.append(f"{'*' if of_request[variable.name] in action.actors else ''}{change}")
                else:
                    walkers.append(f"{variable.name} {change}")
            said[key] = "; ".join([*walkers, *sorted(requests)])
        return said[key]

    return word


@frozen
class _Domain:
    """The items of one model. Models of one policy differ in their bounds, and so in their questions."""

    all: tuple[tuple[str, ...], ...]
    """In the order of `PARTS`."""
    meant: tuple[tuple[str, Question], ...]


def _situations(domain: _Domain) -> int:
    return len(domain.all[-1])


def _domain(model: Model) -> _Domain:
    meant = [(item.name, question(model, item.term)) for item in properties_of(model) if item.kind == "sometimes"]
    parts = (
        (action.name for action in model.actions),
        (_place(variable, label) for variable, label in nodes_of(model)),
        map(_words, phase_changes_of(model)),
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
                yield _words(PhaseChange(step.action.name, labels[before], labels[after]))


def _words(move: PhaseChange) -> str:
    return f"{move.before} --{move.action}--> {move.after}"


def _place(variable: str, label: str) -> str:
    stem, _, slot = variable.rpartition("_")
    return f"{stem if slot.isdecimal() else variable} {label}"
