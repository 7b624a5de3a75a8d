"""Terms in mathematical notation, as MathML: a browser shows it without scripts.

A statement about both requests is written once, for every request or for some, as in `notation`, whose reader provides
the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from longpoll_spec.model import Action, Model
from longpoll_spec.render.notation import Reader, reader_of, stem, twin_of
from longpoll_spec.render.spec_page import named_terms
from longpoll_spec.state import Variable
from longpoll_spec.terms import TRUE, Bool, Int, Term, changes

_SIGNS: Final = {"lt": "<", "le": "≤", "add": "+", "sub": "−"}
_OPPOSITE: Final = {"lt": "≥", "le": ">"}
_INDEXED: Final = re.compile(r"(.*)\[(.*)\]")
_SPACE: Final = "&#160;"
Row = tuple[str, str]
"""The prefix of a line of a formula, and the line."""


def _text(words: str) -> str:
    """Words; spaces at their ends are kept, which MathML would remove."""
    return f"<mtext>{escape(words).replace(' ', _SPACE)}</mtext>"


def _sign(sign: str) -> str:
    return f'<mo stretchy="false">{escape(sign)}</mo>' if sign in {"(", ")"} else f"<mo>{escape(sign)}</mo>"


def _row(*parts: str) -> str:
    return f"<mrow>{''.join(parts)}</mrow>"


def name(shown: str, *, after: bool = False) -> str:
    """A variable as a symbol: `phase[r]` has its request as subscript, and its value after the step a prime."""
    found = _INDEXED.fullmatch(shown)
    symbol = f"<mi>{escape(found[1] if found else shown)}</mi>"
    below = _text(found[2]) if found else ""
    whole = f"<msub>{symbol}{below}</msub>" if found else symbol
    return _row(whole, "<mi>′</mi>") if after else whole


def formula_reader(model: Model) -> Reader:
    """The reader that names things in the formulas of a model."""
    named = [(term, each) for each, term in named_terms(model.state).items() if term is not TRUE]
    return reader_of(model, named)


def formula(reader: Reader, term: Term, words: Sequence[str] = ()) -> str:
    """A term as the inside of a `<math>`; its constants are written in these words."""
    known = reader.named.get(id(term))
    if known is not None:
        return name(reader.name(known))
    match term.op:
        case "var" | "parameter":
            text = name(reader.name(term.args[0]) if term.op == "var" else str(term.args[0]))
        case "const":
            value = term.args[0]
            text = _text(str(words[value])) if 0 <= value < len(words) else f"<mn>{value}</mn>"
        case "true" | "false":
            text = _sign("⊤" if term.op == "true" else "⊥")
        case "ite":
            text = _choice(reader, term, words)
        case "not":
            text = _negated(reader, term.args[0])
        case "and" | "or":
            text = _junction(reader, term)
        case "eq":
            text = _equality(reader, term, "=")
        case _:
            text = _infix(reader, term, _SIGNS[term.op], closed=term.op in {"add", "sub"})
    return text


def _choice(reader: Reader, term: Term, words: Sequence[str]) -> str:
    condition, then, otherwise = term.args
    parts = (_text("if "), formula(reader, condition), _text(" then "), formula(reader, then, words))
    return _row(_sign("("), *parts, _text(" else "), formula(reader, otherwise, words), _sign(")"))


def _negated(reader: Reader, inner: Bool) -> str:
    if id(inner) not in reader.named:
        if inner.op == "eq":
            return _equality(reader, inner, "≠")
        if inner.op in _OPPOSITE:
            return _infix(reader, inner, _OPPOSITE[inner.op])
    return _row(_sign("¬"), formula(reader, inner))


def _infix(reader: Reader, term: Term, sign: str, *, closed: bool = False) -> str:
    left, right = (formula(reader, each) for each in term.args)
    inside = (left, _sign(sign), right)
    return _row(_sign("("), *inside, _sign(")")) if closed else _row(*inside)


def _equality(reader: Reader, term: Term, sign: str) -> str:
    left, right = term.args
    return _row(formula(reader, left, _words(reader, right)), _sign(sign), formula(reader, right, _words(reader, left)))


def _words(reader: Reader, term: Int) -> Sequence[str]:
    return reader.words.get(term.args[0], ()) if term.op == "var" else ()


def _junction(reader: Reader, term: Term) -> str:
    sign, every = (_sign("∧"), "∀") if term.op == "and" else (_sign("∨"), "∃")
    parts = [
        _quantified(reader.of_any(), part, every) if both else formula(reader, part)
        for part, both in reader.folded(term.args)
    ]
    joined = [item for part in parts for item in (sign, part)][1:]
    return _row(_sign("("), *joined, _sign(")"))


def _quantified(reader: Reader, term: Term, every: str) -> str:
    return _row(_sign(every), "<mi>s</mi>", _sign(":"), formula(reader, term))


def guard_rows(reader: Reader, guard: Bool) -> Iterator[Row]:
    """A guard, one row per part."""
    if guard is TRUE:
        yield _text("when"), _sign("⊤")
        return
    parts = guard.args if guard.op == "and" and id(guard) not in reader.named else (guard,)
    for number, (part, both) in enumerate(reader.folded(parts)):
        text = _quantified(reader.of_any(), part, "∀") if both else formula(reader, part)
        yield (_sign("∧") if number else _text("when")), text


def effect_rows(reader: Reader, action: Action, variables: Mapping[str, Variable]) -> Iterator[Row]:
    """An effect, one row per variable and case of its new value; unchanged variables are left out."""
    first = True
    for variable, term in changes(action.effect).items():
        twin = twin_of(variable)
        alike = twin != variable and twin in action.effect and reader.swapped(term) is action.effect[twin]
        if alike and variable > twin:
            continue
        own = reader.of_any() if alike else reader
        every = _row(_sign("∀"), "<mi>s</mi>", _sign(":")) if alike else ""
        for number, text in enumerate(_cases(own, variable, term, variables[variable].labels)):
            sign = "" if number else _text("then") if first else _sign("∧")
            yield sign, _row(every, text)
            first = False
    if first:
        yield _text("then"), _text("nothing changes")


def _cases(reader: Reader, variable: str, term: Term, words: Sequence[str]) -> Iterator[str]:
    target = _row(name(reader.name(variable), after=True), _sign("="))
    chosen = term.op == "ite"
    while term.op == "ite":
        condition, then, term = term.args
        yield _row(target, formula(reader, then, words), _text(" if "), formula(reader, condition))
    yield _row(target, formula(reader, term, words), _text(" otherwise") if chosen else "")


def step(model: Model, action: Action) -> str:
    """An action's guard and effect as one `<math>` element."""
    reader = formula_reader(model)
    variables = {variable.name: variable for variable in model.variables}
    rows = [*guard_rows(reader, action.guard), *effect_rows(reader, action, variables)]
    return math(rows)


def statement(model: Model, term: Bool) -> str:
    """A statement about states as one `<math>` element, a row for each part."""
    rows = list(guard_rows(formula_reader(model), term))
    return math([("", text) if number == 0 else (sign, text) for number, (sign, text) in enumerate(rows)])


def math(rows: Sequence[Row]) -> str:
    """Rows, one below the other, as one `<math>` element."""
    inside = "".join(f"<mtr><mtd>{sign}</mtd><mtd>{text}</mtd></mtr>" for sign, text in rows)
    return f'<math class="lp-math" display="block"><mtable>{inside}</mtable></math>'


def shown_name(variable: str) -> str:
    """A variable's name in the book: the same for every request and every queue."""
    return f"{stem(variable)}[r]" if stem(variable) != variable else re.sub(r"_q\d+$", "", variable)
