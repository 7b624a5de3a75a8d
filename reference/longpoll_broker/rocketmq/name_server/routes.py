"""The brokers that have registered at a name server, their topics, and when they were last heard of.

Leaves out the name server's own broker, which needs no registration, and orderly topics' configuration.

Source: `RouteInfoManager.java` 4.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from attrs import define, field

from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.topics import TOPIC_COUNT_MAX, TopicConfig
from longpoll_protocol.names import FILTER_TYPES, name_problem

TOLD_COUNT_MAX: Final = TOPIC_COUNT_MAX
"""Most topics that are kept of one broker: it may tell of other ones each time, and none is said to be gone."""
TOLD_IN_ALL_MAX: Final = 500_000
"""Most topics that are kept of all brokers together, a topic of two brokers counted twice: some 200 MB."""
BROKER_COUNT_MAX: Final = 1000
"""Most brokers that may register: each may bring a table of topics of its own."""
LIVE_MS_MAX: Final = 120_000
"""`BROKER_CHANNEL_EXPIRED_TIME`: a broker that has not been heard of for so long is forgotten."""

Version = tuple[int, int]
"""Counter and timestamp of a broker's table of topics (`DataVersion`)."""


@define(slots=True, eq=False)
class RegisteredBroker:
    """One broker at one address."""

    cluster: str
    name: str
    broker_id: int
    """0 is the master."""
    address: str
    channel: object
    """The connection that it registered by: when it closes, the broker is forgotten."""
    version: Version | None
    """Of the whole table; None as long as parts of it may never have been told."""
    heard_ms: int
    topics: Mapping[str, TopicConfig]
    """What it said that it has; a slave's count while no master of its name is here."""
    ha_address: str = ""
    """HOST:PORT where its slaves connect, as it says."""


@define(slots=True, eq=False)
class Routes:
    """Every registered broker. Invariant: at most one for each address, and for each name and id."""

    quota: Quota = field(factory=lambda: Quota("registered brokers", BROKER_COUNT_MAX), init=False)
    topics_quota: Quota = field(factory=lambda: Quota("topics of brokers", TOLD_IN_ALL_MAX), init=False)
    _by_address: dict[str, RegisteredBroker] = field(factory=dict, init=False)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """Of brokers, and of their topics."""
        return self.quota, self.topics_quota

    def __iter__(self) -> Iterator[RegisteredBroker]:
        return iter(list(self._by_address.values()))

    def get(self, address: str) -> RegisteredBroker | None:
        """The broker at an address."""
        return self._by_address.get(address)

    def register(self, broker: RegisteredBroker) -> bool:
        """Add a broker or replace what is known of it; false when there are too many."""
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
        """Take room for a broker's topics; false when there is none. A new connection ends an old registration."""
        known = self._by_address.get(broker.address)
        if known is not None and known.channel is not broker.channel:
            self.remove(broker.address)
        return self.topics_quota.take(broker.address, broker.channel, len(broker.topics))

    def remove(self, address: str) -> None:
        """Forget the broker at an address."""
        if self._by_address.pop(address, None) is not None:
            self.quota.release(address)
            self.topics_quota.release(address)

    def closed(self, channel: object) -> None:
        """Forget the brokers that registered by this connection."""
        for broker in self:
            if broker.channel is channel:
                self.remove(broker.address)
        for quota in self.quotas:
            quota.closed(channel)

    def expire(self, now_ms: int) -> None:
        """Forget who has not been heard of for too long."""
        for broker in self:
            if now_ms - broker.heard_ms > LIVE_MS_MAX:
                self.remove(broker.address)

    def with_topic(self, topic: str) -> list[tuple[RegisteredBroker, TopicConfig]]:
        """The first broker of each name that has a topic, mostly the master, and how it has it."""
        first: dict[str, RegisteredBroker] = {}
        for broker in self:
            known = first.get(broker.name)
            if known is None or broker.broker_id < known.broker_id:
                first[broker.name] = broker
        return [(broker, broker.topics[topic]) for broker in first.values() if topic in broker.topics]

    def forget_topic(self, topic: str, cluster: str | None) -> None:
        """No broker has the topic until it registers anew; with a cluster, none of that cluster."""
        for broker in self:
            if topic in broker.topics and cluster in {None, broker.cluster}:
                broker.topics = {name: config for name, config in broker.topics.items() if name != topic}

    def addresses_by_name(self) -> dict[str, dict[int, str]]:
        """The addresses of all brokers, by their names and ids."""
        found: dict[str, dict[int, str]] = {}
        for broker in self:
            found.setdefault(broker.name, {})[broker.broker_id] = broker.address
        return found

    def addresses(self, name: str) -> dict[int, str]:
        """The addresses of all brokers of one name, by their ids."""
        return {broker.broker_id: broker.address for broker in self if broker.name == name}


def usable(topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
    """The topics that have a name a client may ask for."""
    return {name: topic for name, topic in topics.items() if name_problem(name) is None}


def routed(topics: Mapping[str, TopicConfig]) -> dict[str, TopicConfig]:
    """Usable topics without odd texts, which no route tells and which may be as long as a registration."""
    found = usable(topics)
    for name, topic in found.items():
        if topic.topic_name != name or topic.topic_filter_type not in FILTER_TYPES or topic.attributes:
            counts = topic.read_queue_nums, topic.write_queue_nums
            found[name] = TopicConfig(name, *counts, topic.perm, topic_sys_flag=topic.topic_sys_flag)
    return found


def with_own_route(before: Mapping[str, TopicConfig], told: dict[str, TopicConfig]) -> dict[str, TopicConfig]:
    """A broker's topics after it has told of some: these, and of those before as many as may be kept."""
    room = max(TOLD_COUNT_MAX - len(told), 0)
    kept = islice(((name, topic) for name, topic in before.items() if name not in told), room)
    return {**dict(kept), **told}
