"""The addresses of a slave's master: from the settings, or from a name server.

Requests to it: see `follower`, `table_sync`. Name servers: see `registrar`. Source: `BrokerController.java` 4.9.7:
`updateMasterHAServerAddrPeriodically`, `doRegisterBrokerAll`.
"""

from __future__ import annotations

import logging

from attrs import define, field

from longpoll_runtime import Address
from longpoll_runtime.logs import event
from longpoll_spec.errors import ConfigError

log = logging.getLogger(__name__)


@define(slots=True, eq=False)
class MasterAddress:
    """The addresses; None if unknown. One thread changes them; those from the settings stay."""

    address: Address | None
    """The address for requests."""
    ha_address: Address | None
    """The address of its log (`haMasterAddress`)."""
    _is_set: bool = field(init=False)
    _is_ha_set: bool = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._is_set = self.address is not None
        self._is_ha_set = self.ha_address is not None

    def heard(self, address: Address | None, ha_address: Address | None) -> None:
        """Update from a name server's answer; None changes nothing."""
        before = self.address, self.ha_address
        if address is not None and not self._is_set:
            self.address = address
        if ha_address is not None and not self._is_ha_set:
            self.ha_address = ha_address
        if (self.address, self.ha_address) != before:
            log.info(
                "the master is at %s, and sends its log at %s",
                self.address,
                self.ha_address,
                extra=event("master_heard", address=self.address, ha_address=self.ha_address),
            )


def address_in(text: str | None, key: str = "an address") -> Address | None:
    """Parse HOST:PORT, None for an empty text; raises ConfigError with the key."""
    if not text:
        return None
    host, _colon, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 2**16 - 1:
        raise ConfigError(f"{key} is {text[:100]!r}; write HOST:PORT, such as 127.0.0.1:10911")
    return host.strip("[]"), int(port)
