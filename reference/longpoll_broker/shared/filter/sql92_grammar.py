"""The grammar of SQL92 filters: RocketMQ's, for `lark`'s LALR parser, which does not recurse.

As in RocketMQ, NOT binds tighter than any comparison. Arithmetic (except the sign), LIKE and `!=` do not exist. Parsing
ends at the first token that does not fit, and ignores the rest (`a = 1 b ! c` is `a = 1`). 5.x has six more
comparisons, of parts of a text, whose three words are reserved there.

Source: `SelectorParser.jj` 4.9 and 5.5, tried with their jars.
"""

from __future__ import annotations

import functools
from typing import Final

import lark
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from longpoll_broker.shared.filter.sql92_tree import (
    NULL,
    Equal,
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
    as_boolean,
    make_between,
    make_decimal,
    make_equal,
    make_float,
    make_in,
    make_is_null,
    make_logic,
    make_negate,
    make_not,
    make_not_between,
    make_part,
    make_relation,
)

SIZE_MAX: Final = 4 * 1024
"""Maximum characters of an expression: at worst a tenth of a second of parsing, once. Java is limited by the frame."""

# JavaCC takes the longest match and, among equals, the first. Priorities have the same effect here: comment before
# minus, float before integer (which is never longer), reserved word before identifier.
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
"""The grammar of 4.9 and of strict."""
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


class _Builder(lark.Transformer[lark.Token, Node]):
    """Builds the tree while the parser reduces; one method per rule or alias of the grammar."""

    def start(self, nodes: list[Node]) -> Node:
        return as_boolean(nodes[0])

    def or_(self, nodes: list[Node]) -> Logic:
        return make_logic("OR", nodes)

    def and_(self, nodes: list[Node]) -> Logic:
        return make_logic("AND", nodes)

    def equal(self, nodes: list[Node]) -> Equal:
        return make_equal(*nodes)

    def not_equal(self, nodes: list[Node]) -> Not:
        return make_not(make_equal(*nodes))

    def is_null(self, nodes: list[Node]) -> Equal:
        return make_is_null(nodes[0])

    def is_not_null(self, nodes: list[Node]) -> Not:
        return make_not(make_is_null(nodes[0]))

    def above(self, nodes: list[Node]) -> Relation:
        return make_relation(">", *nodes)

    def at_least(self, nodes: list[Node]) -> Relation:
        return make_relation(">=", *nodes)

    def below(self, nodes: list[Node]) -> Relation:
        return make_relation("<", *nodes)

    def at_most(self, nodes: list[Node]) -> Relation:
        return make_relation("<=", *nodes)

    def between(self, nodes: list[Node]) -> Logic:
        return make_between(*nodes)

    def not_between(self, nodes: list[Node]) -> Logic:
        return make_not_between(*nodes)

    def in_(self, parts: tuple[Node, list[str]]) -> In:
        return make_in(parts[0], parts[1], negated=False)

    def not_in(self, parts: tuple[Node, list[str]]) -> In:
        return make_in(parts[0], parts[1], negated=True)

    def contains(self, parts: tuple[Node, str]) -> Part:
        return _part("CONTAINS", parts)

    def not_contains(self, parts: tuple[Node, str]) -> Part:
        return _part("CONTAINS", parts, negated=True)

    def starts_with(self, parts: tuple[Node, str]) -> Part:
        return _part("STARTSWITH", parts)

    def not_starts_with(self, parts: tuple[Node, str]) -> Part:
        return _part("STARTSWITH", parts, negated=True)

    def ends_with(self, parts: tuple[Node, str]) -> Part:
        return _part("ENDSWITH", parts)

    def not_ends_with(self, parts: tuple[Node, str]) -> Part:
        return _part("ENDSWITH", parts, negated=True)

    def plus(self, nodes: list[Node]) -> Node:
        return nodes[0]

    def negate(self, nodes: list[Node]) -> Negate:
        return make_negate(nodes[0])

    def not_(self, nodes: list[Node]) -> Not:
        return make_not(nodes[0])

    def decimal(self, tokens: list[str]) -> Literal:
        return make_decimal(tokens[0])

    def floating(self, tokens: list[str]) -> Literal:
        return make_float(tokens[0])

    def true(self, _tokens: list[str]) -> Literal:
        return Literal(value=True)

    def false(self, _tokens: list[str]) -> Literal:
        return Literal(value=False)

    def null(self, _tokens: list[str]) -> Literal:
        return NULL

    def property(self, tokens: list[str]) -> Property:
        return Property(str(tokens[0]))

    def text(self, tokens: list[str]) -> Literal:
        return Literal(_unquote(tokens[0]))

    def texts(self, tokens: list[str]) -> list[str]:
        return [_unquote(token) for token in tokens]


def _unquote(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _part(operator: str, parts: tuple[Node, str], *, negated: bool = False) -> Part:
    operand, token = parts
    return make_part(operator, operand, _unquote(token), negated=negated)


@functools.cache
def _parser(*, with_parts: bool) -> lark.Lark:
    # The basic lexer: the contextual one would accept a reserved word as a property's name.
    grammar = GRAMMAR_5 if with_parts else GRAMMAR
    return lark.Lark(grammar, parser="lalr", lexer="basic", transformer=_Builder())


def parse(expression: str, *, with_parts: bool = False) -> Node:
    """Parse an expression; returns the tree, whose root is a condition. `with_parts` is 5.x's language.

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
        # As in RocketMQ, a token that does not fit ends the expression, if it may end there.
        place = f"line {error.line}, column {error.column}"
    try:
        tree: Node = running.feed_token(lark.Token("$END", ""))
    except UnexpectedToken:
        raise Sql92Error(f"the expression cannot continue at {place}") from None
    return tree
