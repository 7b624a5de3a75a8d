"""Serves code 315: a statistic of the last minute, hour and day.

Counting: see `shared.statistics`. Source: `AdminBrokerProcessor.viewBrokerStatsData`.
"""

from __future__ import annotations

import msgspec
from attrs import define

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.shared.statistics import BROKER_GET_NUMS, BROKER_PUT_NUMS, Statistics
from longpoll_protocol.admin_headers import ViewBrokerStatsDataRequestHeader
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command


@define(slots=True, eq=False)
class StatisticsProcessor(Serving):
    """The processor of code 315."""

    statistics: Statistics
    cluster_name: str
    """The only key of the broker's totals."""

    @serves(RequestCode.VIEW_BROKER_STATS_DATA)
    def receive(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """315: return one statistic; code 1 if nothing was counted under its name and key."""
        header = ViewBrokerStatsDataRequestHeader.decode(command.ext_fields)
        is_whole = header.stats_name in {BROKER_GET_NUMS, BROKER_PUT_NUMS}
        is_of_other = is_whole and header.stats_key != self.cluster_name
        found = None if is_of_other else self.statistics.snapshots(header.stats_name, header.stats_key)
        if found is None:
            return answer(
                command,
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name[:64]}> <{header.stats_key[:300]}> not exist",
            )
        body = {name: {"sum": each.sum, "tps": each.tps, "avgpt": each.average} for name, each in found.items()}
        return answer(command, ResponseCode.SUCCESS, None, None, msgspec.json.encode(body))
