"""Stores long batches in turns, so that short sends of other connections are served in between.

The slow steps are reading a batch, encoding its records and indexing its messages. Each turn does them for `TURN_COUNT`
messages. The records are appended in one piece, because a batch is stored completely or not at all.

Only one long batch is processed at a time. Each turn of any connection with one continues the oldest batch. So at most
one batch exists as records.

The work of a turn: see `send.send_processor`. The order of turns: see `io.transport`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeAlias

from attrs import define, field

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import failure, refuse
from longpoll_protocol.frames.command import Command
from longpoll_protocol.message import BATCH_MESSAGE_SIZE_MIN
from longpoll_runtime import Lock
from longpoll_runtime.recoverable import FAULTS

TURN_COUNT: Final = 500
"""Messages per turn: some 3 ms."""
LONG_SIZE: Final = TURN_COUNT * BATCH_MESSAGE_SIZE_MIN
"""Maximum bytes of a batch that surely has no more messages than that."""

Turns: TypeAlias = Generator[None, None, Callable[[Outbox], Parts | None]]
"""The work on one batch; its result creates the answer in the last turn, or None if that follows later."""


@define(eq=False)
class _Batch:
    """A batch in progress or waiting. Only its connection refers to it, as the rest of a request."""

    channel: Channel
    command: Command
    turns: Turns
    is_over: bool = field(default=False, init=False)
    """Whether the batch is finished, so that its answer is sent or will follow."""

    def turn(self, outbox: Outbox) -> None:
        """Do one turn."""
        parts: Parts | None
        try:
            next(self.turns)
        except StopIteration as ended:
            parts = ended.value(outbox)
        except FAULTS as error:
            parts = failure(self.channel, self.command, error)
        else:
            return
        self.is_over = True
        if parts is not None:
            refuse(self.channel, self.command, parts, outbox)


@define(slots=True, eq=False)
class LongBatches:
    """The batches of one broker; callable from any loop's thread.

    Invariant: every batch that is alive and not over is in `_waiting`. When its connection closes, a batch dies.
    """

    lock: Lock
    """Protects `_waiting`, and the work on its first batch."""
    _waiting: deque[weakref.ref[_Batch]] = field(factory=deque, init=False)

    def begin(self, channel: Channel, command: Command, turns: Turns, outbox: Outbox) -> Parts | None:
        """Do the first turn of a batch; returns the answer if that was all, else None."""
        try:
            next(turns)
        except StopIteration as ended:
            parts: Parts | None = ended.value(outbox)
            return parts
        batch = _Batch(channel, command, turns)
        with self.lock:
            self._waiting.append(weakref.ref(batch))
        self._leave(batch)
        return None

    def _leave(self, batch: _Batch) -> None:
        channel = batch.channel
        channel.rest, channel.rest_size = partial(self._go_on, batch), len(batch.command.body)
        channel.gives_way = True

    def _go_on(self, own: _Batch, outbox: Outbox) -> None:
        """Do a turn of the oldest batch, and reschedule until this connection's own is over."""
        with self.lock:
            first = None if own.is_over else self._first()
            if first is not None:
                first.turn(outbox)
        if not own.is_over:
            self._leave(own)

    def _first(self) -> _Batch | None:
        """The oldest batch that is alive and not over; the caller holds the lock."""
        while self._waiting:
            first = self._waiting[0]()
            if first is not None and not first.is_over:
                return first
            self._waiting.popleft()
        return None
