"""SQL92 filters: compiles an expression to closures that test a message's properties.

Logic has three values; a message matches only if the result is TRUE. `docs/sql92.md` describes the language and its
differences from the standard. Properties in a record: see `longpoll_protocol.log_record`.

Sources: the `evaluate` methods of `org.apache.rocketmq.filter.expression` 4.9 and 5.5, `ExpressionMessageFilter.java`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final, TypeAlias, assert_never

from attrs import frozen

from longpoll_broker.shared.filter import sql92_tree as tree
from longpoll_broker.shared.filter.sql92_grammar import parse
from longpoll_broker.shared.filter.sql92_tree import In, Node, Sql92Error, Sql92LimitError
from longpoll_broker.shared.filter.sql92_values import EvaluationError, Value, compare, compare_numbers, double_of

__all__ = ["Expression", "Lookup", "Sql92Error", "Sql92LimitError", "compile_expression"]

Lookup: TypeAlias = Callable[[str], str | None]
"""Returns a message's property by name, or None."""
Evaluate: TypeAlias = Callable[[Lookup], Value]

_IS_PART: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_HOLDS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@frozen(eq=False)
class Expression:
    """A compiled expression; equal only to itself."""

    text: str
    evaluate: Evaluate
    """Returns TRUE, FALSE or None; raises EvaluationError."""

    def matches(self, lookup: Lookup) -> bool:
        """Whether a message with these properties matches; false if the evaluation fails."""
        try:
            return self.evaluate(lookup) is True
        except EvaluationError:
            return False


def compile_expression(text: str, *, with_parts: bool = False) -> Expression:
    """Compile an expression; `with_parts` for 5.x's language. Raises Sql92Error."""
    return Expression(text, evaluator(parse(text, with_parts=with_parts)))


def evaluator(node: Node) -> Evaluate:  # noqa: C901, PLR0911 - one return a kind of node
    """Returns a function that computes a node's value; recursion is limited by the tree's depth."""
    if isinstance(node, tree.Literal):
        constant = node.value
        return lambda _lookup: constant
    if isinstance(node, tree.Property):
        name = node.name
        return lambda lookup: lookup(name)
    if isinstance(node, tree.Negate):
        return _negate(evaluator(node.operand))
    if isinstance(node, tree.Truth):
        named = node.operand.name
        return lambda lookup: None if lookup(named) is None else False
    if isinstance(node, tree.Not):
        return _not(evaluator(node.operand))
    if isinstance(node, tree.Logic):
        operands = tuple(evaluator(operand) for operand in node.operands)
        return _logic(operands, decides=node.operator == "OR")
    if isinstance(node, tree.Equal):
        return _equal(evaluator(node.left), evaluator(node.right))
    if isinstance(node, tree.Relation):
        return _relation(_HOLDS[node.operator], evaluator(node.left), evaluator(node.right))
    if isinstance(node, In):
        return _in(node)
    if isinstance(node, tree.Part):
        return _part(node, evaluator(node.operand))
    assert_never(node)


def _negate(operand: Evaluate) -> Evaluate:
    def evaluate(lookup: Lookup) -> Value:
        value = operand(lookup)
        return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    return evaluate


def _not(operand: Evaluate) -> Evaluate:
    def evaluate(lookup: Lookup) -> Value:
        value = operand(lookup)
        return None if value is None else not value

    return evaluate


def _logic(operands: tuple[Evaluate, ...], *, decides: bool) -> Evaluate:
    """The first TRUE operand decides an OR, the first FALSE one an AND; later operands are not evaluated."""

    def evaluate(lookup: Lookup) -> Value:
        outcome: Value = not decides
        for operand in operands:
            value = operand(lookup)
            if value is decides:
                return decides
            if value is None:
                outcome = None
        return outcome

    return evaluate


def _equal(left: Evaluate, right: Evaluate) -> Evaluate:
    """Two nulls are equal; a null on the left is unknown, on the right unequal."""

    def evaluate(lookup: Lookup) -> Value:
        first, second = left(lookup), right(lookup)
        if first is None:
            return True if second is None else None
        if second is None:
            return False
        return compare(first, second) == 0

    return evaluate


def _relation(holds: Callable[[int, int], bool], left: Evaluate, right: Evaluate) -> Evaluate:
    """Two properties compare as doubles; a property and a number as the number's class."""

    def evaluate(lookup: Lookup) -> Value:
        first = left(lookup)
        if first is None:
            return None
        second = right(lookup)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            return holds(compare_numbers(double_of(first), double_of(second)), 0)
        return holds(compare(first, second), 0)

    return evaluate


def _in(node: In) -> Evaluate:
    name, texts, negated = node.operand.name, node.texts, node.negated

    def evaluate(lookup: Lookup) -> Value:
        value = lookup(name)
        return None if value is None else (value in texts) != negated

    return evaluate


def _part(node: tree.Part, operand: Evaluate) -> Evaluate:
    """An empty text gives FALSE without evaluating the operand."""
    is_part, text, negated = _IS_PART[node.operator], node.text, node.negated

    def evaluate(lookup: Lookup) -> Value:
        value = operand(lookup) if text else None
        return isinstance(value, str) and is_part(value, text) != negated

    return evaluate
