"""Expire and run: a request leaves the table at its own deadline, and the executor answers.

Source: `executeRequestWhenWakeup` (4.9.8), which runs the pull again with holding off. The deadline heap is our own
design.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action
from longpoll_spec.actions.wake import after_read, left, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import Request, State, assign
from longpoll_spec.terms import FALSE, ite


@action("request", exists=lambda state: state.policy.expiry == "own_deadline")
def expire(state: State, request: Request) -> Step:
    """The heap entry of a request fires at its deadline: the request leaves the table under the bucket's lock and goes
    to the executor. A one-shot entry is used up even if a notifier has the request; the other kind waits until the
    request is put back.
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
    """The executor runs a woken pull again with holding off. It reads the store and answers with messages, with a moved
    offset, or with "not found".
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
