"""The messages of one queue that are pulled and not yet consumed, and the limits of flow control.

Its puller's lock guards it.

Source: `ProcessQueue.java`, the flow control of `DefaultMQPushConsumerImpl.pullMessage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from operator import lt
from typing import Literal

from attrs import define, field, frozen

from longpoll_client.messages import ReceivedMessage

Stop = Literal["count", "size", "span"]
"""Which limit keeps a queue from being pulled."""


@frozen
class FlowLimits:
    """How much of one queue may wait to be consumed before pulling stops."""

    count_max: int
    size_max: int
    """Bytes of bodies."""
    span_max: int | None
    """Offsets from the first to the next pull; None: any, for a queue that is consumed in order."""


@define(slots=True, eq=False)
class ProcessQueue:
    """The waiting messages.

    Invariant: `_open` is in order of offset, before `offset_next`; `size` is the sum of bodies.
    """

    offset_next: int
    """Where the next pull begins."""
    size: int = field(default=0, init=False)
    _open: dict[int, ReceivedMessage] = field(factory=dict, init=False)

    @property
    def count(self) -> int:
        """Messages that wait."""
        return len(self._open)

    @property
    def span(self) -> int:
        """Offsets from the first waiting message to the next pull: what may come again after a crash.

        Java uses the last waiting message instead, so a single message that hangs does not stop pulling there.
        """
        return self.offset_next - next(iter(self._open), self.offset_next)

    @property
    def offset_done(self) -> int:
        """Every message before it is consumed: the offset to store.

        If nothing waits, messages with other tags before the next pull count as consumed too (`correctTagsOffset`).
        """
        return next(iter(self._open), self.offset_next)

    def put(self, messages: Sequence[ReceivedMessage], offset_next: int) -> None:
        """Add the messages of a pull, and move to the next offset."""
        offsets = [message.queue_offset for message in messages]
        assert all(map(lt, [next(reversed(self._open), -1), *offsets], offsets)), offsets
        self._open.update(zip(offsets, messages, strict=True))
        self.size += sum([len(message.body) for message in messages])
        self.offset_next = offset_next

    def move(self, offset_next: int) -> None:
        """Move to another offset: the waiting messages are dropped, and their consumption is ignored."""
        self._open.clear()
        self.size = 0
        self.offset_next = offset_next

    def first(self, count: int) -> list[ReceivedMessage]:
        """The first waiting messages; they go on waiting."""
        return list(islice(self._open.values(), count))

    def done(self, messages: Iterable[ReceivedMessage]) -> None:
        """Remove consumed messages; unknown ones are ignored."""
        waiting = self._open
        for message in messages:
            offset = message.queue_offset
            if waiting.get(offset) is message:
                del waiting[offset]
                self.size -= len(message.body)

    def stop(self, limits: FlowLimits) -> Stop | None:
        """The limit that is reached; None: pull."""
        if self.count >= limits.count_max:
            return "count"
        if self.size >= limits.size_max:
            return "size"
        if limits.span_max is not None and self.span >= limits.span_max:
            return "span"
        return None
