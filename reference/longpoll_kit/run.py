"""One run: the state that its examples share, its report, and its start by Hypothesis as a test case or by a call.

Hypothesis's deadlines are off, and the run keeps a failure that does not recur, because a race does not occur in every
execution.
"""

from __future__ import annotations

import unittest
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import inf, sqrt
from typing import Any, ClassVar, Final, Literal, Self

from attrs import define, field, frozen
from hypothesis import HealthCheck, Verbosity, settings
from hypothesis import seed as with_seed
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from longpoll_kit.errors import ViolationError
from longpoll_kit.example import NEEDED, TIMED, WOKEN
from longpoll_kit.history import History
from longpoll_kit.polls import Workers
from longpoll_runtime import Runtime
from longpoll_runtime.host_pauses import HostPauseWatch

LESS_BUSY: Final = "run it on a host that is less busy, or with larger wake_ms and late_ms"
Verdict = Literal["valid", "invalid", "unknown"]
WATCH_S: Final = 0.005
"""The interval of checks for host pauses, much shorter than the allowed delays."""
EXCUSED_SHARE: Final = 0.5
"""If host pauses excused more than this share of all wakeups, or of all deadlines, the run proves too little."""
NOT_SHOWN: Final = "not shown"
"""The text of a report for an axis on which no step counts."""
NO_FURTHER: Final = " (no further, because "
PAUSED: Final = "the host paused"
TIME_OVER: Final = "the time for this axis was over"
QUANTILE: Final = 1.96
SHRINK_MS: Final = 5_000
"""The time limit for shrinking a failing example."""


@frozen
class KitReport:
    """The result of a run."""

    verdict: Verdict
    """`unknown` means that no violation was found, but not every required situation occurred."""
    why: str
    """The violation, or the missing situation; empty for `valid`."""
    property: str
    """The violated property; empty if the run found no violation."""
    steps: tuple[str, ...]
    """The steps of the shortest failing example."""
    counts: Mapping[str, int]
    """How often each kind of poll occurred."""
    rule_counts: Mapping[str, int]
    """How often each step was done."""
    left_out: tuple[str, ...]
    """The optional methods that the subject lacks, which the run therefore did not test."""
    examples: int
    excused: int
    """The number of late answers that a host pause explains."""
    late: int
    """The number of late answers that no host pause explains."""
    timed: int
    """The number of wakes and deadlines that were measured."""
    seed: int
    axes: Mapping[str, str]
    """Maps each axis, such as waits, polls at once or silence, to the largest value that the run reached."""
    timeline: tuple[str, ...] = ()
    """The latest events of the failing example."""
    code: str = ""
    """Python code that replays the failing example; empty if no example failed."""

    def __str__(self) -> str:
        seen = ", ".join(f"{self.counts[name]} {name}" for name in NEEDED if self.counts.get(name))
        lines = [f"{self.verdict}: {self.why}" if self.why else self.verdict]
        lines += [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        if self.timeline:
            lines += ["the last events:", *(f"  {line}" for line in self.timeline)]
        if self.code:
            lines += ["run it again:", *(f"    {line}" for line in self.code.splitlines())]
        lines += [f"examples: {self.examples}; polls: {seen or 'none'}"]
        lines.append("axes: " + "; ".join(f"{axis} {reached}" for axis, reached in self.axes.items()))
        lines += [f"not tried, because the method is missing: {', '.join(self.left_out)}"] if self.left_out else []
        least, most = interval(self.late, self.timed)
        lines.append(
            f"late without a host pause: {self.late:,} of {self.timed:,} wakes and deadlines, a rate of {least:.2%} to "
            f"{most:.2%} (95 %)"
        )
        if self.excused:
            lines.append(f"excused, because the host paused: {self.excused:,} late answers, which count for nothing")
        return "\n".join(lines)


def interval(hits: int, tries: int) -> tuple[float, float]:
    """The 95 % confidence interval of a rate, by Wilson; (0, 1) without tries."""
    if not tries:
        return 0.0, 1.0
    share, spread = hits / tries, QUANTILE**2 / tries
    middle, width = share + spread / 2, QUANTILE * sqrt(share * (1 - share) / tries + spread / tries / 4)
    return max(0.0, (middle - width) / (1 + spread)), min(1.0, (middle + width) / (1 + spread))


@define(eq=False)
class Failure:
    """A violation, or an exception of the subject, and the steps that led to it."""

    error: Exception
    steps: tuple[str, ...]
    timeline: tuple[str, ...] = ()
    code: str = ""


@define(eq=False)
class Run:
    """State that the examples of one run share. As a context manager, it watches for host pauses.

    Invariant: `failure` is the failure with the fewest steps so far; once it is set, `ends_ns` is set too.
    """

    runtime: Runtime
    name: str
    seed: int = 0
    history: History | None = None
    counts: Counter[str] = field(factory=Counter)
    rule_counts: Counter[str] = field(factory=Counter)
    example_done: Callable[[int], None] = lambda _done: None
    """Called after each example with the number of examples so far."""
    abilities: frozenset[str] = frozenset()
    examples: int = 0
    """The number of examples before the first failure."""
    started: int = 0
    """The number of all started examples, which makes the queue names of each example unique."""
    excused: Counter[str] = field(factory=Counter)
    """Counts late answers during host pauses by the kind of poll: WOKEN or TIMED."""
    standstills: int = 0
    """The number of examples that ended because the host paused for too long."""
    excused_alone: int = 0
    """The number of late answers that host pauses explain, in steps that ran alone. The axes of these steps are
    reported as not shown."""
    judged: Counter[str] = field(factory=Counter)
    """The counts of the steps that ran alone, which `counts` does not include."""
    axes: dict[str, str] = field(factory=dict)
    suspicions: list[ViolationError] = field(factory=list)
    """The violations of answers that arrived late."""
    failure: Failure | None = None
    ends_ns: int | None = None
    until_ns: int | None = None
    """When the run ends; None if a number of examples limits the run."""
    step_ms: float = inf
    """The time limit of a burst. After this time, the step publishes no further message."""
    watch: HostPauseWatch = field(factory=lambda: HostPauseWatch(sleep_s=WATCH_S))
    workers: Workers = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.workers = Workers(self.runtime)

    def __enter__(self) -> Self:
        self.watch.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self.workers.end()
        self.watch.__exit__(None, None, None)

    @property
    def is_over(self) -> bool:
        """Whether the time of the run is over; after a failure, whether the time for shrinking is over."""
        ends_ns = self.until_ns if self.ends_ns is None else self.ends_ns
        return ends_ns is not None and self.runtime.monotonic_ns() > ends_ns

    def goes_no_further(self, axis: str, why: str) -> None:
        """Record that a step of an axis was skipped or proves nothing."""
        self.axes[axis] = f"{self.axes.get(axis, NOT_SHOWN).partition(NO_FURTHER)[0]}{NO_FURTHER}{why})"

    def suspect(self, error: ViolationError) -> None:
        """Record a late answer; raises `error`, which is a violation, if the run had an earlier late answer.

        One unexplained late answer may be the host's fault; two late answers are the service's fault.
        """
        self.suspicions.append(error)
        if len(self.suspicions) > 1:
            raise error

    def failed(self, failure: Failure) -> None:
        """Keep a failure unless one with fewer steps is known."""
        if self.failure is None:
            self.ends_ns = self.runtime.monotonic_ns() + SHRINK_MS * 1_000_000
        if self.failure is None or len(failure.steps) <= len(self.failure.steps):
            self.failure = failure

    def report(self) -> KitReport:
        """The result so far."""
        left_out = tuple(sorted({can for can in NEEDED.values() if can} - self.abilities))
        verdict, why, prop = self._verdict(left_out)
        failure = self.failure or Failure(ValueError(), ())
        return KitReport(
            verdict,
            why,
            prop,
            failure.steps,
            dict(self.counts),
            dict(self.rule_counts),
            left_out,
            self.examples,
            self.excused_alone + self.excused.total(),
            len(self.suspicions),
            sum((self.judged + self.counts)[kind] for kind in (WOKEN, TIMED)) + len(self.suspicions),
            self.seed,
            dict(self.axes),
            failure.timeline,
            failure.code,
        )

    def _verdict(self, left_out: tuple[str, ...]) -> tuple[Verdict, str, str]:
        """The verdict, the reason, and the violated property."""
        if self.failure is not None:
            # If the subject raised an exception that is not a violation, the test ends with an error instead of a
            # failure.
            if not isinstance(self.failure.error, ViolationError):
                why = f"the service refused requests or was gone in step {self.failure.steps[-1]}: {self.failure.error}"
                return "unknown", f"{why}; look why it ended, for example in its log, and start it again", ""
            return "invalid", str(self.failure.error), self.failure.error.property
        why = "; ".join(self._open_questions(left_out))
        return "unknown" if why else "valid", why, ""

    def _open_questions(self, left_out: tuple[str, ...]) -> Iterator[str]:
        """Yield each reason why the run proves nothing, with advice for the user."""
        judged = self.judged + self.counts
        if self.standstills or any(late > EXCUSED_SHARE * (late + judged[kind]) for kind, late in self.excused.items()):
            yield (
                f"while the host paused, {self.excused[WOKEN]:,} wakes and {self.excused[TIMED]:,} deadlines were "
                f"late, next to {judged[WOKEN]:,} and {judged[TIMED]:,} that count, and {self.standstills:,} examples "
                f"ended; {LESS_BUSY}"
            )
        for why, what in ((PAUSED, "the host paused in each try of"), (TIME_OVER, "no time was left for")):
            unshown = [axis for axis, reached in self.axes.items() if reached == f"{NOT_SHOWN}{NO_FURTHER}{why})"]
            if unshown:
                yield f"{what} {', '.join(unshown)}; {LESS_BUSY if why == PAUSED else 'run it longer'}"
        if self.suspicions:
            yield (
                f"once, which can be the machine's doing: {self.suspicions[0]}; run it again: a second such answer in "
                "one run is a violation"
            )
        # With a time limit, the extreme steps may leave a slow service little time for random steps.
        is_in_time = self.until_ns is not None
        missing = [name for name, can in NEEDED.items() if not (judged if can or is_in_time else self.counts)[name]]
        missing = [name for name in missing if NEEDED[name] not in left_out]
        if missing:
            yield f"no poll was seen {', or '.join(missing)}; run more examples"


SETTINGS: Final = settings(max_examples=20, stateful_step_count=20)
"""The default settings of a test case, which runs for some seconds."""


def run_examples(machine: Callable[[], RuleBasedStateMachine], chosen: settings, seed: int) -> None:
    """Run examples until one fails, and raise the failure, or an error which says that the failure did not recur.

    The run keeps the failure.
    """
    plain = settings(
        chosen,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet if chosen.verbosity is Verbosity.normal else chosen.verbosity,
        suppress_health_check=[*HealthCheck],
    )

    @with_seed(seed)
    def example() -> RuleBasedStateMachine:
        return machine()

    run_state_machine_as_test(
        example,  # type: ignore[arg-type] # a function that makes a machine is a factory, says its docstring
        settings=plain,
    )


class MachineTestCase(unittest.TestCase):
    """A unittest test of one machine. Set `settings` in a derived class to choose the number of examples and steps."""

    machine: ClassVar[Any]
    """The class of the machine."""
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
