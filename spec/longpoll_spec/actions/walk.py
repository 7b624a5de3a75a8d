"""How a notifier goes through the bucket: take, look at each, put back, recheck. The dispatcher and the scanner alike.

Source: `PullRequestHoldService.notifyMessageArriving` and `ManyPullRequest.cloneListAndClear` (4.9.8). The walk looks
at its requests in any order. Leaves out what makes a notifier walk.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action
from longpoll_spec.actions.wake import Pairs, answered, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, IDLE, RECHECKING, WALKING, Notifier, Request, State, assign
from longpoll_spec.terms import FALSE, TRUE, Bool, any_of, ite


def may_take(state: State) -> Bool:
    """Whether a notifier can take the bucket now, or pass over it."""
    return state.lock_free | state.bucket_looks_empty if state.policy.empty_shortcut else state.lock_free


def take(state: State, notifier: Notifier) -> Pairs:
    """The notifier takes every request of the bucket to look at, or passes over an empty bucket."""
    passes = state.bucket_looks_empty if state.policy.empty_shortcut else FALSE
    return (
        (notifier.counter, ite(passes, IDLE, WALKING)),
        *((each.phase, ite(each.is_("held"), notifier.taken, each.phase)) for each in state.requests),
    )


def look(state: State, notifier: Notifier, request: Request) -> Step:
    """The notifier reads the visible end for one request it took: to the executor, or to the ones it keeps."""
    # GUARD
    guard = notifier.at(WALKING) & request.phase.is_(notifier.taken) & request.may_be_queued
    # EFFECT
    wakes = state.has_more(request) | (request.deadline <= 0)
    effect = assign(*to_executor(request, wakes, otherwise=notifier.kept))
    return Step(guard, effect)


def keep(state: State, notifier: Notifier) -> Step:
    """The notifier that has looked at all puts the ones it kept back, and ends or is to recheck."""
    # GUARD
    left = any_of(each.phase.is_(notifier.taken) for each in state.requests)
    guard = notifier.at(WALKING) & ~left & may_put_back(state)
    # EFFECT
    then = RECHECKING if state.policy.recheck_after_keep else IDLE
    effect = assign(
        (notifier.counter, then),
        *(pair for each in state.requests for pair in put_back(state, each, each.phase.is_(notifier.kept))),
    )
    return Step(guard, effect)


def may_put_back(state: State) -> Bool:
    """A walk in place has the lock; a clone's walker waits for it."""
    return TRUE if state.policy.take == "in_place" else state.lock_free


def put_back(state: State, request: Request, here: Bool) -> Pairs:
    """Where `here` holds the request is in the table again; a stopped broker that answers at its stop answers it."""
    refused = here & ~state.running if state.policy.on_stop == "answer" else FALSE
    _phase, *others = answered(request, refused)
    return (
        (request.phase, ite(refused, request.phases["idle"], ite(here, request.phases["held"], request.phase))),
        *others,
    )


@action("notifier", name="recheck", exists=lambda policy: policy.recheck_after_keep)
def recheck_after_keep(state: State, notifier: Notifier) -> Step:
    """A notifier that has put requests back looks at the visible end once more: if a request of the bucket has
    something to read it is due to walk again, else it is done.
    """
    # GUARD
    guard = notifier.at(RECHECKING) & state.lock_free
    # EFFECT
    again = any_of(each.is_("held") & state.has_more(each) for each in state.requests)
    effect = assign((notifier.counter, ite(again, DUE, IDLE)))
    return Step(guard, effect)
