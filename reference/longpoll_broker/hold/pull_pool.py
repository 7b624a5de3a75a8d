"""Threads that run pulls under `notify=dispatcher_poll`, with a bounded queue as in RocketMQ.

Sources: `pullMessageExecutor` of `BrokerController.java`, `BrokerFastFailure.java` 4.9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from attrs import define, field, frozen

from longpoll_broker.hold.hold_table import Cause, Pull
from longpoll_broker.io.channel import Outbox
from longpoll_runtime import Event, Queue, Runtime, Thread
from longpoll_runtime.recoverable import FAULTS

log = logging.getLogger(__name__)

Run = Callable[[Pull, Cause, Outbox], None]
Task = Callable[[Outbox], None]
Refuse = Callable[[Pull, Cause, Outbox], None]
TAKE_S: Final = 0.5
"""Interval at which an idle worker checks whether the pool has been stopped, seconds."""
LOOK_S: Final = 0.01
"""Interval between checks for tasks that waited too long, seconds (`BrokerFastFailure.start`)."""


@frozen(eq=False)
class _Queued:
    queued_ns: int
    task: Task
    too_late: Task


@define(slots=True, eq=False)
class PoolExecutor:
    """Threads with a bounded queue, as in RocketMQ. If a task raises, the error is logged and its pull gets no answer.

    A task that has waited too long is replaced by its `too_late` task, in queue order. A watcher thread checks for late
    tasks every 10 ms, so the client of a late task gets an answer even if every worker is blocked.
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
        """Queue the pull; returns false if the queue is full or the pool is stopping."""
        return self.offer(
            lambda worker_outbox: self.run(pull, cause, worker_outbox),
            lambda worker_outbox: self.refuse(pull, "busy", worker_outbox),
        )

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Queue each pull that one message woke; returns the pulls that did not fit in the queue."""
        return [pull for pull in pulls if not self.submit(pull, "woken", outbox)]

    def offer(self, task: Task, too_late: Task) -> bool:
        """Queue a task with its `too_late` task; returns false if the queue is full or the pool is stopping."""
        return not self._stopping and self._tasks.offer(_Queued(self.runtime.monotonic_ns(), task, too_late))

    def waiting(self) -> tuple[int, int]:
        """Returns the number of queued tasks, and the waiting time of the oldest queued task, ms."""
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
        """Refuse late tasks from the head of the queue; tasks further back have waited less."""
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
    """A task that does nothing; it wakes a worker so that the worker notices the stop."""
