"""Random SQL92 expressions and properties: mostly valid, some invalid, many at the limits of Java's numbers.

The seed of a `random.Random` determines every case. Expected results come from RocketMQ's parser
(`model_tests/conformance/test_java_alike.py`) or from its recording (`model_tests/core/golden`).
"""

from __future__ import annotations

import random
from typing import Final

from longpoll_broker.shared.sql92 import Sql92Error, compile_expression
from longpoll_broker.shared.sql92_tree import EvaluationError

Case = tuple[str, dict[str, str]]
"""An expression and a message's properties."""

NAMES: Final = ("a", "b", "c", "_x", "$y", "Ab1", "TAGS")
NUMBERS: Final = ("0", "1", "2", "5", "10", "2147483647", "2147483648", "9223372036854775807", "5L", "1.5", "5.0", ".5")
MORE_NUMBERS: Final = (
    *NUMBERS, "9223372036854775808", "5l", "5.", "1e3", "1E-3", "0.0", "0.", "1e400", "5e-324", "2e-324", "01", "0.1",
    "0.30000000000000004", "2147483648.0", "1.7976931348623157e308", "9007199254740993", "9007199254740992.0",
)  # fmt: skip
TEXTS: Final = (
    "1", "2", "5", "-5", "+5", "0", "-0", "007", "5.0", "5.", "  5 ", ".5", "1e3", "1E400", "-1e400", "1d", "1F",
    "0x1p3", "0x1.8P1f", "0x.8p0", "0x1p9999", "NaN", "+NaN", "-Infinity", "Infinity", "2147483647", "2147483648",
    "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "true", "TRUE",
    "false", "x", "it's", "", "\u0661\u0662", "\uff11\uff12", "\U0001d7ce\U0001d7cf", "1_0", "99999999999999999999",
    "00000000000000000000000000000000005", "0.1", "0.30000000000000004", "1l", "5D5", "red", "5\u00a0", "\u20035",
    "\t5\n", "infinity", "nan", "1e", "e5", "-", "+", ".", "0x10", "4.9E-324", "2e-324",
)  # fmt: skip
WORDS: Final = (
    *NAMES, *MORE_NUMBERS, "'x'", "''", "'a''b'", "'", "AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "TRUE",
    "FALSE", "(", ")", ",", "=", "<>", "<", "<=", ">", ">=", "+", "-", "--c\n", "--c", "/*c*/", "/**/", "/***/", "/*",
    "*/", "!", "!=", "?", "LIKE", "\u212a", "\u0130S", "\u0131s", "\u017f", "\u00a0", "\x0b", "\f", "\r", "\n", "\t",
    "'\n'", "5E", "5.5E", "5.E3", "0l", "1a", "a.b", "&", "1..2", ".", "'\U0001f600'",
)  # fmt: skip
RELATIONS: Final = (" = ", "=", " <> ", " > ", " >= ", " < ", "<=", ">")
LETTERS: Final = " ()'=<>-+,!.0aeL/*\n"


PARTS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH", "contains", "startsWith", "NOT CONTAINS", "not StartsWith",
                "NOT  ENDSWITH", "NOT/**/ENDSWITH", "endswith")  # fmt: skip
"""Comparison operators that only 5.x has."""


def outcome(expression: str, properties: dict[str, str], *, with_parts: bool = False) -> str:
    """Returns the result of our code for a case: `bad`, `error`, `true`, `false` or `null`.

    `with_parts` also accepts the operators of 5.x.
    """
    try:
        compiled = compile_expression(expression, with_parts=with_parts)
    except Sql92Error:
        return "bad"
    try:
        value = compiled.evaluate(properties.get)
    except EvaluationError:
        return "error"
    return "null" if value is None else str(value).lower()


class Cases:
    """An endless sequence of cases."""

    def __init__(self, seed: int, *, with_parts: bool = False) -> None:
        self._random = random.Random(seed)
        self._with_parts = with_parts
        """Whether a third of the comparisons have operators of 5.x."""

    def next(self) -> Case:
        kind = self._random.random()
        if kind < 0.7:
            expression = self._condition(2)
        elif kind < 0.85:
            expression = self._slipped(self._condition(2))
        else:
            words = (*WORDS, *PARTS) if self._with_parts else WORDS
            expression = self._pick((" ", "", " ")).join(self._pick(words) for _ in range(self._random.randint(1, 9)))
        given = {name: self._pick(TEXTS) for name in NAMES if self._random.random() < 0.6}
        return expression, {name: text for name, text in given.items() if text}

    def _pick(self, choices: tuple[str, ...]) -> str:
        return self._random.choice(choices)

    def _text(self) -> str:
        return "'" + self._pick(TEXTS).replace("'", "''") + "'"

    def _texts(self) -> str:
        return "(" + ", ".join(self._text() for _ in range(self._random.randint(1, 6))) + ")"

    def _operand(self) -> str:
        """Returns a property or a number, either of which may be compared with others."""
        if self._random.random() < 0.6:
            return self._pick(NAMES)
        return self._pick(("", "", "", "-", "+")) + self._pick(NUMBERS)

    def _anything(self, depth: int) -> str:
        """Returns any operand that the parser accepts."""
        kind = self._random.random()
        if kind < 0.18:
            return self._pick(("-", "-", "+", "NOT ")) + self._anything(depth)
        if kind < 0.55:
            return self._pick(NAMES)
        if kind < 0.87 or depth <= 0:
            return self._pick((self._pick(MORE_NUMBERS), self._text(), "TRUE", "FALSE", "NULL", "nUlL"))
        return f"({self._condition(depth - 1)})"

    def _condition(self, depth: int) -> str:
        chains = (
            " AND ".join(self._comparison(depth) for _ in range(self._random.choice((1, 1, 1, 2, 3))))
            for _ in range(self._random.choice((1, 1, 1, 2, 3)))
        )
        return " OR ".join(chains)

    def _comparison(self, depth: int) -> str:  # noqa: PLR0911 - one return a form
        negated = self._pick(("", " NOT"))
        if self._with_parts and self._random.random() < 0.35:
            return self._part(depth)
        sense = self._random.random() < 0.8
        left, right, high = (self._operand() if sense else self._anything(depth) for _ in range(3))
        kind = self._random.random()
        if kind < 0.35:
            return left + self._pick(RELATIONS) + right
        if kind < 0.5:
            return left + self._pick((" = ", " <> ")) + self._pick((self._text(), self._text(), "TRUE", "false"))
        if kind < 0.62:
            return left + self._pick((" IS NULL", " is not null"))
        if kind < 0.74:
            return f"{left}{negated} BETWEEN {right} AND {high}"
        if kind < 0.86:
            return f"{self._pick(NAMES) if sense else left}{negated} IN {self._texts()}"
        if kind < 0.93 and depth > 0:
            return f"{negated} ({self._condition(depth - 1)})"
        return f"{negated} {left}"

    def _part(self, depth: int) -> str:
        """Returns a comparison with an operator of 5.x, usually of a property with a short text, sometimes invalid."""
        left = self._pick(NAMES) if self._random.random() < 0.7 else self._anything(depth)
        short = "'" + self._pick(("", "5", ".", "e", "E", "-", "0", "true", " ", "red", "''")) + "'"
        right = self._pick((short, short, short, self._text(), self._pick(WORDS)))
        return f"{left} {self._pick(PARTS)} {right}"

    def _slipped(self, expression: str) -> str:
        """Returns the expression with one or two letters dropped, inserted or changed."""
        letters = list(expression)
        for _ in range(self._random.randint(1, 2)):
            place = self._random.randrange(len(letters))
            letters[place] = self._pick(
                ("", self._random.choice(LETTERS), letters[place] + self._random.choice(LETTERS))
            )
        return "".join(letters)
