"""The core from which a specification file may start. The core has queues that get messages, requests, and time.

Each queue has a visible end, and a flag `due` that an append sets and an action of the file resets. A request has a
phase and a deadline. The file defines everything that a broker does with queues and requests (`custom`)."""

from __future__ import annotations

from typing import Final

from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.time import tick
from longpoll_spec.bounds import Bounds
from longpoll_spec.model import Family, Step
from longpoll_spec.state import Queue, State, assign
from longpoll_spec.terms import TRUE, Bool


def has_room(queue: Queue, bounds: Bounds) -> Bool:
    """Whether the bounds allow one more message in the queue."""
    return TRUE if bounds.messages is None else queue.visible_end < bounds.messages


@action("queue", urgent=never, thread="sender")
def append(state: State, queue: Queue) -> Step:
    """A message is appended to the queue, and every read finds it. The queue is due."""
    # GUARD
    guard = has_room(queue, state.bounds)
    # EFFECT
    effect = assign((queue.visible_end, queue.visible_end + 1), (queue.due, TRUE))
    return Step(guard, effect)


CORE: Final[tuple[Family, ...]] = (append, tick)
