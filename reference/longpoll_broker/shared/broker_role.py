"""A broker's role, master or slave, and how it changes the answer to a pull.

A slave serves a copied store. A slave does not correct offsets, because its copy may be behind the master. A slave
redirects consumers to the master: in 4.9 by a field of its answer, in 5.x by an immediate answer while the master is
alive. How a broker knows which other brokers are alive: see `rocketmq.admin.role_processor`.

Sources: `PullMessageProcessor.java`, `DefaultMessageStore.nextOffsetCorrection` 4.9; `composeResponseHeader` and
`DefaultPullMessageResultHandler.java` 5.x; upstream issues #1828 and #1829.
"""

from __future__ import annotations

from typing import Final, Literal

from attrs import define, field

from longpoll_broker.shared.topics import GroupConfig
from longpoll_broker.shared.version_traits import Traits
from longpoll_broker.store.messages import GetStatus

Role = Literal["ASYNC_MASTER", "SLAVE"]
MASTER_ID: Final = 0
_CORRECTED: Final = frozenset(
    {
        GetStatus.NO_MESSAGE_IN_QUEUE,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_ONE,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_FOUND_NULL,
    }
)
"""The read statuses for which the store returns a corrected offset instead of the requested one."""
_RETRY_IMMEDIATELY: Final = 20
_OFFSET_MOVED: Final = 21


@define(slots=True, eq=False)
class BrokerRole:
    """One broker's role. Only `least_broker_id` changes while the broker runs."""

    role: Role = "ASYNC_MASTER"
    broker_id: int = MASTER_ID
    slave_read: bool = False
    """`slaveReadEnable`: consumers that are far behind are redirected to a slave, and a slave serves consumers."""
    offset_check_in_slave: bool = False
    """`offsetCheckInSlave`: a slave corrects offsets as a master does."""
    least_broker_id: int = field(default=-1)
    """`minBrokerIdInGroup`: the lowest id of the living brokers of this name; -1 if no other broker is known."""
    is_plain: bool = field(init=False)
    """Whether the broker answers as a master without slaves, which is the usual case."""

    def __attrs_post_init__(self) -> None:
        self.is_plain = self.role != "SLAVE" and not self.slave_read

    @property
    def is_slave(self) -> bool:
        """Whether this broker is a slave."""
        return self.role == "SLAVE"

    @property
    def has_living_master(self) -> bool:
        """Whether this is a slave whose master is known to be alive."""
        return self.broker_id != MASTER_ID and self.least_broker_id == MASTER_ID

    @property
    def corrects_offsets(self) -> bool:
        """Whether the broker's store corrects a consumer's wrong offset; a slave may leave such an offset unchanged."""
        return not self.is_slave or self.offset_check_in_slave

    def code(self, code: int, status: GetStatus, traits: Traits, *, suggests_slave: bool) -> int:
        """Returns the response code for a pull; `code` is what a master without slaves would return."""
        if self._sends_to_master(traits, suggests_slave=suggests_slave) and status is not GetStatus.FOUND:
            return _RETRY_IMMEDIATELY
        if code == _OFFSET_MOVED and not self.corrects_offsets:
            return _RETRY_IMMEDIATELY
        return code

    def offset_next(self, asked: int, found: int, status: GetStatus) -> int:
        """Returns the next offset for a consumer; a slave that corrects no offsets returns the requested offset."""
        return asked if status in _CORRECTED and not self.corrects_offsets else found

    def suggested_broker(self, group: GroupConfig | None, code: int, traits: Traits, *, suggests_slave: bool) -> int:
        """Returns `suggestWhichBrokerId`, the id of the broker to pull from next.

        `code` is the response code that a master without slaves would return.
        """
        group = group or GroupConfig("")
        if self._sends_to_master(traits, suggests_slave=suggests_slave):
            return MASTER_ID
        if code == _OFFSET_MOVED and not self.corrects_offsets:
            return group.broker_id
        if not self.slave_read:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if suggests_slave else group.broker_id

    def _sends_to_master(self, traits: Traits, *, suggests_slave: bool) -> bool:
        return traits.redirects_to_master and self.has_living_master and not suggests_slave
