"""Recheck by traversal: after its insert a pull's thread traverses the whole bucket, like an arrival.

Source: upstream pull request #7359 (not merged), which calls `notifyMessageArriving` at the end of
`suspendPullRequest`. In the model one pull thread at a time does this and the next one waits. The traversal is in
`walk`.
"""

from __future__ import annotations

from longpoll_spec.actions import walk
from longpoll_spec.actions.family import action
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, IDLE, Queue, Request, State, assign
from longpoll_spec.state.parts import walks_to_recheck
from longpoll_spec.terms import FALSE, ite


def exists(state: State) -> bool:
    """Whether pulls recheck by traversing the bucket."""
    return walks_to_recheck(state.policy)


@action("request", name="recheck", exists=exists)
def recheck_by_walk(state: State, request: Request) -> Step:
    """After the insert the pull's thread reads the visible end again. If there is something to read, it must traverse
    the bucket, including requests that arrived later.
    """
    walker = state.rechecker
    # GUARD
    guard = request.recheck_due & walker.at(IDLE)
    # EFFECT
    found = state.has_more(request) | state.is_told_moved(request)
    effect = assign(
        (request.recheck_due, FALSE),
        (walker.counter, ite(found, DUE, IDLE)),
        (walker.queue, ite(found, request.queue, state.no_queue)),
    )
    return Step(guard, effect)


@action("queue", exists=exists)
def walk_start(state: State, queue: Queue) -> Step:
    """The pull's thread, whose recheck found something, takes the bucket's requests."""
    # GUARD
    guard = state.rechecker.at(DUE, queue) & walk.may_take(state, queue)
    # EFFECT
    effect = assign(*walk.take(state, state.rechecker, queue))
    return Step(guard, effect)


@action("request", exists=exists)
def walk_each(state: State, request: Request) -> Step:
    """The pull's thread checks one request it took. If there is something to read, or the deadline has passed, the
    request goes to the executor; otherwise it is kept.
    """
    return walk.look(state, state.rechecker, request)


@action("queue", exists=exists)
def walk_end(state: State, queue: Queue) -> Step:
    """The pull's thread has checked all requests it took, and puts the kept ones back into the bucket."""
    return walk.keep(state, state.rechecker, queue)
