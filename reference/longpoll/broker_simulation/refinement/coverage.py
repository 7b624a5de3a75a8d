"""Reports how many states of the specification the real code's schedules reach, and why they miss the others.

    python -m longpoll.broker_simulation.refinement.coverage [--requests 1]

Under tiny bounds the state graph is known completely. A state that no schedule reaches has one of the `REASONS`; a
state without a reason is a gap in the schedules or the code. `explore` tries the schedules.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from attrs import frozen

from longpoll.broker_simulation.logged_errors import collected_errors
from longpoll.broker_simulation.refinement.explore import explore
from longpoll.output import table
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python import Packed, successors
from longpoll_spec.model import Model
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, STRICT_CLONE, Policy
from longpoll_spec.specification import specification_of
from longpoll_spec.state import DUE, IDLE, WALKING

NOTIFIERS: Final = ("dispatcher", "scanner")
REASONS: Final = {
    "in one": "the code traverses a bucket in place under one lock: the steps in between are not observable",
    "stopped": "a broker's stop waits for its notifiers to end; the specification's does not",
    "empty": "the code skips an empty bucket without a step; in the specification its traversal is due",
    "together": "the clock releases all due pulls at once, the specification one after another",
    "behind": "a state that only one of these leads to",
}
"""Why no schedule reaches a state of the specification."""


@frozen
class Coverage:
    """The states that the schedules of one policy reached."""

    policy: str
    states: int
    of: int
    unreached: Counter[str]
    """Reason -> number of states; an empty reason means unknown."""


def coverage_of(policy: Policy, bounds: Bounds) -> Coverage:
    """Try every schedule, with a full executor, a stop and throwing checks, and count."""
    model = specification_of(policy, bounds)
    with collected_errors():
        seen = explore(policy, bounds, rejects=True, faults=True).states
    every = _graph(model, lambda _state: True)
    beyond = _graph(model, lambda state: why_not(model, state) is None)
    assert seen <= every, "the code reached a state that the specification never does"
    unreached = Counter(why_not(model, state) or ("" if state in beyond else "behind") for state in every - seen)
    return Coverage(policy.name, len(seen), len(every), unreached)


def why_not(model: Model, state: Packed) -> str | None:
    """The reason why no schedule reaches a state; None if there is none."""
    values = dict(zip((variable.name for variable in model.variables), state, strict=True))
    at = [values[name] for name in NOTIFIERS]
    if model.policy.take == "in_place" and WALKING in at:
        return "in one"
    if not values["running"] and any(place != IDLE for place in at):
        return "stopped"
    held = model.state.phases["held"]
    nobody = all(value != held for name, value in values.items() if name.startswith("phase_"))
    if model.policy.empty_shortcut and DUE in at and nobody:
        return "empty"
    return "together" if model.policy.expiry == "own_deadline" and _lets_go_of_one(model, values) else None


def _lets_go_of_one(model: Model, values: Mapping[str, int]) -> bool:
    """Whether of two due pulls one is still held and the other is queued."""
    due = [
        name.removeprefix("deadline_") for name, value in values.items() if name.startswith("deadline_") and not value
    ]
    phases = {values[f"phase_{number}"] for number in due}
    return {model.state.phases["held"], model.state.phases["queued"]} <= phases


def _graph(model: Model, allowed: Callable[[Packed], bool]) -> set[Packed]:
    """Every state that is reachable through allowed states only."""
    law = successors(model)
    found, edge = {model.initial}, [model.initial]
    while edge:
        for _index, after in law(edge.pop()):
            if after not in found and allowed(after):
                found.add(after)
                edge.append(after)
    return found


def show(found: Iterable[Coverage]) -> None:
    """Print a table of the reached states."""
    rows = [
        (each.policy, each.states, each.of, *(each.unreached[reason] for reason in (*REASONS, ""))) for each in found
    ]
    table("States of the law", ("policy", "reached", "of", *REASONS, "no reason"), rows)


def main() -> int:
    """Count for four policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1, help="pulls; two take minutes")
    bounds = Bounds("tiny", requests=parser.parse_args().requests, messages=1, hold_ticks=2, scan_ticks=2)
    show(coverage_of(policy, bounds) for policy in (STRICT, STRICT_CLONE, ROCKETMQ_4_9, ROCKETMQ_5))
    return 0


if __name__ == "__main__":
    sys.exit(main())
