"""The flush thread: makes the log durable, saves the tables, indexes keys, and tries what failed before again.

One thread that wakes twice a second; idle, it does next to nothing. Leaves out synchronous flushing, which happens
before a send is answered (`service.send.group_commit`). Source: `FlushRealTimeService`,
`FlushConsumeQueueService`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from attrs import define

from longpoll_broker.service.io.service_thread import ServiceThread
from longpoll_broker.service.upkeep.config_files import ConfigFiles
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.sizes import MIB
from longpoll_runtime.faults import FAULTS, KeepGoing

log = logging.getLogger(__name__)

QUEUES_EVERY: Final = 20
"""Consume queues and checkpoint are made durable once in this many rounds (10 s, as Java's thorough flush)."""

QUEUES_SIZE: Final = 32 * MIB
"""Bytes of the log after which they are all the same: what stands behind the checkpoint is read again after a crash."""
INDEX_COUNT: Final = 256
"""Messages indexed before it is asked whether the broker stops."""


@define(slots=True, eq=False)
class FlushService(ServiceThread):
    """Every `period_ms` a round."""

    NAME = "flusher"

    store: MessageStore
    config_files: ConfigFiles
    period_ms: int
    each_round: Mapping[str, Callable[[], None]]
    """More to do in a round, by what it is about; one that raises costs the others nothing."""

    def stop(self) -> None:
        """End the thread and save once more."""
        super().stop()
        self._save()

    def _run(self) -> None:
        rounds = 0
        flushed_queues_end = self.store.log_end
        while not self._stop.wait(self.period_ms / 1000):
            rounds += 1
            for what, do in self.each_round.items():
                with KeepGoing(log, f"{what}: this round was cut short; trying again"):
                    do()
            self._save()
            with KeepGoing(log, "the store could not be made durable; trying again"):
                if self.store.flushed_end < self.store.log_end:
                    self.store.flush()
                grown = self.store.log_end - flushed_queues_end
                if grown >= QUEUES_SIZE or (grown and rounds % QUEUES_EVERY == 0):
                    flushed_queues_end = self.store.log_end
                    self.store.flush_queues()
            self._index()

    def _index(self) -> None:
        """Index what has become visible; queries by key find it from now on without waiting."""
        with KeepGoing(log, "messages could not be indexed; trying again"):
            while not self.store.index(INDEX_COUNT) and not self._stop.is_set():
                pass

    def _save(self) -> None:
        try:
            self.config_files.save()
        except FAULTS:
            log.exception("config files could not be saved; trying again")
