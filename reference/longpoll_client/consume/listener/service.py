"""The base class of the two consume services, which call a listener on threads: `concurrent` and `orderly`.

Source: `ConsumeMessageService.java`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from longpoll_client.consume.hook_calls import HookCalls
from longpoll_client.consume.listener.workers import (
    CaughtError,
    ConsumeResult,
    DirectListener,
    Listener,
    Reject,
    Retry,
    Workers,
    read_result,
)
from longpoll_client.consume.member import Member
from longpoll_client.consume.puller import Batch, Puller
from longpoll_client.messages import ReceivedMessage
from longpoll_client.settings import MemberConfig
from longpoll_runtime import Runtime

log: logging.Logger = logging.getLogger(__name__)


def with_hooks(runtime: Runtime, config: MemberConfig, listener: Listener) -> Listener:
    """The listener, with calls of the hooks before and after it."""
    if not config.hooks:
        return listener
    deliveries = HookCalls(runtime, config)

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        delivery = deliveries.begin(messages)
        begun_ns = runtime.monotonic_ns()
        answer: ConsumeResult = None
        with CaughtError() as kept:
            answer = read_result(listener(messages))
        if isinstance(kept.error, Retry | Reject):
            kept.error, answer = None, kept.error
        latency_ns = runtime.monotonic_ns() - begun_ns
        is_consumed = kept.error is None and answer is None
        deliveries.ended(delivery, messages, kept.error, is_consumed=is_consumed, latency_ns=latency_ns)
        if kept.error is not None:
            raise kept.error
        return answer

    return listen


class ConsumeService(ABC):
    """A listener's threads. `direct` takes single messages that a broker wants consumed."""

    def __init__(self, runtime: Runtime, config: MemberConfig, listener: Listener, *, hang_check_s: float) -> None:
        """`hang_check_s` is the period of the search for hanging listeners."""
        self._runtime = runtime
        self._config = config
        listener = with_hooks(runtime, config, listener)
        self._listener = listener
        self._hang_check_s = hang_check_s
        self._lock = runtime.lock()
        self._workers = Workers(runtime, config.group, config.thread_count)
        self.direct: DirectListener = DirectListener(self._workers, listener, config.group)
        self._owner: Member | None = None

    @property
    def _member(self) -> Member:
        assert self._owner is not None, "a listener belongs to a member before that is started"
        return self._owner

    def belong_to(self, member: Member) -> None:
        """Set the member whose messages the listener gets."""
        self._owner = member

    def start(self) -> None:
        """Start the threads, as the last part of the member's start. Messages that came before wait for them.

        Raises a ClientError, and then leaves no thread.
        """
        with ExitStack() as undo:
            undo.callback(self._workers.dismiss)
            self._workers.start()
            self._member.after(self._hang_check_s, self._look_again)
            undo.pop_all()

    def stop(self, then: Callable[[], None]) -> None:
        """End the threads, then call `then`. A listener that does not end in time is left behind with its queue.

        In a listener, the rest happens after the listener returns.
        """
        self._workers.stop(self._config.close_timeout_s, then)

    @abstractmethod
    def deliver(self, batch: Batch, /) -> None:
        """Take the messages of a pull; on a reader thread."""

    @abstractmethod
    def is_busy(self, puller: Puller, /) -> bool:
        """Whether the listener has messages of an orderly queue now."""

    @abstractmethod
    def _look_for_hanging(self) -> None:
        """Log listeners that have had messages for too long; on the timer's thread."""

    def _look_again(self) -> None:
        self._look_for_hanging()
        self._member.after(self._hang_check_s, self._look_again)
