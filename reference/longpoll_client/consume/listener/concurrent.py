"""Calls a listener on several threads at once. Messages of one queue may overtake each other.

Source: `ConsumeMessageConcurrentlyService.java`, `ProcessQueue.cleanExpiredMsg`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeAlias

from attrs import define

from longpoll_client.consume.listener.service import ConsumeService
from longpoll_client.consume.listener.workers import Listener, Reject, Retry, call_listener, place_of
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.messages import ReceivedMessage, all_as_shown
from longpoll_client.settings import MemberConfig
from longpoll_runtime import Runtime
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)

LOCAL_RETRY_S: Final = 5.0
"""How long until messages that could not even be sent back are given again (`submitConsumeRequestLater`)."""
_Lots: TypeAlias = deque[tuple[ReceivedMessage, ...]]
HANG_CHECKS: Final = 4
"""How often within `consume_timeout_s` is looked for listeners that hang."""


@define(slots=True, eq=False)
class _Giving:
    """A thread that calls the listener repeatedly, with messages of one queue."""

    puller: Puller
    topic: str
    is_plain: bool
    """Whether the topic is not the group's retry topic: its messages are shown as they are."""
    messages: Sequence[ReceivedMessage] = ()
    """The messages of its last call, as pulled."""
    began_ns: int = 0
    """When the listener was called that has not answered yet; 0: none. Set after `messages`."""
    is_told: bool = False
    """Whether it was found to hang: its messages are sent back, and its answer is of no account."""


class ConcurrentConsumeService(ConsumeService):
    """The listener's threads.

    Invariant: `_giving` has every thread that may call the listener. It and `is_told` change under `_lock`. A call
    begins and ends without the lock: the search for hanging calls reads the clock before it looks for calls, and a call
    reads the clock after it is no longer visible. So a call that took less than `_hang_ns` was not found.
    """

    def __init__(self, runtime: Runtime, config: MemberConfig, listener: Listener) -> None:
        super().__init__(runtime, config, listener, hang_check_s=config.consume_timeout_s / HANG_CHECKS)
        self._now_ns = runtime.monotonic_ns
        self._hang_ns = int(config.consume_timeout_s * 1e9)
        self._giving: set[_Giving] = set()

    def is_busy(self, _puller: Puller) -> bool:
        """Always false: nothing is consumed in order here."""
        return False

    def deliver(self, batch: Batch) -> None:
        """Split the messages of a pull into small lots."""
        size, messages = self._config.consume_count_max, batch.messages
        lots: _Lots
        if size == 1:
            lots = deque(zip(messages))
        else:
            lots = deque(messages[at : at + size] for at in range(0, len(messages), size))
        self._workers.submit(partial(self._share, batch.puller, lots))

    def _share(self, puller: Puller, lots: _Lots) -> None:
        """Give the listener lots until none is left. Before the first one, have another thread do the same.

        If the listener is quick, the other thread comes too late, and one thread gives all lots. A task per lot would
        cost more than such a listener. An error here ends only this thread's part.
        """
        lot = _next_of(lots)
        if lot is None:
            return
        if lots:
            self._workers.submit(partial(self._share, puller, lots))
        with self._calling(puller) as giving:
            while lot is not None and not self._workers.is_stopping:
                self._consume(giving, lot, 0)
                lot = _next_of(lots)

    def _submit(self, puller: Puller, messages: Sequence[ReceivedMessage], again_count: int) -> None:
        self._workers.submit(partial(self._consume_again, puller, messages, again_count))

    def _consume_again(self, puller: Puller, messages: Sequence[ReceivedMessage], again_count: int) -> None:
        with self._calling(puller) as giving:
            self._consume(giving, messages, again_count)

    @contextmanager
    def _calling(self, puller: Puller) -> Iterator[_Giving]:
        """Mark this thread as one that may call the listener."""
        topic = puller.queue.topic
        giving = _Giving(puller, topic, topic != self._member.retry_topic)
        with self._lock:
            self._giving.add(giving)
        try:
            yield giving
        finally:
            with self._lock:
                self._giving.discard(giving)

    def _consume(self, giving: _Giving, messages: Sequence[ReceivedMessage], again_count: int) -> None:
        """Give messages to the listener, which had them `again_count` times without the broker knowing."""
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
        """Whether the call that has ended was found to hang."""
        with self._lock:
            is_told, giving.is_told = giving.is_told, False
            return is_told

    def _put_off(
        self, puller: Puller, messages: Sequence[ReceivedMessage], answer: Retry | Reject, again_count: int
    ) -> None:
        """Send messages back. The client retries locally those that the broker does not accept."""
        kept = self._send_back(puller, messages, answer.level)
        puller.done([message for message in messages if message not in kept])
        if kept:
            self._member.after(LOCAL_RETRY_S, lambda: self._submit(puller, kept, again_count + 1))

    def _send_back(
        self, puller: Puller, messages: Sequence[ReceivedMessage], delay_level: int
    ) -> list[ReceivedMessage]:
        """Send messages back to their broker; those that it did not take."""
        if self._config.is_broadcasting:
            log_not_retried(self._config.group, messages)
            return []
        kept = []
        for message in messages:
            try:
                self._member.run(self._member.send_back(message, puller.queue, delay_level))
            except LongpollError as error:
                log.warning("sending back failed: %s; the message is given again in %g s", error, LOCAL_RETRY_S)
                kept.append(message)
        return kept

    def _look_for_hanging(self) -> None:
        """Log listeners that take too long, and send their messages back; on the timer's thread."""
        timeout_s = self._config.consume_timeout_s
        due_ns = self._now_ns() - self._hang_ns
        with self._lock:
            hanging = [giving for giving in self._giving if 0 < giving.began_ns < due_ns and not giving.is_told]
            for giving in hanging:
                giving.is_told = True
            late = [(giving.puller, giving.messages) for giving in hanging]
        for puller, messages in late:
            queue = puller.queue
            log.warning(
                "the listener of group %s has not answered for %g s at %s queue %d offset %d: sent back",
                self._config.group,
                timeout_s,
                queue.topic,
                queue.queue_id,
                messages[0].queue_offset,
            )
            self._put_off(puller, messages, Retry(), 0)


def _next_of(lots: _Lots) -> tuple[ReceivedMessage, ...] | None:
    """Take the first lot; None if another thread took the last one."""
    try:
        return lots.popleft()
    except IndexError:
        return None


def log_not_retried(group: str, messages: Sequence[ReceivedMessage]) -> None:
    """Log that retried messages of a broadcasting group do not come again."""
    for message in messages:
        log.warning("group %s is broadcast to, so %s does not come again", group, place_of(message))
