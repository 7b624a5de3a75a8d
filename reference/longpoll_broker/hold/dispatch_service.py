"""Makes appended messages visible and notifies waiting pulls, at the append or from a polling thread.

Under `notify=at_append` `BrokerHandler.end_pass` calls `appended` after a pass's sends, before their answers leave.
Under `notify=dispatcher_poll` one thread polls every millisecond, as `ReputMessageService` does; a wake waits half of
that on average.

Cursor: see `store.dispatch`. Bucket traversal: see `hold.hold_service`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import define, field

from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.hold.pull_events import PullEvents
from longpoll_broker.io.channel import Outbox
from longpoll_broker.store.message_store import LOG, MessageStore
from longpoll_broker.store.messages import Arrival
from longpoll_runtime import Runtime, Thread
from longpoll_runtime.recoverable import FAULTS, KeepGoing

log = logging.getLogger(__name__)

BATCH: Final = 256
"""Maximum messages made visible before their waiting pulls are notified."""
ANNOUNCED_MAX: Final = 16
"""Maximum announcements of one message whose traversals raise; Java retries forever. Each failure loses pulls."""


@define(slots=True, eq=False)
class DispatchService:
    """The dispatcher. A thread that calls `run` is a notifier; several may run at once."""

    runtime: Runtime
    store: MessageStore
    hold_service: HoldService
    events: PullEvents
    notifies: bool
    """Whether arrivals wake pulls; false when long polling is off (`longPollingEnable`)."""
    polls: bool = False
    """Whether a thread makes messages visible (`notify=dispatcher_poll`), instead of the appending thread."""
    in_batches: bool = False
    """Whether only the last message of each queue in a batch is announced."""
    before_visible: bool = False
    """Whether a message is announced before it is visible (`notify=before_visible`), which loses wakeups."""
    passes_idle: bool = False
    """Whether to skip empty buckets (`empty_shortcut`), and all of them while no pull is held.

    Safe without a lock: a pull held after the check rechecks the visible end, which has moved already.
    """
    makes_durable: bool = False
    """Whether a message becomes visible only when it is durable."""
    _told: str = field(default="", init=False)
    """The last dispatch error; it is logged once, not with every send."""
    _stopping: bool = field(default=False, init=False)
    _thread: Thread | None = field(default=None, init=False)

    def record_visible(self) -> None:
        """Record each queue's visible end in the history before the broker serves requests."""
        store = self.store
        self.events.visible_from_start((*queue, store.visible_end(*queue)) for queue in store.queues())

    def run(self, outbox: Outbox) -> None:
        """Make all messages visible that are appended (or durable) at the call, and notify."""
        store = self.store
        end = store.dispatchable_end
        if self.before_visible and self.notifies:
            for arrival in store.waiting():
                self._notify(arrival, store.visible_end(arrival.topic, arrival.queue_id), outbox)
        is_behind = store.is_behind
        while store.dispatched_end < end or is_behind:
            after_ns = self.events.now_ns()
            self.runtime.step("make_visible")
            try:
                arrivals = store.dispatch(BATCH)
            except FAULTS as error:
                # The records are in the log. The flush thread retries, and so does the next append.
                told, self._told = self._told, str(error)
                if self._told != told:
                    log.exception("messages could not be made visible; trying again")
                return
            self._told = ""
            is_behind = bool(arrivals) and store.is_behind
            self.events.made_visible(arrivals, after_ns)
            if self.notifies and not self.before_visible and not (self.passes_idle and not len(self.hold_service)):
                for arrival in self._announced(arrivals):
                    self._notify(arrival, arrival.offset_end, outbox)

    def appended(self, outbox: Outbox) -> None:
        """Make visible what a pass appended or a sync made durable, before the answers leave."""
        if not self.polls and self.store.dispatched_end < self.store.dispatchable_end:
            self.run(outbox)

    def show_waiting(self) -> None:
        """Make messages visible that the schedule appended or that failed for lack of disk space."""
        if not self.polls and (self.store.dispatched_end < self.store.log_end or self.store.is_behind):
            # While this fails, the flush thread retries and logs it once.
            if self.makes_durable and LOG not in self.store.troubles:
                with KeepGoing(log, "messages could not be made durable, and stay unseen"):
                    self.store.flush()
            outbox = Outbox()
            self.run(outbox)
            outbox.flush()

    def _announced(self, arrivals: Sequence[Arrival]) -> Iterable[Arrival]:
        """Returns the arrivals to announce: all, or with `notify_grain=batch` the last one of each queue."""
        if not self.in_batches:
            return arrivals
        return {(arrival.topic, arrival.queue_id): arrival for arrival in arrivals}.values()

    def _notify(self, arrival: Arrival, visible_end: int, outbox: Outbox) -> None:
        """Announce a message; retry when a traversal raises, as `doReput` does by not advancing."""
        for _ in range(ANNOUNCED_MAX):
            try:
                self.hold_service.notify((arrival.topic, arrival.queue_id), visible_end, arrival.tags_code, outbox)
            except FAULTS:
                # Only under `on_throw=drop_rest`, which loses the rest of the bucket's pulls.
                log.exception("notifying of %s@%d failed", arrival.topic, arrival.queue_id)
            else:
                return

    def start(self, sleep_ms: int) -> None:
        """Start the polling thread."""
        self._thread = self.runtime.spawn("dispatcher", lambda: self._poll(sleep_ms / 1000))

    def stop(self) -> None:
        """End the polling thread, if there is one."""
        self._stopping = True
        if self._thread is not None:
            self._thread.join()

    def _poll(self, sleep_s: float) -> None:
        outbox = Outbox()
        while not self._stopping:
            try:
                self.run(outbox)
            except FAULTS:
                log.exception("the dispatcher met an error and goes on")
            outbox.flush()
            self.runtime.sleep(sleep_s)
