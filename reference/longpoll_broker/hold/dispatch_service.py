"""Makes appended messages visible and notifies who waits for them; at the append, or from a poll of its own.

Under `notify=at_append` `BrokerHandler.end_pass` calls `appended` after a pass's sends, before their answers leave.
Under `notify=dispatcher_poll` one thread polls every millisecond, as `ReputMessageService` does: a wake waits half of
that on average.

Leaves out the cursor (`store.dispatch`) and the walk through a bucket (`hold.hold_service`).
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
"""Messages made visible before those who wait for them are told."""
ANNOUNCED_MAX: Final = 16
"""How often one message is announced while walks throw; Java does it for ever. Each walk that throws loses pulls."""


@define(slots=True, eq=False)
class DispatchService:
    """The dispatcher. A thread that calls `run` is a notifier; several may be at work at once."""

    runtime: Runtime
    store: MessageStore
    hold_service: HoldService
    events: PullEvents
    notifies: bool
    """False when long polling is off: then nobody is told (`longPollingEnable`)."""
    polls: bool = False
    """Whether a thread of its own makes messages visible (`notify=dispatcher_poll`), and nobody who appends does."""
    in_batches: bool = False
    """Whether the messages made visible together are announced by the last one of each queue."""
    before_visible: bool = False
    """Whether a message is announced before it is visible (`notify=before_visible`), which loses wakeups."""
    passes_idle: bool = False
    """Whether a bucket without pulls is passed over (`empty_shortcut`), and so all of them while nothing is held.

    Without a lock this is safe as it is there: a pull held after the look rechecks the end that was moved before it.
    """
    makes_durable: bool = False
    """Whether nobody may see a message before it is durable."""
    _told: str = field(default="", init=False)
    """Why messages could not be made visible the last time: it is not told again with every send."""
    _stopping: bool = field(default=False, init=False)
    _thread: Thread | None = field(default=None, init=False)

    def record_visible(self) -> None:
        """Tell the history up to where each queue is visible before anything is served."""
        store = self.store
        self.events.visible_from_start((*queue, store.visible_end(*queue)) for queue in store.queues())

    def run(self, outbox: Outbox) -> None:
        """Make everything visible that was appended before this call, or that was durable by then, and notify."""
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
                # The records are in the log; the flush thread tries again, and so does the next append.
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
        """Everything that one pass appended, or one sync made durable, becomes visible before its answers leave."""
        if not self.polls and self.store.dispatched_end < self.store.dispatchable_end:
            self.run(outbox)

    def show_waiting(self) -> None:
        """Make visible, and durable if need be, what the schedule appended, or what could not be for want of disk."""
        if not self.polls and (self.store.dispatched_end < self.store.log_end or self.store.is_behind):
            # While that fails the flush thread tries it again, and says so once.
            if self.makes_durable and LOG not in self.store.troubles:
                with KeepGoing(log, "messages could not be made durable, and stay unseen"):
                    self.store.flush()
            outbox = Outbox()
            self.run(outbox)
            outbox.flush()

    def _announced(self, arrivals: Sequence[Arrival]) -> Iterable[Arrival]:
        """The arrivals that are announced: each, or with `notify_grain=batch` the last one of every queue."""
        if not self.in_batches:
            return arrivals
        return {(arrival.topic, arrival.queue_id): arrival for arrival in arrivals}.values()

    def _notify(self, arrival: Arrival, visible_end: int, outbox: Outbox) -> None:
        """Announce a message; again after a walk that threw, as `doReput` does, which has not gone on by then."""
        for _ in range(ANNOUNCED_MAX):
            try:
                self.hold_service.notify((arrival.topic, arrival.queue_id), visible_end, arrival.tags_code, outbox)
            except FAULTS:
                # Only under `on_throw=drop_rest`: the rest of that bucket's pulls is lost, as the policy says.
                log.exception("notifying of %s@%d failed", arrival.topic, arrival.queue_id)
            else:
                return

    def start(self, sleep_ms: int) -> None:
        """Poll on a thread of its own from now on."""
        self._thread = self.runtime.spawn("dispatcher", lambda: self._poll(sleep_ms / 1000))

    def stop(self) -> None:
        """End the thread, if there is one."""
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
