"""Registers this broker at name servers: every 30 seconds, and at once when its topics change.

As in RocketMQ, a change of topics is answered when the name servers know the change, so that a client that then asks
for a new topic's route finds the route. The answer does not wait for a name server that refused the last registration.
RocketMQ waits on the serving thread; here each name server has a thread, so a slow name server does not delay the
others.

Connections stay open, because a name server removes a broker whose connection closes. For the name server's side see
`rocketmq.name_server.name_server`.

Source: `BrokerController.registerBrokerAll`, `doRegisterBrokerAll`, `TopicConfigManager.java`, `BrokerOuterAPI.java`
4.9.7.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from attrs import define, field

from longpoll_broker.config import BrokerConfig
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Processor, refuse
from longpoll_broker.rocketmq.name_server.peer_client import PeerClient, PeerError
from longpoll_broker.shared.topics import Topics
from longpoll_protocol.admin_headers import (
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)
from longpoll_protocol.bodies import DataVersion, RegisterBody, TopicTable
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames import Command
from longpoll_runtime import Address, Event, Lock, Runtime
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import KeepGoing
from longpoll_runtime.services import ServiceThread

log = logging.getLogger(__name__)

REGISTER_MS: Final = 30_000
"""`registerNameServerPeriod`: the interval between registrations, ms."""
RETRY_MS: Final = 1_000
"""Interval between attempts to reach a name server that does not answer, ms."""
WAITING_COUNT_MAX: Final = 10_000
"""Maximum answers that wait for name servers; above this limit, answers are sent without waiting."""

OnRegistered = Callable[[Outbox], None]
"""Called when the name servers know a change, or at once if the change cannot wait for the name servers."""


@define(slots=True, eq=False)
class _Countdown:
    """Calls `on_registered` once after all name servers know a change.

    Invariant: the thread that decrements `count` to 0 makes the call.
    """

    lock: Lock
    on_registered: OnRegistered
    version: int
    """The version of the topic table that every name server must know."""
    count: int

    def one_less(self, outbox: Outbox) -> None:
        with self.lock:
            self.count -= 1
            is_last = not self.count
        if is_last:
            self.on_registered(outbox)


@define(slots=True, eq=False)
class _NameServerThread(ServiceThread):
    """The thread for one name server. Invariant: the thread that removes a countdown from `_waiting` decrements it."""

    NAME = "registrar"

    registrar: Registrar
    address: Address
    registered_count: int = field(default=0, init=False)
    _asking: PeerClient = field(init=False)
    _due: Event = field(init=False)
    _takes: bool = field(default=True, init=False)
    """Whether answers to changes wait for this name server; false after a failed registration."""
    _version: int = field(default=-1, init=False)
    """The version of the topic table that the name server knows."""
    _waiting: list[_Countdown] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        ServiceThread.__attrs_post_init__(self)
        config = self.registrar.config
        self._asking = PeerClient(self.runtime, self.address, config.access_key, config.secret_key)
        self._due = self.runtime.event()

    def wake(self) -> None:
        """Register now; callable from any thread."""
        self._due.set()

    def give_up(self) -> None:
        """Make the thread end soon."""
        self._stop.set()
        self._due.set()
        self._asking.give_up()

    def stop(self) -> None:
        """Unregister if connected, and end the thread."""
        ServiceThread.stop(self)
        self._asking.close()

    def waits(self, countdown: _Countdown) -> bool:
        """Decrement the countdown once the name server knows all topics.

        Returns false if the countdown need not wait for this name server.
        """
        with self.registrar.lock:
            if not self._takes or self._stop.is_set() or len(self._waiting) >= WAITING_COUNT_MAX:
                return False
            if self._version >= countdown.version:
                return False
            self._waiting.append(countdown)
        self._due.set()
        return True

    def _run(self) -> None:
        outbox = Outbox()
        wait_ms = 0
        while not self._stop.is_set():
            self._due.wait(wait_ms / 1000)
            # The event is reset before the topics are read, so that a later change sets it again.
            self._due.clear()
            if self._stop.is_set():
                break
            version = self._register()
            self._speak(outbox, version)
            wait_ms = REGISTER_MS if version is not None else RETRY_MS
        self._speak(outbox, None)
        self._asking.tell(RequestCode.UNREGISTER_BROKER, leaving(self.registrar.config, self.registrar.address))

    def _speak(self, outbox: Outbox, version: int | None) -> None:
        """Decrement the countdowns whose change the name server knows, or all countdowns if the name server failed."""
        with self.registrar.lock:
            self._takes = version is not None
            if version is not None:
                self._version = version
            told = [each for each in self._waiting if version is None or each.version <= version]
            self._waiting = [each for each in self._waiting if version is not None and each.version > version]
        for countdown in told:
            with KeepGoing(log, "an answer that waited for a name server could not be given"):
                countdown.one_less(outbox)
        outbox.flush()

    def _register(self) -> int | None:
        """Register once; returns the version of the sent topics, or None if the name server refused."""
        registrar = self.registrar
        config, topics = registrar.config, registrar.topics
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=registrar.address,
            cluster_name=config.cluster_name,
            ha_server_addr="",
            broker_id=config.broker_id,
        )
        # The version is read before the topics, so that a topic added between these reads is sent again next time.
        version = topics.version
        body = RegisterBody(
            topic_config_serialize_wrapper=TopicTable(
                topic_config_table=topics.by_name.copy(),
                data_version=DataVersion(counter=version, timestamp=registrar.started_ms),
            )
        ).encode()
        try:
            self._asking.ask(RequestCode.REGISTER_BROKER, header.encode(), body)
        except (PeerError, RemoteProtocolError, OSError) as error:
            if not self._stop.is_set():
                log.warning(
                    "the name server %s does not take this broker in: %s; trying again",
                    self._asking,
                    error,
                    extra=event("not_registered", peer=str(self._asking), reason=str(error)),
                )
            return None
        self.registered_count += 1
        return version


@define(slots=True, eq=False)
class Registrar:
    """The name servers at which a broker registers, each with a thread."""

    runtime: Runtime
    config: BrokerConfig
    topics: Topics
    name_servers: tuple[Address, ...]
    address: str
    """The HOST:PORT at which clients reach the broker."""
    started_ms: int
    """The time when the topic table's version counter began, ms."""
    lock: Lock = field(init=False)
    """Protects the data that the threads of name servers and clients share."""
    _threads: tuple[_NameServerThread, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.lock = self.runtime.lock()
        self._threads = tuple(_NameServerThread(self.runtime, self, address) for address in self.name_servers)

    @property
    def registered_count(self) -> int:
        """Number of successful registrations."""
        return sum(thread.registered_count for thread in self._threads)

    def start(self) -> None:
        """Start the threads."""
        self.topics.on_change = self.wake
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Unregister from every connected name server, and end the threads."""
        for thread in self._threads:
            thread.give_up()
        for thread in self._threads:
            thread.stop()

    def wake(self) -> None:
        """Register now; callable from any thread."""
        for thread in self._threads:
            thread.wake()

    def when_registered(self, on_registered: OnRegistered, outbox: Outbox) -> None:
        """Call `on_registered` when the name servers know the current topics, at once if they already know them.

        This method does not wait for a name server that refused the last registration.
        """
        # This method holds one count itself, so that the countdown cannot end before all name servers were asked.
        countdown = _Countdown(self.lock, on_registered, self.topics.version, 1)
        for thread in self._threads:
            with self.lock:
                countdown.count += 1
            if not thread.waits(countdown):
                countdown.one_less(outbox)
        countdown.one_less(outbox)

    def answer_when_registered(self, channel: Channel, command: Command, parts: Parts, outbox: Outbox) -> None:
        """Send an answer when the name servers know the current topics."""
        self.when_registered(lambda later: refuse(channel, command, parts, later), outbox)

    def around(self, processors: Mapping[int, Processor]) -> dict[int, Processor]:
        """Wrap the processors, so that the answers to topic changes wait for the name servers."""
        return {code: self._waiting(processor) for code, processor in processors.items()}

    def _waiting(self, processor: Processor) -> Processor:
        topics = self.topics

        def process(channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
            before = topics.version
            parts = processor(channel, command, outbox)
            if parts is None or topics.version == before:
                return parts
            self.answer_when_registered(channel, command, parts, outbox)
            return None

        return process


def leaving(config: BrokerConfig, address: str) -> dict[str, str]:
    """Returns the fields of the request that unregisters this broker (UNREGISTER_BROKER, 104)."""
    return UnRegisterBrokerRequestHeader(
        broker_name=config.broker_name,
        broker_addr=address,
        cluster_name=config.cluster_name,
        broker_id=config.broker_id,
    ).encode()
