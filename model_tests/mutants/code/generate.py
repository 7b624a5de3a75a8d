"""Makes mutants of a module: small changes of its syntax tree, each of one place in the body of a function.

An operator is a function that gets a node and yields replacements for it or for one of its parts. A mutant's id is
`module:function:operator:ordinal`, with the ordinal counted within one function and operator. So an id stays valid when
lines move.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

from attrs import frozen

TELLING: Final = frozenset({"__repr__", "__str__"})
LOGGING: Final = frozenset({"log", "debug", "info", "warning", "error", "exception", "critical"})
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
TEXT_MAX: Final = 160
"""Longest side of a change as it is shown."""
HIT: Final = "__mutants_hit__"
"""What an instrumented function calls with a statement's number."""

Place = tuple[ast.AST, str, int | None]
"""A node, the name of one of its fields, and the index there if it is a list."""
Offer = tuple[str, Place, ast.AST]
"""An operator's name, where, and what stands there instead."""


@frozen(eq=False)
class Mutant:
    """One change. It can be applied once to the tree that it was made from, in a separate process."""

    id: str
    change: str
    """What stood there and what stands there now."""
    line: int
    statement: int
    """The number of its statement: a test that never reaches it cannot see the change."""
    place: Place
    after: ast.AST

    def plant(self) -> None:
        put(self.place, self.after)


@frozen(eq=False)
class Module:
    """A module's tree and all its mutants."""

    name: str
    path: str
    tree: ast.Module
    mutants: tuple[Mutant, ...]


def put(place: Place, node: ast.AST) -> ast.AST:
    """Put a node into a place; the one that was there."""
    owner, name, index = place
    if index is None:
        before: ast.AST = getattr(owner, name)
        setattr(owner, name, node)
        return before
    held: list[ast.AST] = getattr(owner, name)
    before, held[index] = held[index], node
    return before


# -- operators -------------------------------------------------------------------------------------------------------

MOVED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SIGNS: Final[dict[type[ast.operator], type[ast.operator]]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}


def _constant(value: object) -> ast.Constant:
    return ast.Constant(value)  # type: ignore[arg-type] # numbers, truths and None


def compared(node: ast.AST, _place: Place) -> Iterator[Offer]:
    """`<` becomes `<=` (moved) and `>=` (turned); `==`, `is` and `in` are turned."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for name, others in (("moved", MOVED), ("turned", TURNED)):
                if type(operator) in others:
                    yield name, (node, "ops", index), others[type(operator)]()


def signed(node: ast.AST, _place: Place) -> Iterator[Offer]:
    """`+` and `-` become each other, where no text is joined."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SIGNS:
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
        if not any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple) or _is_text(side) for side in sides):
            yield "sign", (node, "op", None), SIGNS[type(node.op)]()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def numbered(node: ast.AST, place: Place) -> Iterator[Offer]:
    """0 becomes 1, 1 becomes 0, any other number one more; a truth becomes the other one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "truth", place, _constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "number", place, _constant(0 if node.value == 1 else node.value + 1)


def joined(node: ast.AST, _place: Place) -> Iterator[Offer]:
    """`and` and `or` become each other."""
    if isinstance(node, ast.BoolOp):
        yield "joined", (node, "op", None), ast.Or() if isinstance(node.op, ast.And) else ast.And()


def denied(node: ast.AST, place: Place) -> Iterator[Offer]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", place, node.operand


def decided(node: ast.AST, _place: Place) -> Iterator[Offer]:
    """A condition is always true, and always false; a loop is never made endless."""
    if isinstance(node, ast.If | ast.IfExp | ast.While) and not isinstance(node.test, ast.Constant):
        if not isinstance(node, ast.While):
            yield "true", (node, "test", None), _constant(value=True)
        yield "false", (node, "test", None), _constant(value=False)
    if isinstance(node, ast.comprehension):
        for index in range(len(node.ifs)):
            yield "true", (node, "ifs", index), _constant(value=True)


def returned(node: ast.AST, _place: Place) -> Iterator[Offer]:
    """None is returned instead of a value that is not None or False already."""
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) not in {"None", "False"}:
        yield "none", (node, "value", None), _constant(None)


def deleted(node: ast.AST, place: Place) -> Iterator[Offer]:
    """A call for what it does, a change of an object, a jump, an early return or a raise is left out."""
    is_done = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    is_set = isinstance(node, ast.Assign) and any(
        isinstance(each, ast.Attribute | ast.Subscript) for target in node.targets for each in ast.walk(target)
    )
    is_counted = isinstance(node, ast.AugAssign | ast.Delete)
    is_jump = isinstance(node, ast.Continue | ast.Break | ast.Raise)
    is_early = isinstance(node, ast.Return) and node.value is None
    if is_done or is_set or is_counted or is_jump or is_early:
        assert isinstance(node, ast.stmt)
        # Under a false condition, so that names stay local or of an outer function as they were.
        yield "deleted", place, ast.If(test=_constant(value=False), body=[node], orelse=[])


def unlocked(node: ast.AST, place: Place) -> Iterator[Offer]:
    """`with x:` is dropped, and its body kept."""
    if isinstance(node, ast.With) and all(item.optional_vars is None for item in node.items):
        yield "with", place, ast.If(test=_constant(value=True), body=node.body, orelse=[])


def swapped(node: ast.AST, _place: Place) -> Iterator[Offer]:
    """Swap two adjacent arguments whose names end with the same word."""
    if isinstance(node, ast.Call) and not _is_of(node, {"min", "max"}):
        for index, (one, other) in enumerate(zip(node.args, node.args[1:], strict=False)):
            if _word(one) and _word(one) == _word(other) and ast.dump(one) != ast.dump(other):
                arguments = [*node.args[:index], other, one, *node.args[index + 2 :]]
                # The first operand stands for the call: a place holds one node.
                yield "swapped", (node, "args", None), _Many(arguments)


class _Many(ast.Tuple):
    """Arguments in another order; planted as a list."""

    def __init__(self, elements: list[ast.expr]) -> None:
        super().__init__(elts=elements, ctx=ast.Load())


def _word(node: ast.expr) -> str:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.rpartition("_")[2] if "_" in name else name


def sliced(node: ast.AST, _place: Place) -> Iterator[Offer]:
    """A bound of a slice is dropped."""
    if isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            if getattr(node, name) is not None:
                yield "slice", (node, name, None), _constant(None)


OPERATORS: Final[tuple[Callable[[ast.AST, Place], Iterator[Offer]], ...]] = (
    compared,
    signed,
    numbered,
    joined,
    denied,
    decided,
    returned,
    deleted,
    unlocked,
    swapped,
    sliced,
)


# -- where -----------------------------------------------------------------------------------------------------------


def _is_of(node: ast.AST, names: frozenset[str] | set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name in names


def _is_log(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not _is_of(node.value, LOGGING):
        return False
    return "log" in ast.unparse(node.value).partition("(")[0].lower()


def _tells(owner: ast.AST, name: str, node: ast.AST) -> bool:
    """Whether a part of a node only tells people, or the type checker, something."""
    if name in {"annotation", "returns", "decorator_list", "args"} and isinstance(owner, (*FUNCTIONS, ast.AnnAssign)):
        return True
    if isinstance(owner, ast.Raise) or isinstance(node, ast.Assert | ast.JoinedStr) or _is_log(node):
        return True
    # `zip(strict=True)` says what already holds.
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _places(node: ast.AST) -> Iterator[Place]:
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield node, name, None
        elif isinstance(value, list):
            yield from ((node, name, index) for index, each in enumerate(value) if isinstance(each, ast.AST))


def _at(place: Place) -> ast.AST:
    owner, name, index = place
    found: Any = getattr(owner, name)
    node: ast.AST = found if index is None else found[index]
    return node


def _offers(node: ast.AST, function: str, statement: ast.stmt | None) -> Iterator[tuple[str, ast.stmt, Offer]]:
    """Every change below a node, with the function and the statement that it is in."""
    for place in _places(node):
        child = _at(place)
        if _tells(node, place[1], child):
            continue
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            if child.name not in TELLING:
                is_class = isinstance(child, ast.ClassDef)
                name = f"{function}.{child.name}".removeprefix(".")
                yield from _offers(child, name, None if is_class else statement or child)
            continue
        inside = child if isinstance(child, ast.stmt) and statement is not None else statement
        if inside is not None:
            for operator in OPERATORS:
                yield from ((function, inside, offer) for offer in operator(child, place))
        yield from _offers(child, function, inside)


def _number(tree: ast.Module) -> None:
    for number, node in enumerate(each for each in ast.walk(tree) if isinstance(each, ast.stmt)):
        node.mutants_number = number  # type: ignore[attr-defined] # an attribute of our own, which deepcopy keeps


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def _text(statement: ast.stmt) -> ast.AST:
    """A compound statement is shown by its head."""
    if hasattr(statement, "body"):
        short = deepcopy(statement)
        for name in ("body", "orelse", "finalbody", "handlers"):
            if hasattr(short, name):
                setattr(short, name, [ast.Expr(_constant(...))] if name == "body" else [])
        return short
    return statement


def _change(statement: ast.stmt, place: Place, after: ast.AST) -> str:
    """The text of a statement before and after the change; the tree stays unchanged."""
    before = _at(place) if place[1] != "args" else _constant(None)
    if isinstance(before, ast.stmt):
        return f"{_shown(_text(before))} -> dropped"
    whole = _shown(_text(statement))
    kept = put(place, after)
    try:
        return f"{whole} -> {_shown(_text(statement))}"
    finally:
        put(place, kept)


def mutants_of(name: str, path: str, text: str) -> Module:
    """Every mutant of a module's text, in the order of the text."""
    tree = ast.parse(text, path)
    _number(tree)
    counts: Counter[str] = Counter()
    found: list[Mutant] = []
    for function, statement, (operator, place, planted) in _offers(tree, "", None):
        after: Any = planted.elts if isinstance(planted, _Many) else planted
        if isinstance(planted, ast.expr | ast.stmt) and not isinstance(planted, _Many):
            ast.copy_location(planted, statement)
            ast.fix_missing_locations(planted)
        key = f"{name}:{function}:{operator}"
        counts[key] += 1
        change = _change(statement, place, after)
        number: int = statement.mutants_number  # type: ignore[attr-defined] # set by _number
        found.append(Mutant(f"{key}:{counts[key]}", change, statement.lineno, number, place, after))
    return Module(name, path, tree, tuple(found))


class _Instrument(ast.NodeTransformer):
    """Has each statement of a function say its number before it runs."""

    def __init__(self) -> None:
        self._depth = 0

    def visit(self, node: ast.AST) -> Any:
        """A node, or a call and the statement after it."""
        is_function = isinstance(node, FUNCTIONS)
        self._depth += is_function
        self.generic_visit(node)
        self._depth -= is_function
        if self._depth and isinstance(node, ast.stmt):
            call = ast.Call(ast.Name(HIT, ast.Load()), [_constant(getattr(node, "mutants_number"))], [])  # noqa: B009 - as _number
            return [ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node)), node]
        return node


def instrumented(module: Module) -> ast.Module:
    """A tree whose functions record the executed statements."""
    tree: ast.Module = _Instrument().visit(deepcopy(module.tree))
    return tree
