"""Executors for pulls that left the hold table: on the caller's thread, in a later pass, or in a bounded pool.

One message, or a deleted topic, may release many pulls. `LaterRuns` limits the work of one pass and keeps the rest by
connection. Each later pass runs some pulls of each connection in turn, so a connection with one pull does not wait for
another's hundreds.

Running a pull: see `hold.pull_runner`. Sources: `pullMessageExecutor` of `BrokerController.java`,
`BrokerFastFailure.java`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

from attrs import define, field, frozen

from longpoll_broker.hold.hold_table import Cause, Pull
from longpoll_broker.io.channel import Outbox
from longpoll_runtime import Event, Lock, Queue, Runtime, Thread
from longpoll_runtime.recoverable import FAULTS

log = logging.getLogger(__name__)

Run = Callable[[Pull, Cause, Outbox], None]
Task = Callable[[Outbox], None]
Refuse = Callable[[Pull, Cause, Outbox], None]
TAKE_S: Final = 0.5
"""Interval at which an idle worker checks whether the pool stops, seconds."""
LOOK_S: Final = 0.01
"""Interval between checks for tasks that waited too long, seconds (`BrokerFastFailure.start`)."""
RUN_COST: Final = 8
"""Cost of running one pull alone; a pull that reuses the previous answer costs 1."""
PASS_COST_MAX: Final = 2_000
"""Cost budget of one pass, for immediate and again for later runs: 250 single pulls, about 4 ms."""

Leaving: TypeAlias = tuple[Pull, Cause]
"""A pull to run, and why."""


def nobody() -> None:
    """Do nothing: a running loop checks for later runs before it sleeps."""


@define(slots=True, eq=False)
class LaterRuns:
    """Pulls that wait for a later pass; callable from any thread.

    Invariant: `_waiting` has one entry per connection with waiting pulls, in the order of their turns.
    """

    lock: Lock
    """Protects `_waiting`."""
    wake: Callable[[], None] = nobody
    """Wakes the loop that ends passes."""
    _left: int = field(factory=lambda: PASS_COST_MAX, init=False)
    """Remaining budget of this pass; approximate with several threads."""
    _is_over: bool = field(default=False, init=False)
    _waiting: OrderedDict[Hashable, deque[Leaving]] = field(factory=OrderedDict, init=False)

    @property
    def has_more(self) -> bool:
        """Whether pulls wait for a later pass; approximate without the lock."""
        return bool(self._waiting)

    def spend(self, cost: int) -> bool:
        """Charge `cost` to the budget; returns false if the budget is exhausted."""
        if self._left <= 0 and not self._is_over:
            return False
        self._left -= cost
        return True

    def add(self, leaving: Iterable[Leaving]) -> None:
        """Queue pulls for later passes, in order for each connection."""
        with self.lock:
            was_empty = not self._waiting
            for each in leaving:
                self._waiting.setdefault(each[0].channel, deque()).append(each)
        if was_empty:
            self.wake()

    def turn(self, run: Callable[[Sequence[Leaving]], int]) -> None:
        """End a pass: run waiting pulls up to the budget, and reset the budget. `run` returns its cost."""
        left = PASS_COST_MAX
        while left > 0 and self._waiting and (part := self._take()):
            left -= run(part)
        self._left = PASS_COST_MAX

    def finish(self, run: Callable[[Sequence[Leaving]], int]) -> None:
        """Run all waiting pulls now, and all future ones at once."""
        self._is_over = True
        while part := self._take():
            run(part)

    def _take(self) -> list[Leaving]:
        """Remove the next connection's next pulls: at least one, and fewer if many connections wait."""
        with self.lock:
            if not self._waiting:
                return []
            count = max(PASS_COST_MAX // RUN_COST // len(self._waiting), 1)
            channel, pulls = self._waiting.popitem(last=False)
            part = [pulls.popleft() for _ in range(min(count, len(pulls)))]
            if pulls:
                self._waiting[channel] = pulls
        return part


@define(slots=True, eq=False)
class InlineExecutor:
    """Runs pulls on the caller's thread; a pass over budget leaves the rest to `later`."""

    run: Run
    later: LaterRuns | None = None
    """None runs everything at once."""

    @property
    def has_more(self) -> bool:
        """Whether pulls wait for a later pass."""
        return self.later is not None and self.later.has_more

    def submit(self, pull: Pull, cause: Cause, outbox: Outbox) -> bool:
        """Run the pull now or in a later pass; always true."""
        later = self.later
        if later is None or later.spend(RUN_COST):
            self._run(pull, cause, outbox)
        else:
            later.add([(pull, cause)])
        return True

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Run pulls that one message woke, now or in a later pass; rejects none."""
        later = self.later
        if later is None or later.spend(len(pulls)):
            later_cost = self._run_herd(pulls, outbox) - len(pulls)
            if later is not None:
                later.spend(later_cost)
        else:
            later.add((pull, "woken") for pull in pulls)
        return ()

    def turn(self, outbox: Outbox) -> None:
        """End a pass: run some of the waiting pulls."""
        if self.later is not None:
            self.later.turn(lambda part: self._run_part(part, outbox))

    def finish(self, outbox: Outbox) -> None:
        """Run all waiting pulls, and from now on everything at once."""
        if self.later is not None:
            self.later.finish(lambda part: self._run_part(part, outbox))

    def _run_part(self, part: Sequence[Leaving], outbox: Outbox) -> int:
        """Run waiting pulls, keeping woken ones together as a herd; returns the cost."""
        cost = 0
        for cause, leaving in groupby(part, itemgetter(1)):
            pulls = [pull for pull, _cause in leaving]
            if cause == "woken":
                cost += self._run_herd(pulls, outbox)
            else:
                cost += RUN_COST * len(pulls)
                for pull in pulls:
                    self._run(pull, cause, outbox)
        return cost

    def _run_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> int:
        for pull in pulls:
            self._run(pull, "woken", outbox)
        return RUN_COST * len(pulls)

    def _run(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        """Run a pull; log a fault, so that the next pulls run."""
        try:
            self.run(pull, cause, outbox)
        except FAULTS:
            log.exception("a pull of %s failed and gets no answer", pull.topic)


@frozen(eq=False)
class _Queued:
    queued_ns: int
    task: Task
    too_late: Task


@define(slots=True, eq=False)
class PoolExecutor:
    """Threads with a bounded queue, as in Java. If a task raises, the error is logged and its pull gets no answer.

    A task that waited too long is replaced by its `too_late` task, in queue order. A watcher thread checks for late
    tasks every 10 ms, so clients get this answer even if every worker is blocked.
    """

    runtime: Runtime
    run: Run
    refuse: Refuse
    thread_count: int
    capacity: int
    wait_ms_max: int | None
    """`waitTimeMillsInPullQueue`; None means no limit (`brokerFastFailureEnable=false`)."""
    _tasks: Queue[_Queued] = field(init=False)
    _ended: Event = field(init=False)
    _threads: list[Thread] = field(factory=list, init=False)
    _watcher: Thread | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._tasks = self.runtime.queue(self.capacity)
        self._ended = self.runtime.event()

    def submit(self, pull: Pull, cause: Cause, outbox: Outbox) -> bool:  # noqa: ARG002 - a worker has its own outbox
        """Queue the pull; returns false when the queue is full or the pool stops."""
        return self.offer(
            lambda worker_outbox: self.run(pull, cause, worker_outbox),
            lambda worker_outbox: self.refuse(pull, "busy", worker_outbox),
        )

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Queue each of the pulls that one message woke; returns those that found no room."""
        return [pull for pull in pulls if not self.submit(pull, "woken", outbox)]

    def offer(self, task: Task, too_late: Task) -> bool:
        """Queue a task and its replacement for when it is late; false when the queue is full or the pool stops."""
        return not self._stopping and self._tasks.offer(_Queued(self.runtime.monotonic_ns(), task, too_late))

    def waiting(self) -> tuple[int, int]:
        """Returns the number of queued tasks, and the waiting time of the first, ms."""
        first_ns: list[int] = []

        def look(queued: _Queued) -> bool:
            first_ns.append(queued.queued_ns)
            return False

        self._tasks.take_if(look)
        waited_ms = (self.runtime.monotonic_ns() - first_ns[0]) // 1_000_000 if first_ns else 0
        return len(self._tasks), waited_ms

    def start(self) -> None:
        """Start the workers and the watcher."""
        self._threads = [self.runtime.spawn(f"pull-{number}", self._work) for number in range(self.thread_count)]
        if self.wait_ms_max is not None:
            self._watcher = self.runtime.spawn("pull-watcher", self._watch)

    def stop(self) -> None:
        """Run the queued tasks, then end the workers."""
        self._stopping = True
        for _ in self._threads:
            self._tasks.offer(_Queued(self.runtime.monotonic_ns(), _nothing, _nothing))
        for thread in self._threads:
            thread.join()
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()

    def _work(self) -> None:
        outbox = Outbox()
        while True:
            taken = self._tasks.take(0.0 if self._stopping else TAKE_S)
            if taken is None:
                if self._stopping:
                    return
                continue
            _do(taken.too_late if self._is_late(taken) else taken.task, outbox)

    def _watch(self) -> None:
        """Refuse late tasks from the head of the queue; those behind have waited less."""
        outbox = Outbox()
        while not self._ended.wait(LOOK_S):
            while (late := self._tasks.take_if(self._is_late)) is not None:
                _do(late.too_late, outbox)

    def _is_late(self, queued: _Queued) -> bool:
        limit_ms = self.wait_ms_max
        return limit_ms is not None and self.runtime.monotonic_ns() - queued.queued_ns >= limit_ms * 1_000_000


def _do(task: Task, outbox: Outbox) -> None:
    try:
        task(outbox)
    except FAULTS:
        log.exception("a pull failed and gets no answer")
    outbox.flush()


def _nothing(_outbox: Outbox) -> None:
    """Do nothing: wakes a worker so that it ends."""
