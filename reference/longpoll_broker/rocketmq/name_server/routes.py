"""The topics in a name server's routes: those of registered brokers, and those of the broker in the same process.

RocketMQ's name server is not notified of deleted topics, so their routes stay until code 216 removes them. If code 216
removes the route of an existing topic, the route returns when the topic changes, or when the broker itself creates a
topic and registers all topics. The configuration of ordered topics is not supported.

Source: `RouteInfoManager.java`, `BrokerController.registerIncrementBrokerData` 4.9.7; seen on 4.9.7 and 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from attrs import define, field

from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.topics import TOPIC_COUNT_MAX, TopicConfig, Topics
from longpoll_protocol.names import FILTER_TYPES, name_problem

BROKER_TOPIC_COUNT_MAX: Final = TOPIC_COUNT_MAX
"""Maximum topics stored per broker, because each registration may add topics, and no registration removes topics."""
TOPIC_TOTAL_MAX: Final = 500_000
"""Maximum topics of all brokers together, which take about 200 MB. A topic on two brokers counts twice."""
BROKER_COUNT_MAX: Final = 1000
"""Maximum registered brokers, because each broker may have a large topic table."""
LIVE_MS_MAX: Final = 120_000
"""`BROKER_CHANNEL_EXPIRED_TIME`: a broker is removed if it sends nothing for this time, ms."""

Version = tuple[int, int]
"""Counter and timestamp of a broker's topic table (`DataVersion`)."""


@define(slots=True, eq=False)
class RegisteredBroker:
    """One registered broker, at one address."""

    cluster: str
    name: str
    broker_id: int
    """The broker's id; a master has the id 0."""
    address: str
    channel: object
    """The connection on which the broker registered; the broker is removed when this connection closes."""
    version: Version | None
    """The version of the broker's whole topic table; None while some topics may be missing."""
    heard_ms: int
    topics: dict[str, TopicConfig]
    """The registered topics. A slave's topics are used only while no master with the same broker name is registered."""
    ha_address: str = ""
    """The HOST:PORT from which the broker's slaves copy the log."""


@define(slots=True, eq=False)
class Routes:
    """The registered brokers. Invariant: each address, and each pair of name and id, has at most one broker."""

    quota: Quota = field(factory=lambda: Quota("registered brokers", BROKER_COUNT_MAX), init=False)
    topics_quota: Quota = field(factory=lambda: Quota("topics of brokers", TOPIC_TOTAL_MAX), init=False)
    _by_address: dict[str, RegisteredBroker] = field(factory=dict, init=False)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """Returns the quotas of brokers and of their topics."""
        return self.quota, self.topics_quota

    def __iter__(self) -> Iterator[RegisteredBroker]:
        return iter(list(self._by_address.values()))

    def get(self, address: str) -> RegisteredBroker | None:
        """Returns the broker at an address, or None."""
        return self._by_address.get(address)

    def register(self, broker: RegisteredBroker) -> bool:
        """Add or replace a broker; returns false if there are too many brokers."""
        for other in self:
            is_same_place = (other.name, other.broker_id) == (broker.name, broker.broker_id)
            if is_same_place and other.address != broker.address:
                self.remove(other.address)
        if not self.quota.take(broker.address, broker.channel):
            self.topics_quota.release(broker.address)
            return False
        self._by_address[broker.address] = broker
        return True

    def has_room(self, broker: RegisteredBroker) -> bool:
        """Reserve room for a broker's topics; returns false if there is not enough room.

        If the broker has registered on another connection before, the older registration ends.
        """
        known = self._by_address.get(broker.address)
        if known is not None and known.channel is not broker.channel:
            self.remove(broker.address)
        return self.topics_quota.take(broker.address, broker.channel, len(broker.topics))

    def remove(self, address: str) -> None:
        """Remove the broker at an address."""
        if self._by_address.pop(address, None) is not None:
            self.quota.release(address)
            self.topics_quota.release(address)

    def closed(self, channel: object) -> None:
        """Remove the brokers that registered on this connection."""
        for broker in self:
            if broker.channel is channel:
                self.remove(broker.address)

    def expire(self, now_ms: int) -> None:
        """Remove brokers that have sent nothing for too long."""
        for broker in self:
            if now_ms - broker.heard_ms > LIVE_MS_MAX:
                self.remove(broker.address)

    def with_topic(self, topic: str) -> list[tuple[RegisteredBroker, TopicConfig]]:
        """Returns the brokers that have a topic, one per name (usually the master), with the topic's configuration."""
        first: dict[str, RegisteredBroker] = {}
        for broker in self:
            known = first.get(broker.name)
            if known is None or broker.broker_id < known.broker_id:
                first[broker.name] = broker
        found = ((broker, broker.topics.get(topic)) for broker in first.values())
        return [(broker, config) for broker, config in found if config is not None]

    def forget_topic(self, topic: str, cluster: str | None) -> None:
        """Remove a topic from all brokers, or from the brokers of a cluster, until they register the topic again."""
        for broker in self:
            if cluster in {None, broker.cluster}:
                broker.topics.pop(topic, None)

    def addresses_by_name(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of all brokers, by name and id."""
        found: dict[str, dict[int, str]] = {}
        for broker in self:
            found.setdefault(broker.name, {})[broker.broker_id] = broker.address
        return found

    def addresses(self, name: str) -> dict[int, str]:
        """Returns the addresses of all brokers of one name, by id."""
        return {broker.broker_id: broker.address for broker in self if broker.name == name}


def usable(topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
    """Returns the topics with valid names."""
    return {name: topic for name, topic in topics.items() if name_problem(name) is None}


def routed(topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
    """Returns the usable topics without their unusual text fields, which no route needs and which may be very long."""
    found = usable(topics)
    for name, topic in found.items():
        if topic.topic_name != name or topic.topic_filter_type not in FILTER_TYPES or topic.attributes:
            counts = topic.read_queue_nums, topic.write_queue_nums
            found[name] = TopicConfig(name, *counts, topic.perm, topic_sys_flag=topic.topic_sys_flag)
    return found


def with_own_route(before: Mapping[str, TopicConfig], told: dict[str, TopicConfig]) -> dict[str, TopicConfig]:
    """Returns a broker's topics after a registration: the registered topics, and old topics up to the limit."""
    if len(whole := {**before, **told}) <= BROKER_TOPIC_COUNT_MAX:
        return whole
    room = max(BROKER_TOPIC_COUNT_MAX - len(told), 0)
    kept = islice(((name, topic) for name, topic in before.items() if name not in told), room)
    return {**dict(kept), **told}


@define(slots=True, eq=False)
class OwnTopics:
    """The routed topics of the broker in this process, which changes `topics`; one thread reads and removes routes."""

    topics: Topics
    outlive: bool
    """Whether a route stays when its topic is deleted, and may be removed while its topic exists."""
    _forgotten: dict[str, tuple[TopicConfig, int]] = field(factory=dict, init=False)
    """Topics that DELETE_TOPIC_IN_NAMESRV (216) removed, each with its configuration and the number of complete
    registrations at that time."""

    def __attrs_post_init__(self) -> None:
        self.topics.keeps_gone = self.outlive

    def get(self, name: str) -> TopicConfig | None:
        """Returns the topic, or None if it has no route."""
        topic = self.topics.get(name)
        if topic is None:
            return self.topics.gone.get(name)
        return None if self._is_forgotten(topic) else topic

    def __iter__(self) -> Iterator[TopicConfig]:
        names = {**self.topics.gone, **self.topics.by_name}
        return (topic for topic in names.values() if not self._is_forgotten(topic))

    def forget(self, name: str) -> None:
        """Code 216: remove a topic's route."""
        if not self.outlive:
            return
        self.topics.gone.pop(name, None)
        topic = self.topics.by_name.get(name)
        if topic is not None:
            self._forgotten[name] = (topic, self.topics.full_registrations)
        if len(self._forgotten) > len(self.topics.by_name):
            self._forgotten = {name: each for name, each in self._forgotten.items() if name in self.topics.by_name}

    def _is_forgotten(self, topic: TopicConfig) -> bool:
        forgotten = self._forgotten.get(topic.topic_name)
        if forgotten is None:
            return False
        if forgotten[0] is topic and forgotten[1] == self.topics.full_registrations:
            return True
        del self._forgotten[topic.topic_name]
        return False
