"""A name server for its own broker, if any, and all brokers that register.

Serves the request codes 103 to 106, 206 and 322, and for administrators 100 to 102, 205, 216, 219, 224, 304, 318, 319
and 327. A request with an unknown code is answered with code 3, as in 5.x. Under a policy of 4.9, an unknown code gets
no answer, so the client waits for its timeout. With accounts, only administrators may change the name server's data.
Name servers do not know each other.

Permissions set with the codes 205 and 327 affect only routes, and last until the broker changes the topic. Settings
that tools store (PUT_KV_CONFIG, 100; `mqadmin updateKvConfig`, `updateOrderConf`) are lost when the name server stops;
RocketMQ saves them in `kvConfig.json`.

Source: `DefaultRequestProcessor.java` (namesrv), `RouteInfoManager.java`, `KVConfigManager.java` 4.9.7.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from itertools import chain, islice
from typing import Final

import msgspec
from attrs import define, field, frozen
from msgspec import UNSET, structs

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import ANSWER_SIZE_MAX, Serving, Turns, answer, refuse, serve, serves
from longpoll_broker.rocketmq.accounts.access import NAME_SERVER_ADMIN_CODES
from longpoll_broker.rocketmq.accounts.access_control import AccessControl
from longpoll_broker.rocketmq.name_server.routes import (
    LIVE_MS_MAX,
    OwnTopics,
    RegisteredBroker,
    Routes,
    Version,
    routed,
    with_own_route,
)
from longpoll_broker.shared.broker_role import MASTER_ID
from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.topics import FAQ, QUEUE_COUNT_MAX, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_protocol.admin_headers import (
    AddWritePermOfBrokerRequestHeader,
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from longpoll_protocol.bodies import (
    Body,
    BrokerData,
    DataVersion,
    KVTable,
    MessageQueue,
    QueueData,
    TopicList,
    TopicRouteData,
    read_settings,
)
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command, Serialisation
from longpoll_protocol.names import GROUP_SIZE_MAX, PERM_READ, PERM_READ_WRITE, PERM_WRITE, SYSTEM_TOPICS
from longpoll_protocol.sizes import MIB

SETTINGS_SIZE_MAX: Final = MIB
"""Maximum characters of all settings together, because any client may create a setting."""
SETTING_UNIT: Final = 512
"""The size of an ordinary setting in characters, for quotas."""
SETTING_COST: Final = 100
"""Number of characters by which each setting counts for the quota in addition to its text."""
NAME_SIZE_MAX: Final = 255
"""Maximum characters of a namespace, and of a key."""
VALUE_SIZE_MAX: Final = 4096
"""Maximum characters of a value. The order configuration of a topic on a hundred brokers has about this length."""
SETTINGS: Final = {
    "clusterTest": "false",
    "orderMessageEnable": "false",
    "scanNotActiveBrokerInterval": "0",
    "brokerChannelExpiredTime": str(LIVE_MS_MAX),
}
"""The settings that GET_NAMESRV_CONFIG (319) returns: RocketMQ's keys, with values that describe this name server.

This name server checks for inactive brokers on each request."""
TURN_COUNT: Final = 10_000
"""Number of topics visited before other connections are served, which takes a few milliseconds."""
REGISTERED_COUNT_MAX: Final = 50_000
"""Maximum topics in one registration. The body of a broker's registration has room for at most 30,000 topics."""


@define(slots=True, eq=False)
class KvSettings:
    """The settings that tools store, by namespace and key; used by one thread."""

    quota: Quota = field(factory=lambda: Quota("characters of settings", SETTINGS_SIZE_MAX, SETTING_UNIT), init=False)
    _values: dict[tuple[str, str], str] = field(factory=dict, init=False)

    def put(self, namespace: str, key: str, value: str, channel: Hashable = None) -> str | None:
        """Store a setting; returns a text that says why the setting cannot be stored, or None."""
        if max(len(namespace), len(key)) > NAME_SIZE_MAX:
            return f"the namespace or the key is longer than {NAME_SIZE_MAX} characters"
        if len(value) > VALUE_SIZE_MAX:
            return f"the value has {len(value)} characters, over the limit of {VALUE_SIZE_MAX}"
        size = SETTING_COST + len(namespace) + len(key) + len(value)
        if not self.quota.take((namespace, key), channel, size):
            return f"the settings have {self.quota.used} characters already; delete one first"
        self._values[namespace, key] = value
        return None

    def get(self, namespace: str, key: str) -> str | None:
        """Returns a setting's value, or None."""
        return self._values.get((namespace, key))

    def of(self, namespace: str) -> dict[str, str]:
        """Returns the settings of a namespace, by key."""
        return {key: value for (each, key), value in self._values.items() if each == namespace}

    def remove(self, namespace: str, key: str) -> None:
        """Remove a setting, if it exists."""
        self._values.pop((namespace, key), None)
        self.quota.release((namespace, key))


class _Topics(Body):
    """A `TopicTable` that is parsed row by row, so that parsing ends at the first invalid row."""

    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class RegisterBrokerBody(Body):
    """The part of a `RegisterBody` that the name server uses. Errors about unreadable bodies show this class's name."""

    topic_config_serialize_wrapper: _Topics = msgspec.field(default_factory=_Topics)


@frozen(eq=False)
class OwnBroker:
    """The broker in the name server's process, which need not register."""

    config: BrokerConfig
    topics: Topics
    address: str
    """The HOST:PORT at which clients reach the broker."""


@define(slots=True, eq=False)
class NameServer(Serving):
    """Serves the connections and requests of the name server's listener."""

    own: OwnBroker | None = None
    traits: Traits = STRICT_TRAITS
    now_ms: Callable[[], int] = field(kw_only=True)
    """Returns the wall clock's time, ms."""
    access: AccessControl | None = field(default=None, kw_only=True)
    """If set, only administrators may change the data of brokers and topics."""
    routes: Routes = field(factory=Routes, init=False)
    _own_topics: OwnTopics | None = field(init=False)
    """The routed topics of the broker in this process."""
    settings: KvSettings = field(factory=KvSettings, init=False)
    _permissions: dict[str, dict[str, tuple[TopicConfig, int]]] = field(factory=dict, init=False)
    """For each broker and topic, the permission set by an administrator, and the topic's configuration at that time."""

    def __attrs_post_init__(self) -> None:
        self._own_topics = None if self.own is None else OwnTopics(self.own.topics, self.traits.routes_outlive_topics)

    def opened(self, channel: Channel) -> None:
        """Set up a new connection."""
        channel.connection.wait_for(self.traits.first_size)

    def closed(self, channel: Channel) -> None:
        """Remove the brokers that registered on a closed connection, until they register again."""
        self.routes.closed(channel)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """Returns the quotas of all tables whose entries peers can create."""
        return (*self.routes.quotas, self.settings.quota)

    def received(self, channel: Channel, command: Command, outbox: Outbox) -> None:
        """Serve one request of a broker or client."""
        if self.traits.answers_in_json and command.serialisation is not Serialisation.JSON:
            command = structs.replace(command, serialisation=Serialisation.JSON)
        if self.access is not None and command.code in NAME_SERVER_ADMIN_CODES:
            refusal = self.access.refusal(channel, command)
            if refusal is not None:
                refuse(channel, command, refusal, outbox)
                return
        processors = self.processors
        if command.code in processors or not self.traits.name_server_is_silent:
            serve(processors, channel, command, outbox)

    @serves(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def route(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 105: return the queues of a topic and their brokers.

        Answers with TOPIC_NOT_EXIST (17) if no broker serves the topic, or if the request does not name a topic.
        """
        fields = command.ext_fields or {}
        if "topic" not in fields:
            return _no_route(command, "null")
        name = GetRouteInfoRequestHeader.decode(fields).topic
        self.routes.expire(self.now_ms())
        brokers: list[BrokerData] = []
        queues: list[QueueData] = []
        own = self.own
        own_topic = None if self._own_topics is None else self._own_topics.get(name)
        if own is not None and own_topic is not None:
            brokers.append(self._own_broker(own))
            queues.append(self._queue_data(own.config.broker_name, own_topic))
        addresses = self.routes.addresses_by_name()
        for broker, topic in self.routes.with_topic(name):
            if own is not None and broker.name == own.config.broker_name:
                # The registered broker is the slave or the master of the broker in this process, so its queues are
                # already in the list.
                continue
            brokers.append(self._broker(broker.cluster, broker.name, addresses[broker.name]))
            queues.append(self._queue_data(broker.name, topic))
        if not brokers:
            return _no_route(command, name)
        data = TopicRouteData(broker_datas=brokers, queue_datas=queues)
        return answer(command, ResponseCode.SUCCESS, None, None, data.encode())

    def queues_elsewhere(self, topic: str) -> Iterator[MessageQueue]:
        """Yields the readable queues of a topic on other brokers; callable from any thread."""
        return (
            MessageQueue(topic=topic, broker_name=broker.name, queue_id=queue_id)
            for broker, config in self.routes.with_topic(topic)
            if broker.name != self._own_name and self._permission(broker.name, config) & PERM_READ
            for queue_id in range(min(config.read_queue_nums, QUEUE_COUNT_MAX))
        )

    @serves(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 106: return every cluster and its brokers."""
        self.routes.expire(self.now_ms())
        brokers: dict[str, BrokerData] = {}
        clusters: dict[str, dict[str, None]] = {}
        if self.own is not None:
            config = self.own.config
            brokers[config.broker_name] = self._own_broker(self.own)
            clusters[config.cluster_name] = {config.broker_name: None}
        addresses = self.routes.addresses_by_name()
        for broker in self.routes:
            if broker.name not in brokers:
                brokers[broker.name] = self._broker(broker.cluster, broker.name, addresses[broker.name])
            clusters.setdefault(broker.cluster, {})[broker.name] = None
        info = {
            "brokerAddrTable": brokers,
            "clusterAddrTable": {cluster: list(names) for cluster, names in clusters.items()},
        }
        return answer(command, ResponseCode.SUCCESS, None, None, msgspec.json.encode(info))

    @serves(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def topic_list(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 206: return the names of all topics."""
        self.routes.expire(self.now_ms())
        return (yield from topic_names(command, self._own_names(), self.routes))

    # -- requests from other brokers ----------------------------------------------------------------------------------

    @serves(RequestCode.REGISTER_BROKER)
    def register(self, channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 103: register another broker with its address and topics; answers with code 1 if it is refused."""
        header = RegisterBrokerRequestHeader.decode(command.ext_fields)
        problem = self._register_problem(header, command)
        if problem is not None:
            return answer(command, ResponseCode.SYSTEM_ERROR, problem)
        table = _table(command)
        if len(table.topic_config_table) > TURN_COUNT:
            yield
        topics = routed(table.topic_config_table)
        if len(topics) > TURN_COUNT:
            yield
        # A broker with one new topic sends only that topic. No registration reports deleted topics, so only
        # DELETE_TOPIC_IN_NAMESRV (216) removes a topic.
        known = self.routes.get(header.broker_addr)
        if known is not None and known.name != header.broker_name:
            known = None
        before = {} if known is None else known.topics
        broker = RegisteredBroker(
            cluster=header.cluster_name,
            name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            channel=channel,
            version=_whole_version(known, header.broker_name, table),
            heard_ms=self.now_ms(),
            topics=with_own_route(before, topics),
            ha_address=header.ha_server_addr,
        )
        if not self.routes.has_room(broker):
            return answer(command, ResponseCode.SYSTEM_ERROR, "too many topics have been registered here")
        if not self.routes.register(broker):
            return answer(command, ResponseCode.SYSTEM_ERROR, "too many brokers have registered here")
        told = self._master_of(broker) if header.broker_id else RegisterBrokerResponseHeader()
        return answer(command, ResponseCode.SUCCESS, None, told.encode())

    def _master_of(self, slave: RegisteredBroker) -> RegisterBrokerResponseHeader:
        """Returns the addresses of a slave's master, which may be the broker in this process, or empty addresses."""
        own = self.own
        if own is not None and (own.config.broker_name, own.config.broker_id) == (slave.name, MASTER_ID):
            return RegisterBrokerResponseHeader(master_addr=own.address)
        master = self.routes.get(self.routes.addresses(slave.name).get(MASTER_ID, ""))
        if master is None:
            return RegisterBrokerResponseHeader()
        return RegisterBrokerResponseHeader(ha_server_addr=master.ha_address or None, master_addr=master.address)

    @serves(RequestCode.UNREGISTER_BROKER)
    def unregister(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 104: remove a broker."""
        self.routes.remove(UnRegisterBrokerRequestHeader.decode(command.ext_fields).broker_addr)
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.QUERY_DATA_VERSION)
    def data_version(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 322: return whether a broker must register again because its topics changed.

        The name server also takes the request as a sign that the broker is alive.
        """
        header = QueryDataVersionRequestHeader.decode(command.ext_fields)
        told = DataVersion.decode(command.body) if command.body else DataVersion()
        known = self.routes.get(header.broker_addr)
        if known is None:
            return answer(command, ResponseCode.SUCCESS, None, QueryDataVersionResponseHeader(changed=True).encode())
        changed = known.version != told.as_pair()
        if not changed:
            known.heard_ms = self.now_ms()
        counter, timestamp = known.version or (0, 0)
        body = DataVersion(counter=counter, timestamp=timestamp).encode()
        return answer(
            command, ResponseCode.SUCCESS, None, QueryDataVersionResponseHeader(changed=changed).encode(), body
        )

    def _register_problem(self, header: RegisterBrokerRequestHeader, command: Command) -> str | None:
        if header.body_crc32 and zlib.crc32(command.body) & 0x7FFFFFFF != header.body_crc32:
            return "crc32 not match"
        if header.compressed:
            return "a compressed registration is not read here: set compressedRegister=false"
        names = (header.cluster_name, header.broker_name, header.broker_addr, header.ha_server_addr)
        longest = max(map(len, names))
        if longest > GROUP_SIZE_MAX:
            return f"a name or an address has {longest} characters, over the limit of {GROUP_SIZE_MAX}; shorten it"
        own = None if self.own is None else (self.own.config.broker_name, self.own.config.broker_id)
        if (header.broker_name, header.broker_id) == own:
            return (
                f"the broker name {header.broker_name[:60]!r} with id {header.broker_id} is this name server's own: "
                "give the broker another name, or a slave another id"
            )
        return None

    @property
    def _own_name(self) -> str:
        return "" if self.own is None else self.own.config.broker_name

    def _own_names(self) -> Iterator[str]:
        return (topic.topic_name for topic in self._own_topics or ())

    def _permission(self, broker_name: str, topic: TopicConfig) -> int:
        """Returns the permission for a broker's topic in routes."""
        given = self._permissions.get(broker_name, {}).get(topic.topic_name)
        return topic.perm if given is None or given[0] != topic else given[1]

    def _broker(self, cluster: str, name: str, addresses: dict[int, str]) -> BrokerData:
        return BrokerData(
            cluster=cluster,
            broker_name=name,
            broker_addrs=addresses,
            enable_acting_master=False if self.traits.acting_master_fields else UNSET,
        )

    def _own_broker(self, own: OwnBroker) -> BrokerData:
        name = own.config.broker_name
        addresses = self.routes.addresses(name) | {own.config.broker_id: own.address}
        return self._broker(own.config.cluster_name, name, addresses)

    def _queue_data(self, broker_name: str, topic: TopicConfig) -> QueueData:
        return QueueData(
            broker_name=broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=self._permission(broker_name, topic),
            topic_sys_flag=topic.topic_sys_flag,
        )

    # -- requests from administrators ---------------------------------------------------------------------------------

    @serves(RequestCode.PUT_KV_CONFIG)
    def put_setting(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 100: store a setting; answers with code 1 if it is too long or there are too many settings."""
        header = PutKVConfigRequestHeader.decode(command.ext_fields)
        problem = self.settings.put(header.namespace, header.key, header.value, channel)
        return answer(command, ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR, problem)

    @serves(RequestCode.GET_KV_CONFIG)
    def setting(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 101: return a setting; answers with code 22 if the setting does not exist."""
        header = GetKVConfigRequestHeader.decode(command.ext_fields)
        value = self.settings.get(header.namespace, header.key)
        if value is None:
            place = f"Namespace: {header.namespace[:255]} Key: {header.key[:255]}"
            return answer(command, ResponseCode.QUERY_NOT_FOUND, f"No config item, {place}")
        return answer(command, ResponseCode.SUCCESS, None, GetKVConfigResponseHeader(value=value).encode())

    @serves(RequestCode.DELETE_KV_CONFIG)
    def delete_setting(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 102: remove a setting."""
        header = DeleteKVConfigRequestHeader.decode(command.ext_fields)
        self.settings.remove(header.namespace, header.key)
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def settings_of_namespace(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 219: return all settings of a namespace; answers with code 22 if the namespace has no settings."""
        namespace = GetKVListByNamespaceRequestHeader.decode(command.ext_fields).namespace
        found = self.settings.of(namespace)
        if not found:
            told = f"No config item, Namespace: {namespace[:255]}"
            return answer(command, ResponseCode.QUERY_NOT_FOUND, told)
        return answer(command, ResponseCode.SUCCESS, body=KVTable(table=found).encode())

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 205: remove a broker's write permission from routes; returns 0 topics for an unknown broker."""
        name = WipeWritePermOfBrokerRequestHeader.decode(command.ext_fields).broker_name
        count = yield from self._permit(name, lambda permission: permission & ~PERM_WRITE)
        fields = WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count).encode()
        return answer(command, ResponseCode.SUCCESS, None, fields)

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def add_write(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 327: make a broker's topics readable and writable in routes."""
        name = AddWritePermOfBrokerRequestHeader.decode(command.ext_fields).broker_name
        count = yield from self._permit(name, lambda _permission: PERM_READ_WRITE)
        fields = AddWritePermOfBrokerResponseHeader(add_topic_count=count).encode()
        return answer(command, ResponseCode.SUCCESS, None, fields)

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 216: remove a topic's routes. Under `strict`, routes to the process's own broker stay until code 215."""
        header = DeleteTopicFromNamesrvRequestHeader.decode(command.ext_fields)
        cluster = header.cluster_name or None
        self.routes.forget_topic(header.topic, cluster)
        if self._own_topics is not None and self.own is not None and cluster in {None, self.own.config.cluster_name}:
            self._own_topics.forget(header.topic)
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_TOPICS_BY_CLUSTER)
    def cluster_topics(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 224: return the names of a cluster's topics; an unknown cluster has no topics."""
        cluster = GetTopicsByClusterRequestHeader.decode(command.ext_fields).cluster
        self.routes.expire(self.now_ms())
        is_own = self.own is not None and cluster == self.own.config.cluster_name
        brokers = [broker for broker in self.routes if broker.cluster == cluster]
        return (yield from topic_names(command, self._own_names() if is_own else (), brokers))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 304: return the names of clusters and brokers, because these names are also topics.

        The answer also has a broker's address, from which the client gets the other system topics.
        """
        self.routes.expire(self.now_ms())
        names = {name for broker in self.routes for name in (broker.cluster, broker.name)}
        addresses = [broker.address for broker in self.routes]
        if self.own is not None:
            names |= {self.own.config.cluster_name, self.own.config.broker_name}
            addresses.insert(0, self.own.address)
        told = TopicList(topic_list=sorted(names), broker_addr=addresses[0] if addresses else None)
        return answer(command, ResponseCode.SUCCESS, body=told.encode())

    @serves(RequestCode.GET_NAMESRV_CONFIG)
    def own_settings(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 319: return the name server's settings, one per line."""
        text = "".join(f"{key}={value}\n" for key, value in SETTINGS.items())
        return answer(command, ResponseCode.SUCCESS, body=text.encode())

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG)
    def change_settings(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 318: refuse a change of settings with code 1 and the key of a setting.

        Answers with code 0 if all settings have the requested values already.
        """
        for key, value in read_settings(bytes(command.body), "UpdateNamesrvConfig").items():
            if SETTINGS.get(key) != value:
                told = f"{key[:80]!r} of this name server cannot be changed: 319 tells the settings that there are"
                return answer(command, ResponseCode.SYSTEM_ERROR, told)
        return answer(command, ResponseCode.SUCCESS)

    def _permit(self, broker_name: str, change: Callable[[int], int]) -> Generator[None, None, int]:
        """Set the permission of a broker's topics in routes, in steps; returns the number of topics."""
        given = {}
        for number, topic in enumerate(self._topics_of(broker_name)):
            if number and number % TURN_COUNT == 0:
                yield
            given[topic.topic_name] = (topic, change(self._permission(broker_name, topic)))
        for gone in self._permissions.keys() - {self._own_name, *(broker.name for broker in self.routes)}:
            del self._permissions[gone]
        if given:
            self._permissions[broker_name] = given
        else:
            self._permissions.pop(broker_name, None)
        return len(given)

    def _topics_of(self, broker_name: str) -> Iterable[TopicConfig]:
        self.routes.expire(self.now_ms())
        if self._own_topics is not None and broker_name == self._own_name:
            return self._own_topics
        for broker in self.routes:
            if broker.name == broker_name and broker.broker_id == 0:
                return list(broker.topics.values())
        return ()


def _no_route(command: Command, name: str) -> Parts:
    told = f"No topic route info in name server for the topic: {name[:128]}\n{FAQ}"
    return answer(command, ResponseCode.TOPIC_NOT_EXIST, told)


def _table(command: Command) -> _Topics:
    """Parse the topics of a registration; raises HeaderError for an invalid topic, or for too many topics."""
    body = command.body
    # The topics are counted before parsing, because parsing a hundred thousand small topics would block other clients.
    # Each topic is one JSON object, in 5.x with a second object for its attributes.
    _check_count(bytes(body).count(b"{") // 2)
    table = RegisterBrokerBody.decode(body).topic_config_serialize_wrapper if body else _Topics()
    _check_count(len(table.topic_config_table))
    return table


def _whole_version(known: RegisteredBroker | None, broker_name: str, table: _Topics) -> Version | None:
    """Returns the version of a broker's topic table up to which no change is missing after a registration, or None.

    A registration is complete if it has a topic that every broker has. A registration of a single change also carries
    the whole table's version. That version counts only if the change directly follows the last known version.
    """
    version = table.data_version.as_pair()
    if not {*SYSTEM_TOPICS, broker_name}.isdisjoint(table.topic_config_table):
        return version
    if known is None or known.version is None:
        return None
    return version if version[0] == known.version[0] + 1 else known.version


def _check_count(count: int) -> None:
    if count > REGISTERED_COUNT_MAX:
        told = f"has over {REGISTERED_COUNT_MAX} topics; register fewer at a time"
        raise HeaderError(RegisterBrokerBody.__name__, "topicConfigTable", told)


def topic_names(command: Command, own: Iterable[str], brokers: Iterable[RegisteredBroker]) -> Turns:
    """Returns the names of the topics of this process's broker and of other brokers, up to the size of an answer.

    The generator yields after every `TURN_COUNT` names. As in RocketMQ, the names are unordered, because sorting would
    take longer than the rest of the work.
    """
    names: dict[str, None] = {}
    size = 0
    found = chain(own, chain.from_iterable(list(broker.topics) for broker in brokers))
    while size <= ANSWER_SIZE_MAX and (part := list(islice(found, TURN_COUNT))):
        if names:
            yield
        names.update(dict.fromkeys(part))
        size += sum(map(len, part))
    return answer(command, ResponseCode.SUCCESS, body=TopicList(topic_list=list(names)).encode())
