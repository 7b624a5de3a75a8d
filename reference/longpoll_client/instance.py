"""All connections of one client on threads, and the routes from its name servers.

`InstanceCore` is the part that `aio.instance` uses too.

Source: `MQClientInstance.java`, `MQClientAPIImpl.getTopicRouteInfoFromNameServer`, `TopicPublishInfo.java`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from longpoll_client.checks import Addresses
from longpoll_client.errors import ClientError, LifecycleError, NoRouteError, UnreachableError
from longpoll_client.lifecycle import Lifecycle
from longpoll_client.link.exchange import Callback
from longpoll_client.link.routes import DEFAULT_QUEUE_COUNT, DOUBT_WAIT_S, NameServers, Route, Routes, split_address
from longpoll_client.link.steps import Ask, Call, Connect, FindRoute, Question, Steps, Together, run, succeeded
from longpoll_client.remoting import RemotingClient
from longpoll_client.timer import SingleFlight
from longpoll_protocol.admin_headers import GetRouteInfoRequestHeader
from longpoll_protocol.bodies import HeartbeatData, ProducerData
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import EMPTY, Buffer, Command
from longpoll_protocol.headers import Header
from longpoll_protocol.names import DEFAULT_TOPIC
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Lock, Runtime
from longpoll_runtime.services import Closeable
from longpoll_spec.errors import ConfigError, LongpollError

T = TypeVar("T")


class InstanceCore(ABC):
    """One client of the name servers and brokers: an id, and a route per topic.

    `name_server` is one address or several; the constructor raises ConfigError for an invalid address. `on_request`
    gets a broker's request and its HOST:PORT, on a reader thread or on the event loop.

    Invariant: `_routes` changes under `_lock`; single entries are read without it.
    """

    def __init__(
        self,
        runtime: Runtime,
        name_server: Addresses,
        *,
        client_id: str | None = None,
        on_request: Callable[[Command, str], bool] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.runtime = runtime
        self._client_id = client_id
        self._made = f"{runtime.unix_ms():x}-{runtime.monotonic_ns():x}"
        self._name_servers = NameServers(name_server)
        self.on_request: Callable[[Command, str], bool] | None = on_request
        if not isinstance(credentials, Credentials | None):
            raise ConfigError(
                f"credentials is a {type(credentials).__name__}; pass Credentials(access_key, secret_key)"
            )
        self._credentials = credentials
        self.producer_group: str | None = None
        """A producer's group, which brokers learn by heartbeats (204) with each connection and each fresh route."""
        self._lifecycle = Lifecycle(runtime, "the client")
        self._lock = runtime.lock()
        self._routes = Routes()
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Complete the construction."""

    @property
    def client_id(self) -> str:
        """The given client id, or a generated id that differs in each process."""
        return self._client_id or f"127.0.0.1@longpoll-{self.runtime.process_id()}-{self._made}"

    def _requested(self, command: Command, address: str) -> bool:
        return self.on_request is not None and self.on_request(command, address)

    @abstractmethod
    def reply(self, address: str, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """Answer a request of the peer at HOST:PORT, if a connection to it is open.

        Raises LocalProtocolError if too many bytes wait for the peer.
        """

    @abstractmethod
    def call_async(self, address: str, code: int, header: Header, *, callback: Callback, timeout_s: float) -> None:
        """Send a request to HOST:PORT, connecting if needed; `callback` gets the answer or the error, once.

        Raises a LongpollError if nothing is sent.
        """

    # ------------------------------------------------------------ routes

    def fresh_route(self, topic: str) -> Route | None:
        """Return the route, or None if a name server must be asked again. The lookup in one dict needs no lock."""
        return self._routes.fresh(topic, self.runtime.monotonic_ns())

    def broker_address(self, broker_name: str) -> str:
        """Return the broker's address from the latest route that named the broker; raises NoRouteError."""
        with self._lock:
            return self._routes.address(broker_name)

    def broker_address_of(self, broker_name: str, broker_id: int) -> str:
        """Return a broker's address by name and id, or its master's address for an unknown id. Raises NoRouteError."""
        with self._lock:
            return self._routes.address_of(broker_name, broker_id)

    def other_broker_id(self, broker_name: str, address: str) -> int | None:
        """Return the lowest id of a broker that has this name but another address, or None."""
        with self._lock:
            return self._routes.other_id(broker_name, address)

    @abstractmethod
    def _tell(self, address: str, code: int, body: bytes) -> None:
        """Send a one-way request over an open connection to host:port. Errors show at the connection's next use."""

    def _greet(self, address: str) -> None:
        """Send a broker the heartbeat of a producer."""
        if self.producer_group is not None and address in self.broker_addresses():
            producer = ProducerData(group_name=self.producer_group)
            body = HeartbeatData(client_id=self.client_id, producer_data_set=[producer]).encode()
            self._tell(address, RequestCode.HEART_BEAT, body)

    def broker_addresses(self) -> list[str]:
        """Return every address that a route has named."""
        with self._lock:
            return self._routes.addresses()

    def forget_route(self, topic: str) -> None:
        """Forget a topic's route; the name server's next answer replaces it."""
        with self._lock:
            self._routes.forget(topic)

    def doubt_route(self, topic: str) -> None:
        """Ask the name server again before the next use of the route. If that fails, the known route is used."""
        with self._lock:
            self._routes.doubt(topic, self.runtime.monotonic_ns())

    def _ask_route(self, topic: str, asked_topic: str, queue_count_max: int | None) -> Steps[Route]:
        known = self.fresh_route(topic)
        if known is not None:
            return known
        now_ns = self.runtime.monotonic_ns()
        try:
            header = GetRouteInfoRequestHeader(topic=asked_topic)
            answer = yield from self._ask_name_servers(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            with self._lock:
                route = self._routes.learn(topic, answer, queue_count_max, now_ns)
        except ClientError as error:
            with self._lock:
                return self._routes.fall_back(topic, error, self.runtime.monotonic_ns())
        for address in route.addresses.values():
            self._greet(address)
        return route

    def _ask_publish_route(self, topic: str) -> Steps[Route]:
        try:
            return (yield from self._ask_route(topic, topic, None))
        except NoRouteError:
            return (yield from self._ask_route(topic, DEFAULT_TOPIC, DEFAULT_QUEUE_COUNT))

    def _ask_name_servers(self, code: RequestCode, header: Header | None) -> Steps[Command]:
        """Return the first response of a name server, with any code; raises UnreachableError if none responds."""
        failure: ClientError | None = None
        for address in self._name_servers.in_turn():
            try:
                answer: Command = yield Ask(code, header, address="{}:{}".format(*address), takes_any_code=True)
            except LifecycleError:
                raise
            except ClientError as error:
                failure = error
            else:
                self._name_servers.answered(address)
                return answer
        assert failure is not None
        raise UnreachableError(f"cannot reach any name server: {failure}; start it, or check its address") from failure


class ClientInstance(InstanceCore, Closeable):
    """One client of the name servers and brokers on threads, with a connection per address.

    Invariant: `_clients` and `_connecting` change under `_lock`; single entries are read without it. A client that has
    lost its connection is replaced on the next use, under the address's lock in `_connecting`. Therefore a broker that
    is slow to connect delays no other broker.
    """

    def _set_up(self) -> None:
        self._connecting: dict[tuple[str, int], Lock] = {}
        self._clients: dict[tuple[str, int], RemotingClient] = {}
        self._single_flight = SingleFlight(self.runtime, "client-routes")
        self.is_abandoned: bool = False
        """Whether it ends as soon as nothing waits any more."""
        self.runtime.when_forked(self)

    def forked(self) -> None:
        """Make the child process open new connections, because it has no reader threads (`RemotingClient.is_open`)."""
        self._lock = self.runtime.lock()
        self._connecting = {}

    def close(self) -> None:
        """Close every connection; later calls raise LifecycleError."""
        self._lifecycle.end()
        self.disconnect()
        self._single_flight.close()

    def disconnect(self) -> None:
        """Close every connection; later calls connect again."""
        with self._lock:
            clients = dict(self._clients)
        for client in clients.values():
            client.close()
        with self._lock:
            # The clients are removed only after their close, so that the next call continues an interrupted close.
            for address, client in clients.items():
                if self._clients.get(address) is client:
                    del self._clients[address]

    def abandon(self) -> None:
        """Close each connection as soon as no call waits. Returns at once."""
        self.is_abandoned = True
        for client in tuple(self._clients.values()):
            client.abandon()

    def client(self, address: str) -> RemotingClient:
        """Return an open connection to host:port; raises UnreachableError."""
        return self._client(split_address(address))

    def opened(self, address: str) -> RemotingClient | None:
        """Return the open connection to host:port, or None."""
        client = self._clients.get(split_address(address))
        return client if client is not None and client.is_open else None

    def _tell(self, address: str, code: int, body: bytes) -> None:
        client = self.opened(address)
        if client is not None:
            with suppress(LongpollError):
                client.one_way(code, None, body)

    def route(self, topic: str) -> Route:
        """Return the topic's route, at most 30 s old; raises NoRouteError, UnreachableError or another ClientError."""
        self._lifecycle.check_open()
        return self.run(self._ask_route(topic, topic, None))

    def publish_route(self, topic: str) -> Route:
        """Return the route for sends: the topic's own, or the route of TBW102 if the send creates the topic.

        An old route is used while a thread asks again, as in Java's client. After a failed send this method waits up to
        a second for a new route, then uses the old one, because an unresponsive name server must not stop sends.
        """
        fresh = self.fresh_route(topic)
        if fresh is not None and not self._lifecycle.is_closed:
            return fresh
        self._lifecycle.check_open()
        with self._lock:
            known = self._routes.known(topic)
            usable = self._routes.usable(topic)
        if known is None:
            return self.run(self._ask_publish_route(topic))
        answered = self.runtime.event()
        outcomes: list[Route | LongpollError] = []

        def tell(outcome: Route | LongpollError) -> None:
            outcomes.append(outcome)
            answered.set()

        self._single_flight.wait(("route", topic), lambda: self.run(self._ask_publish_route(topic)), tell)
        if usable is None:
            answered.wait(DOUBT_WAIT_S)
        outcome = outcomes[0] if outcomes else known
        if isinstance(outcome, LongpollError):
            raise outcome
        return outcome

    def run(self, steps: Steps[T]) -> T:
        """Run an exchange, and block for each answer; raises a LongpollError."""
        return run(steps, self._answer)

    def _answer(self, question: Question) -> object:
        if isinstance(question, Ask):
            return self._ask(question)
        if isinstance(question, Call):
            return question.work()
        if isinstance(question, Connect):
            return self.client(question.address)
        if isinstance(question, FindRoute):
            if question.is_fresh:
                self.forget_route(question.topic)
            return self.route(question.topic)
        if isinstance(question, Together):
            return [self._result(each) for each in question.steps]
        content = question.unwritten()
        if content is not None:
            question.write(content)
        return None

    def _ask(self, question: Ask) -> Command:
        if not (question.address or question.broker_name):
            answer = self.run(self._ask_name_servers(question.code, question.header))
            return succeeded(question, "the name server", answer)
        address = question.address or self.broker_address(question.broker_name)
        return succeeded(question, address, self.client(address).call(question.code, question.header, question.body))

    def _result(self, steps: Steps[object]) -> object:
        try:
            return self.run(steps)
        except LongpollError as error:
            return error

    def _client(self, address: tuple[str, int]) -> RemotingClient:
        client = self._clients.get(address)
        if client is not None and client.is_open and not self._lifecycle.is_closed:
            return client
        self._lifecycle.check_open()
        with self._lock:
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
                self._greet("{}:{}".format(*address))
            return client

    def _keep_client(self, address: tuple[str, int], client: RemotingClient) -> None:
        with self._lock:
            if not self._lifecycle.is_closed:
                self._clients[address] = client
                if self.is_abandoned:
                    # Most likely, a retried send opened this connection after `abandon`.
                    client.abandon()
                return
        client.close()
        self._lifecycle.check_open()

    def call_async(self, address: str, code: int, header: Header, *, callback: Callback, timeout_s: float) -> None:
        """See `InstanceCore.call_async`. The calling thread makes the connection."""
        self.client(address).call_async(code, header, callback=callback, timeout_s=timeout_s)

    def reply(self, address: str, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """See `InstanceCore.reply`."""
        with self._lock:
            found = [client for client in self._clients.values() if client.address == address]
        for client in found:
            client.reply(request, code, remark, body)
