"""The specification as Promela: SPIN must explore the same states and steps as our engines.

One process with one loop, and one `d_step` per action instance: a transition of SPIN is a transition of the
specification, and the process adds nothing to the state vector. Properties are checks that change no state
(`promela_properties`). Order of an effect's assignments: `promela_effects`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from longpoll_spec.errors import BoundsError
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.render.export.promela_effects import SAVED, Assignment, saved_by, sequence
from longpoll_spec.render.export.promela_properties import check_name, looks, properties_text
from longpoll_spec.render.notation import (
    Notation,
    Writer,
    guards_of,
    name_of,
    named_parts,
    parameters_of,
    setting_of,
    words_of,
)
from longpoll_spec.state import Variable

NOTATION: Final = Notation(
    conjunction="&&",
    disjunction="||",
    negation="!",
    equal="==",
    unequal="!=",
    true="true",
    false="false",
    choice="({condition} -> {then} : {otherwise})",
)
TYPES: Final = (("bit", 0, 1), ("byte", 0, 255), ("short", -32768, 32767), ("int", -(2**31), 2**31 - 1))
"""Promela's types from the narrowest, each with its range."""


def promela_of(model: Model, properties: Sequence[Property]) -> str:
    """The model and its properties as Promela text; raises `BoundsError` for a variable without an upper end."""
    guards = guards_of(model, "can_")
    plain = Writer(NOTATION, words_of(model.variables))
    writer = plain.naming(named_parts(guards))
    effects = [sequence(action.effect) for action in model.actions]
    steps = zip(guards, effects, strict=True)
    return "\n".join(
        (
            *_head(model),
            *_constants(model),
            *_variables(model, effects, plain),
            *_guards(guards, plain),
            *properties_text(model, properties, writer),
            *_process([(action, name, effect) for (action, name), effect in steps], properties, writer),
            "",
        )
    )


def _head(model: Model) -> Iterator[str]:
    file = f"{name_of(model)}.pml"
    yield f"""/* The specification of broker long polling, {setting_of(model)}.
 *
 * States, transitions and depth:  spin -a {file}
 *                                 gcc -O2 -DSAFETY -DNOREDUCE -DBFS -o pan pan.c && ./pan
 * with every property's verdict:  the same after  spin -a -DALWAYS -DSOMETIMES {file}, and  ./pan -c0
 * one property:                   the same after  spin -a -DPROPERTY=1 {file}  (their numbers are below)
 *
 * A violated or a reached property is one error that bears its name, and changes no state: SPIN counts one transition
 * more for an error found in a state, and one for the start of the process.
 */"""


def _constants(model: Model) -> Iterator[str]:
    for name, value in parameters_of(model).items():
        yield f"#define {name} {value}"
    written: set[str] = set()
    for variable in model.variables:
        for value, word in enumerate(words_of([variable]).get(variable.name, ())):
            if word not in written:
                written.add(word)
                yield f"#define {word} {value}"
    yield ""


def _variables(model: Model, effects: Sequence[Sequence[Assignment]], plain: Writer) -> Iterator[str]:
    types = {variable.name: promela_type(variable) for variable in model.variables}
    declared = [f"{types[each.name]} {each.name} = {plain.value(each.first, each.name)};" for each in model.variables]
    width = max(map(len, declared))
    for text, variable in zip(declared, model.variables, strict=True):
        yield f"{text:{width}} /* {variable.sentence} */"
    for kept in sorted({kept for effect in effects for kept in saved_by(effect)}):
        yield f"{types[kept]} {SAVED}{kept} = 0; /* Used inside a step that swaps, and 0 between steps. */"
    yield ""


def promela_type(variable: Variable) -> str:
    """The narrowest type that has the variable's range; raises `BoundsError` where there is none."""
    if variable.upper is None:
        raise BoundsError("Promela needs a fixed number of messages; add --messages")
    return next(name for name, lower, upper in TYPES if lower <= variable.lower and variable.upper <= upper)


def _guards(guards: Sequence[tuple[Action, str]], plain: Writer) -> Iterator[str]:
    writer = plain
    for action, name in guards:
        yield f"#define {name} {writer.operand(action.guard)}"
        writer = writer.naming(named_parts([(action, name)]))
    yield ""


def _process(
    steps: Sequence[tuple[Action, str, Sequence[Assignment]]],
    properties: Sequence[Property],
    writer: Writer,
) -> Iterator[str]:
    yield "active proctype law() {"
    yield "end: do"
    told = ""
    for action, guard, effect in steps:
        if action.name != told:
            told = action.name
            yield f"  /* {action.name}: {action.sentence} */"
        yield f"  :: d_step {{ {guard} -> {check_name(action)}"
        if not effect:
            yield "       skip;"
        for assignment in effect:
            yield f"       {_assigned(assignment, writer)};"
        yield "     }"
    yield from looks(properties)
    yield "  od"
    yield "}"


def _assigned(assignment: Assignment, writer: Writer) -> str:
    text = writer.value(assignment.term, assignment.variable)
    return f"{assignment.target} = {text}"
