"""The content of a TLA+ module for any number of requests and queues: predicates, actions, and terms over them.

It is made from the terms of three requests and three queues (`quantified`). Layout: `tla_parametric`.
"""

from __future__ import annotations

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
from longpoll_spec.model import Action, Actor, Family, Model
from longpoll_spec.properties.answers import stands
from longpoll_spec.properties.wakeups import lost
from longpoll_spec.render.export.quantified import (
    LETTERS,
    PRIME,
    SLOTS,
    Bound,
    Expression,
    NotUniformError,
    Reading,
    generalised,
    indexed,
    key,
    letter_for,
)
from longpoll_spec.render.notation import identifier
from longpoll_spec.state import Request, State, Variable, state_of
from longpoll_spec.terms import Effect, Term, bool_variable, int_variable, substitute

_TRIVIAL: Final = frozenset({"var", "const", "true", "false", "eq", "lt", "le", "parameter"})
"""Terms that need no name: written out where they occur."""


@frozen
class Predicate:
    """A named predicate: its kind of participant, its docstring, and its term for a state and a participant."""

    name: str
    kind: str
    told: object
    term: Callable[..., Term]

    @property
    def sentence(self) -> str:
        """The first paragraph of the docstring."""
        return " ".join(str(self.told.__doc__).split("\n\n", maxsplit=1)[0].split())


def _predicates(state: State) -> Iterator[Predicate]:
    """The predicates, each after those that it may use."""
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
    """An action as an operator of the module: its name, its parameters, and one instance per kind."""

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


def steps(operators: Iterable[Operator], fixed: Container[str] = (), *, op: str = "or", each: str = "{}") -> Expression:
    """That a step is one of some actions, for any parameters that are not fixed, grouped by kind."""
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
    """Makes the module of a policy with some features."""

    model: Model
    """The requested model; the text does not depend on its sizes."""

    @cached_property
    def bounds(self) -> Bounds:
        """The bounds of the terms that the text is made from."""
        if self.model.bounds.has("lateness"):
            raise UserError("--parametric cannot count lateness; drop --aspect lateness, or drop --parametric")
        return attrs.evolve(self.model.bounds, requests=SLOTS, queues=SLOTS, messages=MESSAGES_MAX)

    @cached_property
    def state(self) -> State:
        """The state of those terms."""
        return state_of(self.model.policy, self.bounds)

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """Each variable by its name without a number, from the first request or queue."""
        found: dict[str, Variable] = {}
        for each in self.state.variables:
            found.setdefault(indexed(each.name)[0], each)
        return found

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The variables of the requests, of the queues, and of the broker, each group with a name."""
        found: dict[str, list[str]] = {"of_broker": [], "of_queues": [], "of_requests": []}
        for name, variable in self.variables.items():
            kind = kind_of(variable)
            found["of_broker" if kind is None else f"of_{kind}s"].append(name)
        return {group: tuple(names) for group, names in found.items()}

    def kept(self, changed: Container[str]) -> Expression:
        """That every other variable stays the same."""
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
        """The effect of an unknown step: each variable gets an arbitrary new value."""
        return {
            each.name: (bool_variable if each.truth else int_variable)(each.name + PRIME)
            for each in self.state.variables
        }

    @cached_property
    def calls(self) -> list[tuple[Predicate, list[tuple[Term, Expression]]]]:
        """Each predicate that is defined here, with its term and its call for each participant."""
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
        """The reading by all predicates, or by those before one."""
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
        """The reading by all predicates."""
        return self.reading()

    @cached_property
    def definitions(self) -> dict[str, tuple[Predicate, Expression]]:
        """Each predicate's name -> the predicate, and its definition."""
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


def all_alike(name: str, texts: Sequence[Expression]) -> None:
    """Raise `NotUniformError` if the texts of several requests or queues differ."""
    if any(key(text) != key(texts[0]) for text in texts):
        raise NotUniformError(f"{name} is not the same for every request or queue; use --to tla without --parametric")


def _operators(family: Family, state: State) -> Iterator[Operator]:
    kinds = {"request", "queue"}
    for action in instances(family, state):
        parameters: list[tuple[str, str]] = []
        others: list[str] = []
        first = True
        for kind, actor in zip(family.who, _actors(family, action), strict=True):
            if kind in kinds:
                first &= actor in {0, "q0"}
                parameters.append((letter_for(kind, (letter for letter, _ in parameters)), kind))
            elif actor is not None:
                others.append(str(actor))
        if first:
            yield Operator(family, identifier("_".join([action.name, *others])), tuple(parameters), action)


def _actors(family: Family, action: Action) -> Iterator[Actor | None]:
    left = list(action.actors)
    for kind in family.who:
        yield None if kind in {"tag", "wish"} and not left else left.pop(0)


def kind_of(variable: Variable) -> str | None:
    """The kind whose members each have this variable; None for the broker's own."""
    slots = indexed(variable.name)[1]
    return slots[0][1] if slots else None
