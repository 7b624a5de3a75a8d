"""Finds tests that read an acknowledged message before it is visible: `pytest -p model_tests.slow_dispatcher ...`.

Under `notify=dispatcher_poll` a thread makes messages visible some time after their acknowledgement. The thread polls
every millisecond, so a test that does not wait for it nearly always passes, and fails only on a busy machine. With this
plugin every dispatcher thread in the process sleeps `PAUSE_MS` between two rounds, and tests must still pass. Broker
processes and virtual clocks are not slowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from longpoll_broker.hold.hold_service import DispatchService
from longpoll_runtime.real import RealRuntime

PAUSE_MS: Final = 100
"""Longer than several requests take, and much shorter than the time limits of tests."""


@pytest.fixture(autouse=True, scope="session")
def _dispatchers_are_slow() -> Iterator[None]:
    start = DispatchService.start

    def start_slow(service: DispatchService, sleep_ms: int) -> None:
        start(service, PAUSE_MS if type(service.runtime) is RealRuntime else sleep_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DispatchService, "start", start_slow)
        yield
