"""A name server for its own broker, if any, and all brokers that register.

Serves 103 to 106, 206 and 322, and administrators' requests (`routes_processor`). An unknown code is answered with 3,
as in 5.x. Under a policy of 4.9 it is not answered, so the client waits for its time-out. With accounts, only
administrators change its data. Name servers do not know each other.

Source: `DefaultRequestProcessor.java` (namesrv), `RouteInfoManager.java`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from attrs import define, field, frozen
from msgspec import UNSET, structs

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Processor, answer, in_turns, refuse, serve
from longpoll_broker.rocketmq.accounts.access import NAME_SERVER_ADMIN_CODES
from longpoll_broker.rocketmq.accounts.access_control import AccessControl
from longpoll_broker.rocketmq.name_server.own_topics import OwnTopics
from longpoll_broker.rocketmq.name_server.routes import RegisteredBroker, Routes, Version, routed, with_own_route
from longpoll_broker.rocketmq.name_server.routes_processor import RoutesProcessor, topic_names
from longpoll_broker.shared.broker_role import MASTER_ID
from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.topics import FAQ, QUEUE_COUNT_MAX, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_protocol.admin_headers import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from longpoll_protocol.bodies import Body, BrokerData, DataVersion, MessageQueue, QueueData, TopicRouteData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command, Serialisation
from longpoll_protocol.names import GROUP_SIZE_MAX, PERM_READ, SYSTEM_TOPICS

REGISTERED_COUNT_MAX: Final = 50_000
"""Maximum topics of one registration, some 70 ms of work; brokers' bodies fit at most 30,000."""
_TOPIC_NAME: Final = b'"topicName"'
"""Each topic of a registration has this key."""


class _Topics(Body):
    """A `TopicTable` that parses its rows on arrival: the first invalid one ends it."""

    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class RegisterBrokerBody(Body):
    """The used part of a `RegisterBody`; its name appears in errors about unreadable bodies."""

    topic_config_serialize_wrapper: _Topics = msgspec.field(default_factory=_Topics)


@frozen(eq=False)
class OwnBroker:
    """The broker in the name server's process, which need not register."""

    config: BrokerConfig
    topics: Topics
    address: str
    """HOST:PORT for clients."""
    ha_address: str = ""
    """HOST:PORT for slaves; empty if there is none."""


@define(slots=True, eq=False)
class NameServer:
    """The handler of the name server's listener."""

    own: OwnBroker | None = None
    traits: Traits = STRICT_TRAITS
    now_ms: Callable[[], int] = field(kw_only=True)
    """The wall clock."""
    access: AccessControl | None = field(default=None, kw_only=True)
    """The access control, if any: then only administrators change data of brokers and topics."""
    routes: Routes = field(factory=Routes, init=False)
    _told: OwnTopics | None = field(init=False)
    """The own broker's routed topics."""
    _administering: RoutesProcessor = field(init=False)

    def __attrs_post_init__(self) -> None:
        own = self.own
        told = None if own is None else OwnTopics(own.topics, self.traits.routes_outlive_topics)
        self._told = told
        self._administering = RoutesProcessor(
            self.routes,
            told,
            None if own is None else own.config,
            "" if own is None else own.address,
            self.now_ms,
        )

    def opened(self, channel: Channel) -> None:
        """Set up a new connection."""
        channel.connection.wait_for(self.traits.first_size)

    def closed(self, channel: Channel) -> None:
        """A connection closed: remove its broker until it registers again."""
        self.routes.closed(channel)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The quotas of all tables that peers fill."""
        return (*self.routes.quotas, self._administering.settings.quota)

    def received(self, channel: Channel, command: Command, outbox: Outbox) -> None:
        """Serve one request."""
        processors: dict[int, Processor] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topic_list,
            RequestCode.REGISTER_BROKER: self.register,
            RequestCode.UNREGISTER_BROKER: self.unregister,
            RequestCode.QUERY_DATA_VERSION: self.data_version,
            **self._administering.processors,
        }
        if self.traits.answers_in_json and command.serialisation is not Serialisation.JSON:
            command = structs.replace(command, serialisation=Serialisation.JSON)
        if self.access is not None and command.code in NAME_SERVER_ADMIN_CODES:
            refusal = self.access.refusal(channel, command)
            if refusal is not None:
                refuse(channel, command, refusal, outbox)
                return
        if command.code in processors or not self.traits.name_server_is_silent:
            serve(processors, channel, command, outbox)

    def route(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """105: return the queues of a topic and their brokers; 17 without any, or without a topic (Java's `null`)."""
        fields = command.ext_fields or {}
        if "topic" not in fields:
            return _no_route(command, "null")
        name = GetRouteInfoRequestHeader.decode(fields).topic
        self.routes.expire(self.now_ms())
        brokers: list[BrokerData] = []
        queues: list[QueueData] = []
        own = self.own
        own_topic = None if self._told is None else self._told.get(name)
        if own is not None and own_topic is not None:
            brokers.append(self._broker(own))
            queues.append(self._queue_data(own.config.broker_name, own_topic))
        addresses = self.routes.addresses_by_name()
        for broker, topic in self.routes.with_topic(name):
            if own is not None and broker.name == own.config.broker_name:
                # A slave of the own broker, or its master: the own broker has listed the queues.
                continue
            brokers.append(self._registered(broker, addresses[broker.name]))
            queues.append(self._queue_data(broker.name, topic))
        if not brokers:
            return _no_route(command, name)
        data = TopicRouteData(broker_datas=brokers, queue_datas=queues)
        return answer(command, ResponseCode.SUCCESS, None, None, data.encode())

    def queues_elsewhere(self, topic: str) -> Iterator[MessageQueue]:
        """Yields the readable queues of a topic on other brokers; callable from any thread."""
        own_name = "" if self.own is None else self.own.config.broker_name
        return (
            MessageQueue(topic=topic, broker_name=broker.name, queue_id=queue_id)
            for broker, config in self.routes.with_topic(topic)
            if broker.name != own_name and self._administering.permission(broker.name, config) & PERM_READ
            for queue_id in range(min(config.read_queue_nums, QUEUE_COUNT_MAX))
        )

    def cluster(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """106: return every cluster and its brokers."""
        self.routes.expire(self.now_ms())
        brokers: dict[str, BrokerData] = {}
        clusters: dict[str, dict[str, None]] = {}
        if self.own is not None:
            config = self.own.config
            brokers[config.broker_name] = self._broker(self.own)
            clusters[config.cluster_name] = {config.broker_name: None}
        addresses = self.routes.addresses_by_name()
        for broker in self.routes:
            if broker.name not in brokers:
                brokers[broker.name] = self._registered(broker, addresses[broker.name])
            clusters.setdefault(broker.cluster, {})[broker.name] = None
        info = {
            "brokerAddrTable": brokers,
            "clusterAddrTable": {cluster: list(names) for cluster, names in clusters.items()},
        }
        return answer(command, ResponseCode.SUCCESS, None, None, msgspec.json.encode(info))

    def topic_list(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """206: return the names of all topics."""
        self.routes.expire(self.now_ms())
        own = () if self._told is None else (topic.topic_name for topic in self._told)
        return in_turns(channel, command, topic_names(command, own, self.routes))

    # -- what other brokers tell ---------------------------------------------------------------------------------------

    def register(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """103: register another broker with its address and topics; 1 if it is refused."""
        header = RegisterBrokerRequestHeader.decode(command.ext_fields)
        problem = self._register_problem(header, command)
        if problem is not None:
            return answer(command, ResponseCode.SYSTEM_ERROR, problem)
        table = _table(command)
        # A broker with one new topic sends only that one. No registration reports deleted topics: 216 does.
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
            topics=with_own_route(before, routed(table.topic_config_table)),
            ha_address=header.ha_server_addr,
        )
        if not self.routes.has_room(broker):
            return answer(command, ResponseCode.SYSTEM_ERROR, "too many topics have been registered here")
        if not self.routes.register(broker):
            return answer(command, ResponseCode.SYSTEM_ERROR, "too many brokers have registered here")
        told = self._master_of(broker) if header.broker_id else RegisterBrokerResponseHeader()
        return answer(command, ResponseCode.SUCCESS, None, told.encode())

    def _master_of(self, slave: RegisteredBroker) -> RegisterBrokerResponseHeader:
        """Returns the addresses of a slave's master, if known: the own broker, or a registered one."""
        own = self.own
        if own is not None and (own.config.broker_name, own.config.broker_id) == (slave.name, MASTER_ID):
            return RegisterBrokerResponseHeader(ha_server_addr=own.ha_address or None, master_addr=own.address)
        master = self.routes.get(self.routes.addresses(slave.name).get(MASTER_ID, ""))
        if master is None:
            return RegisterBrokerResponseHeader()
        return RegisterBrokerResponseHeader(ha_server_addr=master.ha_address or None, master_addr=master.address)

    def unregister(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """104: remove a broker."""
        self.routes.remove(UnRegisterBrokerRequestHeader.decode(command.ext_fields).broker_addr)
        return answer(command, ResponseCode.SUCCESS)

    def data_version(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """322: return whether a broker must register again because its topics changed; counts as a sign of life."""
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

    def _registered(self, broker: RegisteredBroker, addresses: dict[int, str]) -> BrokerData:
        return BrokerData(
            cluster=broker.cluster,
            broker_name=broker.name,
            broker_addrs=addresses,
            enable_acting_master=False if self.traits.acting_master_fields else UNSET,
        )

    def _broker(self, own: OwnBroker) -> BrokerData:
        return BrokerData(
            cluster=own.config.cluster_name,
            broker_name=own.config.broker_name,
            broker_addrs=self.routes.addresses(own.config.broker_name) | {own.config.broker_id: own.address},
            enable_acting_master=False if self.traits.acting_master_fields else UNSET,
        )

    def _queue_data(self, broker_name: str, topic: TopicConfig) -> QueueData:
        return QueueData(
            broker_name=broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=self._administering.permission(broker_name, topic),
            topic_sys_flag=topic.topic_sys_flag,
        )


def _no_route(command: Command, name: str) -> Parts:
    told = f"No topic route info in name server for the topic: {name[:128]}\n{FAQ}"
    return answer(command, ResponseCode.TOPIC_NOT_EXIST, told)


def _table(command: Command) -> _Topics:
    """Parse the topics of a registration; raises HeaderError for an invalid one, or too many."""
    body = command.body
    # Before parsing: a body of a hundred thousand small topics would block others for a tenth of a second.
    _check_count(bytes(body).count(_TOPIC_NAME))
    table = RegisterBrokerBody.decode(body).topic_config_serialize_wrapper if body else _Topics()
    _check_count(len(table.topic_config_table))
    return table


def _whole_version(known: RegisteredBroker | None, broker_name: str, table: _Topics) -> Version | None:
    """Returns the version of a broker's whole table after a registration; None if parts may be missing.

    A registration is complete if it has a topic that every broker has. A registration of one change has the table's
    version too; then nothing is missing only if it is the next change.
    """
    version = table.data_version.as_pair()
    if not {*SYSTEM_TOPICS, broker_name}.isdisjoint(table.topic_config_table):
        return version
    if known is None or known.version is None:
        return None
    return version if version[0] == known.version[0] + 1 else known.version


def _check_count(count: int) -> None:
    if count > REGISTERED_COUNT_MAX:
        told = f"has {count} topics, over the limit of {REGISTERED_COUNT_MAX} for one registration"
        raise HeaderError(RegisterBrokerBody.__name__, "topicConfigTable", told)
