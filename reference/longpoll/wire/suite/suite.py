"""Runs the property suite against a broker and reports the result, for `longpoll verify` and the tests.

The report contains the falsifying steps and the seed that reproduces them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from attrs import frozen
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as with_seed
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from longpoll.wire.suite.example import Links
from longpoll.wire.suite.machine import RestartingMachine, Run, ServedMachine, new_name
from longpoll.wire.suite.model import ViolationError
from longpoll.wire.suite.subject import Subject
from longpoll_client.errors import UnreachableError
from longpoll_runtime import Runtime
from longpoll_runtime.host_pauses import HostPauseWatch

Progress = Callable[[int, int], None]
"""Called with the examples done and to do."""


@frozen
class SuiteReport:
    """The result of a run; `failure` is None if nothing was falsified."""

    seed: int
    """All choices derive from it: `run_suite` with it and the same sizes makes the same ones."""
    examples: int
    steps: int
    """Rules run, over all examples up to the first failure."""
    rule_counts: Mapping[str, int]
    failure: str | None
    falsifying_example: str | None
    """The steps of the shortest failing example seen, one a line."""
    seconds: float
    is_gone: bool = False
    """The broker became unreachable: no property is certainly falsified."""

    @property
    def holds(self) -> bool:
        """Whether no property was falsified."""
        return self.failure is None


def run_suite(
    runtime: Runtime,
    subject: Subject,
    *,
    max_examples: int,
    step_count: int,
    seed: int | None = None,
    progress: Progress | None = None,
    shrink: bool = True,
) -> SuiteReport:
    """Run up to `max_examples` examples of `step_count` steps each, until one fails; `shrink` then shortens it.

    Raises UnreachableError if the broker cannot be reached at all. A falsified property does not raise.
    """
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    begun_ns = runtime.monotonic_ns()
    watch = HostPauseWatch()
    links = Links(runtime, subject, watch.stalled_ms)
    links.get(0)
    tell = progress or (lambda _done, _all: None)
    run = Run(
        runtime,
        subject,
        new_name(runtime),
        links,
        subject.expectations,
        lambda done: tell(min(done, max_examples), max_examples),
    )
    machine = RestartingMachine if subject.can_restart else ServedMachine

    @with_seed(seed)
    def example() -> ServedMachine:
        return machine(run)

    try:
        with watch:
            run_state_machine_as_test(
                example,  # type: ignore[arg-type] # a function that makes a machine is a factory, says its docstring
                settings=_settings(max_examples, step_count, shrink=shrink),
            )
    except (ViolationError, UnreachableError, Flaky):
        # Flaky: a race does not fail every time. A failure seen once is kept in the run.
        if run.failure is None:
            raise
    finally:
        links.drop_all()
    failure = run.failure
    return SuiteReport(
        seed=seed,
        examples=run.examples,
        steps=run.rule_counts.total(),
        rule_counts=dict(run.rule_counts.most_common()),
        failure=failure.text if failure else None,
        falsifying_example="\n".join(failure.steps) if failure else None,
        seconds=(runtime.monotonic_ns() - begun_ns) / 1e9,
        is_gone=failure is not None and failure.is_gone,
    )


def _settings(max_examples: int, step_count: int, *, shrink: bool) -> settings:
    """Hypothesis without its deadlines and without a database: the seed determines everything."""
    return settings(
        max_examples=max_examples,
        stateful_step_count=step_count,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=[*HealthCheck],
    )
