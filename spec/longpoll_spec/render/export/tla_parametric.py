r"""The specification as one TLA+ module for any number of requests and queues, to be read and to be checked by TLC.

The module is made from the terms of three requests and three queues (`quantified`). Its comments are the docstrings of
the actions, the properties and the predicates. A property about a step is a temporal formula: `[][hold(r) => ...]_vars`.
For all properties, with the `sometimes` ones and the proof obligations, see `tla`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import attrs
from attrs import frozen

from longpoll_spec.actions import FAMILIES
from longpoll_spec.actions.family import instances
from longpoll_spec.actions.scan import comes_to
from longpoll_spec.actions.walk import may_take
from longpoll_spec.bounds import MESSAGES_MAX, Bounds
from longpoll_spec.errors import UserError
from longpoll_spec.model import Action, Actor, Family, Model, Property
from longpoll_spec.properties import ALWAYS, time_can_pass
from longpoll_spec.properties.answers import stands
from longpoll_spec.properties.wakeups import lost
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
from longpoll_spec.render.notation import identifier, parameters_of
from longpoll_spec.state import Request, State, Variable, state_of
from longpoll_spec.terms import FALSE, TRUE, Effect, Term, any_of, bool_variable, int_variable, substitute

WIDTH: Final = 118
SETS: Final = {"request": "Requests", "queue": "Queues"}
MAY_TICK: Final = "MayTick"
URGENT: Final = "Urgent"
_TRIVIAL: Final = frozenset({"var", "const", "true", "false", "eq", "lt", "le", "parameter"})
_LEFT_OUT: Final = frozenset({time_can_pass})
"""What speaks of the rank by which a proof shows that the clock goes on."""


@frozen
class Predicate:
    """A predicate with a name: whose it is, its docstring, and its term for a state and a participant."""

    name: str
    kind: str
    told: object
    term: Callable[..., Term]

    @property
    def sentence(self) -> str:
        """The first paragraph of the docstring."""
        return " ".join(str(self.told.__doc__).split("\n\n", maxsplit=1)[0].split())


def _predicates(state: State) -> Iterator[Predicate]:
    """The predicates in the order in which each may use the ones before it."""
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
    """An action as an operator of the module: its name, its parameters, and the instance with each first one."""

    family: Family
    name: str
    parameters: tuple[tuple[str, str], ...]
    """(letter, kind)."""
    action: Action

    @property
    def bound(self) -> Bound:
        """The slots that are its parameters."""
        return {(kind, 0): letter for letter, kind in self.parameters}

    @property
    def call(self) -> str:
        """As in `hold(r)`."""
        letters = ", ".join(letter for letter, _ in self.parameters)
        return f"{self.name}({letters})" if letters else self.name


def _steps(operators: Iterable[Operator], fixed: Container[str] = (), *, op: str = "or", each: str = "{}") -> Expression:
    """That a step is one of some actions, for any parameters that are not fixed; those of one kind stand together."""
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
    """Makes the text of a policy with some features."""

    model: Model
    """The model that is asked for; the text does not depend on its sizes."""

    @cached_property
    def bounds(self) -> Bounds:
        """The bounds of the terms that the text is made from."""
        if self.model.bounds.has("lateness"):
            raise UserError("--parametric cannot count lateness; drop --aspect lateness, or drop --parametric")
        return attrs.evolve(self.model.bounds, requests=SLOTS, queues=SLOTS, messages=MESSAGES_MAX)

    @cached_property
    def state(self) -> State:
        """The state of the terms."""
        return state_of(self.model.policy, self.bounds)

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """Each variable by its name without a number, as the first request or queue has it."""
        found: dict[str, Variable] = {}
        for each in self.state.variables:
            found.setdefault(indexed(each.name)[0], each)
        return found

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The variables of the requests, of the queues, and of the broker, each with a name for all together."""
        found: dict[str, list[str]] = {"of_broker": [], "of_queues": [], "of_requests": []}
        for name, variable in self.variables.items():
            kind = _kind(variable)
            found["of_broker" if kind is None else f"of_{kind}s"].append(name)
        return {group: tuple(names) for group, names in found.items()}

    def kept(self, changed: Container[str]) -> Expression:
        """That every other variable stays as it is."""
        names: list[str] = []
        for group, members in self.groups.items():
            left = [name for name in members if name not in changed]
            names += [group] if len(left) == len(members) else left
        return ("unchanged", *names)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Every action, in the order of the specification."""
        return tuple(made for family in FAMILIES for made in _operators(family, self.state))

    @cached_property
    def step(self) -> Effect:
        """What a step does, whichever it is: each variable gets a new value."""
        return {
            each.name: (bool_variable if each.truth else int_variable)(each.name + PRIME)
            for each in self.state.variables
        }

    @cached_property
    def calls(self) -> list[tuple[Predicate, list[tuple[Term, Expression]]]]:
        """Each predicate that says something here, with its term and its call for each participant."""
        found: list[tuple[Predicate, list[tuple[Term, Expression]]]] = []
        known: set[int] = set()
        pools = {"request": self.state.requests, "queue": self.state.queues}
        for each in _predicates(self.state):
            if each.kind:
                slots = [(("slot", each.kind, number),) for number in range(SLOTS)]
                terms = [each.term(self.state, one) for one in pools[each.kind]]
            else:
                slots, terms = [()], [each.term(self.state)]
            if terms[0].op not in _TRIVIAL and id(terms[0]) not in known:
                known |= set(map(id, terms))
                calls = [("call", each.name, False, *slot) for slot in slots]
                found.append((each, list(zip(terms, calls, strict=True))))
        return found

    def reading(self, before: str = "") -> Reading:
        """The reading by all predicates, or by those that stand before one."""
        pairs: list[tuple[Term, Expression]] = []
        for each, calls in self.calls:
            if each.name == before:
                break
            for term, call in calls:
                pairs += [(term, call), (substitute(term, self.step), (*call[:2], True, *call[3:]))]
        variables = {variable.name: variable for variable in self.state.variables}
        junctions = sorted((pair for pair in pairs if pair[0].op in {"and", "or"}), key=lambda pair: -len(pair[0].args))
        return Reading(variables, {id(term): call for term, call in reversed(pairs)}, tuple(junctions))

    @cached_property
    def read(self) -> Reading:
        """The reading by all predicates."""
        return self.reading()

    @cached_property
    def definitions(self) -> dict[str, tuple[Predicate, Expression]]:
        """Each predicate's name -> the predicate, and what it says."""
        found = {}
        for predicate, calls in self.calls:
            reading = self.reading(predicate.name)
            texts = [
                generalised(reading.expression(term), {slot[1:]: LETTERS[predicate.kind][0] for slot in call[3:]})
                for term, call in calls
            ]
            _all_alike(predicate.name, texts)
            found[predicate.name] = (predicate, texts[0])
        return found

    def branches(self, expression: Expression) -> bool:
        """Whether TLC would take a step once for each alternative of this guard, and count it as often."""
        match expression[0]:
            case "or" | "some" | "ite":
                return True
            case "and" | "every":
                return any(self.branches(part) for part in expression[1:] if isinstance(part, tuple))
            case "call":
                return self.branches(self.definitions[expression[1]][1])
            case _:
                return False


def _all_alike(name: str, texts: Sequence[Expression]) -> None:
    if any(key(text) != key(texts[0]) for text in texts):
        raise NotUniformError(f"{name} does not say the same of every request or queue; use --to tla without it")


def _operators(family: Family, state: State) -> Iterator[Operator]:
    kinds = {"request", "queue"}
    for action in instances(family, state):
        parameters, others, first = [], [], True
        for kind, actor in zip(family.who, _actors(family, action), strict=True):
            if kind in kinds:
                first &= actor in {0, "q0"}
                parameters.append((letter_for(kind, (letter for letter, _ in parameters)), kind))
            elif actor is not None:
                others.append(str(actor))
        if first:
            yield Operator(family, identifier("_".join([action.name, *others])), tuple(parameters), action)


def _actors(family: Family, action: Action) -> Iterator[Actor | None]:
    """Who takes part, one for each kind; the only tag has no name in an action."""
    left = list(action.actors)
    for kind in family.who:
        yield None if kind in {"tag", "wish"} and not left else left.pop(0)


def parametric_name_of(model: Model) -> str:
    """The name of the module: the sizes are in the configuration."""
    bounds = model.bounds
    features = [*(["tags"] if bounds.tags > 1 else []), *sorted(bounds.aspects)]
    return identifier("_".join(["longpoll", model.policy.name, *features]))


def tla_parametric_of(model: Model) -> str:
    """The module; raises `UserError` for a feature that cannot be said of any number."""
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
    """Whether it is an invariant; what no tick may see is one of the states in which a tick may come."""
    return not item.closing or {label for label, _ in item.closing} == {"tick"} and not _is_primed(item)


def _is_primed(item: Property) -> bool:
    return any(name.endswith(PRIME) for _, condition in item.closing for name in condition.reads)


ENABLED: Final = "ENABLED "


def _stated(module: Module) -> list[Property]:
    """The properties over a step of which only the new values are known, so that each says the same of every action."""
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


def _comment(sentence: str) -> Iterator[str]:
    yield from (f"\\* {line}" for line in textwrap.wrap(sentence, WIDTH - 3))


def _head(module: Module) -> Iterator[str]:
    name = parametric_name_of(module.model)
    yield f"---- MODULE {name} ----"
    yield from _comment(
        f"Broker long polling, policy {module.model.policy.name}, for any number of requests, queues and messages. "
        "A request is one consumer's pull and what becomes of it."
    )
    yield f"\\* Check it with TLC: java -cp tla2tools.jar tlc2.TLC {name}"
    yield from _comment(
        "A guard that is compared with TRUE has alternatives: TLC would take the step once for each that holds, and "
        "count it as often."
    )
    yield "EXTENDS Integers, FiniteSets"
    yield ""


def _declarations(module: Module) -> Iterator[str]:
    constants = {
        SETS["request"]: "The requests, one for each consumer: a consumer has one pull at a time.",
        SETS["queue"]: "The queues, which share one dispatcher, one scanner and one executor.",
        NO_QUEUE: "Stands for no queue.",
        MESSAGES: "Messages that are ever appended to one queue.",
        **{name: "" for name in parameters_of(module.model)},
        "hold_ticks": "A pull's deadline, in ticks from its receipt.",
        "scan_ticks": "Ticks between two scans.",
    }
    yield from _table("CONSTANTS", constants)
    yield from _table("VARIABLES", {name: each.sentence for name, each in module.variables.items()})
    for name, members in module.groups.items():
        yield f"{name} == {_inline(('tuple', *members))}"
    yield from _definition("vars", ("tuple", *module.groups))


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
    yield "\\* A consumer of the only queue reads that from the start; of several it reads none yet."
    yield "Init =="
    for name, variable in module.variables.items():
        sign = "\\in" if _starts_at_a_queue(variable) else "="
        yield f"  /\\ {name} {sign} {_of_each(variable, _first(module, variable), '|->')}"
    yield ""


def _kind(variable: Variable) -> str | None:
    slots = indexed(variable.name)[1]
    return slots[0][1] if slots else None


def _starts_at_a_queue(variable: Variable) -> bool:
    return variable.numbers_queues and _kind(variable) == "request"


def _of_each(variable: Variable, value: str, arrow: str) -> str:
    kind = _kind(variable)
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
    return f"0..{_inline(Reading({}).expression(variable.greatest))}"


def _quoted(words: Iterable[str]) -> list[str]:
    return [f'"{word}"' for word in words]


def _first(module: Module, variable: Variable) -> str:
    if _starts_at_a_queue(variable):
        return f"IF Cardinality(Queues) = 1 THEN Queues ELSE {{{NO_QUEUE}}}"
    return _inline(module.read.expression(variable.first, variable))


def _definitions(module: Module, body: str) -> Iterator[str]:
    """The predicates that the body uses, and the ones that these use."""
    told: list[tuple[str, list[str]]] = []
    for name, (predicate, says) in reversed(module.definitions.items()):
        head = f"{name}({LETTERS[predicate.kind][0]})" if predicate.kind else name
        if _mentions(name, body):
            lines = list(_definition(head, says))
            told.append((predicate.sentence, lines))
            body = "\n".join([body, *lines])
    before = ""
    for sentence, lines in reversed(told):
        if sentence != before:
            before = sentence
            yield from _comment(sentence)
        yield from lines


def _mentions(name: str, body: str) -> bool:
    return re.search(rf"\b{name}\b", body) is not None


def _definition(head: str, says: Expression) -> Iterator[str]:
    short = f"{head} == {_inline(says)}"
    if len(short) <= WIDTH * (3 if says[0] in _JUNCTIONS else 4) // 4:
        yield short
    else:
        yield f"{head} =="
        yield from _indented(_lines(says, WIDTH - 2))
    yield ""


def _actions_text(module: Module, operators: Iterable[Operator]) -> Iterator[str]:
    told = ""
    for operator in operators:
        if operator.action.sentence != told:
            told = operator.action.sentence
            yield from _comment(told)
        yield from _action(module, operator)


def _action(module: Module, operator: Operator) -> Iterator[str]:
    reading = module.read
    guard = generalised(reading.expression(operator.action.guard), operator.bound)
    parts = list(guard[1:]) if guard[0] == "and" else [guard]
    if guard == ("name", "TRUE"):
        parts = []
    if operator.action.name == "tick":
        yield from _definition(MAY_TICK, ("and", *_waits(module), *parts) if parts or _waits(module) else guard)
        parts = [("name", MAY_TICK)]
    elif not operator.family.exists(state_of(module.model.policy, attrs.evolve(module.bounds, queues=1))):
        parts.append(("name", "Cardinality(Queues) > 1"))
    parts = [("eq", part, ("name", "TRUE")) if module.branches(part) else part for part in parts]
    changes = dict(_changes(module, operator))
    yield f"{operator.call} =="
    yield from _indented(_lines(("and", *parts, *changes.values(), module.kept(changes)), WIDTH - 2, whole=False))
    yield ""


def _waits(module: Module) -> list[Expression]:
    return [("name", f"~ENABLED {URGENT}")] if module.model.policy.tick == "maximal_progress" else []


def _changes(module: Module, operator: Operator) -> Iterator[tuple[str, Expression]]:
    """Each variable's name -> what it is after the step, for each variable that changes."""
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
    """A new value of some of the requests or queues."""
    kind = next(slot[0] for slot in values if slot is not None)
    actor = (kind, 0) if (kind, 0) in bound else None
    if actor is not None and set(values) == {actor}:
        return ("except", base, bound[actor], generalised(values[actor], bound))
    others = [(kind, number) for number in range(SLOTS) if (kind, number) != actor]
    if not set(others) <= set(values):
        raise NotUniformError(f"a step changes {base} of some only; use --to tla without --parametric")
    letter = letter_for(kind, bound.values())
    texts = [generalised(values[other], {**bound, other: letter}) for other in others]
    _all_alike(base, texts)
    if actor is None:
        return ("function", letter, kind, texts[0])
    mine = values.get(actor, ("var", base, False, ("slot", *actor)))
    if key(replaced(values[others[0]], {("slot", *others[0]): ("slot", *actor)})) == key(mine):
        return ("function", letter, kind, texts[0])
    is_actor = ("eq", ("letter", letter), ("letter", bound[actor]))
    return ("function", letter, kind, ("ite", is_actor, generalised(mine, bound), texts[0]))


def _urgent(module: Module) -> Iterator[str]:
    waited = module.model.policy.tick == "maximal_progress"
    yield "\\* What time waits for." if waited else "\\* What the broker's own threads do."
    yield from _definition(URGENT, _steps(each for each in module.operators if each.action.urgent))


def _next(module: Module) -> Iterator[str]:
    urgent = [each for each in module.operators if each.action.urgent]
    others = [each for each in module.operators if not each.action.urgent]
    yield from _definition("Next", ("or", ("name", URGENT), *_steps(others)[1:]))
    yield "Spec == Init /\\ [][Next]_vars"
    yield ""
    yield "\\* The broker's threads run, and so does time: each of these comes about, if it could from some moment on."
    fair = [*urgent, *(each for each in others if each.action.name == "tick")]
    yield from _definition("Fairness", _steps(fair, op="and", each="WF_vars({})"))
    yield "\\* Among several queues or tags, or where walkers put back, tick may have no room. That it has is assumed."
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
    yield from _comment(item.sentence)
    if _is_of_states(item):
        says = _as_implication(generalised(module.read.expression(item.here), {}))
        if item.closing:
            ((_, condition),) = item.closing
            says = ("implies", ("name", MAY_TICK), _denied(generalised(module.read.expression(condition), {})))
        yield from _definition(item.name, says)
        return
    assert item.here is TRUE, item.name
    groups: dict[object, tuple[Expression, list[Operator]]] = {}
    for operator in module.operators:
        wrong = any_of(condition for label, condition in item.closing if label == operator.action.label)
        if wrong is not FALSE:
            condition = _of_anyone(module.read.expression(wrong), operator.bound)
            groups.setdefault(key(condition), (condition, []))[1].append(operator)
    parts = [_step_text(module, condition, operators) for condition, operators in groups.values()]
    yield from _definition(item.name, ("box", parts[0] if len(parts) == 1 else ("and", *parts)))


def _of_anyone(expression: Expression, bound: Bound) -> Expression:
    """What is said of all alike, and else of the ones that take part."""
    try:
        return generalised(expression, {})
    except NotUniformError:
        return generalised(expression, bound)


def _step_text(module: Module, condition: Expression, operators: Sequence[Operator]) -> Expression:
    """That no step of some actions has the condition."""
    denied = _as_implication(_denied(condition))
    named = _letters_in(condition)
    others = [each for each in module.operators if each not in operators]
    if not others:
        return denied
    if not named and len(others) < len(operators):
        return ("implies", ("not", _steps(others)), denied)
    parameters = dict.fromkeys(each for operator in operators for each in operator.parameters if each[0] in named)
    says = _implies([_steps(operators, named)], denied)
    for letter, kind in reversed(parameters):
        says = ("every", letter, kind, ("letters",), says)
    return says


def _letters_in(expression: Expression, bound: frozenset[str] = frozenset()) -> set[str]:
    """The letters that no quantifier inside binds."""
    if expression[0] == "letter":
        return {expression[1]} - bound
    if expression[0] in {"every", "some"}:
        return _letters_in(expression[4], bound | {expression[1]}) | (set(expression[3][1:]) - bound)
    return set[str]().union(*(_letters_in(part, bound) for part in expression if isinstance(part, tuple)))


def _denied(expression: Expression) -> Expression:
    """That it is not so, with as few negations as a reader wants."""
    match expression[0]:
        case "not":
            return expression[1]
        case "some" | "every":
            other = "every" if expression[0] == "some" else "some"
            return (other, *expression[1:4], _denied(expression[4]))
        case "or":
            return ("and", *map(_denied, expression[1:]))
        case "and":
            parts = list(expression[1:])
            then = parts.pop(max(range(len(parts)), key=lambda place: (_weight(parts[place]), place)))
            return _implies(parts, _denied(then))
        case _:
            return ("not", expression)


def _implies(given: Sequence[Expression], then: Expression) -> Expression:
    """That all of these give it; what it is given itself is given too."""
    parts = [part for each in given for part in (each[1:] if each[0] == "and" else (each,))]
    if then[0] == "implies":
        return _implies([*parts, then[1]], then[2])
    return ("implies", ("and", *parts) if len(parts) > 1 else parts[0], then)


def _as_implication(expression: Expression) -> Expression:
    """The statement with `A => B` in place of `~A \\/ B`, wherever it is said of every one."""
    match expression:
        case ("and", *parts):
            return ("and", *map(_as_implication, parts))
        case ("every", letter, kind, left_out, body):
            return ("every", letter, kind, left_out, _as_implication(body))
        case ("or", *parts):
            given = [part[1] for part in parts if part[0] == "not" and part[1][0] not in {"lt", "le"}]
            then = [part for part in parts if part[0] != "not" or part[1][0] in {"lt", "le"}]
            if given and then:
                return _implies(given, ("or", *then) if len(then) > 1 else then[0])
    return expression


def _weight(expression: Expression) -> int:
    """How much there is to read; a comparison and its opposite weigh the same."""
    if expression[0] == "not":
        if expression[1][0] in {"var", "call"} and expression[1][2]:
            return 99  # what is so after the step is what is said, not what is given
        return _weight(expression[1]) + (expression[1][0] not in _COMPARISONS)
    if expression[0] == "is queue":
        return 0
    if expression[0] in {*_COMPARISONS, *_MEMBERS, "call", "var"}:
        return 1
    return 1 + sum(_weight(part) for part in expression[1:] if isinstance(part, tuple))


_JUNCTIONS: Final = {"and": "/\\", "or": "\\/"}
_COMPARISONS: Final = {"eq": ("=", "/="), "lt": ("<", ">="), "le": ("<=", ">")}
_MEMBERS: Final = {"in": ("\\in", "\\notin"), "notin": ("\\notin", "\\in")}
_SIGNS: Final = {"every": "\\A", "some": "\\E"}
_LOOSE: Final = frozenset({"and", "or", "every", "some", "ite", "implies"})


def _inline(expression: Expression) -> str:
    """The expression on one line."""
    match expression:
        case ("letter" | "name", text):
            return str(text)
        case ("word", text):
            return f'"{text}"'
        case ("num", number):
            return str(number) if number >= 0 else f"({number})"
        case ("var", base, primed, *index):
            if base.startswith(ENABLED):
                return f"{base}({', '.join(map(_inline, index))})" if index else base
            return f"{base}{PRIME if primed else ''}" + "".join(f"[{_inline(each)}]" for each in index)
        case ("call", name, primed, *given):
            words = f"({', '.join(map(_inline, given))})" if given else ""
            return f"{name}{words}{PRIME if primed else ''}"
        case ("not", inner):
            return _negated(inner)
        case ("and" | "or" as op, *parts):
            return f" {_JUNCTIONS[op]} ".join(map(_closed, parts))
        case ("lt", ("num", number), right):
            return f"{_operand(right)} > {number}"
        case ("le", left, ("num", 0)):
            return f"{_operand(left)} = 0"
        case ("eq" | "lt" | "le" as op, left, right):
            return f"{_operand(left)} {_COMPARISONS[op][0]} {_operand(right)}"
        case ("in" | "notin" as op, left, *words):
            return _member(left, _MEMBERS[op][0], words)
        case ("is queue", which):
            return f"{_inline(which)} \\in Queues"
        case ("add" | "sub" as op, left, right):
            return f"{_operand(left)} {'+' if op == 'add' else '-'} {_operand(right)}"
        case ("implies", before, after):
            return f"{_closed(before)} => {_closed(after)}"
        case ("every" | "some", *_, body):
            return f"{_quantifier(expression)} {_inline(body)}"
        case ("ite", condition, then, otherwise):
            return f"IF {_inline(condition)} THEN {_inline(then)} ELSE {_inline(otherwise)}"
        case ("except", base, letter, value):
            return f"[{base} EXCEPT ![{letter}] = {_inline(value)}]"
        case ("function", letter, kind, value):
            return f"[{letter} \\in {SETS[kind]} |-> {_inline(value)}]"
        case ("becomes", base, value):
            return f"{base}' = {_inline(value) if value[0] != 'ite' else f'({_inline(value)})'}"
        case ("box", inner):
            return f"[][{_inline(inner)}]_vars"
        case ("tuple", *names):
            return f"<<{', '.join(names)}>>"
        case ("unchanged", *names):
            return f"UNCHANGED <<{', '.join(names)}>>"
        case _:
            raise AssertionError(expression)


def _quantifier(expression: Expression) -> str:
    op, letter, kind, (_, *left_out), _ = expression
    those = f" \\ {{{', '.join(left_out)}}}" if left_out else ""
    return f"{_SIGNS[op]} {letter} \\in {SETS[kind]}{those} :"


def _negated(inner: Expression) -> str:
    match inner:
        case ("lt", ("num", 0), right):
            return f"{_operand(right)} = 0"
        case ("eq" | "lt" | "le" as op, left, right):
            return f"{_operand(left)} {_COMPARISONS[op][1]} {_operand(right)}"
        case ("in" | "notin" as op, left, *words):
            return _member(left, _MEMBERS[op][1], words)
        case ("is queue", which):
            return f"{_inline(which)} \\notin Queues"
        case _:
            return f"~{_closed(inner)}" if inner[0] in _LOOSE else f"~{_inline(inner)}"


def _member(left: Expression, sign: str, words: Sequence[Expression]) -> str:
    return f"{_inline(left)} {sign} {{{', '.join(map(_inline, words))}}}"


def _closed(expression: Expression) -> str:
    text = _inline(expression)
    return f"({text})" if expression[0] in _LOOSE or text.startswith("\\E") else text


def _operand(expression: Expression) -> str:
    text = _inline(expression)
    loose = expression[0] in _LOOSE or expression[0] in {*_COMPARISONS, *_MEMBERS, "add", "sub", "not", "is queue"}
    return f"({text})" if loose else text


def _indented(lines: Iterable[str], by: int = 2) -> Iterator[str]:
    return (f"{' ' * by}{line}" for line in lines)


def _lines(expression: Expression, width: int, *, whole: bool = True) -> list[str]:
    """The expression in lines of this width; `whole` on one line where it fits."""
    short = _inline(expression)
    dense = expression[0] in _JUNCTIONS and any(part[0] != "name" for part in expression[1:])
    if expression[0] in _JUNCTIONS and not dense:
        return textwrap.wrap(short, width)
    if whole and len(short) <= (3 * width // 4 if dense else width):
        return [short]
    match expression:
        case ("and" | "or" as op, *parts):
            sign = _JUNCTIONS[op]
            made = [
                f"{sign if not number else '  '} {line}"
                for part in parts
                for number, line in enumerate(_lines(part, width - 3))
            ]
        case ("every" | "some", *_, body):
            made = [_quantifier(expression), *_indented(_lines(body, width - 2))]
        case ("implies", before, after):
            made = [*_bracketed(before, width - 4, end=" =>"), *_indented(_lines(after, width - 2))]
        case ("not", inner):
            made = _bracketed(inner, width - 3, begin="~")
        case ("ite", condition, then, otherwise):
            made = [
                f"{word if not number else ' ' * len(word)} {line}"
                for word, part in (("IF", condition), ("THEN", then), ("ELSE", otherwise))
                for number, line in enumerate(_lines(part, width - 5))
            ]
        case ("becomes", base, ("except", _, letter, value)):
            made = [f"{base}' = [{base} EXCEPT ![{letter}] =", *_ending(_indented(_lines(value, width - 4)), "]")]
        case ("becomes", base, ("function", letter, kind, value)):
            head = f"{base}' = [{letter} \\in {SETS[kind]} |->"
            made = [head, *_ending(_indented(_lines(value, width - 4)), "]")]
        case ("becomes", base, value):
            made = [f"{base}' =", *_indented(_lines(value, width - 2))]
        case ("eq", left, ("ite", *_) as right):
            made = [f"{_operand(left)} =", *_indented(_bracketed(right, width - 4))]
        case ("eq", left, right):
            made = _bracketed(left, width - 8, end=f" = {_operand(right)}")
        case ("box", inner):
            made = _bracketed(inner, width - 8, begin="[][", end="]_vars", brackets=("", ""))
        case ("tuple" | "unchanged", *names):
            head = "<<" if expression[0] == "tuple" else "UNCHANGED <<"
            made = textwrap.wrap(", ".join(names), width - len(head) - 2)
            made = [f"{head if not place else ' ' * len(head)}{line}" for place, line in enumerate(made)]
            made[-1] += ">>"
        case _:
            made = [short]
    return made


def _bracketed(
    expression: Expression, width: int, *, begin: str = "", end: str = "", brackets: tuple[str, str] = ("(", ")")
) -> list[str]:
    lines = _lines(expression, width)
    if len(lines) == 1 and not brackets[0]:
        return [f"{begin}{lines[0]}{end}"]
    if len(lines) == 1:
        return [f"{begin}{_closed(expression)}{end}"]
    first, last = f"{begin}{brackets[0]}", f"{brackets[1]}{end}"
    return list(_ending([f"{first if not place else ' ' * len(first)}{line}" for place, line in enumerate(lines)], last))


def _ending(lines: Iterable[str], end: str) -> Iterator[str]:
    made = list(lines)
    made[-1] += end
    return iter(made)
