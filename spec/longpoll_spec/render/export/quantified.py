"""Turns terms of three requests and three queues into expressions about any number of both, and writes these as TLA+.

The terms of the specification name every request and queue. Parts of a term that say the same about each request or
queue become a quantifier: `phase_0 = held`, `phase_1 = held` and `phase_2 = held` in a conjunction become a statement
about every request, and in a disjunction a statement about some request. Three requests are enough to distinguish
`every other one` from `the other one`. If one request or queue lacks its part, or a part names a request that no
quantifier covers, `NotUniformError` is raised, so that the text never means more than the terms.

An expression is a tuple: its operator, then its parts. The operators are those of `terms` and, with their parts in
parentheses: `var` (name, primed, index), `slot` (kind, number), `call` (name, primed, arguments), `in` and `notin`
(expression, words), `every` and `some` (letter, kind, excluded `letters`, body), and `letter`, `word`, `name`, `num`
and `is queue` (one part each). The text of an expression is on one line if it fits, and otherwise in bulleted
junctions. `tla` writes the module around these texts.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from longpoll_spec.bounds import MESSAGES_MAX
from longpoll_spec.errors import UserError
from longpoll_spec.state import Variable
from longpoll_spec.terms import Term, const

Expression: TypeAlias = tuple[Any, ...]
Slot: TypeAlias = tuple[str, int]
"""A request or a queue: its kind and its number, such as `("request", 0)`."""
Bound: TypeAlias = Mapping[Slot, str]
"""Maps a slot to the letter that represents it in the text."""

SLOTS: Final = 3
LETTERS: Final = {"request": ("r", "s", "t"), "queue": ("q", "p", "o")}
PRIME: Final = "'"
MESSAGES: Final = "Messages"
NO_QUEUE: Final = "none"
_NAME: Final = re.compile(r"(.*?)(?:_q(?P<queue>\d+))?(?:_(?P<request>\d+))?")
_JUNCTIONS: Final = {"and": "every", "or": "some"}


class NotUniformError(UserError):
    """The export is refused, because the specification treats one request or queue differently from the others."""


def indexed(name: str) -> tuple[str, tuple[Expression, ...]]:
    """The name of a variable without its number, and its slots as expressions."""
    found = _NAME.fullmatch(name)
    assert found is not None, name
    slots = [("slot", kind, int(number)) for kind, number in found.groupdict().items() if number is not None]
    return found[1], tuple(slots)


@frozen
class Reading:
    """Reads the terms of a state as expressions."""

    variables: Mapping[str, Variable]
    calls: tuple[tuple[Term, Expression], ...] = ()
    """(term, call of a predicate that replaces the term). If a term has several calls, the first one counts."""
    named: Mapping[int, Expression] = field(init=False)
    """Maps the id of a term to its call. `calls` references the terms, so ids stay unique."""
    junctions: tuple[tuple[Term, Expression], ...] = field(init=False)
    """The junctions that have a call, the longest first. A junction with a call is also found among the parts of a
    longer junction."""

    def __attrs_post_init__(self) -> None:
        found = [pair for pair in self.calls if pair[0].op in _JUNCTIONS]
        object.__setattr__(self, "named", {id(term): call for term, call in reversed(self.calls)})
        object.__setattr__(self, "junctions", tuple(sorted(found, key=lambda pair: -len(pair[0].args))))

    def expression(self, term: Term, variable: Variable | None = None) -> Expression:  # noqa: PLR0911 - one case each
        """The expression of a term. If `variable` is given, constants in the term are values of this variable."""
        if id(term) in self.named:
            return self.named[id(term)]
        match term.op:
            case "var":
                base, slots = indexed(term.args[0].removesuffix(PRIME))
                return ("var", base, term.args[0].endswith(PRIME), *slots)
            case "parameter":
                return ("name", term.args[0])
            case "const":
                return _constant(term.args[0], variable)
            case "true" | "false":
                return ("name", term.op.upper())
            case "ite":
                condition, then, otherwise = term.args
                if _is_negative(condition):
                    return self.expression(otherwise, variable)
                branches = (self.expression(then, variable), self.expression(otherwise, variable))
                return ("ite", self.expression(condition), *branches)
            case "and" | "or":
                return (term.op, *self._parts(term))
            case "eq":
                left, right = term.args
                return ("eq", self.expression(left, self._of(right)), self.expression(right, self._of(left)))
            case _:
                return self._compared_with_none(term) or (term.op, *map(self.expression, term.args))

    def _compared_with_none(self, term: Term) -> Expression | None:
        """A comparison with 0 as an equality, if values have names, because names have no order in TLA+; else None."""
        left, right = term.args[0], term.args[-1]
        if term.op == "le" and right is const(0) and (variable := self._of(left)) is not None and variable.labels:
            return ("eq", self.expression(left), ("word", variable.labels[0]))
        if term.op == "lt" and left is const(0) and (variable := self._of(right)) is not None and variable.labels:
            return ("not", ("eq", self.expression(right), ("word", variable.labels[0])))
        return None

    def _of(self, term: Term) -> Variable | None:
        return self.variables[term.args[0].removesuffix(PRIME)] if term.op == "var" else None

    def _parts(self, junction: Term) -> Iterator[Expression]:
        """The expressions of the parts of a junction. Parts that together form a named junction become its call."""
        left = {id(part): part for part in junction.args}
        calls: dict[int, Expression] = {}
        for term, call in self.junctions:
            if term.op == junction.op and all(id(part) in left for part in term.args):
                calls[id(term.args[0])] = call
                for part in term.args:
                    del left[id(part)]
        for part in junction.args:
            if id(part) in calls:
                yield calls[id(part)]
            elif id(part) in left:
                yield self.expression(part)


def _is_negative(condition: Term) -> bool:
    """Whether the condition is that a variable is below zero, which `TypeOK` excludes."""
    return condition.op == "lt" and condition.args[0].op == "var" and condition.args[1] is const(0)


def _constant(value: int, variable: Variable | None) -> Expression:
    if variable is not None and variable.numbers_queues:
        return ("slot", "queue", value) if value < SLOTS else ("name", NO_QUEUE)
    if variable is not None and variable.labels:
        return ("word", variable.labels[value])
    return ("name", MESSAGES) if value == MESSAGES_MAX else ("num", value)


def generalised(expression: Expression, bound: Bound) -> Expression:
    """The expression with letters for the bound slots and quantifiers over all others."""
    match expression[0]:
        case "slot":
            letter = bound.get(expression[1:])
            if letter is None:
                raise NotUniformError(
                    f"the specification names {expression[1]} {expression[2]} alone; use --to promela"
                )
            return ("letter", letter)
        case "and" | "or":
            return _junction(expression, bound)
        case "ite":
            return _choice(expression, bound)
        case _:
            return _mapped(expression, lambda part: generalised(part, bound))


def _mapped(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    return tuple(change(part) if isinstance(part, tuple) else part for part in expression)


def replaced(expression: Expression, changes: Mapping[Expression, Expression]) -> Expression:
    """The expression with some parts replaced, simultaneously."""
    if expression in changes:
        return changes[expression]
    return _mapped(expression, lambda part: replaced(part, changes))


def key(expression: Expression) -> object:
    """A key of an expression, equal for expressions that differ only in the order of the parts of junctions."""
    parts = [key(part) if isinstance(part, tuple) else part for part in expression]
    return (expression[0], frozenset(parts[1:])) if expression[0] in _JUNCTIONS else tuple(parts)


def slots_in(expression: Expression) -> set[Slot]:
    """The slots that occur in an expression."""
    if expression[0] == "slot":
        return {expression[1:]}
    return set[Slot]().union(*(slots_in(part) for part in expression if isinstance(part, tuple)))


def letter_for(kind: str, taken: Iterable[str]) -> str:
    """The first letter for a kind that is not taken."""
    used = set(taken)
    return next(letter for letter in LETTERS[kind] if letter not in used)


def _slot(slot: Slot) -> Expression:
    return ("slot", *slot)


def _junction(expression: Expression, bound: Bound) -> Expression:
    op, *parts = expression
    places = {key(part): place for place, part in enumerate(parts)}
    made: dict[int, Expression] = {}
    done: set[int] = set()
    for place, part in enumerate(parts):
        free = [slot for slot in sorted(slots_in(part) - bound.keys()) if not _is_inside(part, slot, bound)]
        if not free or place in done:
            continue
        there, text = _quantified(op, part, free[0], places, bound)
        done |= there
        made[min(there)] = text
    for place, part in enumerate(parts):
        if place not in done:
            made[place] = generalised(part, bound)
    flat = [each for place in sorted(made) for each in (made[place][1:] if made[place][0] == op else (made[place],))]
    folded = _memberships(op, _merged(op, flat))
    return folded[0] if len(folded) == 1 else (op, *folded)


def _is_inside(part: Expression, slot: Slot, bound: Bound) -> bool:
    """Whether the expression stays the same if this slot and another free slot are swapped.

    If so, the slot's quantifier belongs inside the expression, because the expression already ranges over both slots.
    """
    others = [(slot[0], number) for number in range(SLOTS) if number != slot[1] and (slot[0], number) not in bound]
    return any(key(_swapped(part, slot, other)) == key(part) for other in others)


def _swapped(part: Expression, one: Slot, other: Slot) -> Expression:
    return replaced(part, {_slot(one): _slot(other), _slot(other): _slot(one)})


def _quantified(
    op: str, part: Expression, slot: Slot, places: Mapping[object, int], bound: Bound
) -> tuple[set[int], Expression]:
    """Quantify a part over every slot of its kind; returns the indices of all covered parts, and the expression."""
    kind = slot[0]
    there: set[int] = set()
    left_out: list[str] = []
    for number in range(SLOTS):
        other = (kind, number)
        same = replaced(part, {_slot(slot): _slot(other)}) if other in bound else _swapped(part, slot, other)
        place = places.get(key(same))
        if place is not None:
            there.add(place)
        elif other in bound:
            left_out.append(bound[other])
        else:
            raise NotUniformError(
                f"the specification treats {kind} {slot[1]} differently from {kind} {number}; use --to promela"
            )
    letter = letter_for(kind, bound.values())
    body = generalised(part, {**bound, slot: letter})
    whole = None if left_out or kind != "queue" else _of_its_queue(op, body, letter)
    return there, whole or (_JUNCTIONS[op], letter, kind, ("letters", *left_out), body)


def _of_its_queue(op: str, body: Expression, letter: str) -> Expression | None:
    """The statement without a quantifier, if the queue is the value of a variable in the statement; None otherwise."""
    if op != "or" or body[0] != "and":
        return None
    mine = ("letter", letter)
    for part in body[1:]:
        if part[0] == "eq" and mine in part[1:]:
            its = part[1] if part[2] == mine else part[2]
            others = [replaced(other, {mine: its}) for other in body[1:] if other is not part]
            return ("and", ("is queue", its), *others)
    return None


def _merged(op: str, parts: Iterable[Expression]) -> list[Expression]:
    found: dict[Expression, list[Expression]] = {}
    for part in parts:
        quantified = part[0] == _JUNCTIONS[op]
        found.setdefault(part[:4] if quantified else part, []).append(part[4] if quantified else part)
    return [
        (*head, (op, *bodies)) if len(bodies) > 1 else (*head, bodies[0]) if head[0] == _JUNCTIONS[op] else head
        for head, bodies in found.items()
    ]


def _memberships(op: str, parts: list[Expression]) -> list[Expression]:
    found: dict[object, list[int]] = {}
    for place, part in enumerate(parts):
        equality = part if op == "or" else part[1] if part[0] == "not" else ()
        if equality and equality[0] == "eq" and equality[2][0] == "word":
            found.setdefault(key(equality[1]), []).append(place)
    made = list(parts)
    dropped: set[int] = set()
    for first, *others in found.values():
        if others:
            equalities = [parts[place] if op == "or" else parts[place][1] for place in (first, *others)]
            words = tuple(each[2] for each in equalities)
            made[first] = ("in" if op == "or" else "notin", equalities[0][1], *words)
            dropped |= set(others)
    return [part for place, part in enumerate(made) if place not in dropped]


def _choice(expression: Expression, bound: Bound) -> Expression:
    """Make a chain of `ite` expressions one about any number of queues.

    If the chain has a case for each queue that a variable may name, it becomes one expression about that queue.
    """
    cases: dict[int, Expression] = {}
    asked: Expression | None = None
    rest = expression
    while rest[0] == "ite" and rest[1][0] == "eq" and rest[1][2][0] == "slot" and asked in {None, rest[1][1]}:
        _, (_, asked, (_, _, number)), then, rest = rest
        cases[number] = then
    if asked is not None and set(cases) == set(range(SLOTS)):
        number = next(each for each in range(SLOTS) if ("queue", each) not in bound)
        own = ("slot", "queue", number)
        for other, then in cases.items():
            if key(replaced(cases[number], {own: ("slot", "queue", other)})) != key(then):
                raise NotUniformError(f"the specification treats queue {number} differently from queue {other}")
        its = generalised(asked, bound)
        then = generalised(cases[number], {**bound, ("queue", number): "?"})
        return ("ite", ("is queue", its), replaced(then, {("letter", "?"): its}), generalised(rest, bound))
    return _reduced(_mapped(expression, lambda part: generalised(part, bound)))


def _reduced(choice: Expression) -> Expression:
    """Simplify a choice: its condition has no negation, and a condition that an inner choice repeats is tested once."""
    _, condition, then, otherwise = choice
    if condition[0] == "not":
        return _reduced(("ite", condition[1], otherwise, then))
    if otherwise[0] == "ite":
        outer, inner = (list(each[1:] if each[0] == "and" else [each]) for each in (condition, otherwise[1]))
        rest = [part for part in outer if part not in inner]
        if len(rest) == 1 and len(outer) == len(inner) + 1:
            return ("ite", otherwise[1], _reduced(("ite", rest[0], then, otherwise[2])), otherwise[3])
    return choice


WIDTH: Final = 118
"""The longest line, in characters."""
SETS: Final = {"request": "Requests", "queue": "Queues"}
"""Maps a kind to the TLA+ constant with all requests or all queues."""
ENABLED: Final = "ENABLED "
"""The prefix of the name of a variable that represents the guard of an action."""


def comment(sentence: str) -> Iterator[str]:
    """A sentence as the lines of a TLA+ comment."""
    yield from (f"\\* {line}" for line in textwrap.wrap(sentence, WIDTH - 3))


def definition(head: str, says: Expression) -> Iterator[str]:
    """The lines of the definition of `head`, followed by an empty line."""
    short = f"{head} == {inline(says)}"
    if len(short) <= WIDTH * (3 if says[0] in _JUNCTION_SIGNS else 4) // 4:
        yield short
    else:
        yield f"{head} =="
        yield from indented(lines(says, WIDTH - 2))
    yield ""


def letters_in(expression: Expression, bound: frozenset[str] = frozenset()) -> set[str]:
    """The letters in an expression that no quantifier in it binds."""
    if expression[0] == "letter":
        return {expression[1]} - bound
    if expression[0] in {"every", "some"}:
        return letters_in(expression[4], bound | {expression[1]}) | (set(expression[3][1:]) - bound)
    return set[str]().union(*(letters_in(part, bound) for part in expression if isinstance(part, tuple)))


def denied(expression: Expression) -> Expression:
    """The negation of an expression, in a form with few negations."""
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
    """The implication from all of `given` to `then`. If `then` is an implication, its premise joins `given`."""
    parts = [part for each in given for part in (each[1:] if each[0] == "and" else (each,))]
    if then[0] == "implies":
        return implies([*parts, then[1]], then[2])
    return ("implies", ("and", *parts) if len(parts) > 1 else parts[0], then)


def as_implication(expression: Expression) -> Expression:
    r"""The statement with `A => B` instead of `~A \/ B`, also inside its quantifiers."""
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
    """The size of an expression for a reader. A comparison and its negation have the same size."""
    if expression[0] == "not":
        if expression[1][0] in {"var", "call"} and expression[1][2]:
            return 99  # a condition on the state after the step is a conclusion, so it must not become a premise
        return _weight(expression[1]) + (expression[1][0] not in _COMPARISONS)
    if expression[0] == "is queue":
        return 0
    if expression[0] in {*_COMPARISONS, *_MEMBERS, "call", "var"}:
        return 1
    return 1 + sum(_weight(part) for part in expression[1:] if isinstance(part, tuple))


_JUNCTION_SIGNS: Final = {"and": "/\\", "or": "\\/"}
_COMPARISONS: Final = {"eq": ("=", "/="), "lt": ("<", ">="), "le": ("<=", ">")}
_MEMBERS: Final = {"in": ("\\in", "\\notin"), "notin": ("\\notin", "\\in")}
_SIGNS: Final = {"every": "\\A", "some": "\\E"}
_LOOSE: Final = frozenset({"and", "or", "every", "some", "ite", "implies"})


def inline(expression: Expression) -> str:  # noqa: C901, PLR0911, PLR0912 - one case each
    """The TLA+ text of an expression, on one line."""
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
            return f" {_JUNCTION_SIGNS[op]} ".join(map(_closed, parts))
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
            name = base if isinstance(base, str) else inline(base)
            return f"[{name} EXCEPT ![{letter}] = {inline(value)}]"
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
    """The lines, indented by some spaces."""
    return (f"{' ' * by}{line}" for line in those)


def lines(expression: Expression, width: int, *, whole: bool = True) -> list[str]:  # noqa: C901, PLR0912 - one case each
    """The TLA+ text of an expression in lines of this width. With `whole`, the text is on one line if it fits."""
    short = inline(expression)
    dense = expression[0] in _JUNCTION_SIGNS and any(part[0] != "name" for part in expression[1:])
    if expression[0] in _JUNCTION_SIGNS and not dense:
        return textwrap.wrap(short, width)
    if whole and len(short) <= (3 * width // 4 if dense else width):
        return [short]
    match expression:
        case ("and" | "or" as op, *parts):
            sign = _JUNCTION_SIGNS[op]
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
