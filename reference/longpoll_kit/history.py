"""Record a run's publishes and polls in a history, so that the judge can check them too.

Without a history, nothing is recorded. Events are observed from outside and so recorded as
intervals. A poll was received between the start and the end of `start_poll`. An answer was sent before it was seen,
earlier by at least the host pauses in between.

Writing: `longpoll.HistoryWriter`. Judging: `longpoll.judge`.
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
    """A history being written, such as `longpoll.HistoryWriter`. Its clock is the machine's."""

    def published(self, queue: str, offset: int, *, since_ns: int | None = None) -> None:
        """A message was acknowledged to its publisher."""
        ...

    def polled(self, queue: str, offset: int, timeout_ms: int, *, since_ns: int | None = None) -> Any:
        """A poll was received; the returned object identifies it."""
        ...

    def answered(
        self, poll: Any, offsets: Sequence[int] = (), *, end: int | None = None, since_ns: int | None = None
    ) -> None:
        """A poll was answered with the messages at these offsets of its queue, whose end was seen as `end`."""
        ...

    def abandoned(self, poll: Any) -> None:
        """A poll need not be answered any more."""
        ...


@define(eq=False)
class RecordedHistory:
    """Records one example in a history, if there is one.

    Invariant: `_open` are the recorded polls without a recorded end; it and `_is_left` change under `_lock`.
    """

    history: History | None
    _lock: Lock
    _open: dict[Ask, Any] = field(factory=dict)
    _is_left: bool = False

    def published(self, queue: Queue, message: Message) -> None:
        """Record a publish, whose message was acknowledged some time after the publish began."""
        if self.history is not None:
            self.history.published(queue.name, message.number, since_ns=message.begun_ns)

    def sent(self, ask: Ask) -> None:
        """Record a poll, which the service received some time after its start; called on the poll's own thread."""
        with self._lock:
            if self.history is not None and not self._is_left:
                self._open[ask] = self.history.polled(ask.queue, ask.first, ask.timeout_ms, since_ns=ask.begun_ns)

    def answered(self, queue: Queue, ask: Ask, since_ns: Callable[[], int]) -> None:
        """With the numbers of its messages, not before the time that `since_ns` returns.

        An unpublished message gets an unused number.
        """
        poll = self._take(ask)
        if self.history is None or poll is None:
            return
        assert ask.answer is not None
        numbers = {message.body: message.number for message in queue.messages}
        offsets = [numbers.get(body, len(queue.messages)) for body in ask.answer.bodies]
        # The service has certainly seen messages that were acknowledged before the poll's start.
        seen = sum(message.is_sure(ask.begun_ns) for message in queue.messages)
        end = max(seen, offsets[-1] + 1) if offsets else None
        self.history.answered(poll, offsets, end=end, since_ns=since_ns())

    def abandoned(self, ask: Ask) -> None:
        """Record that a poll's client disconnected, so that the poll's end is not recorded."""
        poll = self._take(ask)
        if self.history is not None and poll is not None:
            self.history.abandoned(poll)

    def left(self) -> None:
        """Record that all clients of open polls disconnected, and record no later poll."""
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
    """The recorder of an example; raises SubjectError for a service that the judge does not support."""
    if history is not None and subject.semantics != "offsets":
        raise SubjectError("the judge needs offsets, but this subject is consuming; test it without a history")
    if history is not None and allowances.visible_ms:
        raise SubjectError(
            "a history requires that a message is visible once its publish is acknowledged; set visible_ms to 0, or "
            "test without a history"
        )
    return RecordedHistory(history, runtime.lock())
