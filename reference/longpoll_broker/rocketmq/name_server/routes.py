"""The registered brokers of a name server, with their topics and last registrations.

The name server's own broker is not registered. Configuration of orderly topics is not supported. Source:
`RouteInfoManager.java` 4.9.
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
"""Maximum topics kept per broker: each registration may add others, and none reports deletions."""
TOLD_IN_ALL_MAX: Final = 500_000
"""Maximum topics of all brokers together, counted per broker: some 200 MB."""
BROKER_COUNT_MAX: Final = 1000
"""Maximum registered brokers: each may bring a large topic table."""
LIVE_MS_MAX: Final = 120_000
"""`BROKER_CHANNEL_EXPIRED_TIME`: a broker silent for so long is removed."""

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
    """The connection of its registration: when it closes, the broker is removed."""
    version: Version | None
    """The version of the whole table; None while parts of it may be missing."""
    heard_ms: int
    topics: Mapping[str, TopicConfig]
    """Its registered topics; a slave's count while no master of its name is registered."""
    ha_address: str = ""
    """HOST:PORT for its slaves."""


@define(slots=True, eq=False)
class Routes:
    """Every registered broker. Invariant: at most one per address, and per name and id."""

    quota: Quota = field(factory=lambda: Quota("registered brokers", BROKER_COUNT_MAX), init=False)
    topics_quota: Quota = field(factory=lambda: Quota("topics of brokers", TOLD_IN_ALL_MAX), init=False)
    _by_address: dict[str, RegisteredBroker] = field(factory=dict, init=False)

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The quotas of brokers and of their topics."""
        return self.quota, self.topics_quota

    def __iter__(self) -> Iterator[RegisteredBroker]:
        return iter(list(self._by_address.values()))

    def get(self, address: str) -> RegisteredBroker | None:
        """Returns the broker at an address."""
        return self._by_address.get(address)

    def register(self, broker: RegisteredBroker) -> bool:
        """Add or replace a broker; returns false if there are too many."""
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
        """Reserve room for a broker's topics; returns false if full. A new connection ends an old registration."""
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
        """Remove brokers that were silent for too long."""
        for broker in self:
            if now_ms - broker.heard_ms > LIVE_MS_MAX:
                self.remove(broker.address)

    def with_topic(self, topic: str) -> list[tuple[RegisteredBroker, TopicConfig]]:
        """Returns the first broker of each name with a topic, usually the master, and the topic's configuration."""
        first: dict[str, RegisteredBroker] = {}
        for broker in self:
            known = first.get(broker.name)
            if known is None or broker.broker_id < known.broker_id:
                first[broker.name] = broker
        return [(broker, broker.topics[topic]) for broker in first.values() if topic in broker.topics]

    def forget_topic(self, topic: str, cluster: str | None) -> None:
        """Remove a topic from all brokers, or those of a cluster, until they register it again."""
        for broker in self:
            if topic in broker.topics and cluster in {None, broker.cluster}:
                broker.topics = {name: config for name, config in broker.topics.items() if name != topic}

    def addresses_by_name(self) -> dict[str, dict[int, str]]:
        """Returns the addresses of all brokers, by names and ids."""
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
    """Returns usable topics without unusual texts, which no route needs and which may be very long."""
    found = usable(topics)
    for name, topic in found.items():
        if topic.topic_name != name or topic.topic_filter_type not in FILTER_TYPES or topic.attributes:
            counts = topic.read_queue_nums, topic.write_queue_nums
            found[name] = TopicConfig(name, *counts, topic.perm, topic_sys_flag=topic.topic_sys_flag)
    return found


def with_own_route(before: Mapping[str, TopicConfig], told: dict[str, TopicConfig]) -> dict[str, TopicConfig]:
    """Returns a broker's topics after a registration: the new ones, and old ones within the limit."""
    room = max(TOLD_COUNT_MAX - len(told), 0)
    kept = islice(((name, topic) for name, topic in before.items() if name not in told), room)
    return {**dict(kept), **told}
