"""Calls a listener with each queue's messages in order, one call per queue at a time.

A retried message blocks its queue until it is consumed or a dead letter. A queue is consumed only while its broker
locks it for this client. A consumer that dies blocks its queues for 60 s.

Source: `ConsumeMessageOrderlyService.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Literal

from attrs import define, field

from longpoll_client.consume.listener import (
    ConsumeResult,
    ConsumeService,
    Listener,
    Reject,
    Retry,
    call_listener,
    log_not_retried,
)
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.messages import ReceivedMessage, as_shown
from longpoll_client.settings import DEAD_LEVEL, MemberConfig
from longpoll_runtime import Runtime
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)

LOCK_WAIT_S: Final = 0.1
"""How long until a queue whose lock ran out is looked at again."""


def fate_of(
    config: MemberConfig, answer: Retry | Reject, shown: Sequence[ReceivedMessage]
) -> Literal["again", "dead", "over"]:
    """What to do with messages that a listener retried or rejected; "over" when broadcasting: they are skipped."""
    most = config.max_attempts
    if config.is_broadcasting and isinstance(answer, Reject):
        log_not_retried(config.group, shown)
        return "over"
    is_last = most is not None and all(message.attempt >= most for message in shown)
    return "dead" if isinstance(answer, Reject) or (is_last and not config.is_broadcasting) else "again"


def wait_s(config: MemberConfig, answer: Retry | Reject) -> float:
    """How long a queue waits after a retry, seconds."""
    delay_s = answer.delay_s if isinstance(answer, Retry) else None
    return config.suspend_s if delay_s is None else delay_s


@define(slots=True, eq=False)
class _Active:
    """A queue that has messages to consume, or a task that will look."""

    attempts: dict[int, int] = field(factory=dict)
    """By offset, how often the listener has put a message off."""
    is_running: bool = False
    began_ns: int = 0
    is_told: bool = False


class OrderlyConsumeService(ConsumeService):
    """The listener's threads.

    Invariant: `_active` has each queue with exactly one task, which is queued, running, waiting for the timer or for
    `resume`; it changes under `_lock`. So two threads never have messages of one queue.
    """

    def __init__(self, runtime: Runtime, config: MemberConfig, listener: Listener) -> None:
        super().__init__(runtime, config, listener, hang_check_s=config.consume_timeout_s)
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
        self._submit(batch.puller)

    def _submit(self, puller: Puller) -> None:
        self._workers.submit(lambda: self._consume(puller))

    def _consume(self, puller: Puller) -> None:
        """Give the listener the queue's first messages, if the queue is still this client's."""
        if puller.defer(lambda: self._submit(puller)):
            return
        if not puller.is_locked:
            self._member.after(LOCK_WAIT_S, lambda: self._submit(puller))
            return
        with self._lock:
            active = self._active[puller]
            messages = puller.first(self._config.consume_count_max)
            if not messages:
                del self._active[puller]
                return
            active.is_running, active.began_ns, active.is_told = True, self._runtime.monotonic_ns(), False
            shown = [self._shown(message, active) for message in messages]
        answer = call_listener(self._listener, shown, self._config.group)
        self._answered(puller, active, messages, answer)

    def _shown(self, message: ReceivedMessage, active: _Active) -> ReceivedMessage:
        return as_shown(message, self._member.retry_topic, active.attempts.get(message.queue_offset, 0))

    def _answered(
        self, puller: Puller, active: _Active, messages: list[ReceivedMessage], answer: ConsumeResult
    ) -> None:
        took_ms = (self._runtime.monotonic_ns() - active.began_ns) / 1e6
        counted = {"consumed_count" if answer is None else "later_count": len(messages)}
        self._member.statistics.add(puller.queue.topic, consume_ms=took_ms, **counted)
        # A queue that was given up may be another member's once its lock is lost.
        is_lost = puller.is_dropped and not puller.is_locked
        is_done = not is_lost and (answer is None or self._are_dead(puller, active, messages, answer))
        if is_done:
            for message in messages:
                active.attempts.pop(message.queue_offset, None)
            puller.done(messages)
        with self._lock:
            # Only now: the offset of a queue that is given up is stored when its listener is not busy.
            active.is_running = False
            is_dropped = puller.is_dropped
            if is_dropped:
                del self._active[puller]
        if is_dropped:
            self._member.release_soon(puller)
        elif is_done:
            self._submit(puller)
        else:
            assert answer is not None, "a message that is consumed is done"
            for message in messages:
                active.attempts[message.queue_offset] = active.attempts.get(message.queue_offset, 0) + 1
            self._member.after(wait_s(self._config, answer), lambda: self._submit(puller))

    def _are_dead(
        self, puller: Puller, active: _Active, messages: list[ReceivedMessage], answer: Retry | Reject
    ) -> bool:
        """Whether all of them are dead letters now (`checkReconsumeTimes`), or are skipped."""
        fate = fate_of(self._config, answer, [self._shown(message, active) for message in messages])
        try:
            for message in messages if fate == "dead" else ():
                self._member.run(self._member.send_back(message, puller.queue, DEAD_LEVEL))
        except LongpollError as error:
            log.warning("a dead letter of group %s could not be sent: %s; it is tried again", self._config.group, error)
            return False
        return fate != "again"

    def _look_for_hanging(self) -> None:
        """Log listeners that take too long, once. Nothing else may be done, to keep the order."""
        timeout_s = self._config.consume_timeout_s
        due_ns = self._runtime.monotonic_ns() - int(timeout_s * 1e9)
        with self._lock:
            hanging = [
                (puller.queue, active)
                for puller, active in self._active.items()
                if active.is_running and active.began_ns < due_ns and not active.is_told
            ]
            for _queue, active in hanging:
                active.is_told = True
        for queue, _active in hanging:
            log.warning(
                "the listener of group %s has not answered for %g s at %s queue %d: the queue waits for it",
                self._config.group,
                timeout_s,
                queue.topic,
                queue.queue_id,
            )
