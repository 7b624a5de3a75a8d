"""A Hypothesis state machine whose rules are the possible steps for a subject, in any order.

    class Mine(longpoll.LongPollMachine):
        subject = MySubject

    TestMine = Mine.TestCase

No rule draws a random value inside its body, and preconditions depend only on the abilities of the subject. Therefore
the same seed makes the same choices, whatever the service does and however long it takes.

`example` performs the steps. `model` judges the answers.
"""

from __future__ import annotations

import functools
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, TypeAlias, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from longpoll_kit.errors import ServiceError, StandstillError, SubjectError, ViolationError
from longpoll_kit.example import BODY_MAX, HERD_MAX, QUEUE_COUNT, Example, Order, Place, Who
from longpoll_kit.history import History, history_for
from longpoll_kit.model import MS, Allowances
from longpoll_kit.run import PAUSED, SETTINGS, TIME_OVER, Failure, KitReport, MachineTestCase, Run, run_examples
from longpoll_kit.subject import LongPollSubject, wait_of
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.recoverable import FAULTS

Arguments = ParamSpec("Arguments")
Extreme: TypeAlias = "tuple[str, str, Callable[[LongPollMachine], None]]"
"""A step at the limits of an axis (such as the number of polls): the axis, the value that the step reaches, the step.

If the value is empty, the step returns the value that it has reached. Later steps of an axis reach larger values."""


def step(body: Callable[Concatenate[Any, Arguments], object]) -> Callable[Concatenate[Any, Arguments], None]:
    """Return a method that passes `body` to its machine, as `machine.do(name, arguments, body)`."""

    @functools.wraps(body)
    def wrapped(machine: Any, /, *nothing: Arguments.args, **arguments: Arguments.kwargs) -> None:
        machine.do(body.__name__, arguments, lambda: body(machine, *nothing, **arguments))

    # Hypothesis disables rules at random for whole examples, and identifies them by this name. With different names,
    # most examples would have only polls or only publishes; with one name, all rules stay enabled.
    wrapped.__name__ = "step"
    return wrapped


def example_step(method: Callable[..., object]) -> Callable[..., None]:
    """Turn a step of `Example` into a step of the machine, which gets the number of a queue instead of the queue."""

    @functools.wraps(method)
    def body(machine: Any, **arguments: Any) -> object:
        if "queue" in arguments:
            arguments["queue"] = machine.example.queues[arguments["queue"]]
        done: object = getattr(machine.example, method.__name__)(**arguments)
        return done

    return step(body)


def _can(ability: str) -> Callable[[Any], bool]:
    return lambda machine: ability in machine.example.abilities


LARGE_COUNT: Final = 24
"""How many messages of the largest size are published in a row."""
HERDS: Final = (12, 40)
"""Numbers of polls that wait at once, tried before the largest number, because few polls show most faults faster."""
BRINK_ROUNDS: Final = 5
WIDE_TEXT: Final = " \u00fc\u20ac\U0001f600 ".encode()
"""Characters of two, three and four bytes in UTF-8, with a space before and after them."""
CANCELS: Final = "without, before and with a message"
PUBLISHERS: Final = 8
SILENT_MAX: Final = 12
TURNS: Final = 4
"""How many polls wait when the kit tests that the longest waiting poll is served first."""
EXTREME_TRIES: Final = 2
"""How often an extreme step is tried if the host pauses during it."""
EXTREMES_SHARE: Final = 0.7
"""No extreme step begins after this fraction of a run's time, except the first step of each axis."""
STEP_SHARE: Final = 0.1
"""A step publishes no further message after this fraction of a run's time."""
SHARED_MS: Final = 500
"""If the shortest wait of a service is at least this long, all extreme steps share one example to save time."""
FEW_EXAMPLES: Final = 3
"""In a run with a time limit, the number of random examples between two checks of the clock."""
queues = st.integers(0, QUEUE_COUNT - 1)
gaps_us = st.sampled_from([0, 0, 100, 500, 1_000, 2_000, 5_000])
payloads = st.text("abc\N{SPACE}xyz0189", max_size=20).map(str.encode)


class LongPollMachine(RuleBasedStateMachine):
    """One example: steps on a new subject, judged by the model.

    Invariant: `_is_sound` is false from the start of a step to its successful end. After a step failed, the example
    does no further step.
    """

    kind: ClassVar[Callable[..., Example]] = Example
    """The class that performs the steps."""
    subject: ClassVar[Callable[[], LongPollSubject]]
    """Creates a subject for every example. Start a service that outlives an example in a module or a fixture."""
    wake_ms: ClassVar[int] = 500
    """The time limit for a wake: from the time when a message and a poll for it are both present to the answer."""
    late_ms: ClassVar[int] = 250
    """How late after its deadline a poll may be answered."""
    early_ms: ClassVar[int] = 2
    """How long before its deadline a poll may get an empty answer, because the service's clock may count milliseconds.
    """
    visible_ms: ClassVar[int] = 0
    """How long a message may stay invisible to polls after its publish was acknowledged."""
    long_ms: ClassVar[int] = 2_000
    """The timeout of most polls, nearly all of which are answered long before their deadlines."""
    short_ms: ClassVar[tuple[int, ...]] = (10, 50, 300)
    """The timeouts of polls that wait until their deadlines, from the most frequent to the rarest."""
    burst: ClassVar[int] = 1_100
    """How many messages the longest burst of a run publishes in a row."""
    body_max: ClassVar[int] = BODY_MAX
    """The size of the largest published message body in bytes; a service may declare a smaller limit."""
    polls_max: ClassVar[int] = HERD_MAX
    """The largest number of polls that wait at once in a run."""
    silence_ms: ClassVar[int] = 6_000
    """The length of the silence test, in which polls wait while nothing happens to their queues; 0 skips the test."""
    may_answer_early: ClassVar[bool] = False
    """Whether a poll may get an empty answer at any time, unless a message was present before the poll."""
    seed: ClassVar[int | None] = None
    """The seed of all random choices; with None each run makes different choices."""

    def __init_subclass__(cls) -> None:
        """Give each machine its own test case, because Hypothesis's test case loses a failure that does not recur."""
        names = {"machine": cls, "__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.TestCase"}
        cls.TestCase = type(f"{cls.__name__}.TestCase", (MachineTestCase,), names)  # type: ignore[assignment]

    def __init__(self, run: Run | None = None) -> None:
        """Begin an example of `run`, or an example without a run if `run` is None."""
        super().__init__()
        self._steps: list[str] = []
        self._calls: list[str] = []
        self._ends_run = run is None
        self.run = run or self._new_run(0).__enter__()
        self._is_sound = not self.run.is_over
        self.run.examples += self._is_sound and self.run.failure is None
        self.run.started += 1
        with self._kept("subject()"):
            self.example = self._new_example()
        self.run.abilities = self.example.tried

    def _new_example(self) -> Example:
        subject = self._new_subject()
        visible_ms = max(self.visible_ms, getattr(subject, "visible_ms", 0))
        allowances = Allowances(self.wake_ms, self.late_ms, self.early_ms, visible_ms, self.may_answer_early)
        told = history_for(self.run.history, self.run.runtime, subject, allowances)
        return self.kind(
            self.run.runtime,
            subject,
            self.run.watch,
            allowances,
            f"{self.run.name}-{self.run.started}",
            self.run.workers,
            self.run.suspect,
            self.long_ms,
            self.short_ms[0],
            told,
            self.run.counts,
            self.run.step_ms,
        )

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
        cls,
        chosen: settings = SETTINGS,
        seed: int | None = None,
        *,
        seconds: float | None = None,
        history: History | None = None,
        example_done: Callable[[int], None] = lambda _done: None,
    ) -> KitReport:
        """Run examples until one fails; return violations in the report, and raise the subject's exceptions.

        Args:
            chosen: The number of examples and steps.
            seed: The seed of all random choices; by default the machine's seed, or a random one.
            seconds: Stop after this time, whatever the number of examples in `chosen`; a started step ends first.
                On a slow service or a busy host, fewer extreme steps fit, and the report lists how far each axis went.
            history: A `longpoll.HistoryWriter` on a `RealRuntime`, which records every publish and poll for
                `longpoll.judge`; only for a subject with the semantics `offsets`.
            example_done: Called after each example with the number of examples so far.

        Raises:
            SubjectError: The subject is invalid, or the judge does not support it.
        """
        seed = cls.seed if seed is None else seed
        seed = secrets.randbits(32) if seed is None else seed
        with cls._new_run(seed, history) as run:
            if seconds is not None:
                run.until_ns = run.runtime.monotonic_ns() + int(seconds * 1e9)
                run.step_ms = seconds * 1_000 * STEP_SHARE
            try:
                cls._run_short(run)
                run.judged.update(run.counts)
                run.excused_alone, run.excused = run.excused.total(), Counter()
                run.examples = 0
                run.counts.clear()
                run.rule_counts.clear()
                run.example_done = example_done
                cls._run_random(run, chosen)
            except FAULTS:
                # The run keeps the exception of a step, because Hypothesis may only report that the exception did not
                # recur.
                if run.failure is None:
                    raise
        is_told = (ViolationError, ServiceError) if run.judged or run.counts else (ViolationError,)
        if run.failure is not None and not isinstance(run.failure.error, is_told):
            run.failure.error.add_note(f"raised in step {run.failure.steps[-1]}; the example:\n{run.failure.code}")
            raise run.failure.error from None
        return run.report()

    @classmethod
    def _run_random(cls, run: Run, chosen: settings) -> None:
        if run.until_ns is None:
            run_examples(lambda: cls(run), chosen, run.seed)
            return
        seed = run.seed
        while not run.is_over:
            run_examples(lambda: cls(run), settings(chosen, max_examples=FEW_EXAMPLES), seed)
            seed += 1

    @classmethod
    def _run_short(cls, run: Run) -> None:
        """Run each kind of step alone, and the extreme steps of each axis. A failure of one step needs no shrinking."""
        quiet = cls(run)
        subject, silence_ms = quiet.example.subject, cls.silence_ms
        is_done = False
        try:
            if silence_ms:
                with quiet._kept(f"silence(timeout_ms={silence_ms})"):
                    quiet.example.begin_silence(silence_ms)
            # Each example ends with a wait of the shortest timeout. Share one example if this wait is long, as with
            # timeouts in whole seconds.
            shared = cls(run) if wait_of(subject, 1) >= SHARED_MS else None
            try:
                cls._run_extremes(run, quiet.example, shared)
            finally:
                if shared is not None:
                    shared.teardown()
            if silence_ms:
                quiet.silence(timeout_ms=silence_ms)
                run.axes["silence"] = f"{wait_of(subject, silence_ms):,} ms"
            is_done = True
        finally:
            # After a failure, do not wait for the end of the silence test.
            quiet._is_sound = quiet._is_sound and is_done
            quiet.teardown()

    @classmethod
    def _run_extremes(cls, run: Run, example: Example, shared: LongPollMachine | None) -> None:
        """Run each extreme step that fits into the remaining time. Repeat a step if the host paused during it."""
        begun_ns = run.runtime.monotonic_ns()
        whole_ns = inf if run.until_ns is None else run.until_ns - begun_ns
        spent: dict[object, tuple[int, float]] = {}
        for axis, reached, body in cls._extremes(example.subject, example.tried):
            words = body.keywords if isinstance(body, partial) else {}
            kind, count = (axis, len(words)), words.get("count", 1)
            wait_ns = wait_of(example.subject, words.get("timeout_ms", 0)) * MS
            ends_ns = begun_ns + whole_ns * (EXTREMES_SHARE if axis in run.axes else 1)
            for _ in range(EXTREME_TRIES):
                now_ns, before = run.runtime.monotonic_ns(), cls._excused(run, shared)
                smaller, took_ns = spent.get(kind, (count, 0.0))
                if now_ns + wait_ns + (took_ns - wait_ns) * (count / smaller) ** 2 > ends_ns:
                    run.goes_no_further(axis, TIME_OVER)
                    break
                done = cls._run_alone(run, body, shared)
                spent[kind] = count, run.runtime.monotonic_ns() - now_ns
                if cls._excused(run, shared) == before:
                    # A step without a result did not run, so its axis does not count as tested.
                    run.axes |= {axis: reached or done} if reached or done else {}
                    break
            else:
                run.goes_no_further(axis, PAUSED)

    @classmethod
    def _extremes(cls, subject: LongPollSubject, abilities: frozenset[str]) -> Iterator[Extreme]:
        """Yield the extreme steps: the smallest value of each axis first, and the slowest steps last."""
        first: dict[str, Any] = {"queue": 0, "payload": b""}
        yield "queues", str(QUEUE_COUNT), partial(cls.wake, **first, count=2)
        yield "text", "beyond ASCII", partial(cls.wake, queue=0, payload=WIDE_TEXT, count=1)
        for who in get_args(Who):
            yield f"a stopped {who}", "", partial(cls.preempt, **first, who=who)
        yield "races", "at the same time", partial(cls.cross, **first, rounds=4, gap_us=0)
        if subject.semantics != "newest":
            yield "publishers", f"{PUBLISHERS} at once", partial(cls.together, queue=0, count=PUBLISHERS)
        if getattr(subject, "serves_longest_waiting", False):
            yield "turns", f"{TURNS} polls", partial(cls.take_turns, queue=0, count=TURNS)
        waits_ms = [0, 1, *([2 * cls.late_ms] * (2 * cls.late_ms <= cls.long_ms)), *cls.short_ms]
        for wait_ms in sorted({wait_of(subject, each) for each in waits_ms}):
            yield "waits", f"up to {wait_ms:,} ms", partial(cls.wait, queue=0, timeout_ms=wait_ms)
        yield "deadlines", f"{BRINK_ROUNDS} messages", partial(cls.brink, **first, rounds=BRINK_ROUNDS, timeout_ms=50)
        if subject.semantics != "consuming":
            yield "positions", "behind the end", partial(cls.beyond, queue=0)
        polls_max = min(cls.polls_max, getattr(subject, "polls_max", None) or cls.polls_max)
        least, *herds = sorted({count for count in HERDS if count < polls_max} | {polls_max})
        yield from cls._herd_of(least)
        silent = min(SILENT_MAX, polls_max)
        yield "clients that stop polling", f"{silent} at once", partial(cls.fall_silent, queue=0, count=silent)
        again = f"after {subject.redelivery_ms or 0:,} ms"
        optional: list[tuple[str, Extreme]] = [
            ("acknowledge", ("redelivery", again, partial(cls.redeliver, **first))),
            *(("cancel", ("cancelled polls", CANCELS, partial(cls.cancel, **first, order=order, gap_us=0)))
              for order in get_args(Order)),
            ("start_poll_of", ("queues of a poll", str(QUEUE_COUNT), partial(cls.several, **first))),
            *(("delete_queue", ("deletion", "of a queue with a poll", partial(cls.delete_queue, queue=queue)))
              for queue in range(QUEUE_COUNT)),
            ("restart", ("restart", "of the service", cls.restart)),
        ]  # fmt: skip
        yield from (extreme for ability, extreme in optional if ability in abilities)
        size = min(cls.body_max, getattr(subject, "body_max", None) or cls.body_max)
        yield "bodies", "", partial(cls.send_burst, queue=0, count=LARGE_COUNT, size=size)
        yield "burst", "", partial(cls.send_burst, queue=0, count=cls.burst, size=0)
        for count in herds:
            yield from cls._herd_of(count)

    @classmethod
    def _herd_of(cls, count: int) -> Iterator[Extreme]:
        ends_ms = min(2 * cls.late_ms, cls.long_ms)
        ended = partial(cls.herd_ends, queue=0, count=count, timeout_ms=ends_ms)
        yield "polls at once", f"{count:,} woken", partial(cls.herd, queue=0, count=count)
        yield "polls at once", f"{count:,} woken, {count:,} to their deadlines", ended

    @classmethod
    def _run_alone(
        cls, run: Run, body: Callable[[LongPollMachine], None], shared: LongPollMachine | None = None
    ) -> str:
        """Run one step, in its own example or a shared one; return the result of the step as text."""
        machine, said = shared or cls(run), ""
        try:
            body(machine)
            said = machine.said  # Read the result before the example ends, because the end is a step too.
        except ViolationError:
            if shared is not None and shared.said:
                # Try the step in a new example, which gives a shorter failure if the step fails alone.
                cls._run_alone(run, body)
            raise
        finally:
            if shared is None:
                machine.teardown()
        return said.partition(": ")[2]

    @staticmethod
    def _excused(run: Run, shared: LongPollMachine | None) -> int:
        """Return the number of late answers so far that host pauses explain, including those of a shared example."""
        return run.excused.total() + (shared.example.excused.total() if shared is not None else 0)

    @property
    def said(self) -> str:
        """The last completed step with its result as text; empty before the first step."""
        return self._steps[-1] if self._steps else ""

    def do(self, name: str, arguments: Mapping[str, Any], body: Callable[[], object]) -> None:
        """Do one step, unless an earlier step failed or the run's time is over."""
        # The steps `end` and `silence` are needed because polls still wait.
        is_needed = name in {"end", "silence"} and self.run.failure is None
        if not self._is_sound or (self.run.is_over and not is_needed):
            return
        self._is_sound = False
        self.run.rule_counts[name] += self.run.failure is None
        call = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        try:
            with self._kept(call):
                result = body()
        except StandstillError:
            self.run.standstills += 1
            return
        self._steps.append(call if result is None else f"{call}: {result}")
        self._calls.append(call)
        self._is_sound = True

    @contextmanager
    def _kept(self, call: str) -> Iterator[None]:
        """Record an exception of this step in the run."""
        try:
            yield
        except StandstillError:
            raise
        except FAULTS as raised:
            name, error = type(self).__name__, raised
            made = "" if call == "subject()" else self.example.timeline()
            if made and isinstance(error, getattr(self.example.subject, "gone", ())):
                error = ServiceError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            calls = [*self._calls, call] if made and call not in {"end()", "close()"} else self._calls
            code = "\n".join([f"machine = {name}()", *(f"machine.{each}" for each in calls), "machine.teardown()"])
            # After the service is gone, `close` and a new subject fail too, and must not replace the first failure.
            if (made and call != "close()") or self.run.failure is None:
                self.run.failed(Failure(error, (*self._steps, call), tuple(made), code))
            if error is not raised:
                raise error from raised
            raise

    def teardown(self) -> None:
        """Wait for all polls, read every queue to its end, and close the subject."""
        try:
            self.do("end", {}, self.example.end)
        finally:
            self.run.excused.update(self.example.excused)
            try:
                with self._kept("close()"):
                    self.example.close()
            finally:
                if self._ends_run:
                    self.run.__exit__()
                self.run.example_done(self.run.examples)

    together = example_step(Example.together)
    take_turns = example_step(Example.take_turns)
    silence = example_step(Example.silence)
    herd = example_step(Example.herd)
    herd_ends = example_step(Example.herd_ends)
    fall_silent = example_step(Example.fall_silent)
    beyond = example_step(Example.beyond)
    brink = example_step(Example.brink)
    redeliver = example_step(Example.redeliver)
    send_burst = example_step(Example.send_burst)
    delete_queue = example_step(Example.delete_queue)

    @step
    def wait(self, queue: int, timeout_ms: int) -> str:
        """Let a poll with any timeout wait until its deadline while another queue gets a message."""
        queues = self.example.queues
        return self.example.expire(queues[queue], timeout_ms, other=queues[queue - 1])

    publish = rule(queue=queues, payload=payloads, count=st.sampled_from([1, 1, 2, 5]))(example_step(Example.publish))
    wake = rule(queue=queues, payload=payloads, count=st.sampled_from([1, 1, 2, 4]))(example_step(Example.wake))
    cross = rule(queue=queues, payload=payloads, rounds=st.sampled_from([1, 4, 16]), gap_us=gaps_us)(
        example_step(Example.cross)
    )
    preempt = rule(queue=queues, payload=payloads, who=st.sampled_from(get_args(Who)))(example_step(Example.preempt))
    several = precondition(_can("start_poll_of"))(
        rule(queue=queues, payload=payloads)(example_step(Example.several)),
    )
    cancel = precondition(_can("cancel"))(
        rule(queue=queues, payload=payloads, order=st.sampled_from(get_args(Order)), gap_us=gaps_us)(
            example_step(Example.cancel)
        )
    )
    restart = precondition(_can("restart"))(rule()(example_step(Example.restart)))

    @rule(queue=queues, place=st.sampled_from(["end", "end", "start", "known"]), count=st.sampled_from([1, 1, 2, 4]))
    @step
    def poll(self, queue: int, place: Place, count: int) -> str:
        """Send `count` polls at once, and leave the unanswered polls in flight."""
        return self.example.poll(self.example.queues[queue], place, self.long_ms, count)

    @rule(queue=queues, which=st.sampled_from([0, 0, 0, 0, 1, 1, 1, 2]))
    @step
    def expire(self, queue: int, which: int) -> str:
        """Let a poll wait until its deadline."""
        return self.example.expire(self.example.queues[queue], self.short_ms[which % len(self.short_ms)])
