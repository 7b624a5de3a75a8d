"""Reads terms about all requests as quantifiers over "the rest", which are the requests that a term does not name.

A term names some requests: the acting request, or the request that a statement is about. If every other request has the
same part in a conjunction or a disjunction, up to renaming, the term means "for every request" or "for some request" of
the rest. A term that refers to the rest in any other way is rejected, for example because it compares two requests or
treats one of them differently.

Two functions use this reading. `restricted` returns the term's meaning for fewer requests. `witnesses` returns the
quantifiers that need a request of the rest as a witness, so that they stay true when the other requests are removed.
The proof in `any_number` needs `restricted` and `witnesses`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import define, field

from longpoll_spec.engines.symmetry import Renaming, Shapes, slot_of
from longpoll_spec.terms import Bool, Int, Term, nodes, rebuild

Polarity: TypeAlias = int
"""1 if a question needs the term to be true, -1 if it needs the term to be false, 0 if it may need either."""
Witness: TypeAlias = tuple[str, int]
"""A quantifier: its operator (`and` or `or`), and the shape of its part for one request."""
_JUNCTIONS: Final = frozenset({"and", "or"})


class NotUniformError(Exception):
    """A term refers to unnamed requests in another way than by quantifiers, so no proof for any number can use it."""


@define(eq=False)
class Rest:
    """Reads terms in which the requests of `rest` are not named.

    Invariant: for each term that was read, `free_in` has the requests of the rest that it names outside quantifiers,
    and `quantified` has the quantifiers of each conjunction and disjunction. The reader stores each term with its
    result, so that the term's id stays unique.
    """

    rest: frozenset[int]
    shapes: Shapes = field(factory=Shapes)
    free_in: dict[int, tuple[Term, frozenset[int]]] = field(factory=dict)
    quantified: dict[int, Mapping[int, Sequence[Term]]] = field(factory=dict)
    needed: dict[tuple[int, Polarity], set[Witness]] = field(factory=dict)
    dropped: frozenset[int] = frozenset()
    left: dict[int, Term] = field(factory=dict)
    """Caches, for the id of a node, the node without the requests in `dropped`."""

    def free(self, term: Term) -> frozenset[int]:
        """The requests of the rest that a term names outside quantifiers."""
        if id(term) not in self.free_in:
            for node in nodes(term, done=self.free_in):
                self.free_in[id(node)] = (node, self._free(node))
        return self.free_in[id(term)][1]

    def closed(self, term: Term) -> None:
        """Check that the term refers to the rest only by quantifiers; raises `NotUniformError` if not."""
        odd = self.free(term)
        if odd:
            raise NotUniformError(f"request {min(odd)} is not treated like the others")

    def restricted(self, term: Term, dropped: frozenset[int]) -> Term:
        """The term without the requests in `dropped`, which are part of the rest; raises `NotUniformError`."""
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
        """The quantifiers of a term that need a witness to keep its value; raises `NotUniformError`."""
        self.closed(term)
        if (id(term), polarity) not in self.needed:
            self.needed[id(term), polarity] = self._witnesses(term, polarity)
        return self.needed[id(term), polarity]

    def _witnesses(self, term: Term, polarity: Polarity) -> set[Witness]:
        found: set[Witness] = set()
        pending, seen = [(term, polarity)], set()
        while pending:
            node, sign = pending.pop()
            if (id(node), sign) in seen:
                continue
            seen.add((id(node), sign))
            # "For every one" stays true when requests are removed; "for some one" stays true only if its witness stays.
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
    """The readers of terms for `requests` requests, with one reader for each choice of named requests."""

    requests: int
    made: dict[frozenset[int], Rest] = field(factory=dict)

    def but(self, *named: int) -> Rest:
        """The reader of terms that name these requests, so that the rest is all others."""
        rest = frozenset(range(self.requests)) - set(named)
        return self.made.setdefault(rest, Rest(rest))


def _inside(node: Term, sign: Polarity) -> Sequence[tuple[Term, Polarity]]:
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
