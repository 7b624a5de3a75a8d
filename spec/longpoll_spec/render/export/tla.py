"""Exports the specification as one TLA+ module for any number of requests and queues, to be read and checked with TLC.

The module is derived from the terms of three requests and three queues (`quantified`). The module has predicates,
actions that use them, and properties, with their docstrings as comments. A property about a step is a temporal formula,
such as `[][hold(r) => ...]_vars`. `sometimes` properties and the properties that only a proof needs are left out.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, repeat
from typing import Final

import attrs
from attrs import frozen

from longpoll_spec.actions import families_of
from longpoll_spec.actions.family import instances
from longpoll_spec.actions.traversal import comes_to, may_take
from longpoll_spec.bounds import MESSAGES_MAX, Bounds
from longpoll_spec.errors import UserError
from longpoll_spec.model import Action, Actor, Family, Model, Property
from longpoll_spec.properties.answers import stands
from longpoll_spec.properties.progress import time_can_pass
from longpoll_spec.properties.wakeups import lost
from longpoll_spec.render.export.quantified import (
    ENABLED,
    LETTERS,
    MESSAGES,
    NO_QUEUE,
    PRIME,
    SETS,
    SLOTS,
    WIDTH,
    Bound,
    Expression,
    NotUniformError,
    Reading,
    Slot,
    as_implication,
    comment,
    definition,
    denied,
    generalised,
    implies,
    indented,
    indexed,
    inline,
    key,
    letter_for,
    letters_in,
    lines,
    replaced,
)
from longpoll_spec.render.notation import identifier, parameters_of
from longpoll_spec.specification import leads_to_of, texts_of
from longpoll_spec.state import Request, State, Variable, state_of
from longpoll_spec.terms import FALSE, TRUE, Effect, Term, any_of, bool_variable, changes, int_variable, substitute

_TRIVIAL: Final = frozenset({"var", "const", "true", "false", "eq", "lt", "le", "parameter"})
"""The operators of terms that get no predicate, because they are written out where they occur."""


@frozen
class Predicate:
    """A predicate of the module: its name, the kind of its participant, its docstring, and its term."""

    name: str
    kind: str
    told: object
    term: Callable[..., Term]

    @property
    def sentence(self) -> str:
        """The first paragraph of the docstring, on one line."""
        return " ".join(str(self.told.__doc__).split("\n\n", maxsplit=1)[0].split())


def _predicates(state: State) -> Iterator[Predicate]:
    """The predicates, each after those that it may use. A model that is based on the core has no predicates."""
    if not state.notifiers:
        for function in state.policy.extension.predicates if state.policy.extension else ():
            yield Predicate(function.__name__.title().replace("_", ""), "request", function, function)
        return
    yield Predicate("Listed", "request", Request.is_listed, lambda _, each: each.is_listed)
    yield Predicate("HasMore", "request", State.has_more, State.has_more)
    yield Predicate("IsTrimmed", "request", State.is_trimmed, State.is_trimmed)
    yield Predicate("IsMoved", "request", State.is_moved, State.is_moved)
    yield Predicate("Answers", "request", State.is_answered_by_read, State.is_answered_by_read)
    yield Predicate("VisibleEnd", "request", State.visible_end_of, State.visible_end_of)
    yield Predicate("OffsetAfterRead", "request", State.offset_after_read, State.offset_after_read)
    yield Predicate("LockFree", "queue", State.lock_free, State.lock_free)
    yield Predicate("LockFreeOf", "request", State.lock_free_of, State.lock_free_of)
    yield Predicate("LooksEmpty", "queue", State.bucket_looks_empty, State.bucket_looks_empty)
    yield Predicate("IsFull", "", State.is_full, lambda each: each.is_full)
    yield Predicate("RoundIsDue", "", State.round_is_due, lambda each: each.round_is_due)
    yield Predicate("ScanComesTo", "queue", comes_to, comes_to)
    yield Predicate("MayTake", "queue", may_take, may_take)
    for notifier in state.notifiers:
        yield Predicate(
            f"{notifier.name.title()}IsAt",
            "request",
            State.walks_for,
            lambda state, each, notifier=notifier: state.walks_for(notifier, each),
        )
    yield Predicate(
        "IsAnnounced", "request", State.announces_for, lambda state, each: state.announces_for(state.dispatcher, each)
    )
    yield Predicate("Stands", "request", stands, lambda _, each: stands(each))
    yield Predicate("Lost", "request", lost, lost)


@frozen
class Operator:
    """An action as an operator of the module, with one of its instances, from which its text is derived."""

    family: Family
    name: str
    parameters: tuple[tuple[str, str], ...]
    """(letter, kind) for each participant of the action."""
    action: Action

    @property
    def bound(self) -> Bound:
        """The slots that are parameters of the operator, with their letters."""
        return {(kind, 0): letter for letter, kind in self.parameters}

    @property
    def call(self) -> str:
        """A call of the operator with its own parameters, such as `hold(r)`."""
        letters = ", ".join(letter for letter, _ in self.parameters)
        return f"{self.name}({letters})" if letters else self.name


def steps(operators: Iterable[Operator], fixed: Container[str] = (), *, op: str = "or", each: str = "{}") -> Expression:
    """The expression that a step is one of some actions, for any value of the parameters that are not fixed."""
    kinds: dict[tuple[tuple[str, str], ...], list[Expression]] = {}
    for operator in operators:
        kinds.setdefault(operator.parameters, []).append(("name", each.format(operator.call)))
    parts: list[Expression] = []
    for parameters, calls in kinds.items():
        part: Expression = (op, *calls) if len(calls) > 1 else calls[0]
        for letter, kind in reversed(parameters):
            if letter not in fixed:
                part = ("some" if op == "or" else "every", letter, kind, ("letters",), part)
        parts.append(part)
    flat = [each for part in parts for each in (part[1:] if part[0] == op else (part,))]
    return (op, *flat) if len(flat) > 1 else flat[0]


@frozen(eq=False)
class Module:
    """Derives the module of a policy with some features."""

    model: Model
    """The requested model. The text of the TLA+ module does not depend on the model's numbers of requests, queues and
    messages."""

    @cached_property
    def bounds(self) -> Bounds:
        """The bounds of the terms from which the module is derived."""
        if self.model.bounds.has("lateness"):
            raise UserError("TLA+ cannot count lateness; drop --feature lateness, or use --to promela")
        own = self.model.policy.extension
        queues = SLOTS if own is None else own.queues_max or SLOTS
        return attrs.evolve(self.model.bounds, requests=SLOTS, queues=queues, messages=MESSAGES_MAX)

    @cached_property
    def state(self) -> State:
        """The state whose terms the module is derived from."""
        return state_of(self.model.policy, self.bounds)

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """Maps a name without a number to the variable of the first request or queue, or of the broker."""
        found: dict[str, Variable] = {}
        for each in self.state.variables:
            found.setdefault(indexed(each.name)[0], each)
        return found

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Maps the name of a group to its variables: those of the broker, of the queues or of the requests."""
        found: dict[str, list[str]] = {"of_broker": [], "of_queues": [], "of_requests": []}
        for name, variable in self.variables.items():
            kind = kind_of(variable)
            found["of_broker" if kind is None else f"of_{kind}s"].append(name)
        return {group: tuple(names) for group, names in found.items()}

    def kept(self, changed: Container[str]) -> Expression:
        """The expression that every variable outside `changed` stays the same."""
        names: list[str] = []
        for group, members in self.groups.items():
            left = [name for name in members if name not in changed]
            names += [group] if len(left) == len(members) else left
        return ("unchanged", *names)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of all actions, in the order of the specification."""
        return tuple(made for family in families_of(self.state.policy) for made in _operators(family, self.state))

    @cached_property
    def step(self) -> Effect:
        """The effect of an unknown step: each variable gets an arbitrary new value."""
        return {
            each.name: (bool_variable if each.truth else int_variable)(each.name + PRIME)
            for each in self.state.variables
        }

    @cached_property
    def calls(self) -> list[tuple[Predicate, list[tuple[Term, Expression]]]]:
        """Each predicate of the module, with its term and its call for each participant."""
        found: list[tuple[Predicate, list[tuple[Term, Expression]]]] = []
        known: set[int] = set()
        pools: Mapping[str, Sequence[object]] = {"request": self.state.requests, "queue": self.state.queues}
        for each in _predicates(self.state):
            slots: list[tuple[Expression, ...]] = [()]
            terms = (
                [each.term(self.state)] if not each.kind else [each.term(self.state, one) for one in pools[each.kind]]
            )
            if each.kind:
                slots = [(("slot", each.kind, number),) for number in range(SLOTS)]
            if terms[0].op not in _TRIVIAL and id(terms[0]) not in known:
                known |= set(map(id, terms))
                calls = [("call", each.name, False, *slot) for slot in slots]
                found.append((each, list(zip(terms, calls, strict=True))))
        return found

    def reading(self, before: str = "") -> Reading:
        """The reading that replaces terms by calls of all predicates, or only of those that come before `before`.

        A predicate's own definition uses only the predicates before it.
        """
        pairs: list[tuple[Term, Expression]] = []
        for each, calls in self.calls:
            if each.name == before:
                break
            for term, call in calls:
                pairs += [(term, call), (substitute(term, self.step), (*call[:2], True, *call[3:]))]
        variables = {variable.name: variable for variable in self.state.variables}
        return Reading(variables, tuple(pairs))

    @cached_property
    def read(self) -> Reading:
        """The reading that replaces terms by calls of all predicates."""
        return self.reading()

    @cached_property
    def definitions(self) -> dict[str, tuple[Predicate, Expression]]:
        """Maps the name of a predicate to the predicate and the expression that defines it."""
        found = {}
        for predicate, calls in self.calls:
            reading = self.reading(predicate.name)
            texts = [
                generalised(reading.expression(term), {slot[1:]: LETTERS[predicate.kind][0] for slot in call[3:]})
                for term, call in calls
            ]
            all_alike(predicate.name, texts)
            found[predicate.name] = (predicate, texts[0])
        return found

    def branches(self, expression: Expression) -> bool:
        """Whether the guard has alternatives. TLC would take and count the step once for each alternative."""
        match expression[0]:
            case "or" | "some" | "ite":
                return True
            case "and" | "every":
                return any(self.branches(part) for part in expression[1:] if isinstance(part, tuple))
            case "call":
                return self.branches(self.definitions[expression[1]][1])
            case _:
                return False


def all_alike(name: str, texts: Sequence[Expression]) -> None:
    """Raise `NotUniformError` if the texts of several requests or queues differ."""
    if any(key(text) != key(texts[0]) for text in texts):
        raise NotUniformError(f"{name} is not the same for every request or queue; use --to promela")


def _operators(family: Family, state: State) -> Iterator[Operator]:
    kinds = {"request", "queue"}
    for action in instances(family, state):
        parameters: list[tuple[str, str]] = []
        others: list[str] = []
        first = True
        for kind, actor in zip(family.who, _actors(family, action), strict=True):
            if kind in kinds and actor is not None:
                first &= actor in {0, "q0"}
                parameters.append((letter_for(kind, (letter for letter, _ in parameters)), kind))
            elif actor is not None:
                others.append(str(actor))
        if first:
            yield Operator(family, identifier("_".join([action.name, *others])), tuple(parameters), action)


def _actors(family: Family, action: Action) -> Iterator[Actor | None]:
    # A single queue or tag has no name, so the action's actors lack it.
    return islice(chain(action.actors, repeat(None)), len(family.who))


def kind_of(variable: Variable) -> str | None:
    """The kind of the first participant that the variable belongs to; None if it belongs to the broker."""
    slots = indexed(variable.name)[1]
    return slots[0][1] if slots else None


MAY_TICK: Final = "MayTick"
URGENT: Final = "Urgent"
_LEFT_OUT: Final = frozenset({time_can_pass})
"""The properties that the module leaves out. The rank of `time_can_pass` is only for proofs."""


def tla_name_of(model: Model) -> str:
    """The name of the module, from the policy and the features.

    The name has no sizes, because these are in the configuration file of TLC.
    """
    bounds = model.bounds
    features = [*(["tags"] if bounds.tags > 1 else []), *sorted(bounds.aspects)]
    return identifier("_".join(["longpoll", model.policy.name, *features]))


def tla_of(model: Model) -> str:
    """The text of the module; raises `UserError` for a feature that cannot be stated for any number of participants."""
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


def tla_configuration_of(model: Model) -> str:
    """The text of TLC's configuration file: the sizes, and the names of all properties."""
    module = Module(model)
    bounds = model.bounds
    lines = [
        f"\\* For progress: SPECIFICATION FairSpec, no INVARIANT, and PROPERTY {_progress(module)} alone.",
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


def _progress(module: Module) -> str:
    own = module.model.policy.extension
    names = dict.fromkeys(said.name for said in leads_to_of(module.model)) if own else ()
    return ", ".join(names) or "Answered"


def _is_of_states(item: Property) -> bool:
    """Whether the property is an invariant, perhaps only of the states in which a tick is enabled."""
    return not item.closing or ({label for label, _ in item.closing} == {"tick"} and not _is_primed(item))


def _is_primed(item: Property) -> bool:
    return any(name.endswith(PRIME) for _, condition in item.closing for name in condition.reads)


def _stated(module: Module) -> list[Property]:
    """The properties, stated over a step with unknown new values, so that each is stated once for all actions."""
    actions = tuple(
        attrs.evolve(action, effect=module.step, guard=bool_variable(f"{ENABLED}{action.name}{_suffix(action)}"))
        for family in families_of(module.state.policy)
        for action in instances(family, module.state)
    )
    model = Model(module.model.policy, module.bounds, module.state, actions)
    made = [text(model) for text in texts_of(model.policy)[0] if text not in _LEFT_OUT]
    return [item for item in made if item is not None and item.kind == "always"]


def _suffix(action: Action) -> str:
    return "".join(f"_{actor}" for actor in action.actors)


def formulas_of(model: Model) -> dict[str, tuple[str, ...]]:
    """Map the name of a predicate or property to the lines of its definition."""
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
    name = tla_name_of(module.model)
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
    sentences = {
        "hold_ticks": "A pull's deadline, in ticks from its receipt.",
        "scan_ticks": "Ticks between two scans.",
    }
    constants = {
        SETS["request"]: "The requests, one for each consumer: a consumer has one pull at a time.",
        SETS["queue"]: "The queues, which share one dispatcher, one scanner and one executor.",
        NO_QUEUE: "Stands for no queue.",
        MESSAGES: "The number of messages appended to one queue, at most.",
        **{name: sentences.get(name, "") for name in parameters_of(module.model)},
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
    for _, kind, _ in reversed(indexed(variable.name)[1]):
        if arrow == "->" or _starts_at_a_queue(variable):
            value = f"[{SETS[kind]} -> {value}]"
        else:
            value = f"[{LETTERS[kind][0]} \\in {SETS[kind]} |-> {value}]"
    return value


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
    found: dict[str, dict[tuple[Slot, ...], Expression]] = {}
    for name, term in changes(operator.action.effect).items():
        base, slots = indexed(name)
        found.setdefault(base, {})[tuple(slot[1:] for slot in slots)] = module.read.expression(term, terms[name])
    for base, values in found.items():
        yield base, ("becomes", base, _new_value(base, values, operator.bound))


def _new_value(base: str, values: Mapping[tuple[Slot, ...], Expression], bound: Bound) -> Expression:
    """The new value of a variable of the broker, of each request or queue, or of each queue and request."""
    if () in values:
        return generalised(values[()], bound)
    made: dict[Slot, Expression] = {}
    for (slot, *others), value in values.items():
        if not others:
            made[slot] = value
        elif slot in made or others[0] not in bound:
            raise NotUniformError(f"a step changes {base} of several requests; use --to promela")
        elif len(values) == 1 and slot in bound:
            return ("except", base, f"{bound[slot]}][{bound[others[0]]}", generalised(value, bound))
        else:
            made[slot] = ("except", ("var", base, False, ("slot", *slot)), bound[others[0]], value)
    return _function(base, made, bound)


def _function(base: str, values: Mapping[Slot, Expression], bound: Bound) -> Expression:
    kind = next(iter(values))[0]
    actor = (kind, 0) if (kind, 0) in bound else None
    if actor is not None and set(values) == {actor}:
        return ("except", base, bound[actor], generalised(values[actor], bound))
    others = [(kind, number) for number in range(SLOTS) if (kind, number) != actor]
    if not set(others) <= set(values):
        raise NotUniformError(f"a step changes {base} of only some requests or queues; use --to promela")
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
    if "open" in module.variables:
        yield "\\* Every pull is answered."
        yield "Answered == \\A r \\in Requests : open[r] ~> ~open[r]"
        yield ""
    yield from _leads_to(module)


def _leads_to(module: Module) -> Iterator[str]:
    """The lines of the specification file's statements about fair runs, each quantified over its participants."""
    first = {(kind, 0): letters[0] for kind, letters in LETTERS.items()}
    state = module.state
    stated = {said.name: said for said in reversed(leads_to_of(Model(state.policy, module.bounds, state, ())))}
    for name, said in stated.items():
        parts = [_of_anyone(module.read.expression(term), first) for term in (said.premise, said.conclusion)]
        named = set[str]().union(*map(letters_in, parts))
        every = "".join(f"\\A {first[slot]} \\in {SETS[slot[0]]} : " for slot in first if first[slot] in named)
        yield from comment(said.sentence)
        yield f"{name} == {every}({inline(parts[0])}) ~> ({inline(parts[1])})"
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
    """The expression, quantified over all participants if possible, otherwise about the participants in `bound`."""
    try:
        return generalised(expression, {})
    except NotUniformError:
        return generalised(expression, bound)


def _step_text(module: Module, condition: Expression, operators: Sequence[Operator]) -> Expression:
    """The TLA+ expression that is true if no step of these actions satisfies the condition."""
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
