"""Store times: whatever the wall clock does, they never go back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.testing.stores import SMALL, message
from longpoll_runtime.real import RealRuntime


class SteppingRuntime(RealRuntime):
    """A wall clock that a test sets."""

    now_ms = 2_000

    def unix_ms(self) -> int:
        """What it was set to."""
        return self.now_ms


def store_times(directory: Path) -> list[int]:
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


def test_store_times_never_go_back(tmp_path: Path) -> None:
    """A search by time and a recovery go by them; a clock that was set back stands still until it is caught up."""
    times = store_times(tmp_path)

    assert times == sorted(times)
    assert times == [2_000] * 6 + [2_200] + [2_200] * 7


def prepared(store: MessageStore) -> int:
    """The store time of a prepared batch."""
    batch = store.prepare("T", 0)
    batch.add([message(), message()])
    return store.put_prepared(batch).store_ms


WAYS: Final[dict[str, Callable[[MessageStore], list[int]]]] = {
    "put": lambda store: [store.put(message()).store_ms],
    "put_batch": lambda store: [each.store_ms for each in store.put_batch([message(), message()])],
    "put_prepared": lambda store: [prepared(store)],
    "put_burst": lambda store: [each.store_ms for each in store.put_burst([message(), message()])],
}


@pytest.mark.parametrize("later", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_each_way_to_store_is_remembered_by_every_other(first: str, later: str, tmp_path: Path) -> None:
    """The clock is set back between two of them."""
    runtime = SteppingRuntime()
    store = MessageStore.open(runtime, str(tmp_path), SMALL)
    # A burst needs a queue that is there.
    store.put(message())
    runtime.now_ms = 5_000
    times = WAYS[first](store)
    runtime.now_ms = 4_000
    times += WAYS[later](store)
    store.close()

    assert len(times) >= 2
    assert set(times) == {5_000}
