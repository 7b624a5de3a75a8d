"""Produce and dispatch: how a message gets into the log, and how it becomes visible to pulls.

Source: `DefaultMessageStore.ReputMessageService.doReput` (4.9.8). One dispatcher serves every queue, and takes their
messages in any order: the order of the log is one of those. Leaves out the notification that follows (`notify`).
"""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, IDLE, Queue, State, Tag, assign
from longpoll_spec.terms import TRUE


@action("queue", urgent=never)
def append(state: State, queue: Queue) -> Step:
    """A producer's message is appended to the log; pulls do not see it yet."""
    # GUARD
    room = TRUE if state.bounds.messages is None else queue.log_end < state.bounds.messages
    guard = state.running & room
    # EFFECT
    effect = assign((queue.log_end, queue.log_end + 1))
    return Step(guard, effect)


@action("queue", "tag", urgent=lambda policy: policy.notify == "at_append")
def make_visible(state: State, queue: Queue, tag: Tag) -> Step:
    """The dispatcher writes the next message's unit into the consume queue: the visible end moves, and the dispatcher
    is due to walk the bucket. It dispatches one message at a time and notifies before it takes the next, or notifies of
    several at once. The message's tag is drawn here, since nobody can see it earlier.
    """
    # GUARD
    free = state.dispatcher.at(IDLE)
    if state.policy.notify_grain == "batch":
        free |= state.dispatcher.at(DUE, queue)
    guard = state.running & free & (queue.visible_end < queue.log_end)
    # EFFECT
    effect = assign(
        (queue.visible_end, queue.visible_end + 1),
        (state.dispatcher.counter, DUE),
        (state.dispatcher.queue, queue.index),
        (state.announced, tag.index),
        *((each.passes, each.passes | (each.at(queue) & tag.passes(each.wants))) for each in state.requests),
        *((each.wanted, each.wanted | (each.at(queue) & each.wants.is_(tag.index))) for each in state.requests),
    )
    return Step(guard, effect)
