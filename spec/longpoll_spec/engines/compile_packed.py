"""Terms as numpy source over byte columns: one function that expands a chunk of packed states.

For a chunk it unpacks every variable into a column, evaluates every guard once for the whole chunk, and then works only
on the rows where an action is enabled. There the guard is known to hold, so what it says about a variable (`phase is
taken`) is put into the effect as a constant and folds. A new word is the old word with the changed bits flipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import define, field

from longpoll_spec.engines.decide import decided
from longpoll_spec.engines.intervals import column_type, ranges_of
from longpoll_spec.engines.layout import LANE_BITS, LANES, Field, Layout, Words
from longpoll_spec.engines.simplify import Simplifier
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, const, substitute

Found: TypeAlias = tuple[int, int | None, int]
"""(property index, index of the closing action or None, row in the chunk)."""
Weigh: TypeAlias = Callable[[npt.NDArray[np.intp]], int]
"""How many states the rows of a chunk count for: `len` where each counts for one."""
Expand: TypeAlias = Callable[[Words, Sequence[bool], Weigh, list[Words], list[int], list[Found]], None]
"""(words, open properties, weigh, list to append successors to, transitions to add to, list to append findings to)."""

_SIGNS: Final = {"add": "+", "sub": "-", "lt": "<", "le": "<=", "eq": "=="}


def expand_of(model: Model, layout: Layout, properties: Sequence[Property]) -> Expand:
    """The function that expands a chunk of words and looks at the properties on the way."""
    places = {place.variable.name: place for place in layout.fields}
    conditions = [item.here for item in properties] + [each for item in properties for _, each in item.closing]
    writer = _Writer(column_type(model, conditions), places, Simplifier(ranges_of(model)))
    writer.line("def expand(words, open_, weigh, out, fired, found):")
    chunk = _Scope(writer)
    for variable in model.variables:
        chunk.value(variable.term)
    for number, item in enumerate(properties):
        decisive = item.here if item.kind == "sometimes" else ~item.here
        _look(chunk, number, None, decisive, "")
    closing = _closing(model, properties)
    for index, action in enumerate(model.actions):
        _expand_action(chunk, index, action, closing[action.label])
    made: Expand = writer.function("expand")
    return made


def _closing(model: Model, properties: Sequence[Property]) -> Mapping[str, list[tuple[int, Bool]]]:
    found: dict[str, list[tuple[int, Bool]]] = {action.label: [] for action in model.actions}
    for number, item in enumerate(properties):
        for label, condition in item.closing:
            found[label].append((number, condition))
    return found


def _expand_action(chunk: _Scope, index: int, action: Action, closing: Sequence[tuple[int, Bool]]) -> None:
    """Find the rows where the action is enabled, look at what it would break, and make its successors."""
    writer = chunk.writer
    everywhere = action.guard is TRUE
    rows = writer.local("arange(words.size)" if everywhere else f"flatnonzero({chunk.value(action.guard)})")
    writer.line(f"if {rows}.size:")
    writer.depth += 1
    writer.line(f"fired[{index}] += weigh({rows})")
    scope = _Scope(writer, chunk, rows)
    known = _facts(action.guard)
    for number, condition in closing:
        part = writer.simplifier.simplify(_bool(substitute(condition, known)))
        _look(scope, number, index, decided(part, action.guard, writer.simplifier.ranges), rows)
    flips = _flips(scope, action, known)
    writer.line(f"out.append({' ^ '.join([f'words.take({rows})', *flips])})")
    writer.depth -= 1


def _look(scope: _Scope, number: int, closing: int | None, decisive: Bool, rows: str) -> None:
    """While a property is open, find the first row that decides it."""
    writer = scope.writer
    decisive = writer.simplifier.simplify(decisive)
    if decisive is FALSE:
        return
    writer.line(f"if open_[{number}]:")
    writer.depth += 1
    inner = _Scope(writer, scope)
    hit = "0" if decisive is TRUE else writer.local(f"int({inner.value(decisive)}.argmax())")
    row = f"int({rows}[{hit}])" if rows else hit
    found = f"found.append(({number}, {closing}, {row}))"
    if decisive is TRUE:
        writer.line(found)
    else:
        writer.line(f"if {inner.value(decisive)}[{hit}]: {found}")
    writer.depth -= 1


def _flips(scope: _Scope, action: Action, known: Mapping[str, Term]) -> list[str]:
    """The words to exclusive-or with: one constant, and one for every lane with a bit that depends on the row."""
    writer = scope.writer
    fixed = 0
    lanes: dict[int, list[str]] = {}
    apart: list[str] = []
    for name, term in action.effect.items():
        place = writer.places[name]
        new, old = substitute(term, known), known.get(name, place.variable.term)
        if new is old:
            continue
        new_value, old_value = _constant(new), _constant(old)
        if new_value is not None and old_value is not None:
            fixed ^= (new_value ^ old_value) << place.shift_in_word
            continue
        changed = writer.as_byte(f"({scope.change(new, old)})", truth=place.variable.truth)
        if place.straddles:
            apart.append(f"({changed}.astype(u64) << {writer.word_constant(place.shift_in_word)})")
            continue
        lanes.setdefault(place.lane, []).append(f"({changed} << {place.shift})" if place.shift else changed)
    flips = [writer.word_constant(fixed), *apart] if fixed else apart
    for lane, parts in lanes.items():
        wide = f"({' ^ '.join(parts)}).astype(u64)"
        flips.append(f"({wide} << {writer.word_constant(lane * LANE_BITS)})" if lane else wide)
    return flips


def _facts(guard: Bool) -> dict[str, Term]:
    """What the guard says of single variables, as constants."""
    known: dict[str, Term] = {}
    for part in guard.args if guard.op == "and" else (guard,):
        if part.op == "var":
            known[part.args[0]] = TRUE
        elif part.op == "not" and part.args[0].op == "var":
            known[part.args[0].args[0]] = FALSE
        elif part.op == "eq" and part.args[0].op == "var" and part.args[1].op == "const":
            known[part.args[0].args[0]] = const(part.args[1].args[0])
    return known


def _constant(term: Term) -> int | None:
    match term.op:
        case "const":
            return int(term.args[0])
        case "parameter":
            return int(term.args[1])
        case "true" | "false":
            return int(term.op == "true")
        case _:
            return None


def _bool(term: Term) -> Bool:
    assert isinstance(term, Bool)
    return term


@define
class _Writer:
    """The source under construction. Invariant: a local is written once, before its uses."""

    column: np.dtype[Any]
    places: Mapping[str, Field]
    simplifier: Simplifier
    lines: list[str] = field(factory=list)
    depth: int = 1
    locals_made: int = 0
    constants: dict[str, Any] = field(factory=dict)
    lanes_made: set[int] = field(factory=set)

    def line(self, text: str) -> None:
        self.lines.append(("    " * self.depth if self.lines else "") + text)

    def local(self, text: str) -> str:
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
        name = f"w_{value:x}"
        self.constants[name] = np.uint64(value)
        return name

    def as_byte(self, text: str, *, truth: bool) -> str:
        """A column's low bits as unsigned bytes, ready to be shifted inside a lane."""
        return f"{text}.view(u8)" if truth or self.column.itemsize == 1 else f"{text}.astype(u8)"

    def unpacked(self, name: str) -> str:
        """The column of a variable for the whole chunk."""
        place = self.places[name]
        if place.straddles:
            bits = f"((words >> {self.word_constant(place.shift_in_word)}).astype(u8) & {place.mask})"
            return self._typed(bits, truth=place.variable.truth)
        if place.lane not in self.lanes_made:
            self.lanes_made.add(place.lane)
            self.line(f"lane_{place.lane} = ascontiguousarray(words.view(u8)[{place.lane}::{LANES}])")
        shifted = f"(lane_{place.lane} >> {place.shift})" if place.shift else f"lane_{place.lane}"
        return self._typed(f"({shifted} & {place.mask})", truth=place.variable.truth)

    def _typed(self, bits: str, *, truth: bool) -> str:
        """Bytes as a column."""
        if truth:
            return f"{bits}.view(bool)"
        return f"{bits}.view(i8)" if self.column.itemsize == 1 else f"{bits}.astype(column)"

    def function(self, name: str) -> Any:
        space: dict[str, Any] = {
            "where": np.where,
            "flatnonzero": np.flatnonzero,
            "arange": np.arange,
            "ascontiguousarray": np.ascontiguousarray,
            "u8": np.uint8,
            "i8": np.int8,
            "u64": np.uint64,
            "column": self.column,
            **self.constants,
        }
        exec(compile("\n".join(self.lines), f"<law: {name}>", "exec"), space)  # noqa: S102 - made from terms above
        return space[name]


@define
class _Scope:
    """Which local holds which node's column. With `rows` its columns are those rows of the outer scope's columns.

    Invariant: `nodes` keeps every named node alive, so that an identity names one node.
    """

    writer: _Writer
    outer: _Scope | None = None
    rows: str = ""
    names: dict[int, str] = field(factory=dict)
    nodes: list[Term] = field(factory=list)
    masks: dict[int, str] = field(factory=dict)

    def known(self, term: Term) -> str | None:
        """The local that holds the column already, if one does.

        What an outer scope has for more rows is fetched for these rows, into this scope: an outer scope's names must
        not be bound inside a branch.
        """
        scope: _Scope | None = self
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
        constant = _constant(term)
        if constant is not None:
            return self.writer.constant(constant) if isinstance(term, Int) else str(bool(constant))
        known = self.known(term)
        if known is not None:
            return known
        if term.op == "var":
            return self._variable(term)
        return self._bind(term, self._text(term))

    def _variable(self, term: Term) -> str:
        """A variable is unpacked once, before anything else; every other scope knows it by then."""
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
        """One of two by bits: several plain operations on columns are faster than one `where`."""
        condition, then, otherwise = (self.value(arg) for arg in term.args)
        mask = condition if isinstance(term, Bool) else self.mask(term.args[0])
        return f"{otherwise} ^ (({then} ^ {otherwise}) & {mask})"

    def change(self, new: Term, old: Term) -> str:
        """The bits in which two terms differ; a choice that keeps the old value differs where it does not."""
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
        """A column of the columns' type with every bit set where the condition holds, and none elsewhere."""
        held = self.masks.get(id(condition))
        if held is None:
            truth = self.value(condition)
            narrow = self.writer.column.itemsize == 1
            wide = f"{truth}.view(i8)" if narrow else f"{truth}.astype(column)"
            held = self.masks[id(condition)] = self.writer.local(f"-{wide}")
        return held

    def _conjunction(self, term: Term) -> str:
        """Several negations are one negation of an alternative: fewer passes over the columns."""
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
