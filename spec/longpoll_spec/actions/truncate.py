"""Truncate: a queue loses messages at either end, or is deleted and recreated, while requests wait for an offset.

Source: nothing notifies the hold service (4.9.8). A request whose offset no longer exists waits until its deadline, and
the answer says that its offset moved.
"""

from __future__ import annotations

from longpoll_spec.actions.commits import cut_commit
from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import Pairs, to_executor
from longpoll_spec.model import Step
from longpoll_spec.state import IDLE, Queue, State, assign
from longpoll_spec.terms import Bool, Int, all_of, const, ite, truth


def _exists(state: State) -> bool:
    return state.bounds.has("truncate")


@action("queue", exists=_exists, urgent=never)
def trim(state: State, queue: Queue) -> Step:
    """The queue's first message is deleted because of its age, so the queue begins later. Waiting requests are at the
    queue's end and are not affected. A read below the beginning returns where the queue begins.
    """
    # GUARD
    guard = state.running & (queue.visible_start < queue.visible_end)
    # EFFECT
    effect = assign((queue.visible_start, queue.visible_start + 1))
    return Step(guard, effect)


@action("queue", exists=_exists, urgent=never)
def truncate(state: State, queue: Queue) -> Step:
    """The queue loses its last message. Requests that wait at a greater offset are woken under the bucket's lock, or
    left waiting.
    """
    # GUARD
    guard = _may_shrink(state, queue)
    # EFFECT
    effect = assign(*_shrunk(state, queue, queue.visible_end - 1, cuts=state.policy.on_truncate == "wake"))
    return Step(guard, effect)


@action("queue", exists=_exists, urgent=never)
def queue_deleted(state: State, queue: Queue) -> Step:
    """The queue is deleted, and a queue of the same name begins at offset 0. Requests that wait at a greater offset are
    woken under the bucket's lock, or left waiting. The broker may delete the offsets that groups committed in the
    old queue.
    """
    # GUARD
    guard = _may_shrink(state, queue)
    # EFFECT
    effect = assign(*_shrunk(state, queue, const(0), cuts=state.policy.on_truncate != "ignore"))
    return Step(guard, effect)


def _may_shrink(state: State, queue: Queue) -> Bool:
    free = [state.lock_free(queue)] if state.policy.on_truncate == "wake" else []
    room = [each.may_be_queued for each in state.requests]
    return all_of((state.running, state.dispatcher.at(IDLE), queue.visible_end > 0, *free, *room))


def _shrunk(state: State, queue: Queue, end: Int, *, cuts: bool) -> Pairs:
    wakes = truth(state.policy.on_truncate == "wake")
    read_all = [(each, each.at(queue) & (each.offset >= end)) for each in state.requests]
    return (
        (queue.log_end, end),
        (queue.visible_end, end),
        (queue.visible_start, ite(queue.visible_start > end, end, queue.visible_start)),
        (queue.flushed_end, ite(queue.flushed_end > end, end, queue.flushed_end)),
        *(
            pair
            for each in state.requests
            for pair in to_executor(each, wakes & each.is_("held") & each.at(queue) & (each.offset > end))
        ),
        *(cut_commit(each, queue, end, cuts=cuts) for each in state.requests),
        *((each.passes, each.passes & ~here) for each, here in read_all),
        *((each.wanted, each.wanted & ~here) for each, here in read_all),
    )
