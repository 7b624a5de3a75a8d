"""Rebalances a consumer: its share of the group's queues, or the queues that it was assigned.

Runs on the timer's thread, and at the start on the caller's. `longpoll_client.allocate` computes the shares.

Source: `RebalanceImpl.java`, `RebalancePushImpl.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Final

from longpoll_client.consume.assigned_queues import MemberQueues, RevokedQueues
from longpoll_client.consume.membership import LOCK_LIVE_S, LOCK_RENEWAL_S, BrokerLocks, Membership
from longpoll_client.consume.puller import RETRY_S, Puller
from longpoll_client.errors import NoRouteError
from longpoll_client.instance import ClientInstance
from longpoll_client.link.routes import Route
from longpoll_client.timer import Timer
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.names import RETRY_PREFIX
from longpoll_spec.errors import LongpollError

log = logging.getLogger(__name__)

BUSY_RETRY_S: Final = 0.02
"""How long until the timer's thread looks again whether somebody else still shares queues."""


class Rebalancer:
    """Keeps a consumer's queues to its share.

    Invariant: queues come and go within `rebalancing` only: two rebalances at once, of which the first heartbeat's own
    notice makes a second, would each begin the same queue, and every message of it would come twice.
    """

    def __init__(
        self,
        instance: ClientInstance,
        timer: Timer,
        membership: Membership,
        *,
        queues: MemberQueues,
        is_orderly: bool,
        is_busy: Callable[[Puller], bool],
    ) -> None:
        """`is_busy` says whether a listener has messages of a queue right now, in order."""
        self.rebalancing = instance.runtime.lock()
        self._instance = instance
        self._timer = timer
        self._membership = membership
        self._config = membership.config
        self._queues = queues
        self._locks = BrokerLocks(instance, membership.config.group) if is_orderly else None
        self._is_busy = is_busy
        self._revoked = RevokedQueues()
        self._retry_topic = RETRY_PREFIX + membership.config.group
        self._tries_soon = False

    # ------------------------------------------------------------ when

    def start(self) -> None:
        """Have the first share, on the caller's thread, and look again from time to time."""
        self.rebalance()
        self._timer.every(self._config.heartbeat_s, self._heartbeat_again)
        self._timer.every(self._config.rebalance_s, self.rebalance_later)
        if self._locks is not None:
            self._timer.every(LOCK_RENEWAL_S, self._renew_locks)

    def rebalance(self) -> None:
        """Take and give up queues so that this client has its share; what fails is tried again soon."""
        with self.rebalancing:
            self._rebalance_topics()

    def rebalance_later(self) -> None:
        """The same on the timer's thread."""
        self._when_shared(self._rebalance_topics)

    def subscription_changed(self) -> None:
        """Something else is wanted: tell the brokers, and have the queues that go with it; on the timer's thread."""
        self.heartbeat()
        self.rebalance_later()

    def _heartbeat_again(self) -> None:
        """The same as the last time, but for what others want."""
        self._membership.check_subscriptions()
        self.heartbeat()

    def heartbeat(self) -> None:
        """Tell the brokers that this client is there, and what it wants."""
        try:
            self._membership.heartbeat(list(self.routes().values()))
        except LongpollError as error:
            log.warning("heartbeat of group %s: %s", self._config.group, error)

    def _when_shared(self, action: Callable[[], None]) -> None:
        """Do something within `rebalancing`, on the timer's thread, which never waits for it.

        Who shares queues now may be in `on_assigned`, close this member there, and so wait for the timer's thread.
        """
        if not self.rebalancing.acquire(blocking=False):
            self._timer.after(BUSY_RETRY_S, lambda: self._when_shared(action))
            return
        with ExitStack() as stack:
            stack.callback(self.rebalancing.release)
            action()

    def _try_soon(self) -> None:
        """Join and share again, once, however much failed by then: else what fails for long is tried ever more."""
        if not self._tries_soon:
            self._tries_soon = True
            self._timer.after(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._tries_soon = False
        self.subscription_changed()

    # ------------------------------------------------------------ which

    def own_topics(self) -> list[str]:
        """The topics that the user asked for."""
        return [topic for topic in self._membership.subscriptions if topic != self._retry_topic]

    def all_routes(self) -> dict[str, Route]:
        """The routes of the topics that the user asked for; raises NoRouteError or another ClientError."""
        return {topic: self._instance.route(topic) for topic in self.own_topics()}

    def routes(self) -> dict[str, Route]:
        """The routes of the topics that the user asked for, as far as these are there; raises a ClientError."""
        found = {}
        for topic in self.own_topics():
            try:
                found[topic] = self._instance.route(topic)
            except NoRouteError as error:
                log.warning("group %s waits for its topic: %s", self._config.group, error)
        return found

    def _rebalance_topics(self) -> None:
        subscriptions = self._membership.subscriptions
        for queue in sorted(self._queues.pullers()):
            if queue.topic not in subscriptions:
                self._give_up(queue, stores=True)
        self._queues.resubscribe(subscriptions)
        for topic in subscriptions:
            try:
                self._rebalance_topic(topic)
            except NoRouteError as error:
                if topic != self._retry_topic:
                    self._rebalance_failed(topic, error)
            except LongpollError as error:
                self._rebalance_failed(topic, error)

    def _rebalance_failed(self, topic: str, error: LongpollError) -> None:
        log.warning("rebalance of %s for group %s: %s", topic, self._config.group, error)
        self._try_soon()

    def _rebalance_topic(self, topic: str) -> None:
        route = self._instance.route(topic)
        share = set(self._share(route))
        own = self._queues.of_topic(topic)
        for queue in sorted(own - share):
            self._give_up(queue, stores=True)
        if not route.readable and topic != self._retry_topic:
            raise NoRouteError(f"topic {topic!r} is not readable: its permission lacks R")
        failure: LongpollError | None = None
        for queue in sorted(self._lockable(share - own)):
            try:
                self._begin(queue)
            except LongpollError as error:
                failure = error
        if failure is not None:
            # Told once for all queues of a broker that is down; the others have begun.
            raise failure

    def _share(self, route: Route) -> tuple[MessageQueue, ...]:
        """The queues of a topic that are this client's."""
        assigned = self._membership.assigned
        if assigned is not None:
            return tuple(queue for queue in assigned if queue.topic == route.topic)
        if self._config.is_broadcasting:
            return route.readable
        client_id = self._instance.client_id
        members = self._membership.members(route)
        if client_id not in members:
            # The broker was restarted and has forgotten us: without this our queues would be given up.
            self._membership.heartbeat([route])
            members = self._membership.members(route)
            self._membership.warn_if_unknown(route.topic, client_id, members)
        return self._config.allocate(client_id, members, route.readable)

    def _begin(self, queue: MessageQueue) -> None:
        subscription = self._membership.subscriptions.get(queue.topic)
        if subscription is not None:
            # Else it is not wanted any more since a moment ago, and the next rebalance knows.
            self._queues.begin(queue, subscription, self._lock_end_ns())

    def _give_up(self, queue: MessageQueue, *, stores: bool, offset: int | None = None) -> None:
        """Let a queue go, which is to be begun at an `offset`, if one is given.

        A listener that still has messages of it ends its lock when it is done.
        """
        puller = self._queues.pullers()[queue]
        self._revoked.add(puller)
        with ExitStack() as stack:
            # Whatever an `on_revoked` raises.
            stack.callback(self._dropped, puller)
            self._queues.give_up(queue, stores=stores)
            if offset is not None:
                # While nobody else may have the queue, who would begin it where it stood.
                self._queues.reset(queue, offset)

    def _dropped(self, puller: Puller) -> None:
        self._revoked.stored(puller)
        if not self._is_busy(puller):
            self.released(puller)

    # ------------------------------------------------------------ going on elsewhere

    def move_later(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on from other offsets where the queues are ours; soon, on the timer's thread."""
        self._timer.after(0.0, lambda: self._when_shared(lambda: self._move(offsets)))

    def _move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Stop consuming the queues; go on once no listener has messages of them, for order's sake."""
        moving = {queue: puller for queue, puller in self._queues.pullers().items() if queue in offsets}
        for puller in moving.values():
            puller.drop()
        if any(self._is_busy(puller) for puller in moving.values()):
            self._timer.after(BUSY_RETRY_S, lambda: self._when_shared(lambda: self._move(offsets)))
            return
        for queue in sorted(moving):
            self._give_up(queue, stores=False, offset=offsets[queue])
        self._rebalance_topics()

    # ------------------------------------------------------------ locks

    def is_locked(self, puller: Puller) -> bool:
        """Whether the queue's messages may be consumed in order now: the broker keeps it for this client."""
        return puller.is_locked

    def released(self, puller: Puller) -> None:
        """A queue that was given up is not being consumed any more: let the next member have it, if it was not yet."""
        if self._revoked.claim(puller):
            self.unlock([puller])
            if self._revoked.end(puller.queue):
                self._timer.after(0.0, self.rebalance_later)

    def unlock(self, pullers: Iterable[Puller]) -> None:
        """Let others have the queues, if they are locked at all."""
        if self._locks is not None:
            self._locks.unlock([puller.queue for puller in pullers], self._lock_failed)

    def unlock_all(self, pullers: Iterable[Puller]) -> None:
        """Let others have what is locked, these or not, also what never was begun; not what listeners have still."""
        if self._locks is not None:
            busy = {puller.queue for puller in (*pullers, *self._revoked.pullers()) if self._is_busy(puller)}
            self._locks.unlock(self._locks.held - busy, self._lock_failed)

    def _renew_locks(self) -> None:
        """Keep the queues; one that another member has got meanwhile is given up, and not its offset overwritten."""
        self._when_shared(self._renew)

    def _renew(self) -> None:
        assert self._locks is not None
        pullers = self._queues.pullers()
        end_ns = self._lock_end_ns()
        got, refused = self._locks.lock(pullers, self._lock_failed)
        for queue in got:
            pullers[queue].locked_until_ns = end_ns
        self._lose(refused)

    def _lose(self, queues: Iterable[MessageQueue]) -> None:
        for queue in sorted(queues):
            log.warning(
                "%s queue %d: another member of group %s has it", queue.topic, queue.queue_id, self._config.group
            )
            self._give_up(queue, stores=False)
            self._try_soon()

    def _lock_end_ns(self) -> int | None:
        return None if self._locks is None else self._instance.runtime.monotonic_ns() + int(LOCK_LIVE_S * 1e9)

    def _lockable(self, queues: set[MessageQueue]) -> set[MessageQueue]:
        """The queues that may be begun: when orderly those that the brokers keep for us, and the rest soon again."""
        queues = self._revoked.free(queues)
        if self._locks is None or not queues:
            return queues
        got, _refused = self._locks.lock(queues, self._lock_failed)
        if got != queues:
            self._try_soon()
        return got

    def _lock_failed(self, broker_name: str, error: LongpollError) -> None:
        log.warning("locks of group %s at %s: %s", self._config.group, broker_name, error)
