"""Properties in Promela: checks that find the first state or step that decides a property.

A check reports one SPIN error with the property's name, and records outside the state vector that it has. So one
breadth-first run gives every verdict, and the error's depth is the length of a shortest run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from longpoll_spec.model import Action, Model, Property
from longpoll_spec.render.notation import Writer, identifier
from longpoll_spec.terms import FALSE, Bool

GROUPS: Final = {"always": "ALWAYS", "inductive": "ALWAYS", "sometimes": "SOMETIMES"}
"""The switch that turns on every property of a kind."""
BY_STEP: Final = " by this step"
"""The suffix of the message if the next step decides the property, not the state before it."""


def message_of(item: Property) -> str:
    """The message of SPIN when a check decides the property."""
    return f"{item.name} is {'reached' if item.kind == 'sometimes' else 'violated'}"


def check_name(action: Action) -> str:
    """The macro that checks a step before it is taken."""
    return f"check_{identifier(action.label)}"


def properties_text(model: Model, properties: Sequence[Property], writer: Writer) -> Iterator[str]:
    """The text before the process: the definition of a check, and for each action the checks of its step."""
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
    """The process's options that check a state."""
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
