"""Pulls one queue for as long as it is this client's: ask, be held, take the answer, ask again.

Runs on other threads: the connection's reader thread calls back with the answer, the timer retries.
Leaves out which queues these are (`consumer`) and what is done with the messages (`delivery`).

Source: `DefaultMQPushConsumerImpl.pullMessage`, `PullAPIWrapper.processPullResult`, `ProcessQueue.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from attrs import frozen

from longpoll_broker.errors import BrokerError, RefusedError
from longpoll_broker.service.client.calls import Answer
from longpoll_broker.service.client.instance import ClientInstance
from longpoll_broker.service.client.messages import ReceivedMessage, decode_messages, wanted_tags
from longpoll_broker.service.client.timer import Timer
from longpoll_broker.wire.bodies import MessageQueue, SubscriptionData
from longpoll_broker.wire.codes import PullSysFlag, RequestCode, ResponseCode
from longpoll_broker.wire.command import Command
from longpoll_broker.wire.headers import PullMessageRequestHeader, PullMessageResponseHeader

log = logging.getLogger(__name__)

RETRY_S: Final = 3.0
"""`pullTimeDelayMillsWhenException`."""
FLOW_CONTROL_RETRY_S: Final = 0.02
"""`PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL`."""
_RESULTS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


@frozen
class PullSettings:
    """How every queue of a consumer is pulled."""

    group: str
    batch_count_max: int
    hold_ms: int
    timeout_s: float
    cached_count_max: int


@frozen
class Batch:
    """What one pull brought, and the puller to tell when it is consumed."""

    puller: Puller
    messages: tuple[ReceivedMessage, ...]
    """At least one."""
    offset_next: int
    """The group's offset once all of them are consumed; messages of other tags may lie before it."""


class Puller:
    """One queue's loop.

    Invariant, under `_lock`: at most one pull is on its way (`_is_pulling`); `offset_done` <= `_offset_next`; `_cached`
    messages before `_offset_next` are delivered and not yet consumed; once `_is_dropped`, none of these change.
    """

    def __init__(
        self,
        *,
        instance: ClientInstance,
        timer: Timer,
        settings: PullSettings,
        queue: MessageQueue,
        subscription: SubscriptionData,
        offset: int,
        deliver: Callable[[Batch], None],
    ) -> None:
        self.queue = queue
        self.offset_done = offset
        """Every message before it is consumed: what is stored for the group."""
        self._instance = instance
        self._timer = timer
        self._settings = settings
        self._subscription = subscription
        self._tags = wanted_tags(subscription.sub_string) if subscription.expression_type == "TAG" else None
        self._deliver = deliver
        self._lock = instance.runtime.lock()
        self._offset_next = offset
        self._cached = 0
        self._is_pulling = False
        self._is_dropped = False

    @property
    def is_dropped(self) -> bool:
        """Whether the queue was given up: its messages are another client's now."""
        with self._lock:
            return self._is_dropped

    def drop(self) -> None:
        """Pull no more and deliver nothing more; an answer on its way is thrown away."""
        with self._lock:
            self._is_dropped = True

    def done(self, offset: int, count: int) -> None:
        """Note that `count` delivered messages are consumed, the last of them before `offset`."""
        with self._lock:
            if self._is_dropped:
                return
            self._cached -= count
            assert self._cached >= 0, self._cached
            # With nothing delivered and open, the messages of other tags up to the next pull are done with as well.
            self.offset_done = self._offset_next if self._cached == 0 else offset
        self.pull()

    def pull(self) -> None:
        """Ask for the next messages, unless a pull is on its way or enough are waiting to be consumed."""
        with self._lock:
            if self._is_pulling or self._is_dropped or self._cached >= self._settings.cached_count_max:
                return
            self._is_pulling = True
            header = self._header()
        try:
            client = self._instance.client(self._instance.broker_address(self.queue.broker_name))
            client.call_async(
                RequestCode.PULL_MESSAGE, header, callback=self._answered, timeout_s=self._settings.timeout_s
            )
        except BrokerError as error:
            self._failed(error, RETRY_S)

    def _header(self) -> PullMessageRequestHeader:
        flag = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
        if self.offset_done > 0:
            flag |= PullSysFlag.COMMIT_OFFSET
        return PullMessageRequestHeader(
            consumer_group=self._settings.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=self._offset_next,
            max_msg_nums=self._settings.batch_count_max,
            sys_flag=int(flag),
            commit_offset=self.offset_done,
            suspend_timeout_millis=self._settings.hold_ms,
            sub_version=self._subscription.sub_version,
            subscription=self._subscription.sub_string,
            expression_type=self._subscription.expression_type,
        )

    def _answered(self, answer: Answer) -> None:
        """Take the answer of a pull, on the reader thread."""
        try:
            if not isinstance(answer, Command):
                raise answer
            if answer.code not in _RESULTS:
                raise RefusedError(
                    f"pull of {self.queue.topic} queue {self.queue.queue_id}", answer.code, answer.remark
                )
            header = PullMessageResponseHeader.decode(answer.ext_fields)
            found = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
        except BrokerError as error:
            is_busy = isinstance(error, RefusedError) and error.code == ResponseCode.FLOW_CONTROL
            self._failed(error, FLOW_CONTROL_RETRY_S if is_busy else RETRY_S)
            return
        wanted = tuple(message for message in found if self._tags is None or message.tags in self._tags)
        self._take(wanted, header.next_begin_offset, is_moved=answer.code == ResponseCode.PULL_OFFSET_MOVED)
        self.pull()

    def _take(self, messages: tuple[ReceivedMessage, ...], offset_next: int, *, is_moved: bool) -> None:
        """Deliver the messages and stand at the next offset."""
        with self._lock:
            self._is_pulling = False
            if self._is_dropped:
                return
            self._offset_next = offset_next
            self._cached += len(messages)
            if self._cached == 0:
                self.offset_done = offset_next
        if is_moved:
            log.warning("%s queue %d: the offset is moved to %d", self.queue.topic, self.queue.queue_id, offset_next)
        if messages:
            self._deliver(Batch(self, messages, offset_next))

    def _failed(self, error: BrokerError, retry_s: float) -> None:
        """Ask again later; nothing is lost, for the offset stays where it is."""
        with self._lock:
            self._is_pulling = False
            if self._is_dropped:
                return
        log.warning("%s queue %d: %s; asking again in %g s", self.queue.topic, self.queue.queue_id, error, retry_s)
        self._timer.after(retry_s, self.pull)
