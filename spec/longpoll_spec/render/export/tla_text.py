"""Expressions (`quantified`) as TLA+: on one line if it fits, otherwise as bulleted junctions.

The module around them: `tla_parametric`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from longpoll_spec.render.export.quantified import PRIME, Expression

WIDTH: Final = 118
"""The longest line, in characters."""
SETS: Final = {"request": "Requests", "queue": "Queues"}
"""Kind -> the constant that is the set of that kind."""
ENABLED: Final = "ENABLED "
"""The prefix of a variable that represents the guard of an action."""


def comment(sentence: str) -> Iterator[str]:
    """A sentence as lines of comment."""
    yield from (f"\\* {line}" for line in textwrap.wrap(sentence, WIDTH - 3))


def definition(head: str, says: Expression) -> Iterator[str]:
    """The definition of `head`, and an empty line."""
    short = f"{head} == {inline(says)}"
    if len(short) <= WIDTH * (3 if says[0] in _JUNCTIONS else 4) // 4:
        yield short
    else:
        yield f"{head} =="
        yield from indented(lines(says, WIDTH - 2))
    yield ""


def letters_in(expression: Expression, bound: frozenset[str] = frozenset()) -> set[str]:
    """The free letters of the expression."""
    if expression[0] == "letter":
        return {expression[1]} - bound
    if expression[0] in {"every", "some"}:
        return letters_in(expression[4], bound | {expression[1]}) | (set(expression[3][1:]) - bound)
    return set[str]().union(*(letters_in(part, bound) for part in expression if isinstance(part, tuple)))


def denied(expression: Expression) -> Expression:
    """The negation, written with few negations."""
    match expression[0]:
        case "not":
            (inner,) = expression[1:]
            assert isinstance(inner, tuple)
            return inner
        case "some" | "every":
            other = "every" if expression[0] == "some" else "some"
            return (other, *expression[1:4], denied(expression[4]))
        case "or":
            return ("and", *map(denied, expression[1:]))
        case "and":
            parts = list(expression[1:])
            then = parts.pop(max(range(len(parts)), key=lambda place: (_weight(parts[place]), place)))
            return implies(parts, denied(then))
        case _:
            return ("not", expression)


def implies(given: Sequence[Expression], then: Expression) -> Expression:
    """The implication; conclusions that are among the premises are left out."""
    parts = [part for each in given for part in (each[1:] if each[0] == "and" else (each,))]
    if then[0] == "implies":
        return implies([*parts, then[1]], then[2])
    return ("implies", ("and", *parts) if len(parts) > 1 else parts[0], then)


def as_implication(expression: Expression) -> Expression:
    r"""The statement with `A => B` in place of `~A \/ B`, under its quantifiers."""
    match expression:
        case ("and", *parts):
            return ("and", *map(as_implication, parts))
        case ("every", letter, kind, left_out, body):
            return ("every", letter, kind, left_out, as_implication(body))
        case ("or", *parts):
            given = [part[1] for part in parts if part[0] == "not" and part[1][0] not in {"lt", "le"}]
            then = [part for part in parts if part[0] != "not" or part[1][0] in {"lt", "le"}]
            if given and then:
                return implies(given, ("or", *then) if len(then) > 1 else then[0])
    return expression


def _weight(expression: Expression) -> int:
    """The size for a reader; a comparison and its opposite weigh the same."""
    if expression[0] == "not":
        if expression[1][0] in {"var", "call"} and expression[1][2]:
            return 99  # what is so after the step is what is said, not what is given
        return _weight(expression[1]) + (expression[1][0] not in _COMPARISONS)
    if expression[0] == "is queue":
        return 0
    if expression[0] in {*_COMPARISONS, *_MEMBERS, "call", "var"}:
        return 1
    return 1 + sum(_weight(part) for part in expression[1:] if isinstance(part, tuple))


_JUNCTIONS: Final = {"and": "/\\", "or": "\\/"}
_COMPARISONS: Final = {"eq": ("=", "/="), "lt": ("<", ">="), "le": ("<=", ">")}
_MEMBERS: Final = {"in": ("\\in", "\\notin"), "notin": ("\\notin", "\\in")}
_SIGNS: Final = {"every": "\\A", "some": "\\E"}
_LOOSE: Final = frozenset({"and", "or", "every", "some", "ite", "implies"})


def inline(expression: Expression) -> str:  # noqa: C901, PLR0911, PLR0912 - one case each
    """The expression on one line."""
    match expression:
        case ("letter" | "name", text):
            return str(text)
        case ("word", text):
            return f'"{text}"'
        case ("num", number):
            return str(number) if number >= 0 else f"({number})"
        case ("var", base, primed, *index):
            if base.startswith(ENABLED):
                return f"{base}({', '.join(map(inline, index))})" if index else base
            return f"{base}{PRIME if primed else ''}" + "".join(f"[{inline(each)}]" for each in index)
        case ("call", name, primed, *given):
            words = f"({', '.join(map(inline, given))})" if given else ""
            return f"{name}{words}{PRIME if primed else ''}"
        case ("not", inner):
            return _negated(inner)
        case ("and" | "or" as op, *parts):
            return f" {_JUNCTIONS[op]} ".join(map(_closed, parts))
        case ("lt", ("num", number), right):
            return f"{_operand(right)} > {number}"
        case ("le", left, ("num", 0)):
            return f"{_operand(left)} = 0"
        case ("eq" | "lt" | "le" as op, left, right):
            return f"{_operand(left)} {_COMPARISONS[op][0]} {_operand(right)}"
        case ("in" | "notin" as op, left, *words):
            return _member(left, _MEMBERS[op][0], words)
        case ("is queue", which):
            return f"{inline(which)} \\in Queues"
        case ("add" | "sub" as op, left, right):
            return f"{_operand(left)} {'+' if op == 'add' else '-'} {_operand(right)}"
        case ("implies", before, after):
            return f"{_closed(before)} => {_closed(after)}"
        case ("every" | "some", *_, body):
            return f"{_quantifier(expression)} {inline(body)}"
        case ("ite", condition, then, otherwise):
            return f"IF {inline(condition)} THEN {inline(then)} ELSE {inline(otherwise)}"
        case ("except", base, letter, value):
            return f"[{base} EXCEPT ![{letter}] = {inline(value)}]"
        case ("function", letter, kind, value):
            return f"[{letter} \\in {SETS[kind]} |-> {inline(value)}]"
        case ("becomes", base, value):
            return f"{base}' = {inline(value) if value[0] != 'ite' else f'({inline(value)})'}"
        case ("always", inner):
            return f"[]({inline(inner)})"
        case ("box", inner):
            return f"[][{inline(inner)}]_vars"
        case ("tuple", *names):
            return f"<<{', '.join(names)}>>"
        case ("unchanged", *names):
            return f"UNCHANGED <<{', '.join(names)}>>"
        case _:
            raise AssertionError(expression)


def _quantifier(expression: Expression) -> str:
    op, letter, kind, (_, *left_out), _ = expression
    those = f" \\ {{{', '.join(left_out)}}}" if left_out else ""
    return f"{_SIGNS[op]} {letter} \\in {SETS[kind]}{those} :"


def _negated(inner: Expression) -> str:
    match inner:
        case ("lt", ("num", 0), right):
            return f"{_operand(right)} = 0"
        case ("eq" | "lt" | "le" as op, left, right):
            return f"{_operand(left)} {_COMPARISONS[op][1]} {_operand(right)}"
        case ("in" | "notin" as op, left, *words):
            return _member(left, _MEMBERS[op][1], words)
        case ("is queue", which):
            return f"{inline(which)} \\notin Queues"
        case _:
            return f"~{_closed(inner)}" if inner[0] in _LOOSE else f"~{inline(inner)}"


def _member(left: Expression, sign: str, words: Sequence[Expression]) -> str:
    return f"{inline(left)} {sign} {{{', '.join(map(inline, words))}}}"


def _closed(expression: Expression) -> str:
    return f"({inline(expression)})" if expression[0] in _LOOSE else inline(expression)


def _operand(expression: Expression) -> str:
    text = inline(expression)
    loose = expression[0] in _LOOSE or expression[0] in {*_COMPARISONS, *_MEMBERS, "add", "sub", "not", "is queue"}
    return f"({text})" if loose else text


def indented(those: Iterable[str], by: int = 2) -> Iterator[str]:
    """The lines, indented."""
    return (f"{' ' * by}{line}" for line in those)


def lines(expression: Expression, width: int, *, whole: bool = True) -> list[str]:  # noqa: C901, PLR0912 - one case each
    """The expression in lines of this width; `whole` on one line if it fits."""
    short = inline(expression)
    dense = expression[0] in _JUNCTIONS and any(part[0] != "name" for part in expression[1:])
    if expression[0] in _JUNCTIONS and not dense:
        return textwrap.wrap(short, width)
    if whole and len(short) <= (3 * width // 4 if dense else width):
        return [short]
    match expression:
        case ("and" | "or" as op, *parts):
            sign = _JUNCTIONS[op]
            made = [
                f"{sign if not number else '  '} {line}"
                for part in parts
                for number, line in enumerate(lines(part, width - 3))
            ]
        case ("every" | "some", *_, body):
            made = [_quantifier(expression), *indented(lines(body, width - 2))]
        case ("implies", before, after):
            made = [*_bracketed(before, width - 4, end=" =>"), *indented(lines(after, width - 2))]
        case ("not", inner):
            made = _bracketed(inner, width - 3, begin="~")
        case ("ite", condition, then, otherwise):
            made = [
                f"{word if not number else ' ' * len(word)} {line}"
                for word, part in (("IF", condition), ("THEN", then), ("ELSE", otherwise))
                for number, line in enumerate(lines(part, width - 5))
            ]
        case ("becomes", base, ("except", _, letter, value)):
            made = [f"{base}' = [{base} EXCEPT ![{letter}] =", *_ending(indented(lines(value, width - 4)), "]")]
        case ("becomes", base, ("function", letter, kind, value)):
            head = f"{base}' = [{letter} \\in {SETS[kind]} |->"
            made = [head, *_ending(indented(lines(value, width - 4)), "]")]
        case ("becomes", base, value):
            made = [f"{base}' =", *indented(lines(value, width - 2))]
        case ("eq", left, ("ite", *_) as right):
            made = [f"{_operand(left)} =", *indented(_bracketed(right, width - 4))]
        case ("eq", left, right):
            made = _bracketed(left, width - 8, end=f" = {_operand(right)}")
        case ("always", inner):
            made = _bracketed(inner, width - 3, begin="[]")
        case ("box", inner):
            made = _bracketed(inner, width - 8, begin="[][", end="]_vars", brackets=("", ""))
        case ("in" | "notin", *_):
            made = textwrap.wrap(short, width, subsequent_indent=" " * (short.index("{") + 1))
        case ("tuple" | "unchanged", *names):
            head = "<<" if expression[0] == "tuple" else "UNCHANGED <<"
            made = textwrap.wrap(", ".join(names), width - len(head) - 2)
            made = [f"{head if not place else ' ' * len(head)}{line}" for place, line in enumerate(made)]
            made[-1] += ">>"
        case _:
            made = [short]
    return made


def _bracketed(
    expression: Expression, width: int, *, begin: str = "", end: str = "", brackets: tuple[str, str] = ("(", ")")
) -> list[str]:
    made = lines(expression, width)
    if len(made) == 1 and not brackets[0]:
        return [f"{begin}{made[0]}{end}"]
    if len(made) == 1:
        return [f"{begin}{_closed(expression)}{end}"]
    first, last = f"{begin}{brackets[0]}", f"{brackets[1]}{end}"
    return list(_ending([f"{first if not place else ' ' * len(first)}{line}" for place, line in enumerate(made)], last))


def _ending(those: Iterable[str], end: str) -> Iterator[str]:
    made = list(those)
    made[-1] += end
    return iter(made)
