"""Measures a hundred thousand held pulls: how fast the broker accepts them, their cost, and late answers.

Each connection writes a batch of pulls and a probe that the broker answers at once, and writes the next batch after
this answer. A batch is therefore read at most a few milliseconds after its write. Lateness is counted from the write of
a pull, so it is never understated.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic_ns
from typing import Final

from attrs import define, field, frozen
from model_tests.support.broker.harness.frames import Line, PullTemplate
from model_tests.support.broker.harness.latency import PROBE, percentile
from model_tests.support.broker.harness.workers import busy_share

from longpoll_client.errors import ClientError
from longpoll_protocol.codes import ResponseCode
from longpoll_runtime import Address

BURST: Final = 100
"""The number of pulls in a batch, which precede the batch's probe."""
STALL_S: Final = 30.0


@frozen
class HeldPlan:
    topic: str
    timeout_ms: int
    pull_count: int = 100_000
    line_count: int = 20
    queue_count: int = 1_000
    same_moment: bool = False
    """Whether all pulls are due at the same time, `timeout_ms` after the start, instead of after their own write."""
    idle_s: float = 5.0
    """How many seconds the broker's processor time is measured while all pulls are held."""


@frozen
class HeldReport:
    accept_s: float
    private_bytes_each: float
    busy_share: float
    """The share of one core that the broker used while all pulls were held."""
    late_p50_ms: float
    late_p99_ms: float
    late_max_ms: float
    answering_ns: tuple[int, int]
    """The time of the first deadline and the time of the last answer, on the monotonic clock."""


@define(eq=False)
class _Holding:
    """The state of a run. Invariant: `due_ns[n]` is the deadline of the pull with opaque n, set before its write."""

    plan: HeldPlan
    lines: dict[int, Line]
    poller: select.epoll
    target_ns: int
    due_ns: list[int]
    next_pull: int = 0
    accepted: int = 0
    late_ms: list[float] = field(factory=list)

    def write_burst(self, line: Line) -> None:
        """Write the next batch and its probe; do nothing if all pulls are written."""
        plan = self.plan
        template = PullTemplate(plan.topic)
        numbers = range(self.next_pull, min(plan.pull_count, self.next_pull + BURST))
        if not numbers:
            return
        self.next_pull = numbers.stop
        now_ns = monotonic_ns()
        timeout_ms = plan.timeout_ms
        if plan.same_moment:
            timeout_ms = -((now_ns - self.target_ns) // 1_000_000)
        frames = [template.frame(number % plan.queue_count, 0, number, timeout_ms) for number in numbers]
        now_ns = monotonic_ns()
        for number in numbers:
            self.due_ns[number] = self.target_ns if plan.same_moment else now_ns + timeout_ms * 1_000_000
        line.write(b"".join(frames) + template.frame(numbers[0] % plan.queue_count, 0, PROBE))

    def read(self, *, until_accepted: bool) -> None:
        """Read until the broker has accepted every pull, or until it has answered every pull."""
        plan = self.plan
        while (self.accepted if until_accepted else len(self.late_ms)) < plan.pull_count:
            ready = self.poller.poll(STALL_S + plan.timeout_ms / 1000)
            if not ready:
                raise ClientError(f"{plan.pull_count - len(self.late_ms)} held pulls were not answered")
            for descriptor, _events in ready:
                self._take(self.lines[descriptor])

    def _take(self, line: Line) -> None:
        found = line.read()
        now_ns = monotonic_ns()
        for answer in found:
            if answer.opaque == PROBE:
                self.accepted += BURST
                self.write_burst(line)
            elif answer.code != ResponseCode.PULL_NOT_FOUND:
                raise ClientError(f"a held pull was answered with code {answer.code}")
            else:
                self.late_ms.append((now_ns - self.due_ns[answer.opaque]) / 1e6)


def hold(address: Address, process_id: int, memory_bytes: Callable[[], int], plan: HeldPlan) -> HeldReport:
    """Hold all pulls on a new topic without messages, and wait for every answer. Raises ClientError.

    `process_id` is the broker's process. `memory_bytes` returns the broker's memory use and may be slow.
    """
    assert plan.pull_count % BURST == 0
    with ExitStack() as stack:
        lines = [Line(address) for _ in range(plan.line_count)]
        for line in lines:
            stack.callback(line.close)
        # The broker allocates memory for connections and the topic now, so that it does not count as memory of pulls.
        for line in lines:
            line.call(PullTemplate(plan.topic).frame(0, 0, PROBE))
        poller = stack.enter_context(select.epoll())
        for line in lines:
            poller.register(line.socket.fileno(), select.EPOLLIN)
        before_bytes = memory_bytes()
        begun_ns = monotonic_ns()
        holding = _Holding(
            plan,
            {line.socket.fileno(): line for line in lines},
            poller,
            begun_ns + plan.timeout_ms * 1_000_000,
            [0] * plan.pull_count,
        )
        for line in lines:
            holding.write_burst(line)
        holding.read(until_accepted=True)
        accept_s = (monotonic_ns() - begun_ns) / 1e9
        each_bytes = (memory_bytes() - before_bytes) / plan.pull_count
        share = busy_share(process_id, plan.idle_s) if plan.idle_s else 0.0
        if holding.late_ms or monotonic_ns() > min(holding.due_ns):
            raise ClientError("the first pull was due before all were accepted: give them a longer timeout")
        holding.read(until_accepted=False)
        ended_ns = monotonic_ns()
    late_ms = sorted(holding.late_ms)
    return HeldReport(
        accept_s,
        each_bytes,
        share,
        percentile(late_ms, 0.5),
        percentile(late_ms, 0.99),
        late_ms[-1],
        (min(holding.due_ns), ended_ns),
    )
