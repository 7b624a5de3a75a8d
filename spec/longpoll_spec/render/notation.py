"""Writes terms in the notation of a checker or for readers, and a state as readable lines.

A `Notation` has the infix operators, and a `Writer` also has names for values and for frequent terms; `promela` and
`tla` lay out variables, actions and properties. `Reader` writes for people, such as `phase[r] = held`, and writes a
statement that is the same for every request once. `Reader` needs a model with two requests. A statement about request 0
is written as one about `r`, the acting request, or as one about any request `s` if the model states the same about
request 1, which swapping the requests shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs
from attrs import field, frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.model import Action, Model
from longpoll_spec.state import Variable
from longpoll_spec.terms import TRUE, Bool, Effect, Int, Term, changes, nodes, substitute


@frozen
class Notation:
    """The operators of a notation; `<`, `<=`, `+` and `-` are the same in all notations."""

    conjunction: str
    disjunction: str
    negation: str
    equal: str
    unequal: str
    true: str
    false: str
    choice: str
    """The format of if-then-else, over `{condition}`, `{then}` and `{otherwise}`, with parentheses around it."""


_OPPOSITE: Final = {"lt": ">=", "le": ">"}
_OPEN: Final = frozenset({"lt", "le", "eq", "not"})
"""The operators that are written without outer parentheses."""
_SIGNS: Final = {"lt": "<", "le": "<=", "add": "+", "sub": "-"}


@frozen
class Writer:
    """Writes terms in a notation.

    `named` maps the id of a term to its name, and `kept` has these terms, so that ids stay unique.
    """

    notation: Notation
    words: Mapping[str, Sequence[str]]
    """Maps a variable to the names of its values, if they have names."""
    named: Mapping[int, str] = field(factory=dict)
    kept: tuple[Term, ...] = ()

    def naming(self, names: Iterable[tuple[Term, str]]) -> Writer:
        """A writer that also uses these names for terms. If a term has several names, the first one counts."""
        pairs = tuple(names)
        named = {**{id(term): name for term, name in reversed(pairs)}, **self.named}
        return attrs.evolve(self, named=named, kept=(*self.kept, *(term for term, _ in pairs)))

    def text(self, term: Term) -> str:
        """The term as text. The text has parentheses unless the term's operator is a comparison or a negation."""
        return self._written(term, ())

    def operand(self, term: Term) -> str:
        """The term as an operand, in parentheses if it needs them."""
        return self._closed(term, ())

    def value(self, term: Term, variable: str) -> str:
        """The term as a value of the variable: its constants are written by the names of the variable's values."""
        return self._closed(term, self.words.get(variable, ()))

    def _closed(self, term: Term, words: Sequence[str]) -> str:
        text = self._written(term, words)
        return f"({text})" if term.op in _OPEN and id(term) not in self.named else text

    def _written(self, term: Term, words: Sequence[str]) -> str:
        name = self.named.get(id(term))
        if name is not None:
            return name
        match term.op:
            case "var" | "parameter":
                text = str(term.args[0])
            case "const":
                text = str(words[term.args[0]]) if 0 <= term.args[0] < len(words) else _signed(term.args[0])
            case "true" | "false":
                text = self.notation.true if term.op == "true" else self.notation.false
            case "ite":
                text = self._choice(term, words)
            case "not":
                text = self._negated(term.args[0])
            case "and" | "or":
                sign = self.notation.conjunction if term.op == "and" else self.notation.disjunction
                text = f"({f' {sign} '.join(self.text(arg) for arg in term.args)})"
            case "eq":
                text = self._equality(term, self.notation.equal)
            case "lt" | "le":
                text = self._infix(term, _SIGNS[term.op])
            case _:
                text = f"({self._infix(term, _SIGNS[term.op])})"
        return text

    def _choice(self, term: Term, words: Sequence[str]) -> str:
        condition, then, otherwise = term.args
        return self.notation.choice.format(
            condition=self.text(condition), then=self._written(then, words), otherwise=self._written(otherwise, words)
        )

    def _negated(self, inner: Bool) -> str:
        if id(inner) not in self.named:
            if inner.op == "eq":
                return self._equality(inner, self.notation.unequal)
            if inner.op in _OPPOSITE:
                return self._infix(inner, _OPPOSITE[inner.op])
        return f"{self.notation.negation}{self.text(inner)}"

    def _infix(self, term: Term, sign: str) -> str:
        left, right = term.args
        return f"{self.text(left)} {sign} {self.text(right)}"

    def _equality(self, term: Term, sign: str) -> str:
        left, right = term.args
        return f"{self._written(left, self._words_of(right))} {sign} {self._written(right, self._words_of(left))}"

    def _words_of(self, term: Int) -> Sequence[str]:
        return self.words.get(term.args[0], ()) if term.op == "var" else ()


def _signed(value: int) -> str:
    return str(value) if value >= 0 else f"({value})"


def words_of(variables: Iterable[Variable]) -> dict[str, tuple[str, ...]]:
    """Map a variable to the names of its values, such as PHASE_HELD.

    Variables that differ only in their number share names.
    """
    return {
        each.name: tuple(f"{stem(each.name)}_{label}".upper() for label in each.labels)
        for each in variables
        if each.labels
    }


def stem(name: str) -> str:
    """A variable's name without the number of its slot."""
    return re.sub(r"_\d+$", "", name)


def identifier(text: str) -> str:
    """The text as an identifier: each run of other characters becomes one underscore, so `hold(0)` becomes `hold_0`."""
    return re.sub(r"\W+", "_", text).strip("_")


def name_of(model: Model) -> str:
    """The name of an export's files and its TLA+ module."""
    return identifier(f"longpoll_{model.policy.name}_{model.bounds.name}")


def guards_of(model: Model, prefix: str) -> list[tuple[Action, str]]:
    """Each action with the name of its guard; names are unique."""
    named = [(action, f"{prefix}{identifier(action.label)}") for action in model.actions]
    assert len({name for _, name in named}) == len(named), "two actions have one name"
    return named


def parameters_of(model: Model) -> dict[str, int]:
    """Map the name of a parameter to its value, in the order in which the actions read the parameters."""
    terms: list[Term] = [term for action in model.actions for term in (action.guard, *action.effect.values())]
    return {node.args[0]: node.args[1] for node in nodes(*terms) if node.op == "parameter"}


def named_parts(guards: Iterable[tuple[Action, str]]) -> list[tuple[Term, str]]:
    """The guards that other terms refer to by name. A guard that is a single comparison is written out instead."""
    return [(action.guard, name) for action, name in guards if action.guard.op in {"and", "or"}]


def setting_of(model: Model) -> str:
    """The policy and the bounds in one line, for the header of an export."""
    return f"policy {model.policy.name}, bounds {model.bounds.name}: {sizes_of(model.bounds)}"


def sizes_of(bounds: Bounds) -> str:
    """The sizes and features of bounds, in words."""
    messages = "any" if bounds.messages is None else bounds.messages
    sizes = {
        "requests": bounds.requests,
        "messages": messages,
        "hold ticks": bounds.hold_ticks,
        "scan ticks": bounds.scan_ticks,
        **({"queues": bounds.queues} if bounds.queues > 1 else {}),
        **({"tags": bounds.tags} if bounds.tags > 1 else {}),
    }
    aspects = [f"aspect {name}" for name in sorted(bounds.aspects)]
    return ", ".join([*(f"{name} {value}" for name, value in sizes.items()), *aspects])


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
"""The names of the two requests in a statement in which the first one acts."""
BOUND: Final = ("s", "other than s")
"""The names of the two requests in a statement about every request, or about some request."""
_SLOT: Final = re.compile(r"_(\d+)$")
_QUEUE: Final = re.compile(r"_(q\d+)$")


@frozen
class Reader(Writer):
    """Writes terms of a model with two requests for people."""

    swap: Effect = field(factory=dict)
    """Maps a variable of one request to the same variable of the other request, as a term."""
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
        """Yield (part of a junction, whether both requests have this part); a part of both is yielded once."""
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
    """The reader of a model with two requests. `named` has terms with the names to write for them.

    The name of a term about one request must end with the number of the request, like the name of a variable.
    """
    assert model.bounds.requests == len(ACTING), "the readable text is of two requests"
    terms = {variable.name: variable.term for variable in model.variables}
    swap = {name: terms[twin_of(name)] for name in terms if twin_of(name) != name}
    words = {variable.name: variable.labels for variable in model.variables if variable.labels}
    made = Reader(NOTATION, words, swap=swap).naming(named)
    assert isinstance(made, Reader)
    return made


def twin_of(name: str) -> str:
    """The name of the same variable of the other request; the name itself if the variable belongs to no request."""
    found = _SLOT.search(name)
    return name if found is None else f"{name[: found.start()]}_{1 - int(found[1])}"


def guard_lines(reader: Reader, guard: Bool) -> list[str]:
    """The lines of a guard, one per conjunct."""
    if guard is TRUE:
        return ["always"]
    parts = guard.args if guard.op == "and" else (guard,)
    lines = [
        f"every s: {reader.of_any().text(part)}" if both else reader.text(part) for part, both in reader.folded(parts)
    ]
    return [bare(line) for line in lines]


def effect_lines(reader: Reader, action: Action, variables: Mapping[str, Variable]) -> list[str]:
    """The lines of an effect, one per assignment or case. Assignments that change nothing are left out."""
    changed = changes(action.effect)
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
    """The text without its parentheses, if one pair encloses all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:-1] if index == len(text) - 1 else text
    return text


def state_text(model: Model, state: Sequence[int], parameters: Mapping[str, int] | None = None) -> str:
    """A state as text: one line for the broker, and one for each request whose values differ from the first state."""
    shown: dict[str, list[str]] = {}
    for variable, value in zip(model.variables, state, strict=True):
        name, _, slot = variable.name.rpartition("_")
        of_request = slot.isdecimal()
        if value != variable.initial or not of_request:
            text = str(value) if variable.labels and not 0 <= value < len(variable.labels) else variable.show(value)
            shown.setdefault(f"request {slot}" if of_request else "broker", []).append(
                f"{name if of_request else variable.name} {text}"
            )
    lines = [f"{who}: {', '.join(parts)}" for who, parts in shown.items()]
    if parameters:
        lines.append("parameters: " + ", ".join(f"{name} {value}" for name, value in parameters.items()))
    return "\n".join(lines)
