"""The classes of a specification: actions, properties, the model of a policy under bounds, and its traces.

`actions` and `properties` define the actions and properties, and `specification` builds a model of them.
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
"""A participant in an action: the index of a request, or the name of a notifier, queue, tag or wish."""
Who: TypeAlias = Literal["request", "notifier", "queue", "tag", "wish"]
"""The kind of a participant in an action; a wish is what a pull asks for."""
Kind: TypeAlias = Literal["always", "sometimes", "inductive", "leads_to"]


@frozen
class Step:
    """The step of an action instance.

    The step is enabled in a state in which `guard` is true, and changes the state by `effect`, atomically.
    """

    guard: Bool
    effect: Effect


@frozen
class Action:
    """One instance of an action: a step, with the actors that take part in it."""

    name: str
    actors: tuple[Actor, ...]
    sentence: str
    guard: Bool
    effect: Effect
    urgent: bool
    """Whether time must wait while the action is enabled, under maximal progress."""
    thread: str = ""
    """The thread that takes the step if a specification file defines the action; otherwise see `threads`."""
    place: str = ""
    """The file and line of the definition, if a specification file defines the action."""

    @property
    def label(self) -> str:
        """The name with the actors, such as `hold(0)` or `notifier_throws(scanner,1)`."""
        return f"{self.name}({','.join(map(str, self.actors))})" if self.actors else self.name


@frozen
class Family:
    """The definition of an action, from which its instances are made: participants, existence and urgency."""

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
    """A statement about states: `always` is true in every reachable state, `sometimes` in at least one.

    An `inductive` property is always true too, but only a proof needs it. A property that forbids steps lists them in
    `closing`, each with the condition under which the step breaks the property; a counterexample ends with such a step.
    `term` is the whole property as one statement about states: `here` is true, and no closing step is enabled where its
    condition is true.
    """

    name: str
    kind: Kind
    sentence: str
    term: Bool
    here: Bool = TRUE
    """The part of `term` that is about the state alone."""
    closing: tuple[tuple[str, Bool], ...] = ()
    """(action label, condition under which the step breaks the property if it is enabled)."""
    place: str = ""
    """The file and line of the definition, if a specification file defines the property."""

    @property
    def by_construction(self) -> bool:
        """Whether the property holds vacuously, because it is true of every state, reachable or not.

        A vacuous property says nothing about the broker, so a report must mark it.
        """
        return self.kind != "sometimes" and self.term is TRUE


@frozen
class LeadsTo:
    """A statement about fair runs: whenever `premise` is true, `conclusion` is true at that time or later."""

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
        """The variables, in the order in which every engine stores their values in a state."""
        return self.state.variables

    @property
    def initial(self) -> tuple[int, ...]:
        """The first state: the values of the variables, in their order."""
        return self.state.initial

    @property
    def urgent(self) -> tuple[str, ...]:
        """The names of the urgent actions, each once."""
        return tuple(dict.fromkeys(action.name for action in self.actions if action.urgent))

    def named(self, *names: str) -> tuple[Action, ...]:
        """The instances of the actions with these names."""
        return tuple(action for action in self.actions if action.name in names)


@frozen(eq=False)
class Said:
    """A model with properties, as a dictionary key. Two keys are equal if all their terms are the same objects.

    Equal terms are one object for as long as one of them is referenced, and the key references them.
    """

    model: Model
    properties: tuple[Property, ...] = ()
    _key: tuple[object, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Compute the key once, because each lookup uses it."""
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
    """One step of a trace: the action, and the state after it. Step 0 has the first state and no action."""

    action: Action | None
    state: tuple[int, ...]


@frozen
class Trace:
    """A run of the model from its first state, with the name of the property that it violates or reaches."""

    model: Model
    steps: tuple[TraceStep, ...]
    property_name: str = ""

    @property
    def depth(self) -> int:
        """The number of actions."""
        return len(self.steps) - 1

    def changes(self, index: int) -> Sequence[tuple[Variable, int, int]]:
        """(variable, value before, value after) for every variable that step `index` changed; indices start at 1."""
        before, after = self.steps[index - 1].state, self.steps[index].state
        return [
            (variable, old, new)
            for variable, old, new in zip(self.model.variables, before, after, strict=True)
            if old != new
        ]


@frozen
class SeenStep:
    """One observed step: the actions that it may have been, its time, and the known part of the state after it."""

    actions: tuple[str, ...]
    """The labels of the actions that the step may have been. A step has several labels if the observer does not know
    the actor, and no label if no action matches."""
    after_ns: int
    before_ns: int
    """The step happened at some time from `after_ns` to `before_ns`, in nanoseconds of one clock."""
    known: tuple[tuple[str, int], ...] = ()
    """(name of a variable, its value after the step) for each variable that the observer saw."""


OPEN_MAX: Final = 100
"""A check gives up if more than this many steps may come next at one point, as far as their times tell."""


@frozen
class Order:
    """The possible orders of some steps: one step certainly precedes another only if it ended before the other began.

    Steps are numbered in the order of their ends, so the steps that must precede a step are a prefix of that order. If
    the first n steps have happened and step n has not, `open_at[n]` has the steps that may come next, some of which may
    have happened already. `open_at` ends before a point at which more than `OPEN_MAX` steps may come next, because then
    there are too many orders to follow. Source: just-in-time linearization (Lowe, Testing for linearizability, 2017).
    """

    steps: tuple[SeenStep, ...]
    open_at: tuple[tuple[int, ...], ...]


def order_of(steps: Iterable[SeenStep]) -> Order:
    """The possible orders of the steps of one run, which may be given in any order."""
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
"""The names of all actions, in the order of the specification. The broker's scheduling points have the same names."""


def select(properties: Sequence[Property], names: Iterable[str]) -> tuple[Property, ...]:
    """The properties of these names in the order of the spec, by default all; raises `UnknownPropertyError`."""
    wanted = set(names)
    unknown = sorted(wanted - {item.name for item in properties})
    if unknown:
        names = (item.name for item in properties)
        raise UnknownPropertyError(not_known("property", unknown[0], names, "longpoll policies --properties"))
    return tuple(item for item in properties if item.name in wanted or not wanted)
