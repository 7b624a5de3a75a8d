"""The same client for asyncio: every call that would wait, waits on a thread, and the loop goes on.

A producer or consumer of the plain API is wrapped, so both may be used side by side. Leaves out listeners: a push
consumer has threads of its own, and a coroutine polls instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from longpoll_client.consume.delivery import PullConsumer
from longpoll_client.messages import ReceivedMessage

POLL_S: Final = 1.0
"""How long one poll of an iteration lasts: what a cancelled iteration's thread may still take to end."""


class AsyncPullConsumer:
    """A pull consumer whose polls are awaited; for one task.

    A poll that is cancelled loses nothing: what it found is what the next one returns.

    Invariant: `_polling` is the poll whose result nobody has had yet.
    """

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer
        self._polling: asyncio.Task[list[ReceivedMessage]] | None = None

    async def __aenter__(self) -> Self:
        """Join the group; raises as `PullConsumer.start`."""
        await asyncio.to_thread(self._consumer.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._polling is not None:
            await asyncio.wait([self._polling])
        await asyncio.to_thread(self._consumer.close)

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Every message, one by one; each is consumed when the next one is asked for."""
        return self._messages()

    async def poll(self, timeout_s: float, count_max: int | None = None) -> list[ReceivedMessage]:
        """As `PullConsumer.poll`; a poll that was cancelled before goes on with its own arguments."""
        if self._polling is None:
            self._polling = asyncio.create_task(asyncio.to_thread(self._consumer.poll, timeout_s, count_max))
        # Unlike awaiting the task itself, this leaves it alone when we are cancelled.
        await asyncio.wait([self._polling])
        done, self._polling = self._polling, None
        return done.result()

    async def commit(self) -> None:
        """As `PullConsumer.commit`."""
        await asyncio.to_thread(self._consumer.commit)

    async def _messages(self) -> AsyncIterator[ReceivedMessage]:
        while True:
            for message in await self.poll(POLL_S, 1):
                yield message
