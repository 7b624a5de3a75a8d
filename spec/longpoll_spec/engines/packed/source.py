"""The source text of packed columns: which local holds which term's column, where it is made and freed.

Writes terms, one local per column; `compile` decides what to compute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from attrs import define, field, frozen

from longpoll_spec.engines.analysis.simplify import Simplifier
from longpoll_spec.engines.packed.layout import LANES, Field
from longpoll_spec.engines.packed.words import least
from longpoll_spec.terms import Bool, Int, Term

INDENT: Final = "    "
_SIGNS: Final = {"add": "+", "sub": "-", "lt": "<", "le": "<=", "eq": "=="}
_LOCAL: Final = re.compile(r"\bx\d+\b")


@frozen
class Source:
    """One function's text and its constants: plain values, so that any process can compile the function."""

    lines: tuple[str, ...]
    column: str
    """The name of the columns' type."""
    constants: Mapping[str, Any]

    def function(self, name: str) -> Any:
        """The function of this name."""
        space: dict[str, Any] = {
            "flatnonzero": np.flatnonzero,
            "arange": np.arange,
            "ascontiguousarray": np.ascontiguousarray,
            "least": least,
            "u8": np.uint8,
            "i8": np.int8,
            "u64": np.uint64,
            "column": np.dtype(self.column),
            **self.constants,
        }
        exec(compile("\n".join(self.lines), f"<law: {name}>", "exec"), space)  # noqa: S102 - made from terms
        return space[name]


def constant_of(term: Term) -> int | None:
    """The value of a term that is a constant."""
    match term.op:
        case "const":
            return int(term.args[0])
        case "parameter":
            return int(term.args[1])
        case "true" | "false":
            return int(term.op == "true")
        case _:
            return None


def _depth(line: str) -> int:
    return (len(line) - len(line.lstrip())) // len(INDENT)


def given_up(lines: Sequence[str]) -> list[str]:
    """The lines, with each local freed after its last use, or at the end of the block if that use is nested deeper."""
    born: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, line in enumerate(lines):
        for name in _LOCAL.findall(line):
            born.setdefault(name, _depth(line))
            last[name] = number
    over: dict[int, list[str]] = {}
    for name, number in last.items():
        end = number
        while end + 1 < len(lines) and _depth(lines[end + 1]) > born[name]:
            end += 1
        over.setdefault(end, []).append(name)
    made: list[str] = []
    for number, line in enumerate(lines):
        made.append(line)
        names = sorted(over.get(number, ()), key=lambda name: -born[name])
        made += [f"{INDENT * born[name]}del {name}" for name in names]
    return made


@define
class Writer:
    """The source under construction. Invariant: a local is written once, before its uses."""

    column: np.dtype[Any]
    places: Mapping[str, Field]
    simplifier: Simplifier
    lines: list[str] = field(factory=list)
    depth: int = 1
    locals_made: int = 0
    constants: dict[str, Any] = field(factory=dict)
    lanes: dict[tuple[int, int], str] = field(factory=dict)
    """(word, lane) -> the local that holds it."""

    def line(self, text: str) -> None:
        """Write one line."""
        self.lines.append((INDENT * self.depth if self.lines else "") + text)

    def local(self, text: str) -> str:
        """A new local that holds this expression."""
        self.locals_made += 1
        name = f"x{self.locals_made}"
        self.line(f"{name} = {text}")
        return name

    def constant(self, value: int) -> str:
        """A constant of the columns' type, so that no operation widens."""
        name = f"i_{value}".replace("-", "m")
        self.constants[name] = self.column.type(value)
        return name

    def word_constant(self, value: int) -> str:
        """A constant of the words' type."""
        name = f"w_{value:x}"
        self.constants[name] = np.uint64(value)
        return name

    def as_byte(self, text: str, *, truth: bool) -> str:
        """A column's low bits as unsigned bytes, ready to be shifted within a lane."""
        return f"{text}.view(u8)" if truth or self.column.itemsize == 1 else f"{text}.astype(u8)"

    def unpacked(self, name: str) -> str:
        """The column of a variable for the whole chunk."""
        place = self.places[name]
        if place.straddles:
            shift = self.word_constant(place.shift_in_word)
            bits = f"((words[{place.word}] >> {shift}).astype(u8) & {place.mask})"
            return self._typed(bits, truth=place.variable.truth)
        lane = self._lane(place.word, place.lane)
        shifted = f"({lane} >> {place.shift})" if place.shift else lane
        return self._typed(f"({shifted} & {place.mask})", truth=place.variable.truth)

    def _lane(self, word: int, lane: int) -> str:
        if (word, lane) not in self.lanes:
            self.lanes[word, lane] = self.local(f"ascontiguousarray(words[{word}].view(u8)[{lane}::{LANES}])")
        return self.lanes[word, lane]

    def _typed(self, bits: str, *, truth: bool) -> str:
        if truth:
            return f"{bits}.view(bool)"
        return f"{bits}.view(i8)" if self.column.itemsize == 1 else f"{bits}.astype(column)"

    def source(self) -> Source:
        """The finished source."""
        return Source(tuple(given_up(self.lines)), self.column.name, self.constants)


@define
class Scope:
    """Maps nodes to the locals that hold their columns; with `rows`, a column has those rows of the outer one."""

    writer: Writer
    outer: Scope | None = None
    rows: str = ""
    names: dict[int, str] = field(factory=dict)
    nodes: list[Term] = field(factory=list)
    masks: dict[int, str] = field(factory=dict)

    def known(self, term: Term) -> str | None:
        """The local that already holds the column, if any.

        A column of the outer scope is copied for these rows into this scope, because a local of the outer scope must
        not be bound inside a branch.
        """
        scope: Scope | None = self
        rows = ""
        while scope is not None:
            name = scope.names.get(id(term))
            if name is not None:
                return self._bind(term, f"{name}.take({rows})") if rows else name
            rows = rows or scope.rows
            scope = scope.outer
        return None

    def value(self, term: Term) -> str:
        """The local that holds the term's column; written now if there is none."""
        constant = constant_of(term)
        if constant is not None:
            return self.writer.constant(constant) if isinstance(term, Int) else str(bool(constant))
        known = self.known(term)
        if known is not None:
            return known
        if term.op == "var":
            return self._variable(term)
        return self._bind(term, self._text(term))

    def _variable(self, term: Term) -> str:
        """Variables are unpacked once, before everything else, so every scope finds them."""
        assert self.outer is None, f"{term.args[0]} was not unpacked"
        return self._bind(term, self.writer.unpacked(term.args[0]))

    def _text(self, term: Term) -> str:
        match term.op:
            case "not":
                return f"~{self.value(term.args[0])}"
            case "ite":
                return self._choice(term)
            case "and":
                return self._conjunction(term)
            case "or":
                return " | ".join(self.value(arg) for arg in term.args)
            case _:
                left, right = term.args
                return f"{self.value(left)} {_SIGNS[term.op]} {self.value(right)}"

    def _choice(self, term: Term) -> str:
        """Select with bit operations: several plain operations on columns are faster than one `where`."""
        condition, then, otherwise = (self.value(arg) for arg in term.args)
        mask = condition if isinstance(term, Bool) else self.mask(term.args[0])
        return f"{otherwise} ^ (({then} ^ {otherwise}) & {mask})"

    def change(self, new: Term, old: Term) -> str:
        """The bits in which two terms differ; a choice that keeps the old value differs only in its other case."""
        if new.op == "ite" and isinstance(new, Int) and any(branch is old for branch in new.args[1:]):
            condition, then, otherwise = new.args
            mask = self.mask(condition)
            return (
                f"({self.change(then, old)}) & {mask}"
                if otherwise is old
                else f"({self.change(otherwise, old)}) & ~{mask}"
            )
        return f"{self.value(new)} ^ {self.value(old)}"

    def mask(self, condition: Term) -> str:
        """A column of the columns' type, all bits set where the condition holds, else zero."""
        held = self.masks.get(id(condition))
        if held is None:
            truth = self.value(condition)
            narrow = self.writer.column.itemsize == 1
            wide = f"{truth}.view(i8)" if narrow else f"{truth}.astype(column)"
            held = self.masks[id(condition)] = self.writer.local(f"-{wide}")
        return held

    def _conjunction(self, term: Term) -> str:
        """Several negations become one negation of a disjunction: fewer passes over the columns."""
        negated = [arg for arg in term.args if arg.op == "not"]
        plain = [self.value(arg) for arg in term.args if arg.op != "not"]
        if negated:
            inner = " | ".join(self.value(arg.args[0]) for arg in negated)
            plain.append(f"~({inner})")
        return " & ".join(plain)

    def _bind(self, term: Term, text: str) -> str:
        name = self.writer.local(text)
        self.names[id(term)] = name
        self.nodes.append(term)
        return name
