"""Channels: a consumer disconnects while its pull waits.

Source: nothing in `PullRequestHoldService` listens for a closed channel (4.9.8, issue #8362). A wake reads the store,
and its answer cannot be written.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import answered
from longpoll_spec.model import Step
from longpoll_spec.state import Request, State, assign


@action("request", exists=lambda state: state.bounds.has("channels"), urgent=never)
def channel_closes(state: State, request: Request) -> Step:
    """The channel of a waiting pull closes. The request stays where it is, or leaves the table at once under the
    bucket's lock. The consumer no longer waits for an answer.
    """
    drops = state.policy.on_close == "drop"
    # GUARD
    guard = request.open & ~request.closed
    if drops:
        guard &= state.lock_free_of(request)
    # EFFECT
    forgotten = request.is_("idle") & (request.copies <= 0)
    ends = forgotten | request.is_("held") if drops else forgotten
    others = [pair for pair in answered(request, ends) if pair[0] is not request.closed]
    effect = assign(*others, (request.closed, ~ends))
    return Step(guard, effect)
