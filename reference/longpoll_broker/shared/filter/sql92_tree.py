"""The syntax tree of an SQL92 filter, with RocketMQ's checks during construction.

Each `make_...` corresponds to a `create...` of RocketMQ's expression classes: same refusals, same result. A chain of
AND or OR is one node with many operands. All other nesting is limited by `DEPTH_MAX`, so functions on the tree may
recurse.

Grammar: see `sql92_grammar`. Evaluation: see `sql92`.

Sources: `ComparisonExpression`, `LogicExpression`, `UnaryExpression`, `ConstantExpression` 4.9 and 5.5.
"""

from __future__ import annotations

import sys
from typing import Final, TypeAlias

from attrs import frozen

from longpoll_broker.shared.filter.sql92_values import LONG_MAX, Value, compare

DEPTH_MAX: Final = 128
"""Maximum nesting; Java catches a StackOverflowError at some thousands."""
DOUBLE_MIN: Final = 5e-324
"""`Double.MIN_VALUE`: smaller constants, including 0.0, are refused."""


class Sql92Error(ValueError):
    """An expression that RocketMQ cannot parse; the text says why."""


class Sql92LimitError(Sql92Error):
    """An expression above a limit of ours; RocketMQ may accept it."""


@frozen
class Literal:
    """A constant, including NULL, TRUE and FALSE."""

    value: Value
    depth: int = 0


@frozen
class Property:
    """A message's property by its name, case-sensitive."""

    name: str
    depth: int = 0


@frozen
class Negate:
    """Minus: negates a number; anything else becomes null."""

    operand: Node
    depth: int


@frozen
class Truth:
    """A property where a boolean is needed: null if missing, else FALSE, because no property is a boolean."""

    operand: Property
    depth: int = 1


@frozen
class Not:
    """NOT; null stays null."""

    operand: Node
    depth: int


@frozen
class Logic:
    """A chain of AND, or of OR."""

    operator: str
    operands: tuple[Node, ...]
    depth: int


@frozen
class Equal:
    """`=`; with NULL on the right, IS NULL."""

    left: Node
    right: Node
    depth: int


@frozen
class Relation:
    """`>`, `>=`, `<` or `<=`."""

    operator: str
    left: Node
    right: Node
    depth: int


@frozen
class In:
    """Whether a property is one of these texts."""

    operand: Property
    texts: frozenset[str]
    negated: bool
    depth: int = 1


@frozen
class Part:
    """Whether a text contains, starts or ends with another; FALSE for anything but a text, even negated."""

    operator: str
    """CONTAINS, STARTSWITH or ENDSWITH."""
    operand: Node
    text: str
    negated: bool
    depth: int


Node: TypeAlias = Literal | Property | Negate | Truth | Not | Logic | Equal | Relation | In | Part
NULL: Final = Literal(None)


def depth_over(*nodes: Node) -> int:
    """Returns the depth of a node above these. Raises Sql92Error."""
    depth = 1 + max(node.depth for node in nodes)
    if depth > DEPTH_MAX:
        raise Sql92LimitError(f"the expression is nested over {DEPTH_MAX} deep; simplify it")
    return depth


def is_boolean(node: Node) -> bool:
    """Whether RocketMQ's class of the node is a BooleanExpression."""
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, (Property, Negate))


def as_boolean(node: Node) -> Node:
    """`asBooleanExpression`. Raises Sql92Error."""
    if isinstance(node, Property):
        return Truth(node)
    if not is_boolean(node):
        raise Sql92Error("a condition is needed here, not a number or a text")
    return node


def make_decimal(text: str) -> Literal:
    """`createFromDecimal`. Raises Sql92Error."""
    digits = text.rstrip("lL")
    if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
        raise Sql92Error(f"a whole number is over {LONG_MAX}")
    return Literal(int(digits))


def make_float(text: str) -> Literal:
    """`createFloat`. Raises Sql92Error."""
    value = float(text)
    if not DOUBLE_MIN <= value <= sys.float_info.max:
        raise Sql92Error("a constant with a point or an exponent is 0, or too large; write 0 without a point")
    return Literal(value)


def make_not(operand: Node) -> Not:
    """`createNOT`. Raises Sql92Error."""
    condition = as_boolean(operand)
    return Not(condition, depth_over(condition))


def make_negate(operand: Node) -> Negate:
    """`createNegate`. Raises Sql92Error."""
    return Negate(operand, depth_over(operand))


def make_logic(operator: str, operands: list[Node]) -> Logic:
    """`createAND` or `createOR`, a whole chain at once. Raises Sql92Error."""
    conditions = tuple(as_boolean(operand) for operand in operands)
    return Logic(operator, conditions, depth_over(*conditions))


def make_equal(left: Node, right: Node) -> Equal:
    """`createEqual`. Raises Sql92Error."""
    if NULL in {left, right}:
        raise Sql92Error("NULL cannot be compared; write IS NULL")
    if isinstance(left, Literal) and isinstance(right, Literal) and is_boolean(left) and not is_boolean(right):
        raise Sql92Error("TRUE or FALSE is compared with a number or a text")
    return Equal(left, right, depth_over(left, right))


def make_is_null(left: Node) -> Equal:
    """`createIsNull`. Raises Sql92Error."""
    return Equal(left, NULL, depth_over(left))


def make_relation(operator: str, left: Node, right: Node) -> Relation:
    """`createGreaterThan` and its like. Raises Sql92Error."""
    for side in (left, right):
        if is_boolean(side) or (isinstance(side, Literal) and isinstance(side.value, str)):
            raise Sql92Error(f"{operator} compares numbers only, and properties that are numbers")
    return Relation(operator, left, right, depth_over(left, right))


def make_between(operand: Node, low: Node, high: Node) -> Logic:
    """`createBetween`: two constants must be in order. Raises Sql92Error."""
    at_least, at_most = make_relation(">=", operand, low), make_relation("<=", operand, high)
    if isinstance(low, Literal) and isinstance(high, Literal) and compare(high.value, low.value) < 0:
        raise Sql92Error(f"BETWEEN {low.value} AND {high.value} has its bounds in the wrong order")
    return make_logic("AND", [at_least, at_most])


def make_not_between(operand: Node, low: Node, high: Node) -> Logic:
    """`createNotBetween`: accepts any order. Raises Sql92Error."""
    return make_logic("OR", [make_relation("<", operand, low), make_relation(">", operand, high)])


def make_in(operand: Node, texts: list[str], *, negated: bool) -> In:
    """`createInFilter`. Raises Sql92Error."""
    if not isinstance(operand, Property):
        raise Sql92Error("IN needs a property before it")
    return In(operand, frozenset(texts), negated)


def make_part(operator: str, operand: Node, text: str, *, negated: bool) -> Part:
    """`createContains` and its like, of 5.x. Raises Sql92Error."""
    return Part(operator, operand, text, negated, depth_over(operand))
