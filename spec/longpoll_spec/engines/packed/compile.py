"""Compiles a model to NumPy source: one function that expands a chunk of packed states.

The function unpacks every variable into a column with one entry per state of the chunk. The function evaluates every
guard once for the whole chunk, and then works only on the rows in which the action is enabled. A variable that the
guard fixes, such as by `phase is taken`, is a constant in the effect. A successor is a copy of the old state in which
the changed bits are flipped. Each column is freed after its last use, so that the next column reuses its memory while
it is in the cache. The source is plain text with a few constants, so it can be sent to another process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from attrs import define, field, frozen

from longpoll_spec.engines.packed.layout import LANE_BITS, LANES, Field, Layout
from longpoll_spec.engines.packed.words import Rows, Words, least
from longpoll_spec.engines.simplify import Simplifier, column_type, decided, ranges_of
from longpoll_spec.model import Action, Model, Property, Said
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, Term, const, substitute

INDENT: Final = "    "
_SIGNS: Final = {"add": "+", "sub": "-", "lt": "<", "le": "<=", "eq": "=="}
_LOCAL: Final = re.compile(r"\bx\d+\b")


@frozen
class Source:
    """The text of one function and its constants, which are plain values, so that any process can compile it."""

    lines: tuple[str, ...]
    column: str
    """The name of the columns' NumPy type, such as `int8`."""
    constants: Mapping[str, Any]

    def function(self, name: str) -> Any:
        """Compile the text, and return the function of this name."""
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
    """The value of a constant term, with truth as 0 or 1; None for any other term."""
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
    """Add a `del` line for each local after its last use; if this use is in a nested block, after the block."""
    born: dict[str, int] = {}
    last: dict[str, int] = {}
    depths = [_depth(line) for line in lines]
    for number, line in enumerate(lines):
        for name in _LOCAL.findall(line):
            born.setdefault(name, depths[number])
            last[name] = number
    over: dict[int, list[str]] = {}
    for name, number in last.items():
        end = number
        while end + 1 < len(lines) and depths[end + 1] > born[name]:
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
    """The source under construction. Invariant: each local is assigned once, before its uses."""

    column: np.dtype[Any]
    places: Mapping[str, Field]
    simplifier: Simplifier
    lines: list[str] = field(factory=list)
    depth: int = 1
    locals_made: int = 0
    constants: dict[str, Any] = field(factory=dict)
    lanes: dict[tuple[int, int], str] = field(factory=dict)
    """Maps (word, lane) to the local that holds this byte of every state."""

    def line(self, text: str) -> None:
        """Append one line at the current depth of indentation."""
        self.lines.append((INDENT * self.depth if self.lines else "") + text)

    def local(self, text: str) -> str:
        """Assign this expression to a new local; returns its name."""
        self.locals_made += 1
        name = f"x{self.locals_made}"
        self.line(f"{name} = {text}")
        return name

    def constant(self, value: int) -> str:
        """The name of a constant of the columns' type.

        With a constant of another type, NumPy would widen the results of operations.
        """
        name = f"i_{value}".replace("-", "m")
        self.constants[name] = self.column.type(value)
        return name

    def word_constant(self, value: int) -> str:
        """The name of a constant of the words' type, `uint64`."""
        name = f"w_{value:x}"
        self.constants[name] = np.uint64(value)
        return name

    def as_byte(self, text: str, *, truth: bool) -> str:
        """A column's low bits as unsigned bytes, ready to be shifted within a lane."""
        return f"{text}.view(u8)" if truth or self.column.itemsize == 1 else f"{text}.astype(u8)"

    def unpacked(self, name: str) -> str:
        """The expression that unpacks a variable of all states in the chunk into a column."""
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
    """Maps nodes to the locals that hold their columns. In an inner scope, columns have only the rows in `rows`."""

    writer: Writer
    outer: Scope | None = None
    rows: str = ""
    names: dict[int, str] = field(factory=dict)
    nodes: list[Term] = field(factory=list)
    masks: dict[int, str] = field(factory=dict)

    def known(self, term: Term) -> str | None:
        """The local that already holds the column of a term; None if no local holds it yet.

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
        """The local that holds the column of a term; assigned now if no local holds the column yet."""
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
        """Unpack a variable. `source_of` unpacks all variables first, so that every scope finds the columns."""
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
        """Select between two columns by several bit operations, which together are faster than one `numpy.where`."""
        condition, then, otherwise = (self.value(arg) for arg in term.args)
        mask = condition if isinstance(term, Bool) else self.mask(term.args[0])
        return f"{otherwise} ^ (({then} ^ {otherwise}) & {mask})"

    def change(self, new: Term, old: Term) -> str:
        """The expression of the bits in which two terms differ.

        If one case of a choice keeps the old value, only the other case can differ.
        """
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
        """The local with a bit mask for each row: all bits are set if the condition holds in the row, else none."""
        held = self.masks.get(id(condition))
        if held is None:
            truth = self.value(condition)
            narrow = self.writer.column.itemsize == 1
            wide = f"{truth}.view(i8)" if narrow else f"{truth}.astype(column)"
            held = self.masks[id(condition)] = self.writer.local(f"-{wide}")
        return held

    def _conjunction(self, term: Term) -> str:
        """The expression of a conjunction. One negation for all its negated parts needs fewer passes over columns."""
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


Found: TypeAlias = tuple[int, int | None, int, int]
"""A state or step that decides a property: (property index, index of the closing action or None, column of the least
state that decides it, number of such states)."""
Weigh: TypeAlias = Callable[[Rows], int]
"""The number of states that some columns of a chunk represent: `len`, unless one state represents a whole orbit."""
Make: TypeAlias = Callable[[int, Words, Rows], Words]
"""Takes (action index, chunk, columns in which the action is enabled), and returns copies of these columns, which the
generated code then changes into the successors."""
Expand: TypeAlias = Callable[[Words, Sequence[bool], Weigh, Make, list[int], list[Found]], None]
"""The generated function, with the arguments (chunk, whether each property is open, `Weigh`, `Make`, transitions per
action to add to, list of `Found` to append to).
"""


def expand_of(model: Model, layout: Layout, properties: Sequence[Property]) -> Expand:
    """The function that expands a chunk of states and looks for states and steps that decide the properties."""
    return _expand_of(Said(model, tuple(properties)), layout)


@lru_cache(maxsize=16)
def _expand_of(said: Said, layout: Layout) -> Expand:
    made: Expand = source_of(said.model, layout, said.properties).function("expand")
    return made


def source_of(model: Model, layout: Layout, properties: Sequence[Property]) -> Source:
    """The source of the function `expand` for a model, its layout and the properties to check."""
    places = {place.variable.name: place for place in layout.fields}
    conditions = [item.here for item in properties] + [each for item in properties for _, each in item.closing]
    writer = Writer(column_type(model, conditions), places, Simplifier(ranges_of(model)))
    writer.line("def expand(words, open_, weigh, make, fired, found):")
    chunk = Scope(writer)
    for variable in model.variables:
        chunk.value(variable.term)
    for number, item in enumerate(properties):
        decisive = item.here if item.kind == "sometimes" else ~item.here
        _look(chunk, number, None, decisive, "")
    closing = _closing(model, properties)
    for index, action in enumerate(model.actions):
        _expand_action(chunk, index, action, closing[action.label])
    return writer.source()


def _closing(model: Model, properties: Sequence[Property]) -> Mapping[str, list[tuple[int, Bool]]]:
    found: dict[str, list[tuple[int, Bool]]] = {action.label: [] for action in model.actions}
    for number, item in enumerate(properties):
        for label, condition in item.closing:
            found[label].append((number, condition))
    return found


def _expand_action(chunk: Scope, index: int, action: Action, closing: Sequence[tuple[int, Bool]]) -> None:
    """Write the code of one action: find the rows where it is enabled, check properties, and make the successors."""
    writer = chunk.writer
    everywhere = action.guard is TRUE
    rows = writer.local("arange(words.shape[1])" if everywhere else f"flatnonzero({chunk.value(action.guard)})")
    writer.line(f"if {rows}.size:")
    writer.depth += 1
    writer.line(f"fired[{index}] += weigh({rows})")
    scope = Scope(writer, chunk, rows)
    known = _facts(action.guard)
    for number, condition in closing:
        part = writer.simplifier.simplify(_bool(substitute(condition, known)))
        _look(scope, number, index, decided(part, action.guard, writer.simplifier.ranges), rows)
    made = writer.local(f"make({index}, words, {rows})")
    for word, flipped in _flips(scope, action, known):
        writer.line(f"{made}[{word}] ^= {flipped}")
    writer.depth -= 1


def _look(scope: Scope, number: int, closing: int | None, decisive: Bool, rows: str) -> None:
    writer = scope.writer
    decisive = writer.simplifier.simplify(decisive)
    if decisive is FALSE:
        return
    writer.line(f"if open_[{number}]:")
    writer.depth += 1
    inner = Scope(writer, scope)
    if decisive is TRUE:
        hits = rows or writer.local("arange(words.shape[1])")
    else:
        here = inner.value(decisive)
        hits = writer.local(f"{rows}.compress({here})" if rows else f"flatnonzero({here})")
    writer.line(f"if {hits}.size: found.append(({number}, {closing}, least(words, {hits}), {hits}.size))")
    writer.depth -= 1


def _flips(scope: Scope, action: Action, known: Mapping[str, Term]) -> Iterator[tuple[int, str]]:
    """Yield (word, expression to XOR the word with) for each change of the action.

    Changes that are the same in every row become one constant per word. Changes that depend on the row become one
    expression per lane.
    """
    writer = scope.writer
    fixed: dict[int, int] = {}
    lanes: dict[tuple[int, int], list[str]] = {}
    for name, term in action.effect.items():
        place = writer.places[name]
        new, old = substitute(term, known), known.get(name, place.variable.term)
        if new is old:
            continue
        new_value, old_value = constant_of(new), constant_of(old)
        if new_value is not None and old_value is not None:
            bits = (new_value ^ old_value) << place.shift_in_word
            fixed[place.word] = fixed.get(place.word, 0) ^ bits
            continue
        changed = writer.as_byte(f"({scope.change(new, old)})", truth=place.variable.truth)
        if place.straddles:
            yield place.word, f"{changed}.astype(u64) << {writer.word_constant(place.shift_in_word)}"
            continue
        lane = lanes.setdefault((place.word, place.lane), [])
        lane.append(f"({changed} << {place.shift})" if place.shift else changed)
    for word, value in fixed.items():
        yield word, writer.word_constant(value)
    for (word, lane_in_word), parts in lanes.items():
        wide = f"({' ^ '.join(parts)}).astype(u64)"
        yield word, f"{wide} << {writer.word_constant(lane_in_word * LANE_BITS)}" if lane_in_word else wide


def _facts(guard: Bool) -> dict[str, Term]:
    """Map each variable that a single conjunct of the guard fixes to the constant that it must equal."""
    known: dict[str, Term] = {}
    for part in guard.args if guard.op == "and" else (guard,):
        if part.op == "var":
            known[part.args[0]] = TRUE
        elif part.op == "not" and part.args[0].op == "var":
            known[part.args[0].args[0]] = FALSE
        elif part.op == "eq" and part.args[0].op == "var" and part.args[1].op == "const":
            known[part.args[0].args[0]] = const(part.args[1].args[0])
    return known


def _bool(term: Term) -> Bool:
    assert isinstance(term, Bool)
    return term
