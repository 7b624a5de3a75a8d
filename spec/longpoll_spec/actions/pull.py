"""Pull: a consumer asks, the broker reads, and what it does with a pull that found nothing.

Source: `PullMessageProcessor.processRequest` and `PullRequestHoldService.suspendPullRequest` (4.9.8); the recheck is
what upstream PR #7359 proposed for issue #7358. Leaves out refusals.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import after_read, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import Queue, Request, State, Tag, assign
from longpoll_spec.terms import FALSE, TRUE, ite


@action("request", "queue", "tag", urgent=never)
def next_pull(state: State, request: Request, queue: Queue, tag: Tag) -> Step:
    """A consumer whose last pull was answered sends its next one, from its next offset, with a new deadline. Where it
    turns to another queue or wants another tag it begins at that queue's end.
    """
    # GUARD
    guard = state.running & request.is_("idle") & ~request.open
    # EFFECT
    stays = request.at(queue) & (request.wants.is_(tag.index) if state.filters else TRUE)
    effect = assign(
        (request.phase, request.phases["pulling"]),
        (request.deadline, state.hold_ticks),
        (request.open, TRUE),
        (request.queue, queue.index),
        (request.wants, tag.index),
        (request.passes, request.passes & stays),
        (request.wanted, request.wanted & stays),
        *(() if stays is TRUE else ((request.offset, ite(stays, request.offset, queue.visible_end)),)),
    )
    return Step(guard, effect)


@action("request")
def pull_read(state: State, request: Request) -> Step:
    """The pull's thread reads the store: it answers at once if there is something to read, even if none of it passes
    the filter and only the offset moves; else the pull has missed.
    """
    # GUARD
    guard = request.is_("pulling")
    # EFFECT
    found = state.has_more(request)
    effect = assign(
        (request.phase, ite(found, request.phases["idle"], request.phases["missed"])),
        *after_read(state, request),
        (request.deadline, ite(found, 0, request.deadline)),
        (request.open, request.open & ~found),
    )
    return Step(guard, effect)


def _rechecks_first(state: State) -> bool:
    return state.policy.recheck_after_hold in {"before_lock", "in_lock"}


@action("request", name="recheck", exists=_rechecks_first)
def recheck_first(state: State, request: Request) -> Step:
    """The pull's thread looks at the visible end once more before it inserts the request: if there is something to read
    the request goes to the executor, else to the insert. With `in_lock` it holds the bucket's lock from here on.
    """
    # GUARD
    guard = request.is_("missed") & request.may_be_queued
    if state.policy.recheck_after_hold == "in_lock":
        guard &= state.lock_free_of(request)
    # EFFECT
    found = state.has_more(request)
    effect = assign(
        (request.phase, ite(found, request.phases["queued"], request.phases["rechecked"])),
        (request.copies, ite(found, request.copies + 1, request.copies)),
    )
    return Step(guard, effect)


@action("request")
def hold(state: State, request: Request) -> Step:
    """The pull's thread puts the request that missed into the bucket, under the bucket's lock. A stopped broker that
    answers at its stop answers the request instead.
    """
    # GUARD
    if state.policy.recheck_after_hold == "in_lock":
        guard = request.is_("rechecked")
    else:
        guard = request.is_("rechecked" if _rechecks_first(state) else "missed") & state.lock_free_of(request)
    # EFFECT
    refused = ~state.running if state.policy.on_stop == "answer" else FALSE
    effect = assign(
        (request.phase, ite(refused, request.phases["idle"], request.phases["held"])),
        (request.open, request.open & ~refused),
        (request.deadline, ite(refused, 0, request.deadline)),
        (request.recheck_due, ~refused),
        (request.armed, ~refused),
    )
    return Step(guard, effect)


def _rechecks_itself(state: State) -> bool:
    return state.policy.recheck_after_hold == "after_insert" and state.policy.recheck == "self"


@action("request", name="recheck", exists=_rechecks_itself)
def recheck_after_hold(state: State, request: Request) -> Step:
    """After the insert the pull's thread looks at the visible end once more: if there is something to read it removes
    the request from the table under the bucket's lock and only then hands it to the executor. If a notifier has taken
    the request meanwhile it does nothing.
    """
    # GUARD
    guard = request.recheck_due & state.lock_free_of(request) & request.may_be_queued
    # EFFECT
    wakes = request.is_("held") & state.has_more(request)
    effect = assign(*to_executor(request, wakes, recheck_due=FALSE))
    return Step(guard, effect)
