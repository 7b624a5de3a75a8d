"""Named mutants: small mistakes that once passed a check, or that are easy to make.

A mutant by rule (`generated`) drops a part or swaps a choice. The mutants in this module are written by hand, such as a
condition that looks right or a loop that ends after its first pass. Each mutant changes every instance of its action.

The tests define which check must catch each mutant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from longpoll_spec.actions import actions_of
from longpoll_spec.bounds import Bounds
from longpoll_spec.model import Action
from longpoll_spec.mutants.generated import Change, Mutant, kinds_of, with_effect
from longpoll_spec.policy import Policy
from longpoll_spec.state import Request, State, state_of
from longpoll_spec.terms import Bool, Effect, Int, Term, any_of, bool_variable, const, int_variable, ite, substitute


def _acting(state: State, action: Action) -> Request:
    return state.requests[next(actor for actor in action.actors if isinstance(actor, int))]


def _others(state: State, request: Request) -> Iterable[Request]:
    return (other for other in state.requests if other is not request)


def _after(term: Term, action: Action) -> Term:
    return substitute(term, action.effect)


def recheck_if_bucket_looked_empty(state: State, action: Action) -> Effect:
    """The insert demands no recheck if the bucket looked occupied, as if another request's thread would recheck."""
    request = _acting(state, action)
    if request.recheck_due.op != "var":
        return {}  # this policy has no recheck after the insert
    due = _after(request.recheck_due, action)
    assert isinstance(due, Bool)
    return {str(request.recheck_due.args[0]): due & state.at_queue_of(request, state.bucket_looks_empty)}


def drops_when_alone(state: State, action: Action) -> Effect:
    """A rejected request is answered as busy only while the executor has another request; otherwise it is dropped."""
    request = _acting(state, action)
    alone = ~any_of(~(other.copies <= 0) for other in _others(state, request))
    answered = _after(request.open, action)
    assert isinstance(answered, Bool)
    return {str(request.open.args[0]): ite(alone, request.open, answered)}


def renews_what_it_keeps(state: State, action: Action) -> Effect:
    """A notifier gives each request that it keeps a new deadline, as Redis did (its issue #12998)."""
    request = _acting(state, action)
    kept = request.phases.labels
    phase = _after(request.phase, action)
    assert isinstance(phase, Int)
    keeps = phase.is_one_of(index for index, label in enumerate(kept) if label.startswith("kept"))
    return {str(request.deadline.args[0]): ite(keeps, state.hold_ticks, request.deadline)}


def stops_at_one(state: State, action: Action) -> Effect:
    """A tick lowers no deadline below one."""
    return {
        str(each.deadline.args[0]): ite(each.deadline <= 1, each.deadline, _number(_after(each.deadline, action)))
        for each in state.requests
    }


def no_deadline(state: State, action: Action) -> Effect:
    """A pull keeps the expired deadline of the last pull in its slot."""
    request = _acting(state, action)
    return {str(request.deadline.args[0]): request.deadline}


def begins_anew(state: State, action: Action) -> Effect:
    """A pull reads from the beginning of the queue, although its client has received messages."""
    return {str(_acting(state, action).offset.args[0]): const(0)}


def first_only(state: State, action: Action) -> Effect:
    """An action that should wake or answer all held requests does so for the first request only."""
    told: dict[str, Term] = {}
    for each in state.requests:
        earlier = any_of(_leaves(other, action) for other in state.requests[: each.index])
        for name, after in action.effect.items():
            if name.endswith(f"_{each.index}") and not name.endswith(f"_q{each.index}"):
                told[name] = _either(earlier, _itself(name, after), after)
    return told


def lone_only(state: State, action: Action) -> Effect:
    """An action that wakes or answers all held requests does nothing if there are several of them."""
    told: dict[str, Term] = {}
    for each in state.requests:
        beside = any_of(_leaves(other, action) for other in _others(state, each))
        for name, after in action.effect.items():
            if name.endswith(f"_{each.index}") and not name.endswith(f"_q{each.index}"):
                told[name] = _either(beside, _itself(name, after), after)
    return told


def _leaves(request: Request, action: Action) -> Bool:
    after = _after(request.phase, action)
    assert isinstance(after, Int)
    return request.is_("held") & ~after.is_(request.phases["held"])


def _itself(name: str, like: Term) -> Term:
    return bool_variable(name) if isinstance(like, Bool) else int_variable(name)


def _either(condition: Bool, then: Term, otherwise: Term) -> Term:
    if isinstance(then, Bool):
        assert isinstance(otherwise, Bool)
        return ite(condition, then, otherwise)
    return ite(condition, then, _number(otherwise))


def _number(term: Term) -> Int:
    assert isinstance(term, Int)
    return term


_EFFECTS: Final = (
    ("hold", recheck_if_bucket_looked_empty),
    ("executor_rejects", drops_when_alone),
    ("notify_each", renews_what_it_keeps),
    ("scan_each", renews_what_it_keeps),
    ("tick", stops_at_one),
    ("next_pull", no_deadline),
    ("next_pull", begins_anew),
    ("stop", first_only),
    ("truncate", first_only),
    ("queue_deleted", first_only),
    ("role_change", first_only),
    ("stop", lone_only),
    ("truncate", lone_only),
    ("queue_deleted", lone_only),
    ("role_change", lone_only),
)
NAMED: Final[Mapping[str, tuple[str, Change]]] = {
    f"{action} {make.__name__}": (action, with_effect(make)) for action, make in _EFFECTS
}
"""Maps the name of a mutant to (name of the action that it changes, the change)."""


def named_mutants(policy: Policy, bounds: Bounds) -> Iterable[Mutant]:
    """The named mutants of the actions that exist.

    A specification file may define actions with the same names as actions of the broker. The function leaves out the
    actions of the file, because the changes do not fit them.
    """
    actions = actions_of(state_of(policy, bounds))
    there = {action.name: kinds_of(action) for action in actions if not action.place}
    for name, (action, change) in NAMED.items():
        if action in there:
            yield Mutant(action, there[action], name.partition(" ")[2].replace("_", " "), change)
