"""The table of queues, their shared memory maps, missing units that a start fills in, and unsupported parts of 5.x."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, read_all
from model_tests.support.present import present
from msgspec.structs import replace

from longpoll.cli import main
from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError, TopicLeavingError
from longpoll_broker.store.consume_queue import (
    MAPS_MAX,
    OTHER_MAPS,
    UNIT_SIZE,
    ConsumeQueue,
    QueueTable,
    Topic,
    inner_places,
)
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.store.verify import verify
from longpoll_protocol.log_record import Record
from longpoll_protocol.properties import INNER_OFFSETS, INNER_QUEUES
from longpoll_runtime.files import RealFiles

EXTENDED = evolve(SMALL, extended_queues=True)


def table_of(store: Path, config: StoreConfig = SMALL, *, lengthen: bool = False) -> QueueTable:
    return QueueTable(RealFiles(), str(store), config, threading.Lock(), lengthen=lengthen)


def write(store: Path, topic: str, queue: str, size: int = SMALL.consume_queue_file_size) -> Path:
    directory = store / "consumequeue" / topic / queue
    directory.mkdir(parents=True)
    (directory / ("0" * 20)).write_bytes(bytes(size))
    return directory


def places(table: QueueTable) -> list[tuple[str, int]]:
    return [(queue.topic, queue.queue_id) for queue in table.all()]


def close(table: QueueTable) -> None:
    for queue in table.all():
        for segments in queue.segment_lists():
            segments.close()


def test_a_topic_has_its_name_as_encoded_in_a_record() -> None:
    assert Topic("TopicA").part == b"\x06TopicA"
    assert Topic("Größe").part == b"\x07" + "Größe".encode()


def test_queues_of_a_directory(tmp_path: Path) -> None:
    """A directory counts as a queue if its name is a number and it contains files."""
    for topic, queue in (("A", "0"), ("A", "12"), ("B", "3"), ("B", "lost"), ("B", "\N{ARABIC-INDIC DIGIT THREE}")):
        write(tmp_path, topic, queue)
    (tmp_path / "consumequeue" / "A" / "7").mkdir()
    table = table_of(tmp_path)
    assert (places(table), table.find("A", 0)) == ([], None)
    table.load()
    assert places(table) == [("A", 0), ("A", 12), ("B", 3)]
    found = present(table.find("A", 12))
    assert (found.topic, found.queue_id) == ("A", 12)
    assert [table.find(*place) for place in (("A", 7), ("B", 0), ("C", 0))] == [None, None, None]
    assert places(table) == [("A", 0), ("A", 12), ("B", 3)]
    (tmp_path := tmp_path / "next").mkdir()
    write(tmp_path, "T", "0")
    for name in ("stray", "T/note", "T/7"):
        (tmp_path / "consumequeue" / name).write_text("x")
    table = table_of(tmp_path)
    table.load()
    assert places(table) == [("T", 0)]


def test_a_queue_is_created_with_its_first_unit(tmp_path: Path) -> None:
    """The files of a queue are created when its first unit is written; extended units have separate files."""
    table = table_of(tmp_path)
    first = table.make("T", 2)
    topic = table.topics["T"]
    assert table.make("T", 2) is first is table.find("T", 2)
    second = table.make("T", 3)
    assert (second is first, table.topics["T"] is topic) == (False, True)
    assert topic.queues == {2: first, 3: second}
    assert first.segments.directory == f"{tmp_path}/consumequeue/T/2"
    assert first.segments.size == SMALL.consume_queue_file_size
    assert first.extended is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path := tmp_path / "next").mkdir()
    queue = table_of(tmp_path, EXTENDED).make("T", 2)
    assert [(each.directory, each.size) for each in queue.segment_lists()] == [
        (f"{tmp_path}/consumequeue/T/2", EXTENDED.consume_queue_file_size),
        (f"{tmp_path}/consumequeue_ext/T/2", EXTENDED.extended_file_size),
    ]


def test_only_a_crash_explains_a_short_file(tmp_path: Path) -> None:
    write(tmp_path, "T", "0", size=40)
    with pytest.raises(StoreUserError, match="has 40 bytes"):
        table_of(tmp_path).load()
    table = table_of(tmp_path, lengthen=True)
    table.load()
    assert places(table) == [("T", 0)]


def test_removed_topics_and_queues(tmp_path: Path) -> None:
    """If the store removes a topic from its table, the topic's files stay until they are removed explicitly."""
    for topic, queue in (("A", "0"), ("A", "1"), ("B", "0")):
        write(tmp_path, topic, queue)
    table = table_of(tmp_path)
    table.load()
    assert table.forget("C") == []
    queues = table.forget("A")
    assert [(queue.topic, queue.queue_id) for queue in queues] == [("A", 0), ("A", 1)]
    assert (places(table), table.forget("A")) == ([("B", 0)], [])
    files = [path for path in sorted((tmp_path / "consumequeue").rglob("*")) if path.is_file()]
    assert len(files) == 3
    table.remove_files(queues)
    assert [path.exists() for path in files] == [False, False, True]
    (tmp_path := tmp_path / "next").mkdir()
    for queue in ("0", "1", "2", "3"):
        write(tmp_path, "T", queue)
    table = table_of(tmp_path)
    table.load()
    assert sorted(queue.queue_id for queue in table.forget("T", {1, 9})) == [1]
    assert places(table) == [("T", 0), ("T", 2), ("T", 3)]
    kept = table.topics["T"]
    assert [queue.queue_id for queue in table.forget("T", {0})] == [0]
    assert table.topics == {"T": kept}
    assert sorted(queue.queue_id for queue in table.forget("T", {2, 3})) == [2, 3]
    assert table.topics == {}


def test_leftover_files_are_removed_before_a_queue_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "T", "0") / ("0" * 20)
    write(tmp_path, "T", "1")
    table = table_of(tmp_path)
    table.load()

    def failing(segments: SegmentList, count: int | None = None) -> None:
        raise OSError(errno.EIO, f"{segments.directory} stays")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentList, "remove", failing)
        with pytest.raises(OSError, match="T/0 stays"):
            table.remove_files(table.forget("T", {0}))
        with pytest.raises(OSError, match="T/0 stays"):
            table.make("T", 0)
        assert table.find("T", 1) is table.make("T", 1)
    assert (places(table), file.exists()) == ([("T", 1)], True)
    table.make("T", 0)
    assert (places(table), file.exists()) == ([("T", 1), ("T", 0)], False)


def test_removed_names_do_not_return_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The removal of names is synced, because a power cut could restore a deleted topic's messages."""
    for queue_name in ("0", "1"):
        write(tmp_path, "T", queue_name)
    table = table_of(tmp_path)
    table.load()
    table.make("T", 2)
    synced: list[str] = []
    monkeypatch.setattr(RealFiles, "sync_directory", lambda _files, path: synced.append(path))
    table.remove_files(table.forget("T"))
    # The third queue never had a file, so it has no directory either.
    assert synced == [f"{tmp_path}/consumequeue/T/0", f"{tmp_path}/consumequeue/T/1"]


def test_a_queue_whose_removal_fails_does_not_keep_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = [write(tmp_path, "T", queue_name) for queue_name in ("0", "1", "2")]
    table = table_of(tmp_path)
    table.load()
    remove = SegmentList.remove

    def failing(segments: SegmentList, count: int | None = None) -> None:
        if segments.directory.endswith(("/0", "/1")):
            raise OSError(errno.EIO, f"queue {segments.directory[-1]} stays")
        remove(segments, count)

    monkeypatch.setattr(SegmentList, "remove", failing)
    queues = table.forget("T")
    with pytest.raises(OSError, match="queue 0 stays"):
        table.remove_files(queues)
    assert [len(list(directory.iterdir())) for directory in directories] == [1, 1, 0]
    for queue in queues:
        queue.segments.close()


def test_leftover_files_are_removed_before_a_name_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "T", "0") / ("0" * 20)
    table = table_of(tmp_path)
    table.load()

    def failing(segments: SegmentList, count: int | None = None) -> None:
        raise OSError(errno.EIO, f"{segments.directory} stays")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentList, "remove", failing)
        for use in (lambda: table.remove_files(table.forget("T")), lambda: table.make("T", 1), lambda: table.remove_left("T")):  # noqa: E501 - three uses  # fmt: skip
            with pytest.raises(OSError, match="T/0 stays"):
                use()
            assert table.left == {"T"}
        table.make("U", 0)
    assert (places(table), file.exists()) == ([("U", 0)], True)
    table.make("T", 1)
    assert (places(table), file.exists(), table.left) == ([("U", 0), ("T", 1)], False, set())
    table.remove_left("T")
    assert table.find("T", 1) is not None


def test_a_topic_being_deleted_is_hidden_and_may_return(tmp_path: Path) -> None:
    write(tmp_path, "T", "0")
    table = table_of(tmp_path)
    table.load()
    queue = table.find("T", 0)
    table.leave("T")
    table.leave("T")
    table.leave("U")
    assert (table.find("T", 0), list(table.topics), list(table.leaving)) == (None, [], ["T"])
    assert places(table) == [("T", 0)]
    for queue_id in (0, 1):
        with pytest.raises(TopicLeavingError, match="the broker is deleting the topic T") as raised:
            table.make("T", queue_id)
        assert raised.value.errno == errno.EBUSY
    table.stay("T")
    assert (table.find("T", 0), table.make("T", 0), table.leaving) == (queue, queue, {})


@pytest.mark.parametrize(
    ("maps_max", "count"),
    [(OTHER_MAPS + 6, 6), (OTHER_MAPS + MAPS_MAX + 1, MAPS_MAX), (OTHER_MAPS + 1, 1), (OTHER_MAPS, 1), (100, 1)],
)
def test_files_get_the_remaining_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maps_max: int, count: int
) -> None:
    monkeypatch.setattr(RealFiles, "maps_max", lambda _self: maps_max)
    table = table_of(tmp_path)
    assert table._maps.count_max == count


@pytest.mark.parametrize("config", [SMALL, EXTENDED], ids=["plain", "extended"])
def test_all_queue_files_share_the_map_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: StoreConfig
) -> None:
    monkeypatch.setattr(RealFiles, "maps_max", lambda _self: OTHER_MAPS + 3)
    for queue_id in range(5):
        write(tmp_path, "A", str(queue_id))
    table = table_of(tmp_path, config)
    table.load()
    lists = [each for queue in table.all() for each in queue.segment_lists()]
    for each in lists:
        if not each.segments:
            each.append(0)
    segments = [segment for each in lists for segment in each.segments]
    assert {len(segment.view) for segment in segments} <= {config.consume_queue_file_size, config.extended_file_size}
    assert len(segments) == (10 if config.extended_queues else 5)
    assert sum(segment._mapped is not None for segment in segments) == 3


COUNT = 25
UNITS_A_FILE = SMALL.consume_queue_file_size // UNIT_SIZE


def holed(store: Path, offsets: range, content: bytes = bytes(UNIT_SIZE)) -> None:
    """Create a closed store in which queue 0 of topic T lacks the units at `offsets`."""
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
    ids=["a unit", "the first units", "units in two files", "a whole file", "the last unit but one"],
)  # fmt: skip
def test_missing_units_are_found_and_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture, offsets: range) -> None:
    holed(tmp_path, offsets)
    store = open_store(tmp_path)
    assert [len(read_all(store, "T", queue_id)) for queue_id in (0, 1)] == [COUNT, COUNT]
    assert store.put(message()).queue_offset == COUNT
    store.close()
    assert f"{tmp_path}/consumequeue/T/0 lacks units: all" in caplog.text
    assert verify(RealFiles(), str(tmp_path)).problems == []


def test_a_stale_unit_after_the_end_is_not_a_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


LIGHT = evolve(SMALL, multi_dispatch=True, light_queues=True)
DEVICE = "%LMQ%device.1"
FILE = "0" * 20
PARTS = {
    "batchconsumequeue": (f"batchconsumequeue/B/0/{FILE}", "batch consume queues"),
    "consumequeue_r": ("consumequeue_r/CURRENT", "consume queues in RocksDB"),
    "compaction": ("compaction/compactionLog/C/0/x", "compacted topics"),
    "config/topics": ("config/topics/CURRENT", "a RocksDB database"),
    "dledger-n0": (f"dledger-n0/data/{FILE}", "a log of DLedger"),
    "transrocksdb": ("transrocksdb/CURRENT", "a RocksDB database"),
}


EMPTY_PARTS = {
    "rocksdbstore/CURRENT": b"MANIFEST-000005\n",
    "rocksdbstore/MANIFEST-000005": b"the column families",
    "rocksdbstore/OPTIONS-000011": b"[Version]",
    "rocksdbstore/000004.log": b"",
    "compaction/position-checkpoint": b'{\n\t"empty":true,\n\t"queueOffsetMap":{}\n}',
    "compaction/position-checkpoint.bak": b'{"queueOffsetMap":{},"empty":true}',
    "compaction/compactionLog/C/0/" + FILE: bytes(3_000_000),
    "batchconsumequeue/B/0/" + FILE: bytes(4_000),
    "consumequeue_ext/T/0/" + FILE: bytes(4_000),
    "dledger-n0/index/" + FILE: bytes(4_000),
    "config/topics/CURRENT": b"MANIFEST-000001\n",
    "config/topics/MANIFEST-000001": b"x",
}
"""Files that brokers of 5.x create in their RocksDB and similar directories before they store any data there."""
HELD_BY = {
    "rocksdbstore": {"rocksdbstore/000004.log": b"a row"},
    "config/topics": {"config/topics/000007.sst": b"rows"},
    "compaction": {"compaction/position-checkpoint": b'{"empty":false,"queueOffsetMap":{"C-0":3}}'},
    "batchconsumequeue": {"batchconsumequeue/B/0/" + FILE: bytes(2_000_000) + b"unit" + bytes(2_000_000)},
    "dledger-n0": {"dledger-n0/data/" + FILE: b"entry"},
}
"""Maps each directory to a file in it that contains data."""


def filled(store: Path) -> None:
    opened = open_store(store)
    put_and_dispatch(opened, [message()])
    opened.close()


@pytest.mark.parametrize("part", PARTS)
def test_a_store_with_parts_that_are_not_read_is_refused_and_never_sound(tmp_path: Path, part: str) -> None:
    path, what = PARTS[part]
    filled(tmp_path)
    file = tmp_path / path
    (tmp_path / part).mkdir(parents=True)
    assert verify(RealFiles(), str(tmp_path)).unread == []
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    with pytest.raises(StoreUserError, match=f"has {what} in {part}, which this broker does not read"):
        open_store(tmp_path)
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before
    shown = CliRunner().invoke(main, ["store", "verify", str(tmp_path)])
    assert (shown.exit_code, "sound" in shown.output) == (3, False)
    assert f"{part} was not checked" in " ".join(shown.output.split())


@pytest.mark.parametrize("part", [None, *HELD_BY])
def test_the_contents_of_a_part_decide_whether_it_is_supported(tmp_path: Path, part: str | None) -> None:
    filled(tmp_path)
    for path, content in (EMPTY_PARTS | HELD_BY.get(part or "", {})).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    assert [each.path for each in verify(RealFiles(), str(tmp_path)).unread] == [part] * (part is not None)
    shown = CliRunner().invoke(main, ["store", "verify", str(tmp_path)])
    if part is None:
        open_store(tmp_path).close()
        assert shown.exit_code == 0
        return
    assert shown.exit_code == 3
    with pytest.raises(StoreUserError, match=f"in {part}, which"):
        open_store(tmp_path)


def test_ignored_extended_queues_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    extended = evolve(SMALL, extended_queues=True)
    opened = open_store(tmp_path, extended)
    put_and_dispatch(opened, [message()])
    opened.close()
    with caplog.at_level(logging.WARNING):
        open_store(tmp_path, extended).close()
        assert "enableConsumeQueueExt" not in caplog.text
        open_store(tmp_path).close()
    assert "set enableConsumeQueueExt=true" in caplog.text
    assert [part.path for part in verify(RealFiles(), str(tmp_path)).unread] == ["consumequeue_ext"]


@pytest.mark.parametrize("name", [DEVICE, "%LMQ%a b", "%LMQ%ü", "%LMQ%" + "x" * 250], ids=len)
@pytest.mark.parametrize("crashed", [False, True])
def test_a_light_queue_may_have_any_name_of_a_directory(tmp_path: Path, name: str, crashed: bool) -> None:
    """As in RocketMQ, a light queue may have any name that is valid for a directory."""
    store = open_store(tmp_path, LIGHT)
    sent = replace(message(properties={INNER_QUEUES: name}), inner_queues=((name, 0),))
    put_and_dispatch(store, [sent])
    if crashed:
        store.flush_queues()
        store.abandon()
    else:
        store.close()
    for config in (LIGHT, LIGHT) if crashed else (SMALL, LIGHT):
        again = open_store(tmp_path, config)
        assert again.visible_end(name, 0) == 1
        again.close()
        assert verify(RealFiles(), str(tmp_path)).problems == []


def places_of(names: str, offsets: str) -> list[tuple[str, int, int]]:
    properties = f"{INNER_QUEUES}\x01{names}\x02{INNER_OFFSETS}\x01{offsets}".encode()
    record = Record(100, 0, 0, 7, 0, 5, 700, 0, 0, b"", 1_000, b"", 0, 0, memoryview(b""), "T", properties)
    return inner_places(record, light=True)


def test_an_additional_queue_with_an_unsafe_name_is_skipped() -> None:
    assert places_of(f"%LMQ%../x,../x,a.b,U,{DEVICE}", "1,2,3,4,5") == [("U", 7, 4), (DEVICE, 0, 5)]
    assert places_of("%LMQ%" + "x" * 251 + ",%LMQ%\x07,%LMQ%", "1,2,3") == [("%LMQ%", 0, 3)]
    assert places_of("U,V", "1") == []


def test_the_zeros_behind_a_queue_are_not_read_as_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied store may have 6 MB of zeros after a queue, and reading them would take most of a second."""
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
