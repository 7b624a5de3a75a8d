"""Checks whether requests are interchangeable and whether queues are, so that no engine has to assume it.

Swapping two requests, or two queues, must map the set of actions and each statement to itself, up to the order of
operands of `and` and `or`, so that a proof about one request or queue holds for all of them. If requests or queues are
not interchangeable, for example because a mutant changes the action of one request only, the engines check each of
them.

A request's number occurs only in names of variables, such as `phase_0`. A queue's number occurs in names, such as
`log_end_q0` and `watched_q0_1`, and as the value of a variable with `Variable.numbers_queues`. Values that are compared
with a variable that numbers queues, or assigned to it, are renamed too. For orbits of states see `packed.orbits`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from attrs import define, field, frozen

from longpoll_spec.model import Action, Actor, Model
from longpoll_spec.terms import Bool, Int, Term, nodes

_SLOT: Final = re.compile(r"_(\d+)$")
_QUEUE: Final = re.compile(r"_q(\d+)(?=$|_\d+$)")
_QUEUE_ACTOR: Final = re.compile(r"^q(\d+)$")
_COMMUTING: Final = frozenset({"and", "or", "eq"})
_ORDERED: Final = frozenset({"lt", "le", "add", "sub"})


@frozen
class Renaming:
    """New numbers for requests and queues; numbers not in the map stay the same."""

    requests: Mapping[int, int] = {}
    queues: Mapping[int, int] = {}

    def name(self, name: str) -> str:
        """The name of a variable after renaming."""
        for pattern, sign, swap in ((_SLOT, "_", self.requests), (_QUEUE, "_q", self.queues)):
            found = pattern.search(name)
            if found is not None:
                number = int(found[1])
                name = f"{name[: found.start()]}{sign}{swap.get(number, number)}{name[found.end() :]}"
        return name

    def actor(self, actor: Actor) -> Actor:
        """The actor after renaming."""
        if isinstance(actor, int):
            return self.requests.get(actor, actor)
        queue = queue_acting(actor)
        return actor if queue is None else f"q{self.queues.get(queue, queue)}"


IDENTITY: Final = Renaming()


def slot_of(name: str) -> int | None:
    """The number of the request that a variable belongs to; None if the variable belongs to no request."""
    found = _SLOT.search(name)
    return None if found is None else int(found[1])


def queue_of(name: str) -> int | None:
    """The number of the queue that a variable belongs to; None for other variables, and if the model has one queue."""
    found = _QUEUE.search(name)
    return None if found is None else int(found[1])


def queue_acting(actor: Actor) -> int | None:
    """The number of the queue that an actor names; None if the actor is not a queue."""
    found = _QUEUE_ACTOR.match(actor) if isinstance(actor, str) else None
    return None if found is None else int(found[1])


@define(eq=False)
class _Numbered:
    """The results of one renaming. Invariant: `kept` holds every numbered node, so ids of nodes stay unique."""

    kept: list[Term] = field(factory=list)
    plain: dict[int, int] = field(factory=dict)
    queues: dict[int, int] = field(factory=dict)
    sums: dict[int, list[tuple[int, int]]] = field(factory=dict)
    naming: set[int] = field(factory=set)


@define
class Shapes:
    """Numbers the terms, ignoring the order of operands that commute. Invariant: equal numbers mean equal shapes.

    An integer node has two numbers: one if it is a quantity, and one if it is the number of a queue, so that constants
    in it are renamed.
    """

    numbering: frozenset[str] = frozenset()
    """The variables whose values are numbers of queues."""
    queues: int = 1
    numbers: dict[tuple[object, ...], int] = field(factory=dict)
    numbered: dict[tuple[object, ...], _Numbered] = field(factory=dict)
    """Maps a renaming to its results, which are kept because terms share most of their nodes."""

    def number(self, term: Term, renaming: Renaming = IDENTITY, *, of_queue: bool = False) -> int:
        """The number of a term after renaming."""
        known = self.numbered.setdefault((*renaming.requests.items(), None, *renaming.queues.items()), _Numbered())
        plain, queues, sums, naming = known.plain, known.queues, known.sums, known.naming
        for node in nodes(term, done=plain):
            known.kept.append(node)
            if self._names_queue(node, naming):
                naming.add(id(node))
            named = [arg for arg in node.args if id(arg) in naming]
            kept = node.op == "eq" or (node.op in {"lt", "le"} and self._is_no_order(node, named))
            op = node.op
            renames = queues if named and kept else plain
            parts: list[object] = [
                # In an order comparison, such as with the greatest queue number, the number of a queue is a quantity.
                (renames if op == "eq" or id(arg) in naming else plain)[id(arg)]
                if isinstance(arg, (Int, Bool))
                else arg
                for arg in node.args
            ]
            if op == "var":
                parts = [renaming.name(node.args[0])]
            elif op == "ite":
                parts = _choice(node, plain, plain)
            elif op in {"add", "sub"}:
                sums[id(node)] = _sum(node, sums, plain)
                op, parts = "sum", list[object](sorted(sums[id(node)]))
            if node.op in _ORDERED and named and not kept:
                # The renaming becomes a part of the shape, because it does not preserve an order among queues.
                parts.append(tuple(sorted(renaming.queues.items())))
            plain[id(node)] = self._number(op, parts)
            queues[id(node)] = self._number_of_queue(node, plain, queues, renaming)
        return (queues if of_queue else plain)[id(term)]

    def _names_queue(self, node: Term, naming: set[int]) -> bool:
        if node.op == "ite":
            return any(id(branch) in naming for branch in node.args[1:])
        return node.op == "var" and node.args[0] in self.numbering

    def _is_no_order(self, node: Term, named: list[Term]) -> bool:
        """Whether the node compares a queue's number with a constant and has the same result for every queue."""
        left, right = node.args
        other = right if any(left is each for each in named) else left
        if len(named) != 1 or other.op != "const":
            return False
        value = other.args[0]
        pairs = [(queue, value) if other is right else (value, queue) for queue in range(self.queues)]
        return len({one < two if node.op == "lt" else one <= two for one, two in pairs}) == 1

    def _number_of_queue(
        self, node: Term, plain: Mapping[int, int], queues: Mapping[int, int], renaming: Renaming
    ) -> int:
        if node.op == "const":
            value = node.args[0]
            return self._number("queue", [renaming.queues.get(value, value)])
        if node.op == "ite" and isinstance(node, Int):
            return self._number("ite", _choice(node, plain, queues))
        return plain[id(node)]

    def _number(self, op: str, parts: list[object]) -> int:
        if op in _COMMUTING:
            parts.sort(key=str)
        return self.numbers.setdefault((op, *parts), len(self.numbers))

    def of_action(self, action: Action, renaming: Renaming) -> tuple[object, ...]:
        """The shape of an action after renaming: its name, its actors, and the numbers of its guard and effects."""
        effect = sorted(
            (renaming.name(name), self.number(term, renaming, of_queue=name in self.numbering))
            for name, term in action.effect.items()
        )
        return (action.name, *map(renaming.actor, action.actors), self.number(action.guard, renaming), *effect)


def _sum(node: Term, sums: Mapping[int, list[tuple[int, int]]], plain: Mapping[int, int]) -> list[tuple[int, int]]:
    left, right = (sums.get(id(arg), [(plain[id(arg)], 1)]) for arg in node.args)
    return [*left, *((number, sign if node.op == "add" else -sign) for number, sign in right)]


def _choice(node: Term, conditions: Mapping[int, int], branches: Mapping[int, int]) -> list[object]:
    """The numbers of the cases of an `ite` term. Cases that compare one term with constants may be in any order."""
    condition, then, otherwise = node.args
    cases, tried = [(conditions[id(condition)], branches[id(then)])], {condition}
    while otherwise.op == "ite" and all(_excludes(otherwise.args[0], other) for other in tried):
        condition, then, otherwise = otherwise.args
        cases.append((conditions[id(condition)], branches[id(then)]))
        tried.add(condition)
    return [*sorted(cases), branches[id(otherwise)]]


def _excludes(first: Bool, second: Bool) -> bool:
    if not first.op == second.op == "eq":
        return False
    (one, constant), (other, different) = first.args, second.args
    return one is other and constant.op == different.op == "const" and constant is not different


def generators(model: Model) -> Iterator[Renaming]:
    """Renamings that generate all others: a swap and a rotation of requests, and a swap and a rotation of queues."""
    requests, queues = (list(_swap_and_rotation(each)) for each in (model.bounds.requests, model.bounds.queues))
    yield from (Renaming(requests=each) for each in requests)
    yield from (Renaming(queues=each) for each in queues)


def _swap_and_rotation(count: int) -> Iterator[dict[int, int]]:
    if count > 1:
        yield {0: 1, 1: 0}
    if count > 2:
        yield {each: (each + 1) % count for each in range(count)}


ShapesOf: TypeAlias = dict[tuple[frozenset[str], int], Shapes]
"""Maps (names of the variables whose values are numbers of queues, number of queues) to the shapes of the terms of a
model with these variables and queues."""


def is_symmetric(model: Model, statements: Iterable[Bool], known: ShapesOf | None = None) -> bool:
    """Whether each renaming maps the set of the model's actions, and each of the statements, to itself.

    Pass the same `known` for several models: they share most terms, so that their shapes are computed only once.
    """
    about = (frozenset(each.name for each in model.variables if each.numbers_queues), model.bounds.queues)
    shapes = ({} if known is None else known).setdefault(about, Shapes(*about))
    wanted = list(statements)
    actions = {shapes.of_action(action, IDENTITY) for action in model.actions}
    meant = [shapes.number(term) for term in wanted]
    for renaming in generators(model):
        if {shapes.of_action(action, renaming) for action in model.actions} != actions:
            return False
        if [shapes.number(term, renaming) for term in wanted] != meant:
            return False
    return True


def slots_of(term: Term) -> list[int]:
    """The numbers of the requests whose variables a term reads, in ascending order."""
    return _slots_among(term.reads)


@lru_cache(maxsize=4096)
def _slots_among(names: frozenset[str]) -> list[int]:
    return sorted({slot for name in names if (slot := slot_of(name)) is not None})


def is_representative(action: Action, part: Bool | None = None) -> bool:
    """Whether an action, and the part of a statement that it may break, name the requests 0, 1, ... in this order.

    If requests are interchangeable, only pairs that name the requests in ascending order need a check. The action's
    requests come first, then the request of `part`. A part that reads several requests is about all of them, so it
    names none.
    """
    named = [actor for actor in action.actors if isinstance(actor, int)]
    slots = slots_of(part) if part is not None else []
    if len(slots) == 1:
        named += [slot for slot in slots if slot not in named]
    return named == list(range(len(named)))
