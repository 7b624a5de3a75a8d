"""The action of time: a tick brings every deadline and the next scan one tick nearer.

Only remaining time is stored, so the state space is finite although time is unbounded. Each action says whether it is
urgent, which means that time waits for it, and `specification` collects the urgent actions.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.model import Step
from longpoll_spec.state import Request, State, assign, down
from longpoll_spec.terms import TRUE, Bool, all_of, ite


@action(urgent=never)
def tick(state: State) -> Step:
    """Time passes: one tick. Under maximal progress this happens only when none of the broker's threads has work that
    is due.
    """
    # GUARD
    guard = all_of(
        _can_count(state, each) for each in state.requests
    )  # `specification` adds the condition that no urgent action is enabled
    # EFFECT
    effect = assign(
        (state.next_scan, down(state.next_scan)),
        *((request.deadline, down(request.deadline)) for request in state.requests),
        *((each.late, each.late + ite(here, 1, 0)) for each, here in _late(state)),
        *((each.waited, each.waited + ite(here, 1, 0)) for each, here in _waiting(state)),
    )
    return Step(guard, effect)


def _can_count(state: State, request: Request) -> Bool:
    if not state.bounds.has("lateness"):
        return TRUE
    return (request.late < state.bounds.late_max) & (request.waited < state.bounds.late_max)


def _late(state: State) -> list[tuple[Request, Bool]]:
    return [(each, state.running & ~each.is_("idle") & (each.deadline <= 0)) for each in state.requests]


def _waiting(state: State) -> list[tuple[Request, Bool]]:
    return [(each, state.running & ~each.is_("idle") & state.fits(each)) for each in state.requests]
