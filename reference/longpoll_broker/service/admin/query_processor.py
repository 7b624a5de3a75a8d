"""Serves 12: messages by their key.

A key of equal hash finds the same messages, and the client compares, as in RocketMQ. Leaves out the index itself
(`store.index.index`) and 33, the message at a physical offset (`service.admin.admin_processor`).

Source: `QueryMessageProcessor.java` 4.9.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from longpoll_broker.service.io.channel import Channel, Outbox, Parts
from longpoll_broker.service.io.processors import Serving, answer, serves
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import QueryMessageRequestHeader

UNIQUE_KEY_FLAG: Final = "_UNIQUE_KEY_QUERY"
"""`MixAll.UNIQUE_MSG_QUERY_FLAG`: the key is a message's unique one, and the asked count does not hold."""
UNIQUE_KEY_COUNT: Final = 32
"""`defaultQueryMaxNum`."""


@define(slots=True, eq=False)
class QueryProcessor(Serving):
    """The processor of queries."""

    store: MessageStore

    @serves(RequestCode.QUERY_MESSAGE)
    def receive(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """12: the newest messages with a key, as one body; 22 when there is none."""
        header = QueryMessageRequestHeader.decode(command.ext_fields)
        count_max = header.max_num
        if (command.ext_fields or {}).get(UNIQUE_KEY_FLAG) == "true":
            count_max = UNIQUE_KEY_COUNT
        if count_max < 0:
            raise HeaderError("QueryMessageRequestHeader", "maxNum", f"is {count_max}, less than 0")
        found = self.store.query(header.topic, header.key, count_max, header.begin_timestamp, header.end_timestamp)
        fields = {
            "indexLastUpdateTimestamp": str(found.index_end_ms),
            "indexLastUpdatePhyoffset": str(found.index_end_offset),
        }
        if not found.records:
            remark = "can not find message, maybe time range not correct"
            return answer(command, ResponseCode.QUERY_NOT_FOUND, remark, fields)
        return answer(command, ResponseCode.SUCCESS, None, fields, b"".join(found.records))
