"""Serves 12: messages by their key.

Unlike RocketMQ, which leaves that to the client, a message of equal hash with another topic or key is not found.
Leaves out the index itself
(`store.index.index`) and 33, the message at a physical offset (`rocketmq.admin.admin_processor`).

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
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import QueryMessageRequestHeader

UNIQUE_KEY_FLAG: Final = "_UNIQUE_KEY_QUERY"
"""`MixAll.UNIQUE_MSG_QUERY_FLAG`: the key is a message's unique one, and the asked count does not hold."""
UNIQUE_KEY_COUNT: Final = 32
"""`defaultQueryMaxNum`."""
Search: TypeAlias = Generator[None, None, QueryResult]
"""One that yields where others may have their turn."""


@define(slots=True, eq=False)
class QueryProcessor(Serving):
    """The processor of queries."""

    store: MessageStore

    @serves(RequestCode.QUERY_MESSAGE)
    def receive(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """12: the newest messages with a key, as one body; 22 when there is none.

        A search that takes long goes on in later turns of the connection, and is answered in the last one.
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
    """The answer to a query, after as many turns as its search takes."""
    return answer_found(command, (yield from search))


def answer_found(command: Command, found: QueryResult) -> Parts:
    """The answer that says what a search has found."""
    fields = {
        "indexLastUpdateTimestamp": str(found.index_end_ms),
        "indexLastUpdatePhyoffset": str(found.index_end_offset),
    }
    if not found.records:
        remark = "can not find message, maybe time range not correct"
        return answer(command, ResponseCode.QUERY_NOT_FOUND, remark, fields)
    return answer(command, ResponseCode.SUCCESS, None, fields, b"".join(found.records))
