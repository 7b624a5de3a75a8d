"""A unit in the middle of a closed queue that is gone: found by the start, which makes the queues anew from the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, read_all

from longpoll_broker.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from longpoll_broker.store.verify import verify
from longpoll_runtime.files import RealFiles

COUNT = 25
UNITS_A_FILE = SMALL.consume_queue_file_size // UNIT_SIZE


def holed(store: Path, offsets: range, content: bytes = bytes(UNIT_SIZE)) -> None:
    """A closed store whose queue T lacks these units."""
    opened = open_store(store)
    put_and_dispatch(opened, [message(queue_id=number % 2) for number in range(2 * COUNT)])
    opened.close()
    for offset in offsets:
        at = offset * UNIT_SIZE
        name = f"{at - at % SMALL.consume_queue_file_size:020}"
        with (store / "consumequeue" / "T" / "0" / name).open("r+b") as file:
            file.seek(at % SMALL.consume_queue_file_size)
            file.write(content)


@pytest.mark.parametrize(
    "offsets", [range(12, 13), range(3), range(9, 11), range(10, 20), range(23, 24)],
    ids=["one", "first", "two files", "a file", "before the last"],
)  # fmt: skip
def test_a_hole_is_found_and_filled(tmp_path: Path, caplog: pytest.LogCaptureFixture, offsets: range) -> None:
    """Every message is there, the next one comes after them, and an error names the queue."""
    holed(tmp_path, offsets)
    store = open_store(tmp_path)
    assert [len(read_all(store, "T", queue_id)) for queue_id in (0, 1)] == [COUNT, COUNT]
    assert store.put(message()).queue_offset == COUNT
    store.close()
    assert f"{tmp_path}/consumequeue/T/0 lacks units before others" in caplog.text
    assert verify(RealFiles(), str(tmp_path)).problems == []


def test_a_queue_that_ends_early_has_no_hole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing stands behind its end; nor does a unit count that lists no record of the queue."""
    holed(tmp_path, range(COUNT, COUNT))
    open_store(tmp_path).close()
    stale = (7).to_bytes(8) + (96).to_bytes(4) + bytes(8)
    with (tmp_path / "consumequeue" / "T" / "0" / f"{2 * SMALL.consume_queue_file_size:020}").open("r+b") as file:
        file.seek((COUNT - 2 * UNITS_A_FILE + 2) * UNIT_SIZE)
        file.write(stale)
    store = open_store(tmp_path)
    assert len(read_all(store, "T", 0)) == COUNT
    store.close()
    assert "lacks units" not in caplog.text


def test_the_zeros_behind_a_queue_are_not_read_as_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 6 MB that a copy has filled with zeros would take most of a second."""
    holed(tmp_path, range(COUNT, COUNT))
    asked: list[int] = []
    unit = ConsumeQueue.unit

    def note(queue: ConsumeQueue, offset: int) -> tuple[int, int, int] | None:
        asked.append(offset)
        return unit(queue, offset)

    monkeypatch.setattr(ConsumeQueue, "unit", note)
    open_store(tmp_path).close()
    assert asked
    assert max(asked) < COUNT
