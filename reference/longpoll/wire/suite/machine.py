"""The rules: the possible steps for a served broker, in any order, as a Hypothesis state machine.

No rule has a precondition or draws inside its body, so the choices never depend on time: the same seed makes the same
choices, whatever the broker does. An inapplicable rule does nothing.

How a step is performed and judged: `driver`, `model`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, Final

import attrs
from attrs import define, field, frozen
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from longpoll.wire.load import LONG_MS
from longpoll.wire.suite.driver import GROUP_COUNT, QUEUE_COUNTS, Driver
from longpoll.wire.suite.example import Example, Links
from longpoll.wire.suite.model import Expectations, Queue, ViolationError, Wanted
from longpoll.wire.suite.requests import BAD_REQUESTS, FORMS, MALFORMED, Bad, Form, PullTerms
from longpoll.wire.suite.subject import Subject
from longpoll_client.errors import UnreachableError
from longpoll_kit.machine import step
from longpoll_runtime import Runtime
from longpoll_runtime.host_pauses import HostPauseWatch
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

LINK_COUNT: Final = 4
PULL_COUNT_MAX: Final = 24
"""Most pulls held at once in one example."""
SHORT_MS: Final = (50, 150, 400)
EXPIRE_MS: Final = (10, 30, 70)
SHRINK_NS: Final = 30 * 10**9
"""How long a failing example is shrunk."""
SHRINK_PATIENCE_MS: Final = 1_000
"""Once the failure is certain, its smaller variants are waited for less long."""

MISSING: Final = "nothing to do"

links = st.integers(0, LINK_COUNT - 1)
queues = st.sampled_from([(topic, queue_id) for topic, count in enumerate(QUEUE_COUNTS) for queue_id in range(count)])
groups = st.integers(0, GROUP_COUNT - 1)
forms = st.sampled_from(FORMS)
tags = st.sampled_from(["", "a", "b", "c", "AaAa", "BBBB", "\u00fc\u20ac\U0001f600"])
expressions = st.sampled_from(["*", "a", "a || b", "AaAa", "c||BBBB", "\u00fc\u20ac\U0001f600||a"]).map(Wanted)
bodies = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"", b"\x00" * 64, bytes(range(256)) * 4, b"long " * 1_000])
)
extra_properties = st.sampled_from(
    [
        {},
        {"KEYS": "k1 k2"},
        {"KEYS": "k", "WAIT": "false", "empty": ""},
        {"\u00d6\u00e4": "\u00fc \u20ac \U0001f600", "UNIQ_KEY": "7F0000010000"},
    ]
)
batches = st.lists(st.tuples(st.binary(max_size=12), tags), min_size=2, max_size=20)
places = st.sampled_from(["end", "next", "start", "middle", "last", "negative", "beyond"])
hold_places = st.sampled_from(["end", "end", "end", "next", "last"])


def properties_of(tag: str, extra: Mapping[str, str]) -> dict[str, str]:
    """A message's properties."""
    return ({"TAGS": tag} if tag else {}) | dict(extra)


@frozen
class Failure:
    """A violation, and the steps that led to it."""

    text: str
    steps: tuple[str, ...]
    is_gone: bool = False
    """The broker's address is unreachable, for an unknown reason."""


@define(eq=False)
class Run:
    """State shared by the examples of one run.

    Invariant: `failure` has the fewest steps of those seen; once it is set, `ends_ns` is set too.
    """

    runtime: Runtime
    subject: Subject
    name: str
    """Unique among all runs against this broker."""
    links: Links
    expectations: Expectations
    example_done: Callable[[int], None]
    examples: int = 0
    """Examples up to the first failure."""
    started: int = 0
    """All examples, so that no two have the same topics."""
    rule_counts: Counter[str] = field(factory=Counter)
    failure: Failure | None = None
    ends_ns: int | None = None
    """When shrinking ends."""

    @property
    def is_over(self) -> bool:
        """Whether there is a failure and the time for shrinking is over."""
        return self.ends_ns is not None and self.runtime.monotonic_ns() > self.ends_ns

    def failed(self, failure: Failure) -> None:
        """Keep a failure unless one with fewer steps is known; of equals the later one is simpler."""
        if self.failure is None:
            self.ends_ns = self.runtime.monotonic_ns() + SHRINK_NS
            patience_ms = min(self.expectations.patience_ms, SHRINK_PATIENCE_MS)
            self.expectations = attrs.evolve(self.expectations, patience_ms=patience_ms)
        if self.failure is None or len(failure.steps) <= len(self.failure.steps):
            self.failure = failure


def new_name(runtime: Runtime) -> str:
    """A name that no other run against any broker has."""
    return f"served-{runtime.unix_ms():x}-{random.SystemRandom().getrandbits(24):06x}"


class ServedMachine(RuleBasedStateMachine):
    """One example: steps over real connections, judged by the model.

    It can test a running broker by itself: `class Mine(ServedMachine): subject = RemoteSubject(("host", 10911))`, and
    then `TestMine = Mine.TestCase`.

    Invariant: `is_sound` is false from the start of a step to its successful end; an unsound example is not checked
    again.
    """

    subject: ClassVar[Subject | None] = None
    """The broker of a machine that runs by itself."""

    def __init__(self, run: Run | None = None) -> None:
        """Begin an example of a run. None starts a standalone example, or raises ConfigError if no broker is named."""
        super().__init__()
        self._own = ExitStack()
        if run is None:
            run = self._run_alone()
        self.run = run
        run.examples += run.failure is None
        run.started += 1
        self.driver = Driver(
            Example(run.runtime, run.subject, run.links, run.expectations, f"{run.name}-{run.started}")
        )
        self.steps: list[str] = []
        self.is_sound = False

    def _run_alone(self) -> Run:
        """A run of one example, which `teardown` ends."""
        subject = self.subject
        if subject is None:
            raise ConfigError(
                f"{type(self).__name__} names no broker: write `subject = RemoteSubject((HOST, PORT))` in the class"
            )
        runtime, watch = RealRuntime(), self._own.enter_context(HostPauseWatch())
        links = Links(runtime, subject, watch.stalled_ms)
        self._own.callback(links.drop_all)
        return Run(runtime, subject, new_name(runtime), links, subject.expectations, lambda _done: None)

    def do(self, name: str, arguments: Mapping[str, Any], body: Callable[[], object]) -> None:
        """Do one step."""
        run = self.run
        if run.is_over:
            return
        self.is_sound = False
        run.rule_counts[name] += run.failure is None
        call = f"{name}({', '.join(f'{key}={_short(value)}' for key, value in arguments.items())})"
        try:
            result = body()
            self.driver.pulls.judge_arrived()
        except (ViolationError, UnreachableError) as error:
            is_gone = isinstance(error, UnreachableError) or self._is_gone()
            run.failed(Failure(str(error), (*self.steps, f"{call} -> {error}"), is_gone))
            if is_gone:
                # Without the broker every variant fails, and none shows why.
                run.ends_ns = run.runtime.monotonic_ns() - 1
            raise
        self.steps.append(call if result is None else f"{call} -> {result}")
        self.is_sound = True

    def _is_gone(self) -> bool:
        """Whether a connection was closed and no other can be opened: the broker is gone, which is not a fault."""
        if not any(link.closed for link in self.run.links.open.values()):
            return False
        try:
            self.run.links.make(-1).close()
        except UnreachableError:
            return True
        return False

    def teardown(self) -> None:
        """End the example normally, or drop connections with unknown requests in flight."""
        with self._own:
            if self.is_sound:
                self.do("end", {}, self.driver.end)
            if not self.is_sound:
                self.run.links.drop_all()
            self.run.example_done(self.run.examples)

    @initialize()
    @step
    def begin(self) -> None:
        """Create topics and groups."""
        self.driver.begin()

    # -- sends -------------------------------------------------------------------------------------------------------

    @rule(
        link=links, queue=queues, body=bodies, tag=tags, extra=extra_properties, form=forms,
        anywhere=st.sampled_from([False] * 7 + [True]),
    )  # fmt: skip
    @step
    def send(
        self,
        *,
        link: int,
        queue: tuple[int, int],
        body: bytes,
        tag: str,
        extra: Mapping[str, str],
        form: Form,
        anywhere: bool,
    ) -> str:
        """Send one message, to a queue or to one of its topic that the broker chooses."""
        properties = properties_of(tag, extra)
        if anywhere:
            return self.driver.sends.send_anywhere(link, queue[0], body, properties)
        return self.driver.sends.send(link, self._queue(queue), body, properties, form)

    @rule(link=links, queue=queues, messages=batches, as_batch=st.booleans())
    @step
    def send_many(self, *, link: int, queue: tuple[int, int], messages: list[tuple[bytes, str]], as_batch: bool) -> str:
        """Send many messages, one after another without waiting, or as one batch."""
        sent = [(bytes([number]) + body, properties_of(tag, {})) for number, (body, tag) in enumerate(messages)]
        if as_batch:
            return self.driver.sends.send_batch(link, self._queue(queue), sent)
        return self.driver.sends.send_many(link, self._queue(queue), sent)

    @rule(link=links, queue=queues, tag=tags, form=forms)
    @step
    def send_one_way(self, *, link: int, queue: tuple[int, int], tag: str, form: Form) -> str:
        """Send one message that gets no reply."""
        return self.driver.sends.send_one_way(link, self._queue(queue), b"one way", properties_of(tag, {}), form)

    # -- pulls -------------------------------------------------------------------------------------------------------

    @rule(
        link=links, queue=queues, place=places, wanted=expressions, count_max=st.sampled_from([32, 1, 3, 0]),
        group=groups, commit=st.booleans(), form=forms,
    )  # fmt: skip
    @step
    def pull(
        self,
        *,
        link: int,
        queue: tuple[int, int],
        place: str,
        wanted: Wanted,
        count_max: int,
        group: int,
        commit: bool,
        form: Form,
    ) -> str:
        """Pull without holding."""
        chosen = self._queue(queue)
        offset = self._offset(link, chosen, place)
        commit_offset = max(offset, 0) if commit else None
        terms = PullTerms(count_max=count_max, group=group, commit_offset=commit_offset, form=form)
        offset_next = self.driver.pulls.pull(link, chosen, offset, wanted, terms)
        return f"from {offset}, next {offset_next}"

    @rule(
        link=links, queue=queues, place=hold_places, wanted=expressions, group=groups, form=forms,
        timeout_ms=st.sampled_from([LONG_MS, LONG_MS, *SHORT_MS]),
    )  # fmt: skip
    @step
    def hold(
        self, *, link: int, queue: tuple[int, int], place: str, wanted: Wanted, group: int, form: Form, timeout_ms: int
    ) -> str:
        """Pull, to be held if there is nothing."""
        if len(self.driver.pulls.asked) >= PULL_COUNT_MAX:
            return MISSING
        chosen = self._queue(queue)
        offset = self._offset(link, chosen, place)
        terms = PullTerms(group=group, timeout_ms=timeout_ms, form=form)
        offset_next = self.driver.pulls.pull(link, chosen, offset, wanted, terms)
        return f"from {offset}, {'held' if offset_next < 0 else f'next {offset_next}'}"

    @rule(puller=links, sender=links, queue=queues, wanted=expressions, tag=tags, pull_first=st.booleans())
    @step
    def cross(
        self, *, puller: int, sender: int, queue: tuple[int, int], wanted: Wanted, tag: str, pull_first: bool
    ) -> str:
        """Pull and send at the same time."""
        if len(self.driver.pulls.asked) >= PULL_COUNT_MAX:
            return MISSING
        return self.driver.sends.cross(puller, sender, self._queue(queue), wanted, tag, pull_first=pull_first)

    @rule(link=links, queue=queues, wanted=expressions, timeout_ms=st.sampled_from(EXPIRE_MS))
    @step
    def expire(self, *, link: int, queue: tuple[int, int], wanted: Wanted, timeout_ms: int) -> str:
        """Hold one more pull, and wait for its deadline and for those of all short holds."""
        chosen = self._queue(queue)
        self.driver.pulls.pull(link, chosen, chosen.end, wanted, PullTerms(timeout_ms=timeout_ms))
        return f"{self.driver.pulls.await_expiries(max(SHORT_MS))} pulls"

    # -- the rest ----------------------------------------------------------------------------------------------------

    @rule(link=links, queue=queues, wanted=expressions)
    @step
    def close(self, *, link: int, queue: tuple[int, int], wanted: Wanted) -> str:
        """Close a connection, right after one more pull on it."""
        chosen = self._queue(queue)
        self.driver.pulls.pull(link, chosen, chosen.end, wanted, PullTerms(timeout_ms=LONG_MS))
        return f"{self.driver.pulls.close(link)} pulls were asked on it"

    @rule(link=links, queue=queues, kind=st.sampled_from(sorted(MALFORMED)))
    @step
    def malformed(self, *, link: int, queue: tuple[int, int], kind: str) -> None:
        """Send bytes that are not a frame, on a separate connection; the others must keep working."""
        self.driver.send_malformed(kind)
        self.driver.check_end(link, self._queue(queue))

    @rule(link=links, bad=st.sampled_from(BAD_REQUESTS), form=forms)
    @step
    def refuse(self, *, link: int, bad: Bad, form: Form) -> str:
        """Send a request that must be rejected."""
        return f"code {self.driver.refuse(link, bad, form)}"

    @rule(link=links, queue=queues, group=groups, offset=st.one_of(st.none(), st.integers(0, 2**40)))
    @step
    def committed(self, *, link: int, queue: tuple[int, int], group: int, offset: int | None) -> str:
        """Optionally store a group's offset, then query it."""
        chosen = self._queue(queue)
        if offset is not None:
            self.driver.commit(link, group, chosen, offset)
        return self.driver.check_committed(link, group, chosen)

    @rule(link=links, queue=queues, position=st.integers(0, 255))
    @step
    def look(self, *, link: int, queue: tuple[int, int], position: int) -> None:
        """Query a queue's ends, and one message by its log position."""
        chosen = self._queue(queue)
        self.driver.check_end(link, chosen)
        if chosen.end:
            self.driver.view(link, chosen, position % chosen.end)

    def _queue(self, key: tuple[int, int]) -> Queue:
        return self.driver.example.queues[key]

    def _offset(self, link: int, queue: Queue, place: str) -> int:
        return {
            "end": queue.end,
            "next": self.driver.pulls.cursors.get((link, queue), 0),
            "start": 0,
            "middle": queue.end // 2,
            "last": max(queue.end - 1, 0),
            "negative": -1,
            "beyond": queue.end + 3,
        }[place]


class RestartingMachine(ServedMachine):
    """The same for a broker that may be restarted."""

    @rule(link=links, queue=queues, wanted=expressions, settle=st.booleans())
    @step
    def restart(self, *, link: int, queue: tuple[int, int], wanted: Wanted, settle: bool) -> str:
        """Restart the broker, with one more pull in flight: just sent, or already read by the broker."""
        chosen = self._queue(queue)
        self.driver.pulls.pull(link, chosen, chosen.end, wanted, PullTerms(timeout_ms=LONG_MS))
        return f"{self.driver.restart(settle=settle)} pulls were held"


def _short(value: object) -> str:
    if isinstance(value, bytes) and len(value) > 40:
        return f"<{len(value)} bytes>"
    if isinstance(value, Wanted):
        return repr(value.expression)
    if isinstance(value, Bad):
        return repr(value.name)
    return str(value) if isinstance(value, Form) else repr(value)
