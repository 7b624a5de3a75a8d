"""The queues that one consumer has now: begin, pause, seek and give up.

`rebalance` chooses the queues, `puller` pulls them, and `offsets` stores their offsets.

Source: `RebalanceImpl.updateProcessQueueTableInRebalance`, `AssignedMessageQueue.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from longpoll_client.checks import check_whole
from longpoll_client.consume.puller import Puller
from longpoll_client.errors import NotOursError
from longpoll_client.lifecycle import Lifecycle
from longpoll_client.offsets import OffsetStore, is_retry
from longpoll_client.settings import MemberConfig, OnShare
from longpoll_protocol.bodies import MessageQueue, SubscriptionData
from longpoll_runtime import Runtime
from longpoll_spec.errors import ConfigError, LongpollError

log = logging.getLogger(__name__)

MakePuller: TypeAlias = Callable[[MessageQueue, SubscriptionData, int, bool], Puller]
"""Of a queue, what is wanted of it, the offset to begin at, and whether it is paused."""


class AssignedQueues:
    """A consumer's queues, without what is asked of brokers: the same on threads and on an event loop.

    Invariant: `_pullers` has one puller, not dropped, for each of them. Queues come and go under `_lock` and only
    within one rebalance at a time; at any time one puller may be replaced by another of the same queue (`seek`).
    `_start_offsets` are of assigned queues that have not begun. `_paused` may have such queues too.
    """

    def __init__(
        self,
        runtime: Runtime,
        lifecycle: Lifecycle,
        *,
        doubt: Callable[[MessageQueue], None],
        make: MakePuller,
        on_share: OnShare | None,
    ) -> None:
        """`doubt` is told of a queue whose next place is to be stored, also when it is one that was stored before."""
        self._lifecycle = lifecycle
        self._doubt = doubt
        self._make = make
        self._on_share = on_share
        self._lock = runtime.lock()
        self._pullers: dict[MessageQueue, Puller] = {}
        self._start_offsets: dict[MessageQueue, int] = {}
        self._paused: set[MessageQueue] = set()
        self._is_all_paused = False

    def pullers(self) -> dict[MessageQueue, Puller]:
        """Each queue with its puller now."""
        with self._lock:
            return dict(self._pullers)

    def of_topic(self, topic: str) -> set[MessageQueue]:
        """Those of one topic."""
        with self._lock:
            return {queue for queue in self._pullers if queue.topic == topic}

    # ------------------------------------------------------------ coming and going, within a rebalance

    def begin_at(
        self, queue: MessageQueue, subscription: SubscriptionData, offset: int, locked_until_ns: int | None = None
    ) -> None:
        """Pull a queue from where the group stands, or from where it was sent before."""
        with self._lock:
            if self._lifecycle.is_closed:
                # By the user's own `on_assigned`, called for the queue before.
                return
            place = self._start_offsets.pop(queue, None)
            if place is not None:
                self._doubt(queue)
            if self._is_all_paused:
                self._paused.add(queue)
            puller = self._make(queue, subscription, offset if place is None else place, queue in self._paused)
            puller.locked_until_ns = locked_until_ns
            self._pullers[queue] = puller
        self._shared(queue, True)
        puller.pull()

    def let_go(self, queue: MessageQueue, *, is_for_good: bool) -> Puller:
        """Have a queue no more; its puller, whose messages may be consumed still."""
        with self._lock:
            puller = self._pullers.pop(queue)
            if is_for_good:
                self._paused.discard(queue)
        puller.drop()
        self._shared(queue, False)
        return puller

    def _shared(self, queue: MessageQueue, is_ours: bool) -> None:
        if self._on_share is not None and not is_retry(queue):
            self._on_share(queue, is_ours)

    def drop_all(self) -> list[Puller]:
        """Pull and deliver nothing more; every puller."""
        pullers = list(self.pullers().values())
        for puller in pullers:
            puller.drop()
        return pullers

    def resubscribe(self, subscriptions: Mapping[str, SubscriptionData]) -> None:
        """Have every queue pulled for what is wanted now."""
        for queue, puller in self.pullers().items():
            wanted = subscriptions.get(queue.topic)
            if wanted is not None and wanted != puller.subscription:
                puller.resubscribe(wanted)

    # ------------------------------------------------------------ going elsewhere

    def seek(self, queue: MessageQueue, offset: int, due: Collection[MessageQueue]) -> None:
        """Go on at an offset: nothing that was pulled before comes after this, and nothing of it is noted as consumed.

        A queue that is `due` and has not begun will begin there. Raises NotOursError.
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
            self._doubt(queue)
        old.drop()
        new.pull()

    def keep_start_offsets(self, due: frozenset[MessageQueue]) -> None:
        """Forget what was said of queues that are not due any more."""
        with self._lock:
            self._start_offsets = {queue: offset for queue, offset in self._start_offsets.items() if queue in due}
            self._paused &= due

    # ------------------------------------------------------------ pausing

    def pause(self, queues: Collection[MessageQueue] | None, due: Collection[MessageQueue]) -> None:
        """Have nothing of the queues consumed, or of any queue, also of those to come. Raises NotOursError."""
        with self._lock:
            for puller in self._named(queues, due):
                puller.pause()
            if queues is None:
                self._is_all_paused = True
            self._paused.update(self._pullers if queues is None else queues)

    def resume(self, queues: Collection[MessageQueue] | None, due: Collection[MessageQueue]) -> None:
        """Go on with the queues, or with every one. Raises NotOursError."""
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
        """The pullers of these queues, as far as they have begun; raises NotOursError."""
        if queues is None:
            return list(self._pullers.values())
        for queue in queues:
            if queue not in self._pullers and queue not in due:
                raise _not_ours(queue)
        return [self._pullers[queue] for queue in queues if queue in self._pullers]


class RevokedQueues:
    """Queues that were given up in order, and of which a listener may have messages still.

    Until it is done their locks are kept, and they are not begun anew, also where they are this client's again by then:
    two listeners would have one queue's messages, and the end of the first would give the second one's lock away.

    Used by several threads; each change is one step. Invariant: `_unclaimed` has those of `_pullers` whose offset is
    stored, if it is to be, and whose lock nobody has begun to give back.
    """

    def __init__(self) -> None:
        self._pullers: dict[MessageQueue, Puller] = {}
        self._unclaimed: set[Puller] = set()
        self._wanted: set[MessageQueue] = set()

    def add(self, puller: Puller) -> None:
        """It is about to be dropped: from then on its listener may be done at any moment."""
        self._pullers[puller.queue] = puller

    def stored(self, puller: Puller) -> None:
        """Its lock may be given back: not before, or the next member began at an older offset, and lost its own."""
        self._unclaimed.add(puller)

    def pullers(self) -> list[Puller]:
        """Every one that is here still."""
        return list(self._pullers.values())

    def claim(self, puller: Puller) -> bool:
        """Whether its lock is to be given back by who asks this, which the first one does; `end` comes after."""
        try:
            self._unclaimed.remove(puller)
        except KeyError:
            return False
        return True

    def end(self, queue: MessageQueue) -> bool:
        """It may be begun anew; whether somebody has wanted that meanwhile."""
        # Only then: who finds it still here has said before that it is wanted.
        del self._pullers[queue]
        try:
            self._wanted.remove(queue)
        except KeyError:
            return False
        return True

    def free(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Those that may be begun now; of the others `end` will say that they are wanted."""
        self._wanted.update(queues)
        found = {queue for queue in queues if queue not in self._pullers}
        self._wanted.difference_update(found)
        return found


class MemberQueues(AssignedQueues):
    """The queues of a consumer on threads, and where they stand; they come and go within `Rebalancer.rebalancing`."""

    def __init__(
        self,
        runtime: Runtime,
        config: MemberConfig,
        lifecycle: Lifecycle,
        *,
        offsets: OffsetStore,
        make: MakePuller,
        on_share: OnShare | None,
    ) -> None:
        super().__init__(runtime, lifecycle, doubt=offsets.doubt, make=make, on_share=on_share)
        self._config = config
        self._offsets = offsets

    def begin(self, queue: MessageQueue, subscription: SubscriptionData, locked_until_ns: int | None) -> None:
        """Pull a queue from where the group stands, or from where it was sent before; raises a ClientError."""
        offset = self._offsets.begin(queue, self._config.start_at)
        self.begin_at(queue, subscription, offset, locked_until_ns)

    def give_up(self, queue: MessageQueue, *, stores: bool) -> Puller:
        """Let a queue go, and keep where it stands if it `stores`; its puller, whose messages may be consumed still."""
        puller = self.let_go(queue, is_for_good=stores)
        if stores:
            self._store(queue, puller)
        return puller

    def persist(self, failed: Callable[[LongpollError], object] = lambda _error: None) -> None:
        """Store every offset that has moved; `failed` gets each error."""
        for queue, puller in self.pullers().items():
            self._store(queue, puller, failed)

    def _store(
        self, queue: MessageQueue, puller: Puller, failed: Callable[[LongpollError], object] = lambda _error: None
    ) -> None:
        """Store where a queue stands, unless another member may have it by now; errors are logged."""
        if not puller.is_locked:
            return
        try:
            self._offsets.store(queue, puller.offset_done)
        except LongpollError as error:
            log.warning("offset of %s queue %d: %s", queue.topic, queue.queue_id, error)
            failed(error)

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Store where a queue that was given up is to be begun; errors are logged."""
        try:
            self._offsets.reset(queue, offset)
        except LongpollError as error:
            log.warning("offset of %s queue %d is not reset: %s", queue.topic, queue.queue_id, error)


def check_seek(queue: MessageQueue, offset: int, first: int, end: int) -> None:
    """Raise ConfigError for an offset that a queue with these does not have; its end will do."""
    check_whole("offset", offset)
    if not first <= offset <= end:
        place = f"{queue.topic[:140]} queue {queue.queue_id}"
        raise ConfigError(f"offset {offset} is not in {place}, which has those from {first} to {end}")


def _not_ours(queue: MessageQueue) -> NotOursError:
    place = f"{queue.topic[:140]} queue {queue.queue_id} of {queue.broker_name[:140]}"
    return NotOursError(
        f"{place} does not belong to this consumer now; check its queues again, because they can be reassigned"
    )
