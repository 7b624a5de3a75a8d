"""The heartbeats of a producer group, so that brokers can send it requests and replies.

The methods are exchanges (`link.steps`) for threads and event loops. The owner chooses the times.

Source: `MQClientInstance.sendHeartbeatToAllBroker`, `ProducerManager.java`.
"""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol

from attrs import define, field

from longpoll_client.errors import ClientError
from longpoll_client.link.steps import Ask, Connect, Steps, Together
from longpoll_protocol.bodies import HeartbeatData, ProducerData
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import UnregisterClientRequestHeader
from longpoll_runtime import Runtime
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 30.0
"""`heartbeatBrokerInterval`."""
HEARTBEAT_RETRY_S: Final = 3.0
"""The wait before another heartbeat to a broker that did not accept one."""


class _Instance(Protocol):
    """`ClientInstance` or `AsyncInstance`."""

    runtime: Runtime

    @property
    def client_id(self) -> str: ...

    def broker_addresses(self) -> list[str]: ...


@define(slots=True, eq=False)
class ProducerHeartbeat:
    """The heartbeats of one producer group.

    Invariant: `_registered` has the connections with a heartbeat since the last round. Each change is one step, and a
    second heartbeat does no harm.
    """

    instance: _Instance
    group: str
    _registered: dict[str, Any] = field(factory=dict, init=False)
    _failed_ns: dict[str, int] = field(factory=dict, init=False)

    def heartbeat(self, address: str) -> Steps[None]:
        """Send a heartbeat, unless this connection had one. Errors are logged, and it is tried again later."""
        now_ns = self.instance.runtime.monotonic_ns()
        failed_ns = self._failed_ns.get(address)
        if failed_ns is not None and now_ns - failed_ns < HEARTBEAT_RETRY_S * 1e9:
            return
        producer = ProducerData(group_name=self.group)
        body = HeartbeatData(client_id=self.instance.client_id, producer_data_set=[producer]).encode()
        try:
            connection = yield Connect(address)
            if self._registered.get(address) is connection:
                return
            yield Ask(RequestCode.HEART_BEAT, None, body, address)
        except ClientError as error:
            self._failed_ns[address] = now_ns
            log.warning("heartbeat of producer group %s: %s", self.group, error)
            return
        self._failed_ns.pop(address, None)
        self._registered[address] = connection

    def heartbeat_new(self) -> Steps[None]:
        """Send a heartbeat to every known broker whose connection had none."""
        yield Together([self.heartbeat(address) for address in self.instance.broker_addresses()])

    def heartbeat_all(self) -> Steps[None]:
        """Send a heartbeat to every known broker. A broker forgets a producer after two minutes without one."""
        self._registered.clear()
        return self.heartbeat_new()

    def leave(self) -> Steps[None]:
        """Unregister the producer, where a connection is still open; errors are logged."""
        header = UnregisterClientRequestHeader(client_id=self.instance.client_id, producer_group=self.group)
        for address in sorted(self._registered):
            if self._registered[address].is_open:
                try:
                    yield Ask(RequestCode.UNREGISTER_CLIENT, header, address=address)
                except LongpollError as error:
                    log.warning("leaving group %s: %s", self.group, error)
