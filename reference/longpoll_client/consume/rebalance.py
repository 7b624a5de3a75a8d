"""The queues of a consumer: its share of the group's queues, or the queues that it was assigned.

`AssignedQueues` has the current queues, and `Rebalancer` changes them. `longpoll_client.allocate` computes the shares.
Every method of `Rebalancer` is an exchange (`link.steps`). The member runs one exchange at a time, because two
simultaneous rebalances would begin the same queue, and each of its messages would come twice.

Source: `RebalanceImpl.java`, `RebalancePushImpl.java`, `AssignedMessageQueue.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import Factory, define, field

from longpoll_client.checks import check_whole
from longpoll_client.consume.membership import Membership, QueueLocks, by_broker
from longpoll_client.consume.offsets import OffsetStore, is_retry
from longpoll_client.consume.puller import Puller
from longpoll_client.errors import NoRouteError, NotOursError, UnreachableError
from longpoll_client.lifecycle import Lifecycle
from longpoll_client.link.routes import Route
from longpoll_client.link.steps import FindRoute, Steps, Together
from longpoll_client.settings import MemberConfig, OnQueues
from longpoll_protocol.bodies import MessageQueue, SubscriptionData
from longpoll_protocol.names import DEAD_PREFIX, RETRY_PREFIX
from longpoll_runtime import Lock, Runtime
from longpoll_runtime.recoverable import FAULTS, KeepGoing
from longpoll_spec.errors import ConfigError, LongpollError

log: logging.Logger = logging.getLogger(__name__)

MakePuller: TypeAlias = Callable[[MessageQueue, SubscriptionData, int, bool], Puller]
"""Creates the puller of a queue, from the queue, its subscription, its first offset, and whether it is paused."""


@define(slots=True, eq=False)
class AssignedQueues:
    """A consumer's queues. This class sends no requests to brokers, so threads and event loops share it.

    `announce` reports the changes since the last call, and starts to pull the new queues. Invariant: `_pullers` has one
    puller for each queue. Queues are added and removed under `_lock`, and only one exchange of the rebalancer at a time
    changes them; `seek` may replace a puller at any time. `_start_offsets` has assigned queues that have not begun.
    `_paused` may contain queues that have not begun, too.
    """

    _runtime: Runtime
    _lifecycle: Lifecycle
    _make: MakePuller
    _on_assigned: OnQueues | None
    _on_revoked: OnQueues | None
    _begun: list[Puller] = field(factory=list, init=False)
    _given_up: list[MessageQueue] = field(factory=list, init=False)
    _lock: Lock = field(default=Factory(lambda self: self._runtime.lock(), takes_self=True), init=False)
    _pullers: dict[MessageQueue, Puller] = field(factory=dict, init=False)
    _start_offsets: dict[MessageQueue, int] = field(factory=dict, init=False)
    _paused: set[MessageQueue] = field(factory=set, init=False)
    _is_all_paused: bool = field(default=False, init=False)

    def pullers(self) -> dict[MessageQueue, Puller]:
        """Returns each queue with its current puller."""
        with self._lock:
            return dict(self._pullers)

    # ------------------------------------------------------------ coming and going, within a rebalance

    def begin_at(
        self, queue: MessageQueue, subscription: SubscriptionData, offset: int, locked_until_ns: int | None = None
    ) -> None:
        """Add a queue that begins at `offset`, or at the offset of an earlier `seek`; `announce` starts its pulls."""
        with self._lock:
            if self._lifecycle.is_closed:
                return
            place = self._start_offsets.pop(queue, None)
            if self._is_all_paused:
                self._paused.add(queue)
            puller = self._make(queue, subscription, offset if place is None else place, queue in self._paused)
            puller.locked_until_ns = locked_until_ns
            self._pullers[queue] = puller
        self._begun.append(puller)

    def let_go(self, queue: MessageQueue, *, is_for_good: bool) -> Puller:
        """Remove a queue and return its puller. A listener may still have messages of the queue."""
        with self._lock:
            puller = self._pullers.pop(queue)
            if is_for_good:
                self._paused.discard(queue)
        puller.drop()
        if puller in self._begun:
            self._begun.remove(puller)
        else:
            self._given_up.append(queue)
        return puller

    def announce(self) -> None:
        """Call `on_revoked` and `on_assigned` with the changes, and start to pull the new queues."""
        begun, self._begun = self._begun, []
        given_up, self._given_up = self._given_up, []
        for called, queues in ((self._on_revoked, given_up), (self._on_assigned, [puller.queue for puller in begun])):
            changed = tuple(queue for queue in queues if not is_retry(queue))
            if called is not None and changed:
                with KeepGoing(log, "on_assigned or on_revoked failed"):
                    called(changed)
        for puller in begun:
            if not self._lifecycle.is_closed:
                puller.pull()

    def resubscribe(self, subscriptions: Mapping[str, SubscriptionData]) -> None:
        """Make every queue use its current subscription from the next pull on."""
        for queue, puller in self.pullers().items():
            wanted = subscriptions.get(queue.topic)
            if wanted is not None and wanted != puller.subscription:
                puller.resubscribe(wanted)

    # ------------------------------------------------------------ going elsewhere

    def seek(self, queue: MessageQueue, offset: int, due: Collection[MessageQueue]) -> None:
        """Continue at an offset: messages that were pulled before are neither delivered nor counted as consumed.

        A queue that is `due` and has not begun will begin at the offset. Raises NotOursError.
        """
        with self._lock:
            old = self._pullers.get(queue)
            if old is None:
                if queue not in due:
                    raise _not_ours(queue)
                self._start_offsets[queue] = offset
                return
            new = self._make(queue, old.subscription, offset, queue in self._paused)
            new.locked_until_ns = old.locked_until_ns
            self._pullers[queue] = new
        old.drop()
        new.pull()

    def keep_start_offsets(self, due: frozenset[MessageQueue]) -> None:
        """Forget the start offsets and pauses of queues that are no longer due."""
        with self._lock:
            self._start_offsets = {queue: offset for queue, offset in self._start_offsets.items() if queue in due}
            self._paused &= due

    # ------------------------------------------------------------ pausing

    def pause(self, queues: Collection[MessageQueue] | None, due: Collection[MessageQueue]) -> None:
        """Stop the consumption of these queues, or of all queues including later ones. Raises NotOursError."""
        with self._lock:
            for puller in self._named(queues, due):
                puller.pause()
            if queues is None:
                self._is_all_paused = True
            self._paused.update(self._pullers if queues is None else queues)

    def resume(self, queues: Collection[MessageQueue] | None, due: Collection[MessageQueue]) -> None:
        """Continue the consumption of these queues, or of all queues. Raises NotOursError."""
        with self._lock:
            pullers = self._named(queues, due)
            if queues is None:
                self._is_all_paused = False
                self._paused.clear()
            else:
                self._paused.difference_update(queues)
        for puller in pullers:
            puller.resume()

    def _named(self, queues: Collection[MessageQueue] | None, due: Collection[MessageQueue]) -> list[Puller]:
        """Return the pullers of these queues, or of all queues; skips queues without a puller. Raises NotOursError."""
        if queues is None:
            return list(self._pullers.values())
        for queue in queues:
            if queue not in self._pullers and queue not in due:
                raise _not_ours(queue)
        return [self._pullers[queue] for queue in queues if queue in self._pullers]


class RevokedQueues:
    """Queues that were given up while a listener may still have messages of them.

    Until the listener returns, the queue stays locked and is not begun again, even if it is assigned again. If the
    queue were begun again, two listeners would have its messages at once, and the end of the first call would unlock
    the queue of the second. Only one exchange of the rebalancer at a time changes this set.
    """

    def __init__(self) -> None:
        self._pullers: dict[MessageQueue, Puller] = {}
        self._wanted: set[MessageQueue] = set()

    def add(self, puller: Puller) -> None:
        """Add a queue that is about to be given up."""
        self._pullers[puller.queue] = puller

    def has(self, puller: Puller) -> bool:
        """Whether this puller's queue is not yet released."""
        return self._pullers.get(puller.queue) is puller

    def pullers(self) -> list[Puller]:
        """The pullers of the queues that are not yet released."""
        return list(self._pullers.values())

    def release(self, queue: MessageQueue) -> bool:
        """Allow the queue to begin again, and return whether the rebalancer wanted to begin it in the meantime."""
        del self._pullers[queue]
        is_wanted = queue in self._wanted
        self._wanted.discard(queue)
        return is_wanted

    def free(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Return those of the queues that may be pulled from now on.

        For every other queue, `release` will return true.
        """
        found = {queue for queue in queues if queue not in self._pullers}
        self._wanted.update(set(queues) - found)
        return found


def check_seek(queue: MessageQueue, offset: int, first: int, end: int) -> None:
    """Raise ConfigError for an offset outside of [first, end]; the end itself is valid."""
    check_whole("offset", offset)
    if not first <= offset <= end:
        place = f"{queue.topic[:140]} queue {queue.queue_id}"
        raise ConfigError(f"offset {offset} is not in {place}, which has offsets {first} to {end}")


def _not_ours(queue: MessageQueue) -> NotOursError:
    place = f"{queue.topic[:140]} queue {queue.queue_id} of {queue.broker_name[:140]}"
    return NotOursError(
        f"{place} does not belong to this consumer now; check its queues again, because they can be reassigned"
    )


BUSY_RETRY_S: Final = 0.02
"""Seconds to wait while another rebalance runs, or while a listener has messages of a queue that is reset."""


@define(slots=True, eq=False)
class Rebalancer:
    """Begins and gives up queues, so that a consumer has exactly its share."""

    _membership: Membership
    _queues: AssignedQueues
    _offsets: OffsetStore
    _locks: QueueLocks
    _is_busy: Callable[[Puller], bool]
    _try_soon: Callable[[], None]
    _rebalance_soon: Callable[[], None]
    _revoked: RevokedQueues = field(factory=RevokedQueues, init=False)

    @property
    def _config(self) -> MemberConfig:
        return self._membership.config

    # ------------------------------------------------------------ routes

    def routes(self, *, is_patient: bool = True) -> Steps[dict[str, Route]]:
        """Return the routes of the user's topics.

        If a topic is missing, the topic is logged if `is_patient` is true, and NoRouteError is raised otherwise. A
        retry or dead-letter topic may always be missing, because a broker creates it with its first message.
        """
        found: dict[str, Route] = {}
        for topic in self._membership.subscriptions:
            if topic == RETRY_PREFIX + self._config.group:
                continue
            try:
                found[topic] = yield FindRoute(topic)
            except NoRouteError as error:
                if not is_patient and not topic.startswith((RETRY_PREFIX, DEAD_PREFIX)):
                    raise
                log.warning("group %s waits for its topic: %s", self._config.group, error)
        return found

    # ------------------------------------------------------------ one rebalance

    def rebalance(self) -> Steps[None]:
        """Begin and give up queues until this client has its share. Failures are logged and retried soon."""
        try:
            yield from self._rebalance()
        except FAULTS:
            # The error is most likely from the user's `allocate` function, so the queues that have begun are pulled
            # anyway.
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
                # The heartbeat has logged that the topic is missing.
                if topic != RETRY_PREFIX + self._config.group:
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
        own = {queue for queue in self._queues.pullers() if queue.topic == topic}
        for queue in sorted(own - share):
            yield from self.give_up(queue, stores=True)
        if not route.readable and topic != RETRY_PREFIX + self._config.group:
            raise NoRouteError(f"topic {topic!r} is not readable: its permission lacks R")
        free = self._revoked.free(share - own)
        locked, _refused = yield from self._locks.lock(free)
        if locked != free:
            self._try_soon()
        begun = yield Together([self._begin_all(queues) for queues in by_broker(locked).values()])
        failures = [error for error in begun if error is not None]
        if failures:
            # An unreachable broker is logged only once for all of its queues. The queues of other brokers have begun.
            raise failures[0]

    def _share(self, route: Route) -> Steps[Iterable[MessageQueue]]:
        """Returns the queues of a topic that this client should have."""
        assigned = self._membership.assigned
        if assigned is not None:
            return tuple(queue for queue in assigned if queue.topic == route.topic)
        if self._config.is_broadcasting:
            return route.readable
        client_id = self._membership.client_id()
        members = yield from self._membership.members(route)
        if client_id not in members:
            # The broker was restarted and has forgotten this client. Without a heartbeat the client would lose its
            # queues.
            yield from self._membership.heartbeat([route])
            members = yield from self._membership.members(route)
            if client_id not in members:
                # Brokers of 5.x accept the heartbeat of a group whose name they refuse.
                log.warning(
                    "no broker of topic %s has this member in group %s, though it was told: it is given nothing (names "
                    "that every broker takes have at most 120 letters, digits and _ - %% |)",
                    route.topic, self._config.group,
                )  # fmt: skip
        return self._config.allocate(client_id, members, route.readable)

    def _begin_all(self, queues: Iterable[MessageQueue]) -> Steps[None]:
        """Begin the queues of one broker, until the broker is unreachable. Raises the last error."""
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
            # The subscription is None if the user unsubscribed in the meantime; another rebalance follows then.
            if subscription is not None:
                self._queues.begin_at(queue, subscription, offset, end_ns)
        if failure is not None:
            raise failure

    # ------------------------------------------------------------ giving up

    def give_up(self, queue: MessageQueue, *, stores: bool, offset: int | None = None) -> Steps[None]:
        """Give up a queue. If `stores`, store its current offset; if `offset` is given, store that offset.

        If a listener still has messages of the queue, and the queue is locked or its topic is no longer subscribed,
        then the queue is kept until `release`. Any other queue may already belong to another member.
        """
        puller = self._queues.let_go(queue, is_for_good=stores)
        self._revoked.add(puller)
        # Look for a busy listener before the store, because a listener that returns during the store has consumed more
        # than the stored offset.
        is_busy = self._is_kept(puller)
        if stores:
            yield from self._store(puller, self._offsets.store)
        if offset is not None:
            # The offset is stored before the unlock, because another member can begin the queue after the unlock.
            yield from self._reset(queue, offset)
        if not is_busy:
            yield from self._end(puller)

    def release(self, puller: Puller) -> Steps[None]:
        """Store the offset of a queue that was given up, and unlock it, after its last listener has returned."""
        if self._revoked.has(puller) and not self._is_busy(puller):
            yield from self._store(puller, self._offsets.store)
            yield from self._end(puller)

    def _is_kept(self, puller: Puller) -> bool:
        is_only_ours = puller.locked_until_ns is not None or puller.queue.topic not in self._membership.subscriptions
        return is_only_ours and self._is_busy(puller)

    def _end(self, puller: Puller) -> Steps[None]:
        yield from self._locks.unlock([puller.queue])
        if self._revoked.release(puller.queue):
            self._rebalance_soon()

    def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> Steps[bool]:
        """Continue at the offsets of a reset request (220) in the queues that this client has.

        Returns false while a listener has messages of one of these queues.
        """
        moving = {queue: puller for queue, puller in self._queues.pullers().items() if queue in offsets}
        for puller in moving.values():
            puller.drop()
        if any(self._is_kept(puller) for puller in moving.values()):
            return False
        for queue in sorted(moving):
            yield from self.give_up(queue, stores=False, offset=offsets[queue])
        yield from self.rebalance()
        return True

    def leave(self) -> Steps[None]:
        """Drop every queue at the close, store every offset, and unlock the queues without a running listener call."""
        pullers = self._pullers()
        for puller in pullers:
            puller.drop()
        # Look for busy listeners before the store, as in `give_up`.
        busy = {puller.queue for puller in pullers if self._is_busy(puller)}
        yield from self.persist(is_last=True)
        yield from self._locks.unlock(self._locks.held - busy)

    # ------------------------------------------------------------ offsets and locks

    def persist(self, *, is_last: bool = False) -> Steps[list[LongpollError]]:
        """Store every changed offset. If `is_last`, also store offsets that a broker lost in a crash.

        Returns the logged errors.
        """
        write = self._offsets.store_last if is_last else self._offsets.store
        stored = yield Together([self._store(puller, write) for puller in self._pullers()])
        return [error for error in stored if error is not None]

    def _pullers(self) -> Sequence[Puller]:
        return (*self._queues.pullers().values(), *self._revoked.pullers())

    def _store(self, puller: Puller, write: Callable[[MessageQueue, int], Steps[None]]) -> Steps[LongpollError | None]:
        """Store a queue's offset, unless its lock is lost, because then another member may have the queue.

        Errors are logged.
        """
        queue = puller.queue
        if puller.is_locked:
            try:
                yield from write(queue, puller.offset_done)
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
        """Renew every lock. A queue that another member has locked meanwhile is given up without storing its offset."""
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
