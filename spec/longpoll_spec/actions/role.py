"""Role: a slave acts for its master, until the master returns or the slave becomes master.

Source: `BrokerController.onMinBrokerChange` (5.x), which runs on a slave with `enableSlaveActingMaster`.
`onMinBrokerChange` calls `PullRequestHoldService.notifyMasterOnline` when the master is again the least living broker
of its group. Nothing else calls `notifyMasterOnline`: a slave that becomes master (`changeToMaster`) wakes no request.
`notifyMasterOnline` checks whether each bucket is empty, then takes its list. If another thread emptied the bucket in
between, the list is null, and the exception ends the traversal. Later pulls that find nothing are redirected to the
master (`PullMessageProcessor.composeResponseHeader`).

RocketMQ 4.9.8 does not call `notifyMasterOnline`. The slaves of 4.9.8 commit no offset that a pull carries
(`processRequest`), and do not notify (`doReput` asks for another role than SLAVE before it calls `arriving`)."""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import answered, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import MASTER_BACK, NEW_MASTER, Queue, State, assign
from longpoll_spec.state.variables import walks_on_master_return
from longpoll_spec.terms import FALSE, TRUE, Bool, Effect, Term, all_of, ite, truth


def _has_role(state: State) -> bool:
    return state.bounds.has("role")


@action(exists=_has_role, urgent=never)
def role_change(state: State) -> Step:
    """A slave whose master is gone becomes master. Held requests keep waiting, or are answered at once under the
    buckets' locks. If the broker answers held requests, those in a notifier's list or on their way into the table are
    answered when they would be inserted."""
    # GUARD
    guard = _may_change(state)
    # EFFECT
    changed = _changed(state, NEW_MASTER, answers=state.policy.on_role_change == "answer", walks=FALSE)
    return Step(guard, {**changed, **assign((state.is_master, TRUE))})


@action(exists=_has_role, urgent=never)
def master_returns(state: State) -> Step:
    """The master of a slave is back. Depending on the policy, held requests keep waiting, or a traversal of all buckets
    sends them to the master, or they are answered at once under the buckets' locks. If they are answered at once,
    requests outside the table are answered when they would be inserted."""
    # GUARD
    guard = _may_change(state)
    # EFFECT
    answers, walks = state.policy.on_master_return == "answer", truth(_walks(state))
    return Step(guard, _changed(state, MASTER_BACK, answers=answers, walks=walks))


def _may_change(state: State) -> Bool:
    return state.running & ~state.changed & all_of(state.lock_free(queue) for queue in state.queues)


def _changed(state: State, news: int, *, answers: bool, walks: Bool) -> Effect:
    pairs: list[tuple[Term, Term | int | bool]] = []
    for each in state.requests:
        told = each.is_("held") if answers else FALSE
        pairs += [pair for pair in answered(each, told) if pair[0] is not each.role_news]
        pairs.append((each.role_news, ite(each.has_missed, ite(told, 0, news), each.role_news)))
    return assign((state.changed, TRUE), *((queue.return_due, walks) for queue in state.queues), *pairs)


def _walks(state: State) -> bool:
    return walks_on_master_return(state.policy, state.bounds)


@action("queue", exists=_walks)
def return_look(state: State, queue: Queue) -> Step:
    """The traversal after the master's return checks whether the queue's bucket is empty, and skips an empty one."""
    # GUARD
    guard = queue.return_due & state.return_queue.is_(state.no_queue)
    # EFFECT
    empty = state.bucket_looks_empty(queue)
    effect = assign(
        (queue.return_due, ~empty),
        (state.return_queue, ite(empty, state.no_queue, queue.index)),
    )
    return Step(guard, effect)


@action("queue", exists=_walks)
def return_take(state: State, queue: Queue) -> Step:
    """The traversal after the master's return takes the bucket that it saw occupied, and wakes all its requests. If
    another thread has emptied the bucket in between, its list is missing and the whole traversal ends."""
    # GUARD
    room = all_of(each.may_be_queued for each in state.requests)
    guard = state.return_queue.is_(queue.index) & state.lock_free(queue) & room
    # EFFECT
    empty = state.bucket_looks_empty(queue)
    taken = [(each, each.in_table & each.at(queue)) for each in state.requests]
    effect = assign(
        (state.return_queue, state.no_queue),
        (queue.return_due, FALSE),
        *((other.return_due, other.return_due & ~empty) for other in state.queues if other is not queue),
        *(pair for each, here in taken for pair in to_executor(each, here)),
        *((each.role_news, ite(here & (each.role_news <= 0), MASTER_BACK, each.role_news)) for each, here in taken),
    )
    return Step(guard, effect)
