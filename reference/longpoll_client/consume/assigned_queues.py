"""The queues that one consumer has now: begin, pause, seek and give up.

`rebalance` chooses the queues, `puller` pulls them, and `offsets` stores their offsets.

Source: `RebalanceImpl.updateProcessQueueTableInRebalance`, `AssignedMessageQueue.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from longpoll_client.checks import check_whole
from longpoll_client.consume.offsets import is_retry
from longpoll_client.consume.puller import Puller
from longpoll_client.errors import NotOursError
from longpoll_client.lifecycle import Lifecycle
from longpoll_client.settings import OnQueues
from longpoll_protocol.bodies import MessageQueue, SubscriptionData
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.errors import ConfigError

log: logging.Logger = logging.getLogger(__name__)

MakePuller: TypeAlias = Callable[[MessageQueue, SubscriptionData, int, bool], Puller]
"""Of a queue, what is wanted of it, the offset to begin at, and whether it is paused."""


class AssignedQueues:
    """A consumer's queues, without requests to brokers: the same on threads and on an event loop.

    `announce` reports the changes since the last call, and starts to pull the new queues.

    Invariant: `_pullers` has one puller for each queue. Queues come and go under `_lock` and only within one exchange
    of the rebalancer at a time; `seek` may replace a puller at any time. `_start_offsets` are of assigned queues that
    have not begun. `_paused` may have such queues too.
    """

    def __init__(
        self,
        runtime: Runtime,
        lifecycle: Lifecycle,
        *,
        doubt: Callable[[MessageQueue], None],
        make: MakePuller,
        on_assigned: OnQueues | None,
        on_revoked: OnQueues | None,
    ) -> None:
        """`doubt` gets each queue whose next offset must be stored in any case."""
        self._lifecycle = lifecycle
        self._doubt = doubt
        self._make = make
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._begun: list[Puller] = []
        self._given_up: list[MessageQueue] = []
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
        """Have a queue, from an offset or from an earlier `seek`. `announce` starts to pull it."""
        with self._lock:
            if self._lifecycle.is_closed:
                return
            place = self._start_offsets.pop(queue, None)
            if place is not None:
                self._doubt(queue)
            if self._is_all_paused:
                self._paused.add(queue)
            puller = self._make(queue, subscription, offset if place is None else place, queue in self._paused)
            puller.locked_until_ns = locked_until_ns
            self._pullers[queue] = puller
        self._begun.append(puller)

    def let_go(self, queue: MessageQueue, *, is_for_good: bool) -> Puller:
        """Give a queue up. A listener may still have messages of the puller that this returns."""
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
        for called, queues in (
            (self._on_revoked, given_up),
            (self._on_assigned, [puller.queue for puller in begun]),
        ):
            changed = tuple(queue for queue in queues if not is_retry(queue))
            if called is not None and changed:
                with KeepGoing(log, "on_assigned or on_revoked failed"):
                    called(changed)
        for puller in begun:
            if not self._lifecycle.is_closed:
                puller.pull()

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
    """Queues that were given up while a listener may still have messages of them.

    Until the listener returns, the queue stays locked and is not begun again, even if it is assigned again. Otherwise
    two listeners would have its messages at once, and the end of the first would unlock the queue of the second.

    Changes only within one exchange of the rebalancer at a time.
    """

    def __init__(self) -> None:
        self._pullers: dict[MessageQueue, Puller] = {}
        self._wanted: set[MessageQueue] = set()

    def add(self, puller: Puller) -> None:
        """A queue that is about to be given up."""
        self._pullers[puller.queue] = puller

    def has(self, puller: Puller) -> bool:
        """Whether this puller's queue is not yet released."""
        return self._pullers.get(puller.queue) is puller

    def pullers(self) -> list[Puller]:
        """The pullers of the queues that are not yet released."""
        return list(self._pullers.values())

    def release(self, queue: MessageQueue) -> bool:
        """The queue may be begun again; whether it was wanted in the meantime."""
        del self._pullers[queue]
        is_wanted = queue in self._wanted
        self._wanted.discard(queue)
        return is_wanted

    def free(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """The queues that may be pulled from now. `release` reports the others as wanted."""
        found = {queue for queue in queues if queue not in self._pullers}
        self._wanted.update(set(queues) - found)
        return found


def check_seek(queue: MessageQueue, offset: int, first: int, end: int) -> None:
    """Raise ConfigError for an offset that a queue with these does not have; its end will do."""
    check_whole("offset", offset)
    if not first <= offset <= end:
        place = f"{queue.topic[:140]} queue {queue.queue_id}"
        raise ConfigError(f"offset {offset} is not in {place}, which has offsets {first} to {end}")


def _not_ours(queue: MessageQueue) -> NotOursError:
    place = f"{queue.topic[:140]} queue {queue.queue_id} of {queue.broker_name[:140]}"
    return NotOursError(
        f"{place} does not belong to this consumer now; check its queues again, because they can be reassigned"
    )
