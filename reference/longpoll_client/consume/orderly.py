"""Calls a listener with each queue's messages in order, one call per queue at a time.

A retried message blocks its queue until it is consumed or a dead letter. A queue is consumed only while its broker
locks it for this client. A consumer that dies blocks its queues for 60 s.

Source: `ConsumeMessageOrderlyService.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from attrs import define, field

from longpoll_client.consume.listener import ConsumeResult, ConsumeService, Listener, Reject, Retry, call_listener
from longpoll_client.consume.member import GroupMember, Member
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.link.steps import Call, Steps
from longpoll_client.messages import ReceivedMessage, as_shown
from longpoll_client.settings import DEAD_LEVEL, MemberConfig
from longpoll_protocol.bodies import MessageQueue
from longpoll_runtime import Runtime
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)

LOCK_WAIT_S: Final = 0.1
"""How long until a queue whose lock ran out is looked at again."""
AskListener: TypeAlias = Callable[[list[ReceivedMessage]], object]
"""Has the listener consume messages; returns a ConsumeResult, on an event loop to be awaited."""


@define(slots=True, eq=False)
class _Active:
    """A queue that has messages to consume, or a task that will look."""

    attempts: dict[int, int] = field(factory=dict)
    """By offset, how often the listener has put a message off."""
    is_running: bool = False
    began_ns: int = 0
    is_told: bool = False


class OrderlyQueues:
    """The queues of one consumer, on threads and on an event loop.

    Invariant: `_active` has each queue with exactly one task, which is queued, running, waiting for the timer or for
    `resume`; it changes under `_lock`. So two tasks never have messages of one queue.
    """

    def __init__(self, runtime: Runtime, look: Callable[[Puller], None], member: GroupMember) -> None:
        """`look` has `consume` called by a task soon."""
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
        """Look at the queue, unless that is already planned."""
        with self._lock:
            if batch.puller in self._active:
                return
            self._active[batch.puller] = _Active()
        self._look(batch.puller)

    def consume(self, puller: Puller, ask: AskListener) -> Steps[None]:
        """Give the listener the queue's first messages, if the queue is still this client's."""
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
            # A queue that was given up may be another member's once its lock is lost.
            is_lost = puller.is_dropped and not puller.is_locked
            is_done = not is_lost and (answer is None or (yield from self._are_dead(puller, active, messages, answer)))
            if is_done:
                puller.done(messages)
        finally:
            # Only now: the offset of a queue that is given up is stored when its listener is not busy.
            with self._lock:
                active.is_running = False
        self._go_on(puller, active, messages, None if is_done else answer)

    def _go_on(self, puller: Puller, active: _Active, messages: list[ReceivedMessage], answer: ConsumeResult) -> None:
        """Look at the next messages, after a while if these come again; or have a queue that was given up released."""
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
        """Whether all of them are dead letters now (`checkReconsumeTimes`), or are skipped."""
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
        """Queues whose listener was called before this time and has not answered, each once per call."""
        with self._lock:
            active = self._active.items()
            late = [each for each in active if each[1].is_running and each[1].began_ns < due_ns and not each[1].is_told]
            for _puller, each in late:
                each.is_told = True
        return [puller.queue for puller, _each in late]


class OrderlyConsumeService(ConsumeService):
    """The threads of a listener that gets messages in order."""

    _queues: OrderlyQueues

    def __init__(self, runtime: Runtime, config: MemberConfig, listener: Listener) -> None:
        super().__init__(runtime, config, listener, hang_check_s=config.consume_timeout_s)

    def belong_to(self, member: Member) -> None:
        """Set the member whose messages the listener gets."""
        super().belong_to(member)
        self._queues = OrderlyQueues(self._runtime, self._look, member)

    def is_busy(self, puller: Puller) -> bool:
        """As `OrderlyQueues.is_busy`."""
        return self._queues.is_busy(puller)

    def deliver(self, batch: Batch) -> None:
        """As `OrderlyQueues.deliver`."""
        self._queues.deliver(batch)

    def _look(self, puller: Puller) -> None:
        self._workers.submit(lambda: self._member.run(self._queues.consume(puller, self._ask)))

    def _ask(self, messages: list[ReceivedMessage]) -> ConsumeResult:
        return call_listener(self._listener, messages, self._config.group)

    def _look_for_hanging(self) -> None:
        """Log listeners that take too long, once. Nothing else may be done, to keep the order."""
        timeout_s = self._config.consume_timeout_s
        for queue in self._queues.late(self._runtime.monotonic_ns() - int(timeout_s * 1e9)):
            log.warning(
                "the listener of group %s has not answered for %g s at %s queue %d: the queue waits for it",
                self._config.group, timeout_s, queue.topic, queue.queue_id,
            )  # fmt: skip
