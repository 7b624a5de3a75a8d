"""The scanner's rounds, and what faults cost the scanner and the dispatcher (its rounds: `test_dispatch_service`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field

from longpoll_broker.hold import scan_service
from longpoll_broker.hold.dispatch_service import DispatchService
from longpoll_broker.hold.pull_events import PullEvents
from longpoll_broker.hold.scan_service import ScanService
from longpoll_broker.io.channel import Outbox
from longpoll_runtime.real import RealRuntime

FAULTS = (OSError("no room on the disk"), ValueError("a number that does not fit"), RuntimeError("a bug"))


@define
class Rounds:
    """A runtime whose thread a test runs, an event that ends it after two rounds, a hold table and a store."""

    error: Exception | None = None
    notes: list[str] = field(factory=list)
    waits: list[float] = field(factory=list)
    body: Callable[[], None] = lambda: None
    dispatched_end: int = 0
    dispatchable_end: int = 1
    is_behind: bool = False

    def spawn(self, _name: str, target: Callable[[], None]) -> None:
        self.body = target

    def event(self) -> Rounds:
        return self

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) > 2

    def scan(self, _outbox: Outbox) -> None:
        self._do("scan")

    def dispatch(self, _limit: int) -> tuple[()]:
        self._do("dispatch")
        return ()

    def _do(self, name: str) -> None:
        self.notes.append(name)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, *FAULTS], ids=lambda error: type(error).__name__)
def test_the_scanner_scans_once_a_period(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits first, and flushes the answers of each round, whatever the round raises."""
    rounds: Any = Rounds(error)

    class Noting(Outbox):
        def flush(self) -> None:
            rounds.notes.append("flush")

    monkeypatch.setattr(scan_service, "Outbox", Noting)
    ScanService(rounds, rounds, 5_000).start()
    rounds.body()
    assert rounds.notes == ["scan", "flush"] * 2
    assert rounds.waits == [5.0] * 3


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_what_cannot_be_made_visible_is_left_for_the_next_run(error: Exception) -> None:
    store: Any = Rounds(error)
    dispatcher = DispatchService(RealRuntime(), store, store, PullEvents(), notifies=True)
    for _append in range(2):
        dispatcher.run(Outbox())
    assert store.notes == ["dispatch"] * 2
    dispatcher.stop()
