"""The syntax tree of an SQL92 filter with RocketMQ's checks, and its values, compared class by class as in Java.

    In RocketMQ                  Here
    Integer                      int from -(2**31 - 1) to 2**31 - 1
    Long                         any other int of 64 bits
    Double                       float
    String (every property)      str
    Boolean                      bool
    null (no such property)      None

An integer constant is an Integer if it fits, and otherwise a Long. Only constants and their negatives are numbers, so
the magnitude alone separates Integer from Long: -2**31 is a Long, because it is the negative of a Long.

A text that is compared with a number is converted to that number's class. If the conversion fails, or the number is out
of range, the whole expression fails (`EvaluationError`). A failure is not the same as unknown, so `a > 3 OR TRUE` fails
too.

Each `make_...` corresponds to a `create...` of RocketMQ's expression classes, with the same refusals and results. A
chain of AND or OR is one node with many operands. `DEPTH_MAX` limits the depth of the tree, so recursive functions on
the tree cannot overflow the stack. Grammar and evaluation: see `sql92`.

Sources: `ComparisonExpression`, `LogicExpression`, `UnaryExpression`, `ConstantExpression` 4.9 and 5.5; Java's
`Integer.parseInt`, `Double.valueOf` and `Double.compare`.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, TypeAlias, TypeVar, cast

from attrs import frozen

Value: TypeAlias = int | float | str | bool | None

INTEGER_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_LONG_DIGITS: Final = 19
"""Number of decimal digits of `LONG_MAX`. A number with more significant digits does not fit in a Long."""
_SHORT: Final = len(str(INTEGER_MAX))
"""A text of fewer characters that are all ASCII digits fits any number class without further checks."""
_ASTRAL_FIRST: Final = "\U00010000"

_WHOLE: Final = re.compile(r"([+-]?)(\d+)")
# The pattern does not backtrack, because a text may have 32,000 digits.
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+[fFdD]?")
_HEXADECIMAL: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]++\.?+[0-9a-fA-F]*+|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++)[fFdD]?"
)
_NAMED: Final = {
    f"{sign}{name}": factor * value
    for name, value in (("NaN", math.nan), ("Infinity", math.inf))
    for sign, factor in (("", 1), ("+", 1), ("-", -1))
}
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that `String.trim` removes: all characters up to the space."""


LONG_SIZE: Final = 100
"""Maximum characters of a text whose number is cached, because an expression may compare a text hundreds of times."""
Convert = TypeVar("Convert", bound=Callable[..., float])


def _cached_if_long(convert: Convert) -> Convert:
    cached = lru_cache(maxsize=64)(convert)

    @wraps(convert)
    def find(text: str, *limits: int) -> float:
        return (convert if len(text) <= LONG_SIZE else cached)(text, *limits)

    return cast("Convert", find)


class EvaluationError(ValueError):
    """An expression cannot be evaluated on these properties; RocketMQ throws, and the message does not match."""


def compare(left: Value, right: Value) -> int:  # noqa: PLR0911 - Java's table of classes, one row a return
    """Compare two non-null values as `__compare` does; returns a number below, equal to or above 0.

    Values whose classes cannot be compared give -1 in either order. Raises EvaluationError.
    """
    assert left is not None
    assert right is not None
    if isinstance(left, bool):
        if isinstance(right, bool):
            return left - right
        if isinstance(right, str):
            # In this comparison RocketMQ casts the Boolean to a String, which throws.
            raise EvaluationError("a boolean cannot be compared with a text")
        return -1
    if isinstance(right, bool):
        return (left.lower() == "true") - right if isinstance(left, str) else -1
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        return compare_numbers(number_like(left, right), right)
    if isinstance(right, str):
        return compare_numbers(left, number_like(right, left))
    return compare_numbers(left, right)


def compare_numbers(left: float, right: float) -> int:
    """Compare two integers exactly; others as `Double.compare`: NaN equals NaN and is the greatest, -0.0 < 0.0."""
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    first, second = float(left), float(right)
    if first < second:
        return -1
    if first > second:
        return 1
    if first == second:
        return (first == 0) * int(math.copysign(1, first) - math.copysign(1, second))
    return math.isnan(first) - math.isnan(second)


def number_like(text: str, example: float) -> float:
    """Convert a text to a number of the example's class. Raises EvaluationError."""
    if isinstance(example, float):
        return double_of(text)
    return whole_of(text, INTEGER_MAX if -INTEGER_MAX <= example <= INTEGER_MAX else LONG_MAX)


@_cached_if_long
def whole_of(text: str, value_max: int) -> int:
    """Convert as `Integer.valueOf` or `Long.valueOf`: a sign and digits of any script. Raises EvaluationError."""
    if len(text) < _SHORT and text.isascii() and text.isdigit():
        return int(text)
    found = _WHOLE.fullmatch(text)
    if found is None:
        raise EvaluationError(f"{text!r} is not a whole number")
    sign, digits = found.groups()
    if not digits.isascii():
        if max(digits) >= _ASTRAL_FIRST:
            # Java reads UTF-16 units. This digit consists of two units, and neither of them is a digit.
            raise EvaluationError(f"{text!r} is not a whole number")
        digits = "".join(str(int(digit)) for digit in digits)
    digits = digits.lstrip("0") or "0"
    value = int(sign + digits) if len(digits) <= _LONG_DIGITS else value_max + 1
    if not -value_max - 1 <= value <= value_max:
        raise EvaluationError(f"{text!r} is out of range")
    return value


@_cached_if_long
def double_of(text: str) -> float:
    """Convert a text as `Double.valueOf` does. Raises EvaluationError."""
    trimmed = text.strip(_JAVA_BLANKS)
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed.rstrip("fFdD"))
    if trimmed in _NAMED:
        return _NAMED[trimmed]
    found = _HEXADECIMAL.fullmatch(trimmed)
    if found is None:
        raise EvaluationError(f"{text!r} is not a number")
    try:
        return float.fromhex(found.group(1))
    except OverflowError:
        return -math.inf if trimmed.startswith("-") else math.inf


DEPTH_MAX: Final = 128
"""Maximum nesting. RocketMQ catches a StackOverflowError at a depth of several thousand."""
DOUBLE_MIN: Final = 5e-324
"""`Double.MIN_VALUE`: smaller constants, including 0.0, are refused."""


class Sql92Error(ValueError):
    """An expression that RocketMQ cannot parse; the message says why."""


class Sql92LimitError(Sql92Error):
    """An expression that exceeds a limit of this broker; RocketMQ may accept it."""


@frozen
class Literal:
    """A constant, including NULL, TRUE and FALSE."""

    value: Value
    depth: int = 0


@frozen
class Property:
    """A message's property by name; names are case-sensitive."""

    name: str
    depth: int = 0


@frozen
class Negate:
    """A minus sign, which negates a number and turns every other value into null."""

    operand: Node
    depth: int


@frozen
class Truth:
    """A property where a boolean is needed: null if it is missing, and otherwise FALSE, because it is a text."""

    operand: Property
    depth: int = 1


@frozen
class Not:
    """The operator NOT; null stays null."""

    operand: Node
    depth: int


@frozen
class Logic:
    """A chain of AND operators, or of OR operators."""

    operator: str
    operands: tuple[Node, ...]
    depth: int


@frozen
class Equal:
    """The comparison `=`; with NULL on the right it means IS NULL."""

    left: Node
    right: Node
    depth: int


@frozen
class Relation:
    """One of the comparisons `>`, `>=`, `<` and `<=`."""

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
    """Whether a text contains, starts or ends with another text; FALSE for other values, even if negated."""

    operator: str
    """CONTAINS, STARTSWITH or ENDSWITH."""
    operand: Node
    text: str
    negated: bool
    depth: int


Node: TypeAlias = Literal | Property | Negate | Truth | Not | Logic | Equal | Relation | In | Part
NULL: Final = Literal(None)


def depth_over(*nodes: Node) -> int:
    """Returns the depth of a node that has these child nodes. Raises Sql92Error above `DEPTH_MAX`."""
    depth = 1 + max(node.depth for node in nodes)
    if depth > DEPTH_MAX:
        raise Sql92LimitError(f"the expression is nested over {DEPTH_MAX} deep; simplify it")
    return depth


def is_boolean(node: Node) -> bool:
    """Whether the node's class in RocketMQ is a BooleanExpression."""
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, (Property, Negate))


def as_boolean(node: Node) -> Node:
    """Convert a node as `asBooleanExpression` does. Raises Sql92Error."""
    if isinstance(node, Property):
        return Truth(node)
    if not is_boolean(node):
        raise Sql92Error("a condition is needed here, not a number or a text")
    return node


def make_decimal(text: str) -> Literal:
    """Create a node as `createFromDecimal` does. Raises Sql92Error."""
    digits = text.rstrip("lL")
    if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
        raise Sql92Error(f"a whole number is over {LONG_MAX}")
    return Literal(int(digits))


def make_float(text: str) -> Literal:
    """Create a node as `createFloat` does. Raises Sql92Error."""
    value = float(text)
    if not DOUBLE_MIN <= value <= sys.float_info.max:
        raise Sql92Error("a constant with a point or an exponent is 0, or too large; write 0 without a point")
    return Literal(value)


def make_not(operand: Node) -> Not:
    """Create a node as `createNOT` does. Raises Sql92Error."""
    condition = as_boolean(operand)
    return Not(condition, depth_over(condition))


def make_logic(operator: str, operands: list[Node]) -> Logic:
    """Create a node for a whole chain, as `createAND` or `createOR` does for two operands. Raises Sql92Error."""
    conditions = tuple(as_boolean(operand) for operand in operands)
    return Logic(operator, conditions, depth_over(*conditions))


def make_equal(left: Node, right: Node) -> Equal:
    """Create a node as `createEqual` does. Raises Sql92Error."""
    if NULL in {left, right}:
        raise Sql92Error("NULL cannot be compared; write IS NULL")
    if isinstance(left, Literal) and isinstance(right, Literal) and is_boolean(left) and not is_boolean(right):
        raise Sql92Error("TRUE or FALSE is compared with a number or a text")
    return Equal(left, right, depth_over(left, right))


def make_is_null(left: Node) -> Equal:
    """Create a node as `createIsNull` does. Raises Sql92Error."""
    return Equal(left, NULL, depth_over(left))


def make_relation(operator: str, left: Node, right: Node) -> Relation:
    """Create a node as `createGreaterThan` and the methods for the other comparisons do. Raises Sql92Error."""
    for side in (left, right):
        if is_boolean(side) or (isinstance(side, Literal) and isinstance(side.value, str)):
            raise Sql92Error(f"{operator} compares numbers only, and properties that are numbers")
    return Relation(operator, left, right, depth_over(left, right))


def make_between(operand: Node, low: Node, high: Node) -> Logic:
    """Create a node as `createBetween` does, which refuses two constants in the wrong order. Raises Sql92Error."""
    at_least, at_most = make_relation(">=", operand, low), make_relation("<=", operand, high)
    if isinstance(low, Literal) and isinstance(high, Literal) and compare(high.value, low.value) < 0:
        raise Sql92Error(f"BETWEEN {low.value} AND {high.value} has its bounds in the wrong order")
    return make_logic("AND", [at_least, at_most])


def make_not_between(operand: Node, low: Node, high: Node) -> Logic:
    """Create a node as `createNotBetween` does, which accepts two constants in any order. Raises Sql92Error."""
    return make_logic("OR", [make_relation("<", operand, low), make_relation(">", operand, high)])


def make_in(operand: Node, texts: list[str], *, negated: bool) -> In:
    """Create a node as `createInFilter` does. Raises Sql92Error."""
    if not isinstance(operand, Property):
        raise Sql92Error("IN needs a property before it")
    return In(operand, frozenset(texts), negated)
