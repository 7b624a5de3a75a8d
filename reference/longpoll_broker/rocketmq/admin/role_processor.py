"""Refuses requests that a slave must not serve, and handles reports of which brokers of this name are alive (905).

When a slave's master returns, the slave releases its held pulls, so that clients pull from the master. The reports
(NOTIFY_MIN_BROKER_ID_CHANGE) must come from a program that monitors the brokers.

Sources: `rejectRequest` of the processors, `AdminBrokerProcessor.validateSlave` 4.9, `EndTransactionProcessor.java`,
`HookUtils.checkBeforePutMessage`, `BrokerController.onMinBrokerChange`, `AdminBrokerProcessor.notifyBrokerIdChange`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import define

from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Processor, answer
from longpoll_broker.shared.broker_role import MASTER_ID, BrokerRole
from longpoll_broker.shared.version_traits import Traits
from longpoll_protocol.admin_headers import NotifyMinBrokerIdChangeRequestHeader
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command

_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)
_CHANGES: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }
)
_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


@define(slots=True, eq=False)
class RoleProcessor:
    """Refuses requests that the broker's role forbids, and changes the role."""

    role: BrokerRole
    traits: Traits
    hold_service: HoldService
    broker_name: str
    acting_master: bool
    """`enableSlaveActingMaster`: without this setting, 5.x ignores reports of which other brokers are alive."""
    always_notices: bool
    """Whether the policy accepts reports of living brokers even without `enableSlaveActingMaster`; true for `strict`.
    """

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Returns the processor of NOTIFY_MIN_BROKER_ID_CHANGE (905), if this broker accepts such requests."""
        if not self.traits.hears_of_members:
            return {}
        return {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.member_changed}

    def refusal(self, command: Command) -> Parts | None:
        """Returns the refusal if the request is one that a slave must not serve, and otherwise None."""
        assert self.role.is_slave
        code = command.code
        if self.traits.rejects_as_slave:
            if code in _SENDS or (code in _PULLS and not self.role.slave_read):
                return answer(
                    command, ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while"
                )
        elif code == RequestCode.CONSUMER_SEND_MSG_BACK:
            return answer(command, ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")
        elif code in _SENDS:
            return answer(
                command,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "service not available now: this broker is a slave; send to its master",
            )
        if code in _CHANGES and not self.traits.changes_as_slave:
            return answer(
                command,
                ResponseCode.SYSTEM_ERROR,
                "Can't modify topic or subscription group from slave broker, please execute it from master broker.",
            )
        if code == RequestCode.END_TRANSACTION:
            return answer(
                command,
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "Message store is slave mode, so end transaction is forbidden. ",
            )
        return None

    def member_changed(self, _channel: Channel, command: Command, outbox: Outbox) -> Parts:
        """Code 905: set the lowest id among the living brokers of this name."""
        header = NotifyMinBrokerIdChangeRequestHeader.decode(command.ext_fields)
        role = self.role
        takes_notice = role.broker_id != MASTER_ID and (self.acting_master or self.always_notices)
        if header.broker_name in {None, self.broker_name} and header.min_broker_id is not None and takes_notice:
            changed = role.least_broker_id != header.min_broker_id
            role.least_broker_id = header.min_broker_id
            if changed and role.has_living_master:
                self.hold_service.master_returned(outbox)
        return answer(command, ResponseCode.SUCCESS)
