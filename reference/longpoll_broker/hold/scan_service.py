"""The scanner: traverses the whole hold table periodically (`PullRequestHoldService.run`).

Only policies with `expiry=scan` use it. Traversal: see `hold.hold_service`.
"""

from __future__ import annotations

import logging

from attrs import define

from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.io.channel import Outbox
from longpoll_broker.io.service_thread import ServiceThread
from longpoll_runtime.recoverable import FAULTS

log = logging.getLogger(__name__)


@define(slots=True, eq=False)
class ScanService(ServiceThread):
    """Sleeps `period_ms` between two rounds."""

    NAME = "scanner"

    hold_service: HoldService
    period_ms: int

    def _run(self) -> None:
        outbox = Outbox()
        while not self._stop.wait(self.period_ms / 1000):
            try:
                self.hold_service.scan(outbox)
            except FAULTS:
                log.exception("a scan was cut short")
            outbox.flush()
