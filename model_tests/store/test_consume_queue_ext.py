"""The extended queue: its bytes, what readers see through it, recovery and retention."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.queues.consume_queue_ext import ADDRESS_MAX, ConsumeQueueExt, is_address
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.store.verify import verify
from longpoll_broker.testing.stores import SMALL, message, open_store, put_and_dispatch, read_all
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.tags import tags_code
from longpoll_runtime.files import RealFiles

CONFIG = evolve(SMALL, extended_queues=True, extended_file_size=110)
"""Files with room for five units."""
TAGS = ["red", "blue", None]


def opened(directory: Path) -> ConsumeQueueExt:
    """An extended queue by itself."""
    return ConsumeQueueExt(SegmentList(RealFiles(), str(directory), 110))


def test_the_layout_is_java_s(tmp_path: Path) -> None:
    """Units stand one after the other; where one does not fit with four bytes to spare, -1 ends the file."""
    queue = opened(tmp_path)
    addresses = [queue.put(number, 1000 + number) for number in range(7)]
    assert [address + 2**63 for address in addresses] == [0, 20, 40, 60, 80, 110, 130]
    first, second = (tmp_path / f"{start:020}" for start in (0, 110))
    expected = b"".join(struct.pack(">hqqh", 20, number, 1000 + number, 0) for number in range(5))
    assert first.read_bytes() == expected + struct.pack(">h", -1) + bytes(8)
    assert second.read_bytes()[20:40] == struct.pack(">hqqh", 20, 6, 1006, 0)
    assert [queue.tags_code(address) for address in addresses] == list(range(7))
    for nowhere in (addresses[-1] + 20, addresses[-1] + 10_000, -(2**63) + 5):
        assert queue.tags_code(nowhere) is None
    queue.segments.close()


def test_addresses_are_no_tags() -> None:
    """Every address is below every hash of a tag, which is a signed 32-bit number."""
    assert is_address(-(2**63))
    assert is_address(ADDRESS_MAX)
    assert not any(is_address(tags_code(tag)) for tag in (*TAGS, "polygenelubricants"))
    assert not is_address(-(2**31))


def tags_read(store: MessageStore, tag: str) -> list[int]:
    """Offsets of the messages that a reader with a tag gets."""
    return [
        offset
        for start in range(0, store.visible_end("T", 0), CONFIG.consume_queue_file_size // 20)
        for offset in store.get("T", 0, start, 32, (lambda code: code == tags_code(tag), None)).offsets
    ]


@given(
    tags=st.lists(st.sampled_from(TAGS), max_size=40),
    plain_count=st.integers(0, 15),
    dispatched=st.integers(0, 40),
    ending=st.sampled_from(["close", "kill", "power"]),
)
def test_readers_see_through_it(
    tmp_path_factory: pytest.TempPathFactory, tags: list[str | None], plain_count: int, dispatched: int, ending: str
) -> None:
    """Switched on after some messages, stopped or killed anywhere: every tag finds its messages, old and new ones."""
    root = tmp_path_factory.mktemp("extended")
    store = open_store(root / "0")
    put_and_dispatch(store, [message(tag=tag) for tag in tags[:plain_count]])
    store.close()
    store = open_store(root / "0", CONFIG)
    for tag in tags[plain_count:]:
        store.put(message(tag=tag))
    if dispatched:
        store.dispatch(dispatched)
    if ending == "close":
        store.close()
    else:
        shutil.copytree(root / "0", root / "1")
        store.abandon()
    directory = root / ("0" if ending == "close" else "1")
    if ending == "power":
        for path in (directory / "consumequeue_ext").rglob("0*"):
            if path.is_file():
                path.write_bytes(bytes(110))
    store = open_store(directory, CONFIG)
    for tag in ("red", "blue"):
        assert tags_read(store, tag) == [offset for offset, each in enumerate(tags) if each == tag]
    units = [store.unit("T", 0, offset) for offset in range(len(tags))]
    assert [unit[2] for unit in units if unit is not None] == [tags_code(tag) for tag in tags]
    assert len(read_all(store, "T", 0)) == len(tags)
    store.close()
    assert verify(RealFiles(), str(directory)).problems == []


def test_a_delayed_message_says_when_it_is_due(tmp_path: Path) -> None:
    """The schedule reads due times through the extended queue; where a unit leads nowhere, from the record."""
    store = open_store(tmp_path, CONFIG)
    put, _arrivals = put_and_dispatch(store, [message(SCHEDULE_TOPIC, 2, properties={"DELAY": "3"})])
    due = (put[0].physical_offset, put[0].size, put[0].store_ms + 10_000)
    assert store.unit(SCHEDULE_TOPIC, 2, 0) == due
    store.close()
    for path in (tmp_path / "consumequeue_ext" / SCHEDULE_TOPIC / "2").iterdir():
        path.write_bytes(bytes(110))
    store = open_store(tmp_path, CONFIG)
    assert store.unit(SCHEDULE_TOPIC, 2, 0) == due


def test_it_goes_with_its_queue(tmp_path: Path) -> None:
    """Deleting a topic removes its extended files too; removing expired files those that nothing points into."""
    config = evolve(
        CONFIG, delete_when=";".join(str(hour) for hour in range(24)), file_reserved_hours=0, clean_forcibly=False
    )
    store = open_store(tmp_path, config)
    put_and_dispatch(store, [message(tag="red") for _ in range(100)])
    while not store.index(50):
        pass
    store.flush()
    files = tmp_path / "consumequeue_ext" / "T" / "0"
    before = len(list(files.iterdir()))
    assert store.remove_expired() > 2
    assert len(list(files.iterdir())) < before
    start = store.visible_start("T", 0)
    rest = [*range(start, 100, 10)]
    assert [store.get("T", 0, offset, 1, (lambda code: code == tags_code("red"), None)).offsets for offset in rest] == [
        [offset] for offset in rest
    ]
    store.delete_topic("T")
    assert list(files.iterdir()) == []


def test_a_size_without_room_is_told(tmp_path: Path) -> None:
    """A file that could hold no unit is the user's mistake."""
    with pytest.raises(StoreUserError, match="mappedFileSizeConsumeQueueExt"):
        open_store(tmp_path, evolve(CONFIG, extended_file_size=24))
