"""Calls a listener on several threads at once, or for each queue in order, one call at a time.

After an error, a time-out or `Retry`, the messages are delivered again. Concurrent calls may overtake each other. In an
orderly consumer, a retried message blocks its queue until it is consumed or becomes a dead letter. The queue is
consumed only while its broker locks it for this client, so a consumer that crashes blocks its queues for 60 s.

Source: `ConsumeMessageConcurrentlyService.java`, `ConsumeMessageOrderlyService.java`, `ProcessQueue.cleanExpiredMsg`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, TypeAlias

from attrs import define, field

from longpoll_client.checks import delay_level
from longpoll_client.consume.group_member import GroupMember
from longpoll_client.consume.member import Member
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.consume.statistics import HookCalls
from longpoll_client.link.steps import Call, Steps
from longpoll_client.messages import ReceivedMessage, all_as_shown, as_shown, place_of
from longpoll_client.settings import DEAD_LEVEL, DELIVERY_CAPACITY, MemberConfig
from longpoll_client.timer import started
from longpoll_protocol.bodies import MessageQueue
from longpoll_runtime import Runtime, Thread
from longpoll_runtime.recoverable import ANYTHING, KeepThread
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)


DISMISSED_S: Final = 1.0
"""How long to wait for the end of each started thread if another thread cannot be started, seconds."""


class Retry(Exception):  # noqa: N818 - no error, as StopIteration is none
    """Deliver the messages again later; a listener raises or returns this class.

    `delay_s` is rounded up to a delay that brokers support: 1, 5, 10, 30 s, 1 to 10, 20, 30 min, 1 or 2 h. If `delay_s`
    is None, the broker chooses: 10 s the first time, and longer each time. An orderly queue waits exactly `delay_s`, or
    `suspend_s` if `delay_s` is None. The constructor raises ConfigError for a `delay_s` of more than two hours.
    """

    def __init__(self, delay_s: float | None = None) -> None:
        super().__init__(delay_s)
        self.delay_s = delay_s
        self.level: int = 0 if delay_s is None else delay_level(delay_s)


class Reject(Exception):  # noqa: N818 - likewise
    """Make the messages dead letters at once; a listener raises or returns this class."""

    level: Final = DEAD_LEVEL


ConsumeResult: TypeAlias = Retry | Reject | None
"""What to do with messages after the listener returned; None means that they are consumed."""
Listener: TypeAlias = Callable[[Sequence[ReceivedMessage]], object]
"""A function that gets messages. Several threads call the function at once, but an orderly consumer makes only one call
at a time for each queue."""


def call_listener(listener: Listener, messages: Sequence[ReceivedMessage], group: str) -> ConsumeResult:
    """Call the listener and return its result; an error counts as `Retry`."""
    first = messages[0]  # Read the first message before the call, because the listener may change the list.
    try:
        answer = listener(messages)
        return None if answer is None else read_result(answer)
    except (Retry, Reject) as answer:
        return answer
    except ANYTHING as error:
        log.warning("the listener of group %s raised at %s: %r; it comes again later", group, place_of(first), error)
        return Retry()


def read_result(answer: object) -> ConsumeResult:
    """Interpret a listener's return value; raises TypeError for a coroutine, because it would never be awaited."""
    if isinstance(answer, Retry | Reject):
        return answer
    if answer is Retry or answer is Reject:
        return Retry() if answer is Retry else Reject()
    if isinstance(answer, Awaitable):
        raise TypeError(f"it returned {answer!r}, which is never awaited here")
    return None


class Workers:
    """Threads that run tasks.

    Only one idle thread at a time is woken, and it wakes the next thread if more tasks wait. If tasks are quick, a few
    threads do them all, because waking a thread costs more than such a task. Invariant, under `_changed`: while there
    are tasks and idle threads, one thread is being woken (`_is_waking`).
    """

    def __init__(self, runtime: Runtime, group: str, count: int) -> None:
        self._runtime = runtime
        self._group = group
        self._count = count
        self._changed = runtime.condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle_count = 0
        self._is_waking = False
        self.is_stopping: bool = False
        """Whether running tasks should end soon."""
        self._life = 0
        """The number of the current start. Threads of an earlier start end without taking a task."""
        self._threads: list[Thread] = []
        self._stopper: Thread | None = None
        """The thread whose task has called `stop`."""
        self._then: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start the threads, unless the workers are stopping. No thread takes a task before all threads are started.

        Raises a ClientError if a thread cannot be started; the caller must then call `dismiss`.
        """
        with self._changed:
            assert not self._threads, "they are started already"
            if self.is_stopping:
                return
            run = partial(self._run, self._life)
            try:
                for number in range(self._count):
                    self._threads.append(started(self._runtime, f"listener-{self._group}-{number}", run))
            except ANYTHING:
                # Either a thread cannot be started, or Ctrl-C interrupted the start.
                self._life += 1
                raise

    def dismiss(self) -> None:
        """End the started threads after their current tasks, because the start failed and may be tried again."""
        with self._changed:
            self._life += 1
            threads, self._threads = self._threads, []
            self._changed.notify_all()
        for thread in threads:
            thread.join(DISMISSED_S)

    def submit(self, *tasks: Callable[[], None]) -> None:
        """Run tasks on threads, in this order. After the stop, the tasks are ignored."""
        with self._changed:
            assert len(self._tasks) + len(tasks) <= DELIVERY_CAPACITY, "flow control let more than the capacity through"
            self._tasks += tasks
            self._wake()

    def _wake(self) -> None:
        if self._tasks and self._idle_count and not self._is_waking:
            self._is_waking = True
            self._changed.notify()

    def _take(self, life: int) -> Callable[[], None]:
        """Wait for the next task, and return it.

        After the stop, and in a thread of an earlier start, the returned task does nothing.
        """
        with self._changed:
            while life == self._life and not self._tasks and not self.is_stopping:
                self._idle_count += 1
                self._changed.wait()
                self._idle_count -= 1
                self._is_waking = False
            if life != self._life or self.is_stopping:
                return lambda: None
            task = self._tasks.popleft()
            self._wake()
            return task

    def stop(self, timeout_s: float, then: Callable[[], None]) -> None:
        """Wait at most `timeout_s` for running tasks, drop the tasks that have not begun, and call `then`.

        If a task calls this method, the method returns at once, and the thread of the task does the rest after the
        task.
        """
        with self._changed:
            self.is_stopping = True
            self._changed.notify_all()
        self._stopper = next((thread for thread in self._threads if thread.is_current()), None)
        self._then = lambda: self._end(timeout_s, then)
        if self._stopper is None:
            self._then()

    def _end(self, timeout_s: float, then: Callable[[], None]) -> None:
        deadline_ns = self._runtime.monotonic_ns() + int(timeout_s * 1e9)
        others = [thread for thread in self._threads if thread is not self._stopper]
        for thread in others:
            thread.join(max(0.0, (deadline_ns - self._runtime.monotonic_ns()) / 1e9))
        left = sum(thread.is_alive() for thread in others)
        if left:
            log.warning(
                "%d listeners of group %s still run after %g s and are left behind; their messages come again",
                left,
                self._group,
                timeout_s,
            )
        then()

    def _run(self, life: int) -> None:
        failed = f"a listener's thread of group {self._group} failed at its task"
        while not self.is_stopping and life == self._life:
            with KeepThread(log, failed):
                self._take(life)()
        if self._stopper is not None and self._stopper.is_current():
            with KeepThread(log, f"closing the consumer of group {self._group} failed"):
                self._then()


def with_hooks(runtime: Runtime, config: MemberConfig, listener: Listener) -> Listener:
    """Return a listener that calls the hooks before and after the given listener."""
    if not config.hooks:
        return listener
    deliveries = HookCalls(runtime, config)

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        delivery = deliveries.begin(messages)
        begun_ns = runtime.monotonic_ns()
        answer: ConsumeResult = Retry()
        error: Exception | None = None
        try:
            answer = read_result(listener(messages))
        except (Retry, Reject) as given:
            answer = given
        except ANYTHING as raised:
            error = raised if isinstance(raised, Exception) else RuntimeError(f"it raised {raised!r}")
        deliveries.ended(delivery, messages, error, is_consumed=answer is None, begun_ns=begun_ns)
        if error is not None:
            raise error
        return answer

    return listen


class ConsumeService(ABC):
    """The threads of a listener; the base class of the concurrent and the orderly service."""

    _member: Member
    """The member whose messages the listener gets; set by `belong_to`."""

    def __init__(self, runtime: Runtime, config: MemberConfig, listener: Listener, *, hang_check_s: float) -> None:
        """Create the service; `hang_check_s` is the period of the search for listener calls that hang, seconds."""
        self._runtime = runtime
        self._config = config
        self._listener = with_hooks(runtime, config, listener)
        self._hang_check_s = hang_check_s
        self._lock = runtime.lock()
        self._workers = Workers(runtime, config.group, config.thread_count)

    def give_directly(self, message: ReceivedMessage, then: Callable[[bool], None]) -> None:
        """Let a thread consume one message at a broker's request (309). After the stop, the message is ignored."""
        self._workers.submit(lambda: then(call_listener(self._listener, [message], self._config.group) is None))

    def belong_to(self, member: Member) -> None:
        """Set the member whose messages the listener gets."""
        self._member = member

    def start(self) -> None:
        """Start the threads, as the last step of the member's start. Earlier messages wait for the threads.

        Raises a ClientError, and then leaves no thread running.
        """
        with ExitStack() as undo:
            undo.callback(self._workers.dismiss)
            self._workers.start()
            self._member.after(self._hang_check_s, self._look_again)
            undo.pop_all()

    def stop(self, then: Callable[[], None]) -> None:
        """End the threads, then call `then`. A listener that does not return in time keeps running and keeps its queue.

        If a listener calls this method, the threads end after the listener returns.
        """
        self._workers.stop(self._config.close_timeout_s, then)

    @abstractmethod
    def deliver(self, batch: Batch, /) -> None:
        """Accept the messages of a pull; called on a reader thread."""

    @abstractmethod
    def is_busy(self, puller: Puller, /) -> bool:
        """Whether the listener has messages of the queue now."""

    @abstractmethod
    def _look_for_hanging(self) -> None:
        """Log listener calls that take too long. The timer's thread calls this method."""

    def _look_again(self) -> None:
        self._look_for_hanging()
        self._member.after(self._hang_check_s, self._look_again)


_Lots: TypeAlias = deque[tuple[ReceivedMessage, ...]]
HANG_CHECKS: Final = 4
"""How many times in each `consume_timeout_s` the consumer looks for listener calls that hang."""


@define(slots=True, eq=False)
class _Giving:
    """A thread that calls the listener repeatedly, with messages of one queue."""

    puller: Puller
    topic: str
    is_plain: bool
    """Whether the topic is not the group's retry topic, so that the listener gets its messages with this topic."""
    messages: Sequence[ReceivedMessage] = ()
    """The messages of the thread's last listener call, as they were pulled."""
    began_ns: int = 0
    """When the running listener call began, ns; 0 if no call runs. This field is set after `messages`."""
    is_told: bool = False
    """Whether the call was found to hang, in which case its messages were sent back and its result is ignored."""


class ConcurrentConsumeService(ConsumeService):
    """The threads of a listener that may be called several times at once.

    Invariant: `_giving` has every thread that may call the listener. The list and `is_told` change under `_lock`. A
    call begins and ends without the lock: the search for hanging calls reads the clock before it looks for calls, and a
    call reads the clock after it is no longer visible. Therefore a call that took less than `_hang_ns` was not found.
    """

    def __init__(self, runtime: Runtime, config: MemberConfig, listener: Listener) -> None:
        super().__init__(runtime, config, listener, hang_check_s=config.consume_timeout_s / HANG_CHECKS)
        self._now_ns = runtime.monotonic_ns
        self._hang_ns = int(config.consume_timeout_s * 1e9)
        self._giving: set[_Giving] = set()

    def is_busy(self, puller: Puller) -> bool:
        """Whether a thread may be calling the listener with messages of the queue."""
        with self._lock:
            return any(giving.puller is puller for giving in self._giving)

    def deliver(self, batch: Batch) -> None:
        """Split the messages of a pull into lots of at most `consume_count_max`, and queue tasks that consume them."""
        size, messages = self._config.consume_count_max, batch.messages
        lots: _Lots
        if size == 1:
            lots = deque(zip(messages))
        else:
            lots = deque(messages[at : at + size] for at in range(0, len(messages), size))
        # Each thread gets a task, so that no thread begins the next batch before all lots of this batch are taken. One
        # extra task replaces a task that fails.
        task_count = min(len(lots), self._config.thread_count + 1)
        self._workers.submit(*[partial(self._share, batch.puller, lots)] * task_count)

    def _share(self, puller: Puller, lots: _Lots) -> None:
        """Give lots to the listener until none is left, while other threads do the same.

        A lot that was taken is given to the listener even after the stop, because otherwise later lots that are already
        consumed would come again together with this lot. If the listener is quick, one thread gives all lots before the
        other threads wake; a task per lot would cost more than such a listener. An error ends only this thread's work
        on the lots.
        """
        if not lots:
            return
        with self._calling(puller) as giving:
            while not self._workers.is_stopping and (lot := _next_of(lots)) is not None:
                self._consume(giving, lot, 0)

    def _submit(self, puller: Puller, messages: Sequence[ReceivedMessage], again_count: int) -> None:
        self._workers.submit(partial(self._consume_again, puller, messages, again_count))

    def _consume_again(self, puller: Puller, messages: Sequence[ReceivedMessage], again_count: int) -> None:
        with self._calling(puller) as giving:
            self._consume(giving, messages, again_count)

    @contextmanager
    def _calling(self, puller: Puller) -> Iterator[_Giving]:
        topic = puller.queue.topic
        giving = _Giving(puller, topic, topic != self._member.retry_topic)
        with self._lock:
            self._giving.add(giving)
        try:
            yield giving
        finally:
            with self._lock:
                self._giving.discard(giving)
            if puller.is_dropped:
                self._member.release_soon(puller)

    def _consume(self, giving: _Giving, messages: Sequence[ReceivedMessage], again_count: int) -> None:
        """Give messages to the listener, which has had them `again_count` times without the broker's knowledge."""
        puller, topic, now_ns = giving.puller, giving.topic, self._now_ns
        if not puller.is_open and (
            puller.is_dropped or puller.defer(lambda: self._submit(puller, messages, again_count))
        ):
            return
        is_plain = giving.is_plain and not again_count
        shown = list(messages) if is_plain else all_as_shown(messages, topic, self._member.retry_topic, again_count)
        giving.messages = messages
        giving.began_ns = began_ns = now_ns()
        answer = call_listener(self._listener, shown, self._config.group)
        giving.began_ns = 0
        took_ns = now_ns() - began_ns
        is_consumed = answer is None
        self._member.statistics.given(topic, len(messages), took_ns, is_consumed=is_consumed)
        if took_ns > self._hang_ns and self._was_told(giving):
            return
        if answer is None:
            puller.done(messages)
        elif not puller.is_dropped:
            self._put_off(puller, messages, answer, again_count)

    def _was_told(self, giving: _Giving) -> bool:
        with self._lock:
            is_told, giving.is_told = giving.is_told, False
            return is_told

    def _put_off(
        self, puller: Puller, messages: Sequence[ReceivedMessage], answer: Retry | Reject, again_count: int
    ) -> None:
        """Send messages back to the broker. The client itself retries messages that the broker does not accept."""
        again = partial(self._submit, puller, again_count=again_count + 1)
        self._member.run(self._member.put_off(puller, messages, answer.level, again))

    def _look_for_hanging(self) -> None:
        """Log listener calls that take too long, and send their messages back. The timer's thread calls this method."""
        due_ns = self._now_ns() - self._hang_ns
        with self._lock:
            hanging = [giving for giving in self._giving if 0 < giving.began_ns < due_ns and not giving.is_told]
            for giving in hanging:
                giving.is_told = True
            late = [(giving.puller, giving.messages) for giving in hanging]
        for puller, messages in late:
            place = f"{puller.queue.topic} queue {puller.queue.queue_id} offset {messages[0].queue_offset}"
            text = "the listener of group %s has not answered for %g s at %s: sent back"
            log.warning(text, self._config.group, self._config.consume_timeout_s, place)
            self._put_off(puller, messages, Retry(), 0)


def _next_of(lots: _Lots) -> tuple[ReceivedMessage, ...] | None:
    try:
        return lots.popleft()
    except IndexError:
        return None


LOCK_WAIT_S: Final = 0.1
"""Seconds until a queue whose lock has expired is tried again."""
AskListener: TypeAlias = Callable[[list[ReceivedMessage]], object]
"""A function that lets the listener consume messages and returns a ConsumeResult, or an awaitable on an event loop."""


@define(slots=True, eq=False)
class _Active:
    """The state of a queue that has messages to consume, or for which a task will look for messages."""

    attempts: dict[int, int] = field(factory=dict)
    """Maps a message's offset to the number of times that the listener retried or rejected the message."""
    is_running: bool = False
    began_ns: int = 0
    is_told: bool = False


class OrderlyQueues:
    """The queues of one orderly consumer, on threads or on an event loop.

    Invariant: `_active` has each queue with exactly one task, which is queued, running, or waiting for the timer or for
    `resume`; it changes under `_lock`. Therefore two tasks never have messages of one queue.
    """

    def __init__(self, runtime: Runtime, look: Callable[[Puller], None], member: GroupMember) -> None:
        """Create the queues; `look` schedules a task that calls `consume` for a queue."""
        self._now_ns = runtime.monotonic_ns
        self._lock = runtime.lock()
        self._look = look
        self._member = member
        self._config = member.config
        self._active: dict[Puller, _Active] = {}

    def is_busy(self, puller: Puller) -> bool:
        """Whether the listener has messages of the queue now."""
        with self._lock:
            active = self._active.get(puller)
            return active is not None and active.is_running

    def deliver(self, batch: Batch) -> None:
        """Plan a task for the batch's queue, unless the queue has a task already."""
        with self._lock:
            if batch.puller in self._active:
                return
            self._active[batch.puller] = _Active()
        self._look(batch.puller)

    def consume(self, puller: Puller, ask: AskListener) -> Steps[None]:
        """Give the queue's first messages to the listener, if this client still holds the queue."""
        if puller.defer(lambda: self._look(puller)):
            return
        if not puller.is_locked:
            self._member.after(LOCK_WAIT_S, lambda: self._look(puller))
            return
        with self._lock:
            active = self._active[puller]
            messages = puller.first(self._config.consume_count_max)
            if not messages:
                del self._active[puller]
                return
            active.is_running, active.began_ns, active.is_told = True, self._now_ns(), False
        try:
            answer: ConsumeResult = yield Call(partial(ask, self._shown(messages, active)))
            took_ns = self._now_ns() - active.began_ns
            self._member.statistics.given(puller.queue.topic, len(messages), took_ns, is_consumed=answer is None)
            # Without the lock, a queue that was given up may belong to another member now, so this call must not change
            # its messages.
            is_lost = puller.is_dropped and not puller.is_locked
            is_done = not is_lost and (answer is None or (yield from self._are_dead(puller, active, messages, answer)))
            if is_done:
                puller.done(messages)
        finally:
            # The call ends only here, because a queue's last offset is stored as soon as its listener is not busy.
            with self._lock:
                active.is_running = False
        self._go_on(puller, active, messages, None if is_done else answer)

    def _go_on(self, puller: Puller, active: _Active, messages: list[ReceivedMessage], answer: ConsumeResult) -> None:
        """Plan the next task of the queue, after a delay if its messages come again; or release a revoked queue."""
        with self._lock:
            is_dropped = puller.is_dropped
            if is_dropped:
                del self._active[puller]
        if is_dropped:
            self._member.release_soon(puller)
        elif answer is None:
            for message in messages:
                active.attempts.pop(message.queue_offset, None)
            self._look(puller)
        else:
            for message in messages:
                active.attempts[message.queue_offset] = active.attempts.get(message.queue_offset, 0) + 1
            delay_s = answer.delay_s if isinstance(answer, Retry) else None
            wait_s = self._config.suspend_s if delay_s is None else delay_s
            self._member.after(wait_s, lambda: self._look(puller))

    def _shown(self, messages: list[ReceivedMessage], active: _Active) -> list[ReceivedMessage]:
        topic, attempts = self._member.retry_topic, active.attempts
        return [as_shown(message, topic, attempts.get(message.queue_offset, 0)) for message in messages]

    def _are_dead(
        self, puller: Puller, active: _Active, messages: list[ReceivedMessage], answer: Retry | Reject
    ) -> Steps[bool]:
        """Whether all of these messages are now dead letters (`checkReconsumeTimes`) or skipped."""
        shown, most = self._shown(messages, active), self._config.max_attempts
        if self._config.is_broadcasting:
            if isinstance(answer, Reject):
                self._member.log_not_retried(shown)
            return isinstance(answer, Reject)
        if isinstance(answer, Retry) and (most is None or any(message.attempt < most for message in shown)):
            return False
        try:
            for message in messages:
                yield from self._member.send_back(message, puller.queue, DEAD_LEVEL)
        except LongpollError as error:
            log.warning("a dead letter of group %s could not be sent: %s; it is tried again", self._config.group, error)
            return False
        return True

    def late(self, due_ns: int) -> list[MessageQueue]:
        """Return queues whose listener was called before this time and still runs; each call is reported only once."""
        with self._lock:
            active = self._active.items()
            late = [each for each in active if each[1].is_running and each[1].began_ns < due_ns and not each[1].is_told]
            for _puller, each in late:
                each.is_told = True
        return [puller.queue for puller, _each in late]


class OrderlyConsumeService(ConsumeService):
    """The threads of a listener that gets each queue's messages in order."""

    _queues: OrderlyQueues

    def __init__(self, runtime: Runtime, config: MemberConfig, listener: Listener) -> None:
        super().__init__(runtime, config, listener, hang_check_s=config.consume_timeout_s)

    def belong_to(self, member: Member) -> None:
        """Set the member whose messages the listener gets."""
        super().belong_to(member)
        self._queues = OrderlyQueues(self._runtime, self._look, member)

    def is_busy(self, puller: Puller) -> bool:
        """See `OrderlyQueues.is_busy`."""
        return self._queues.is_busy(puller)

    def deliver(self, batch: Batch) -> None:
        """See `OrderlyQueues.deliver`."""
        self._queues.deliver(batch)

    def _look(self, puller: Puller) -> None:
        self._workers.submit(lambda: self._member.run(self._queues.consume(puller, self._ask)))

    def _ask(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        return call_listener(self._listener, messages, self._config.group)

    def _look_for_hanging(self) -> None:
        """Log each listener call that takes too long, once.

        The call's messages are not sent back to the broker, because a message that is sent back loses its order.
        """
        timeout_s = self._config.consume_timeout_s
        for queue in self._queues.late(self._runtime.monotonic_ns() - int(timeout_s * 1e9)):
            log.warning(
                "the listener of group %s has not answered for %g s at %s queue %d: the queue waits for it",
                self._config.group, timeout_s, queue.topic, queue.queue_id,
            )  # fmt: skip
