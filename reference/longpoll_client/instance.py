"""All connections of one client, and the routes it has learned from name servers.

Leaves out what is sent over them (`producer`, `consumer`).

Source: `MQClientInstance.java`, `MQClientAPIImpl.getTopicRouteInfoFromNameServer`, `TopicPublishInfo.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from attrs import evolve, frozen

from longpoll_client.credentials import Credentials
from longpoll_client.errors import ClientError, NoRouteError, RefusedError, UnreachableError
from longpoll_client.lifecycle import Lifecycle
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.bodies import MessageQueue, TopicRouteData
from longpoll_protocol.codes import Permission, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import EMPTY, Buffer
from longpoll_protocol.headers import GetRouteInfoRequestHeader
from longpoll_protocol.headers.send import DEFAULT_TOPIC
from longpoll_runtime import Lock, Runtime
from longpoll_runtime.closeable import Closeable
from longpoll_spec.errors import ConfigError

log = logging.getLogger(__name__)

ROUTE_AGE_S_MAX: Final = 30.0
"""`pollNameServerInterval`: an older route is asked for again."""
ROUTE_RETRY_S: Final = 1.0
"""A route for which no better one was to be had is kept for so long before the next look."""
DEFAULT_QUEUE_COUNT: Final = 4
"""`defaultTopicQueueNums` of producers: queues of a topic that a send creates, at most as many as TBW102 has."""
MASTER_ID: Final = 0
QUEUE_COUNT_MAX: Final = 65_536
"""Most queues of a topic on one broker that a route is believed to have."""


@frozen
class Route:
    """Where the queues of a topic are."""

    topic: str
    readable: tuple[MessageQueue, ...]
    """Queues that can be pulled, in order."""
    writable: tuple[MessageQueue, ...]
    """Queues that can be sent to, in order."""
    addresses: dict[str, str]
    """The master's host:port of each broker name."""
    learned_ns: int
    """When it was learned, or at the earliest so that it is asked for again when it should be."""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"; raises ConfigError, which says what an address looks like."""
    host, _colon, port = address.strip().rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{address!r} is no address: write HOST:PORT, such as 127.0.0.1:9876")
    return host, int(port)


class ClientInstance(Closeable):
    """One client to the name servers and brokers: an id, a connection per address, a route per topic.

    `name_server` is one address or several separated by semicolons. Raises ConfigError when one is none. `on_request`
    gets what a peer asks of us, with its host:port, as `RemotingClient` says.

    Invariant: `_clients`, `_connecting`, `_routes` and `_addresses` change under `_lock`; a client in `_clients` may
    have lost its connection and is then replaced by the next that asks for it, under the address's lock in
    `_connecting`, so that a broker that is slow to connect to keeps nobody from the others.
    """

    def __init__(
        self,
        runtime: Runtime,
        name_server: str,
        *,
        client_id: str | None = None,
        on_request: Callable[[Command, str], bool] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.runtime = runtime
        self.client_id = client_id or f"127.0.0.1@longpoll-{runtime.unix_ms():x}-{runtime.monotonic_ns():x}"
        self._name_servers = [split_address(address) for address in name_server.split(";") if address.strip()]
        if not self._name_servers:
            raise ConfigError("no name server is named: write HOST:PORT, such as 127.0.0.1:9876")
        self._on_request = on_request
        self._credentials = credentials
        self._lifecycle = Lifecycle(runtime, "the client")
        self._lock = runtime.lock()
        self._connecting: dict[tuple[str, int], Lock] = {}
        self._clients: dict[tuple[str, int], RemotingClient] = {}
        self._routes: dict[str, Route] = {}
        self._addresses: dict[str, str] = {}

    def close(self) -> None:
        """Close every connection; what is asked afterwards is a LifecycleError."""
        self._lifecycle.end()
        with self._lock:
            clients = list(self._clients.values())
            self._clients.clear()
        for client in clients:
            client.close()

    def client(self, address: str) -> RemotingClient:
        """An open connection to host:port; raises UnreachableError."""
        return self._client(split_address(address))

    def name_server(self) -> RemotingClient:
        """An open connection to the first name server that can be reached; raises UnreachableError."""
        failure: ClientError | None = None
        for address in self._name_servers:
            try:
                return self._client(address)
            except UnreachableError as error:
                failure = error
        raise UnreachableError(f"no name server answers: {failure}") from failure

    def route(self, topic: str) -> Route:
        """The topic's route, at most 30 s old; raises NoRouteError, UnreachableError or another ClientError."""
        return self._route(topic, topic, None)

    def publish_route(self, topic: str) -> Route:
        """Where to send messages of the topic: its own route, or that of TBW102 when the send is to create it."""
        try:
            return self._route(topic, topic, None)
        except NoRouteError:
            return self._route(topic, DEFAULT_TOPIC, DEFAULT_QUEUE_COUNT)

    def broker_address(self, broker_name: str) -> str:
        """The broker's address by the latest route that named it, without asking; raises NoRouteError."""
        with self._lock:
            address = self._addresses.get(broker_name)
        if address is None:
            raise NoRouteError(f"broker {broker_name!r} is in no route")
        return address

    def broker_addresses(self) -> list[str]:
        """Every address that a route has named."""
        with self._lock:
            return sorted(set(self._addresses.values()))

    def forget_route(self, topic: str) -> None:
        """Know nothing of a topic any more: what the name server says of it next is so."""
        with self._lock:
            self._routes.pop(topic, None)

    def doubt_route(self, topic: str) -> None:
        """Ask the name server again the next time, and go on by what is known if it has nothing better.

        A send that failed says little about the route: its broker may come back, and a name server that was restarted
        knows no topic for a while.
        """
        now_ns = self.runtime.monotonic_ns()
        with self._lock:
            known = self._routes.get(topic)
            if known is not None:
                self._routes[topic] = evolve(known, learned_ns=_aged(now_ns))

    def _route(self, topic: str, asked_topic: str, queue_count_max: int | None) -> Route:
        self._lifecycle.check_open()
        now_ns = self.runtime.monotonic_ns()
        with self._lock:
            known = self._routes.get(topic)
        if known is not None and now_ns - known.learned_ns < ROUTE_AGE_S_MAX * 1e9:
            return known
        try:
            route = make_route(topic, self._ask_name_servers(asked_topic), queue_count_max, now_ns)
            if not route.addresses:
                raise NoRouteError(f"topic {topic!r} has no broker with a master: is the broker up?")
        except ClientError as error:
            if known is None:
                raise
            log.warning("%s; topic %s goes on by its last route", error, topic)
            self._keep(evolve(known, learned_ns=_aged(now_ns) + int(ROUTE_RETRY_S * 1e9)))
            return known
        # A borrowed route is asked for again with the next send, which makes the topic have its own.
        self._keep(route if queue_count_max is None else evolve(route, learned_ns=_aged(now_ns)))
        return route

    def _keep(self, route: Route) -> None:
        with self._lock:
            self._addresses.update(route.addresses)
            self._routes[route.topic] = route

    def _ask_name_servers(self, topic: str) -> TopicRouteData:
        """The first answer of any name server; raises the last one's error when none answers."""
        failure: ClientError | None = None
        for address in self._name_servers:
            try:
                answer = self._client(address).call(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic)
                )
            except ClientError as error:
                failure = error
                continue
            return _route_data(topic, answer)
        assert failure is not None
        raise UnreachableError(f"no name server answers: {failure}") from failure

    def _client(self, address: tuple[str, int]) -> RemotingClient:
        self._lifecycle.check_open()
        with self._lock:
            client = self._clients.get(address)
            if client is not None and client.is_open:
                return client
            connecting = self._connecting.setdefault(address, self.runtime.lock())
        with connecting:
            with self._lock:
                client = self._clients.get(address)
            if client is None or not client.is_open:
                client = RemotingClient(
                    self.runtime,
                    *address,
                    on_request=lambda command: self._requested(command, "{}:{}".format(*address)),
                    credentials=self._credentials,
                )
                self._keep_client(address, client)
            return client

    def _keep_client(self, address: tuple[str, int], client: RemotingClient) -> None:
        """Have it used from now on, unless everything was closed while it connected."""
        with self._lock:
            if not self._lifecycle.is_closed:
                self._clients[address] = client
                return
        client.close()
        self._lifecycle.check_open()

    def reply(self, address: str, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """Answer what the peer at host:port asked, by the connection to it, if there is one.

        Raises LocalProtocolError when too much waits to be sent.
        """
        with self._lock:
            found = [client for client in self._clients.values() if client.address == address]
        for client in found:
            client.reply(request, code, remark, body)

    def _requested(self, command: Command, address: str) -> bool:
        return self._on_request is not None and self._on_request(command, address)


def _aged(now_ns: int) -> int:
    """When a route was learned that is old enough to be asked for again now."""
    return now_ns - int(ROUTE_AGE_S_MAX * 1e9)


def _route_data(topic: str, answer: Command) -> TopicRouteData:
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        raise NoRouteError(f"topic {topic!r} is not known to the name server: send a message to it, or create it")
    if answer.code != ResponseCode.SUCCESS:
        raise RefusedError(f"route of topic {topic!r}", answer.code, answer.remark)
    try:
        return TopicRouteData.decode(answer.body)
    except HeaderError as error:
        raise ClientError(f"route of topic {topic!r} cannot be read: {error}") from None


def make_route(topic: str, data: TopicRouteData, queue_count_max: int | None, learned_ns: int) -> Route:
    """Turn a name server's answer into queues; brokers without a master are left out."""
    addresses = {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in data.broker_datas
        if MASTER_ID in broker.broker_addrs
    }
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
    writable = [queue for name, perm, _, writes in counts if perm & Permission.WRITE for queue in queues(name, writes)]
    return Route(topic, tuple(sorted(readable)), tuple(sorted(writable)), addresses, learned_ns)
