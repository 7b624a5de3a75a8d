"""Faults: the executor refuses, a notifier throws, the broker stops.

Source: the executor's AbortPolicy and the missing try/finally around the notify loop (4.9.8), and
`BrokerController.shutdown`, which stops the hold service without an answer.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import answered, dropped
from longpoll_spec.actions.walk import put_back
from longpoll_spec.model import Step
from longpoll_spec.state import IDLE, WALKING, Notifier, Request, State, assign
from longpoll_spec.terms import FALSE


@action("request", urgent=never)
def executor_rejects(state: State, request: Request) -> Step:
    """The executor refuses a request that was handed to it: the request is dropped, or answered as busy."""
    # GUARD
    guard = request.is_("queued") & ~(request.copies <= 0)
    # EFFECT
    outcome = answered if state.policy.on_reject == "answer_busy" else dropped
    effect = assign((request.copies, request.copies - 1), *outcome(request))
    return Step(guard, effect)


@action("notifier", "request", urgent=never)
def notifier_throws(state: State, notifier: Notifier, request: Request) -> Step:
    """Looking at a request throws. The notifier's whole list is dropped; or all of it is put back and the walk ends;
    or the one request is answered with an error and the walk goes on.
    """
    # GUARD
    guard = notifier.at(WALKING) & request.phase.is_(notifier.taken)
    # EFFECT
    if state.policy.on_throw == "answer_and_go_on":
        return Step(guard, assign(*answered(request)))
    lists = [(each, each.phase.is_one_of((notifier.taken, notifier.kept))) for each in state.requests]
    if state.policy.on_throw == "drop_rest":
        pairs = [pair for each, here in lists for pair in dropped(each, here)]
    else:
        pairs = [pair for each, here in lists for pair in put_back(state, each, here)]
    return Step(guard, assign((notifier.counter, IDLE), *pairs))


@action(urgent=never)
def stop(state: State) -> Step:
    """The broker is told to stop: no append, pull, dispatch or scan begins any more. Held requests are answered, under
    the bucket's lock, or left without a word.
    """
    # GUARD
    guard = state.running & state.lock_free
    # EFFECT
    answers = state.policy.on_stop == "answer"
    pairs = [pair for each in state.requests if answers for pair in answered(each, each.is_("held"))]
    effect = assign((state.running, FALSE), (state.next_scan, 0), *pairs)
    return Step(guard, effect)
