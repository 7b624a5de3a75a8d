"""Polls in flight: each poll runs on its own thread, and the kit waits for the answers.

`model` checks the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from longpoll_kit.errors import StandstillError
from longpoll_kit.model import MS, Ask
from longpoll_kit.subject import LongPollSubject, Polled, polled_of
from longpoll_runtime import Queue, Runtime, Thread
from longpoll_runtime.breakpoints import Pause
from longpoll_runtime.host_pauses import HostPauseWatch
from longpoll_runtime.recoverable import FAULTS

PATIENCE_MAX_MS: Final = 30_000
"""A host pause longer than this ends the example, because late answers prove nothing after such a pause."""


WAITING_MAX: Final = 1
"""The capacity of a worker's task queue: a worker has one task at a time."""


class Workers:
    """Worker threads that all examples of a run share, because the watch for host pauses needs threads that do not end.

    Invariant: `_idle` contains the task queues of the workers without a task; `_lock` protects `_idle`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._idle: list[Queue[Callable[[], None] | None]] = []
        self._has_ended = False
        self._threads: dict[Queue[Callable[[], None] | None], Thread] = {}

    def do(self, body: Callable[[], None]) -> None:
        """Run a function on an idle worker, or on a new one. The function must not raise an exception."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
            if worker is None:
                worker = self._runtime.queue(WAITING_MAX)
                name = f"kit-{len(self._threads) + 1}"
                self._threads[worker] = self._runtime.spawn(name, partial(self._run, worker))
        worker.offer(body)

    def end(self) -> None:
        """End the idle workers. Busy workers end when the service answers their polls."""
        with self._lock:
            idle, self._idle, self._has_ended = self._idle, [], True
        for worker in idle:
            worker.offer(None)
        for worker in idle:
            self._threads[worker].join()

    def _run(self, worker: Queue[Callable[[], None] | None]) -> None:
        while (body := worker.take()) is not None:
            body()
            with self._lock:
                if self._has_ended:
                    return
                self._idle.append(worker)


class Polls:
    """The polls of one example.

    Invariant: a poll is in `under_way` from `begin` until `take_ended` returns it for checking; `_changed` protects the
    fields of the poll's `Ask`.
    """

    def __init__(
        self,
        runtime: Runtime,
        subject: LongPollSubject,
        watch: HostPauseWatch,
        workers: Workers,
        sent: Callable[[Ask], None] = lambda _ask: None,
    ) -> None:
        """Create an empty set of polls.

        When a poll has been sent, its own thread calls `sent` before other threads can see that it was sent.
        """
        self._sent = sent
        self.under_way: list[Ask] = []
        self._runtime = runtime
        self._subject = subject
        self._watch = watch
        self._workers = workers
        self._changed = runtime.condition()

    def begin(self, ask: Ask, pause: Pause | None = None) -> None:
        """Start a poll on its own thread, which `pause` may stop inside the service's code."""
        self.under_way.append(ask)
        self._workers.do(partial(self._run_to, pause, ask) if pause else partial(self._run, ask))

    def _run_to(self, pause: Pause, ask: Ask) -> None:
        with pause.here():
            self._run(ask)

    def _run(self, ask: Ask) -> None:
        try:
            handle = self._start(ask)
            self._sent(ask)
            self._note(ask, handle=handle)
            answer = self._subject.finish_poll(ask.handle)
            self._note(ask, answer=polled_of(answer, self._subject))
        except FAULTS as error:
            self._note(ask, error=error)

    def _start(self, ask: Ask) -> Any:
        if ask.handle is not None:
            return ask.handle
        if not ask.parts:
            return self._subject.start_poll(ask.queue, ask.position, ask.timeout_ms)
        names, positions = [part.queue for part in ask.parts], [part.position for part in ask.parts]
        return self._subject.start_poll_of(names, positions, ask.timeout_ms)

    def _note(
        self, ask: Ask, *, handle: Any = None, answer: Polled | None = None, error: Exception | None = None
    ) -> None:
        now_ns = self._runtime.monotonic_ns()
        with self._changed:
            if answer is None and error is None:
                ask.handle, ask.sent_ns = handle, now_ns
            else:
                ask.answer, ask.error, ask.ended_ns = answer, error, now_ns
            self._changed.notify_all()

    def take_ended(self) -> list[Ask]:
        """Return the polls that have ended since the last call, in the order in which they ended."""
        with self._changed:
            ended = [ask for ask in self.under_way if ask.ended_ns is not None]
            self.under_way = [ask for ask in self.under_way if ask.ended_ns is None]
        return sorted(ended, key=lambda ask: ask.ended_ns or 0)

    def apart(self, body: Callable[[], object], pause: Pause | None = None) -> Callable[[], None]:
        """Run a function on its own thread; return a function that joins the thread and raises its exception."""
        errors: list[Exception] = []
        ended = self._runtime.event()

        def run() -> None:
            try:
                with pause.here() if pause else nullcontext():
                    body()
            except FAULTS as error:
                errors.append(error)
            finally:
                ended.set()

        def join() -> None:
            ended.wait()
            for error in errors:
                raise error

        self._workers.do(run)
        return join

    def wait_sent(self, ask: Ask) -> None:
        """Wait until a poll has been sent, or has ended."""
        with self._changed:
            while ask.sent_ns is None and ask.ended_ns is None:
                self._changed.wait()

    def wait_any(self, since_ns: int, allowed_ms: float) -> bool:
        """Wait until any poll in flight has ended; return false after `allowed_ms`. Host pauses do not count."""
        return self._wait(lambda: any(ask.ended_ns is not None for ask in self.under_way), since_ns, allowed_ms)

    def wait_ended(self, ask: Ask, since_ns: int, allowed_ms: float) -> bool:
        """Wait until a poll has ended; return false after `allowed_ms`. Host pauses do not count."""
        return self._wait(lambda: ask.ended_ns is not None, since_ns, allowed_ms)

    def let_pass(self, gap_us: int) -> None:
        """Wait for some microseconds, in which other threads may run."""
        self._wait_plainly(lambda: False, gap_us / 1000)

    def awake_ms(self, begin_ns: int, end_ns: int) -> float:
        """The time between two past timestamps in milliseconds, minus host pauses."""
        self._watch.wait_seen(end_ns)
        return (end_ns - begin_ns) / MS - self._watch.stalled_ms(begin_ns, end_ns)

    def _wait(self, is_done: Callable[[], bool], since_ns: int, allowed_ms: float) -> bool:
        left_ms = allowed_ms - (self._runtime.monotonic_ns() - since_ns) / MS
        while True:
            if self._wait_plainly(is_done, left_ms):
                return True
            now_ns = self._runtime.monotonic_ns()
            left_ms = allowed_ms - self.awake_ms(since_ns, now_ns)
            if left_ms <= 0:
                return self._wait_plainly(is_done, 0)
            if (now_ns - since_ns) / MS > allowed_ms + PATIENCE_MAX_MS:
                raise StandstillError(f"the host paused for most of {(now_ns - since_ns) / MS:.0f} ms")

    def _wait_plainly(self, is_done: Callable[[], bool], left_ms: float) -> bool:
        end_ns = self._runtime.monotonic_ns() + left_ms * MS
        with self._changed:
            while not is_done():
                left_ns = end_ns - self._runtime.monotonic_ns()
                if left_ns <= 0:
                    return False
                self._changed.wait(left_ns / 1e9)
            return True
