"""Where a group stands in each queue, kept by the brokers.

Leaves out when an offset is stored (`consumer`) and offsets kept in a local file.

Source: `RemoteBrokerOffsetStore.java`, `RebalancePushImpl.computePullFromWhere`.
"""

from __future__ import annotations

import enum

from longpoll_broker.errors import RefusedError
from longpoll_broker.service.client.instance import ClientInstance
from longpoll_broker.service.client.remoting import RemotingClient
from longpoll_broker.wire.bodies import MessageQueue
from longpoll_broker.wire.codes import RequestCode, ResponseCode
from longpoll_broker.wire.command import Command
from longpoll_broker.wire.frame import EMPTY, Buffer
from longpoll_broker.wire.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    Header,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)


class StartAt(enum.Enum):
    """Where a queue is begun the first time that this consumer gets it."""

    STORED = "stored"
    """Where the group stopped; a group without an offset begins at the end, as in Java."""
    FIRST = "first"
    LAST = "last"
    TIMESTAMP = "timestamp"


class RemoteOffsets:
    """The offsets of one group; not safe for two threads at once on one queue.

    Invariant: `_stored` has every queue that was begun, with the offset that the broker is known to have or to imply.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._stored: dict[MessageQueue, int] = {}

    def begin(self, queue: MessageQueue, start_at: StartAt, timestamp_ms: int) -> int:
        """Where to begin: as asked the first time, where the group stopped from then on. Raises a ClientError."""
        offset = self._start(queue, StartAt.STORED if queue in self._stored else start_at, timestamp_ms)
        self._stored[queue] = offset
        return offset

    def store(self, queue: MessageQueue, offset: int) -> None:
        """Store where the group stands, unless the broker has it already. Raises a ClientError."""
        if self._stored.get(queue) == offset:
            return
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        ask(self._client(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)
        self._stored[queue] = offset

    def _start(self, queue: MessageQueue, start_at: StartAt, timestamp_ms: int) -> int:
        topic, queue_id = queue.topic, queue.queue_id
        if start_at is StartAt.FIRST:
            first = GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id)
            return self._ask_offset(queue, RequestCode.GET_MIN_OFFSET, first)
        if start_at is StartAt.TIMESTAMP:
            wanted = SearchOffsetRequestHeader(topic=topic, queue_id=queue_id, timestamp=timestamp_ms)
            return self._ask_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, wanted)
        if start_at is StartAt.STORED:
            stored = QueryConsumerOffsetRequestHeader(consumer_group=self._group, topic=topic, queue_id=queue_id)
            try:
                return self._ask_offset(queue, RequestCode.QUERY_CONSUMER_OFFSET, stored)
            except RefusedError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
        last = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)
        return self._ask_offset(queue, RequestCode.GET_MAX_OFFSET, last)

    def _ask_offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> int:
        return OffsetResponseHeader.decode(ask(self._client(queue), code, header).ext_fields).offset

    def _client(self, queue: MessageQueue) -> RemotingClient:
        return self._instance.client(self._instance.broker_address(queue.broker_name))


def ask(client: RemotingClient, code: RequestCode, header: Header | None, body: Buffer = EMPTY) -> Command:
    """Call, and take no answer but success; raises RefusedError or another ClientError."""
    answer = client.call(code, header, body)
    if answer.code != ResponseCode.SUCCESS:
        raise RefusedError(f"{code.name} to {client.address}", answer.code, answer.remark)
    return answer
