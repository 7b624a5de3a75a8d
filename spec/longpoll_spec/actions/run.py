"""Expire and run: how a request leaves the table at its own deadline, and how the executor answers.

Source: `executeRequestWhenWakeup` (4.9.8), which runs the pull again with holding off; the deadline heap is our own.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action
from longpoll_spec.actions.wake import after_read, left, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import Request, State, assign
from longpoll_spec.terms import FALSE, ite


@action("request", exists=lambda state: state.policy.expiry == "own_deadline")
def expire(state: State, request: Request) -> Step:
    """At a request's own deadline its heap entry fires: the request leaves the table, under the bucket's lock, for the
    executor. A one-shot entry is spent even when a notifier has the request; the other kind waits for its return.
    """
    one_shot = state.policy.heap_entry == "one_shot"
    # GUARD
    entry = request.armed & request.is_listed if one_shot else request.is_("held")
    guard = entry & state.running & (request.deadline <= 0) & state.lock_free_of(request) & request.may_be_queued
    # EFFECT
    *queue, (armed, _) = to_executor(request, request.is_("held"))
    effect = assign(*queue, (armed, FALSE))
    return Step(guard, effect)


@action("request")
def run(state: State, request: Request) -> Step:
    """The executor runs a woken pull again with holding off: it reads the store and answers that it found something,
    that its offset has moved, or that it found nothing.
    """
    # GUARD
    guard = ~(request.copies <= 0)
    # EFFECT
    queued = request.is_("queued")
    effect = assign(
        (request.copies, request.copies - 1),
        *after_read(state, request),
        (request.phase, ite(queued, request.phases["idle"], request.phase)),
        (request.deadline, ite(queued, 0, request.deadline)),
        (request.open, FALSE),
        *left(request, queued),
    )
    return Step(guard, effect)
