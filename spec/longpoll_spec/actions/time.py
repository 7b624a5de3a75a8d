"""Time: one tick less to every deadline and to the next scan.

Only time left is kept, so unbounded time is a finite space. Which actions time waits for is each action's own word;
`law` puts them together.
"""

from __future__ import annotations

from longpoll_spec.actions.family import action, never
from longpoll_spec.model import Step
from longpoll_spec.state import State, assign, down
from longpoll_spec.terms import TRUE


@action(urgent=never)
def tick(state: State) -> Step:
    """Time passes. Under maximal progress only while none of the broker's own threads has work that is due."""
    # GUARD
    guard = TRUE  # the law adds: no urgent action is enabled
    # EFFECT
    effect = assign(
        (state.next_scan, down(state.next_scan)),
        *((request.deadline, down(request.deadline)) for request in state.requests),
    )
    return Step(guard, effect)
