"""Terms as numpy source over byte columns: one function that expands a chunk of packed states.

It unpacks every variable into a column, evaluates every guard once for the whole chunk, and then works only on the rows
where an action is enabled. There the guard holds, so its facts about a variable (`phase is taken`) become constants in
the effect. A successor is the old state with the changed bits flipped. A column is freed after its last use, so the
next one reuses its place in the cache. The source is plain text with a few constants, so it can be sent to another
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from longpoll_spec.engines.analysis.decide import decided
from longpoll_spec.engines.analysis.intervals import column_type, ranges_of
from longpoll_spec.engines.analysis.simplify import Simplifier
from longpoll_spec.engines.packed.layout import LANE_BITS, Layout
from longpoll_spec.engines.packed.source import Scope, Source, Writer, constant_of
from longpoll_spec.engines.packed.words import Rows, Words
from longpoll_spec.model import Action, Model, Property, Said
from longpoll_spec.terms import FALSE, TRUE, Bool, Term, const, substitute

Found: TypeAlias = tuple[int, int | None, int, int]
"""(property index, index of the closing action or None, column of the least deciding state, number of deciding
states).
"""
Weigh: TypeAlias = Callable[[Rows], int]
"""The number of states that the columns of a chunk count for: `len` if each counts for one."""
Make: TypeAlias = Callable[[int, Words, Rows], Words]
"""(action index, chunk, columns in which the action is enabled): copies of these, which become their successors."""
Expand: TypeAlias = Callable[[Words, Sequence[bool], Weigh, Make, list[int], list[Found]], None]
"""(chunk, open properties, weigh, make, transitions to add to, list to append findings to)."""


def expand_of(model: Model, layout: Layout, properties: Sequence[Property]) -> Expand:
    """The function that expands a chunk of states and checks the properties on the way."""
    return _expand_of(Said(model, tuple(properties)), layout)


@lru_cache(maxsize=16)
def _expand_of(said: Said, layout: Layout) -> Expand:
    made: Expand = source_of(said.model, layout, said.properties).function("expand")
    return made


def source_of(model: Model, layout: Layout, properties: Sequence[Property]) -> Source:
    """The text of `expand`, which is the function's name."""
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
    """Find the rows where the action is enabled, check the properties it could break, and make its successors."""
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
    """(word, source of the value to XOR it with): a constant, and one for each lane whose bits depend on the row."""
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
    """The values that the guard fixes for single variables, as constants."""
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
