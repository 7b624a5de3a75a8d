"""SQL92 filters: parses an expression, and compiles it to closures that test a message's properties.

Logic has three values; a message matches only if the result is TRUE. `docs/sql92.md` describes the language and its
differences from the standard. Properties in a record: see `longpoll_protocol.log_record`.

The grammar is RocketMQ's, written for `lark`'s LALR parser, which does not recurse. NOT binds tighter than any
comparison. Arithmetic (except the sign), LIKE and `!=` do not exist. Parsing ends at the first token that does not fit,
and the remaining text is ignored, so `a = 1 b ! c` means `a = 1`. 5.x also has the tests CONTAINS, STARTSWITH and
ENDSWITH and their negations, and reserves these three words.

Sources: `SelectorParser.jj` 4.9 and 5.5, tried with their jars; the `evaluate` methods of
`org.apache.rocketmq.filter.expression`, `ExpressionMessageFilter.java`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, TypeAlias, assert_never

import lark
from attrs import frozen
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from longpoll_broker.shared.sql92_tree import (
    NULL,
    Equal,
    EvaluationError,
    In,
    Literal,
    Logic,
    Negate,
    Node,
    Not,
    Part,
    Property,
    Relation,
    Sql92Error,
    Sql92LimitError,
    Truth,
    Value,
    as_boolean,
    compare,
    compare_numbers,
    depth_over,
    double_of,
    make_between,
    make_decimal,
    make_equal,
    make_float,
    make_in,
    make_is_null,
    make_logic,
    make_not,
    make_not_between,
    make_relation,
)

SIZE_MAX: Final = 4 * 1024
"""Maximum characters of an expression, which take at most 0.1 s to parse. In RocketMQ only the frame size limits it."""

# JavaCC takes the longest match and, among equally long matches, the first rule. The priorities have the same effect
# here: comment before minus, float before integer (which is never longer), reserved word before identifier.
_GRAMMAR: Final = r"""
start: or_

?or_: and_ (_OR and_)*

?and_: equality (_AND equality)*

?equality: comparison
    | equality "=" comparison               -> equal
    | equality "<>" comparison              -> not_equal
    | equality _IS _NULL                    -> is_null
    | equality _IS _NOT _NULL               -> is_not_null

?comparison: unary
    | comparison ">" unary                  -> above
    | comparison ">=" unary                 -> at_least
    | comparison "<" unary                  -> below
    | comparison "<=" unary                 -> at_most
    | comparison _BETWEEN unary _AND unary          -> between
    | comparison _NOT _BETWEEN unary _AND unary     -> not_between
    | comparison _IN "(" texts ")"                  -> in_
    | comparison _NOT _IN "(" texts ")"             -> not_in
%(comparisons)s
?unary: primary
    | "+" unary                             -> plus
    | "-" unary                             -> negate
    | _NOT unary                            -> not_

?primary: "(" or_ ")"
    | text
    | DECIMAL                               -> decimal
    | FLOAT                                 -> floating
    | _TRUE                                 -> true
    | _FALSE                                -> false
    | _NULL                                 -> null
    | ID                                    -> property

text: STRING

texts: STRING ("," STRING)*

_NOT.2: /(?ai:NOT)(?![A-Za-z0-9_$])/
_AND.2: /(?ai:AND)(?![A-Za-z0-9_$])/
_OR.2: /(?ai:OR)(?![A-Za-z0-9_$])/
_BETWEEN.2: /(?ai:BETWEEN)(?![A-Za-z0-9_$])/
_IN.2: /(?ai:IN)(?![A-Za-z0-9_$])/
_TRUE.2: /(?ai:TRUE)(?![A-Za-z0-9_$])/
_FALSE.2: /(?ai:FALSE)(?![A-Za-z0-9_$])/
_NULL.2: /(?ai:NULL)(?![A-Za-z0-9_$])/
_IS.2: /(?ai:IS)(?![A-Za-z0-9_$])/
%(words)s
FLOAT.2: /[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
DECIMAL: /0|[1-9][0-9]*[lL]?/
STRING: /'(''|[^'])*'/
ID: /[A-Za-z_$][A-Za-z0-9_$]*/

LINE_COMMENT.3: /--[^\n\r]*(\r\n|\n|\r)/
BLOCK_COMMENT.3: /\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
BLANK: /[ \t\n\r\f]+/
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
%ignore BLANK
"""
GRAMMAR: Final = _GRAMMAR.replace("%(comparisons)s", "").replace("%(words)s", "")
"""The grammar of 4.9 and of the policy `strict`."""
GRAMMAR_5: Final = _GRAMMAR.replace(
    "%(comparisons)s",
    r"""    | comparison _CONTAINS STRING                   -> contains
    | comparison _NOT _CONTAINS STRING              -> not_contains
    | comparison _STARTSWITH STRING                 -> starts_with
    | comparison _NOT _STARTSWITH STRING            -> not_starts_with
    | comparison _ENDSWITH STRING                   -> ends_with
    | comparison _NOT _ENDSWITH STRING              -> not_ends_with
""",
).replace(
    "%(words)s",
    r"""_CONTAINS.2: /(?ai:CONTAINS)(?![A-Za-z0-9_$])/
_STARTSWITH.2: /(?ai:STARTSWITH)(?![A-Za-z0-9_$])/
_ENDSWITH.2: /(?ai:ENDSWITH)(?![A-Za-z0-9_$])/
""",
)


def _unquote(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _part_maker(operator: str, *, negated: bool) -> Callable[[Any], Part]:
    def make(parts: tuple[Node, str]) -> Part:
        operand, token = parts
        return Part(operator, operand, _unquote(token), negated, depth_over(operand))

    return make


_MAKE: Final[dict[str, Callable[[Any], Any]]] = {
    "start": lambda nodes: as_boolean(nodes[0]),
    "or_": partial(make_logic, "OR"),
    "and_": partial(make_logic, "AND"),
    "equal": lambda nodes: make_equal(*nodes),
    "not_equal": lambda nodes: make_not(make_equal(*nodes)),
    "is_null": lambda nodes: make_is_null(nodes[0]),
    "is_not_null": lambda nodes: make_not(make_is_null(nodes[0])),
    "above": lambda nodes: make_relation(">", *nodes),
    "at_least": lambda nodes: make_relation(">=", *nodes),
    "below": lambda nodes: make_relation("<", *nodes),
    "at_most": lambda nodes: make_relation("<=", *nodes),
    "between": lambda nodes: make_between(*nodes),
    "not_between": lambda nodes: make_not_between(*nodes),
    "in_": lambda parts: make_in(*parts, negated=False),
    "not_in": lambda parts: make_in(*parts, negated=True),
    "contains": _part_maker("CONTAINS", negated=False),
    "not_contains": _part_maker("CONTAINS", negated=True),
    "starts_with": _part_maker("STARTSWITH", negated=False),
    "not_starts_with": _part_maker("STARTSWITH", negated=True),
    "ends_with": _part_maker("ENDSWITH", negated=False),
    "not_ends_with": _part_maker("ENDSWITH", negated=True),
    "plus": lambda nodes: nodes[0],
    "negate": lambda nodes: Negate(nodes[0], depth_over(nodes[0])),
    "not_": lambda nodes: make_not(nodes[0]),
    "decimal": lambda tokens: make_decimal(tokens[0]),
    "floating": lambda tokens: make_float(tokens[0]),
    "true": lambda _tokens: Literal(value=True),
    "false": lambda _tokens: Literal(value=False),
    "null": lambda _tokens: NULL,
    "property": lambda tokens: Property(str(tokens[0])),
    "text": lambda tokens: Literal(_unquote(tokens[0])),
    "texts": lambda tokens: [_unquote(token) for token in tokens],
}
"""For each rule or alias of the grammar, the function that makes a node from the rule's parts."""
_Builder: Final = type("_Builder", (lark.Transformer,), {name: staticmethod(make) for name, make in _MAKE.items()})


@cache
def _parser(*, with_parts: bool) -> lark.Lark:
    # The basic lexer is used, because the contextual lexer would accept a reserved word as the name of a property.
    grammar = GRAMMAR_5 if with_parts else GRAMMAR
    return lark.Lark(grammar, parser="lalr", lexer="basic", transformer=_Builder())


def parse(expression: str, *, with_parts: bool = False) -> Node:
    """Parse an expression; returns the tree, whose root is a condition. `with_parts` selects 5.x's language.

    Raises only Sql92Error.
    """
    if len(expression) > SIZE_MAX:
        raise Sql92LimitError(f"the expression is over {SIZE_MAX} characters")
    running = _parser(with_parts=with_parts).parse_interactive(expression)
    place = "its end"
    try:
        for _token in running.iter_parse():
            pass
    except UnexpectedCharacters as error:
        raise Sql92Error(f"no word begins at line {error.line}, column {error.column}") from None
    except UnexpectedToken as error:
        # As in RocketMQ, a token that does not fit ends the expression, if the expression may end there.
        place = f"line {error.line}, column {error.column}"
    try:
        tree: Node = running.feed_token(lark.Token("$END", ""))
    except UnexpectedToken:
        raise Sql92Error(f"the expression cannot continue at {place}") from None
    return tree


__all__ = ["Expression", "Lookup", "Sql92Error", "Sql92LimitError", "compile_expression"]

Lookup: TypeAlias = Callable[[str], str | None]
"""Returns the property of a message by name, or None if the message does not have it."""
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
    """A compiled expression, compared by identity."""

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
    """Compile an expression; `with_parts` selects 5.x's language. Raises Sql92Error if it cannot be parsed."""
    return Expression(text, evaluator(parse(text, with_parts=with_parts)))


def evaluator(node: Node) -> Evaluate:  # noqa: C901, PLR0911 - one return a kind of node
    """Returns a function that computes a node's value. The tree's depth limits the recursion."""
    if isinstance(node, Literal):
        constant = node.value
        return lambda _lookup: constant
    if isinstance(node, Property):
        name = node.name
        return lambda lookup: lookup(name)
    if isinstance(node, Negate):
        return _negate(evaluator(node.operand))
    if isinstance(node, Truth):
        named = node.operand.name
        return lambda lookup: None if lookup(named) is None else False
    if isinstance(node, Not):
        return _not(evaluator(node.operand))
    if isinstance(node, Logic):
        operands = tuple(evaluator(operand) for operand in node.operands)
        return _logic(operands, decides=node.operator == "OR")
    if isinstance(node, Equal):
        return _equal(evaluator(node.left), evaluator(node.right))
    if isinstance(node, Relation):
        return _relation(_HOLDS[node.operator], evaluator(node.left), evaluator(node.right))
    if isinstance(node, In):
        return _in(node)
    if isinstance(node, Part):
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
    """Returns a function that evaluates operands until one decides: TRUE decides an OR, and FALSE an AND."""

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
    """Returns a comparison: two nulls are equal, and a null gives unknown on the left but FALSE on the right."""

    def evaluate(lookup: Lookup) -> Value:
        first, second = left(lookup), right(lookup)
        if first is None:
            return True if second is None else None
        if second is None:
            return False
        return compare(first, second) == 0

    return evaluate


def _relation(holds: Callable[[int, int], bool], left: Evaluate, right: Evaluate) -> Evaluate:
    """Returns a comparison of numbers.

    Two properties are compared as doubles, and a property and a constant in the constant's class.
    """

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


def _part(node: Part, operand: Evaluate) -> Evaluate:
    """Returns a test of a part of a text. An empty `node.text` gives FALSE without evaluating the operand."""
    is_part, text, negated = _IS_PART[node.operator], node.text, node.negated

    def evaluate(lookup: Lookup) -> Value:
        value = operand(lookup) if text else None
        return isinstance(value, str) and is_part(value, text) != negated

    return evaluate
