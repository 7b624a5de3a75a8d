"""Who runs a pull that left the hold table: the thread that let it go, or a pool with a bounded queue.

Leaves out what running means (`service.pull_service`). Sources: `pullMessageExecutor` of `BrokerController.java`,
`BrokerFastFailure.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import define, field

from longpoll_broker.core.faults import FAULTS
from longpoll_broker.core.hold import Pull
from longpoll_broker.runtime import Queue, Runtime, Thread
from longpoll_broker.service.channel import Outbox

log = logging.getLogger(__name__)

Run = Callable[[Pull, str, Outbox], None]
Task = Callable[[Outbox], None]
Refuse = Callable[[Pull, str, Outbox], None]
TAKE_S = 0.5
"""How long a worker waits before it looks whether the pool stops."""


@define(slots=True, eq=False)
class InlineExecutor:
    """Runs at once, on the caller's thread: no hand-over, and nothing to reject."""

    run: Run

    def submit(self, pull: Pull, cause: str, outbox: Outbox) -> bool:
        """Run the pull; always true. What running it raises must not cost those behind it their turn."""
        try:
            self.run(pull, cause, outbox)
        except FAULTS:
            log.exception("a pull of %s failed and gets no answer", pull.topic)
        return True


@define(slots=True, eq=False)
class PoolExecutor:
    """Threads behind a bounded queue, as Java's; what a task raises is logged and its pull gets no answer.

    A task that has waited too long is not run: its second part says why, in the order of the queue. Java looks for
    such tasks every 10 ms, here the worker does that comes to it.
    """

    runtime: Runtime
    run: Run
    refuse: Refuse
    thread_count: int
    capacity: int
    wait_ms_max: int
    """`waitTimeMillsInPullQueue`."""
    _tasks: Queue[tuple[int, Task, Task]] = field(init=False)
    _threads: list[Thread] = field(factory=list, init=False)
    _stopping: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._tasks = self.runtime.queue(self.capacity)

    def submit(self, pull: Pull, cause: str, outbox: Outbox) -> bool:  # noqa: ARG002 - a worker has its own outbox
        """Queue the pull; false when the queue is full or the pool stops."""
        return self.offer(
            lambda worker_outbox: self.run(pull, cause, worker_outbox),
            lambda worker_outbox: self.refuse(pull, "busy", worker_outbox),
        )

    def offer(self, task: Task, too_late: Task) -> bool:
        """Queue any task, and what to do instead when it waits too long; false when the queue is full or stops."""
        return not self._stopping and self._tasks.offer((self.runtime.monotonic_ns(), task, too_late))

    def start(self) -> None:
        """Start the workers."""
        self._threads = [self.runtime.spawn(f"pull-{number}", self._work) for number in range(self.thread_count)]

    def stop(self) -> None:
        """Run what is queued, then end the workers."""
        self._stopping = True
        for _ in self._threads:
            self._tasks.offer((self.runtime.monotonic_ns(), _nothing, _nothing))
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        outbox = Outbox()
        while True:
            taken = self._tasks.take(0.0 if self._stopping else TAKE_S)
            if taken is None:
                if self._stopping:
                    return
                continue
            queued_ns, task, too_late = taken
            waited_ms = (self.runtime.monotonic_ns() - queued_ns) / 1e6
            try:
                (task if waited_ms < self.wait_ms_max else too_late)(outbox)
            except FAULTS:
                log.exception("a pull failed and gets no answer")
            outbox.flush()


def _nothing(_outbox: Outbox) -> None:
    """What wakes a worker that is to end."""
