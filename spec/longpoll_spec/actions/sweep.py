"""Sweep: after its traversal the scanner removes unused buckets.

Source: `LmqPullRequestHoldService.checkHoldRequest` (upstream issue #10754) checks whether a bucket's list is empty and
then removes the bucket, even if requests have entered it in between. The default service removes nothing (#7481).
"""

from __future__ import annotations

from longpoll_spec.actions.family import action
from longpoll_spec.actions.wake import Pairs
from longpoll_spec.model import Step
from longpoll_spec.state import IDLE, REMOVING, SWEEPING, Queue, Request, State, assign
from longpoll_spec.state.parts import may_orphan
from longpoll_spec.state.shared import sweeps
from longpoll_spec.terms import Bool, Int, ite


def _in_two_steps(state: State) -> bool:
    return may_orphan(state.policy, state.bounds)


@action("queue", exists=lambda state: sweeps(state.policy, state.bounds))
def sweep(state: State, queue: Queue) -> Step:
    """After its traversal the scanner checks whether the bucket is empty. It removes an empty bucket immediately under
    the bucket's lock, or decides to remove it in a later step.
    """
    # GUARD
    guard = state.scanner.at(SWEEPING, queue)
    empty = state.bucket_looks_empty(queue)
    # EFFECT
    if _in_two_steps(state):
        removes = empty & queue.present
        effect = assign(*_to(state, ite(removes, REMOVING, IDLE), ite(removes, queue.index, state.no_queue)))
        return Step(guard, effect)
    effect = assign(*_to(state, IDLE, state.no_queue), (queue.present, queue.present & ~empty))
    return Step(guard & state.lock_free(queue), effect)


@action("queue", exists=_in_two_steps)
def remove_bucket(state: State, queue: Queue) -> Step:
    """The scanner removes the bucket that it saw empty. A thread that already holds a reference to the bucket keeps
    using it.
    """
    # GUARD
    guard = state.scanner.at(REMOVING, queue)
    # EFFECT
    effect = assign(
        *_to(state, IDLE, state.no_queue),
        (queue.present, False),
        *((each.orphan, each.orphan | (each.at(queue) & _uses_bucket(each))) for each in state.requests),
    )
    return Step(guard, effect)


def _uses_bucket(request: Request) -> Bool:
    return request.is_listed | request.is_("has_bucket", "rechecked")


def _to(state: State, counter: int | Int, queue: int | Int) -> Pairs:
    return ((state.scanner.counter, counter), (state.scanner.queue, queue))
