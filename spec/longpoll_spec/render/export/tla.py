"""The specification as TLA+: a module and its configuration for TLC, whose states must be the same as ours.

Every action instance is an operator over its guard's operator, so `tick` can name what it waits for. A property about a
step is the invariant that no such step is enabled. A `sometimes` property is an invariant that it is never reached,
expected to be violated. The fairness assumptions (`Fairness`, `TimePasses`) and their consequence (`Answered`) are
included for users who check progress. There is no refinement and no symmetry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

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
    stem,
    words_of,
)
from longpoll_spec.specification import fairness_of
from longpoll_spec.state import Variable
from longpoll_spec.terms import TRUE, Bool, changes

NOTATION: Final = Notation(
    conjunction="/\\",
    disjunction="\\/",
    negation="~",
    equal="=",
    unequal="/=",
    true="TRUE",
    false="FALSE",
    choice="(IF {condition} THEN {then} ELSE {otherwise})",
)
NEVER: Final = "Never_"
"""The prefix of the invariant whose violation shows that a `sometimes` property is reached."""
GUARD: Final = "can_"
FAIRNESS: Final = "Fairness"
TIME_PASSES: Final = "TimePasses"
ANSWERED: Final = "Answered"
FAIR_SPECIFICATION: Final = "FairSpec"
SHOWN: Final = "Shown"
"""The name of a state as TLC shows it, with words for values that have words."""


def tla_of(model: Model, properties: Sequence[Property]) -> str:
    """The model and its properties as a TLA+ module named `notation.name_of`."""
    guards = guards_of(model, GUARD)
    plain = Writer(NOTATION, words_of(model.variables))
    writer = plain.naming(named_parts(guards))
    name = name_of(model)
    return "\n".join(
        (
            f"---- MODULE {name} ----",
            f"\\* The specification of broker long polling, {setting_of(model)}.",
            f"\\* Check it with TLC: java -cp tla2tools.jar tlc2.TLC {name}",
            "EXTENDS Integers",
            "",
            *_declarations(model),
            *_words(model),
            *_shown(model),
            *_type_and_start(model, plain),
            *_guards(guards, plain),
            *_actions(model, guards, writer),
            *_properties(model, properties, writer),
            "====",
            "",
        )
    )


def tla_configuration_of(model: Model, properties: Sequence[Property]) -> str:
    """The `.cfg` of the module: every `always` is checked; a `sometimes` is one line to uncomment."""
    lines = [
        f"\\* For progress take {FAIR_SPECIFICATION} for Spec, no INVARIANT, and PROPERTY {ANSWERED}.",
        "SPECIFICATION Spec",
    ]
    lines += [f"CONSTANT {name} = {value}" for name, value in parameters_of(model).items()]
    lines += ["CHECK_DEADLOCK FALSE", f"ALIAS {SHOWN}", "INVARIANT TypeOK"]
    lines += [f"INVARIANT {item.name}" for item in properties if item.kind != "sometimes"]
    reached = [f"\\* INVARIANT {NEVER}{item.name}" for item in properties if item.kind == "sometimes"]
    if reached:
        lines += ["", "\\* Uncomment one, and TLC shows a shortest run that reaches it.", *reached]
    return "\n".join([*lines, ""])


def _declarations(model: Model) -> Iterator[str]:
    names = list(parameters_of(model))
    if names:
        yield f"CONSTANTS {', '.join(names)}"
        yield ""
    width = max(len(variable.name) for variable in model.variables) + 1
    yield "VARIABLES"
    for variable in model.variables:
        comma = "" if variable is model.variables[-1] else ","
        yield f"  {variable.name + comma:{width}} \\* {variable.sentence}"
    yield ""
    yield f"vars == {_tuple(variable.name for variable in model.variables)}"
    yield ""


def _words(model: Model) -> Iterator[str]:
    words = {word: value for each in words_of(model.variables).values() for value, word in enumerate(each)}
    for word, value in words.items():
        yield f"{word} == {value}"
    yield ""


def _shown(model: Model) -> Iterator[str]:
    labels = {stem(each.name).upper(): each.labels for each in model.variables if each.labels}
    for name, words in labels.items():
        quoted = [f'"{word}"' for word in words]
        yield f"{name}_LABELS == {_tuple(quoted)}"
    yield "\\* A state as a trace shows it."
    yield f"{SHOWN} == ["
    for variable in model.variables:
        comma = "" if variable is model.variables[-1] else ","
        value = f"{stem(variable.name).upper()}_LABELS[{variable.name} + 1]" if variable.labels else variable.name
        yield f"  {variable.name} |-> {value}{comma}"
    yield "]"
    yield ""


def _type_and_start(model: Model, plain: Writer) -> Iterator[str]:
    yield "TypeOK =="
    for variable in model.variables:
        yield f"  /\\ {variable.name} \\in {_range(variable, plain)}"
    yield ""
    yield "Init =="
    for variable in model.variables:
        yield f"  /\\ {variable.name} = {plain.value(variable.first, variable.name)}"
    yield ""


def _range(variable: Variable, plain: Writer) -> str:
    if variable.truth:
        return "BOOLEAN"
    if variable.greatest is None:
        assert variable.lower == 0, variable.name
        return "Nat"
    return f"{variable.lower}..{plain.value(variable.greatest, variable.name)}"


def _guards(guards: Sequence[tuple[Action, str]], plain: Writer) -> Iterator[str]:
    writer = plain
    for action, name in guards:
        yield from _bulleted(name, action.guard, writer)
        writer = writer.naming(named_parts([(action, name)]))
    yield ""


def _bulleted(name: str, term: Bool, writer: Writer) -> Iterator[str]:
    if term.op != "and":
        yield f"{name} == {writer.text(term)}"
        return
    yield f"{name} =="
    for part in term.args:
        yield f"  /\\ {writer.text(part)}"


def _actions(model: Model, guards: Sequence[tuple[Action, str]], writer: Writer) -> Iterator[str]:
    told = ""
    for action, guard in guards:
        if action.name != told:
            told = action.name
            yield f"\\* {action.sentence}"
        yield f"{identifier(action.label)} =="
        yield f"  /\\ {guard}{' = TRUE' if _branches(action.guard) else ''}"
        changed = changes(action.effect)
        for name, term in changed.items():
            yield f"  /\\ {name}' = {writer.value(term, name)}"
        kept = [variable.name for variable in model.variables if variable.name not in changed]
        if kept:
            yield f"  /\\ UNCHANGED {_tuple(kept)}"
        yield ""
    yield "Next =="
    for action in model.actions:
        yield f"  \\/ {identifier(action.label)}"
    yield ""
    yield "Spec == Init /\\ [][Next]_vars"
    yield ""
    yield from _progress(model)


def _progress(model: Model) -> Iterator[str]:
    yield "\\* The broker's threads and time make progress: each of these occurs if it is enabled from some point on."
    yield f"{FAIRNESS} =="
    for label in fairness_of(model).weak:
        yield f"  /\\ WF_vars({identifier(label)})"
    yield ""
    yield "\\* Assumed too: with several queues or tags, or where requests are put back, tick may be disabled for ever."
    yield f"{TIME_PASSES} == []<><<tick>>_vars \\/ <>[]({GUARD}tick /\\ ~ENABLED <<tick>>_vars)"
    yield ""
    yield f"{FAIR_SPECIFICATION} == Spec /\\ {FAIRNESS}"
    yield ""
    yield "\\* Every pull is answered."
    yield f"{ANSWERED} =="
    for request in model.state.requests:
        yield f"  /\\ [](open_{request.index} => <>(~open_{request.index}))"
    yield ""


def _branches(guard: Bool) -> bool:
    """Whether TLC would take the step once for each true alternative of the guard, and count it as often.

    Compared with TRUE, the guard is a value and is not split.
    """
    parts = guard.args if guard.op == "and" else (guard,)
    return any(part.op in {"or", "ite"} for part in parts)


def _properties(model: Model, properties: Sequence[Property], writer: Writer) -> Iterator[str]:
    guards = {action.label: name for action, name in guards_of(model, GUARD)}
    for item in properties:
        yield f"\\* {item.kind}: {item.sentence}"
        if item.kind == "sometimes":
            yield f"{NEVER}{item.name} == ~{writer.operand(item.term)}"
        else:
            yield f"{item.name} =="
            if item.here is not TRUE or not item.closing:
                yield f"  /\\ {writer.text(item.here)}"
            for label, condition in item.closing:
                yield f"  /\\ ~({guards[label]} /\\ {writer.text(condition)})"
        yield ""


def _tuple(parts: Iterable[str]) -> str:
    return f"<<{', '.join(parts)}>>"
