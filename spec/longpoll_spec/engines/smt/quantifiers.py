"""Terms that speak of all requests, read as quantifiers: over the requests that are not named, "the rest".

In a term some requests are named (who acts, whom a statement is about). A junction in which every other request has
the same part, up to renaming, says "for every" or "for some" of the rest. This is seen in the text: a term in which
the rest is spoken of in any other way, such as one request compared with another, or one spared, is refused.

Two things follow for a term that is so read. `restricted`: what it says where fewer requests exist. `witnesses`: which
of its quantifiers need a request of their own for the term to stay true when the other requests are taken away.

Leaves out proving: see `any_number`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import define, field

from longpoll_spec.engines.analysis.symmetry import Renaming, Shapes, slot_of
from longpoll_spec.terms import Bool, Int, Term, nodes, rebuild

Polarity: TypeAlias = int
"""1 where the term helps by being true, -1 by being false, 0 where either may matter."""
Witness: TypeAlias = tuple[str, int]
"""A quantifier: its junction, and the shape of what it says of one request."""
_JUNCTIONS: Final = frozenset({"and", "or"})


class NotUniformError(Exception):
    """A term speaks of the rest otherwise than by a quantifier; no proof for any number can rest on it."""


@define(eq=False)
class Rest:
    """Reads terms in which the requests of `rest` are not named.

    Invariant: `free_in` has, for each term read, the requests of the rest that it names itself, outside quantifiers,
    and `quantified` the quantifiers of each junction read. The term is kept beside its answer, so its id stays its own.
    """

    rest: frozenset[int]
    shapes: Shapes = field(factory=Shapes)
    free_in: dict[int, tuple[Term, frozenset[int]]] = field(factory=dict)
    quantified: dict[int, Mapping[int, Sequence[Term]]] = field(factory=dict)
    dropped: frozenset[int] = frozenset()
    left: dict[int, Term] = field(factory=dict)
    """What is left of each node without those that were dropped last: the next term shares most of its nodes."""

    def free(self, term: Term) -> frozenset[int]:
        """The requests of the rest that a term names outside quantifiers."""
        if id(term) not in self.free_in:
            for node in nodes(term, done=self.free_in):
                self.free_in[id(node)] = (node, self._free(node))
        return self.free_in[id(term)][1]

    def closed(self, term: Term) -> None:
        """Nothing if the term speaks of the rest by quantifiers only; raises `NotUniformError`."""
        odd = self.free(term)
        if odd:
            raise NotUniformError(f"request {min(odd)} is not treated as the others are")

    def restricted(self, term: Term, dropped: frozenset[int]) -> Term:
        """The term where the requests of `dropped`, which are of the rest, do not exist; raises `NotUniformError`."""
        self.closed(term)
        if self.dropped != dropped:
            self.dropped, self.left = dropped, {}
        made = self.left
        for node in nodes(term, done=made):
            if not self.free(node) & dropped:
                args = [
                    made[id(arg)] if isinstance(arg, (Int, Bool)) else arg
                    for arg in node.args
                    if not (isinstance(arg, (Int, Bool)) and self.free(arg) & dropped)
                ]
                parts = any(isinstance(arg, (Int, Bool)) for arg in node.args)
                made[id(node)] = rebuild(node.op, args) if parts else node
        return made[id(term)]

    def witnesses(self, term: Term, polarity: Polarity) -> set[Witness]:
        """The quantifiers of a term that need a request of their own; raises `NotUniformError`."""
        self.closed(term)
        found: set[Witness] = set()
        pending, seen = [(term, polarity)], set()
        while pending:
            node, sign = pending.pop()
            if (id(node), sign) in seen:
                continue
            seen.add((id(node), sign))
            # "For every" is kept when requests are taken away, "for some" when its witness stays.
            if node.op in _JUNCTIONS and sign != (1 if node.op == "and" else -1):
                found |= {(node.op, shape) for shape in self._quantifiers(node)}
            pending += _inside(node, sign)
        return found

    def _free(self, node: Term) -> frozenset[int]:
        if node.op == "var":
            slot = slot_of(node.args[0])
            return frozenset({slot}) & self.rest if slot is not None else frozenset()
        parts = [arg for arg in node.args if isinstance(arg, (Int, Bool))]
        if node.op in _JUNCTIONS:
            bound = {id(part) for same in self._quantifiers(node).values() for part in same}
            parts = [part for part in parts if id(part) not in bound]
        return self._named_by(parts)

    def _quantifiers(self, junction: Term) -> Mapping[int, Sequence[Term]]:
        """Shape -> the parts of a junction that say it, one for every request of the rest."""
        if id(junction) not in self.quantified:
            by_shape: dict[int, list[Term]] = {}
            for part in junction.args:
                named = self.free_in[id(part)][1]
                if len(named) == 1:
                    (slot,), first = named, min(self.rest)
                    by_shape.setdefault(self.shapes.number(part, Renaming({slot: first, first: slot})), []).append(part)
            self.quantified[id(junction)] = {
                shape: same for shape, same in by_shape.items() if self._named_by(same) == self.rest
            }
        return self.quantified[id(junction)]

    def _named_by(self, parts: Iterable[Term]) -> frozenset[int]:
        nobody: frozenset[int] = frozenset()
        return nobody.union(*(self.free_in[id(part)][1] for part in parts))


@define
class Rests:
    """One reader for each choice of named requests among `requests`, kept because a term is read often."""

    requests: int
    made: dict[frozenset[int], Rest] = field(factory=dict)

    def but(self, *named: int) -> Rest:
        """The reader of terms that name these requests."""
        rest = frozenset(range(self.requests)) - set(named)
        return self.made.setdefault(rest, Rest(rest))


def _inside(node: Term, sign: Polarity) -> Sequence[tuple[Term, Polarity]]:
    """The terms inside a term, each with how its truth bears on the whole."""
    parts = [arg for arg in node.args if isinstance(arg, (Int, Bool))]
    match node.op:
        case "and" | "or":
            return [(part, sign) for part in parts]
        case "not":
            return [(part, -sign) for part in parts]
        case "ite" if isinstance(node, Bool):
            return [(parts[0], 0), (parts[1], sign), (parts[2], sign)]
        case _:
            return [(part, 0) for part in parts]
