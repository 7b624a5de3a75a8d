"""Decide comparisons before an engine runs: sums that cancel, and ranges that leave only one answer.

A sum is a constant plus multiples of atoms. A choice between two sums that differ by a constant is an atom of its
condition: `ite(c, x + 1, x)` is x plus one times c. So the additions and subtractions of a step cancel, which decides
most claims about single steps. Tests show that the result is equal in meaning. Which states are reachable is not
considered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from attrs import define, field, frozen

from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, const, ite, nodes, rebuild

Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""Variable -> least and greatest value."""
_COMPARISONS: Final = frozenset({"lt", "le", "eq"})


def _verdict(op: str, low: int, high: int) -> Bool | None:
    """Decide `left op right` if `low <= left - right <= high`; None if undecided."""
    always = high < 0 if op == "lt" else high <= 0 if op == "le" else low == high == 0
    never = low >= 0 if op == "lt" else low > 0 if op == "le" else low > 0 or high < 0
    return TRUE if always else FALSE if never else None


@frozen
class _Sum:
    """A constant, and multiples of atoms by their identity."""

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
    """Simplifies terms over variables with these ranges. Invariant: the memos' keys are alive in `kept`."""

    ranges: Ranges
    terms: dict[int, Term] = field(factory=dict)
    kept: list[Term] = field(factory=list)

    def simplify(self, term: Bool) -> Bool:
        """An equal term in which every decidable comparison is decided."""
        for node in nodes(term):
            if id(node) not in self.terms:
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
