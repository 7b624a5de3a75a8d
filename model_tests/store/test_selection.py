"""The short loop of a plain read gives what the long one gives."""

from __future__ import annotations

import pathlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.config import StoreConfig
from longpoll_broker.core.read import GetResult, GetStatus
from longpoll_broker.store import selection
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.queues.consume_queue import UNIT
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


def test_a_common_read_takes_the_short_loop(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else there would be nothing to compare: with the long loop's step broken, a plain read still works."""
    monkeypatch.setattr(selection._Scan, "_take", lambda *_: 1 / 0)

    found = _read(store, _config(memory_size=10**9), (0, 0, 16), quick=True)
    assert (found.status, len(found.offsets)) == (GetStatus.FOUND, 16)
    with pytest.raises(ZeroDivisionError):
        _read(store, _config(memory_size=10**9), (0, 0, 16), quick=False)


def test_a_short_loop_without_its_limit_is_seen(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: it takes one message too many."""
    right = selection._read_unfiltered
    config = _config(memory_size=10**9)
    monkeypatch.setattr(
        selection,
        "_read_unfiltered",
        lambda log, config, offset, units, count_max, ends: right(log, config, offset, units, count_max + 1, ends),
    )

    short, long = (_read(store, config, (0, 0, 4), quick=quick) for quick in (True, False))
    assert len(short.offsets) == 5
    assert _plain(short) != _plain(long)


class Nothing:
    """A filter by properties that lets nothing through, and counts what it has looked at."""

    def __init__(self, size: int) -> None:
        self.expression = "x" * size
        self.looked = 0

    def matches_properties(self, _lookup: object) -> bool:
        """No."""
        self.looked += 1
        return False


def _looked_at(directory: pathlib.Path, expression_size: int, properties_size: int, count: int = 40) -> int:
    """At how many messages with such properties one read looks; it tells where it stopped, and the next goes on."""
    store = open_store(directory, StoreConfig(commit_log_file_size=2 << 20))
    for _ in range(count):
        store.put(message("T", 0, b"", properties={"k": "v" * (properties_size - 2)}))
    store.dispatch(count)
    wanted = Nothing(expression_size)
    result = store.get("T", 0, 0, 32, (None, wanted))
    assert (result.status, result.offset_next) == (GetStatus.NO_MATCHED_MESSAGE, wanted.looked)
    first = wanted.looked
    if first < count:
        assert store.get("T", 0, first, 32, (None, wanted)).offset_next > first
    store.close()
    return first


@pytest.mark.parametrize(("expression_size", "properties_size"), [(60, 300), (60, 30_000), (4_000, 30)])
def test_what_a_read_usually_looks_through_is_no_limit(
    expression_size: int, properties_size: int, tmp_path: pathlib.Path
) -> None:
    """Short expressions over long properties, and long ones over short."""
    assert _looked_at(tmp_path, expression_size, properties_size) == 40


def test_a_long_expression_over_long_properties_ends_a_read(tmp_path: pathlib.Path) -> None:
    """As soon as that has cost what 800 messages may."""
    assert _looked_at(tmp_path, 4_000, 30_000) == -(-selection.WORK_MAX // (4_000 * (selection.LOOK_SIZE + 30_000)))


def test_planted_a_read_without_that_limit_is_noticed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at all of them."""
    monkeypatch.setattr(selection, "WORK_MAX", 1 << 60)
    assert _looked_at(tmp_path, 4_000, 30_000) == 40


def test_who_asks_for_very_many_has_no_more_units_looked_at(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that lets nothing through stops there, whatever number was asked for."""
    monkeypatch.setattr(selection, "SCAN_COUNT_MAX", 30)
    store = open_store(tmp_path, StoreConfig(commit_log_file_size=64 * 1024))
    for _ in range(40):
        store.put(message("T", 0, b""))
    store.dispatch(40)
    assert store.get("T", 0, 0, 2**31 - 1, (lambda _code: False, None)).offset_next == 30
    assert store.get("T", 0, 30, 2**31 - 1, (lambda _code: False, None)).offset_next == 40
    store.close()


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_are_read_from_the_disk_as_may_be(count: int, store: MessageStore) -> None:
    """Whatever their size; from memory there is a limit of its own."""
    config = _config(
        transfer_count_max_on_disk=count, transfer_bytes_max_on_disk=10**9, transfer_count_max_in_memory=9,
        memory_size=1, memory_ratio_max=100,
    )  # fmt: skip
    for quick in (True, False):
        assert len(_read(store, config, (0, 0, 32), quick=quick).offsets) == count


def test_units_that_a_damaged_queue_has_lead_nowhere_else(tmp_path: pathlib.Path) -> None:
    """One whose record would end behind the log hides the rest of its file; one of no size is passed over."""
    config = _config(memory_size=10**9, memory_ratio_max=100)
    damaged = open_store(tmp_path, config)
    sizes = [damaged.put(message("T", 0, b"x" * 50)).size for _ in range(3)]
    damaged.dispatch(3)
    queue = damaged._table.find("T", 0)
    assert queue is not None
    units = queue.segments.segments[0].view
    end = damaged._log.end
    whole = [bytes(damaged._log.slice(0, sizes[0]) or b"")]
    cases: tuple[tuple[tuple[int, int], tuple[int, int], list[bytes]], ...] = (
        ((end - 10, 1_000), (0, sizes[0]), []),
        ((0, sizes[0]), (sizes[0], 0), whole),
    )
    for first, second, found in cases:
        UNIT.pack_into(units, 0, *first, 0)
        UNIT.pack_into(units, UNIT.size, *second, 0)
        short, long = (_plain(_read(damaged, config, (0, 0, 2), quick=quick)) for quick in (True, False))
        assert short == long
        assert short[-1] == found
    del units
    damaged.close()
