"""Lets any long-polling service write a history of its polls for the judge: one call per message, poll and answer.

    with HistoryWriter(RealRuntime(), "history") as history:
        history.published("jobs", 0)
        poll = history.polled("jobs", offset=0, timeout_ms=30_000)
        history.answered(poll, offsets=[0])

A queue's name is any text, and its messages are numbered 0, 1, 2, ... in order. Any thread may call a method when the
event happens; a later call needs `since_ns`, a time before the event. RocketMQ's tags, groups, commits and several
queues per topic are not supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_recorder.recorder import HistoryRecorder, RecordError
from longpoll_runtime import Runtime
from longpoll_runtime.services import Closeable

COUNT_MAX: Final = 2**31 - 1
"""The maximum number of messages in an answer, for a service that has no limit."""
EVERYTHING: Final = "*"


@frozen
class RecordedPoll:
    """A recorded poll. Pass it to `answered` or `abandoned`."""

    queue: str
    offset: int
    request: str
    connection: str
    end: int
    """The recorded end of the queue when the poll arrived."""


class HistoryWriter(Closeable):
    """A history of one service, until `close`; a context manager.

    Invariant: `_ends` has for each queue the greatest offset that `published` reported, plus 1. `_lock` protects
    `_ends`, `_count` and `_is_closed`.
    """

    def __init__(
        self, runtime: Runtime, directory: str | Path, *, service: str = "service", uncertainty_ns: int = 0
    ) -> None:
        """Begin a history.

        Args:
            runtime: Clock, threads and files.
            directory: Directory of the history; an existing one is extended.
            service: The service's name, in findings.
            uncertainty_ns: Maximum error of an outside observer's times.

        Raises:
            RecordError: The directory cannot be written.
        """
        where = str(Path(directory).absolute())
        self._recorder = HistoryRecorder(runtime, where, broker=service, policy="", uncertainty_ns=uncertainty_ns)
        self._runtime = runtime
        self._lock = runtime.lock()
        self._ends: dict[str, int] = {}
        self._count = 0
        self._is_closed = False

    def now_ns(self) -> int:
        """Return the current time of the clock that `since_ns` uses, in nanoseconds."""
        return self._runtime.monotonic_ns()

    def published(self, queue: str, offset: int, *, since_ns: int | None = None) -> None:
        """Record that a message was acknowledged to its publisher, so that from now on every poll can get it."""
        with self._lock:
            self._ends[queue] = max(self._ends.get(queue, 0), offset + 1)
        self._put("message_acknowledged", since_ns, topic=queue, queue=0, queue_offset=offset)

    def polled(
        self, queue: str, offset: int, timeout_ms: int, *, count_max: int = COUNT_MAX, since_ns: int | None = None
    ) -> RecordedPoll:
        """Record a poll that reads from `offset` on and may wait `timeout_ms` milliseconds; 0 means not to wait."""
        with self._lock:
            self._count += 1
            poll = RecordedPoll(queue, offset, f"r{self._count}", f"c{self._count}", self._ends.get(queue, 0))
        self._put(
            "request_received",
            since_ns,
            topic=queue,
            queue=0,
            request=poll.request,
            connection=poll.connection,
            code=RequestCode.PULL_MESSAGE.value,
            offset=offset,
            count_max=count_max,
            may_hold=timeout_ms > 0,
            timeout_ms=timeout_ms,
            expression_type="TAG",
            expression=EVERYTHING,
        )
        return poll

    def answered(
        self, poll: RecordedPoll, offsets: Sequence[int] = (), *, end: int | None = None, since_ns: int | None = None
    ) -> None:
        """Record that a poll was answered with the messages at these offsets, or with none.

        `end` is the end of the queue that the service read for the answer. If it is None, it is derived from the
        answer, the delivered messages and the messages that were published before the poll.
        """
        offset_next = offsets[-1] + 1 if offsets else poll.offset
        seen = max(offset_next, poll.end) if offsets else poll.offset
        self._put(
            "answer_sent",
            since_ns,
            topic=poll.queue,
            queue=0,
            request=poll.request,
            connection=poll.connection,
            code=(ResponseCode.SUCCESS if offsets else ResponseCode.PULL_NOT_FOUND).value,
            offset_next=offset_next,
            offset_min=0,
            offset_max=seen if end is None else end,
            offsets=list(offsets),
        )

    def abandoned(self, poll: RecordedPoll, *, since_ns: int | None = None) -> None:
        """Record that the client has closed or cancelled a poll, which then needs no answer."""
        self._put("connection_closed", since_ns, connection=poll.connection)

    def close(self) -> None:
        """End the history; raises RecordError if events are missing. A second call does nothing."""
        with self._lock:
            ended, self._is_closed = self._is_closed, True
        trouble = "" if ended else self._recorder.stop()
        if trouble:
            raise RecordError(trouble)

    def _put(self, event: str, since_ns: int | None, **fields: object) -> None:
        now_ns = self.now_ns()
        self._recorder.put(event, now_ns if since_ns is None else since_ns, before_ns=now_ns, **fields)
