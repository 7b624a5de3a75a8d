"""Sends the heartbeats of a producer group from an event loop. The owner chooses the times.

Source: `MQClientInstance.sendHeartbeatToAllBroker`.
"""

from __future__ import annotations

import asyncio
import logging

from longpoll_client.aio.connection import AsyncConnection
from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.errors import ClientError
from longpoll_client.link.steps import succeeded
from longpoll_client.produce.heartbeat import HEARTBEAT_RETRY_S, producer_heartbeat_body
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import UnregisterClientRequestHeader

log = logging.getLogger(__name__)


class AsyncProducerHeartbeat:
    """The heartbeats of one producer group. Invariant: `_registered` has the connections that had a heartbeat."""

    def __init__(self, instance: AsyncInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._registered: dict[str, AsyncConnection] = {}
        self._failed_ns: dict[str, int] = {}

    async def heartbeat_new(self) -> None:
        """Send a heartbeat to every known broker whose connection had none; errors are logged."""
        await asyncio.gather(*(self._heartbeat_one(address) for address in self._instance.routes.addresses()))

    async def heartbeat_all(self) -> None:
        """Send a heartbeat to every known broker. A broker forgets a producer after two minutes without one."""
        self._registered.clear()
        await self.heartbeat_new()

    async def leave(self) -> None:
        """Unregister the producer; errors are logged."""
        header = UnregisterClientRequestHeader(client_id=self._instance.client_id, producer_group=self._group)
        for address, connection in self._registered.items():
            if connection.is_open:
                try:
                    await connection.call(RequestCode.UNREGISTER_CLIENT, header)
                except ClientError as error:
                    log.warning("leaving group %s at %s: %s", self._group, address, error)

    async def _heartbeat_one(self, address: str) -> None:
        known = self._registered.get(address)
        now_ns = self._instance.runtime.monotonic_ns()
        failed_ns = self._failed_ns.get(address)
        is_known = known is not None and known is self._instance.opened(address)
        if is_known or (failed_ns is not None and now_ns - failed_ns < HEARTBEAT_RETRY_S * 1e9):
            return
        body = producer_heartbeat_body(self._instance.client_id, self._group)
        try:
            connection = await self._instance.connection(address)
            answer = await connection.call(RequestCode.HEART_BEAT, None, body)
            succeeded(RequestCode.HEART_BEAT, address, answer)
        except ClientError as error:
            self._failed_ns[address] = now_ns
            log.warning("heartbeat of producer group %s: %s", self._group, error)
            return
        self._failed_ns.pop(address, None)
        self._registered[address] = connection
