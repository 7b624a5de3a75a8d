"""The scanner: goes through the whole hold table once a period (`PullRequestHoldService.run`).

Only policies with `expiry=scan` have one. Leaves out the walk itself (`service.pull.hold_service`).
"""

from __future__ import annotations

import logging

from attrs import define, field

from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.service.pull.hold_service import HoldService
from longpoll_runtime import Event, Runtime, Thread
from longpoll_runtime.faults import FAULTS

log = logging.getLogger(__name__)


@define(slots=True, eq=False)
class ScanService:
    """One thread; it sleeps `period_ms` between two rounds."""

    runtime: Runtime
    hold_service: HoldService
    period_ms: int
    _stop: Event = field(init=False)
    _thread: Thread | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._stop = self.runtime.event()

    def start(self) -> None:
        """Start the thread."""
        self._thread = self.runtime.spawn("scanner", self._run)

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        outbox = Outbox()
        while not self._stop.wait(self.period_ms / 1000):
            try:
                self.hold_service.scan(outbox)
            except FAULTS:
                log.exception("a scan was cut short")
            outbox.flush()
