"""The language of the specification: integer and truth-valued terms, built once and interpreted in several ways.

A term is data. `engines` and `render` make Python source, packed columns, z3 formulas and text from it. Converting a
term to `bool` raises an error, because an `if`, `and`, `or`, `not` or `==` that is written by habit would silently
choose one branch. Equal terms are one object (hash-consing), so an interpreter may key its cache on `id`.

| class | operators                                                                                   |
|-------|---------------------------------------------------------------------------------------------|
| Int   | var(name) const(value) parameter(name, value) add sub ite(Bool, Int, Int)                   |
| Bool  | var(name) true false lt le eq (of Int) and or (two or more) not ite(Bool, Bool, Bool)       |
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, overload

from attrs import frozen

NOTHING: Final = frozenset[str]()


class _Node:
    """Makes `if`, `and`, `or`, `not`, `==` and chained comparison raise while the specification is built."""

    __slots__ = ()
    op: str
    args: tuple[Any, ...]
    reads: frozenset[str]

    def __bool__(self) -> NoReturn:
        raise TypeError("a term has no truth value; write &, |, ~ or ite()")

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("terms are not compared with ==; write is_()")

    def __ne__(self, other: object) -> NoReturn:
        raise TypeError("terms are not compared with !=; write ~a.is_(b)")

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the term so that another process interns it again: there, too, equal terms are one object."""
        leaf = self.op in _LEAVES or self.op in _OPPOSITE
        return (_leaf, (type(self), self.op, *self.args)) if leaf else (rebuild, (self.op, self.args))


@frozen(eq=False)
class Int(_Node):
    """An integer-valued term."""

    op: str
    args: tuple[Any, ...] = ()
    reads: frozenset[str] = NOTHING
    """The names of the variables that the term reads."""

    def __add__(self, other: Int | int) -> Int:
        return _arithmetic("add", self, lift(other))

    def __sub__(self, other: Int | int) -> Int:
        return _arithmetic("sub", self, lift(other))

    def __lt__(self, other: Int | int) -> Bool:
        return _comparison("lt", self, lift(other))

    def __le__(self, other: Int | int) -> Bool:
        return _comparison("le", self, lift(other))

    def __gt__(self, other: Int | int) -> Bool:
        return _comparison("lt", lift(other), self)

    def __ge__(self, other: Int | int) -> Bool:
        return _comparison("le", lift(other), self)

    def is_(self, other: Int | int) -> Bool:
        """The term that is true if both integers are equal."""
        return _comparison("eq", self, lift(other))

    def is_one_of(self, values: Iterable[int]) -> Bool:
        """The term that is true if this integer equals one of the values."""
        return any_of(self.is_(value) for value in values)


@frozen(eq=False)
class Bool(_Node):
    """A truth-valued term."""

    op: str
    args: tuple[Any, ...] = ()
    reads: frozenset[str] = NOTHING
    """The names of the variables that the term reads."""

    def __and__(self, other: Bool) -> Bool:
        return all_of((self, other))

    def __or__(self, other: Bool) -> Bool:
        return any_of((self, other))

    def __invert__(self) -> Bool:
        if self.op == "not":
            inner: Bool = self.args[0]
            return inner
        if self.op in _OPPOSITE:
            return _leaf(Bool, _OPPOSITE[self.op])
        return _node(Bool, "not", self)

    def implies(self, other: Bool) -> Bool:
        """The condition that is false only if this condition is true and `other` is false."""
        return ~self | other

    def is_(self, other: Bool) -> Bool:
        """The condition that both conditions have the same truth value."""
        return ite(self, other, ~other)


Term: TypeAlias = Int | Bool
_T = TypeVar("_T", Int, Bool)
Effect: TypeAlias = Mapping[str, Term]
"""Maps a variable's name to its value after the step, as a term over the values before it. A variable without an entry
keeps its value."""

_LEAVES: Final = frozenset({"var", "const", "parameter"})
"""The operators whose arguments are values instead of terms."""
_OPPOSITE: Final = {"true": "false", "false": "true"}
_interned: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()


def _leaf(kind: type[_T], op: str, *values: Any) -> _T:
    """The one object that represents this variable or constant; every later call with equal values returns it again."""
    key = (kind, op, *values)
    found: _T | None = _interned.get(key)
    if found is None:
        found = _interned[key] = kind(op, values, frozenset(values) if op == "var" else NOTHING)
    return found


def _node(kind: type[_T], op: str, *args: Term) -> _T:
    """The one object that represents this operator over these arguments, which it references to keep ids unique."""
    key = (kind, op, *map(id, args))
    found: _T | None = _interned.get(key)
    if found is None:
        found = _interned[key] = kind(op, args, _reads(args))
    return found


def _reads(args: Collection[Term]) -> frozenset[str]:
    """The variables that a node reads. To save memory, the set of an argument is used if it is equal."""
    largest = NOTHING
    for arg in args:
        if len(arg.reads) > len(largest):
            largest = arg.reads
    for arg in args:
        if not arg.reads <= largest:
            return NOTHING.union(*[arg.reads for arg in args])
    return largest


TRUE: Final = _leaf(Bool, "true")
FALSE: Final = _leaf(Bool, "false")


def truth(value: bool) -> Bool:
    """A constant that is known at build time, such as a knob."""
    return TRUE if value else FALSE


def const(value: int) -> Int:
    """An integer constant."""
    return _leaf(Int, "const", value)


def parameter(name: str, value: int) -> Int:
    """A named constant.

    An exploration uses the value of a parameter, and a proof that leaves the parameter open covers every value.
    """
    return _leaf(Int, "parameter", name, value)


def int_variable(name: str) -> Int:
    """A variable of the state, by its name."""
    return _leaf(Int, "var", name)


def bool_variable(name: str) -> Bool:
    """A truth-valued variable of the state, by its name."""
    return _leaf(Bool, "var", name)


def lift(value: Int | int) -> Int:
    """The term of a Python integer; a term is returned unchanged."""
    return value if isinstance(value, Int) else const(value)


def _arithmetic(op: str, left: Int, right: Int) -> Int:
    if left.op == right.op == "const":
        return const(left.args[0] + right.args[0] if op == "add" else left.args[0] - right.args[0])
    if right.op == "const" and right.args[0] == 0:
        return left
    if op == "add" and left.op == "const" and left.args[0] == 0:
        return right
    if right.op == "const" and _chooses_constants(left):
        condition, then, otherwise = left.args
        return ite(condition, _arithmetic(op, then, right), _arithmetic(op, otherwise, right))
    if _chooses_constants(left) and _chooses_constants(right) and left.args[0] is right.args[0]:
        pairs = zip(left.args[1:], right.args[1:], strict=True)
        return ite(left.args[0], *(_arithmetic(op, *pair) for pair in pairs))
    return _node(Int, op, left, right)


def _comparison(op: str, left: Int, right: Int) -> Bool:
    if left.op == right.op == "const":
        a, b = left.args[0], right.args[0]
        return truth(a < b if op == "lt" else a <= b if op == "le" else a == b)
    if left is right:
        return truth(op != "lt")
    if right.op == "const" and left.op == "ite" and any(branch.op == "const" for branch in left.args[1:]):
        condition, then, otherwise = left.args
        if op == "eq" and condition.op == "eq" and then.op == "const" and condition.args[0] is otherwise:
            return _is_after_change(condition, then, right)
        return ite(condition, _comparison(op, then, right), _comparison(op, otherwise, right))
    return _node(Bool, op, left, right)


def _is_after_change(condition: Bool, then: Int, right: Int) -> Bool:
    """Simplify `ite(x is k, then, x) is right`: x is right and not k, or x is k and `then` is right."""
    term, changed = condition.args
    moved = condition if then is right else FALSE
    return moved if changed is right else _comparison("eq", term, right) | moved


def _chooses_constants(term: Int) -> bool:
    return term.op == "ite" and all(branch.op == "const" for branch in term.args[1:])


def all_of(terms: Iterable[Bool]) -> Bool:
    """The conjunction of the terms; TRUE if there are none."""
    return _junction("and", FALSE, TRUE, terms)


def any_of(terms: Iterable[Bool]) -> Bool:
    """The disjunction of the terms; FALSE if there are none."""
    return _junction("or", TRUE, FALSE, terms)


def _junction(op: str, deciding: Bool, neutral: Bool, terms: Iterable[Bool]) -> Bool:
    kept: dict[int, Bool] = {}  # Terms by id, in the order in which they occur first.
    for term in terms:
        if term.op == op:  # a junction never has a constant as a part
            for part in term.args:
                kept[id(part)] = part
        elif term is deciding:
            return deciding
        elif term is not neutral:
            kept[id(term)] = term
    if len(kept) < 2:
        return next(iter(kept.values()), neutral)
    # Junctions with the same parts are one object, whose parts have the order of the junction that was built first.
    key = (Bool, op, frozenset(kept))
    found: Bool | None = _interned.get(key)
    if found is None:
        found = _interned[key] = Bool(op, tuple(kept.values()), _reads(kept.values()))
    return found


@overload
def ite(condition: Bool, then: Bool, otherwise: Bool) -> Bool: ...
@overload
def ite(condition: Bool, then: Int | int, otherwise: Int | int) -> Int: ...
def ite(condition: Bool, then: Int | int | Bool, otherwise: Int | int | Bool) -> Int | Bool:
    """If-then-else as a term; both branches have the same type."""
    if isinstance(then, Bool) and isinstance(otherwise, Bool):
        return _ite_bool(condition, then, otherwise)
    if isinstance(then, Bool) or isinstance(otherwise, Bool):
        raise TypeError("ite() takes two integers or two truth values, not one of each")
    first, second = lift(then), lift(otherwise)
    if condition is TRUE or first is second:
        return first
    if condition is FALSE:
        return second
    return _node(Int, "ite", condition, first, second)


def _ite_bool(condition: Bool, then: Bool, otherwise: Bool) -> Bool:
    if condition is TRUE or then is otherwise:
        return then
    if condition is FALSE:
        return otherwise
    if any(branch is constant for branch in (then, otherwise) for constant in (TRUE, FALSE)):
        return (condition & then) | (~condition & otherwise)
    return _node(Bool, "ite", condition, then, otherwise)


def substitute(term: Term, effect: Effect) -> Term:
    """The term after a step, over the state before: each variable that `effect` assigns is replaced by its new value.

    For a truth-valued `term` and an action's effect this is Dijkstra's weakest precondition without the guard.
    """
    return _substitute(term, effect, {})


def changes(effect: Effect) -> dict[str, Term]:
    """The assignments of an effect, except those that assign a variable its own old value."""
    return {name: term for name, term in effect.items() if term.op != "var" or term.args[0] != name}


def after(term: Bool, effect: Effect) -> Bool:
    """`substitute` for a truth-valued term."""
    result = substitute(term, effect)
    assert isinstance(result, Bool)
    return result


def _substitute(term: Term, effect: Effect, memo: dict[int, Term]) -> Term:
    if term.reads.isdisjoint(effect):
        return term
    if id(term) not in memo:
        memo[id(term)] = _substituted(term, effect, memo)
    return memo[id(term)]


def _substituted(term: Term, effect: Effect, memo: dict[int, Term]) -> Term:
    if term.op == "var":
        name: str = term.args[0]
        return effect.get(name, term)
    args = [_substitute(arg, effect, memo) for arg in term.args]
    if all(map(operator.is_, args, term.args)):
        return term
    return rebuild(term.op, args)


def rebuild(op: str, args: Sequence[Any]) -> Term:
    """The node with operator `op` over these arguments, simplified as the Python operators of terms do."""
    match op:
        case "and":
            return all_of(args)
        case "or":
            return any_of(args)
        case "not":
            negated: Bool = ~args[0]
            return negated
        case "ite":
            chosen: Term = ite(args[0], args[1], args[2])
            return chosen
        case "add" | "sub":
            return _arithmetic(op, args[0], args[1])
        case _:
            assert op in {"lt", "le", "eq"}, op
            return _comparison(op, args[0], args[1])


def nodes(*terms: Term, done: Container[int] = frozenset()) -> Iterator[Term]:
    """Every distinct node of the terms, with arguments before the nodes that use them.

    A node is skipped if its `id` is in `done` when the node is reached, and so are the nodes that only it uses.
    """
    seen: set[int] = set()
    pending: list[Any] = list(reversed(terms))
    while pending:
        term = pending.pop()
        if term is None:  # This None marks that all arguments of the node below it on the stack were yielded.
            yield pending.pop()
        elif id(term) not in seen and id(term) not in done:
            seen.add(id(term))
            if term.args and term.op not in _LEAVES:
                pending += (term, None, *reversed(term.args))
            else:
                yield term


def variables_of(*terms: Term) -> frozenset[str]:
    """The names of the variables that the terms read."""
    return NOTHING.union(*(term.reads for term in terms))
