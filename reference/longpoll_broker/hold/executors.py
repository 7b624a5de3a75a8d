"""Run a pull that left the hold table: on the thread that let it go, in a later pass, or in a bounded pool.

One message, or a deleted topic, may let many pulls go. `LaterRuns` counts what a pass may run at once, and keeps the
rest by connection. Each later pass runs some pulls of each connection in turn, so a connection with one pull does not
wait for another's hundreds.

Leaves out what running means (`hold.pull_runner`). Sources: `pullMessageExecutor` of `BrokerController.java`,
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
"""How long a worker waits before it looks whether the pool stops."""
LOOK_S: Final = 0.01
"""How often it is looked for tasks that have waited too long (`BrokerFastFailure.start`)."""
RUN_COST: Final = 8
"""A pull that is run by itself takes as long as eight that get the answer of the one before them."""
PASS_COST_MAX: Final = 2_000
"""What one pass may cost at once, and in turns once more: 250 pulls by themselves are some 4 ms."""

Leaving: TypeAlias = tuple[Pull, Cause]
"""A pull that is to be run, and why."""


def nobody() -> None:
    """Wakes no loop: one that is under way looks here before it sleeps."""


@define(slots=True, eq=False)
class LaterRuns:
    """Who waits to be run; callable from any thread.

    Invariant: `_waiting` has an entry for each connection that has pulls here, in the order of their turns.
    """

    lock: Lock
    """Guards `_waiting`."""
    wake: Callable[[], None] = nobody
    """Makes the loop that ends passes look around now."""
    _left: int = field(factory=lambda: PASS_COST_MAX, init=False)
    """What this pass may still cost; about right on several threads."""
    _is_over: bool = field(default=False, init=False)
    _waiting: OrderedDict[Hashable, deque[Leaving]] = field(factory=OrderedDict, init=False)

    @property
    def has_more(self) -> bool:
        """Whether pulls wait for a later pass; about right without the lock."""
        return bool(self._waiting)

    def spend(self, cost: int) -> bool:
        """Whether work may be done at once; then it is counted."""
        if self._left <= 0 and not self._is_over:
            return False
        self._left -= cost
        return True

    def add(self, leaving: Iterable[Leaving]) -> None:
        """Have pulls run in later passes, those of one connection in this order."""
        with self.lock:
            was_empty = not self._waiting
            for each in leaving:
                self._waiting.setdefault(each[0].channel, deque()).append(each)
        if was_empty:
            self.wake()

    def turn(self, run: Callable[[Sequence[Leaving]], int]) -> None:
        """End a pass: have some of those that wait run, whose costs `run` tells, and begin to count anew."""
        left = PASS_COST_MAX
        while left > 0 and self._waiting and (part := self._take()):
            left -= run(part)
        self._left = PASS_COST_MAX

    def finish(self, run: Callable[[Sequence[Leaving]], int]) -> None:
        """Have all that wait run now, and let everything that comes from now on be run at once."""
        self._is_over = True
        while part := self._take():
            run(part)

    def _take(self) -> list[Leaving]:
        """The next connection's next pulls: fewer the more connections wait, and at least one."""
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
    """Runs at once, on the caller's thread: no hand-over, and nothing to reject. Many are run `later` in part."""

    run: Run
    later: LaterRuns | None = None
    """None where everything is run at once, however much it is."""

    @property
    def has_more(self) -> bool:
        """Whether some were left for a later pass."""
        return self.later is not None and self.later.has_more

    def submit(self, pull: Pull, cause: Cause, outbox: Outbox) -> bool:
        """Run the pull, now or in a later pass; always true."""
        later = self.later
        if later is None or later.spend(RUN_COST):
            self._run(pull, cause, outbox)
        else:
            later.add([(pull, cause)])
        return True

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Run pulls that one message woke; those not taken, which is none."""
        later = self.later
        if later is None or later.spend(len(pulls)):
            later_cost = self._run_herd(pulls, outbox) - len(pulls)
            if later is not None:
                later.spend(later_cost)
        else:
            later.add((pull, "woken") for pull in pulls)
        return ()

    def turn(self, outbox: Outbox) -> None:
        """End a pass: run some of those that were left for later."""
        if self.later is not None:
            self.later.turn(lambda part: self._run_part(part, outbox))

    def finish(self, outbox: Outbox) -> None:
        """Run all that were left for later, and from now on everything at once."""
        if self.later is not None:
            self.later.finish(lambda part: self._run_part(part, outbox))

    def _run_part(self, part: Sequence[Leaving], outbox: Outbox) -> int:
        """Run pulls that waited, those that a message woke as the herd that they were; what it cost."""
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
        """Run pulls that one message woke, now; what it cost."""
        for pull in pulls:
            self._run(pull, "woken", outbox)
        return RUN_COST * len(pulls)

    def _run(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        """Run a pull now; what that raises must not cost those behind it their turn."""
        try:
            self.run(pull, cause, outbox)
        except FAULTS:
            log.exception("a pull of %s failed and gets no answer", pull.topic)


@frozen(eq=False)
class _Queued:
    """A task with the moment it was queued, and what to do instead when it is late."""

    queued_ns: int
    task: Task
    too_late: Task


@define(slots=True, eq=False)
class PoolExecutor:
    """Threads behind a bounded queue, as Java's; what a task raises is logged and its pull gets no answer.

    A task that has waited too long is not run: its second part says why, in the order of the queue. A thread of its own
    looks for such tasks every 10 ms, so they hear of it even while every worker stands still.
    """

    runtime: Runtime
    run: Run
    refuse: Refuse
    thread_count: int
    capacity: int
    wait_ms_max: int | None
    """`waitTimeMillsInPullQueue`; None lets a task wait as long as it has to (`brokerFastFailureEnable=false`)."""
    _tasks: Queue[_Queued] = field(init=False)
    _ended: Event = field(init=False)
    _threads: list[Thread] = field(factory=list, init=False)
    _watcher: Thread | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._tasks = self.runtime.queue(self.capacity)
        self._ended = self.runtime.event()

    def submit(self, pull: Pull, cause: Cause, outbox: Outbox) -> bool:  # noqa: ARG002 - a worker has its own outbox
        """Queue the pull; false when the queue is full or the pool stops."""
        return self.offer(
            lambda worker_outbox: self.run(pull, cause, worker_outbox),
            lambda worker_outbox: self.refuse(pull, "busy", worker_outbox),
        )

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Queue each of the pulls that one message woke; those for which there is no room."""
        return [pull for pull in pulls if not self.submit(pull, "woken", outbox)]

    def offer(self, task: Task, too_late: Task) -> bool:
        """Queue any task, and what to do instead when it waits too long; false when the queue is full or stops."""
        return not self._stopping and self._tasks.offer(_Queued(self.runtime.monotonic_ns(), task, too_late))

    def waiting(self) -> tuple[int, int]:
        """How many tasks are queued, and how long the first of them has been, ms."""
        first_ns: list[int] = []

        def look(queued: _Queued) -> bool:
            first_ns.append(queued.queued_ns)
            return False

        self._tasks.take_if(look)
        waited_ms = (self.runtime.monotonic_ns() - first_ns[0]) // 1_000_000 if first_ns else 0
        return len(self._tasks), waited_ms

    def start(self) -> None:
        """Start the workers, and who looks for late tasks."""
        self._threads = [self.runtime.spawn(f"pull-{number}", self._work) for number in range(self.thread_count)]
        if self.wait_ms_max is not None:
            self._watcher = self.runtime.spawn("pull-watcher", self._watch)

    def stop(self) -> None:
        """Run what is queued, then end the workers."""
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
        """Refuse the first of the queue as long as it is late; those behind it have waited less."""
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
    """What wakes a worker that is to end."""
