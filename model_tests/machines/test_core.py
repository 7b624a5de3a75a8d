"""Drives the broker's real hold table and the specification step by step, and compares all visible state.

The machine takes any step that the specification allows in `longpoll_simulation.lockstep`, which runs the real
`HoldService`, `BucketTraversal` and `HoldTable` under a controlled scheduler. The steps include a stop and checks that
raise; the actors are consumers, a dispatcher, a scanner and a bounded executor. After each step every variable of the
specification, read from the table and the actors, must have a value that the specification's own actions give.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import ClassVar, Final

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from longpoll_broker.hold.hold_table import HoldTable
from longpoll_simulation.lockstep import Lockstep, run
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python import successors
from longpoll_spec.policy import preset
from longpoll_spec.specification import specification_of

BOUNDS: Final = Bounds("core", requests=3, messages=4, hold_ticks=2, scan_ticks=3)
RARE: Final = {"stop": 25, "fill": 4, "empty": 4}
"""Name of a step -> N: the step is offered in one of N choices. A stop is rare because it ends nearly all activity."""
IDLE: Final = {"tick", "fill", "empty"}
"""Steps that still occur after a stopped broker has answered every request."""
POLICIES: Final = ["strict", "strict-clone"]


class CoreMachine(RuleBasedStateMachine):
    acted: ClassVar[int] = 0

    def make(self) -> Lockstep:
        raise AssertionError("run this machine by run_machine, which says of which policy")

    @initialize()
    def begin(self) -> None:
        self.world = self.make()

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        moves = [move for move in self.world.moves() if data.draw(st.integers(1, RARE.get(move[0], 1))) == 1]
        if {kind for kind, _number in moves} <= IDLE and not self.world.running:
            return
        if not moves:
            return
        # The kind of step is drawn first, because there are many steps of pulls and only one append.
        kind = data.draw(st.sampled_from(list(dict.fromkeys(kind for kind, _number in moves))), label="move")
        alike = [move for move in moves if move[0] == kind]
        self.world.do(alike[data.draw(st.integers(0, len(alike) - 1), label="instance")])
        type(self).acted += 1

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.scheduler.close()


def run_machine(policy_name: str, *, planted: bool = False) -> int:
    """Run the machine with a policy; returns the number of compared steps."""
    model = specification_of(preset(policy_name), BOUNDS)
    law = successors(model)

    class Machine(CoreMachine):
        def make(self) -> Lockstep:
            return Lockstep(model, law, rejects=True, faults=True)

    Machine.acted = 0

    profile = settings.get_profile(settings.get_current_profile_name())
    steps = max(60, profile.stateful_step_count)
    chosen = settings(profile, stateful_step_count=steps)
    if planted:
        # The first failing example ends the run, because shrinking would only take time.
        chosen = settings(chosen, phases=(Phase.explicit, Phase.generate), max_examples=3000)
    run_state_machine_as_test(Machine, settings=chosen)
    return Machine.acted


@pytest.mark.parametrize("policy_name", POLICIES)
def test_the_hold_table_follows_the_specification(policy_name: str) -> None:
    assert run_machine(policy_name) > 500


@pytest.mark.parametrize("policy_name", [POLICIES[0], pytest.param(POLICIES[1], marks=pytest.mark.long)])
def test_a_long_run_takes_every_action(policy_name: str) -> None:
    """Each action of the specification is taken many times, so the machine is not vacuous."""
    model = specification_of(preset(policy_name), BOUNDS)
    law = successors(model)
    seed = 7
    draw = random.Random(seed)
    fired: Counter[str] = Counter()
    for _ in range(70):
        with run(model, law, rejects=True, faults=True) as world:
            for _ in range(100):
                moves = world.moves()
                if {kind for kind, _number in moves} <= IDLE and not world.running:
                    break
                wanted = [move for move in moves if draw.randint(1, RARE.get(move[0], 1)) == 1]
                world.do(draw.choice(wanted or moves))
            fired.update(world.done)
    # A traversal in place evaluates the filters while it has the lock, so a filter that raises is not a separate step.
    never = {"notifier_throws"} if model.policy.take == "in_place" else set()
    expected = {action.name for action in model.actions} - never
    assert set(fired) == expected, f"seed {seed}: {expected ^ set(fired)}"
    assert min(fired.values()) >= 10, f"seed {seed}: {fired}"


@pytest.mark.parametrize(
    ("name", "instead", "says"),
    [
        ("recheck", lambda _table, _pull: False, "is not a step of the specification"),
        ("expire", lambda _table, _now_ms, _limit: [], "does nothing"),
    ],
    ids=["a recheck that never removes", "a deadline that never fires"],
)
def test_an_injected_fault_is_detected(
    name: str, instead: Callable[..., object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HoldTable, name, instead)
    with pytest.raises(AssertionError, match=says):
        run_machine("strict", planted=True)
