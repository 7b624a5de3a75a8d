"""The short loop of a plain read gives what the long one gives."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.config import StoreConfig
from longpoll_broker.core.read import GetResult
from longpoll_broker.store import selection
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.testing.stores import message, open_store

MESSAGES = 400
SIZES = (1, 40, 900)


def _config(**settings: Any) -> StoreConfig:
    return StoreConfig(commit_log_file_size=64 * 1024, consume_queue_file_size=1_000, **settings)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three queues whose messages lie mixed over several small files of log and queue."""
    made = open_store(str(tmp_path_factory.mktemp("store")), _config())
    for number in range(MESSAGES):
        # Many of one queue, then turns: long runs as well as single records.
        queue = number // 50 % 3 if number % 100 < 70 else number % 3
        made.put(message("T", queue, bytes(SIZES[number % 3])))
    made.dispatch(MESSAGES)
    yield made
    made.close()


def _read(store: MessageStore, config: StoreConfig, place: tuple[int, int, int], *, quick: bool) -> GetResult:
    """One read of (queue, offset, count), with the short loop or without it."""
    queue_id, offset, count_max = place
    queue = store._table.find("T", queue_id)
    assert queue is not None
    # A filter that lets everything through means the same and takes the long loop.
    matches = (None, None) if quick else (lambda _code: True, None)
    return selection.read_queue(store._log, queue, config, offset, count_max, matches=matches)


def _plain(result: GetResult) -> tuple[Any, ...]:
    records = [bytes(record) for record in result.records]
    return (*(getattr(result, name) for name in msgspec.structs.asdict(result) if name != "records"), records)


PLACES = st.tuples(st.integers(0, 2), st.integers(0, 160), st.integers(0, 70))
LIMITS = st.tuples(st.integers(1, 40), st.sampled_from([1, 300, 2_000, 100_000]), st.sampled_from([1, 20_000, 10**9]))


@given(PLACES, LIMITS)
def test_both_loops_give_the_same(
    store: MessageStore, place: tuple[int, int, int], limits: tuple[int, int, int]
) -> None:
    """Messages, slices, status, next offset, and whether the reader is far behind; over files, limits and ends."""
    count, size, memory = limits
    config = _config(
        transfer_count_max_in_memory=count, transfer_bytes_max_in_memory=size, memory_size=memory, memory_ratio_max=100
    )

    assert _plain(_read(store, config, place, quick=False)) == _plain(_read(store, config, place, quick=True))
