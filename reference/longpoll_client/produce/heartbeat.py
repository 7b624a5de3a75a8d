"""Sends the heartbeats of a producer group, so that brokers can send it requests and replies.

The owner chooses the times. Do not call it on a reader thread.

Source: `MQClientInstance.sendHeartbeatToAllBroker`, `ProducerManager.java`.
"""

from __future__ import annotations

import logging
from typing import Final

from attrs import define, field

from longpoll_client.errors import ClientError
from longpoll_client.instance import ClientInstance
from longpoll_client.link.steps import Ask, ask_once
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.bodies import HeartbeatData, ProducerData
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import UnregisterClientRequestHeader
from longpoll_spec.errors import LongpollError

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 30.0
"""`heartbeatBrokerInterval`."""
HEARTBEAT_RETRY_S: Final = 3.0
"""The wait before another heartbeat to a broker that did not accept one."""


@define(slots=True, eq=False)
class ProducerHeartbeat:
    """The heartbeats of one producer group.

    Invariant: `_registered` has the connections with a heartbeat since the last round. Each change is one step, and a
    second heartbeat does no harm.
    """

    instance: ClientInstance
    group: str
    _registered: dict[str, RemotingClient] = field(factory=dict, init=False)
    _failed_ns: dict[str, int] = field(factory=dict, init=False)

    def heartbeat(self, address: str) -> None:
        """Send a heartbeat, unless this connection had one; errors are logged, and it is tried again later."""
        now_ns = self.instance.runtime.monotonic_ns()
        failed_ns = self._failed_ns.get(address)
        if failed_ns is not None and now_ns - failed_ns < HEARTBEAT_RETRY_S * 1e9:
            return
        body = producer_heartbeat_body(self.instance.client_id, self.group)
        try:
            client = self.instance.client(address)
            if self._registered.get(address) is client:
                return
            self.instance.run(ask_once(Ask(RequestCode.HEART_BEAT, None, body, address)))
        except ClientError as error:
            self._failed_ns[address] = now_ns
            log.warning("heartbeat of producer group %s: %s", self.group, error)
            return
        self._failed_ns.pop(address, None)
        self._registered[address] = client

    def heartbeat_new(self) -> None:
        """Send a heartbeat to every known broker whose connection had none."""
        for address in self.instance.broker_addresses():
            self.heartbeat(address)

    def heartbeat_all(self) -> None:
        """Send a heartbeat to every broker. A broker forgets a producer after two minutes without one."""
        self._registered.clear()
        self.heartbeat_new()

    def leave(self) -> None:
        """Unregister the producer; errors are logged."""
        header = UnregisterClientRequestHeader(client_id=self.instance.client_id, producer_group=self.group)
        for address in sorted(self._registered):
            try:
                self.instance.run(ask_once(Ask(RequestCode.UNREGISTER_CLIENT, header, address=address)))
            except LongpollError as error:
                log.warning("leaving group %s: %s", self.group, error)


def producer_heartbeat_body(client_id: str, group: str) -> bytes:
    """The producer's entry in a heartbeat (34)."""
    return HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=group)]).encode()
