"""Simplifies terms before an engine runs, by the ranges of variables and by the guards that hold where terms are used.

`column_type` finds by interval arithmetic how wide a column must be. The column is always wide enough, but may be wider
than necessary.

`Simplifier` treats a sum as a constant plus multiples of atoms. A choice between two sums that differ by a constant is
an atom of its condition: `ite(c, x + 1, x)` is x plus one times c. So the additions and subtractions of a step cancel,
which decides most comparisons about single steps. `Simplifier` does not consider reachability: the result is right in
every state within the ranges.

`decided` evaluates each part of a condition for all values of the variables that the part reads, as far as the guard
allows them. A part that has the same value in all allowed cases becomes a constant, and a part that reads too many
variables stays as it is. The cases of a part are a NumPy array with one axis for each variable of the condition. An
axis has length 1 if the part does not read its variable, so that broadcasting combines the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from longpoll_spec.errors import BoundsError
from longpoll_spec.model import Model
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, const, ite, nodes, rebuild, variables_of

Interval: TypeAlias = tuple[int, int]
_COLUMN_TYPES: Final = (np.int8, np.int16, np.int32)


def column_type(model: Model, terms: Iterable[Term]) -> np.dtype[Any]:
    """The narrowest signed type that holds every value of the model's terms and of these terms.

    Raises `BoundsError` if 32 bits are not enough.
    """
    guards_and_effects = [term for action in model.actions for term in (action.guard, *action.effect.values())]
    lower, upper = extent(model, (*guards_and_effects, *terms))
    for kind in _COLUMN_TYPES:
        if np.iinfo(kind).min <= lower and upper <= np.iinfo(kind).max:
            return np.dtype(kind)
    raise BoundsError("these bounds need integers of more than 32 bits; lower --messages or --requests")


def ranges_of(model: Model) -> Mapping[str, Interval]:
    """The least and the greatest value of every variable. An unbounded variable counts as constant."""
    return {each.name: (each.lower, each.lower if each.upper is None else each.upper) for each in model.variables}


def extent(model: Model, terms: Iterable[Term]) -> Interval:
    """The least and the greatest value that any integer in the terms can have."""
    ranges = ranges_of(model)
    known: dict[int, Interval] = {}
    reach = (0, 0)
    for node in nodes(*terms):
        if isinstance(node, Bool):
            known[id(node)] = (0, 1)
            continue
        known[id(node)] = _interval(node, known, ranges)
        reach = _hull(reach, known[id(node)])
    return reach


def _interval(node: Int, known: Mapping[int, Interval], ranges: Mapping[str, Interval]) -> Interval:
    args = [known[id(arg)] for arg in node.args if isinstance(arg, (Int, Bool))]
    match node.op:
        case "var":
            return ranges[node.args[0]]
        case "const" | "parameter":
            return (node.args[-1], node.args[-1])
        case "add":
            return (args[0][0] + args[1][0], args[0][1] + args[1][1])
        case "sub":
            return (args[0][0] - args[1][1], args[0][1] - args[1][0])
        case _:
            assert node.op == "ite", node.op
            return _hull(args[1], args[2])


def _hull(first: Interval, second: Interval) -> Interval:
    return (min(first[0], second[0]), max(first[1], second[1]))


Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""Maps a variable to its least and greatest value."""
_COMPARISONS: Final = frozenset({"lt", "le", "eq"})


def _verdict(op: str, low: int, high: int) -> Bool | None:
    """Decide `left op right` if `low <= left - right <= high`; None if undecided."""
    always = high < 0 if op == "lt" else high <= 0 if op == "le" else low == high == 0
    never = low >= 0 if op == "lt" else low > 0 if op == "le" else low > 0 or high < 0
    return TRUE if always else FALSE if never else None


@frozen
class _Sum:
    """A sum: a constant plus multiples of atoms. The keys of `atoms` are the ids of the atoms."""

    constant: int
    atoms: Mapping[int, tuple[Int, int]]

    def plus(self, other: _Sum, times: int) -> _Sum:
        atoms = dict(self.atoms)
        for key, (atom, count) in other.atoms.items():
            total = atoms.get(key, (atom, 0))[1] + times * count
            atoms.pop(key, None)
            if total:
                atoms[key] = (atom, total)
        return _Sum(self.constant + times * other.constant, atoms)


@define
class Simplifier:
    """Simplifies terms over variables with these ranges.

    Invariant: `kept` has every term whose id is a key of `terms`.
    """

    ranges: Ranges
    terms: dict[int, Term] = field(factory=dict)
    kept: list[Term] = field(factory=list)

    def simplify(self, term: Bool) -> Bool:
        """An equivalent term, in which each comparison that the ranges decide is replaced by its result."""
        for node in nodes(term, done=self.terms):
            self.kept.append(node)
            self.terms[id(node)] = self._simplified(node)
        result = self.terms[id(term)]
        assert isinstance(result, Bool)
        return result

    def _simplified(self, node: Term) -> Term:
        args = [self.terms[id(arg)] for arg in node.args if isinstance(arg, (Int, Bool))]
        if not args:
            return node
        if node.op in _COMPARISONS:
            left, right = args
            assert isinstance(left, Int)
            assert isinstance(right, Int)
            decided = self._decided(node.op, left, right)
            if decided is not None:
                return decided
        return rebuild(node.op, args)

    def _decided(self, op: str, left: Int, right: Int) -> Bool | None:
        difference = _sum_of(left).plus(_sum_of(right), -1)
        known = _verdict(op, *self._extent(difference))
        if known is not None or len(difference.atoms) != 1:
            return known
        ((atom, count),) = difference.atoms.values()
        if not _is_flag(atom):
            return None
        on, off = (const(difference.constant + count), const(difference.constant))
        return ite(atom.args[0], _against_zero(op, on), _against_zero(op, off))

    def _extent(self, total: _Sum) -> tuple[int, int]:
        low = high = total.constant
        for atom, count in total.atoms.values():
            ends = [count * end for end in self._range(atom)]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _range(self, atom: Int) -> tuple[int, int]:
        if atom.op == "var":
            return self.ranges[atom.args[0]]
        assert atom.op == "ite", atom.op
        ends = [self._extent(_sum_of(branch)) for branch in atom.args[1:]]
        return min(low for low, _ in ends), max(high for _, high in ends)


def _against_zero(op: str, value: Int) -> Bool:
    compared = rebuild(op, [value, const(0)])
    assert isinstance(compared, Bool)
    return compared


def _is_flag(atom: Int) -> bool:
    return atom.op == "ite" and atom.args[1] is const(1) and atom.args[2] is const(0)


def _sum_of(term: Int) -> _Sum:
    match term.op:
        case "const" | "parameter":
            return _Sum(term.args[-1], {})
        case "add" | "sub":
            return _sum_of(term.args[0]).plus(_sum_of(term.args[1]), 1 if term.op == "add" else -1)
        case "ite":
            return _sum_of_choice(term)
        case _:
            return _Sum(0, {id(term): (term, 1)})


def _sum_of_choice(term: Int) -> _Sum:
    condition, then, otherwise = term.args
    first, second = _sum_of(then), _sum_of(otherwise)
    difference = first.plus(second, -1)
    if difference.atoms:
        return _Sum(0, {id(term): (term, 1)})
    if condition.op == "not":
        condition, second, difference = condition.args[0], first, second.plus(first, -1)
    flag = ite(condition, 1, 0)
    return second.plus(_Sum(0, {id(flag): (flag, 1)}), difference.constant)


"""Variable -> least and greatest value."""
Cases: TypeAlias = npt.NDArray[Any]
CASES_MAX: Final = 1 << 13
AXES_MAX: Final = 32
"""The greatest number of dimensions that an array of NumPy 1 can have."""


def decided(term: Bool, guard: Bool, ranges: Ranges) -> Bool:
    """The term, with the parts that are constant wherever the guard holds replaced by their values."""
    names = sorted(variables_of(term))
    if len(names) > AXES_MAX:
        return term
    parts = guard.args if guard.op == "and" else (guard,)
    allowed = tuple(part for part in parts if variables_of(part) <= set(names))
    return _decided_within(term, allowed, tuple((name, *ranges[name]) for name in names))


@lru_cache(maxsize=1 << 12)
def _decided_within(term: Bool, allowed: tuple[Bool, ...], ranges: tuple[tuple[str, int, int], ...]) -> Bool:
    """Simplify a term under these conditions. The cache helps because models of similar policies share most terms."""
    within = {name: (low, high) for name, low, high in ranges}
    return _Trial(list(within), within, list(allowed)).decide(term)


@define
class _Trial:
    """Computes the values of each node of a condition in all cases, to decide the condition.

    Invariant: `cases` has None for a node that reads too many variables.
    """

    names: list[str]
    ranges: Ranges
    allowed: list[Bool]
    cases: dict[int, Cases | None] = field(factory=dict)

    def decide(self, term: Bool) -> Bool:
        guards = [(part, self._try(part)) for part in self.allowed]
        made: dict[int, Term] = {}
        self._try(term)
        for node in nodes(term):
            made[id(node)] = self._decided(node, made, guards)
        result = made[id(term)]
        assert isinstance(result, Bool)
        return result

    def _decided(self, node: Term, made: Mapping[int, Term], guards: list[tuple[Bool, Cases | None]]) -> Term:
        cases = self.cases[id(node)]
        if isinstance(node, Bool) and cases is not None and node.args:
            possible = self._possible(cases, guards)
            if not (cases & possible).any():
                return FALSE
            if not (~cases & possible).any():
                return TRUE
        args = [made[id(arg)] if isinstance(arg, (Int, Bool)) else arg for arg in node.args]
        return node if node.op in {"var", "const", "parameter", "true", "false"} else rebuild(node.op, args)

    def _possible(self, cases: Cases, guards: list[tuple[Bool, Cases | None]]) -> Cases:
        possible: Cases = np.ones((1,) * cases.ndim, dtype=bool)
        for _, allowed in guards:
            if allowed is not None and np.broadcast_shapes(allowed.shape, cases.shape) == cases.shape:
                possible = possible & allowed
        return possible

    def _try(self, term: Term) -> Cases | None:
        for node in nodes(term, done=self.cases):
            self.cases[id(node)] = self._tried(node)
        return self.cases[id(term)]

    def _tried(self, node: Term) -> Cases | None:
        args = [self.cases[id(arg)] for arg in node.args if isinstance(arg, (Int, Bool))]
        known = [arg for arg in args if arg is not None]
        if len(known) < len(args):
            return None
        shape = np.broadcast_shapes(*(arg.shape for arg in known)) if known else ()
        return None if np.prod(shape, dtype=np.int64) > CASES_MAX else self._combined(node, known)

    def _combined(self, node: Term, args: list[Cases]) -> Cases:
        match node.op:
            case "var":
                return self._axis(node)
            case "const" | "parameter":
                return np.array(node.args[-1]).reshape((1,) * len(self.names))
            case "true" | "false":
                return np.array(node.op == "true").reshape((1,) * len(self.names))
            case "not":
                return ~args[0]
            case "ite":
                return np.where(args[0], args[1], args[2])
            case _:
                result = args[0]
                for arg in args[1:]:
                    result = _MEANINGS[node.op](result, arg)
                return result

    def _axis(self, variable: Term) -> Cases:
        name: str = variable.args[0]
        low, high = self.ranges[name]
        shape = [1] * len(self.names)
        shape[self.names.index(name)] = high - low + 1
        values = np.arange(low, high + 1).reshape(shape)
        return values.astype(bool) if isinstance(variable, Bool) else values


_MEANINGS: Final[Mapping[str, Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "add": np.add,
    "sub": np.subtract,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
}
