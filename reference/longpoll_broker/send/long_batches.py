"""Long batches are stored in turns, so that a connection that sends one message is served between them.

What takes long is reading a batch, making its records and telling where each message stands; that is done for
`TURN_COUNT` messages a turn. In between the records go into the log as one piece, as all of a batch or nothing must.

However many connections send long batches, one at a time is worked at: each turn of any of these connections goes on
with the batch that came first, so that no more than one is there in records, and the others as they came.

Leaves out what is done in a turn (`send.send_processor`), and who has the next turn (`io.transport`).
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
"""Messages read, and made into records, in one turn: some 3 ms."""
LONG_SIZE: Final = TURN_COUNT * BATCH_MESSAGE_SIZE_MIN
"""Bytes of the longest batch that cannot have more messages than that."""

Turns: TypeAlias = Generator[None, None, Callable[[Outbox], Parts | None]]
"""The work at one batch, and what gives its answer in the last turn; None when that follows later."""


@define(eq=False)
class _Batch:
    """One that is under way, or waits for it. Its connection has it as the rest of a request, and nobody else."""

    channel: Channel
    command: Command
    turns: Turns
    is_over: bool = field(default=False, init=False)
    """Whether it is answered, if it is to be answered yet."""

    def turn(self, outbox: Outbox) -> None:
        """Go on for one turn."""
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

    Invariant: every batch that is alive and not over is in `_waiting`. One whose connection has closed is not alive.
    """

    lock: Lock
    """Guards `_waiting`, and the work at its first one."""
    _waiting: deque[weakref.ref[_Batch]] = field(factory=deque, init=False)

    def begin(self, channel: Channel, command: Command, turns: Turns, outbox: Outbox) -> Parts | None:
        """Work at a batch for one turn; its answer if that was all, else the rest is left to the next turns."""
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
        """Have its connection come here in its next turn."""
        channel = batch.channel
        channel.rest, channel.rest_size = partial(self._go_on, batch), len(batch.command.body)
        channel.gives_way = True

    def _go_on(self, own: _Batch, outbox: Outbox) -> None:
        """Work at the batch that came first, which may be another's, and come again until the own is over."""
        with self.lock:
            first = None if own.is_over else self._first()
            if first is not None:
                first.turn(outbox)
        if not own.is_over:
            self._leave(own)

    def _first(self) -> _Batch | None:
        """The first one that is alive and not over; the caller holds the lock."""
        while self._waiting:
            first = self._waiting[0]()
            if first is not None and not first.is_over:
                return first
            self._waiting.popleft()
        return None
