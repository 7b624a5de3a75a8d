"""Decide parts of a condition by trying every value of the few variables that they read.

Only cases that the guard allows count. A part with the same value in all its cases becomes a constant, so most claims
about single steps are decided before an engine runs. Sound for every state in range, reachable or not. Parts that read
many variables are left as they are.

Each variable is an array axis. A part's cases are an array with length 1 in each axis that it does not read, so numpy's
broadcasting joins parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import define, field

from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, nodes, rebuild, variables_of

Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""Variable -> least and greatest value."""
Cases: TypeAlias = npt.NDArray[Any]
CASES_MAX: Final = 1 << 13
AXES_MAX: Final = 32
"""The axes that `numpy.broadcast_shapes` can join."""


def decided(term: Bool, guard: Bool, ranges: Ranges) -> Bool:
    """A term that equals this one wherever the guard holds, with the parts that are constant there replaced."""
    names = sorted(variables_of(term))
    if len(names) > AXES_MAX:
        return term
    allowed = [part for part in (guard.args if guard.op == "and" else (guard,)) if variables_of(part) <= set(names)]
    return _Trial(names, ranges, allowed).decide(term)


@define
class _Trial:
    """The cases of one condition. Invariant: `cases` has None for a node that reads too many variables."""

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
        for node in nodes(term):
            if id(node) not in self.cases:
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
