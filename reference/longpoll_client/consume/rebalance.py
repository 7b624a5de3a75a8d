"""Rebalances a consumer: its share of the group's queues, or the queues that it was assigned.

`longpoll_client.allocate` computes the shares. Every method is an exchange (`link.steps`); the member runs one of them
at a time. Otherwise two rebalances would begin the same queue, and each of its messages would come twice.

Source: `RebalanceImpl.java`, `RebalancePushImpl.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from longpoll_client.consume.assigned_queues import AssignedQueues, RevokedQueues
from longpoll_client.consume.membership import Membership, QueueLocks, by_broker
from longpoll_client.consume.offsets import OffsetStore
from longpoll_client.consume.puller import Puller
from longpoll_client.errors import NoRouteError, UnreachableError
from longpoll_client.link.routes import Route
from longpoll_client.link.steps import FindRoute, Steps, Together
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.names import RETRY_PREFIX
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.errors import LongpollError

log: logging.Logger = logging.getLogger(__name__)

BUSY_RETRY_S: Final = 0.02
"""The wait before another try while a rebalance runs, or while a listener has messages of a queue that is reset."""


class Rebalancer:
    """Keeps a consumer's queues to its share."""

    def __init__(
        self,
        membership: Membership,
        queues: AssignedQueues,
        offsets: OffsetStore,
        locks: QueueLocks,
        *,
        is_busy: Callable[[Puller], bool],
        try_soon: Callable[[], None],
        rebalance_soon: Callable[[], None],
    ) -> None:
        """`is_busy` says whether a listener has messages of an orderly queue; `try_soon` retries after a failure."""
        self._membership = membership
        self._config = membership.config
        self._queues = queues
        self._offsets = offsets
        self._locks = locks
        self._is_busy = is_busy
        self._try_soon = try_soon
        self._rebalance_soon = rebalance_soon
        self._revoked = RevokedQueues()
        self._retry_topic = RETRY_PREFIX + membership.config.group

    # ------------------------------------------------------------ routes

    def routes(self, *, is_patient: bool = True) -> Steps[dict[str, Route]]:
        """The routes of the user's topics. Missing topics are logged if it `is_patient`, else raise NoRouteError."""
        found: dict[str, Route] = {}
        for topic in self._membership.subscriptions:
            if topic == self._retry_topic:
                continue
            try:
                found[topic] = yield FindRoute(topic)
            except NoRouteError as error:
                if not is_patient:
                    raise
                log.warning("group %s waits for its topic: %s", self._config.group, error)
        return found

    # ------------------------------------------------------------ one rebalance

    def rebalance(self) -> Steps[None]:
        """Begin and give up queues until this client has its share. Failures are logged and retried soon."""
        try:
            yield from self._rebalance()
        except FAULTS:
            # The user's `allocate`, most likely: the queues that have begun are pulled anyway.
            self._queues.announce()
            raise
        self._queues.announce()

    def _rebalance(self) -> Steps[None]:
        subscriptions = self._membership.subscriptions
        for queue in sorted(self._queues.pullers()):
            if queue.topic not in subscriptions:
                yield from self.give_up(queue, stores=True)
        self._queues.resubscribe(subscriptions)
        for topic in subscriptions:
            try:
                route: Route = yield FindRoute(topic)
            except NoRouteError:
                # The heartbeat has logged it.
                if topic != self._retry_topic:
                    self._try_soon()
                continue
            except LongpollError as error:
                self._failed(topic, error)
                continue
            try:
                yield from self._rebalance_topic(topic, route)
            except LongpollError as error:
                self._failed(topic, error)

    def _failed(self, topic: str, error: LongpollError) -> None:
        log.warning("rebalance of %s for group %s: %s", topic, self._config.group, error)
        self._try_soon()

    def _rebalance_topic(self, topic: str, route: Route) -> Steps[None]:
        share = set((yield from self._share(route)))
        own = self._queues.of_topic(topic)
        for queue in sorted(own - share):
            yield from self.give_up(queue, stores=True)
        if not route.readable and topic != self._retry_topic:
            raise NoRouteError(f"topic {topic!r} is not readable: its permission lacks R")
        free = self._revoked.free(share - own)
        locked, _refused = yield from self._locks.lock(free)
        if locked != free:
            self._try_soon()
        begun = yield Together([self._begin_all(queues) for queues in by_broker(locked).values()])
        failures = [error for error in begun if error is not None]
        if failures:
            # Logged once for all queues of a broker that is down; the others have begun.
            raise failures[0]

    def _share(self, route: Route) -> Steps[Iterable[MessageQueue]]:
        """The queues of a topic that this client should have."""
        assigned = self._membership.assigned
        if assigned is not None:
            return tuple(queue for queue in assigned if queue.topic == route.topic)
        if self._config.is_broadcasting:
            return route.readable
        client_id = self._membership.client_id()
        members = yield from self._membership.members(route)
        if client_id not in members:
            # The broker was restarted and has forgotten this client: without a heartbeat it would lose its queues.
            yield from self._membership.heartbeat([route])
            members = yield from self._membership.members(route)
            self._membership.warn_if_unknown(route.topic, client_id, members)
        return self._config.allocate(client_id, members, route.readable)

    def _begin_all(self, queues: Iterable[MessageQueue]) -> Steps[None]:
        """Begin the queues of one broker; raises the last error, and tries no more if the broker is unreachable."""
        failure: LongpollError | None = None
        end_ns = self._locks.end_ns
        for queue in queues:
            try:
                offset = yield from self._offsets.begin(queue)
            except LongpollError as error:
                failure = error
                if isinstance(error, UnreachableError):
                    break
                continue
            subscription = self._membership.subscriptions.get(queue.topic)
            # None if the user unsubscribed in the meantime; the next rebalance follows.
            if subscription is not None:
                self._queues.begin_at(queue, subscription, offset, end_ns)
        if failure is not None:
            raise failure

    # ------------------------------------------------------------ giving up

    def give_up(self, queue: MessageQueue, *, stores: bool, offset: int | None = None) -> Steps[None]:
        """Give a queue up; if it `stores`, store its offset, and if an `offset` is given, that one.

        If a listener still has messages of an orderly queue, the queue stays locked until `release`.
        """
        puller = self._queues.pullers()[queue]
        self._revoked.add(puller)
        self._queues.let_go(queue, is_for_good=stores)
        if stores:
            yield from self.store(queue, puller)
        if offset is not None:
            # Before another member can begin the queue.
            yield from self._reset(queue, offset)
        if not self._is_busy(puller):
            yield from self._end(puller)

    def release(self, puller: Puller) -> Steps[None]:
        """The listener has returned for a queue that was given up: store the offset, then unlock."""
        if self._revoked.has(puller):
            yield from self.store(puller.queue, puller)
            yield from self._end(puller)

    def _end(self, puller: Puller) -> Steps[None]:
        yield from self._locks.unlock([puller.queue])
        if self._revoked.release(puller.queue):
            self._rebalance_soon()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> Steps[bool]:
        """Continue at other offsets (220) in those queues that are ours; false while a listener has messages of one."""
        moving = {queue: puller for queue, puller in self._queues.pullers().items() if queue in offsets}
        for puller in moving.values():
            puller.drop()
        if any(self._is_busy(puller) for puller in moving.values()):
            return False
        for queue in sorted(moving):
            yield from self.give_up(queue, stores=False, offset=offsets[queue])
        yield from self.rebalance()
        return True

    def leave(self, pullers: Iterable[Puller]) -> Steps[None]:
        """At the close: store every offset, and unlock every queue, except those that a listener still has."""
        revoked = [puller for puller in self._revoked.pullers() if not self._is_busy(puller)]
        for puller in revoked:
            yield from self.store(puller.queue, puller)
        busy = {puller.queue for puller in (*pullers, *self._revoked.pullers()) if self._is_busy(puller)}
        yield from self._locks.unlock(self._locks.held - busy)

    # ------------------------------------------------------------ offsets and locks

    def persist(self) -> Steps[list[LongpollError]]:
        """Store every offset that has changed; the errors, which are logged."""
        stored = yield Together([self.store(queue, puller) for queue, puller in self._queues.pullers().items()])
        return [error for error in stored if error is not None]

    def store(self, queue: MessageQueue, puller: Puller) -> Steps[LongpollError | None]:
        """Store a queue's offset, unless its lock is lost: another member may have the queue. Errors are logged."""
        if puller.is_locked:
            try:
                yield from self._offsets.store(queue, puller.offset_done)
            except LongpollError as error:
                log.warning("offset of %s queue %d: %s", queue.topic, queue.queue_id, error)
                return error
        return None

    def _reset(self, queue: MessageQueue, offset: int) -> Steps[None]:
        try:
            yield from self._offsets.reset(queue, offset)
        except LongpollError as error:
            log.warning("offset of %s queue %d is not reset: %s", queue.topic, queue.queue_id, error)

    def renew_locks(self) -> Steps[None]:
        """Renew every lock. A queue that another member has by now is given up, and its offset is not stored."""
        pullers = self._queues.pullers()
        end_ns = self._locks.end_ns
        got, refused = yield from self._locks.lock(pullers)
        for queue in got:
            pullers[queue].locked_until_ns = end_ns
        yield from self.lose(refused)

    def lose(self, queues: Iterable[MessageQueue]) -> Steps[None]:
        """Give up queues that another member has locked."""
        for queue in sorted(queues):
            log.warning(
                "%s queue %d: another member of group %s has it", queue.topic, queue.queue_id, self._config.group
            )
            self._queues.pullers()[queue].locked_until_ns = 0
            yield from self.give_up(queue, stores=False)
            self._try_soon()
        self._queues.announce()
