"""Produce and dispatch: how a message gets into the log, and how it becomes visible to pulls.

Source: `DefaultMessageStore.ReputMessageService.doReput` (4.9.8). Leaves out the notification that follows (`notify`).
"""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, IDLE, State, assign
from longpoll_spec.terms import TRUE


@action(urgent=never)
def append(state: State) -> Step:
    """A producer's message is appended to the log; pulls do not see it yet."""
    # GUARD
    room = TRUE if state.bounds.messages is None else state.log_end < state.bounds.messages
    guard = state.running & room
    # EFFECT
    effect = assign((state.log_end, state.log_end + 1))
    return Step(guard, effect)


@action(urgent=lambda policy: policy.notify == "at_append")
def make_visible(state: State) -> Step:
    """The dispatcher writes the next message's unit into the consume queue: the visible end moves, and the dispatcher
    is due to walk the bucket. It dispatches one message at a time and notifies before it takes the next.
    """
    # GUARD
    guard = state.running & state.dispatcher.at(IDLE) & (state.visible_end < state.log_end)
    # EFFECT
    effect = assign(
        (state.visible_end, state.visible_end + 1),
        (state.dispatcher.counter, DUE),
    )
    return Step(guard, effect)
