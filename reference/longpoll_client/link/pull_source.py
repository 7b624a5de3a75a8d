"""Which broker of a name one queue is pulled from: its master, a slave as the last answer suggests, or who is there.

Where the suggested one cannot be reached another of its name is asked for a while, from the same offset on. The route
may know for a while yet of a master that is gone; each try at it fails at once.

Leaves out asking (`consume.puller`) and where brokers are (`routes`).

Source: `PullAPIWrapper.recalculatePullFromWhichNode`, `MQClientInstance.findBrokerAddressInSubscribe`.
"""

from __future__ import annotations

from typing import Final, Protocol

from longpoll_client.link.routes import MASTER_ID

AWAY_S: Final = 3.0
"""How long a broker that could not be reached is not asked where there is another one."""


class BrokerLookup(Protocol):
    """Where brokers are."""

    def broker_address_of(self, broker_name: str, broker_id: int, /) -> str:
        """Host:port of one broker, or of its master where it is not known; raises NoRouteError."""
        ...

    def other_broker_id(self, broker_name: str, address: str, /) -> int | None:
        """The least id of a broker of that name at another address; None when there is none."""
        ...


class PullSource:
    """One queue's choice; the puller has one pull on its way at a time, so one thread uses it at a time."""

    def __init__(self, brokers: BrokerLookup, broker_name: str) -> None:
        self.broker_id: int = MASTER_ID
        """The broker that is asked, by the last answer or for want of the one that it named."""
        self._brokers = brokers
        self._broker_name = broker_name
        self._suggested_id = MASTER_ID
        self._asked = ""
        self._away: dict[str, int] = {}
        """Addresses that could not be reached, and until when they are not asked (monotonic ns); at most two."""

    def address(self, now_ns: int) -> str:
        """Host:port to ask now; raises NoRouteError."""
        broker_id = self._suggested_id
        address = self._brokers.broker_address_of(self._broker_name, broker_id)
        if self._away.get(address, 0) > now_ns:
            other = self._brokers.other_broker_id(self._broker_name, address)
            if other is not None:
                broker_id, address = other, self._brokers.broker_address_of(self._broker_name, other)
        self.broker_id, self._asked = broker_id, address
        return address

    def suggested(self, broker_id: int) -> None:
        """Use the broker that an answer suggests. A broker that was reached is available again."""
        self._suggested_id = max(broker_id, MASTER_ID)
        self._away.pop(self._asked, None)

    def fell_back(self, now_ns: int) -> bool:
        """Note that the broker that was asked could not be; whether there is another to be asked at once."""
        asked = self._asked
        self._away = {address: until for address, until in self._away.items() if until > now_ns}
        was_alone = not self._away
        self._away[asked] = now_ns + int(AWAY_S * 1e9)
        return was_alone and self._brokers.other_broker_id(self._broker_name, asked) is not None
