"""Scan: the hold service's own thread walks the bucket once a period, whatever has arrived.

Source: `PullRequestHoldService.run` and `checkHoldRequest` (4.9.8). The walk itself is in `walk`.
"""

from __future__ import annotations

from longpoll_spec.actions import walk
from longpoll_spec.actions.family import action
from longpoll_spec.model import Step
from longpoll_spec.state import DUE, IDLE, Request, State, assign
from longpoll_spec.terms import ite


@action()
def scan_start(state: State) -> Step:
    """The scanner, whose period is over or whose recheck found something, takes the bucket's requests; with the
    shortcut it passes over a bucket that looks empty without waiting for the lock.
    """
    # GUARD
    period_over = state.running & state.scanner.at(IDLE) & (state.next_scan <= 0)
    guard = (period_over | state.scanner.at(DUE)) & walk.may_take(state)
    # EFFECT
    effect = assign(
        *walk.take(state, state.scanner),
        (state.next_scan, ite(state.scanner.at(IDLE), state.scan_ticks, state.next_scan)),
    )
    return Step(guard, effect)


@action("request")
def scan_each(state: State, request: Request) -> Step:
    """The scanner looks at one request it took: if there is something to read, or the deadline has passed, the request
    goes to the executor, else it is kept.
    """
    return walk.look(state, state.scanner, request)


@action()
def scan_end(state: State) -> Step:
    """The scanner, having looked at all it took, puts the requests it kept back into the bucket."""
    return walk.keep(state, state.scanner)
