"""What a notifier's thread meets does not end it: the scanner scans again, the dispatcher tries again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from attrs import define

from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.service.pull.dispatch_service import DispatchService
from longpoll_broker.service.pull.pull_events import PullEvents
from longpoll_broker.service.pull.scan_service import ScanService
from longpoll_runtime.real import RealRuntime

FAULTS = (OSError("no room on the disk"), ValueError("a number that does not fit"), RuntimeError("a slip"))


@define
class Rounds:
    """A stop that comes after so many rounds, and a table whose scans raise."""

    error: Exception
    left: int
    scans: int = 0

    def wait(self, _timeout_s: float) -> bool:
        self.left -= 1
        return self.left < 0

    def scan(self, _outbox: Outbox) -> None:
        self.scans += 1
        raise self.error


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_scan_that_raises_is_not_the_last(error: Exception) -> None:
    rounds = Rounds(error, left=3)
    service = ScanService(RealRuntime(), cast("Any", rounds), 10)
    service._stop = cast("Any", rounds)
    service._run()

    assert rounds.scans == 3


@define
class Damaged:
    """A store in which one message waits and cannot be made visible."""

    error: Exception
    tries: int = 0
    dispatched_end: int = 0
    dispatchable_end: int = 1

    def dispatch(self, _limit: int) -> Sequence[object]:
        self.tries += 1
        raise self.error


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_what_cannot_be_made_visible_is_tried_again_at_the_next_append(error: Exception) -> None:
    store: Any = Damaged(error)
    held: Any = ()
    service = DispatchService(RealRuntime(), store, held, PullEvents(), notifies=True)
    service.run(Outbox())
    service.run(Outbox())

    assert store.tries == 2
