"""Serves 41 and 42: a consumer of an orderly group asks for queues to itself.

Leaves out the locks themselves (`core.tables.queue_locks`). Neither topic nor queue is checked, as on 4.9.7.
Source: `AdminBrokerProcessor.lockBatchMQ`, `unlockBatchMQ`.
"""

from __future__ import annotations

from attrs import define

from longpoll_broker.core.tables.queue_locks import QueueLocks
from longpoll_broker.service.io.channel import Channel, Outbox, Parts
from longpoll_broker.service.io.processors import Serving, answer, serves
from longpoll_protocol.bodies import LockBatchRequest, LockBatchResponse
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime import Lock, Runtime


@define(slots=True, eq=False)
class LockProcessor(Serving):
    """The processors of queue locks."""

    runtime: Runtime
    locks: QueueLocks
    guard: Lock
    """Guards `locks`."""

    @serves(RequestCode.LOCK_BATCH_MQ)
    def lock(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """41: the queues that the client holds now, of those it asked for."""
        asked = LockBatchRequest.decode(command.body)
        with self.guard:
            now_ms = self.runtime.monotonic_ns() // 1_000_000
            got = self.locks.lock(asked.consumer_group, asked.client_id, asked.mq_set, now_ms, channel)
        return answer(command, ResponseCode.SUCCESS, body=LockBatchResponse(lock_ok_mq_set=got).encode())

    @serves(RequestCode.UNLOCK_BATCH_MQ)
    def unlock(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """42: always a success, also for who holds nothing."""
        asked = LockBatchRequest.decode(command.body)
        with self.guard:
            self.locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
        return answer(command, ResponseCode.SUCCESS)
