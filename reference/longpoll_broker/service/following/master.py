"""Where a slave's master is: by its settings, or as a name server says.

Leaves out asking it (`follower`).

Source: `BrokerController.java` 4.9.7: `updateMasterHAServerAddrPeriodically`, `doRegisterBrokerAll`.
"""

from __future__ import annotations

from attrs import define

from longpoll_runtime import Address


@define(slots=True, eq=False)
class Master:
    """The addresses; what is None is not known yet. One thread changes them."""

    address: Address | None
    """Where it serves requests."""
    ha_address: Address | None
    """Where it sends its log (`haMasterAddress`)."""
