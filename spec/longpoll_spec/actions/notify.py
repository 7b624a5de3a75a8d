"""Notify: the dispatcher traverses the bucket of a queue in which it made a message visible.

Source: `NotifyMessageArrivingListener.arriving` on the dispatch thread (4.9.8). The traversal is in `walk`.
"""

from __future__ import annotations

from longpoll_spec.actions import walk
from longpoll_spec.actions.family import action
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, Queue, Request, State, assign


@action("queue")
def notify_start(state: State, queue: Queue) -> Step:
    """The dispatcher takes the bucket's requests after a message became visible. With the shortcut it skips a bucket
    that looks empty, without waiting for the lock.
    """
    # GUARD
    guard = state.dispatcher.at(DUE, queue) & walk.may_take(state, queue)
    # EFFECT
    effect = assign(*walk.take(state, state.dispatcher, queue))
    return Step(guard, effect)


@action("request")
def notify_each(state: State, request: Request) -> Step:
    """The dispatcher checks one request it took. If there is something to read and the announced message passes its
    filter, or the deadline has passed, the request goes to the executor; otherwise it is kept.
    """
    return walk.look(state, state.dispatcher, request)


@action("queue")
def notify_end(state: State, queue: Queue) -> Step:
    """The dispatcher has checked all requests it took, and puts the kept ones back into the bucket."""
    return walk.keep(state, state.dispatcher, queue)
