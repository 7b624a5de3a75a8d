"""The records of a specification: actions, properties, and the model that holds them for one policy and bounds.

Their definitions are in `actions` and `properties`; `specification` builds a model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias

from attrs import field, frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.errors import UnknownPropertyError, not_known
from longpoll_spec.policy import Policy
from longpoll_spec.state import State, Variable
from longpoll_spec.terms import TRUE, Bool, Effect

Actor: TypeAlias = str | int
"""The actor: a request's index, or the name of a notifier, queue or tag."""
Who: TypeAlias = Literal["request", "notifier", "queue", "tag", "wish"]
"""The kind of an action's participant."""
Kind: TypeAlias = Literal["always", "sometimes", "inductive", "leads_to"]


@frozen
class Step:
    """The step of an action instance: enabled where `guard` holds, and then `effect` happens atomically."""

    guard: Bool
    effect: Effect


@frozen
class Action:
    """One instance of an action: a step with its actors."""

    name: str
    actors: tuple[Actor, ...]
    sentence: str
    guard: Bool
    effect: Effect
    urgent: bool
    """Under maximal progress no time passes while this is enabled."""
    thread: str = ""
    """The actor, if the action is of a specification file; else see `threads`."""
    place: str = ""
    """File and line, if the action is of a specification file."""

    @property
    def label(self) -> str:
        """For instance `hold(0)` or `notifier_throws(scanner,1)`."""
        return f"{self.name}({','.join(map(str, self.actors))})" if self.actors else self.name


@frozen
class Family:
    """All instances of one action: definition, participants, where it exists, and in which policies it is urgent."""

    name: str
    sentence: str
    text: Callable[..., Step]
    who: tuple[Who, ...]
    exists: Callable[[State], bool]
    urgent: Callable[[Policy], bool]
    thread: str = ""
    place: str = ""


@frozen
class Property:
    """A statement about states: `always` true in every reachable one, `sometimes` true in at least one.

    `inductive` is an `always` that only a proof needs. A property about forbidden steps names them in `closing`, each
    with the condition under which it breaks the property; a counterexample ends with that step. `term` is the whole as
    one statement about states: `here`, and no closing step's guard and condition hold together.
    """

    name: str
    kind: Kind
    sentence: str
    term: Bool
    here: Bool = TRUE
    """The part of `term` that is about the state alone."""
    closing: tuple[tuple[str, Bool], ...] = ()
    """(action label, the condition besides its guard under which the step breaks the property)."""
    place: str = ""
    """File and line, if the property is of a specification file."""

    @property
    def by_construction(self) -> bool:
        """Whether it holds vacuously: it is true of every state, reachable or not.

        Such a property holds but proves nothing, so a report must mark it.
        """
        return self.kind != "sometimes" and self.term is TRUE


@frozen
class LeadsTo:
    """A statement about fair runs: whenever `premise` is true, `conclusion` is true then or later."""

    name: str
    sentence: str
    premise: Bool
    conclusion: Bool
    place: str = ""


@frozen
class Model:
    """The specification of one policy under bounds."""

    policy: Policy
    bounds: Bounds
    state: State
    actions: tuple[Action, ...]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables, in the order of every engine's states."""
        return self.state.variables

    @property
    def initial(self) -> tuple[int, ...]:
        """The first state."""
        return self.state.initial

    @property
    def urgent(self) -> tuple[str, ...]:
        """The names of the urgent actions, each once."""
        return tuple(dict.fromkeys(action.name for action in self.actions if action.urgent))

    def named(self, *names: str) -> tuple[Action, ...]:
        """The instances of these actions."""
        return tuple(action for action in self.actions if action.name in names)


@frozen(eq=False)
class Said:
    """A model and its statements as a dictionary key: equal if every term is the same.

    Equal terms are one object while one of them is referenced, which this key ensures.
    """

    model: Model
    properties: tuple[Property, ...] = ()
    _key: tuple[object, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Compute the key once: it is used at each lookup."""
        actions = tuple(
            (each.label, each.urgent, id(each.guard), *((name, id(term)) for name, term in each.effect.items()))
            for each in self.model.actions
        )
        stated = tuple(
            (each.name, each.kind, id(each.term), id(each.here), *((label, id(term)) for label, term in each.closing))
            for each in self.properties
        )
        object.__setattr__(self, "_key", (self.model.policy, self.model.bounds, actions, stated))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Said) and self._key == other._key


@frozen
class TraceStep:
    """One step of a trace: the action (none at the start) and the state it led to."""

    action: Action | None
    state: tuple[int, ...]


@frozen
class Trace:
    """A run of the model from its first state, with the property it shows."""

    model: Model
    steps: tuple[TraceStep, ...]
    property_name: str = ""

    @property
    def depth(self) -> int:
        """The number of actions."""
        return len(self.steps) - 1

    def changes(self, index: int) -> Sequence[tuple[Variable, int, int]]:
        """(variable, before, after) of every variable that step `index` (from 1) changed."""
        before, after = self.steps[index - 1].state, self.steps[index].state
        return [
            (variable, old, new)
            for variable, old, new in zip(self.model.variables, before, after, strict=True)
            if old != new
        ]


@frozen
class SeenStep:
    """One observed step: its possible actions, its time, and the known part of the state after it."""

    actions: tuple[str, ...]
    """Labels; several if the observer does not know the actor, none if the spec has no such action."""
    after_ns: int
    before_ns: int
    """It happened at some time from `after_ns` to `before_ns`."""
    known: tuple[tuple[str, int], ...] = ()
    """(variable, value) after the step."""


OPEN_MAX: Final = 100
"""The most steps that may come next at one point, judged by their times."""


@frozen
class Order:
    """The orders in which steps may have happened: a step is certainly first only if it ended before the other began.

    Steps are numbered in the order of their ends, so those that must precede a step are a prefix of that order. If the
    first n steps have happened and step n has not, `open_at[n]` are the steps that may come next, less those that have
    happened already. The order ends before a point at which more than `OPEN_MAX` steps may come next: too many orders
    to follow. Source: just-in-time linearization (Lowe, Testing for linearizability, 2017).
    """

    steps: tuple[SeenStep, ...]
    open_at: tuple[tuple[int, ...], ...]


def order_of(steps: Iterable[SeenStep]) -> Order:
    """Sort the steps of one run, given in any order."""
    ordered = tuple(sorted(steps, key=lambda step: (step.before_ns, step.after_ns)))
    ends = [step.before_ns for step in ordered]
    opens: list[list[int]] = [[] for _ in ordered]
    for number, step in enumerate(ordered):
        opens[bisect_left(ends, step.after_ns)].append(number)
    found: list[tuple[int, ...]] = []
    still: list[int] = []
    for number, begun in enumerate(opens):
        still = [*(each for each in still if each >= number), *begun]
        if len(still) > OPEN_MAX:
            break
        found.append(tuple(sorted(still)))
    return Order(ordered, tuple(found))


ACTION_NAMES: Final = (
    "append",
    "make_visible",
    "next_pull",
    "pull_read",
    "find_bucket",
    "recheck",
    "hold",
    "notify_start",
    "notify_each",
    "notify_end",
    "scan_start",
    "scan_each",
    "scan_end",
    "walk_start",
    "walk_each",
    "walk_end",
    "sweep",
    "remove_bucket",
    "return_look",
    "return_take",
    "commit_pulled",
    "offset_commit",
    "offset_reset",
    "expire",
    "run",
    "tick",
    "executor_rejects",
    "notifier_throws",
    "scan_throws",
    "channel_closes",
    "trim",
    "truncate",
    "queue_deleted",
    "role_change",
    "master_returns",
    "flush",
    "crash_and_recover",
    "stop",
)
"""Every action of the specification, in its order; the broker's scheduling points have the same names."""


def select(properties: Sequence[Property], names: Iterable[str]) -> tuple[Property, ...]:
    """The properties of these names in the order of the spec, by default all; raises `UnknownPropertyError`."""
    wanted = set(names)
    unknown = sorted(wanted - {item.name for item in properties})
    if unknown:
        names = (item.name for item in properties)
        raise UnknownPropertyError(not_known("property", unknown[0], names, "longpoll policies --properties"))
    return tuple(item for item in properties if item.name in wanted or not wanted)
