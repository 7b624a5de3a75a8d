"""What both ways of giving messages to a listener have: its threads, and when they start and end.

Leaves out which messages it gets and when (`concurrent`, `orderly`).

Source: `ConsumeMessageService.java`.
"""

from __future__ import annotations

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.consume.workers import (
    Answer,
    DirectListener,
    Keeping,
    Listener,
    Reject,
    Retry,
    Workers,
    read_answer,
)
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import MemberConfig
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import KeepGoing

log = logging.getLogger(__name__)


class Deliveries:
    """Tells the hooks of a config before and after each call of its listener, on threads or on an event loop."""

    def __init__(self, runtime: Runtime, config: MemberConfig) -> None:
        self._config = config
        self._first = f"{runtime.unix_ms():X}{runtime.monotonic_ns():X}-"
        self._number = itertools.count(1)

    def begin(self, messages: Sequence[ReceivedMessage]) -> str:
        """The listener is about to get them; what names this delivery."""
        delivery = f"{self._first}{next(self._number)}"
        for hook in self._config.hooks:
            with KeepGoing(log, "a hook before a listener failed"):
                hook.before_consume(self._config.group, delivery, messages)
        return delivery

    def ended(
        self,
        delivery: str,
        messages: Sequence[ReceivedMessage],
        error: Exception | None,
        *,
        is_consumed: bool,
        latency_ns: int,
    ) -> None:
        """It has answered, or raised the error."""
        for hook in self._config.hooks:
            with KeepGoing(log, "a hook after a listener failed"):
                hook.after_consume(
                    self._config.group, delivery, messages, error, is_consumed=is_consumed, latency_ns=latency_ns
                )


def watched(runtime: Runtime, config: MemberConfig, listener: Listener) -> Listener:
    """The listener, with the hooks of the config told before and after each call."""
    if not config.hooks:
        return listener
    deliveries = Deliveries(runtime, config)

    def listen(messages: Sequence[ReceivedMessage]) -> Answer:
        delivery = deliveries.begin(messages)
        begun_ns = runtime.monotonic_ns()
        answer: Answer = None
        with Keeping() as kept:
            answer = read_answer(listener(messages))
        if isinstance(kept.error, Retry | Reject):
            kept.error, answer = None, kept.error
        latency_ns = runtime.monotonic_ns() - begun_ns
        is_consumed = kept.error is None and answer is None
        deliveries.ended(delivery, messages, kept.error, is_consumed=is_consumed, latency_ns=latency_ns)
        if kept.error is not None:
            raise kept.error
        return answer

    return listen


class Listening(ABC):
    """A listener's threads; `direct` is where a message goes that an administrator wants consumed."""

    def __init__(self, runtime: Runtime, config: MemberConfig, listener: Listener, *, hang_check_s: float) -> None:
        """`hang_check_s` is how often listeners are looked for that hang."""
        self._runtime = runtime
        self._config = config
        listener = watched(runtime, config, listener)
        self._listener = listener
        self._hang_check_s = hang_check_s
        self._lock = runtime.lock()
        self._workers = Workers(runtime, config.group, config.thread_count)
        self.direct = DirectListener(self._workers, listener, config.group)
        self._owner: GroupMember | None = None

    @property
    def _member(self) -> GroupMember:
        assert self._owner is not None, "a listener belongs to a member before that is started"
        return self._owner

    def belong_to(self, member: GroupMember) -> None:
        """Have this member's messages."""
        self._owner = member

    def start(self) -> None:
        """Start the threads, as the last part of the member's start: what has come by then has waited for them.

        Raises a ClientError, and then leaves none.
        """
        with ExitStack() as undo:
            undo.callback(self._workers.dismiss)
            self._workers.start()
            self._member.after(self._hang_check_s, self._look_again)
            undo.pop_all()

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
