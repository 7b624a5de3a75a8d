"""What both ways of giving messages to a listener have: its threads, and when they start and end.

Leaves out which messages it gets and when (`concurrent`, `orderly`).

Source: `ConsumeMessageService.java`.
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.consume.workers import Answer, ConsumeStatus, DirectListener, Keeping, Listener, Workers
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import ConsumerConfig
from longpoll_runtime import Runtime
from longpoll_runtime.faults import KeepGoing

log = logging.getLogger(__name__)


def watched(runtime: Runtime, config: ConsumerConfig, listener: Listener) -> Listener:
    """The listener, with the hooks of the config told before and after each call."""
    if not config.hooks:
        return listener
    first, number = f"{runtime.unix_ms():X}{runtime.monotonic_ns():X}-", itertools.count(1)

    def listen(messages: Sequence[ReceivedMessage]) -> Answer:
        delivery = f"{first}{next(number)}"
        for hook in config.hooks:
            with KeepGoing(log, "a hook before a listener failed"):
                hook.before_consume(config.group, delivery, messages)
        begun_ns = runtime.monotonic_ns()
        answer: Answer = ConsumeStatus.LATER
        with Keeping() as kept:
            answer = listener(messages)
        latency_ns = runtime.monotonic_ns() - begun_ns
        is_consumed = kept.error is None and answer is ConsumeStatus.SUCCESS
        for hook in config.hooks:
            with KeepGoing(log, "a hook after a listener failed"):
                hook.after_consume(
                    config.group, delivery, messages, kept.error, is_consumed=is_consumed, latency_ns=latency_ns
                )
        if kept.error is not None:
            raise kept.error
        return answer

    return listen


class Listening(ABC):
    """A listener's threads; `direct` is where a message goes that an administrator wants consumed."""

    def __init__(self, runtime: Runtime, config: ConsumerConfig, listener: Listener, *, hang_check_s: float) -> None:
        """`hang_check_s` is how often listeners are looked for that hang."""
        self._runtime = runtime
        self._config = config
        listener = watched(runtime, config, listener)
        self._listener = listener
        self._hang_check_s = hang_check_s
        self._lock = runtime.lock()
        self._workers = Workers(runtime, config.group, config.thread_count)
        self.direct = DirectListener(self._workers, listener, config.group)
        self._started: GroupMember | None = None

    @property
    def _member(self) -> GroupMember:
        assert self._started is not None, "messages come after the start alone"
        return self._started

    def start(self, member: GroupMember) -> None:
        """Start the threads, before the member; nothing more when a start that failed is tried again."""
        if self._started is not None:
            return
        self._started = member
        self._workers.start()
        member.after(self._hang_check_s, self._look_again)

    def stop(self, then: Callable[[], None]) -> None:
        """End them, then call `then`. A listener that does not end in time is left behind, and its queue with it.

        One that calls this goes on first.
        """
        self._workers.stop(self._config.close_timeout_s, then)

    @abstractmethod
    def deliver(self, batch: Batch, /) -> None:
        """Take what a pull brought; on a reader thread."""

    @abstractmethod
    def is_busy(self, puller: Puller, /) -> bool:
        """Whether the listener has messages of the queue right now, in order."""

    @abstractmethod
    def _look_for_hanging(self) -> None:
        """Tell of listeners that have had messages for too long; on the timer's thread."""

    def _look_again(self) -> None:
        self._look_for_hanging()
        self._member.after(self._hang_check_s, self._look_again)
