"""Serves requests to lock and unlock queues (codes 41 and 42), and queries for a consumer's queues (code 400).

Orderly consumer groups use locks. A lock lasts a minute, and another request renews it. As in 4.9.7, a lock's topic and
queue need not exist. An assignment covers all queues in the topic's route, including the queues of other brokers.

Source: `RebalanceLockManager.java`, `AdminBrokerProcessor.lockBatchMQ`, `unlockBatchMQ`;
`QueryAssignmentProcessor.java` 5.5, `AllocateMessageQueueAveragely.java`, `AllocateMessageQueueAveragelyByCircle.java`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from itertools import chain, islice
from typing import Final, TypeVar

from attrs import define, field, frozen

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, Turns, answer, serves
from longpoll_broker.rocketmq.admin.client_processor import ClientProcessor, check_sizes
from longpoll_broker.rocketmq.admin.progress_processor import TOLD_QUEUE_COUNT_MAX
from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.topics import Topics
from longpoll_protocol.bodies import (
    LockBatchRequest,
    LockBatchResponse,
    MessageModel,
    MessageQueue,
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_protocol.names import GROUP_SIZE_MAX, RETRY_PREFIX
from longpoll_runtime import Lock, Runtime

LIFE_MS: Final = 60_000
"""`REBALANCE_LOCK_MAX_LIVE_TIME`: how long a lock lasts if it is not renewed, ms."""
LOCK_COUNT_MAX: Final = 1_000_000
"""Maximum locks of all groups together; further locks are refused."""
EXPIRED_MAX: Final = 4_000
"""Maximum number of expired locks that are removed before other connections are served."""
TURN_COUNT: Final = 2_000
"""Maximum number of queues that are locked or unlocked before other connections are served, which takes about 5 ms."""

Queue = TypeVar("Queue", bound=Hashable)


@frozen
class _Holder:
    client_id: str
    renewed_ms: int


@define(slots=True, eq=False)
class QueueLocks:
    """Every lock, by group and queue, the least recently renewed first. Callers hold a mutex and pass the time."""

    quota: Quota = field(factory=lambda: Quota("queue locks", LOCK_COUNT_MAX), init=False)
    _holders: OrderedDict[tuple[str, Hashable], _Holder] = field(factory=OrderedDict, init=False)

    def lock(
        self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int, channel: Hashable = None
    ) -> list[Queue]:
        """Lock queues that are free, expired or locked by this client; returns the queues that the client now holds."""
        self._expire(now_ms)
        got: list[Queue] = []
        for queue in queues:
            key = (group, queue)
            holder = self._holders.get(key)
            if holder is not None and holder.client_id != client_id:
                if now_ms - holder.renewed_ms <= LIFE_MS:
                    continue
                self.quota.release(key)
                del self._holders[key]
            if not self.quota.take(key, channel):
                continue
            self._holders[key] = _Holder(client_id, now_ms)
            self._holders.move_to_end(key)
            got.append(queue)
        return got

    def unlock(self, group: str, client_id: str, queues: Iterable[Hashable]) -> None:
        """Release this client's locks; the locks of other clients stay."""
        for queue in queues:
            key = (group, queue)
            holder = self._holders.get(key)
            if holder is not None and holder.client_id == client_id:
                del self._holders[key]
                self.quota.release(key)

    def _expire(self, now_ms: int) -> None:
        for _ in range(EXPIRED_MAX):
            key = next(iter(self._holders), None)
            if key is None or now_ms - self._holders[key].renewed_ms <= LIFE_MS:
                return
            del self._holders[key]
            self.quota.release(key)


AVERAGELY: Final = "AVG"
BY_CIRCLE: Final = "AVG_BY_CIRCLE"


@define(slots=True, eq=False)
class LockProcessor(Serving):
    """The processors of queue locks."""

    runtime: Runtime
    locks: QueueLocks
    guard: Lock
    """Protects `locks`."""
    group_size_max: int = GROUP_SIZE_MAX

    @serves(RequestCode.LOCK_BATCH_MQ)
    def lock(self, channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 41: lock queues and return the client's queues; answers with SYSTEM_BUSY (2) at the limit of locks."""
        asked = self._read(command)
        got: list[MessageQueue] = []
        refused = 0
        for start in range(0, len(asked.mq_set), TURN_COUNT):
            if start:
                yield
            part = asked.mq_set[start : start + TURN_COUNT]
            with self.guard:
                now_ms = self.runtime.monotonic_ns() // 1_000_000
                refused -= self.locks.quota.refused
                got += self.locks.lock(asked.consumer_group, asked.client_id, part, now_ms, channel)
                refused += self.locks.quota.refused
        if refused:
            told = f"there was no room for {refused} of the locks; unlock some first, or ask again later"
            return answer(command, ResponseCode.SYSTEM_BUSY, told)
        return answer(command, ResponseCode.SUCCESS, body=LockBatchResponse(lock_ok_mq_set=got).encode())

    @serves(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 42: unlock queues; always succeeds, even if the client holds no lock."""
        asked = self._read(command)
        for start in range(0, len(asked.mq_set), TURN_COUNT):
            if start:
                yield
            with self.guard:
                self.locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set[start : start + TURN_COUNT])
        return answer(command, ResponseCode.SUCCESS)

    def _read(self, command: Command) -> LockBatchRequest:
        """Parse a request; raises HeaderError for a name that is too long, because locks store the name."""
        asked = LockBatchRequest.decode(command.body)
        group_max = self.group_size_max
        names = [("clientId", asked.client_id, GROUP_SIZE_MAX), ("consumerGroup", asked.consumer_group, group_max)]
        for queue in asked.mq_set:
            names.append(("topic", queue.topic, group_max + len(RETRY_PREFIX)))
            names.append(("brokerName", queue.broker_name, GROUP_SIZE_MAX))
        check_sizes("LockBatchRequest", names)
        return asked


@define(slots=True, eq=False)
class AssignmentProcessor(Serving):
    """The processor of QUERY_ASSIGNMENT (code 400)."""

    topics: Topics
    members: ClientProcessor
    broker_name: str
    queues_elsewhere: Callable[[str], Iterable[MessageQueue]]
    """Returns the readable queues of a topic on other brokers."""
    is_elsewhere: bool
    """Whether routes come from other name servers, so that this process does not know the queues of other brokers."""

    @serves(RequestCode.QUERY_ASSIGNMENT)
    def receive(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 400: return the queues that are assigned to a member; in a broadcasting group, all queues."""
        asked = QueryAssignmentRequestBody.decode(command.body)
        if asked.strategy_name not in {AVERAGELY, BY_CIRCLE}:
            told = f"the strategy {asked.strategy_name[:80]!r} is not known here: {AVERAGELY} or {BY_CIRCLE}"
            return answer(command, ResponseCode.SYSTEM_ERROR, told)
        if self.is_elsewhere:
            told = "this broker has its routes at other name servers and assigns no queues: set clientRebalance=true"
            return answer(command, ResponseCode.SYSTEM_ERROR, told)
        topic = self.topics.get(asked.topic)
        count = topic.read_queue_nums if topic is not None and topic.is_readable else 0
        own = (MessageQueue(topic=asked.topic, broker_name=self.broker_name, queue_id=each) for each in range(count))
        queues = list(islice(chain(own, self.queues_elsewhere(asked.topic)), TOLD_QUEUE_COUNT_MAX + 1))
        if len(queues) > TOLD_QUEUE_COUNT_MAX:
            told = f"the topic has over {TOLD_QUEUE_COUNT_MAX} queues at all brokers: set clientRebalance=true"
            return answer(command, ResponseCode.SYSTEM_ERROR, told)
        queues.sort()
        if asked.message_model is MessageModel.CLUSTERING:
            with self.members.lock:
                clients = sorted(self.members.clients.client_ids(asked.consumer_group))
            queues = share_of(queues, clients, asked.client_id, by_circle=asked.strategy_name == BY_CIRCLE)
        body = QueryAssignmentResponseBody([MessageQueueAssignment(queue) for queue in queues])
        return answer(command, ResponseCode.SUCCESS, body=body.encode())


def share_of(queues: list[MessageQueue], clients: list[str], client: str, *, by_circle: bool) -> list[MessageQueue]:
    """Assign sorted queues to sorted clients; returns the queues of `client`, or no queue if it is not a member."""
    if client not in clients:
        return []
    number, count = clients.index(client), len(clients)
    if by_circle:
        return queues[number::count]
    size, left = divmod(len(queues), count)
    start = number * size + min(number, left)
    return queues[start : start + size + (number < left)]
