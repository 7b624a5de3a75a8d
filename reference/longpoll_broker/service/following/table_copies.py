"""Keeps a slave's tables as its master's are: topics, groups, offsets, and how far delay levels are, every 10 seconds.

Topics and groups are replaced when their version has changed, offsets are laid over those that are there: a group that
commits to this slave while its master is away is told its own word until the master is back. Leaves out where the
master is (`master`) and saving tables (`service.upkeep.config_files`).

Source: `SlaveSynchronize.java`, `BrokerController.handleSlaveSynchronize` 4.9.7.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from attrs import define, field

from longpoll_broker.core.tables.offsets import Offsets
from longpoll_broker.core.tables.routes import usable
from longpoll_broker.core.tables.topics import TOPIC_COUNT_MAX, GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.service.following.asking import Asking, PeerError
from longpoll_broker.service.following.master import Master
from longpoll_broker.service.io.service_thread import ServiceThread
from longpoll_broker.service.upkeep.schedule_service import DelayOffsets
from longpoll_protocol.bodies import DataVersion, DelayTable, GroupTable, OffsetTable, TopicTable
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError, RemoteProtocolError
from longpoll_protocol.frames.frame import Buffer
from longpoll_runtime.faults import KeepGoing
from longpoll_runtime.logs import event

log = logging.getLogger(__name__)

COPY_MS: Final = 10_000
"""How often."""
UNKNOWN_MS: Final = 200
"""How often it is looked whether a master is known by now."""
T = TypeVar("T")


@define(slots=True, eq=False)
class TableCopies(ServiceThread):
    """The thread."""

    NAME = "table-copier"

    master: Master
    topics: Topics
    groups: Groups
    offsets: Offsets
    delays: DelayOffsets
    round_count: int = field(default=0, init=False)
    """Rounds in which all four were copied."""
    _asking: Asking | None = field(default=None, init=False)
    _versions: dict[int, DataVersion] = field(factory=dict, init=False)
    """By request code the version that was copied last."""

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
        while not self._stop.wait(wait_ms / 1000):
            address = self.master.address
            wait_ms = UNKNOWN_MS if address is None else COPY_MS
            if address is None:
                continue
            with KeepGoing(log, "the master's tables could not be copied; trying again"):
                if self._asking is None or self._asking.address != address:
                    if self._asking is not None:
                        self._asking.close()
                    self._asking = Asking(self.runtime, address)
                    self._versions.clear()
                self.copy(self._asking)

    def copy(self, asking: Asking) -> None:
        """Copy every table; what cannot be is told and left as it is."""
        copied = [
            self._copy(asking, code, take)
            for code, take in (
                (RequestCode.GET_ALL_TOPIC_CONFIG, self._take_topics),
                (RequestCode.GET_ALL_CONSUMER_OFFSET, self._take_offsets),
                (RequestCode.GET_ALL_DELAY_OFFSET, self._take_delays),
                (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._take_groups),
            )
        ]
        self.round_count += all(copied)

    def _copy(self, asking: Asking, code: int, take: Callable[[Buffer], None]) -> bool:
        try:
            take(asking.ask(code).body)
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

    def _take_topics(self, body: Buffer) -> None:
        table = TopicTable.decode(body)
        if self._is_new(RequestCode.GET_ALL_TOPIC_CONFIG, table.data_version):
            topics = usable(_converted(table.topic_config_table, dict[str, TopicConfig]))
            self.topics.replace({name: topic for name, topic in topics.items() if topic.topic_name == name})
            self._versions[RequestCode.GET_ALL_TOPIC_CONFIG] = table.data_version

    def _take_groups(self, body: Buffer) -> None:
        table = GroupTable.decode(body)
        if self._is_new(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, table.data_version):
            self.groups.replace(_converted(table.subscription_group_table, dict[str, GroupConfig]))
            self._versions[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = table.data_version

    def _take_offsets(self, body: Buffer) -> None:
        self.offsets.lay_over(OffsetTable.decode(body).offset_table)

    def _take_delays(self, body: Buffer) -> None:
        if len(body):
            self.delays.replace(DelayTable.decode(body).offset_table)

    def _is_new(self, code: int, version: DataVersion) -> bool:
        known = self._versions.get(code)
        return known is None or known.as_pair() != version.as_pair()


def _converted(rows: dict[str, Any], kind: type[dict[str, T]]) -> dict[str, T]:
    """The rows of a table by name; raises HeaderError when one cannot be read, or there are too many."""
    if len(rows) > TOPIC_COUNT_MAX:
        raise HeaderError("a master's table", "rows", f"are {len(rows)}, over the limit of {TOPIC_COUNT_MAX}")
    try:
        return msgspec.convert(rows, kind, strict=False)
    except msgspec.ValidationError as error:
        raise HeaderError("a master's table", "rows", f"cannot be read: {error}") from None
