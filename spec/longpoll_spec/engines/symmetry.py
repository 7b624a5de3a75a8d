"""Requests are interchangeable: seen to be so in a law's text, not assumed.

Renaming two requests must turn the set of actions into itself, and each statement into itself, up to the order of
`and` and `or`. Where it does, what is proved of one choice of requests is proved of every choice, and only choices
that differ in kind are left. Where it does not (a slip in one instance) nothing is left out.

Leaves out counting orbits of states: see `orbits`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import define, field

from longpoll_spec.model import Action, Model
from longpoll_spec.terms import Bool, Int, Term, nodes, variables_of

_SLOT: Final = re.compile(r"_(\d+)$")
_COMMUTING: Final = frozenset({"and", "or", "add", "eq"})


@define
class Shapes:
    """One number for each term up to the order of what commutes. Invariant: equal numbers are equal shapes."""

    numbers: dict[tuple[object, ...], int] = field(factory=dict)

    def number(self, term: Term, swap: Mapping[int, int]) -> int:
        """The number of a term in which requests are renamed."""
        known: dict[int, int] = {}
        for node in nodes(term):
            known[id(node)] = self._number(node, known, swap)
        return known[id(term)]

    def _number(self, node: Term, known: Mapping[int, int], swap: Mapping[int, int]) -> int:
        if node.op == "var":
            parts: list[object] = [renamed(node.args[0], swap)]
        else:
            parts = [known[id(arg)] if isinstance(arg, (Int, Bool)) else arg for arg in node.args]
            if node.op in _COMMUTING:
                parts.sort(key=str)
        return self.numbers.setdefault((node.op, *parts), len(self.numbers))

    def of_action(self, action: Action, swap: Mapping[int, int]) -> tuple[object, ...]:
        """The shape of a whole action in which requests are renamed."""
        actors = tuple(swap.get(actor, actor) if isinstance(actor, int) else actor for actor in action.actors)
        effect = sorted((renamed(name, swap), self.number(term, swap)) for name, term in action.effect.items())
        return (action.name, *actors, self.number(action.guard, swap), *effect)


def renamed(name: str, swap: Mapping[int, int]) -> str:
    """The name of a request's variable after renaming the requests."""
    found = _SLOT.search(name)
    if found is None:
        return name
    slot = int(found[1])
    return f"{name[: found.start()]}_{swap.get(slot, slot)}"


def slot_of(name: str) -> int | None:
    """The request that a variable belongs to; None if it belongs to none."""
    found = _SLOT.search(name)
    return None if found is None else int(found[1])


def is_symmetric(model: Model, statements: Iterable[Bool]) -> bool:
    """Whether renaming requests turns the model's actions, and each of the statements, into themselves."""
    shapes = Shapes()
    wanted = list(statements)
    actions = {shapes.of_action(action, {}) for action in model.actions}
    meant = [shapes.number(term, {}) for term in wanted]
    slots = range(model.bounds.requests)
    for swap in ({first: first + 1, first + 1: first} for first in slots[:-1]):
        if {shapes.of_action(action, swap) for action in model.actions} != actions:
            return False
        if [shapes.number(term, swap) for term in wanted] != meant:
            return False
    return True


def slots_of(term: Term) -> list[int]:
    """The requests that a term speaks of, in order."""
    return sorted({int(found[1]) for name in variables_of(term) if (found := _SLOT.search(name))})


def is_representative(action: Action, part: Bool | None = None) -> bool:
    """Whether the choice of requests is the first of its kind: those named are 0, 1, ... in the order of being named.

    The action's own requests come first, then those of the statement; a statement about every request counts as none.
    """
    named = [actor for actor in action.actors if isinstance(actor, int)]
    slots = slots_of(part) if part is not None else []
    if len(slots) == 1:
        named += [slot for slot in slots if slot not in named]
    return named == list(range(len(named)))
