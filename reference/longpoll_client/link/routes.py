"""Keeps topics' routes, decides when to refresh them, and selects the name server and the broker to ask.

This module has no lock, clock or connection: its owner asks name servers, passes in time and answers, and holds the
lock. `instance` owns the routes of a client on threads, and `aio.instance` those of a client on an event loop.

Source: `MQClientInstance.java`, `TopicPublishInfo.java`, `NettyRemotingClient.getAndCreateNameserverChannel`,
`PullAPIWrapper.recalculatePullFromWhichNode`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

from attrs import define, evolve, field, frozen

from longpoll_client.checks import Addresses, name_servers_text
from longpoll_client.errors import ClientError, NoRouteError, RefusedError
from longpoll_protocol.bodies import BrokerData, MessageQueue, TopicRouteData
from longpoll_protocol.codes import Permission, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_spec.errors import ConfigError

log: logging.Logger = logging.getLogger(__name__)

ROUTE_AGE_S_MAX: Final = 30.0
"""`pollNameServerInterval`: the maximum age of a route before it is requested again, seconds."""
ROUTE_RETRY_S: Final = 1.0
"""How long a route is used after a failed refresh before the next attempt, seconds."""
DOUBT_WAIT_S: Final = 1.0
"""How long a send waits for the refresh of a doubted route before it uses the doubted route, seconds."""
DEFAULT_QUEUE_COUNT: Final = 4
"""`defaultTopicQueueNums` of producers: the number of queues of a topic that a send creates, limited by the queue count
of TBW102."""
MASTER_ID: Final = 0
QUEUE_COUNT_MAX: Final = 65_536
"""Maximum queues of a topic on one broker; further queues of a route are ignored."""


@frozen
class Route:
    """The queues of a topic and the addresses of their brokers."""

    topic: str
    readable: tuple[MessageQueue, ...]
    """Queues that can be pulled, in order."""
    writable: tuple[MessageQueue, ...]
    """Queues that can be sent to, in order."""
    addresses: dict[str, str]
    """The host:port of each broker name: the address of its master, or of its first slave if it has no master."""
    learned_ns: int
    """When the route was learned, ns. An earlier time makes the refresh of the route due earlier."""
    by_id: Mapping[str, Mapping[int, str]] = field(factory=dict)
    """Every host:port of each broker name, by broker id."""


@lru_cache(maxsize=1024)
def split_address(address: str) -> tuple[str, int]:
    """Returns host and port of "host:port"; raises ConfigError with an example."""
    host, _colon, port = address.strip().rpartition(":")
    if not host or set(",/") & set(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
        several = ", and a semicolon between several" if "," in address else ""
        raise ConfigError(f"{address!r} is not an address; write HOST:PORT, such as 127.0.0.1:9876{several}")
    return host, int(port)


def split_addresses(name_server: Addresses) -> list[tuple[str, int]]:
    """Parse one address or several; raises ConfigError for an invalid address or an empty list."""
    found = [split_address(address) for address in name_servers_text(name_server).split(";") if address.strip()]
    if not found:
        raise ConfigError("the name server's address is empty; write HOST:PORT, such as 127.0.0.1:9876")
    return found


@define(slots=True, eq=False)
class Routes:
    """The routes of one client.

    Invariant: `_addresses` has every broker that a route of `_routes` names; `_doubted` has the topics of `_routes`
    whose next use waits for a refresh, because a send failed or the route is borrowed from TBW102.
    """

    _routes: dict[str, Route] = field(factory=dict, init=False)
    _doubted: set[str] = field(factory=set, init=False)
    _addresses: dict[str, str] = field(factory=dict, init=False)
    _by_id: dict[str, Mapping[int, str]] = field(factory=dict, init=False)

    def known(self, topic: str) -> Route | None:
        """Return a topic's route, however old; None for an unknown topic."""
        return self._routes.get(topic)

    def fresh(self, topic: str, now_ns: int) -> Route | None:
        """Return a topic's route if it needs no refresh, or None."""
        known = self._routes.get(topic)
        return known if known is not None and now_ns - known.learned_ns < ROUTE_AGE_S_MAX * 1e9 else None

    def usable(self, topic: str) -> Route | None:
        """Return a topic's route unless it is doubted. An old route may be used during its refresh."""
        return None if topic in self._doubted else self._routes.get(topic)

    def learn(self, topic: str, answer: Command, queue_count_max: int | None, now_ns: int) -> Route:
        """Store a topic's route from a name server's answer; the route may be borrowed from another topic.

        `queue_count_max` is None unless the route is borrowed. Raises NoRouteError if the name server does not know the
        topic or knows no broker of the topic, and another ClientError for an invalid answer.
        """
        route = make_route(topic, _route_data(topic, answer), queue_count_max, now_ns)
        if not route.addresses:
            raise NoRouteError(f"topic {topic!r} has no running broker; start it")
        # The next send asks for a borrowed route again, because the first send creates the topic's own route.
        self._keep(route if queue_count_max is None else evolve(route, learned_ns=_aged(now_ns)))
        if queue_count_max is not None:
            self._doubted.add(topic)
        return route

    def fall_back(self, topic: str, error: ClientError, now_ns: int) -> Route:
        """Returns the last known route after a failed refresh; raises the error if no route is known."""
        known = self._routes.get(topic)
        if known is None:
            raise error
        log.warning("%s; topic %s uses its last known route", error, topic)
        self._keep(evolve(known, learned_ns=_aged(now_ns) + int(ROUTE_RETRY_S * 1e9)))
        return known

    def doubt(self, topic: str, now_ns: int) -> None:
        """Refresh the route at its next use; the known route is used if the refresh fails.

        A failed send says little about the route, because its broker may come back and a restarted name server knows no
        topic for a while.
        """
        known = self._routes.get(topic)
        if known is not None:
            self._routes[topic] = evolve(known, learned_ns=_aged(now_ns))
            self._doubted.add(topic)

    def forget(self, topic: str) -> None:
        """Forget a topic's route; the name server's next answer replaces it."""
        self._routes.pop(topic, None)
        self._doubted.discard(topic)

    def address(self, broker_name: str) -> str:
        """Returns the broker's address from the latest route that named the broker; raises NoRouteError."""
        address = self._addresses.get(broker_name)
        if address is None:
            raise NoRouteError(f"broker {broker_name!r} is not in any route")
        return address

    def address_of(self, broker_name: str, broker_id: int) -> str:
        """Return a broker's address by name and id, or its master's address for an unknown id. Raises NoRouteError."""
        return self._by_id.get(broker_name, {}).get(broker_id) or self.address(broker_name)

    def other_id(self, broker_name: str, address: str) -> int | None:
        """Return the lowest id of a broker that has this name but another address, or None."""
        found = self._by_id.get(broker_name, {})
        return min((broker_id for broker_id, other in found.items() if other != address), default=None)

    def addresses(self) -> list[str]:
        """Returns every address in the latest routes, including those of slaves."""
        slaves = {address for by_id in self._by_id.values() for address in by_id.values()}
        return sorted(slaves | set(self._addresses.values()))

    def _keep(self, route: Route) -> None:
        self._addresses.update(route.addresses)
        self._by_id.update(route.by_id)
        self._routes[route.topic] = route
        self._doubted.discard(route.topic)


def _aged(now_ns: int) -> int:
    """Returns the `learned_ns` of a route whose refresh is due now."""
    return now_ns - int(ROUTE_AGE_S_MAX * 1e9)


def _route_data(topic: str, answer: Command) -> TopicRouteData:
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise NoRouteError(f"topic {topic!r} is unknown to the name server; send a message to the topic, or create it")
    if answer.code != ResponseCode.SUCCESS:
        raise RefusedError(f"route of topic {topic!r}", answer.code, answer.remark)
    try:
        return TopicRouteData.decode(answer.body)
    except HeaderError as error:
        raise ClientError(f"route of topic {topic!r} cannot be read: {error}") from None


def make_route(topic: str, data: TopicRouteData, queue_count_max: int | None, learned_ns: int) -> Route:
    """Create a route from a name server's answer; the queues of a broker without a master are only readable."""
    by_id = {broker.broker_name: _reachable(topic, broker) for broker in data.broker_datas}
    by_id = {name: addresses_of for name, addresses_of in by_id.items() if addresses_of}
    addresses = {name: addresses_of[min(addresses_of)] for name, addresses_of in by_id.items()}
    counts: Sequence[tuple[str, int, int, int]] = [
        (queue.broker_name, queue.perm, queue.read_queue_nums, queue.write_queue_nums)
        for queue in data.queue_datas
        if queue.broker_name in addresses
    ]
    limit = queue_count_max if queue_count_max is not None else 2**31

    def queues(broker_name: str, count: int) -> list[MessageQueue]:
        return [
            MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)
            for queue_id in range(min(count, limit, QUEUE_COUNT_MAX))
        ]

    readable = [queue for name, perm, reads, _ in counts if perm & Permission.READ for queue in queues(name, reads)]
    writable = [
        queue
        for name, perm, _, writes in counts
        if perm & Permission.WRITE and MASTER_ID in by_id[name]
        for queue in queues(name, writes)
    ]
    return Route(topic, tuple(sorted(readable)), tuple(sorted(writable)), addresses, learned_ns, by_id)


def _reachable(topic: str, broker: BrokerData) -> dict[int, str]:
    """Returns the valid addresses of a broker, by broker id; invalid addresses are logged."""
    found = {}
    for broker_id, address in broker.broker_addrs.items():
        try:
            split_address(address)
        except ConfigError as error:
            log.warning("the route of topic %s leads nowhere at broker %s: %s", topic, broker.broker_name[:140], error)
        else:
            found[broker_id] = address
    return found


class NameServers:
    """The name servers of one client. Any thread may call the methods, because each change is atomic."""

    def __init__(self, name_server: Addresses) -> None:
        """Parse one address or several; raises ConfigError for an invalid address or an empty list."""
        self._addresses = split_addresses(name_server)
        self._first = 0

    def in_turn(self) -> list[tuple[str, int]]:
        """Returns host and port of each name server, in the order in which to ask them."""
        first = self._first
        return [*self._addresses[first:], *self._addresses[:first]]

    def answered(self, address: tuple[str, int]) -> None:
        """Make this name server the first to ask from now on."""
        self._first = self._addresses.index(address)


AWAY_S: Final = 3.0
"""How long an unreachable broker is avoided if another broker exists, seconds."""


class BrokerLookup(Protocol):
    """Looks up the addresses of brokers."""

    def broker_address_of(self, broker_name: str, broker_id: int, /) -> str:
        """Return a broker's address by name and id, or its master's address for an unknown id. Raises NoRouteError."""
        ...

    def other_broker_id(self, broker_name: str, address: str, /) -> int | None:
        """Return the lowest id of a broker that has this name but another address, or None."""
        ...


class PullSource:
    """Selects the broker for one queue's pulls. Only one thread uses a source, as a queue has one pull at a time."""

    def __init__(self, brokers: BrokerLookup, broker_name: str) -> None:
        self._brokers = brokers
        self._broker_name = broker_name
        self._suggested_id = MASTER_ID
        self._asked = ""
        self._away: dict[str, int] = {}
        """Unreachable addresses, and until when each is avoided (monotonic ns); at most two."""

    def address(self, now_ns: int) -> str:
        """Returns the host:port to ask now; raises NoRouteError."""
        address = self._brokers.broker_address_of(self._broker_name, self._suggested_id)
        if self._away.get(address, 0) > now_ns:
            other = self._brokers.other_broker_id(self._broker_name, address)
            if other is not None:
                address = self._brokers.broker_address_of(self._broker_name, other)
        self._asked = address
        return address

    def suggested(self, broker_id: int) -> None:
        """From now on, use the broker that an answer suggests. The broker that answered is no longer avoided."""
        self._suggested_id = max(broker_id, MASTER_ID)
        self._away.pop(self._asked, None)

    @property
    def is_master_asked(self) -> bool:
        """Whether the last returned address is the master's."""
        return self._asked == self._brokers.broker_address_of(self._broker_name, MASTER_ID)

    def fell_back(self, now_ns: int) -> bool:
        """Record that the last broker was unreachable. Returns whether to ask another broker immediately."""
        asked = self._asked
        self._away = {address: until for address, until in self._away.items() if until > now_ns}
        was_alone = not self._away
        self._away[asked] = now_ns + int(AWAY_S * 1e9)
        return was_alone and self._brokers.other_broker_id(self._broker_name, asked) is not None
