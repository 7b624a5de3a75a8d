"""Serves administrators' requests to a name server: codes 100 to 102, 205, 216, 219, 224, 304, 318, 319, 327.

Permissions set by 205 and 327 affect routes only, and last until the broker changes the topic. Registrations and
routes: see `name_server`.

Source: `DefaultRequestProcessor.java` (namesrv), `RouteInfoManager.java` 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from attrs import define, field

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, Turns, answer, in_turns, serves
from longpoll_broker.rocketmq.name_server.kv_settings import KvSettings
from longpoll_broker.rocketmq.name_server.own_topics import OwnTopics
from longpoll_broker.rocketmq.name_server.routes import LIVE_MS_MAX, RegisteredBroker, Routes
from longpoll_broker.shared.topics import TopicConfig
from longpoll_protocol.admin_headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from longpoll_protocol.bodies import KVTable, TopicList, read_settings
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.names import PERM_READ_WRITE, PERM_WRITE

SETTINGS: Final = {
    "clusterTest": "false",
    "orderMessageEnable": "false",
    "scanNotActiveBrokerInterval": "0",
    "brokerChannelExpiredTime": str(LIVE_MS_MAX),
}
"""Settings that 319 returns: this name server's behaviour in RocketMQ's keys.

It checks for silent brokers on each request.
"""

TURN_COUNT: Final = 10_000
"""Names collected in one turn, plus those of one broker: a few milliseconds."""


@define(slots=True, eq=False)
class RoutesProcessor(Serving):
    """The processors; called by one thread. `topics` and `config` belong to the name server's own broker."""

    routes: Routes
    topics: OwnTopics | None
    config: BrokerConfig | None
    own_address: str
    """HOST:PORT of the own broker."""
    now_ms: Callable[[], int]
    """The wall clock."""
    settings: KvSettings = field(factory=KvSettings, init=False)
    _permissions: dict[str, dict[str, tuple[TopicConfig, int]]] = field(factory=dict, init=False)
    """By broker and topic, the permission set here, and the topic's configuration at that time."""

    def permission(self, broker_name: str, topic: TopicConfig) -> int:
        """Returns the permission for a broker's topic in routes."""
        given = self._permissions.get(broker_name, {}).get(topic.topic_name)
        return topic.perm if given is None or given[0] != topic else given[1]

    @serves(RequestCode.PUT_KV_CONFIG)
    def put_setting(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """100: store a setting; 1 if it is too long or there are too many."""
        header = PutKVConfigRequestHeader.decode(command.ext_fields)
        problem = self.settings.put(header.namespace, header.key, header.value, channel)
        return answer(command, ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR, problem)

    @serves(RequestCode.GET_KV_CONFIG)
    def setting(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """101: return a setting; 22 if it does not exist."""
        header = GetKVConfigRequestHeader.decode(command.ext_fields)
        value = self.settings.get(header.namespace, header.key)
        if value is None:
            place = f"Namespace: {header.namespace[:255]} Key: {header.key[:255]}"
            return answer(command, ResponseCode.QUERY_NOT_FOUND, f"No config item, {place}")
        return answer(command, ResponseCode.SUCCESS, None, GetKVConfigResponseHeader(value=value).encode())

    @serves(RequestCode.DELETE_KV_CONFIG)
    def delete_setting(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """102: remove a setting."""
        header = DeleteKVConfigRequestHeader.decode(command.ext_fields)
        self.settings.remove(header.namespace, header.key)
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def settings_of_namespace(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """219: return all settings of a namespace; 22 without any."""
        namespace = GetKVListByNamespaceRequestHeader.decode(command.ext_fields).namespace
        found = self.settings.of(namespace)
        if not found:
            told = f"No config item, Namespace: {namespace[:255]}"
            return answer(command, ResponseCode.QUERY_NOT_FOUND, told)
        return answer(command, ResponseCode.SUCCESS, body=KVTable(table=found).encode())

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """205: remove a broker's write permission from routes; 0 topics for an unknown broker."""
        name = WipeWritePermOfBrokerRequestHeader.decode(command.ext_fields).broker_name
        count = self._permit(name, lambda permission: permission & ~PERM_WRITE)
        told = WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count)
        return answer(command, ResponseCode.SUCCESS, None, told.encode())

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def add_write(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """327: make the broker's topics readable and writable in routes."""
        name = AddWritePermOfBrokerRequestHeader.decode(command.ext_fields).broker_name
        count = self._permit(name, lambda _permission: PERM_READ_WRITE)
        return answer(
            command, ResponseCode.SUCCESS, None, AddWritePermOfBrokerResponseHeader(add_topic_count=count).encode()
        )

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """216: remove a topic's routes; under strict, those to the own broker only by 215."""
        header = DeleteTopicFromNamesrvRequestHeader.decode(command.ext_fields)
        cluster = header.cluster_name or None
        self.routes.forget_topic(header.topic, cluster)
        if self.topics is not None and self.config is not None and cluster in {None, self.config.cluster_name}:
            self.topics.forget(header.topic)
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_TOPICS_BY_CLUSTER)
    def cluster_topics(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """224: return the names of a cluster's topics; none for an unknown cluster."""
        cluster = GetTopicsByClusterRequestHeader.decode(command.ext_fields).cluster
        self.routes.expire(self.now_ms())
        own: Iterable[str] = ()
        if self.config is not None and self.topics is not None and cluster == self.config.cluster_name:
            own = (topic.topic_name for topic in self.topics)
        brokers = [broker for broker in self.routes if broker.cluster == cluster]
        return in_turns(channel, command, topic_names(command, own, brokers))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """304: return the names of clusters and brokers, which are topics too, and a broker's address for the rest."""
        self.routes.expire(self.now_ms())
        names = {name for broker in self.routes for name in (broker.cluster, broker.name)}
        addresses = [broker.address for broker in self.routes]
        if self.config is not None:
            names |= {self.config.cluster_name, self.config.broker_name}
            addresses.insert(0, self.own_address)
        told = TopicList(topic_list=sorted(names), broker_addr=addresses[0] if addresses else None)
        return answer(command, ResponseCode.SUCCESS, body=told.encode())

    @serves(RequestCode.GET_NAMESRV_CONFIG)
    def own_settings(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """319: return the name server's settings, one per line."""
        text = "".join(f"{key}={value}\n" for key, value in SETTINGS.items())
        return answer(command, ResponseCode.SUCCESS, body=text.encode())

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG)
    def change_settings(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """318: refuse changes of settings with 1 and the key; 0 if all have these values already."""
        for key, value in read_settings(bytes(command.body), "UpdateNamesrvConfig").items():
            if SETTINGS.get(key) != value:
                told = f"{key[:80]!r} of this name server cannot be changed: 319 tells the settings that there are"
                return answer(command, ResponseCode.SYSTEM_ERROR, told)
        return answer(command, ResponseCode.SUCCESS)

    def _permit(self, broker_name: str, change: Callable[[int], int]) -> int:
        """Set the permission of all of a broker's topics in routes; returns their number."""
        topics = self._topics_of(broker_name)
        here = {broker.name for broker in self.routes} | ({self.config.broker_name} if self.config else set())
        for gone in self._permissions.keys() - here:
            del self._permissions[gone]
        if topics:
            self._permissions[broker_name] = {
                name: (topic, change(self.permission(broker_name, topic))) for name, topic in topics.items()
            }
        else:
            self._permissions.pop(broker_name, None)
        return len(topics)

    def _topics_of(self, broker_name: str) -> Mapping[str, TopicConfig]:
        self.routes.expire(self.now_ms())
        if self.config is not None and self.topics is not None and broker_name == self.config.broker_name:
            return {topic.topic_name: topic for topic in self.topics}
        for broker in self.routes:
            if broker.name == broker_name and broker.broker_id == 0:
                return broker.topics
        return {}


def topic_names(command: Command, own: Iterable[str], brokers: Iterable[RegisteredBroker]) -> Turns:
    """Returns the names of the own and the brokers' topics, `TURN_COUNT` or one broker's per turn.

    Unordered, as in Java: sorting would take longer than the rest.
    """
    names = dict.fromkeys(own)
    count = len(names)
    for broker in brokers:
        if count >= TURN_COUNT:
            count = 0
            yield
        names.update(dict.fromkeys(broker.topics))
        count += len(broker.topics)
    return answer(command, ResponseCode.SUCCESS, body=TopicList(topic_list=list(names)).encode())
