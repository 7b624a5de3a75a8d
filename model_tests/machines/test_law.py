"""Drives the law alone, step by step, with its own properties as invariants."""

from __future__ import annotations

from typing import ClassVar

import pytest
from attrs import frozen
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.python.compile import Question, Successors, question, successors
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model
from longpoll_spec.mutants.slips import without
from longpoll_spec.policy import Policy, preset, with_knob

OWN_WORK = 60
"""More steps than the broker's threads can have due at once under these bounds."""
BOUNDS = Bounds("machine", requests=4, messages=6, hold_ticks=3, scan_ticks=5)


@frozen
class Compiled:
    """A model with its compiled steps and properties."""

    model: Model
    successors: Successors
    always: dict[str, Question]


class LawMachine(RuleBasedStateMachine):
    """The law as a machine: the outside world acts by rules, and the broker's own threads in any order between."""

    law: ClassVar[Compiled]

    def __init__(self) -> None:
        super().__init__()
        self.model = self.law.model
        self.state = self.model.initial

    def take(self, data: st.DataObject, names: set[str]) -> bool:
        """Take one enabled action of these names, if there is one."""
        choices = [
            (self.model.actions[index].label, after)
            for index, after in self.law.successors(self.state)
            if self.model.actions[index].name in names
        ]
        if not choices:
            return False
        label, self.state = data.draw(st.sampled_from(choices), label="step")
        assert label
        return True

    @rule(data=st.data())
    def a_producer_appends(self, data: st.DataObject) -> None:
        """A message is appended, if the bounds have room."""
        self.take(data, {"append"})

    @rule(data=st.data())
    def a_consumer_pulls(self, data: st.DataObject) -> None:
        """An idle consumer sends its next pull."""
        self.take(data, {"next_pull"})

    @rule(data=st.data())
    def the_broker_works(self, data: st.DataObject) -> None:
        """One of the broker's threads makes one step."""
        self.take(data, set(self.model.urgent) | {"make_visible"})

    @rule(data=st.data())
    def something_fails(self, data: st.DataObject) -> None:
        """The executor refuses, or a notifier throws."""
        self.take(data, {"executor_rejects", "notifier_throws"})

    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        """The broker's threads do what is due, in any order, and a tick goes by."""
        for _ in range(OWN_WORK):
            if not self.take(data, set(self.model.urgent)):
                break
        assert self.take(data, {"tick"}), "time is stuck"

    @precondition(lambda self: self.state != self.model.initial)
    @rule(data=st.data(), really=st.integers(0, 9))
    def the_broker_stops(self, data: st.DataObject, really: int) -> None:
        """Now and then the broker is told to stop."""
        if really == 0:
            self.take(data, {"stop"})

    @invariant()
    def every_property_holds(self) -> None:
        """All the law's ALWAYS properties."""
        broken = [name for name, holds in self.law.always.items() if not holds(self.state)]
        shown = {each.name: each.show(value) for each, value in zip(self.model.variables, self.state, strict=True)}
        assert not broken, f"{', '.join(broken)} in {shown}"


def machine_of(model: Model) -> type[LawMachine]:
    """The machine that drives this model."""
    always = {item.name: question(model, item.term) for item in properties_of(model) if item.kind != "sometimes"}
    return type("LawMachine", (LawMachine,), {"law": Compiled(model, successors(model), always)})


def run(policy: Policy) -> None:
    """Drive the law of a policy."""
    run_state_machine_as_test(machine_of(law_of(policy, BOUNDS)))


@pytest.mark.parametrize("name", ["strict", "strict-clone"])
def test_the_strict_law_keeps_its_properties(name: str) -> None:
    """Whatever the world and the threads do, both strict presets keep every property."""
    run(preset(name))


def _hunting() -> settings:
    """Many examples, always the same ones, and no time spent on making the finding smaller."""
    return settings(
        max_examples=5_000, stateful_step_count=40, derandomize=True, print_blob=False, phases=[Phase.generate]
    )


def test_without_the_recheck_the_machine_finds_the_race() -> None:
    """A law without the recheck after the hold turns the machine red."""
    model = law_of(with_knob(preset("strict"), "recheck_after_hold=none"), BOUNDS)

    with pytest.raises(AssertionError, match="no_lost_wakeup"):
        run_state_machine_as_test(machine_of(model), settings=_hunting())


def test_without_expiry_the_machine_finds_the_late_answer() -> None:
    """Planted: requests never expire by themselves, and the machine goes red instead of time standing still."""
    policy = preset("strict")

    with pytest.raises(AssertionError, match=r"queued_by_deadline|no_lost_deadline"):
        run_state_machine_as_test(machine_of(without(policy, BOUNDS, "expire")), settings=_hunting())
