"""Requests from an event loop: each is awaited until its reply comes.

`produce.requests` matches replies to requests. Source: `DefaultMQProducerImpl.request`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.aio.loop_connections import LoopConnections
from longpoll_client.errors import ClientError
from longpoll_client.messages import ReceivedMessage
from longpoll_client.produce.heartbeat import HEARTBEAT_S, ProducerHeartbeat
from longpoll_client.produce.requests import Replies, too_late


class AsyncRequests(Replies):
    """The requests of one producer of an event loop. The first one starts the periodic heartbeats."""

    def __init__(self, instance: AsyncInstance, group: str) -> None:
        self._loop = LoopConnections(instance)
        super().__init__(instance.runtime, lambda: instance.client_id, self._loop.reply)
        self._instance = instance
        self._heartbeat = ProducerHeartbeat(instance, group)
        self._is_begun = False

    async def ask(
        self, correlation_id: str, timeout_s: float, send: Callable[[Mapping[str, str]], Awaitable[object]]
    ) -> ReceivedMessage:
        """Send a request with these properties, and wait for its reply. Raises a ClientError, or an error of `send`.

        A cancelled request, or one without a reply in time, is forgotten.
        """
        if not self._is_begun:
            self._is_begun = True
            self._heartbeat_later()
        replied: asyncio.Future[ReceivedMessage | ClientError] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._instance.run(self._heartbeat.heartbeat_new())
                await send(self.expect(correlation_id, timeout_s, replied.set_result))
                outcome = await replied
        except ClientError:
            raise  # one of them is a TimeoutError too
        except TimeoutError:
            raise too_late(timeout_s) from None
        finally:
            self.forget(correlation_id)
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome

    async def leave(self) -> None:
        """Leave the group, if it was joined. Waiting requests get a ConnectionLostError."""
        self.close()
        await self._loop.close()
        if self._is_begun:
            await self._instance.run(self._heartbeat.leave())

    def _heartbeat_later(self) -> None:
        def again() -> None:
            self._loop.begin(self._instance.run(self._heartbeat.heartbeat_all()))
            self._heartbeat_later()

        self._loop.after(HEARTBEAT_S, again)
