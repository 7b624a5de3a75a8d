"""Values of an SQL92 filter, compared class by class as in Java.

    In RocketMQ                  Here
    Integer                      int from -(2**31 - 1) to 2**31 - 1
    Long                         any other int of 64 bits
    Double                       float
    String (every property)      str
    Boolean                      bool
    null (no such property)      None

An integer constant is an Integer if it fits. Only constants and their negatives are numbers, so the magnitude alone
separates Integer from Long: -2**31 is the negative of a Long.

A text compared with a number is converted to that number's class. If this fails, or is out of range, the whole
expression fails (`EvaluationError`). This is not the same as unknown: `a > 3 OR TRUE` fails too.

Structure of expressions: see `sql92_tree`, `sql92`.

Sources: `ComparisonExpression.__compare` and `evaluate` 4.9; Java's `Integer.parseInt`, `Double.valueOf` and
`Double.compare`.
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

Value: TypeAlias = int | float | str | bool | None

INTEGER_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_LONG_DIGITS: Final = 19
"""Decimal digits of `LONG_MAX`; more significant digits cannot fit."""
_SHORT: Final = len(str(INTEGER_MAX))
"""Fewer ASCII digits than this fit any class, without further checks."""
_ASTRAL_FIRST: Final = "\U00010000"

_WHOLE: Final = re.compile(r"([+-]?)(\d+)")
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED: Final = {
    f"{sign}{name}": factor * value
    for name, value in (("NaN", math.nan), ("Infinity", math.inf))
    for sign, factor in (("", 1), ("+", 1), ("-", -1))
}
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that `String.trim` removes: all up to the space."""


class EvaluationError(ValueError):
    """An expression cannot be evaluated on these properties; RocketMQ throws, and the message does not match."""


def compare(left: Value, right: Value) -> int:  # noqa: PLR0911 - Java's table of classes, one row a return
    """Compare two non-null values as `__compare` does; returns a number below, equal to or above 0.

    Classes that cannot be compared give -1 in either order. Raises EvaluationError.
    """
    assert left is not None
    assert right is not None
    if isinstance(left, bool):
        if isinstance(right, bool):
            return left - right
        if isinstance(right, str):
            # Java casts the Boolean instead of the String here, and throws.
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
    """Compare integers as integers, others as `Double.compare`: NaN equals NaN and is the greatest, -0.0 < 0.0."""
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


def whole_of(text: str, value_max: int) -> int:
    """`Integer.valueOf` or `Long.valueOf`: a sign and digits of any script, nothing else. Raises EvaluationError."""
    if len(text) < _SHORT and text.isascii() and text.isdigit():
        return int(text)
    found = _WHOLE.fullmatch(text)
    if found is None:
        raise EvaluationError(f"{text!r} is not a whole number")
    sign, digits = found.groups()
    if not digits.isascii():
        if max(digits) >= _ASTRAL_FIRST:
            # Java reads UTF-16 units, and half a digit is not a digit.
            raise EvaluationError(f"{text!r} is not a whole number")
        digits = "".join(str(int(digit)) for digit in digits)
    digits = digits.lstrip("0") or "0"
    value = int(sign + digits) if len(digits) <= _LONG_DIGITS else value_max + 1
    if not -value_max - 1 <= value <= value_max:
        raise EvaluationError(f"{text!r} is out of range")
    return value


def double_of(text: str) -> float:
    """`Double.valueOf`. Raises EvaluationError."""
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
