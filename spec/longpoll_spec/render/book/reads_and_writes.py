"""Which actions read and write which variable, and which properties an action could break.

Computed from the terms of each preset without features, and with each feature. Whether an action does break one is not
checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from attrs import frozen

from longpoll_spec.bounds import EXPLORATIONS, Bounds
from longpoll_spec.model import Action, Property
from longpoll_spec.policy import PRESETS, Policy
from longpoll_spec.render.book.formula import shown_name
from longpoll_spec.render.conditions import PLAIN
from longpoll_spec.render.spec_actions import OPEN, model_of, opened
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.terms import Term, nodes


@frozen
class ReadsAndWrites:
    """What one action reads and writes, by the names used in the book."""

    reads: frozenset[str]
    writes: frozenset[str]


def variables_in(terms: Iterable[Term]) -> set[str]:
    """The variables in these terms."""
    return {str(node.args[0]) for node in nodes(*terms) if node.op == "var"}


def written_by(action: Action) -> set[str]:
    """The variables that an action's effect may change."""
    return {name for name, term in action.effect.items() if not (term.op == "var" and term.args[0] == name)}


def read_by(action: Action) -> set[str]:
    """The variables that an action's guard or its effect's new values read."""
    return variables_in([action.guard, *(action.effect[name] for name in written_by(action))])


def worlds() -> Iterator[tuple[Policy, Bounds]]:
    """Every preset without features, and with each."""
    for policy in PRESETS.values():
        yield policy, OPEN
        yield from ((policy, opened(bounds)) for bounds in EXPLORATIONS.values())


@cache
def reads_and_writes() -> Mapping[str, ReadsAndWrites]:
    """Action -> what it reads and writes in some preset or with some feature."""
    reads: dict[str, set[str]] = {}
    writes: dict[str, set[str]] = {}
    for policy, bounds in worlds():
        for action in model_of(policy, bounds).actions:
            reads.setdefault(action.name, set()).update(map(shown_name, read_by(action)))
            writes.setdefault(action.name, set()).update(map(shown_name, written_by(action)))
    return {name: ReadsAndWrites(frozenset(reads[name]), frozenset(writes[name])) for name in reads}


@cache
def statements(policy: Policy, bounds: Bounds) -> tuple[Property, ...]:
    """The properties of a policy under these bounds, for two requests and any number of messages."""
    return tuple(properties_of(specification_of(policy, opened(bounds))))


def breakable(action: Action, statement: Property, read: set[str]) -> bool:
    """Whether an action could make a statement false: it writes a variable that is read, or is the forbidden step.

    Args:
        action: The action.
        statement: What must hold.
        read: The variables that the statement's own part about a state reads.
    """
    spoken_of = any(label == action.label for label, _ in statement.closing)
    return spoken_of or not read.isdisjoint(written_by(action))


@cache
def broken_by() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Action -> property that it could break -> the presets in which that is so."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for policy in PRESETS.values():
        for bounds in (PLAIN, *EXPLORATIONS.values()):
            actions = specification_of(policy, opened(bounds)).actions
            for each in statements(policy, bounds):
                if each.kind == "sometimes" or each.by_construction:
                    continue
                read = variables_in([each.here])
                for action in actions:
                    if breakable(action, each, read):
                        found.setdefault(action.name, {}).setdefault(each.name, {})[policy.name] = None
    return {name: {each: tuple(presets) for each, presets in those.items()} for name, those in found.items()}
