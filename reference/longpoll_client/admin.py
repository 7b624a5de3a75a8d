"""Asks name servers and brokers what there is, and changes it: topics, consumer groups, offsets.

Leaves out brokers' settings and statistics.

Source: `DefaultMQAdminExtImpl.java`, `TopicListSubCommand.java`, `ConsumerProgressSubCommand.java`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from attrs import frozen

from longpoll_client.checks import Addresses, runtime_of
from longpoll_client.errors import NoRouteError, RefusedError
from longpoll_client.instance import ClientInstance
from longpoll_client.link.finalizer import when_garbage_collected
from longpoll_client.link.routes import MASTER_ID
from longpoll_client.offsets import ask, ask_offset, find_start, succeeded
from longpoll_client.remoting import RemotingClient
from longpoll_client.settings import StartAt
from longpoll_protocol.bodies import ClusterInfo, ConsumerList, GroupTable, MessageQueue, TopicList
from longpoll_protocol.codes import Permission, RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from longpoll_protocol.headers.send import DEFAULT_TOPIC
from longpoll_protocol.names import DEAD_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_NAMES, name_problem
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime
from longpoll_runtime.closeable import Closeable
from longpoll_spec.errors import ConfigError


@frozen
class TopicInfo:
    """A topic as its route tells it."""

    name: str
    brokers: tuple[str, ...]
    readable: tuple[MessageQueue, ...]
    writable: tuple[MessageQueue, ...]

    @property
    def permission(self) -> str:
        """Of R and W those that clients may do."""
        return ("R" if self.readable else "") + ("W" if self.writable else "")


@frozen
class GroupInfo:
    """A consumer group: which brokers know it, and its members now."""

    name: str
    brokers: tuple[str, ...]
    members: tuple[str, ...]


@frozen
class OffsetInfo:
    """Where a group stands in one queue."""

    queue: MessageQueue
    first: int
    """The queue's first offset."""
    end: int
    """The offset that the next message will have."""
    stored: int | None
    """The group's; None without one, though RocketMQ tells 0 while the queue still has its first message."""

    @property
    def lag(self) -> int:
        """Messages that the group has still to consume."""
        return self.end - max(self.first, self.stored or 0)


class Admin(Closeable):
    """Questions and changes; for one thread. Each method raises a ClientError when a server refuses or is not there."""

    def __init__(
        self,
        name_server: Addresses,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """As `Producer`; raises ConfigError."""
        self._instance = ClientInstance(runtime_of(runtime, tls), name_server, credentials=credentials)
        self._closed = when_garbage_collected(self, self._instance.abandon, "an Admin")

    def close(self) -> None:
        """Close every connection."""
        self._closed()
        self._instance.close()

    def masters(self) -> dict[str, str]:
        """The address of each broker's master by the broker's name."""
        answer = self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        brokers = ClusterInfo.decode(answer.body).broker_addr_table.items()
        return {name: broker.broker_addrs[MASTER_ID] for name, broker in brokers if MASTER_ID in broker.broker_addrs}

    def topic_names(self, *, with_system: bool = False) -> list[str]:
        """Every topic; those of the system and of single groups only when asked for."""
        answer = self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        names = sorted(set(TopicList.decode(answer.body).topic_list))
        if with_system:
            return names
        clusters = self._cluster_names()
        own = SYSTEM_NAMES | self.masters().keys() | clusters | {name + REPLY_SUFFIX for name in clusters}
        return [name for name in names if name not in own and not name.startswith((RETRY_PREFIX, DEAD_PREFIX))]

    def topic(self, name: str) -> TopicInfo:
        """One topic; raises NoRouteError when nobody has it."""
        self._instance.forget_route(name)
        route = self._instance.route(name)
        return TopicInfo(name, tuple(sorted(route.addresses)), route.readable, route.writable)

    def create_topic(
        self, name: str, queue_count: int, permission: Permission = Permission.READ | Permission.WRITE
    ) -> None:
        """Make a topic on every master, or change it; raises ConfigError for a name that no broker takes."""
        problem = name_problem(name)
        if problem is not None:
            raise ConfigError(f"topic {name[:140]!r}: {problem}")
        header = CreateTopicRequestHeader(
            topic=name,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=int(permission),
            topic_sys_flag=0,
        )
        for client in self._master_clients():
            ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    def delete_topic(self, name: str) -> None:
        """Remove a topic from every master that has it; raises NoRouteError when none has."""
        for address in self._instance.route(name).addresses.values():
            ask(
                self._instance.client(address), RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=name)
            )
        self._instance.forget_route(name)

    def groups(self) -> list[GroupInfo]:
        """Every consumer group that a master knows, with its members."""
        brokers: dict[str, list[str]] = {}
        members: dict[str, set[str]] = {}
        for broker_name, address in sorted(self.masters().items()):
            client = self._instance.client(address)
            table = GroupTable.decode(ask(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
            for name in table.subscription_group_table:
                brokers.setdefault(name, []).append(broker_name)
                members.setdefault(name, set()).update(self._members(client, name))
        return [GroupInfo(name, tuple(brokers[name]), tuple(sorted(members[name]))) for name in sorted(brokers)]

    def offsets(self, group: str, topics: Iterable[str]) -> list[OffsetInfo]:
        """Where a group stands in each queue of these topics."""
        return [self._offset(group, queue) for topic in topics for queue in self.topic(topic).readable]

    def set_offset(self, group: str, queue: MessageQueue, start_at: StartAt) -> int:
        """Have the group go on elsewhere in a queue; the new offset. Members that run now may overwrite it."""
        client = self._client(queue)
        offset = find_start(client, queue, start_at)
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        return offset

    def _offset(self, group: str, queue: MessageQueue) -> OffsetInfo:
        client, topic, queue_id = self._client(queue), queue.topic, queue.queue_id
        first = ask_offset(
            client, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id)
        )
        end = ask_offset(client, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id))
        query = QueryConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=queue_id)
        stored: int | None = None
        try:
            stored = ask_offset(client, RequestCode.QUERY_CONSUMER_OFFSET, query)
        except RefusedError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
        return OffsetInfo(queue, first, end, stored)

    def _members(self, client: RemotingClient, group: str) -> list[str]:
        header = GetConsumerListByGroupRequestHeader(consumer_group=group)
        try:
            return ConsumerList.decode(
                ask(client, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header).body
            ).consumer_id_list
        except RefusedError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            return []

    def _ask(self, code: RequestCode) -> Command:
        """What the name server says; raises RefusedError or another ClientError."""
        return succeeded(code, "the name server", self._instance.ask_name_servers(code))

    def _cluster_names(self) -> set[str]:
        answer = self._ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        return set(ClusterInfo.decode(answer.body).cluster_addr_table)

    def _client(self, queue: MessageQueue) -> RemotingClient:
        return self._instance.client(self._instance.broker_address(queue.broker_name))

    def _master_clients(self) -> list[RemotingClient]:
        masters = self.masters()
        if not masters:
            raise NoRouteError("the name server knows no master broker; start one")
        return [self._instance.client(address) for _name, address in sorted(masters.items())]
