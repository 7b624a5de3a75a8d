"""Tells brokers that a producer of a group is here, so that they can ask and answer it.

Leaves out when: its owner greets again at times, and before a broker is to know. Not to be called on a reader thread.

Source: `MQClientInstance.sendHeartbeatToAllBroker`, `ProducerManager.java`.
"""

from __future__ import annotations

import logging
from typing import Final

from attrs import define, field

from longpoll_client.errors import ClientError
from longpoll_client.instance import ClientInstance
from longpoll_client.offsets import ask
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.bodies import HeartbeatData, ProducerData
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import UnregisterClientRequestHeader
from longpoll_spec.errors import LongpollError

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 30.0
"""`heartbeatBrokerInterval`."""
AGAIN_S: Final = 3.0
"""A broker that could not be told is left alone for so long."""


@define(slots=True, eq=False)
class Greeter:
    """Who was told of one producer group.

    Invariant: `_greeted` are the connections by which a broker was told since the last round; each change is one step,
    and telling a broker twice does no harm.
    """

    instance: ClientInstance
    group: str
    _greeted: dict[str, RemotingClient] = field(factory=dict, init=False)
    _failed_ns: dict[str, int] = field(factory=dict, init=False)

    def greet(self, address: str) -> None:
        """Tell a broker, unless it was told by this connection; errors are logged, and it is tried again later."""
        now_ns = self.instance.runtime.monotonic_ns()
        failed_ns = self._failed_ns.get(address)
        if failed_ns is not None and now_ns - failed_ns < AGAIN_S * 1e9:
            return
        body = greeting_body(self.instance.client_id, self.group)
        try:
            client = self.instance.client(address)
            if self._greeted.get(address) is client:
                return
            ask(client, RequestCode.HEART_BEAT, None, body)
        except ClientError as error:
            self._failed_ns[address] = now_ns
            log.warning("heartbeat of producer group %s: %s", self.group, error)
            return
        self._failed_ns.pop(address, None)
        self._greeted[address] = client

    def greet_all(self) -> None:
        """Tell every broker that a route has named and that was not told by its connection."""
        for address in self.instance.broker_addresses():
            self.greet(address)

    def greet_again(self) -> None:
        """Tell every broker, also who was told: they forget whom they do not hear for two minutes."""
        self._greeted.clear()
        self.greet_all()

    def leave(self) -> None:
        """Say that the producer goes; errors are logged."""
        header = UnregisterClientRequestHeader(client_id=self.instance.client_id, producer_group=self.group)
        for address in sorted(self._greeted):
            try:
                ask(self.instance.client(address), RequestCode.UNREGISTER_CLIENT, header)
            except LongpollError as error:
                log.warning("leaving group %s: %s", self.group, error)


def greeting_body(client_id: str, group: str) -> bytes:
    """What a producer says of itself (34)."""
    return HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=group)]).encode()
