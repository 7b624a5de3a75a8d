"""Calls a coroutine with each queue's messages in order, one call per queue at a time, as on threads.

Source: `ConsumeMessageOrderlyService.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from attrs import define, field

from longpoll_client.aio.member import AsyncMember
from longpoll_client.consume.listener.orderly import LOCK_WAIT_S, fate_of, wait_s
from longpoll_client.consume.listener.workers import ConsumeResult, Reject, Retry
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.messages import ReceivedMessage, as_shown
from longpoll_client.settings import DEAD_LEVEL, MemberConfig
from longpoll_runtime import Runtime
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)

Ask: TypeAlias = Callable[[Sequence[ReceivedMessage]], Awaitable[ConsumeResult]]
"""Has the listener consume messages."""


@define(slots=True, eq=False)
class _Active:
    """A queue that has something to consume, or will be looked at."""

    attempts: dict[int, int] = field(factory=dict)
    """By offset, how often the listener has put a message off."""
    is_running: bool = False


class OrderlyQueues:
    """The queues of one consumer.

    Invariant: `_active` has each queue that will be looked at, by exactly one of: a task with its lot, a running task,
    a timer, or the puller's `resume`. So two tasks never have messages of one queue.
    """

    def __init__(
        self, runtime: Runtime, config: MemberConfig, look: Callable[[Puller], None], member: AsyncMember
    ) -> None:
        """`look` has `consume` called by a task soon."""
        self._runtime = runtime
        self._config = config
        self._look = look
        self._member = member
        self._active: dict[Puller, _Active] = {}

    def is_busy(self, puller: Puller) -> bool:
        """Whether the listener has messages of the queue now."""
        active = self._active.get(puller)
        return active is not None and active.is_running

    def deliver(self, batch: Batch) -> None:
        """Look at the queue, unless that is already planned."""
        if batch.puller not in self._active:
            self._active[batch.puller] = _Active()
            self._look(batch.puller)

    async def consume(self, puller: Puller, ask: Ask) -> None:
        """Give the listener the queue's first messages, if the queue is still this client's."""
        if puller.defer(lambda: self._look(puller)):
            return
        if not puller.is_locked:
            self._member.connections.after(LOCK_WAIT_S, lambda: self._look(puller))
            return
        messages = puller.first(self._config.consume_count_max)
        if not messages:
            del self._active[puller]
            return
        active = self._active[puller]
        began_ns = self._runtime.monotonic_ns()
        active.is_running = True
        try:
            answer = await ask([self._shown(message, active) for message in messages])
            took_ns = self._runtime.monotonic_ns() - began_ns
            self._member.statistics.given(puller.queue.topic, len(messages), took_ns, is_consumed=answer is None)
            # A queue that was given up may be another member's once its lock is lost.
            is_lost = puller.is_dropped and not puller.is_locked
            is_done = not is_lost and (answer is None or await self._are_dead(puller, active, messages, answer))
            if is_done:
                puller.done(messages)
        finally:
            # Only now: the offset of a queue that is given up is stored when its listener is not busy.
            active.is_running = False
        self._answered(puller, active, messages, answer, is_done=is_done)

    def _answered(
        self,
        puller: Puller,
        active: _Active,
        messages: list[ReceivedMessage],
        answer: ConsumeResult,
        *,
        is_done: bool,
    ) -> None:
        if puller.is_dropped:
            del self._active[puller]
            self._member.release_soon(puller)
        elif is_done:
            for message in messages:
                active.attempts.pop(message.queue_offset, None)
            self._look(puller)
        else:
            assert answer is not None, "a message that is consumed is done"
            for message in messages:
                active.attempts[message.queue_offset] = active.attempts.get(message.queue_offset, 0) + 1
            self._member.connections.after(wait_s(self._config, answer), lambda: self._look(puller))

    def _shown(self, message: ReceivedMessage, active: _Active) -> ReceivedMessage:
        return as_shown(message, self._member.retry_topic, active.attempts.get(message.queue_offset, 0))

    async def _are_dead(
        self, puller: Puller, active: _Active, messages: list[ReceivedMessage], answer: Retry | Reject
    ) -> bool:
        """Whether all of them are dead letters now, or are skipped."""
        fate = fate_of(self._config, answer, [self._shown(message, active) for message in messages])
        try:
            for message in messages if fate == "dead" else ():
                await self._member.run(self._member.send_back(message, puller.queue, DEAD_LEVEL))
        except LongpollError as error:
            log.warning("a dead letter of group %s could not be sent: %s; it is tried again", self._config.group, error)
            return False
        return fate != "again"
