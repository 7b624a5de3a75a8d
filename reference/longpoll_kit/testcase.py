"""Run a machine with Hypothesis: as a `unittest.TestCase` that pytest finds, or by a call.

Hypothesis's deadlines are off, and a failure that does not recur is kept, because a race does not happen every time.

Rules: `machine`.
"""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

from hypothesis import HealthCheck, Verbosity, settings
from hypothesis import seed as with_seed
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from longpoll_kit.run import KitReport, Run

SETTINGS: Final = settings(max_examples=20, stateful_step_count=20)
"""The default for a test case: some seconds."""


def run_examples(machine: Callable[[], RuleBasedStateMachine], run: Run, chosen: settings) -> None:
    """Run examples until one fails; raises the failure, or that it did not recur. `run` keeps the failure."""
    plain = settings(
        chosen,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet if chosen.verbosity is Verbosity.normal else chosen.verbosity,
        suppress_health_check=[*HealthCheck],
    )

    @with_seed(run.seed)
    def example() -> RuleBasedStateMachine:
        return machine()

    run_state_machine_as_test(
        example,  # type: ignore[arg-type] # a function that makes a machine is a factory, says its docstring
        settings=plain,
    )


class Machine(Protocol):
    """A class of machines, as a test case uses it."""

    def exercise(self, chosen: settings = SETTINGS, seed: int | None = None) -> KitReport:
        """Run examples until one fails."""
        ...


class MachineTestCase(unittest.TestCase):
    """A test of one machine; a derived case's `settings` give the number of examples and steps."""

    machine: ClassVar[Machine]
    settings: ClassVar[settings] = SETTINGS
    report: ClassVar[KitReport | None] = None
    """The result of the last run."""

    def runTest(self) -> None:  # noqa: N802 - unittest's name
        """Run the machine: a violation fails the test, and an incomplete run is skipped as unknown."""
        case = type(self)
        case.report = report = self.machine.exercise(self.settings)
        if report.verdict == "invalid":
            self.fail(str(report))
        if report.verdict == "unknown":
            self.skipTest(str(report))
        print(report)  # noqa: T201 - pytest -rP shows it


class TestCases:
    """The attribute `TestCase` of a machine: a test case for each derived class."""

    def __get__(self, _machine: Any, kind: Any) -> type[MachineTestCase]:
        return _case_of(kind)


@functools.cache
def _case_of(kind: Any) -> type[MachineTestCase]:
    names = {"machine": kind, "__module__": kind.__module__, "__qualname__": f"{kind.__qualname__}.TestCase"}
    return type(f"{kind.__name__}.TestCase", (MachineTestCase,), names)
