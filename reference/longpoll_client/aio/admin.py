"""An administrator on an event loop, with the exchanges of `longpoll_client.admin`."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from longpoll_client import admin as steps
from longpoll_client.admin import READ_WRITE, GroupInfo, OffsetInfo, TopicInfo
from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.checks import Addresses, runtime_of
from longpoll_client.settings import StartAt
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.codes import Permission
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime


class AsyncAdmin:
    """Lists and changes topics, groups and offsets, as `Admin` does; for one event loop."""

    def __init__(
        self,
        name_server: Addresses,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """As `Admin`; raises ConfigError."""
        self._instance = AsyncInstance(runtime_of(runtime, tls), name_server, credentials=credentials)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._instance.closing.wait(self._instance.close)

    async def masters(self) -> dict[str, str]:
        """As `Admin.masters`."""
        return await self._instance.run(steps.masters())

    async def topic_names(self, *, with_system: bool = False) -> list[str]:
        """As `Admin.topic_names`."""
        return await self._instance.run(steps.topic_names(with_system=with_system))

    async def topic(self, name: str) -> TopicInfo:
        """As `Admin.topic`."""
        return await self._instance.run(steps.topic(name))

    async def create_topic(self, name: str, queue_count: int, permission: Permission = READ_WRITE) -> None:
        """As `Admin.create_topic`."""
        await self._instance.run(steps.create_topic(name, queue_count, permission))

    async def delete_topic(self, name: str) -> None:
        """As `Admin.delete_topic`."""
        await self._instance.run(steps.delete_topic(name))

    async def groups(self) -> list[GroupInfo]:
        """As `Admin.groups`."""
        return await self._instance.run(steps.groups())

    async def offsets(self, group: str, topics: Iterable[str]) -> list[OffsetInfo]:
        """As `Admin.offsets`."""
        return await self._instance.run(steps.offsets(group, topics))

    async def set_offset(self, group: str, queue: MessageQueue, start_at: StartAt) -> int:
        """As `Admin.set_offset`."""
        return await self._instance.run(steps.set_offset(group, queue, start_at))
