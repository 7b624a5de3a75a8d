"""What the examples of one run share, and what came of them.

Leaves out the rules (`machine`) and how Hypothesis is called (`testcase`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, Self

from attrs import define, field, frozen

from longpoll_kit.errors import ViolationError
from longpoll_kit.example import NEEDED
from longpoll_kit.polls import Workers
from longpoll_kit.told import History
from longpoll_runtime import Runtime
from longpoll_runtime.stalls import StallWatch

Verdict = Literal["valid", "invalid", "unknown"]
WATCH_S: Final = 0.005
"""How often the machine is looked at; what is allowed is far more."""
SHRINK_MS: Final = 5_000
"""How long a failing example is made smaller."""


@frozen
class KitReport:
    """What came of a run."""

    verdict: Verdict
    """unknown: nothing wrong was seen, but neither was everything that there is to see."""
    why: str
    """What was violated, or what was not seen; empty for valid."""
    property: str
    """The violated property; empty without one."""
    steps: tuple[str, ...]
    """Of the shortest example that failed."""
    counts: Mapping[str, int]
    """How often each kind of poll was seen."""
    left_out: tuple[str, ...]
    """What the subject cannot do, and was not asked to."""
    examples: int
    excused: int
    """Examples that ended because the machine stood still."""
    seed: int

    def __str__(self) -> str:
        seen = ", ".join(f"{self.counts[name]} {name}" for name in NEEDED if self.counts.get(name))
        lines = [f"{self.verdict}: {self.why}" if self.why else self.verdict]
        lines += [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        lines += [f"examples: {self.examples}; polls: {seen or 'none'}"]
        lines += [f"not tried, for want of the method: {', '.join(self.left_out)}"] if self.left_out else []
        lines += [f"the machine stood still in {self.excused} examples"] if self.excused else []
        return "\n".join(lines)


@define(eq=False)
class Failure:
    """A violation and the steps that led to it."""

    error: ViolationError
    steps: tuple[str, ...]


@define(eq=False)
class Run:
    """What the examples of one run share; a context manager that watches the machine meanwhile.

    Invariant: `failure` is the one with the fewest steps among those seen; once it is set, `ends_ns` is set too.
    """

    runtime: Runtime
    name: str
    seed: int = 0
    history: History | None = None
    """What is told of every example; None where nobody is."""
    counts: Counter[str] = field(factory=Counter)
    abilities: frozenset[str] = frozenset()
    examples: int = 0
    """Up to the first failure."""
    started: int = 0
    """All of them, so that no two have the same queues."""
    excused: int = 0
    suspicions: list[ViolationError] = field(factory=list)
    """What was late, and came after all."""
    failure: Failure | None = None
    ends_ns: int | None = None
    watch: StallWatch = field(factory=lambda: StallWatch(sleep_s=WATCH_S), init=False)
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
        """Whether there is a failure and the time to make it smaller is up."""
        return self.ends_ns is not None and self.runtime.monotonic_ns() > self.ends_ns

    def suspect(self, error: ViolationError) -> None:
        """Note that something was late; raises it when it is not the first of the run.

        A delay that nobody saw coming from the machine may still be the machine's; two are the service's.
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
        """What came of it so far."""
        left_out = tuple(sorted({can for can in NEEDED.values() if can} - self.abilities))
        verdict, why, prop = self._verdict(left_out)
        steps = self.failure.steps if self.failure else ()
        counts = dict(self.counts)
        return KitReport(verdict, why, prop, steps, counts, left_out, self.examples, self.excused, self.seed)

    def _verdict(self, left_out: tuple[str, ...]) -> tuple[Verdict, str, str]:
        """The verdict, why, and the violated property."""
        if self.failure is not None:
            return "invalid", str(self.failure.error), self.failure.error.property
        if self.excused:
            return "unknown", "the machine stood still too long to tell; run again on one with more room", ""
        if self.suspicions:
            return "unknown", f"once, which can be the machine's doing: {self.suspicions[0]}", ""
        missing = [name for name, can in NEEDED.items() if not self.counts[name] and can not in left_out]
        if missing:
            return "unknown", f"no poll was seen {', or '.join(missing)}; run more examples", ""
        return "valid", "", ""
