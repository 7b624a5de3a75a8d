"""Serves code 12: messages by key.

Unlike RocketMQ, which leaves this to the client, it skips messages of equal hash with another topic or key. Index: see
`store.index`. Code 33: see `rocketmq.admin.admin_processor`.

Source: `QueryMessageProcessor.java` 4.9.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias

from attrs import define

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, Turns, answer, in_turns, serves
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import QueryResult
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import QueryMessageRequestHeader

UNIQUE_KEY_FLAG: Final = "_UNIQUE_KEY_QUERY"
"""`MixAll.UNIQUE_MSG_QUERY_FLAG`: the key is a unique key, and the requested count is ignored."""
UNIQUE_KEY_COUNT: Final = 32
"""`defaultQueryMaxNum`."""
Search: TypeAlias = Generator[None, None, QueryResult]
"""A search that yields between turns."""


@define(slots=True, eq=False)
class QueryProcessor(Serving):
    """The processor of queries."""

    store: MessageStore

    @serves(RequestCode.QUERY_MESSAGE)
    def receive(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """12: return the newest messages with a key in one body; 22 without any.

        A long search continues in later turns of the connection and is answered in the last.
        """
        header = QueryMessageRequestHeader.decode(command.ext_fields)
        count_max = header.max_num
        if (command.ext_fields or {}).get(UNIQUE_KEY_FLAG) == "true":
            count_max = UNIQUE_KEY_COUNT
        if count_max < 0:
            raise HeaderError("QueryMessageRequestHeader", "maxNum", f"is {count_max}, less than 0")
        search = self.store.query_in_turns(
            header.topic, header.key, count_max, header.begin_timestamp, header.end_timestamp
        )
        return in_turns(channel, command, _found(command, search))


def _found(command: Command, search: Search) -> Turns:
    return answer_found(command, (yield from search))


def answer_found(command: Command, found: QueryResult) -> Parts:
    """Returns the answer for the result of a search."""
    fields = {
        "indexLastUpdateTimestamp": str(found.index_end_ms),
        "indexLastUpdatePhyoffset": str(found.index_end_offset),
    }
    if not found.records:
        remark = "can not find message, maybe time range not correct"
        return answer(command, ResponseCode.QUERY_NOT_FOUND, remark, fields)
    return answer(command, ResponseCode.SUCCESS, None, fields, b"".join(found.records))
