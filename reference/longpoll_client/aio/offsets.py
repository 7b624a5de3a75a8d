"""Stores the offsets of an event loop's member: at the brokers, or in its own file when broadcasting.

`member` chooses the times.

Source: `RemoteBrokerOffsetStore.java`, `LocalFileOffsetStore.java`, `RebalancePushImpl.computePullFromWhere`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from longpoll_client.aio.group import GroupCalls
from longpoll_client.errors import RefusedError
from longpoll_client.offsets import OffsetsFile, is_retry, query_request, settling, store_request
from longpoll_client.settings import MemberConfig, StartAt
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.headers import OffsetResponseHeader


class AsyncOffsetStore(Protocol):
    """Keeps a group's or a member's offsets; as `OffsetStore`, awaited."""

    async def begin(self, queue: MessageQueue) -> int:
        """Where to begin: as the config says the first time, where it was left from then on. Raises a ClientError."""
        ...

    async def store(self, queue: MessageQueue, offset: int) -> None:
        """Keep where the queue stands; cheap when that is known already. Raises a LongpollError."""
        ...

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Keep another place, whatever is known of the old one. Raises a LongpollError."""
        ...

    def doubt(self, queue: MessageQueue) -> None:
        """Keep the next place that `store` is given, also when it is one that was kept before."""
        ...

    async def stored(self, queue: MessageQueue) -> int | None:
        """The place that is kept; None when none is. Raises a ClientError."""
        ...

    async def close(self) -> None:
        """Wait for what is being kept."""
        ...


class AsyncRemoteOffsets:
    """The brokers keep them.

    Invariant: `_stored` has every queue that was begun, with the offset that its broker is known to have or to imply,
    unless the queue is `_doubted`.
    """

    def __init__(self, calls: GroupCalls, config: MemberConfig) -> None:
        self._calls = calls
        self._config = config
        self._stored: dict[MessageQueue, int] = {}
        self._doubted: set[MessageQueue] = set()

    async def begin(self, queue: MessageQueue) -> int:
        """Where the group stopped; if it has not begun, where the config says. Raises a ClientError.

        As `RemoteOffsets.begin`: what begins is stored, so that the next member goes on from there.
        """
        known = self._stored.get(queue)
        start_at = self._config.start_at
        begins = known is None and start_at != "stored" and not is_retry(queue)
        stored = await self.stored(queue)
        if begins:
            # A broker of 4.x says 0 of a group that has not begun, so there an offset of 0 counts as none.
            offset = stored or await self._start(queue, start_at)
        elif stored is not None:
            offset = stored
        elif known is not None:
            offset = known
        else:
            offset = 0 if is_retry(queue) else await self._start(queue, "last")
        self._stored[queue] = offset
        return offset

    async def store(self, queue: MessageQueue, offset: int) -> None:
        """Store where the group stands, unless the broker has it already. Raises a ClientError."""
        if self._stored.get(queue) != offset or queue in self._doubted:
            with settling(self._doubted, queue):
                await self.reset(queue, offset)

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """Store where the group is to stand. Raises a ClientError."""
        await self._calls.ask_of(queue, store_request(self._config.group, queue, offset))
        self._stored[queue] = offset

    def doubt(self, queue: MessageQueue) -> None:
        """Store the queue's next place, also when it is one that was stored before."""
        self._doubted.add(queue)

    async def stored(self, queue: MessageQueue) -> int | None:
        """Where the group stopped, by its broker; None when it has not begun. Raises a ClientError."""
        try:
            answer = await self._calls.ask_of(queue, query_request(self._config.group, queue))
        except RefusedError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return OffsetResponseHeader.decode(answer.ext_fields).offset

    async def close(self) -> None:
        """Nothing is being kept beside those who wait for it."""

    async def _start(self, queue: MessageQueue, start_at: StartAt) -> int:
        """Where a group begins that has not; its broker is told, or after the first pull as `RemoteOffsets` says."""
        offset = await self._calls.find(queue, start_at)
        try:
            await self.reset(queue, offset)
        except RefusedError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            self._doubted.add(queue)
        return offset


class AsyncLocalOffsets:
    """The member keeps them itself, in its file if it has one, which is written on asyncio's executor.

    Invariant: one task at a time writes the file, under `_writing`, to its end also when who waits for it is cancelled:
    an old content never comes after a new one.
    """

    def __init__(self, calls: GroupCalls, config: MemberConfig, file: OffsetsFile) -> None:
        self._calls = calls
        self._config = config
        self._file = file
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, queue: MessageQueue) -> int:
        """Where this member stopped; the first time as the config says. Raises a ClientError."""
        known = self._file.offset(queue)
        if known is None:
            known = await self._calls.find(queue, self._config.start_at)
            self._file.note(queue, known)
        return known

    async def store(self, queue: MessageQueue, offset: int) -> None:
        """Have it in the file, with what others have noted meanwhile; raises ConfigError when that fails."""
        self._file.note(queue, offset)
        task = asyncio.create_task(self._write())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def reset(self, queue: MessageQueue, offset: int) -> None:
        """As `store`: nobody else keeps this member's offsets."""
        await self.store(queue, offset)

    def doubt(self, queue: MessageQueue) -> None:
        """Nothing: this member alone keeps its offsets, and the file has them all."""

    async def stored(self, queue: MessageQueue) -> int | None:
        """Where this member stands; None for a queue that was not begun."""
        return self._file.offset(queue)

    async def close(self) -> None:
        """Wait for the file to be written; what fails is told to who has stored it."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self) -> None:
        async with self._writing:
            content = self._file.unwritten()
            if content is not None:
                await asyncio.to_thread(self._file.write, content)
