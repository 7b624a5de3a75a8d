"""Produce and dispatch: a message is appended to the log, then becomes visible to pulls.

Source: `DefaultMessageStore.ReputMessageService.doReput` (4.9.8). One dispatcher serves all queues. The dispatcher
takes messages of the queues in any order, which includes the order in the log. For the notification that follows see
`traversal`."""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import Pairs
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, IDLE, Queue, Request, State, Tag, assign
from longpoll_spec.terms import TRUE, Bool, ite


@action("queue", urgent=never)
def append(state: State, queue: Queue) -> Step:
    """A producer's message is appended to the log; pulls do not see it yet. If the broker notifies at append time, the
    dispatcher must already traverse the bucket.
    """
    # GUARD
    room = TRUE if state.bounds.messages is None else queue.log_end < state.bounds.messages
    guard = state.running & room
    # EFFECT
    effect = assign((queue.log_end, queue.log_end + 1))
    if state.policy.notify == "before_visible":
        guard &= state.dispatcher.at(IDLE)
        effect = {**effect, **assign(*_is_due(state, queue))}
    return Step(guard, effect)


def _is_due(state: State, queue: Queue) -> Pairs:
    """The effect that the dispatcher must traverse the bucket; no effect on a slave that does not notify."""
    dispatcher, silent = state.dispatcher, state.only_reads
    return (
        (dispatcher.counter, ite(silent, dispatcher.counter, DUE)),
        (dispatcher.queue, ite(silent, dispatcher.queue, queue.index)),
    )


@action("queue", "tag", urgent=lambda policy: policy.notify != "dispatcher_poll")
def make_visible(state: State, queue: Queue, tag: Tag) -> Step:
    """The dispatcher writes the next message's unit into the consume queue. The visible end moves, and the dispatcher
    must traverse the bucket. The dispatcher notifies after each message before it takes the next, or notifies once for
    several. The message's tag is chosen in this step, because it is not observable earlier."""
    # GUARD
    guard = state.running & (queue.visible_end < state.end_to_show(queue)) & _may_dispatch(state, queue)

    def unread(request: Request) -> Bool:
        # After a truncation, a request whose offset is past the queue's end does not read the new message.
        return request.at(queue) & ~state.is_moved(request)

    # EFFECT
    announced = ite(state.only_reads, state.announced, tag.index)
    effect = assign(
        (queue.visible_end, queue.visible_end + 1),
        *(() if state.policy.notify == "before_visible" else (*_is_due(state, queue), (state.announced, announced))),
        *((each.passes, each.passes | (unread(each) & tag.passes(each.wants))) for each in state.requests),
        *((each.wanted, each.wanted | (unread(each) & tag.is_wanted(each.wants))) for each in state.requests),
    )
    return Step(guard, effect)


def _may_dispatch(state: State, queue: Queue) -> Bool:
    if state.policy.notify == "before_visible":
        return TRUE
    free = state.dispatcher.at(IDLE)
    return free | state.dispatcher.at(DUE, queue) if state.policy.notify_grain == "batch" else free
