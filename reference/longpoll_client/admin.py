"""Lists and changes topics, consumer groups and offsets.

Each function is an exchange (`link.steps`), which `Admin` runs on threads and `AsyncAdmin` on an event loop.

Source: `DefaultMQAdminExtImpl.java`, `TopicListSubCommand.java`, `ConsumerProgressSubCommand.java`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from attrs import frozen

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.checks import Addresses, ConnectOptions, check_topic, check_whole, refuse_unknown, runtime_of
from longpoll_client.consume.membership import members_at
from longpoll_client.consume.offsets import ask_offset, ask_queue, start_request, store_request, stored_offset
from longpoll_client.errors import NoRouteError
from longpoll_client.instance import ClientInstance
from longpoll_client.lifecycle import AsyncCloseable, when_garbage_collected
from longpoll_client.link.routes import MASTER_ID, Route
from longpoll_client.link.steps import Ask, FindRoute, Steps
from longpoll_client.settings import StartAt
from longpoll_protocol.admin_headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from longpoll_protocol.bodies import ClusterInfo, GroupTable, MessageQueue, TopicList
from longpoll_protocol.codes import Permission, RequestCode
from longpoll_protocol.names import DEAD_PREFIX, DEFAULT_TOPIC, REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_NAMES
from longpoll_runtime.services import Closeable

READ_WRITE = Permission.READ | Permission.WRITE


@frozen
class TopicInfo:
    """A topic, according to its route."""

    name: str
    brokers: tuple[str, ...]
    readable: tuple[MessageQueue, ...]
    writable: tuple[MessageQueue, ...]

    @property
    def permission(self) -> str:
        """What clients may do with the topic: "R" (read), "W" (write), "RW" or "" (nothing)."""
        return ("R" if self.readable else "") + ("W" if self.writable else "")


@frozen
class GroupInfo:
    """A consumer group, the brokers that know it, and its current members."""

    name: str
    brokers: tuple[str, ...]
    members: tuple[str, ...]


@frozen
class OffsetInfo:
    """A group's offset in one queue."""

    queue: MessageQueue
    first: int
    """The queue's first offset."""
    end: int
    """The offset that the queue's next message will have."""
    stored: int | None
    """The group's stored offset, or None if no offset is stored. RocketMQ reports 0 instead of no offset while the
    queue still has its first message."""

    @property
    def lag(self) -> int:
        """The number of unconsumed messages."""
        return self.end - max(self.first, self.stored or 0)


def _masters() -> Steps[dict[str, str]]:
    answer = yield Ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    brokers = ClusterInfo.decode(answer.body).broker_addr_table.items()
    return {name: broker.broker_addrs[MASTER_ID] for name, broker in brokers if MASTER_ID in broker.broker_addrs}


def _topic_names(*, with_system: bool) -> Steps[list[str]]:
    answer = yield Ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    names = sorted(set(TopicList.decode(answer.body).topic_list))
    if with_system:
        return names
    answer = yield Ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    clusters = set(ClusterInfo.decode(answer.body).cluster_addr_table)
    brokers = yield from _masters()
    own = SYSTEM_NAMES | brokers.keys() | clusters | {name + REPLY_SUFFIX for name in clusters}
    return [name for name in names if name not in own and not name.startswith((RETRY_PREFIX, DEAD_PREFIX))]


def _topic(name: str) -> Steps[TopicInfo]:
    route: Route = yield FindRoute(name, is_fresh=True)
    return TopicInfo(name, tuple(sorted(route.addresses)), route.readable, route.writable)


def _create_topic(name: str, queue_count: int, permission: Permission) -> Steps[None]:
    check_topic(name)
    check_whole("queue_count", queue_count, 1)
    header = CreateTopicRequestHeader(
        topic=name,
        default_topic=DEFAULT_TOPIC,
        read_queue_nums=queue_count,
        write_queue_nums=queue_count,
        perm=int(permission),
        topic_sys_flag=0,
    )
    found = yield from _masters()
    if not found:
        raise NoRouteError("the name server knows no master broker; start one")
    for address in sorted(found.values()):
        yield Ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header, address=address)


def _delete_topic(name: str) -> Steps[None]:
    route: Route = yield FindRoute(name)
    for address in route.addresses.values():
        yield Ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=name), address=address)


def _groups() -> Steps[list[GroupInfo]]:
    brokers: dict[str, list[str]] = {}
    members: dict[str, set[str]] = {}
    found = yield from _masters()
    for broker_name, address in sorted(found.items()):
        answer = yield Ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, address=address)
        for name in GroupTable.decode(answer.body).subscription_group_table:
            brokers.setdefault(name, []).append(broker_name)
            members.setdefault(name, set()).update((yield from members_at(address, name)))
    return [GroupInfo(name, tuple(brokers[name]), tuple(sorted(members[name]))) for name in sorted(brokers)]


def _offsets(group: str, topics: str | Iterable[str]) -> Steps[list[OffsetInfo]]:
    found = []
    for name in (topics,) if isinstance(topics, str) else topics:
        info = yield from _topic(name)
        for queue in info.readable:
            first = yield from ask_offset(queue, start_request(queue, "first"))
            end = yield from ask_offset(queue, start_request(queue, "last"))
            stored = yield from stored_offset(group, queue)
            found.append(OffsetInfo(queue, first, end, stored))
    return found


def _set_offset(group: str, queue: MessageQueue, start_at: StartAt) -> Steps[int]:
    offset = yield from ask_offset(queue, start_request(queue, start_at))
    yield ask_queue(queue, store_request(group, queue, offset))
    return offset


class Admin(Closeable):
    """Lists and changes topics, groups and offsets. Use an `Admin` from one thread only.

    Every method raises a ClientError if a server refuses or does not answer.
    """

    def __init__(self, name_server: Addresses, **options: Unpack[ConnectOptions]) -> None:
        """Create an administrator, which connects on its first call. Raises ConfigError for invalid options.

        Args:
            name_server: HOST:PORT; several addresses as a list, or separated by semicolons.
            options: The options of `ConnectOptions`.
        """
        refuse_unknown(options, ConnectOptions)
        runtime = runtime_of(options.get("runtime"), options.get("tls"))
        self._instance = ClientInstance(runtime, name_server, credentials=options.get("credentials"))
        self._closed = when_garbage_collected(self, self._instance.abandon, "an Admin")

    def close(self) -> None:
        """Close every connection."""
        self._closed()
        self._instance.close()

    def masters(self) -> dict[str, str]:
        """Return the address of each broker's master, by the broker's name."""
        return self._instance.run(_masters())

    def topic_names(self, *, with_system: bool = False) -> list[str]:
        """Return the sorted names of topics; `with_system` adds system, retry and dead letter topics."""
        return self._instance.run(_topic_names(with_system=with_system))

    def topic(self, name: str) -> TopicInfo:
        """Return one topic; raises NoRouteError if no broker has it."""
        return self._instance.run(_topic(name))

    def create_topic(self, name: str, queue_count: int, permission: Permission = READ_WRITE) -> None:
        """Create a topic on every master, or change it; raises ConfigError for an invalid name."""
        self._instance.run(_create_topic(name, queue_count, permission))

    def delete_topic(self, name: str) -> None:
        """Delete a topic on every master that has it; raises NoRouteError if no master has it."""
        self._instance.run(_delete_topic(name))

    def groups(self) -> list[GroupInfo]:
        """Return the consumer groups that the masters know, with their members."""
        return self._instance.run(_groups())

    def offsets(self, group: str, topics: str | Iterable[str]) -> list[OffsetInfo]:
        """Return a group's offsets in every queue of one or several topics."""
        return self._instance.run(_offsets(group, topics))

    def set_offset(self, group: str, queue: MessageQueue, start_at: StartAt) -> int:
        """Store a group's offset in one queue, and return the offset. Running members may overwrite what is stored."""
        return self._instance.run(_set_offset(group, queue, start_at))


class AsyncAdmin(AsyncCloseable):
    """Does what `Admin` does, from the tasks of one event loop."""

    def __init__(self, name_server: Addresses, **options: Unpack[ConnectOptions]) -> None:
        """See `Admin`. Raises ConfigError."""
        refuse_unknown(options, ConnectOptions)
        runtime = runtime_of(options.get("runtime"), options.get("tls"))
        self._instance = AsyncInstance(runtime, name_server, credentials=options.get("credentials"))

    async def close(self) -> None:
        """Close every connection."""
        await self._instance.closing.wait(self._instance.close)

    async def masters(self) -> dict[str, str]:
        """See `Admin.masters`."""
        return await self._instance.run(_masters())

    async def topic_names(self, *, with_system: bool = False) -> list[str]:
        """See `Admin.topic_names`."""
        return await self._instance.run(_topic_names(with_system=with_system))

    async def topic(self, name: str) -> TopicInfo:
        """See `Admin.topic`."""
        return await self._instance.run(_topic(name))

    async def create_topic(self, name: str, queue_count: int, permission: Permission = READ_WRITE) -> None:
        """See `Admin.create_topic`."""
        await self._instance.run(_create_topic(name, queue_count, permission))

    async def delete_topic(self, name: str) -> None:
        """See `Admin.delete_topic`."""
        await self._instance.run(_delete_topic(name))

    async def groups(self) -> list[GroupInfo]:
        """See `Admin.groups`."""
        return await self._instance.run(_groups())

    async def offsets(self, group: str, topics: str | Iterable[str]) -> list[OffsetInfo]:
        """See `Admin.offsets`."""
        return await self._instance.run(_offsets(group, topics))

    async def set_offset(self, group: str, queue: MessageQueue, start_at: StartAt) -> int:
        """See `Admin.set_offset`."""
        return await self._instance.run(_set_offset(group, queue, start_at))
