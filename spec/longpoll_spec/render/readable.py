"""Terms for readers: `phase[r] = held`, and one line for a statement that is the same for every request.

The text is of a model with two requests. A statement about request 0 is one about `r`, the acting request, or about any
request `s` if the same is stated of the other. Swapping the requests checks this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs
from attrs import field, frozen

from longpoll_spec.model import Action, Model
from longpoll_spec.render.notation import Notation, Writer, stem
from longpoll_spec.state import Variable
from longpoll_spec.terms import TRUE, Bool, Effect, Term, substitute

NOTATION: Final = Notation(
    conjunction="and",
    disjunction="or",
    negation="not ",
    equal="=",
    unequal="≠",
    true="yes",
    false="no",
    choice="(if {condition} then {then} else {otherwise})",
)
ACTING: Final = ("r", "other")
"""The names of the two requests if the first one acts."""
BOUND: Final = ("s", "other than s")
"""The names if the statement is about every request, or some."""
_SLOT: Final = re.compile(r"_(\d+)$")
_QUEUE: Final = re.compile(r"_(q\d+)$")


@frozen
class Reader(Writer):
    """Writes terms of a model with two requests."""

    swap: Effect = field(factory=dict)
    """Each variable of one request -> the other's."""
    letters: tuple[str, str] = ACTING

    def swapped(self, term: Term) -> Term:
        """The term with the requests exchanged."""
        return substitute(term, self.swap)

    def of_any(self) -> Reader:
        """The reader for statements about any request."""
        return attrs.evolve(self, letters=BOUND)

    def name(self, variable: str) -> str:
        """The variable's name for readers."""
        found = _SLOT.search(variable)
        if found is not None:
            return f"{stem(variable)}[{self.letters[int(found[1])]}]"
        return _QUEUE.sub(r"[\1]", variable)

    def _written(self, term: Term, words: Iterable[str]) -> str:
        known = self.named.get(id(term))
        if known is not None:
            return self.name(known)
        if term.op == "var":
            return self.name(term.args[0])
        if term.op in {"and", "or"}:
            return self._folded(term)
        return super()._written(term, tuple(words))

    def _folded(self, term: Term) -> str:
        sign = self.notation.conjunction if term.op == "and" else self.notation.disjunction
        every = "every" if term.op == "and" else "some"
        parts = [
            f"{every} s: {self.of_any().text(part)}" if both else self.text(part)
            for part, both in self.folded(term.args)
        ]
        return f"({f' {sign} '.join(parts)})" if len(parts) > 1 else f"({parts[0]})"

    def folded(self, parts: Sequence[Term]) -> Iterator[tuple[Term, bool]]:
        """The parts of a junction, each with a flag: whether it is the same for both requests, and then listed once."""
        told = set[int]()
        for part in parts:
            twin = self.swapped(part)
            if id(part) in told:
                continue
            both = twin is not part and any(twin is other for other in parts)
            if both:
                told.add(id(twin))
            yield part, both


def reader_of(model: Model, named: Iterable[tuple[Term, str]] = ()) -> Reader:
    """The reader of a model with two requests; `named` are terms that have names.

    Such a name ends with the number of its request, like a variable's, if it is about one.
    """
    assert model.bounds.requests == len(ACTING), "the readable text is of two requests"
    terms = {variable.name: variable.term for variable in model.variables}
    swap = {name: terms[twin_of(name)] for name in terms if twin_of(name) != name}
    words = {variable.name: variable.labels for variable in model.variables if variable.labels}
    made = Reader(NOTATION, words, swap=swap).naming(named)
    assert isinstance(made, Reader)
    return made


def twin_of(name: str) -> str:
    """The other request's variable, if there are two; the same variable if it belongs to no request."""
    found = _SLOT.search(name)
    return name if found is None else f"{name[: found.start()]}_{1 - int(found[1])}"


def guard_lines(reader: Reader, guard: Bool) -> list[str]:
    """A guard, one line per part."""
    if guard is TRUE:
        return ["always"]
    parts = guard.args if guard.op == "and" else (guard,)
    lines = [
        f"every s: {reader.of_any().text(part)}" if both else reader.text(part) for part, both in reader.folded(parts)
    ]
    return [bare(line) for line in lines]


def effect_lines(reader: Reader, action: Action, variables: Mapping[str, Variable]) -> list[str]:
    """An effect, one assignment per line, all simultaneous; unchanged variables are left out."""
    changed = {name: term for name, term in action.effect.items() if not _is_itself(name, term)}
    lines: list[str] = []
    for name, term in changed.items():
        twin = twin_of(name)
        alike = twin != name and twin in changed and reader.swapped(term) is changed[twin]
        if alike and name > twin:
            continue
        own = reader.of_any() if alike else reader
        target = f"{'every s: ' if alike else ''}{own.name(name)} := "
        lines += _cases(own, target, term, variables[name])
    return lines


def _cases(reader: Reader, target: str, term: Term, variable: Variable) -> list[str]:
    lines = []
    while term.op == "ite":
        condition, then, term = term.args
        lines.append(f"{target}{_value(reader, then, variable)} if {bare(reader.text(condition))}")
        target = " " * len(target)
    if lines:
        return [*lines, f"{target}{_value(reader, term, variable)} otherwise"]
    return [f"{target}{_value(reader, term, variable)}"]


def _value(reader: Reader, term: Term, variable: Variable) -> str:
    return bare(reader.value(term, variable.name))


def bare(text: str) -> str:
    """The text without parentheses around the whole."""
    if not text.startswith("("):
        return text
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:-1] if index == len(text) - 1 else text
    return text


def _is_itself(name: str, term: Term) -> bool:
    return term.op == "var" and bool(term.args[0] == name)
