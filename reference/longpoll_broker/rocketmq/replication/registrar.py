"""Tells name servers where this broker is: every 30 seconds, and at once when its topics change.

Who changed the topics is answered when every name server that took the broker in before has heard of it, as in Java,
so that a client that asks one for a new topic's route finds it. Java waits on the thread that serves the request; here
each name server has a thread, and nobody else waits for one that is slow or gone.

From the name servers a slave hears where its master is. The connection stays open: a name server forgets a broker
whose connection ends. What a name server makes of it: `longpoll_broker.rocketmq.name_server.name_server`.

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
from longpoll_broker.io.service_thread import ServiceThread
from longpoll_broker.rocketmq.replication.master_address import MasterAddress, address_in
from longpoll_broker.rocketmq.replication.peer_client import PeerClient, PeerError
from longpoll_broker.shared.topics import Topics
from longpoll_protocol.bodies import DataVersion, RegisterBody, TopicTable
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError, RemoteProtocolError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import (
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from longpoll_runtime import Address, Event, Lock, Runtime
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import KeepGoing

log = logging.getLogger(__name__)

REGISTER_MS: Final = 30_000
"""`registerNameServerPeriod`."""
RETRY_MS: Final = 1_000
"""How soon it is tried again where a name server, or a slave's master, was not there."""
WAITING_COUNT_MAX: Final = 10_000
"""Most answers that wait for a name server; further ones do not wait."""

Told = Callable[[Outbox], None]
"""Called when the name servers have heard of a change, or cannot be waited for."""


@define(slots=True, eq=False)
class _Countdown:
    """Calls `told` once all name servers have spoken. Invariant: the one that brings `count` to 0 calls it."""

    lock: Lock
    told: Told
    version: int
    """Of the topics that are to be heard of."""
    count: int

    def one_less(self, outbox: Outbox) -> None:
        with self.lock:
            self.count -= 1
            is_last = not self.count
        if is_last:
            self.told(outbox)


@define(slots=True, eq=False)
class _Desk(ServiceThread):
    """The thread of one name server. Invariant: who takes a countdown out of `_waiting` counts it down."""

    NAME = "registrar"

    registrar: Registrar
    address: Address
    registered_count: int = field(default=0, init=False)
    _asking: PeerClient = field(init=False)
    _due: Event = field(init=False)
    _takes: bool = field(default=True, init=False)
    """Whether the last registration was taken, or there was none yet: a change waits for no other name server."""
    _version: int = field(default=-1, init=False)
    """Of the topics that the name server has heard of."""
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
        """Have the thread end soon."""
        self._stop.set()
        self._due.set()
        self._asking.give_up()

    def stop(self) -> None:
        """Leave the name server if there is a connection to it, and end the thread."""
        ServiceThread.stop(self)
        self._asking.close()

    def waits(self, countdown: _Countdown) -> bool:
        """Have it counted down when the name server has heard of all topics; false where it is not waited for."""
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
            # Lowered before the topics are read: who changes them later raises it again.
            self._due.clear()
            if self._stop.is_set():
                break
            version = self._register()
            self._speak(outbox, version)
            wait_ms = REGISTER_MS if version is not None and self.registrar.knows_master else RETRY_MS
        self._speak(outbox, None)
        self._asking.tell(RequestCode.UNREGISTER_BROKER, leaving(self.registrar.config, self.registrar.address))

    def _speak(self, outbox: Outbox, version: int | None) -> None:
        """Count down those whose change was heard of; all of them when the name server did not hear."""
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
        """Register once; the version of the topics that were told, None when the name server did not take them."""
        registrar = self.registrar
        config, topics = registrar.config, registrar.topics
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=registrar.address,
            cluster_name=config.cluster_name,
            ha_server_addr=registrar.ha_address,
            broker_id=config.broker_id,
        )
        # First: a topic that comes between the two is told with the next registration once more.
        version = topics.version
        body = RegisterBody(
            topic_config_serialize_wrapper=TopicTable(
                topic_config_table=topics.by_name.copy(),
                data_version=DataVersion(counter=version, timestamp=registrar.started_ms),
            )
        ).encode()
        try:
            found = self._asking.ask(RequestCode.REGISTER_BROKER, header.encode(), body)
            told = RegisterBrokerResponseHeader.decode(found.ext_fields)
        except (PeerError, RemoteProtocolError, HeaderError, OSError) as error:
            if not self._stop.is_set():
                log.warning(
                    "the name server %s does not take this broker in: %s; trying again",
                    self._asking,
                    error,
                    extra=event("not_registered", peer=str(self._asking), reason=str(error)),
                )
            return None
        self.registered_count += 1
        registrar.heard(told)
        return version


@define(slots=True, eq=False)
class Registrar:
    """The name servers that a broker registers at, each with a thread."""

    runtime: Runtime
    config: BrokerConfig
    topics: Topics
    name_servers: tuple[Address, ...]
    address: str
    """HOST:PORT that clients are told to go to."""
    ha_address: str
    """HOST:PORT where slaves may connect; empty for nowhere."""
    master: MasterAddress | None
    """What a slave wants to hear."""
    started_ms: int
    """When the table of topics began to be counted."""
    lock: Lock = field(init=False)
    """Guards what threads of several name servers, and of clients, share."""
    _desks: tuple[_Desk, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.lock = self.runtime.lock()
        self._desks = tuple(_Desk(self.runtime, self, address) for address in self.name_servers)

    @property
    def registered_count(self) -> int:
        """Registrations that a name server took."""
        return sum(desk.registered_count for desk in self._desks)

    @property
    def knows_master(self) -> bool:
        """Whether there is no more to hear: of a slave's master, or for a broker that is none."""
        return self.master is None or self.master.ha_address is not None

    def start(self) -> None:
        """Start the threads."""
        self.topics.on_change = self.wake
        for desk in self._desks:
            desk.start()

    def stop(self) -> None:
        """Leave every name server that there is a connection to, and end the threads."""
        for desk in self._desks:
            desk.give_up()
        for desk in self._desks:
            desk.stop()

    def wake(self) -> None:
        """Register now; callable from any thread."""
        for desk in self._desks:
            desk.wake()

    def when_told(self, told: Told, outbox: Outbox) -> None:
        """Call `told` when the name servers have heard of the topics as they are now: at once if they have already.

        One that did not take the last registration is not waited for.
        """
        # One for this method: nobody is the last before all were asked.
        countdown = _Countdown(self.lock, told, self.topics.version, 1)
        for desk in self._desks:
            with self.lock:
                countdown.count += 1
            if not desk.waits(countdown):
                countdown.one_less(outbox)
        countdown.one_less(outbox)

    def answer_when_told(self, channel: Channel, command: Command, parts: Parts, outbox: Outbox) -> None:
        """Give an answer when the name servers have heard of the topics as they are now."""
        self.when_told(lambda later: refuse(channel, command, parts, later), outbox)

    def around(self, processors: Mapping[int, Processor]) -> dict[int, Processor]:
        """The processors, each of whose answers waits for the name servers when it changed the topics."""
        return {code: self._waiting(processor) for code, processor in processors.items()}

    def _waiting(self, processor: Processor) -> Processor:
        topics = self.topics

        def process(channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
            before = topics.version
            parts = processor(channel, command, outbox)
            if parts is None or topics.version == before:
                return parts
            self.answer_when_told(channel, command, parts, outbox)
            return None

        return process

    def heard(self, told: RegisterBrokerResponseHeader) -> None:
        """Take over where a name server says that the master is."""
        if self.master is not None:
            with self.lock, KeepGoing(log, "a name server tells an address that is none"):
                self.master.heard(address_in(told.master_addr), address_in(told.ha_server_addr))


def leaving(config: BrokerConfig, address: str) -> dict[str, str]:
    """The fields of 104: the broker at this address leaves."""
    return UnRegisterBrokerRequestHeader(
        broker_name=config.broker_name,
        broker_addr=address,
        cluster_name=config.cluster_name,
        broker_id=config.broker_id,
    ).encode()
