"""Faults: the executor rejects, a notifier throws, the broker stops.

Source: the executor's AbortPolicy, and the missing try/finally around the notify loop (4.9.8).
`ReputMessageService.run` catches what that loop throws and dispatches the same record again a millisecond later.
`BrokerController.shutdown` stops the hold service without answering.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import answered, dropped
from longpoll_spec.actions.walk import ends_walk, put_back
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, WALKING, Notifier, Request, State, assign
from longpoll_spec.terms import FALSE, Term, all_of, any_of


@action("request", urgent=never)
def executor_rejects(state: State, request: Request) -> Step:
    """The executor rejects a request: the request is dropped, or answered as busy."""
    # GUARD
    guard = request.is_("queued") & ~(request.copies <= 0)
    others = any_of(~(other.copies <= 0) for other in state.requests if other is not request)
    guard &= state.refuses_beside.implies(others)
    # EFFECT
    outcome = answered if state.policy.on_reject == "answer_busy" else dropped
    effect = assign((request.copies, request.copies - 1), *outcome(request))
    return Step(guard, effect)


@action("notifier", "request", urgent=never)
def notifier_throws(state: State, notifier: Notifier, request: Request) -> Step:
    """A notifier throws while it checks a request. Either its whole list is dropped, and the dispatcher, interrupted by
    the exception, must announce the same message again; or the whole list goes back into the bucket and the
    traversal ends; or the one request is answered with an error and the traversal continues.
    """
    # GUARD
    guard = notifier.at(WALKING) & request.phase.is_(notifier.taken) & state.walks_for(notifier, request)
    # EFFECT
    if state.policy.on_throw == "answer_and_go_on":
        return Step(guard, assign(*answered(request)))
    mine = (notifier.taken, notifier.kept)
    lists = [(each, each.phase.is_one_of(mine) & state.walks_for(notifier, each)) for each in state.requests]
    if state.policy.on_throw == "drop_rest":
        pairs = [pair for each, here in lists for pair in dropped(each, here)]
        # `ReputMessageService.doReput` adds to `reputFromOffset` only after the listener has returned.
        ends = ((notifier.counter, DUE),) if notifier is state.dispatcher else ends_walk(state, notifier)
    else:
        pairs = [pair for each, here in lists for pair in put_back(state, each, here)]
        ends = ends_walk(state, notifier)
    return Step(guard, assign(*ends, *pairs))


@action(urgent=never)
def stop(state: State) -> Step:
    """The broker is stopped: no append, pull, dispatch or scan begins any more. Held requests are answered under the
    bucket's lock, or left unanswered.
    """
    # All buckets' locks are taken at once. Taking them one after another makes no difference: a stopping broker that
    # answers its requests holds no new ones. GUARD
    guard = state.running & all_of(state.lock_free(queue) for queue in state.queues)
    # EFFECT
    answers = state.policy.on_stop == "answer"
    pairs = [pair for each in state.requests if answers for pair in answered(each, each.in_table)]
    ended: list[tuple[Term, Term]] = [
        pair for queue in state.queues for pair in ((queue.unscanned, FALSE), (queue.return_due, FALSE))
    ]
    ended.append((state.return_queue, state.no_queue))
    effect = assign((state.running, FALSE), (state.next_scan, 0), *ended, *pairs)
    return Step(guard, effect)
