"""Copies a master's tables to a slave: topics, groups, offsets and delay levels every 10 s, the timer every 3 s.

Topics and groups are replaced when their version changes. Offsets are merged: a group that commits to this slave keeps
its offset until the master is back. A master's delivery progress counts once this log has it; otherwise, if this slave
became master, those messages would never be delivered. A RocketMQ master does not report its log's end, and its
progress is accepted at once, as by RocketMQ's slave.

The master's address: see `peer_client`. Saving: see `upkeep.config_files`. Source: `SlaveSynchronize.java`,
`BrokerController.handleSlaveSynchronize` 4.9.7.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from attrs import define, field

from longpoll_broker.rocketmq.name_server.routes import usable
from longpoll_broker.rocketmq.replication.peer_client import MasterAddress, PeerClient, PeerError
from longpoll_broker.send.message_builder import PRECISION_MS
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.timer_offsets import DelayOffsets, TimerOffsets
from longpoll_broker.shared.topics import TOPIC_COUNT_MAX, GroupConfig, Groups, TopicConfig, Topics
from longpoll_protocol.admin_headers import DeliveredResponseHeader
from longpoll_protocol.bodies import DataVersion, DelayTable, GroupTable, OffsetTable, TimerCheckpoint, TopicTable
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError, RemoteProtocolError
from longpoll_protocol.frames import Command
from longpoll_runtime.logs import event
from longpoll_runtime.recoverable import KeepGoing
from longpoll_runtime.services import ServiceThread

log = logging.getLogger(__name__)

COPY_MS: Final = 10_000
"""Interval between copies."""
TIMER_COPY_MS: Final = 3_000
"""Interval between copies of the timer's progress."""
LOG_WAIT_MS: Final = 3_000
"""How long to wait until this log has the master's delivered messages."""
LOG_LOOK_MS: Final = 10
UNKNOWN_MS: Final = 200
"""Interval of checks whether a master is known."""
T = TypeVar("T")


@define(slots=True, eq=False)
class TableSync(ServiceThread):
    """The thread."""

    NAME = "table-copier"

    master: MasterAddress
    topics: Topics
    groups: Groups
    offsets: Offsets
    delays: DelayOffsets
    timers: TimerOffsets | None
    """None for a version without a timer."""
    log_end: Callable[[], int]
    """Returns the physical end of this broker's log."""
    access_key: str = ""
    """The account that signs requests; empty: none."""
    secret_key: str = field(default="", repr=False)
    round_count: int = field(default=0, init=False)
    """Number of complete rounds."""
    _asking: PeerClient | None = field(default=None, init=False)
    _versions: dict[int, DataVersion] = field(factory=dict, init=False)
    """By request code, the last copied version."""

    def stop(self) -> None:
        """End the thread and the connection."""
        self._stop.set()
        asking = self._asking
        if asking is not None:
            asking.give_up()
        ServiceThread.stop(self)
        if self._asking is not None:
            self._asking.close()

    def _run(self) -> None:
        wait_ms = 0
        due_ns = self.runtime.monotonic_ns()
        while not self._stop.wait(wait_ms / 1000):
            address = self.master.address
            wait_ms = UNKNOWN_MS if address is None else COPY_MS if self.timers is None else min(TIMER_COPY_MS, COPY_MS)
            if address is None:
                continue
            with KeepGoing(log, "the master's tables could not be copied; trying again"):
                if self._asking is None or self._asking.address != address:
                    if self._asking is not None:
                        self._asking.close()
                    self._asking = PeerClient(self.runtime, address, self.access_key, self.secret_key)
                    self._versions.clear()
                    due_ns = self.runtime.monotonic_ns()
                if self.runtime.monotonic_ns() < due_ns:
                    self._copy(self._asking, RequestCode.GET_TIMER_CHECK_POINT, self._take_timer)
                    continue
                due_ns = self.runtime.monotonic_ns() + COPY_MS * 1_000_000
                self.copy(self._asking)

    def copy(self, asking: PeerClient) -> None:
        """Copy every table; failures are logged and leave the table unchanged."""
        tables = {
            RequestCode.GET_ALL_TOPIC_CONFIG: self._take_topics,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._take_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._take_delays,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._take_groups,
        }
        if self.timers is not None:
            tables[RequestCode.GET_TIMER_CHECK_POINT] = self._take_timer
        copied = [self._copy(asking, code, take) for code, take in tables.items()]
        self.round_count += all(copied)

    def _copy(self, asking: PeerClient, code: int, take: Callable[[Command], None]) -> bool:
        try:
            take(asking.ask(code))
        except (PeerError, RemoteProtocolError, HeaderError, OSError) as error:
            if not self._stop.is_set():
                log.warning(
                    "the answer of the master at %s to request %d is not copied: %s",
                    asking,
                    code,
                    error,
                    extra=event("table_not_copied", peer=str(asking), code=code, reason=str(error)),
                )
            return False
        return True

    def _take_topics(self, told: Command) -> None:
        table = TopicTable.decode(told.body)
        if self._is_new(RequestCode.GET_ALL_TOPIC_CONFIG, table.data_version):
            topics = usable(_converted(table.topic_config_table, dict[str, TopicConfig]))
            known = set(self.topics.by_name)
            self.topics.replace({name: topic for name, topic in topics.items() if topic.topic_name == name})
            for name in known.difference(self.topics.by_name):
                self.offsets.forget_topic(name)
            self._versions[RequestCode.GET_ALL_TOPIC_CONFIG] = table.data_version

    def _take_groups(self, told: Command) -> None:
        table = GroupTable.decode(told.body)
        if self._is_new(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, table.data_version):
            self.groups.replace(_converted(table.subscription_group_table, dict[str, GroupConfig]))
            self._versions[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = table.data_version

    def _take_offsets(self, told: Command) -> None:
        self.offsets.lay_over(OffsetTable.decode(told.body).offset_table)

    def _take_delays(self, told: Command) -> None:
        if len(told.body):
            table = DelayTable.decode(told.body)
            self._wait_for_log(DeliveredResponseHeader.decode(told.ext_fields))
            self.delays.replace(table.offset_table)

    def _take_timer(self, told: Command) -> None:
        assert self.timers is not None
        checkpoint = TimerCheckpoint.decode(told.body)
        header = DeliveredResponseHeader.decode(told.ext_fields)
        self._wait_for_log(header)
        self.timers.copy(header.first_offset, checkpoint.read_offset, checkpoint.next_ms - PRECISION_MS)

    def _wait_for_log(self, told: DeliveredResponseHeader) -> None:
        """Wait until this log has the delivered messages; raises PeerError at the time limit."""
        end = told.log_end
        deadline_ns = self.runtime.monotonic_ns() + LOG_WAIT_MS * 1_000_000
        while end is not None and self.log_end() < end:
            if self._stop.wait(LOG_LOOK_MS / 1000) or self.runtime.monotonic_ns() > deadline_ns:
                raise PeerError(f"it assumes a log up to {end}, but this one ends at {self.log_end()}")

    def _is_new(self, code: int, version: DataVersion) -> bool:
        known = self._versions.get(code)
        return known is None or known.as_pair() != version.as_pair()


def _converted(rows: dict[str, Any], kind: type[dict[str, T]]) -> dict[str, T]:
    """Parse the rows of a table by name; raises HeaderError for an invalid row, or too many."""
    if len(rows) > TOPIC_COUNT_MAX:
        raise HeaderError("a master's table", "rows", f"are {len(rows)}, over the limit of {TOPIC_COUNT_MAX}")
    try:
        return msgspec.convert(rows, kind, strict=False)
    except msgspec.ValidationError as error:
        raise HeaderError("a master's table", "rows", f"cannot be read: {error}") from None
