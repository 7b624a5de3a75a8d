"""The state of the pull path of one queue: its variables, as a function of policy and bounds.

One queue, R request slots, two notifiers (the dispatcher and the scanner), the executor, and time carried as time
LEFT, so that the space is finite for unbounded time. A variable exists only where the policy can tell its values
apart. Table, lists and executor are not exclusive by construction: `phase` says where a request stands in the first
two, `copies` how often it stands in the third.

Leaves out what moves: the actions. Why it is cut this way: docs/decisions/0002-law-state.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.policy import Policy
from longpoll_spec.terms import (
    FALSE,
    TRUE,
    Bool,
    Effect,
    Int,
    Term,
    all_of,
    any_of,
    bool_variable,
    const,
    int_variable,
    ite,
    lift,
    parameter,
    truth,
)

IDLE: Final = 0
"""A notifier that waits for its next reason to walk."""
WALKING: Final = 1
"""A notifier between its take and its put-back."""
DUE: Final = 2
"""A notifier that has a reason to walk and has not taken the bucket yet."""
RECHECKING: Final = 3
"""A notifier that has put requests back and has yet to look at the visible end once more."""
NOTIFIER_LABELS: Final = ("idle", "walking", "due", "rechecking")
COPIES_MAX: Final = 2
"""One more than right, so that a second copy in the executor can be seen."""


@frozen
class Variable:
    """One variable of the state: name, range (both ends belong to it; no upper end when unbounded), first value."""

    name: str
    lower: int
    upper: int | None
    initial: int
    sentence: str
    truth: bool = False
    """A truth value: 0 or 1 in every engine's words."""
    labels: tuple[str, ...] = ()
    """A word for each value, where the values are not quantities."""
    limit: Int | None = None
    """The parameter of the law that its upper end is: a proof that leaves the parameter open leaves this open too."""

    @property
    def term(self) -> Term:
        """The variable as a term."""
        return bool_variable(self.name) if self.truth else int_variable(self.name)

    @property
    def greatest(self) -> Int | None:
        """Its upper end as a term; None when it is unbounded."""
        if self.upper is None:
            return None
        return const(self.upper) if self.limit is None else self.limit

    @property
    def first(self) -> Term:
        """Its first value as a term; what starts full starts full whatever the parameter is."""
        if self.truth:
            return truth(bool(self.initial))
        return self.limit if self.limit is not None and self.initial == self.upper else const(self.initial)

    def show(self, value: int) -> str:
        """The value as a reader wants it."""
        if self.truth:
            return "yes" if value else "no"
        return self.labels[value] if self.labels else str(value)


@frozen
class Phases:
    """The places in which a request can stand. Where notifiers walk in place one list serves both: the lock is one."""

    labels: tuple[str, ...]

    def __getitem__(self, label: str) -> int:
        return self.labels.index(label)

    def __contains__(self, label: str) -> bool:
        return label in self.labels


def phases_of(policy: Policy) -> Phases:
    """The phases of a policy, in the order in which a request goes through them."""
    early = ("rechecked",) if policy.recheck_after_hold in {"before_lock", "in_lock"} else ()
    lists = (
        ("taken", "kept")
        if policy.take == "in_place"
        else ("taken_by_dispatcher", "kept_by_dispatcher", "taken_by_scanner", "kept_by_scanner")
    )
    return Phases(("idle", "pulling", "missed", *early, "held", *lists, "queued"))


@frozen
class Request:
    """One request slot, as terms."""

    index: int
    phases: Phases
    phase: Int
    offset: Int
    deadline: Int
    copies: Int
    open: Bool
    recheck_due: Bool
    armed: Bool

    def is_(self, *labels: str) -> Bool:
        """Whether the request stands in one of these phases; a phase that the policy lacks is never stood in."""
        return self.phase.is_one_of(self.phases[label] for label in labels if label in self.phases)

    @property
    def may_be_queued(self) -> Bool:
        """Whether one more copy in the executor can be counted."""
        return self.copies < COPIES_MAX

    @property
    def is_listed(self) -> Bool:
        """Whether the request is in the table or in a notifier's list."""
        return self.is_("held", *(label for label in self.phases.labels if label.startswith(("taken", "kept"))))


@frozen
class Notifier:
    """A thread that walks the bucket: its program counter, and the phases that are its local list."""

    name: str
    phases: Phases
    counter: Int

    @property
    def taken(self) -> int:
        """The phase of a request that this notifier has taken and not looked at yet."""
        return self.phases["taken" if "taken" in self.phases else f"taken_by_{self.name}"]

    @property
    def kept(self) -> int:
        """The phase of a request that this notifier has looked at and will put back."""
        return self.phases["kept" if "kept" in self.phases else f"kept_by_{self.name}"]

    def at(self, counter: int) -> Bool:
        """Whether the notifier is at this place of its program."""
        return self.counter.is_(counter)


@frozen
class State:
    """Every variable of one (policy, bounds), as terms that the actions read and write."""

    policy: Policy
    bounds: Bounds
    phases: Phases
    variables: tuple[Variable, ...]
    hold_ticks: Int
    scan_ticks: Int
    log_end: Int
    visible_end: Int
    running: Bool
    next_scan: Int
    dispatcher: Notifier
    scanner: Notifier
    requests: tuple[Request, ...]

    @property
    def notifiers(self) -> tuple[Notifier, Notifier]:
        """Everyone who walks the bucket."""
        return (self.dispatcher, self.scanner)

    @property
    def initial(self) -> tuple[int, ...]:
        """The first state, in the order of `variables`."""
        return tuple(variable.initial for variable in self.variables)

    @property
    def lock_free(self) -> Bool:
        """Whether nobody is inside the bucket's lock between two steps.

        Only a walk in place, and a hold that rechecks before it inserts, keep the lock from one step to the next.
        """
        owners = [notifier.at(WALKING) for notifier in self.notifiers] if self.policy.take == "in_place" else []
        if self.policy.recheck_after_hold == "in_lock":
            owners += [request.is_("rechecked") for request in self.requests]
        return ~any_of(owners)

    @property
    def bucket_looks_empty(self) -> Bool:
        """What a look without the lock sees: a clone has cleared the list, a walk in place has not."""
        if self.policy.take == "in_place":
            return all_of(~request.is_listed for request in self.requests)
        return all_of(~request.is_("held") for request in self.requests)

    def has_more(self, request: Request) -> Bool:
        """Whether a read for this request would find something now."""
        return request.offset < self.visible_end


def assign(*pairs: tuple[Term, Term | int | bool]) -> Effect:
    """The effect that gives each variable its new value.

    A variable that the policy does not have stands in `State` as a constant: writing it is nothing.
    """
    effect: dict[str, Term] = {}
    for target, value in pairs:
        if target.op != "var":
            continue
        assert target.args[0] not in effect, f"{target.args[0]} is written twice"
        effect[target.args[0]] = (TRUE if value else FALSE) if isinstance(value, bool) else _term(value)
    return effect


def _term(value: Term | int) -> Term:
    return value if isinstance(value, Bool) else lift(value)


def down(left: Int) -> Int:
    """Time left, one tick later; passed stays passed."""
    return ite(left > 0, left - 1, 0)


def state_of(policy: Policy, bounds: Bounds) -> State:
    """The state of a policy under bounds."""
    phases = phases_of(policy)
    shared = _shared_variables(policy, bounds)
    slots = [_slot_variables(policy, bounds, phases, index) for index in range(bounds.requests)]
    variables = (*shared, *(variable for slot in slots for variable in slot))
    names = {variable.name for variable in variables}
    return State(
        policy=policy,
        bounds=bounds,
        phases=phases,
        variables=variables,
        hold_ticks=hold_ticks_of(bounds),
        scan_ticks=scan_ticks_of(bounds),
        log_end=int_variable("log_end"),
        visible_end=int_variable("visible_end"),
        running=bool_variable("running"),
        next_scan=int_variable("next_scan"),
        dispatcher=Notifier("dispatcher", phases, int_variable("dispatcher")),
        scanner=Notifier("scanner", phases, int_variable("scanner")),
        requests=tuple(_request(index, phases, names) for index in range(bounds.requests)),
    )


def _request(index: int, phases: Phases, names: set[str]) -> Request:
    optional = {
        name: bool_variable(f"{name}_{index}") if f"{name}_{index}" in names else FALSE
        for name in ("recheck_due", "armed")
    }
    return Request(
        index=index,
        phases=phases,
        phase=int_variable(f"phase_{index}"),
        offset=int_variable(f"offset_{index}"),
        deadline=int_variable(f"deadline_{index}"),
        copies=int_variable(f"copies_{index}"),
        open=bool_variable(f"open_{index}"),
        **optional,
    )


def hold_ticks_of(bounds: Bounds) -> Int:
    """A pull's deadline as a parameter, which a proof may leave open."""
    return parameter("hold_ticks", bounds.hold_ticks)


def scan_ticks_of(bounds: Bounds) -> Int:
    """The scan's period as a parameter, which a proof may leave open."""
    return parameter("scan_ticks", bounds.scan_ticks)


def _shared_variables(policy: Policy, bounds: Bounds) -> Sequence[Variable]:
    last = RECHECKING if policy.recheck_after_keep else DUE
    labels = NOTIFIER_LABELS
    return (
        Variable("log_end", 0, bounds.messages, 0, "Messages that were appended to the log."),
        Variable("visible_end", 0, bounds.messages, 0, "Messages that pulls can read: the consume queue's end."),
        Variable("running", 0, 1, 1, "The broker has not been told to stop.", truth=True),
        Variable(
            "next_scan",
            0,
            bounds.scan_ticks,
            bounds.scan_ticks,
            "Ticks left to the next scan.",
            limit=scan_ticks_of(bounds),
        ),
        Variable("dispatcher", 0, last, IDLE, "Where the dispatcher stands in its program.", labels=labels),
        Variable("scanner", 0, last, IDLE, "Where the scanner stands in its program.", labels=labels),
    )


def _slot_variables(policy: Policy, bounds: Bounds, phases: Phases, index: int) -> Sequence[Variable]:
    slot = [
        Variable(f"phase_{index}", 0, len(phases.labels) - 1, 0, "Where the request stands.", labels=phases.labels),
        Variable(f"offset_{index}", 0, bounds.messages, 0, "The next offset that the consumer reads."),
        Variable(
            f"deadline_{index}",
            0,
            bounds.hold_ticks,
            0,
            "Ticks left to the request's deadline.",
            limit=hold_ticks_of(bounds),
        ),
        Variable(f"copies_{index}", 0, COPIES_MAX, 0, "How often the request stands in the executor."),
        Variable(f"open_{index}", 0, 1, 0, "A pull waits for its answer.", truth=True),
    ]
    if policy.recheck_after_hold == "after_insert":
        slot.append(Variable(f"recheck_due_{index}", 0, 1, 0, "The pull's thread has yet to recheck.", truth=True))
    if policy.expiry == "own_deadline" and policy.heap_entry == "one_shot":
        slot.append(Variable(f"armed_{index}", 0, 1, 0, "Its entry stands in the deadline heap.", truth=True))
    return slot


__all__ = [
    "DUE",
    "IDLE",
    "RECHECKING",
    "WALKING",
    "Notifier",
    "Phases",
    "Request",
    "State",
    "Variable",
    "assign",
    "const",
    "down",
    "phases_of",
    "state_of",
]
