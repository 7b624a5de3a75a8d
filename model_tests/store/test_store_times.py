"""Store times: whatever the wall clock does, they never go back."""

from __future__ import annotations

import pathlib

from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.testing.stores import SMALL, message
from longpoll_runtime.real import RealRuntime


class SteppingRuntime(RealRuntime):
    """A wall clock that a test sets."""

    now_ms = 2_000

    def unix_ms(self) -> int:
        """What it was set to."""
        return self.now_ms


def store_times(directory: pathlib.Path) -> list[int]:
    """The store times of messages put in every way there is, while the clock is set back, before and after opening."""
    runtime = SteppingRuntime()
    times: list[int] = []
    for start_ms in (2_000, 1_500):
        runtime.now_ms = start_ms
        store = MessageStore.open(runtime, str(directory), SMALL)
        times.append(store.put(message()).store_ms)
        runtime.now_ms -= 1_000
        times.append(store.put(message()).store_ms)
        times += [result.store_ms for result in store.put_batch([message(), message()])]
        times += [arrival.store_ms for arrival in store.put_burst([message(), message()])]
        runtime.now_ms += 1_200
        times.append(store.put(message()).store_ms)
        store.close()
    return times


def test_store_times_never_go_back(tmp_path: pathlib.Path) -> None:
    """A search by time and a recovery go by them; a clock that was set back stands still until it is caught up."""
    times = store_times(tmp_path)

    assert times == sorted(times)
    assert times == [2_000] * 6 + [2_200] + [2_200] * 7
