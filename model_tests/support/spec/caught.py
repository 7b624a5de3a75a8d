"""Applies every mutant of every action, and reports which property, or whether a count, detects it.

`python -m model_tests.support.spec.caught [PRESET [BOUNDS [EVERY]]]` prints a line for each mutant, or for one in EVERY
mutants. Mutants that behave alike in every reachable state are omitted, because they are correct under those bounds.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Final

from attrs import frozen

from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.mutants.generated import Mutant, mutants_of, reached
from longpoll_spec.policy import Policy, preset
from longpoll_spec.specification import specification_of

MORE_STATES: Final = 40_000
"""A mutant may have endlessly many states, so its search ends after twice the original's states plus this number."""
NUMBERS: Final = "the numbers"
"""Means that distinct states, transitions or depth differ from those in the manifest."""
NOBODY: Final = ""


@frozen
class Catch:
    """A mutant and the first that detects it: a property's name, `NUMBERS`, or `NOBODY`."""

    slip: Mutant
    by: str


def catches(policy: Policy, bounds: Bounds, every: int = 1) -> Iterator[Catch]:
    """Apply all mutants, or one in `every`, one after the other."""
    right = explore(specification_of(policy, bounds), engine="python")
    states = reached(right.model)
    real = [slip for slip in mutants_of(policy, bounds) if slip.shows(right.model, states)]
    for slip in real[::every]:
        yield Catch(slip, caught_by(slip, right))


def caught_by(slip: Mutant, right: Exploration) -> str:
    model = slip.planted(right.model.policy, right.model.bounds)
    wrong = explore(model, engine="python", limit_states=2 * right.distinct_states + MORE_STATES)
    before = {verdict.name: verdict.verdict for verdict in right.verdicts}
    red = [verdict.name for verdict in wrong.verdicts if verdict.verdict != before[verdict.name]]
    if red:
        return red[0]
    return NUMBERS if numbers(wrong) != numbers(right) else NOBODY


def numbers(found: Exploration) -> tuple[int, int, int]:
    """Returns (distinct states, transitions, depth) of an exploration."""
    return found.distinct_states, found.transitions, found.depth


def main(name: str = "strict", size: str = "tiny", every: str = "1") -> None:
    """Print what detects each mutant of a preset under bounds."""
    policy = preset(name)
    found = Counter[str]()
    for catch in catches(policy, named(size, policy), int(every)):
        found[catch.by] += 1
        sys.stdout.write(f"{catch.slip.action} {catch.slip.what}: {catch.by or 'NOT CAUGHT'}\n")
    sys.stdout.write(f"{found.total()} slips, {found.total() - found[NOBODY]} caught\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
