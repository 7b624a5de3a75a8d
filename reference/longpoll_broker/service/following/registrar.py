"""Tells name servers where this broker is, every 30 seconds, and hears from them where a slave's master is.

The connection stays open: a name server forgets a broker whose connection ends. Leaves out what a name server makes of
it (`longpoll_broker.name_server`).

Source: `BrokerController.registerBrokerAll`, `doRegisterBrokerAll`, `BrokerOuterAPI.java` 4.9.7.
"""

from __future__ import annotations

import logging
from typing import Final

from attrs import define, field

from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.tables.topics import Topics
from longpoll_broker.service.following.asking import Asking, PeerError
from longpoll_broker.service.following.master import Master, address_in
from longpoll_broker.service.io.service_thread import ServiceThread
from longpoll_protocol.bodies import DataVersion, RegisterBody, TopicTable
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError, RemoteProtocolError
from longpoll_protocol.headers import (
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from longpoll_runtime import Address
from longpoll_runtime.faults import KeepGoing
from longpoll_runtime.logs import event

log = logging.getLogger(__name__)

REGISTER_MS: Final = 30_000
"""`registerNameServerPeriod`."""
RETRY_MS: Final = 1_000
"""How soon it is tried again where a name server, or a slave's master, was not there."""


@define(slots=True, eq=False)
class Registrar(ServiceThread):
    """The thread."""

    NAME = "registrar"

    config: BrokerConfig
    topics: Topics
    name_servers: tuple[Address, ...]
    address: str
    """HOST:PORT that clients are told to go to."""
    ha_address: str
    """HOST:PORT where slaves may connect; empty for nowhere."""
    master: Master | None
    """What a slave wants to hear."""
    started_ms: int
    """When the table of topics began to be counted."""
    registered_count: int = field(default=0, init=False)
    """Registrations that a name server took."""
    _askings: tuple[Asking, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        ServiceThread.__attrs_post_init__(self)
        self._askings = tuple(
            Asking(self.runtime, address, self.config.access_key, self.config.secret_key)
            for address in self.name_servers
        )

    def stop(self) -> None:
        """Leave every name server that there is a connection to, and end the thread."""
        self._stop.set()
        for asking in self._askings:
            asking.give_up()
        ServiceThread.stop(self)
        for asking in self._askings:
            asking.close()

    def _run(self) -> None:
        wait_ms = 0
        while not self._stop.wait(wait_ms / 1000):
            taken = [self._register(asking) for asking in self._askings]
            knows_master = self.master is None or self.master.ha_address is not None
            wait_ms = REGISTER_MS if all(taken) and knows_master else RETRY_MS
        for asking in self._askings:
            asking.tell(RequestCode.UNREGISTER_BROKER, leaving(self.config, self.address))

    def _register(self, asking: Asking) -> bool:
        config = self.config
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=self.address,
            cluster_name=config.cluster_name,
            ha_server_addr=self.ha_address,
            broker_id=config.broker_id,
        )
        version = DataVersion(counter=self.topics.version, timestamp=self.started_ms)
        body = RegisterBody(
            topic_config_serialize_wrapper=TopicTable(
                topic_config_table=self.topics.by_name.copy(), data_version=version
            )
        ).encode()
        try:
            found = asking.ask(RequestCode.REGISTER_BROKER, header.encode(), body)
            told = RegisterBrokerResponseHeader.decode(found.ext_fields)
        except (PeerError, RemoteProtocolError, HeaderError, OSError) as error:
            if not self._stop.is_set():
                log.warning(
                    "the name server %s does not take this broker in: %s; trying again",
                    asking,
                    error,
                    extra=event("not_registered", peer=str(asking), reason=str(error)),
                )
            return False
        self.registered_count += 1
        if self.master is not None:
            with KeepGoing(log, "a name server tells an address that is none"):
                self.master.heard(address_in(told.master_addr), address_in(told.ha_server_addr))
        return True


def leaving(config: BrokerConfig, address: str) -> dict[str, str]:
    """The fields of 104: the broker at this address leaves."""
    return UnRegisterBrokerRequestHeader(
        broker_name=config.broker_name,
        broker_addr=address,
        cluster_name=config.cluster_name,
        broker_id=config.broker_id,
    ).encode()
