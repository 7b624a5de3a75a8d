"""The files of queues share a limited number of memory maps, and this limit never changes a result."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.stores import SMALL, message, open_store, put_and_dispatch, read_all
from model_tests.support.examples import fewer
from model_tests.support.faults import raising
from model_tests.support.present import present

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.consume_queue import OTHER_MAPS
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.segment import MAPS_LOOKED_AT, Maps, Segment, SegmentList
from longpoll_broker.store.verify import verify
from longpoll_runtime.files import RealFiles, RealMappedFile
from longpoll_runtime.real import RealRuntime

SIZE = 8192
EXTENDED = evolve(SMALL, extended_queues=True, extended_file_size=110)
QUEUES = [("A", 0), ("A", 1), ("A", 2), ("B", 0), ("B", 5)]


def mapped_count(directory: Path) -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(f" {directory}/" in line for line in lines)


def made(directory: Path, count: int, maps: Maps) -> list[Segment]:
    return [Segment(RealFiles(), f"{directory}/{number}", 0, SIZE, maps) for number in range(count)]


def write(segment: Segment, content: bytes) -> None:
    segment.is_dirty = True
    segment.view[: len(content)] = content


def close(segments: list[Segment]) -> None:
    for segment in segments:
        segment.close()


def test_the_oldest_map_is_released_without_data_loss(tmp_path: Path) -> None:
    segments = made(tmp_path, 5, Maps(2))
    assert [each._mapped is not None for each in segments] == [False, False, False, True, True]
    write(segments[0], b"written")
    segments[0].sync(0, 7)
    assert [each._mapped is not None for each in segments] == [True, False, False, False, True]
    assert mapped_count(tmp_path) == 2
    again = [bytes(each.view[:7]) for each in segments]
    assert (again, mapped_count(tmp_path)) == ([b"written", *[bytes(7)] * 4], 2)
    close(segments)


def test_a_view_stays_readable_after_its_map_is_released(tmp_path: Path) -> None:
    segments = made(tmp_path, 1, Maps(9))
    held, part = segments[0].view, segments[0].view[2:4]
    assert segments[0].give_back()
    write(segments[0], b"abcd")
    assert (bytes(held[:4]), bytes(part), mapped_count(tmp_path)) == (b"abcd", b"cd", 2)
    del held
    assert mapped_count(tmp_path) == 2
    del part
    assert mapped_count(tmp_path) == 1
    close(segments)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_replaced_unmapped_file_is_an_error(tmp_path: Path, is_whole: bool) -> None:
    (tmp_path / "0").write_bytes(bytes(SIZE))
    segment = Segment(RealFiles(), f"{tmp_path}/0", 0, SIZE, Maps(9), is_whole=is_whole)
    write(segment, b"ours")
    segment.sync(0, 4)
    assert segment.give_back()
    (tmp_path / "0").rename(tmp_path / "kept")
    (tmp_path / "0").write_bytes(b"theirs".ljust(SIZE, b"x"))
    with pytest.raises(FileNotFoundError, match="another file replaced it"):
        assert segment.view is None
    with pytest.raises(FileNotFoundError, match="another file replaced it"):
        segment.sync(0, 4)
    assert segment.failed is None
    (tmp_path / "kept").rename(tmp_path / "0")
    assert bytes(segment.view[:4]) == b"ours"
    segment.sync(0, 4)
    segment.close()


def test_a_replaced_mapped_file_is_an_error(tmp_path: Path) -> None:
    (segment,) = made(tmp_path, 1, Maps(9))
    write(segment, b"ours")
    (tmp_path / "0").unlink()
    (tmp_path / "0").write_bytes(bytes(SIZE))
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="another file replaced it"):
            segment.sync(0, 4)
        assert segment.is_dirty
    close([segment])


def test_a_dirty_file_keeps_its_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map of a clean file is released before the map of an older dirty file."""
    synced: list[str] = []
    monkeypatch.setattr(RealMappedFile, "sync", lambda mapped, _start, _stop: synced.append(mapped._path))
    maps = Maps(3)
    segments = made(tmp_path, 3, maps)
    write(segments[0], b"x")
    segments += made(tmp_path, 4, maps)[3:]
    assert [each._mapped is not None for each in segments[:3]] == [True, False, False]
    assert synced == []
    segments[0].sync(0, 1)
    segments += made(tmp_path, 7, maps)[4:]
    assert (segments[0]._mapped, synced) == (None, [segments[0].path])
    close(segments)


def test_if_all_files_are_dirty_the_oldest_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all files are dirty, the oldest file is synced, and then its map is released."""
    synced: list[tuple[str, int, int]] = []

    def note(mapped: RealMappedFile, start: int, stop: int) -> None:
        synced.append((mapped._path, start, stop))

    monkeypatch.setattr(RealMappedFile, "sync", note)
    count = MAPS_LOOKED_AT + 3
    maps = Maps(count)
    segments = made(tmp_path, count, maps)
    for segment in segments:
        write(segment, b"x")
    (tmp_path / "more").mkdir()
    segments += made(tmp_path / "more", 1, maps)
    # The new file is clean but last in the list, and the search for a clean file stops after eight files.
    assert synced == [(segments[MAPS_LOOKED_AT].path, 0, SIZE)]
    assert [index for index, each in enumerate(segments) if each._mapped is None] == [MAPS_LOOKED_AT]
    close(segments)


def test_a_map_that_becomes_dirty_is_not_released(tmp_path: Path) -> None:

    class Between(Segment):
        """A file that becomes dirty between the two checks that precede the release of its map."""

        looks = 0

        @property
        def is_dirty(self) -> bool:
            Between.looks += 1
            return Between.looks > 1

        @is_dirty.setter
        def is_dirty(self, value: bool) -> None:
            assert value is False

    segment = Between(RealFiles(), f"{tmp_path}/0", 0, SIZE, Maps(1))
    mapped = segment.mapped
    assert (segment.give_back(), segment._mapped is mapped) == (False, True)
    close([segment])


def test_a_sync_covers_all_earlier_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = SegmentList(RealFiles(), str(tmp_path / "q"), SIZE, maps=Maps(1))
    segment = segments.append(0)
    write(segment, b"x")
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(RealMappedFile, "sync", lambda _mapped, start, stop: synced.append((start, stop)))
    segments.flush(0, 20)
    assert (synced, segment.is_dirty) == ([(0, SIZE)], False)
    monkeypatch.setattr(RealMappedFile, "sync", raising(OSError(errno.EIO, "no disk")))
    write(segment, b"y")
    with pytest.raises(OSError, match="no disk"):
        segments.flush(0, 20)
    assert segment.is_dirty


def test_a_removed_file_is_not_mapped_again_under_a_reused_name(tmp_path: Path) -> None:
    maps = Maps(1)
    segments = SegmentList(RealFiles(), str(tmp_path / "q"), SIZE, maps=maps)
    old = segments.append(0)
    write(old, b"old")
    segments.remove()
    again = SegmentList(RealFiles(), str(tmp_path / "q"), SIZE, maps=maps)
    write(again.append(0), b"new")
    with pytest.raises(FileNotFoundError):
        assert old.view
    assert (old.is_dirty, mapped_count(tmp_path)) == (False, 1)
    again.close()


def test_a_file_that_cannot_be_removed_stays_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = SegmentList(RealFiles(), str(tmp_path / "q"), SIZE, maps=Maps(1))
    segment = segments.append(0)

    def failing(_files: RealFiles, path: str) -> None:
        raise OSError(errno.EIO, "stays", path)

    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "remove", failing)
        with pytest.raises(OSError, match="stays"):
            segments.remove()
    assert segment.give_back()
    assert len(segment.view) == SIZE


def test_a_removed_queue_file_differs_from_a_lost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealFiles, "maps_max", lambda _self: OTHER_MAPS + 1)
    for config in (SMALL, EXTENDED):
        directory = tmp_path / str(config.extended_queues)
        store = open_store(directory, config)
        put_and_dispatch(store, [message("A", queue_id) for queue_id in range(3)])
        store.flush_queues()
        queue = present(store._table.find("A", 0))
        kept, lists = queue.segments.segments, queue.segment_lists()
        assert all(segment.give_back() for each in lists for segment in each.segments)
        for each in lists:
            shutil.move(each.directory, f"{each.directory}-away")
            with pytest.raises(FileNotFoundError):
                store.unit("A", 0, 0)
            shutil.move(f"{each.directory}-away", each.directory)
            assert store.unit("A", 0, 0) is not None
            assert all(segment.give_back() for each in lists for segment in each.segments)
        if queue.extended is not None:
            unit = present(queue.unit(0))
            queue.extended.segments.segments[0].is_gone = True
            assert queue.extended.tags_code(unit[2]) is None
        store.delete_topic("A")
        queue.segments.segments = kept
        assert queue.units_from(0) is None
        store.close()


@pytest.mark.parametrize("config", [SMALL, EXTENDED], ids=["plain", "extended"])
@fewer(3)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "read", "read", "flush", "delete", "reopen"]), st.integers(0, 4)
        ),
        max_size=30,
    ),
    count=st.integers(1, 3),
)
def test_few_maps_make_no_difference(
    tmp_path_factory: pytest.TempPathFactory, config: StoreConfig, steps: list[tuple[str, int]], count: int
) -> None:
    """A store that may have only one, two or three memory maps returns the same results and writes the same files."""
    root = tmp_path_factory.mktemp("maps")
    answers = [
        played(root / f"{number}", config, steps, OTHER_MAPS + number) for number in (count, 10_000)
    ]  # fmt: skip
    assert answers[0] == answers[1]
    shutil.rmtree(root)


def played(directory: Path, config: StoreConfig, steps: list[tuple[str, int]], maps_max: int) -> list[object]:
    answers: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealFiles, "maps_max", lambda _self: maps_max)
        patch.setattr(RealRuntime, "unix_ms", lambda _self: 1_800_000_000_000)
        store = open_store(directory, config)
        for step, choice in steps:
            topic, queue_id = QUEUES[choice]
            if step == "put":
                put, arrivals = put_and_dispatch(store, [message(topic, queue_id, tag=f"t{choice}")] * (choice + 1))
                answers.append((put, arrivals))
            elif step == "read":
                answers.append([(place, store.ends(*place), read_all(store, *place)) for place in QUEUES])
                answers.append([store.unit(*place, choice) for place in QUEUES])
            elif step == "flush":
                store.flush_queues()
            elif step == "delete":
                store.delete_topic(topic)
            else:
                store.close() if choice % 2 else store.abandon()
                store = open_store(directory, config)
            assert mapped_count(directory / "consumequeue") <= max(maps_max - OTHER_MAPS, 1)
        store.close()
        assert mapped_count(directory) == 0
    assert verify(RealFiles(), str(directory)).problems == []
    paths = [path for path in sorted(directory.glob("consumequeue*/**/*")) if path.is_file()]
    answers.extend((str(path.relative_to(directory)), path.read_bytes()) for path in paths)
    return answers


def test_a_start_maps_no_file_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads all queues three times and the unit of each record in log order, without mapping a file twice."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message("T", queue_id) for queue_id in range(40)])
    store.close()
    mapped: list[str] = []
    map_file = RealFiles._map

    def noted(files: RealFiles, path: str, *words: Any, **more: Any) -> Any:
        mapped.append(path)
        return map_file(files, path, *words, **more)

    monkeypatch.setattr(RealFiles, "maps_max", lambda _self: OTHER_MAPS + 30)
    monkeypatch.setattr(RealFiles, "_map", noted)
    open_store(tmp_path).close()
    of_queues = [path for path in mapped if "/consumequeue/" in path]
    assert (len(set(of_queues)), len(of_queues)) == (40, 40 + 2 * 10 + 21)


def test_a_read_without_a_map_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read without a map raises an error and skips no message."""
    monkeypatch.setattr(RealFiles, "maps_max", lambda _self: OTHER_MAPS + 1)
    store: MessageStore = open_store(tmp_path)
    put_and_dispatch(store, [message("T", 0), message("T", 1)])
    store.flush_queues()
    assert store.unit("T", 1, 0) is not None
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "_map", raising(OSError(errno.EMFILE, "too many open files")))
        with pytest.raises(OSError, match="too many open files"):
            store.get("T", 0, 0, 1)
        assert store.get("T", 1, 0, 1).offsets == [0]
    assert store.get("T", 0, 0, 1).offsets == [0]


def test_every_write_to_a_queue_marks_it_dirty(tmp_path: Path) -> None:
    store = open_store(tmp_path, EXTENDED)
    put_and_dispatch(store, [message("T")])
    queue = present(store._table.find("T", 0))
    assert queue.extended is not None
    (units,), (extended,) = queue.segments.segments, queue.extended.segments.segments
    assert (units.is_dirty, extended.is_dirty) == (True, True)
    store.flush_queues()
    assert (units.is_dirty, extended.is_dirty) == (False, False)
    while len(queue.extended.segments.segments) == 1:
        store.flush_queues()
        put_and_dispatch(store, [message("T")])
    # The last write to the first extended file adds the mark of the file's end.
    assert extended.is_dirty
    store.flush_queues()
    queue._fill_gap(queue.offset_end + 1)
    assert units.is_dirty
