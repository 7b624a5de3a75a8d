"""Exports the specification as Promela, so that SPIN explores the same states and steps as our engines.

The export is one process with one loop, which has one `d_step` per action instance. So a transition of SPIN is a
transition of the specification, and the process adds nothing to the state vector. Properties are checks that change no
state. A check reports a SPIN error with the property's name once, and remembers outside the state vector that it did.
So one breadth-first run gives every verdict, and the depth of an error is the length of a shortest run.

The assignments of an effect are simultaneous, but Promela assigns one variable after another. So a variable is assigned
after every term that reads its old value. If terms read each other's variables in a cycle, one old value is saved
first, in a variable that is set to 0 again at the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from longpoll_spec.errors import BoundsError
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.render.notation import (
    Notation,
    Writer,
    guards_of,
    identifier,
    name_of,
    named_parts,
    parameters_of,
    setting_of,
    words_of,
)
from longpoll_spec.state import Variable
from longpoll_spec.terms import (
    FALSE,
    Bool,
    Effect,
    Int,
    Term,
    bool_variable,
    changes,
    const,
    int_variable,
    substitute,
    variables_of,
)

SAVED: Final = "old_"
"""The prefix of the variables that save old values."""


@frozen
class Assignment:
    """One assignment. `variable` is the target itself, or the variable whose old value the target saves."""

    target: str
    variable: str
    term: Term


def sequence(effect: Effect) -> tuple[Assignment, ...]:
    """The assignments of an effect, in an order with the same result, without those that change nothing."""
    waiting = changes(effect)
    done: list[Assignment] = []
    cleared: list[Assignment] = []
    while waiting:
        free = next((name for name in waiting if not _is_read_by_others(name, waiting)), None)
        if free is None:
            free = next(iter(waiting))
            old, saved, zero = _places(free, waiting[free])
            done.append(Assignment(SAVED + free, free, old))
            cleared.append(Assignment(SAVED + free, free, zero))
            others = {name: substitute(term, {free: saved}) for name, term in waiting.items() if name != free}
            waiting = {free: waiting[free], **others}
        done.append(Assignment(free, free, waiting.pop(free)))
    return (*done, *cleared)


def _places(name: str, term: Term) -> tuple[Term, Term, Term]:
    """Three terms: a variable, the variable that saves its old value, and the saving variable's value between steps."""
    if isinstance(term, Int):
        return int_variable(name), int_variable(SAVED + name), const(0)
    return bool_variable(name), bool_variable(SAVED + name), FALSE


def saved_by(assignments: Sequence[Assignment]) -> Iterator[str]:
    """The names of the variables whose old values the assignments save."""
    return (each.variable for each in assignments if each.target == SAVED + each.variable)


def _is_read_by_others(name: str, waiting: Effect) -> bool:
    return any(name in variables_of(term) for other, term in waiting.items() if other != name)


GROUPS: Final = {"always": "ALWAYS", "inductive": "ALWAYS", "sometimes": "SOMETIMES"}
"""Maps a kind of property to the macro that turns on all properties of this kind."""
BY_STEP: Final = " by this step"
"""The suffix of the message if a step decides the property, instead of the state before the step."""


def message_of(item: Property) -> str:
    """The error message of SPIN if a check decides the property."""
    return f"{item.name} is {'reached' if item.kind == 'sometimes' else 'violated'}"


def check_name(action: Action) -> str:
    """The name of the macro that checks a step before it is taken."""
    return f"check_{identifier(action.label)}"


def properties_text(model: Model, properties: Sequence[Property], writer: Writer) -> Iterator[str]:
    """The lines before the process: the definitions of checks, and for each action the checks of its step."""
    size = len(properties) + 1
    yield f"c_decl {{ unsigned char told_here[{size}], told_step[{size}]; }} /* What was reported; no state. */"
    yield "/* A check: of a state, or of a step about to be taken. It reports a result once. */"
    for kind, begin, end in (("here", "d_step {", "}"), ("step", "if ::", ":: else fi;")):
        yield f"#define look_{kind}(number, found, condition) {begin} c_expr {{ !told_{kind}[number] }} && condition \\"
        yield f"  -> c_code {{ told_{kind}[number] = 1; uerror(found); }} {end}"
    yield ""
    for number, item in enumerate(properties, 1):
        yield from _declared(number, item, writer)
    for action in model.actions:
        broken = [
            f"step_{number}({writer.text(condition)})"
            for number, item in enumerate(properties, 1)
            for label, condition in item.closing
            if label == action.label
        ]
        yield f"#define {' '.join([check_name(action), *broken])}"
    yield ""


def _declared(number: int, item: Property, writer: Writer) -> Iterator[str]:
    decisive = decisive_of(item)
    yield f"/* {number} {item.name} ({item.kind}): {item.sentence} */"
    yield f"#if {_wanted(number, item)}"
    if decisive is not FALSE:
        yield f"#define here_{number} {writer.operand(decisive)}"
    if item.closing:
        yield f'#define step_{number}(condition) look_step({number}, "{message_of(item)}{BY_STEP}", condition)'
        yield "#else"
        yield f"#define step_{number}(condition)"
    yield "#endif"


def looks(properties: Sequence[Property]) -> Iterator[str]:
    """The lines of the process that check a state."""
    yield "  /* The checks of a state; none is a step of the specification. */"
    for number, item in enumerate(properties, 1):
        if decisive_of(item) is not FALSE:
            yield f"#if {_wanted(number, item)}"
            yield f'  :: look_here({number}, "{message_of(item)}", here_{number})'
            yield "#endif"


def decisive_of(item: Property) -> Bool:
    """The condition on a state that decides the property."""
    return item.here if item.kind == "sometimes" else ~item.here


def _wanted(number: int, item: Property) -> str:
    return f"defined({GROUPS[item.kind]}) || PROPERTY == {number}"


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
"""(name, least value, greatest value) of Promela's types, from the narrowest."""


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
    """The narrowest type that has the variable's range; raises `BoundsError` if the range has no upper end."""
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
