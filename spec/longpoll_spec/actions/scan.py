"""Scan: the hold service's thread traverses every bucket once per period, whether or not messages arrived.

Source: `PullRequestHoldService.run` and `checkHoldRequest` (4.9.8). A round visits the queues in any order. The
traversal is in `walk`.
"""

from __future__ import annotations

from longpoll_spec.actions import walk
from longpoll_spec.actions.family import action, never
from longpoll_spec.actions.wake import Pairs
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, IDLE, Queue, Request, State, assign
from longpoll_spec.terms import Bool, ite


def comes_to(state: State, queue: Queue) -> Bool:
    """Whether the scanner may visit the queue now, at the start of a round or within one."""
    return state.round_is_due | (state.running & state.scanner.at(IDLE) & queue.unscanned)


def _round(state: State, queue: Queue, begins: Bool) -> Pairs:
    others = [other for other in state.queues if other is not queue]
    return (
        (state.next_scan, ite(begins, state.scan_ticks, state.next_scan)),
        (queue.unscanned, False),
        *((other.unscanned, other.unscanned | begins) for other in others),
    )


@action("queue")
def scan_start(state: State, queue: Queue) -> Step:
    """The scanner takes the bucket's requests when its period is over or its recheck found something. With the shortcut
    it skips a bucket that looks empty, without waiting for the lock. Its round then visits each of the other queues.
    """
    # GUARD
    guard = (comes_to(state, queue) | state.scanner.at(DUE, queue)) & walk.may_take(state, queue)
    # EFFECT
    effect = assign(*walk.take(state, state.scanner, queue), *_round(state, queue, state.round_is_due))
    return Step(guard, effect)


@action("request")
def scan_each(state: State, request: Request) -> Step:
    """The scanner checks one request it took. If there is something to read, or the deadline has passed, the request
    goes to the executor; otherwise it is kept.
    """
    return walk.look(state, state.scanner, request)


@action("queue")
def scan_end(state: State, queue: Queue) -> Step:
    """The scanner has checked all requests it took, and puts the kept ones back into the bucket."""
    return walk.keep(state, state.scanner, queue)


@action("queue", exists=lambda state: len(state.queues) > 1, urgent=never)
def scan_throws(state: State, queue: Queue) -> Step:
    """The store fails when the scanner asks for the queue's end, before it takes the bucket. The scanner skips the
    queue, or the whole round ends.
    """
    # GUARD
    guard = comes_to(state, queue)
    # EFFECT
    effect = dict(assign(*_round(state, queue, state.round_is_due)))
    if state.policy.scan_throw == "abort_round":
        effect |= assign(*((each.unscanned, False) for each in state.queues))
    return Step(guard, effect)
