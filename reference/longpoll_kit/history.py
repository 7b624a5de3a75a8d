"""Record a run's publishes and polls in a history, so that the judge can check the run too.

Without a history, nothing is recorded. The kit observes events from outside, so it records each event as an interval:
the service received a poll between the start and the end of `start_poll`, and it sent an answer before the kit saw the
answer, but earlier by no more than the host pauses in between.

`longpoll.HistoryWriter` writes histories. `longpoll.judge` checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import define, field

from longpoll_kit.errors import SubjectError
from longpoll_kit.model import Allowances, Ask, Message, Queue
from longpoll_kit.subject import LongPollSubject
from longpoll_runtime import Lock, Runtime


class History(Protocol):
    """A history that is being written, such as `longpoll.HistoryWriter`; its times are from the monotonic clock."""

    def published(self, queue: str, offset: int, *, since_ns: int | None = None) -> None:
        """Record that the service acknowledged a message to its publisher."""
        ...

    def polled(self, queue: str, offset: int, timeout_ms: int, *, since_ns: int | None = None) -> Any:
        """Record that the service received a poll; the returned object identifies the poll."""
        ...

    def answered(
        self, poll: Any, offsets: Sequence[int] = (), *, end: int | None = None, since_ns: int | None = None
    ) -> None:
        """Record the answer to a poll: the offsets of its messages, and the queue's `end` if the answer shows it."""
        ...

    def abandoned(self, poll: Any) -> None:
        """Record that a poll no longer needs an answer."""
        ...


@define(eq=False)
class RecordedHistory:
    """Records one example in a history. Without a history, every method does nothing.

    Invariant: `_open` holds the recorded polls whose ends are not recorded yet; `_lock` protects the attributes `_open`
    and `_is_left`.
    """

    history: History | None
    _lock: Lock
    _open: dict[Ask, Any] = field(factory=dict)
    _is_left: bool = False

    def published(self, queue: Queue, message: Message) -> None:
        """Record a publish as an interval: the service acknowledged the message some time after the publish began."""
        if self.history is not None:
            self.history.published(queue.name, message.number, since_ns=message.begun_ns)

    def sent(self, ask: Ask) -> None:
        """Record a poll as an interval: the service received the poll some time after the poll's start.

        The poll's own thread calls this method.
        """
        with self._lock:
            if self.history is not None and not self._is_left:
                self._open[ask] = self.history.polled(ask.queue, ask.first, ask.timeout_ms, since_ns=ask.begun_ns)

    def answered(self, queue: Queue, ask: Ask, since_ns: Callable[[], int]) -> None:
        """Record an answer with the numbers of its messages, sent no earlier than the time that `since_ns` returns.

        A message that was never published gets an unused number.
        """
        poll = self._take(ask)
        if self.history is None or poll is None:
            return
        assert ask.answer is not None
        numbers = {message.body: message.number for message in queue.messages}
        offsets = [numbers.get(body, len(queue.messages)) for body in ask.answer.bodies]
        # The service has certainly seen the messages that were acknowledged before the poll's start.
        seen = sum(message.is_sure(ask.begun_ns) for message in queue.messages)
        end = max(seen, offsets[-1] + 1) if offsets else None
        self.history.answered(poll, offsets, end=end, since_ns=since_ns())

    def abandoned(self, ask: Ask) -> None:
        """Record that a poll's client disconnected. The end of this poll is not recorded."""
        poll = self._take(ask)
        if self.history is not None and poll is not None:
            self.history.abandoned(poll)

    def left(self) -> None:
        """Record that all clients of open polls disconnected. Polls that start later are not recorded."""
        with self._lock:
            self._is_left = True
            asks = list(self._open)
        for ask in asks:
            self.abandoned(ask)

    def _take(self, ask: Ask) -> Any:
        with self._lock:
            return self._open.pop(ask, None)


def history_for(
    history: History | None, runtime: Runtime, subject: LongPollSubject, allowances: Allowances
) -> RecordedHistory:
    """Return the recorder of an example. Raises SubjectError if the judge does not support the service."""
    if history is not None and subject.semantics != "offsets":
        raise SubjectError("the judge needs offsets, but this subject is consuming; test it without a history")
    if history is not None and allowances.visible_ms:
        raise SubjectError(
            "a history requires that a message is visible once its publish is acknowledged; set visible_ms to 0, or "
            "test without a history"
        )
    return RecordedHistory(history, runtime.lock())
