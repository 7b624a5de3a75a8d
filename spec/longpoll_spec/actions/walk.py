"""How every notifier traverses a bucket: take, check each request, put back, recheck.

Source: `PullRequestHoldService.notifyMessageArriving` and `ManyPullRequest.cloneListAndClear` (4.9.8). The traversal
visits its requests in any order.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action
from longpoll_spec.actions.wake import Pairs, answered, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, IDLE, RECHECKING, SWEEPING, WALKING, Notifier, Queue, Request, State, assign
from longpoll_spec.state.shared import sweeps
from longpoll_spec.terms import FALSE, TRUE, Bool, Int, any_of, const, ite


def may_take(state: State, queue: Queue) -> Bool:
    """Whether a notifier can take the bucket now, or skip it."""
    free = state.lock_free(queue)
    return free | state.bucket_looks_empty(queue) if state.policy.empty_shortcut else free


def take(state: State, notifier: Notifier, queue: Queue) -> Pairs:
    """The notifier takes every request of the bucket to check, or skips an empty bucket."""
    passes = state.bucket_looks_empty(queue) if state.policy.empty_shortcut else FALSE
    taken = [(each, each.in_table & each.at(queue)) for each in state.requests]
    rest, place = at_rest(state, notifier, queue)
    return (
        (notifier.counter, ite(passes, rest, WALKING)),
        (notifier.queue, ite(passes, place, queue.index)),
        *_announcing(state, notifier, ite(passes, state.no_tag, state.announced)),
        *((each.phase, ite(here, notifier.taken, each.phase)) for each, here in taken),
    )


def _announcing(state: State, notifier: Notifier, tag: Int) -> Pairs:
    return ((state.announced, tag),) if notifier is state.dispatcher else ()


def at_rest(state: State, notifier: Notifier, queue: Queue) -> tuple[int, Int]:
    """The position of a notifier that is done with a bucket, and its queue: the scanner may still have to sweep."""
    if notifier is state.scanner and sweeps(state.policy, state.bounds):
        return SWEEPING, const(queue.index)
    return IDLE, state.no_queue


def look(state: State, notifier: Notifier, request: Request) -> Step:
    """The notifier reads the visible end for one request it took: the request goes to the executor or is kept."""
    # GUARD
    mine = request.phase.is_(notifier.taken) & state.walks_for(notifier, request)
    guard = notifier.at(WALKING) & mine & request.may_be_queued
    # EFFECT
    news = (state.has_more(request) & state.announces_for(notifier, request)) | state.is_told_moved(request)
    wakes = news | (request.deadline <= 0)
    effect = assign(*to_executor(request, wakes, otherwise=notifier.kept))
    return Step(guard, effect)


def keep(state: State, notifier: Notifier, queue: Queue) -> Step:
    """The notifier has checked all requests: it puts the kept ones back, and ends or must recheck."""
    # GUARD
    left = any_of(each.phase.is_(notifier.taken) & each.at(queue) for each in state.requests)
    guard = notifier.at(WALKING, queue) & ~left & may_put_back(state, queue)
    # EFFECT
    rest, place = (RECHECKING, notifier.queue) if state.policy.recheck_after_keep else at_rest(state, notifier, queue)
    kept = [(each, each.phase.is_(notifier.kept) & each.at(queue)) for each in state.requests]
    effect = assign(
        (notifier.counter, rest),
        (notifier.queue, place),
        *_announcing(state, notifier, state.no_tag),
        *(pair for each, here in kept for pair in put_back(state, each, here)),
        (queue.present, queue.present | any_of(here & ~each.orphan for each, here in kept)),
    )
    return Step(guard, effect)


def may_put_back(state: State, queue: Queue) -> Bool:
    """A traversal in place holds the lock; a traversal of a clone must wait for it."""
    return TRUE if state.policy.take == "in_place" else state.lock_free(queue)


def put_back(state: State, request: Request, here: Bool) -> Pairs:
    """Where `here` holds, the request is back in the table.

    A broker that answers on stop or on a role change answers it instead, if that happened in the meantime.
    """
    refused = here & ~state.running if state.policy.on_stop == "answer" else FALSE
    if state.policy.on_close == "drop":
        refused |= here & request.closed
    refused |= here & state.is_told_of_role(request)
    _phase, *others = answered(request, refused)
    return (
        (request.phase, ite(refused, request.phases["idle"], ite(here, request.phases["held"], request.phase))),
        *others,
    )


def ends_walk(state: State, notifier: Notifier) -> Pairs:
    """The notifier aborts its traversal."""
    swept = notifier is state.scanner and sweeps(state.policy, state.bounds)
    return (
        (notifier.counter, SWEEPING if swept else IDLE),
        (notifier.queue, notifier.queue if swept else state.no_queue),
        *_announcing(state, notifier, state.no_tag),
    )


@action("notifier", "queue", name="recheck", exists=lambda state: state.policy.recheck_after_keep)
def recheck_after_keep(state: State, notifier: Notifier, queue: Queue) -> Step:
    """A notifier that has put requests back reads the visible end again. If a request in the bucket has something to
    read that passes its filter, the notifier must traverse again, announcing no message; otherwise it is done.
    """
    # GUARD
    guard = notifier.at(RECHECKING, queue) & state.lock_free(queue)
    # EFFECT
    news = [(each, state.fits(each) | state.is_told_moved(each)) for each in state.requests]
    again = any_of(each.in_table & each.at(queue) & here for each, here in news)
    rest, place = at_rest(state, notifier, queue)
    effect = assign(
        (notifier.counter, ite(again, DUE, rest)),
        (notifier.queue, ite(again, queue.index, place)),
    )
    return Step(guard, effect)
