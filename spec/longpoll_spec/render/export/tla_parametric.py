r"""The specification as one TLA+ module for any number of requests and queues, to read and to check with TLC.

The module is made from the terms of three requests and three queues (`quantified`). Its comments are the docstrings of
the actions, the properties and the predicates. A property about a step is a temporal formula, such as `[][hold(r) =>
...]_vars`. For all properties, with the `sometimes` ones and the proof obligations, see `tla`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from longpoll_spec.actions import FAMILIES
from longpoll_spec.actions.family import instances
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.properties import ALWAYS
from longpoll_spec.properties.progress import time_can_pass
from longpoll_spec.render.export.parametric import Module, Operator, all_alike, kind_of, steps
from longpoll_spec.render.export.quantified import (
    LETTERS,
    MESSAGES,
    NO_QUEUE,
    PRIME,
    SLOTS,
    Bound,
    Expression,
    NotUniformError,
    Reading,
    Slot,
    generalised,
    indexed,
    key,
    letter_for,
    replaced,
)
from longpoll_spec.render.export.tla_text import (
    ENABLED,
    SETS,
    WIDTH,
    as_implication,
    comment,
    definition,
    denied,
    implies,
    indented,
    inline,
    letters_in,
    lines,
)
from longpoll_spec.render.notation import identifier, parameters_of
from longpoll_spec.state import Variable, state_of
from longpoll_spec.terms import FALSE, TRUE, any_of, bool_variable

MAY_TICK: Final = "MayTick"
URGENT: Final = "Urgent"
_LEFT_OUT: Final = frozenset({time_can_pass})
"""Properties about the rank in the proof that time can pass."""


def parametric_name_of(model: Model) -> str:
    """The name of the module, without sizes, which are in the configuration."""
    bounds = model.bounds
    features = [*(["tags"] if bounds.tags > 1 else []), *sorted(bounds.aspects)]
    return identifier("_".join(["longpoll", model.policy.name, *features]))


def tla_parametric_of(model: Model) -> str:
    """The module; raises `UserError` for a feature that cannot be stated for any number."""
    module = Module(model)
    actions = [
        *_actions_text(module, [each for each in module.operators if each.action.name != "tick"]),
        *_urgent(module),
        *_actions_text(module, [each for each in module.operators if each.action.name == "tick"]),
    ]
    properties = [line for item in _stated(module) for line in _property(module, item)]
    body = "\n".join([*actions, *properties])
    lines = (
        *_head(module),
        *_declarations(module),
        *_type_and_start(module),
        *_definitions(module, body),
        *actions,
        *_next(module),
        *properties,
        "====",
    )
    return "\n".join(lines) + "\n"


def tla_parametric_configuration_of(model: Model) -> str:
    """The configuration: the sizes, and every property."""
    module = Module(model)
    bounds = model.bounds
    lines = [
        "\\* For progress: SPECIFICATION FairSpec, no INVARIANT, and PROPERTY Answered alone.",
        "SPECIFICATION Spec",
        f"CONSTANT Requests = {{{', '.join(f'r{each}' for each in range(bounds.requests))}}}",
        f"CONSTANT Queues = {{{', '.join(f'q{each}' for each in range(bounds.queues))}}}",
        f"CONSTANT {NO_QUEUE} = {NO_QUEUE}",
        f"CONSTANT {MESSAGES} = {bounds.messages}",
        *(f"CONSTANT {name} = {value}" for name, value in parameters_of(model).items()),
        "CHECK_DEADLOCK FALSE",
        "INVARIANT TypeOK",
        *(
            f"{'INVARIANT' if _is_of_states(item) else 'PROPERTY'} {item.name}"
            for item in _stated(module)
            if not item.by_construction
        ),
    ]
    return "\n".join([*lines, ""])


def _is_of_states(item: Property) -> bool:
    """Whether it is an invariant; a property about ticks is one of the states in which a tick is enabled."""
    return not item.closing or ({label for label, _ in item.closing} == {"tick"} and not _is_primed(item))


def _is_primed(item: Property) -> bool:
    return any(name.endswith(PRIME) for _, condition in item.closing for name in condition.reads)


def _stated(module: Module) -> list[Property]:
    """The properties over a step with unknown new values, so that each is stated once for every action."""
    actions = tuple(
        attrs.evolve(action, effect=module.step, guard=bool_variable(f"{ENABLED}{action.name}{_suffix(action)}"))
        for family in FAMILIES
        for action in instances(family, module.state)
    )
    model = Model(module.model.policy, module.bounds, module.state, actions)
    made = [text(model) for text in ALWAYS if text not in _LEFT_OUT]
    return [item for item in made if item is not None]


def _suffix(action: Action) -> str:
    return "".join(f"_{actor}" for actor in action.actors)


def formulas_of(model: Model) -> dict[str, tuple[str, ...]]:
    """The name of each predicate and property -> its definition, line by line."""
    module = Module(model)
    properties = {
        item.name: tuple(_property(module, item))[len(tuple(comment(item.sentence))) :]
        for item in _stated(module)
        if not item.by_construction
    }
    body = "\n".join(line for lines in properties.values() for line in lines)
    predicates = {re.split(r"\W", text[0])[0]: tuple(text) for _, text in _used(module, body)}
    return {**predicates, **properties}


def _head(module: Module) -> Iterator[str]:
    name = parametric_name_of(module.model)
    yield f"---- MODULE {name} ----"
    yield from comment(
        f"Broker long polling, policy {module.model.policy.name}, for any number of requests, queues and messages. "
        "A request is one consumer's pull."
    )
    yield f"\\* Check it with TLC: java -cp tla2tools.jar tlc2.TLC {name}"
    yield from comment(
        "A guard compared with TRUE has alternatives: otherwise TLC would take the step once for each true one, "
        "and count it as often."
    )
    yield "EXTENDS Integers, FiniteSets"
    yield ""


def _declarations(module: Module) -> Iterator[str]:
    constants = {
        SETS["request"]: "The requests, one for each consumer: a consumer has one pull at a time.",
        SETS["queue"]: "The queues, which share one dispatcher, one scanner and one executor.",
        NO_QUEUE: "Stands for no queue.",
        MESSAGES: "The number of messages appended to one queue, at most.",
        **dict.fromkeys(parameters_of(module.model), ""),
        "hold_ticks": "A pull's deadline, in ticks from its receipt.",
        "scan_ticks": "Ticks between two scans.",
    }
    yield from _table("CONSTANTS", constants)
    yield from _table("VARIABLES", {name: each.sentence for name, each in module.variables.items()})
    for name, members in module.groups.items():
        yield f"{name} == {inline(('tuple', *members))}"
    yield from definition("vars", ("tuple", *module.groups))


def _table(head: str, rows: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, rows)) + 1
    yield head
    for place, (name, sentence) in enumerate(rows.items()):
        comma = "," if place < len(rows) - 1 else ""
        yield f"  {name + comma:{width}} \\* {sentence}".rstrip(" *\\")
    yield ""


def _type_and_start(module: Module) -> Iterator[str]:
    yield "TypeOK =="
    for name, variable in module.variables.items():
        line = f"  /\\ {name} \\in {_of_each(variable, _range(variable), '->')}"
        yield from textwrap.wrap(line, WIDTH, subsequent_indent=" " * (line.find("{") + 1))
    yield ""
    yield "\\* With one queue a consumer reads it from the start; with several it reads none yet."
    yield "Init =="
    for name, variable in module.variables.items():
        sign = "\\in" if _starts_at_a_queue(variable) else "="
        yield f"  /\\ {name} {sign} {_of_each(variable, _first(module, variable), '|->')}"
    yield ""


def _starts_at_a_queue(variable: Variable) -> bool:
    return variable.numbers_queues and kind_of(variable) == "request"


def _of_each(variable: Variable, value: str, arrow: str) -> str:
    kind = kind_of(variable)
    if kind is None:
        return value
    if arrow == "->" or _starts_at_a_queue(variable):
        return f"[{SETS[kind]} -> {value}]"
    return f"[{LETTERS[kind][0]} \\in {SETS[kind]} |-> {value}]"


def _range(variable: Variable) -> str:
    if variable.truth:
        return "BOOLEAN"
    if variable.numbers_queues:
        return f"Queues \\cup {{{NO_QUEUE}}}"
    if variable.labels:
        return f"{{{', '.join(_quoted(variable.labels[: (variable.upper or 0) + 1]))}}}"
    assert variable.greatest is not None
    return f"0..{inline(Reading({}).expression(variable.greatest))}"


def _quoted(words: Iterable[str]) -> list[str]:
    return [f'"{word}"' for word in words]


def _first(module: Module, variable: Variable) -> str:
    if _starts_at_a_queue(variable):
        return f"IF Cardinality(Queues) = 1 THEN Queues ELSE {{{NO_QUEUE}}}"
    return inline(module.read.expression(variable.first, variable))


def _definitions(module: Module, body: str) -> Iterator[str]:
    before = ""
    for sentence, text in _used(module, body):
        if sentence != before:
            before = sentence
            yield from comment(sentence)
        yield from text


def _used(module: Module, body: str) -> list[tuple[str, list[str]]]:
    told: list[tuple[str, list[str]]] = []
    for name, (predicate, says) in reversed(module.definitions.items()):
        head = f"{name}({LETTERS[predicate.kind][0]})" if predicate.kind else name
        if _mentions(name, body):
            lines = list(definition(head, says))
            told.append((predicate.sentence, lines))
            body = "\n".join([body, *lines])
    return told[::-1]


def _mentions(name: str, body: str) -> bool:
    return re.search(rf"\b{name}\b", body) is not None


def _actions_text(module: Module, operators: Iterable[Operator]) -> Iterator[str]:
    told = ""
    for operator in operators:
        if operator.action.sentence != told:
            told = operator.action.sentence
            yield from comment(told)
        yield from _action(module, operator)


def _action(module: Module, operator: Operator) -> Iterator[str]:
    reading = module.read
    guard = generalised(reading.expression(operator.action.guard), operator.bound)
    parts = list(guard[1:]) if guard[0] == "and" else [guard]
    if guard == ("name", "TRUE"):
        parts = []
    if operator.action.name == "tick":
        yield from definition(MAY_TICK, ("and", *_waits(module), *parts) if parts or _waits(module) else guard)
        parts = [("name", MAY_TICK)]
    elif not operator.family.exists(state_of(module.model.policy, attrs.evolve(module.bounds, queues=1))):
        parts.append(("name", "Cardinality(Queues) > 1"))
    parts = [("eq", part, ("name", "TRUE")) if module.branches(part) else part for part in parts]
    changes = dict(_changes(module, operator))
    yield f"{operator.call} =="
    yield from indented(lines(("and", *parts, *changes.values(), module.kept(changes)), WIDTH - 2, whole=False))
    yield ""


def _waits(module: Module) -> list[Expression]:
    return [("name", f"~ENABLED {URGENT}")] if module.model.policy.tick == "maximal_progress" else []


def _changes(module: Module, operator: Operator) -> Iterator[tuple[str, Expression]]:
    terms = {each.name: each for each in module.state.variables}
    found: dict[str, dict[Slot | None, Expression]] = {}
    for name, term in operator.action.effect.items():
        if not (term.op == "var" and term.args[0] == name):
            base, slots = indexed(name)
            found.setdefault(base, {})[slots[0][1:] if slots else None] = module.read.expression(term, terms[name])
    for base, values in found.items():
        if None in values:
            yield base, ("becomes", base, generalised(values[None], operator.bound))
            continue
        yield base, ("becomes", base, _function(base, values, operator.bound))


def _function(base: str, values: Mapping[Slot | None, Expression], bound: Bound) -> Expression:
    kind = next(slot[0] for slot in values if slot is not None)
    actor = (kind, 0) if (kind, 0) in bound else None
    if actor is not None and set(values) == {actor}:
        return ("except", base, bound[actor], generalised(values[actor], bound))
    others = [(kind, number) for number in range(SLOTS) if (kind, number) != actor]
    if not set(others) <= set(values):
        raise NotUniformError(
            f"a step changes {base} of only some requests or queues; use --to tla without --parametric"
        )
    letter = letter_for(kind, bound.values())
    texts = [generalised(values[other], {**bound, other: letter}) for other in others]
    all_alike(base, texts)
    if actor is None:
        return ("function", letter, kind, texts[0])
    mine = values.get(actor, ("var", base, False, ("slot", *actor)))
    if key(replaced(values[others[0]], {("slot", *others[0]): ("slot", *actor)})) == key(mine):
        return ("function", letter, kind, texts[0])
    is_actor = ("eq", ("letter", letter), ("letter", bound[actor]))
    return ("function", letter, kind, ("ite", is_actor, generalised(mine, bound), texts[0]))


def _urgent(module: Module) -> Iterator[str]:
    waited = module.model.policy.tick == "maximal_progress"
    yield "\\* What time waits for." if waited else "\\* The actions of the broker's threads."
    yield from definition(URGENT, steps(each for each in module.operators if each.action.urgent))


def _next(module: Module) -> Iterator[str]:
    urgent = [each for each in module.operators if each.action.urgent]
    others = [each for each in module.operators if not each.action.urgent]
    yield from definition("Next", ("or", ("name", URGENT), *steps(others)[1:]))
    yield "Spec == Init /\\ [][Next]_vars"
    yield ""
    yield "\\* The broker's threads and time make progress: each of these occurs if it is enabled from some point on."
    fair = [*urgent, *(each for each in others if each.action.name == "tick")]
    yield from definition("Fairness", steps(fair, op="and", each="WF_vars({})"))
    yield "\\* With several queues or tags, or where requests are put back, tick may be disabled for ever. Assumed not."
    yield f"TimePasses == []<><<tick>>_vars \\/ <>[]({MAY_TICK} /\\ ~ENABLED <<tick>>_vars)"
    yield ""
    yield "FairSpec == Spec /\\ Fairness /\\ TimePasses"
    yield ""
    yield "\\* Every pull is answered."
    yield "Answered == \\A r \\in Requests : open[r] ~> ~open[r]"
    yield ""


def _property(module: Module, item: Property) -> Iterator[str]:
    if item.by_construction:
        return
    yield from comment(item.sentence)
    here = as_implication(generalised(module.read.expression(item.here), {}))
    if _is_of_states(item):
        says = here
        if item.closing:
            ((_, condition),) = item.closing
            then: Expression = (
                "implies",
                ("name", MAY_TICK),
                denied(generalised(module.read.expression(condition), {})),
            )
            says = then if item.here is TRUE else ("and", here, then)
        yield from definition(item.name, says)
        return
    groups: dict[object, tuple[Expression, list[Operator]]] = {}
    for operator in module.operators:
        wrong = any_of(condition for label, condition in item.closing if label == operator.action.label)
        if wrong is not FALSE:
            text = _of_anyone(module.read.expression(wrong), operator.bound)
            groups.setdefault(key(text), (text, []))[1].append(operator)
    parts = [_step_text(module, text, operators) for text, operators in groups.values()]
    steps_of: Expression = ("box", parts[0] if len(parts) == 1 else ("and", *parts))
    yield from definition(item.name, steps_of if item.here is TRUE else ("and", ("always", here), steps_of))


def _of_anyone(expression: Expression, bound: Bound) -> Expression:
    """The quantified statement if it holds for all, otherwise one about the participants."""
    try:
        return generalised(expression, {})
    except NotUniformError:
        return generalised(expression, bound)


def _step_text(module: Module, condition: Expression, operators: Sequence[Operator]) -> Expression:
    """That no step of these actions satisfies the condition."""
    says = as_implication(denied(condition))
    named = letters_in(condition)
    others = [each for each in module.operators if each not in operators]
    if not others:
        return says
    if not named and len(others) < len(operators):
        return ("implies", ("not", steps(others)), says)
    parameters = dict.fromkeys(each for operator in operators for each in operator.parameters if each[0] in named)
    says = implies([steps(operators, named)], says)
    for letter, kind in reversed(parameters):
        says = ("every", letter, kind, ("letters",), says)
    return says
