"""A pytest plugin that runs tests in an order drawn from a seed until a deadline, and logs each result.

`python -m model_tests.nightly` loads the plugin and sets the environment variables that the plugin reads. Every
pytest-xdist worker draws the same order, because xdist requires equal collections.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest

PLAN: Final = "LONGPOLL_NIGHTLY"
CRASHED: Final[str] = "???"
"""The phase in pytest-xdist's report of a test whose worker ended."""
STATE_MACHINES: Final = Path("model_tests/machines")
"""The Hypothesis state machines run more and longer examples at night."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    deadline_s: float
    """A time of `time.monotonic`, which all processes of a Linux machine share; no test starts after it."""
    select: Literal["shared", "alone"]
    """Whether to run the tests that may share the machine, or those that need it alone (marker `whole_machine`)."""
    log: str


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    test: str = ""
    outcome: Literal["started", "passed", "failed", "skipped", "finished", "selected"]
    count: int = 0
    """The number of tests that the plan may run, for a line `selected`."""


def is_selected(item: pytest.Item, plan: Plan, root: Path) -> bool:
    if plan.select == "alone":
        return item.get_closest_marker("whole_machine") is not None
    if item.get_closest_marker("whole_machine") is not None:
        return False
    is_machine = item.path.is_relative_to(root / STATE_MACHINES)
    return item.get_closest_marker("long") is not None or is_machine


class Nightly:
    def __init__(self, plan: Plan, config: pytest.Config, now_s: Callable[[], float] = time.monotonic) -> None:
        self.plan = plan
        self.config = config
        self.now_s = now_s

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if is_selected(item, self.plan, config.rootpath)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        random.Random(self.plan.seed).shuffle(chosen)
        items[:] = chosen
        if not hasattr(config, "workerinput") or config.workerinput["workerid"] == "gw0":
            self._log(Line(outcome="selected", count=len(chosen)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if self.now_s() >= self.plan.deadline_s:
            return True
        self._log(Line(test=item.nodeid, outcome="started"))
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Log the result of a test, then print a failure; with xdist the worker logs and the controller prints."""
        # With xdist the controller logs only a worker that crashed.
        if not hasattr(report, "node") or str(report.when) == CRASHED:
            if report.when == "teardown":
                self._log(Line(test=report.nodeid, outcome="finished"))
            if report.failed or report.when == "call" or report.skipped:
                self._log(Line(test=report.nodeid, outcome=report.outcome))
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        # A failure is printed at once, because a killed pytest prints no summary, and after it was logged, so that it
        # is counted.
        if report.failed and reporter is not None:
            reporter.write_line(f"\n{report.nodeid}\n{report.longreprtext}")

    def _log(self, line: Line) -> None:
        # One short write in append mode is atomic, so workers share the file.
        with Path(self.plan.log).open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(line) + b"\n")


def pytest_configure(config: pytest.Config) -> None:
    plan = msgspec.json.decode(os.environ[PLAN], type=Plan)
    config.pluginmanager.register(Nightly(plan, config), "longpoll-nightly")
