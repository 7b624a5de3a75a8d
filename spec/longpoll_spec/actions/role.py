"""Role: the broker, a slave whose master is gone, becomes master.

Source: `PullRequestHoldService.notifyMasterOnline` (5.x), which asks each bucket whether it is empty and then takes its
list; a bucket that was emptied in between gives none, and the exception ends the walk. 4.9.8 does nothing.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import answered, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import Queue, State, assign
from longpoll_spec.state.shared import walks_on_role_change
from longpoll_spec.terms import FALSE, TRUE, all_of, ite


@action(exists=lambda state: state.bounds.has("role"), urgent=never)
def role_change(state: State) -> Step:
    """The broker's role changes. Held requests wait on; or somebody is to walk through all buckets and wake them; or
    they are answered at once, under the buckets' locks.
    """
    # GUARD
    guard = state.running & ~state.changed & all_of(state.lock_free(queue) for queue in state.queues)
    # EFFECT
    answers = state.policy.on_role_change == "answer"
    effect = assign(
        (state.changed, TRUE),
        *((queue.role_due, TRUE) for queue in state.queues),
        *(pair for each in state.requests if answers for pair in answered(each, each.is_("held"))),
    )
    return Step(guard, effect)


def _walks(state: State) -> bool:
    return walks_on_role_change(state.policy, state.bounds)


@action("queue", exists=_walks)
def role_look(state: State, queue: Queue) -> Step:
    """The walk after a change of role asks the queue's bucket whether it is empty, and passes over one that is."""
    # GUARD
    guard = queue.role_due & state.role_queue.is_(state.no_queue)
    # EFFECT
    empty = state.bucket_looks_empty(queue)
    effect = assign(
        (queue.role_due, ~empty),
        (state.role_queue, ite(empty, state.no_queue, queue.index)),
    )
    return Step(guard, effect)


@action("queue", exists=_walks)
def role_take(state: State, queue: Queue) -> Step:
    """The walk after a change of role takes the bucket that it has seen with requests in it, and wakes them all. Where
    somebody else has emptied the bucket since there is no list to go through, and the whole walk ends there.
    """
    # GUARD
    room = all_of(each.may_be_queued for each in state.requests)
    guard = state.role_queue.is_(queue.index) & state.lock_free(queue) & room
    # EFFECT
    empty = state.bucket_looks_empty(queue)
    effect = assign(
        (state.role_queue, state.no_queue),
        (queue.role_due, FALSE),
        *((other.role_due, other.role_due & ~empty) for other in state.queues if other is not queue),
        *(pair for each in state.requests for pair in to_executor(each, each.in_table & each.at(queue))),
    )
    return Step(guard, effect)
