"""The rules: what may be done to a subject, in any order, as a Hypothesis state machine to derive from.

    class Mine(longpoll.LongPollMachine):
        subject = MySubject

    TestMine = Mine.TestCase

No rule draws inside its body, and none but those that a subject cannot do has a precondition, so which choices there
are never depends on time: a run with the same seed makes the same choices, whatever the service does.

Leaves out how a step is done and judged (`example`, `model`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from longpoll_kit.errors import StandstillError, SubjectError, ViolationError
from longpoll_kit.example import QUEUE_COUNT, Example, Order, Place, Who
from longpoll_kit.model import Allowances
from longpoll_kit.run import Failure, KitReport, Run
from longpoll_kit.steps import step
from longpoll_kit.subject import LongPollSubject
from longpoll_kit.testcase import SETTINGS, TestCases, run_examples
from longpoll_kit.told import History, told_to
from longpoll_runtime.real import RealRuntime

queues = st.integers(0, QUEUE_COUNT - 1)
gaps_us = st.sampled_from([0, 0, 100, 500, 1_000, 2_000, 5_000])
payloads = st.text("abc\N{SPACE}xyz0189", max_size=20).map(str.encode)


class LongPollMachine(RuleBasedStateMachine):
    """One example: steps against a subject of its own, judged by the model.

    Invariant: `_is_sound` is false from the start of a step to its good end; what is not sound is not looked at again.
    """

    subject: ClassVar[Callable[[], LongPollSubject]]
    """What makes a subject; called for every example. A service that lives longer stands in a module or a fixture."""
    wake_ms: ClassVar[int] = 500
    """From the moment a message and a poll that wants it are both there to the poll's answer."""
    late_ms: ClassVar[int] = 250
    """From a poll's deadline to its answer."""
    early_ms: ClassVar[int] = 2
    """How long before its deadline a poll may be answered with nothing, for clocks that count milliseconds."""
    visible_ms: ClassVar[int] = 0
    """From a publish's acknowledgement until a poll must find its message."""
    long_ms: ClassVar[int] = 2_000
    """How long most polls may wait; nearly all of them are answered long before."""
    short_ms: ClassVar[tuple[int, ...]] = (10, 50, 300)
    """How long polls may wait that are left to their deadlines; the last are the fewest."""
    seed: ClassVar[int | None] = None
    """The choices are made from it; None makes others each time."""

    TestCase = TestCases()  # type: ignore[assignment] # Hypothesis's own would lose what comes once

    def __init__(self, run: Run | None = None) -> None:
        """Begin an example, of a run or by itself."""
        super().__init__()
        subject = self._new_subject()
        self._ends_run = run is None
        self.run = run or self._new_run(0).__enter__()
        self.run.examples += self.run.failure is None
        self.run.started += 1
        self._steps: list[str] = []
        self._is_sound = True
        allowances = Allowances(self.wake_ms, self.late_ms, self.early_ms, self.visible_ms)
        told = told_to(self.run.history, self.run.runtime, subject, allowances)
        self.example = Example(
            self.run.runtime,
            subject,
            self.run.watch,
            allowances,
            f"{self.run.name}-{self.run.started}",
            self.run.workers,
            self.run.suspect,
            self.long_ms,
            self.short_ms[0],
            self.run.counts,
            told,
        )
        self.run.abilities = self.example.abilities

    @classmethod
    def _new_subject(cls) -> LongPollSubject:
        make = getattr(cls, "subject", None)
        if not callable(make):
            raise SubjectError(
                f"{cls.__name__}.subject is not set; set it to a function that returns a longpoll.LongPollSubject"
            )
        made: Any = make()
        subject: LongPollSubject = made
        return subject

    @classmethod
    def _new_run(cls, seed: int, history: History | None = None) -> Run:
        name = f"kit-{secrets.randbits(48):012x}"
        return Run(RealRuntime(), name, seed, history)

    @classmethod
    def exercise(
        cls, chosen: settings = SETTINGS, seed: int | None = None, *, history: History | None = None
    ) -> KitReport:
        """Run examples until one fails; a violation does not raise, what the subject itself raises does.

        Args:
            chosen: How many examples of how many steps.
            seed: What the choices are made from; None takes the machine's, or any.
            history: A `longpoll.HistoryWriter` on a `RealRuntime`, which is told of every publish and poll, for
                `longpoll.judge`; only of a subject whose semantics are `offsets`.

        Raises:
            SubjectError: the subject is not one, or the judge's contract says nothing of it.
        """
        seed = cls.seed if seed is None else seed
        seed = secrets.randbits(32) if seed is None else seed
        with cls._new_run(seed, history) as run:
            run_examples(lambda: cls(run), run, chosen)
        return run.report()

    def do(self, name: str, arguments: Mapping[str, Any], body: Callable[[], object]) -> None:
        """Do one step."""
        if self.run.is_over or not self._is_sound:
            return
        self._is_sound = False
        call = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        try:
            result = body()
        except StandstillError:
            self.run.excused += 1
            return
        except ViolationError as error:
            self.run.failed(Failure(error, (*self._steps, call)))
            raise
        self._steps.append(call if result is None else f"{call}: {result}")
        self._is_sound = True

    def teardown(self) -> None:
        """Have everything answered and read, and end the subject."""
        try:
            self.do("end", {}, self.example.end)
        finally:
            self.example.close()
            if self._ends_run:
                self.run.__exit__()

    # -- rules -------------------------------------------------------------------------------------------------------

    @rule(queue=queues, payload=payloads, count=st.sampled_from([1, 1, 2, 5]))
    @step
    def publish(self, queue: int, payload: bytes, count: int) -> str:
        """Publish messages."""
        return self.example.publish(self.example.queues[queue], payload, count)

    @rule(queue=queues, place=st.sampled_from(["end", "end", "start", "known"]), count=st.sampled_from([1, 1, 2, 4]))
    @step
    def poll(self, queue: int, place: Place, count: int) -> str:
        """Poll, one or several at once, and leave those under way that find nothing."""
        return self.example.poll(self.example.queues[queue], place, self.long_ms, count)

    @rule(queue=queues, payload=payloads, count=st.sampled_from([1, 1, 2, 4]))
    @step
    def wake(self, queue: int, payload: bytes, count: int) -> str:
        """Publish when polls have waited for some time."""
        return self.example.wake(self.example.queues[queue], payload, count)

    @rule(queue=queues, which=st.sampled_from([0, 0, 0, 0, 1, 1, 1, 2]))
    @step
    def expire(self, queue: int, which: int) -> str:
        """Let a poll wait until its deadline."""
        return self.example.expire(self.example.queues[queue], self.short_ms[which % len(self.short_ms)])

    @rule(queue=queues, payload=payloads, rounds=st.sampled_from([1, 4, 16]), gap_us=gaps_us)
    @step
    def cross(self, queue: int, payload: bytes, rounds: int, gap_us: int) -> str:
        """Poll and publish at the same time."""
        return self.example.cross(self.example.queues[queue], payload, rounds, gap_us)

    @rule(queue=queues, payload=payloads, who=st.sampled_from(["poll", "publish"]))
    @step
    def preempt(self, queue: int, payload: bytes, who: Who) -> str:
        """Poll and publish at the same time, one stopped between any two lines of a service in this process."""
        return self.example.preempt(self.example.queues[queue], payload, who)

    @precondition(lambda self: "cancel" in self.example.abilities)
    @rule(
        queue=queues,
        payload=payloads,
        order=st.sampled_from(["cancel only", "cancel first", "together"]),
        gap_us=gaps_us,
    )
    @step
    def cancel(self, queue: int, payload: bytes, order: Order, gap_us: int) -> str:
        """Cancel a poll that waits."""
        return self.example.cancel(self.example.queues[queue], payload, order, gap_us)

    @precondition(lambda self: "restart" in self.example.abilities)
    @rule()
    @step
    def restart(self) -> str:
        """Restart the service, with polls under way."""
        return self.example.restart()
