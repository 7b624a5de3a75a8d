"""The store's public methods for messages, bursts and prepared batches, including refused messages."""

from __future__ import annotations

import base64
import errno
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.plain.plain_store import read_log, read_queues, read_record
from model_tests.support.broker.stores import (
    HOST_V6,
    SMALL,
    StillRuntime,
    message,
    mixed_messages,
    open_store,
    put_and_dispatch,
    read_all,
)
from model_tests.support.examples import fewer
from model_tests.support.faults import raising
from model_tests.support.present import present
from model_tests.support.store import Clock
from msgspec import structs

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.shared.filters import sql_filter
from longpoll_broker.store import queue_builder
from longpoll_broker.store.inspect import StoreDirectory
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, GetStatus, MessageToStore, PutResult
from longpoll_broker.store.queue_builder import QueueBuilder
from longpoll_broker.store.verify import verify
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.log_record import Record
from longpoll_protocol.properties import tags_code
from longpoll_runtime.files import RealFiles, RealMappedFile


def test_stored_messages_are_read_back_equal(tmp_path: Path) -> None:
    messages = mixed_messages(120)
    store = open_store(tmp_path)
    put, arrivals = put_and_dispatch(store, messages)
    assert len(arrivals) == len(messages)
    plain = read_log(tmp_path)
    assert [each["physicalOffset"] for each in plain["records"]] == [result.physical_offset for result in put]
    assert len(plain["blanks"]) > 5, "the log must have rolled over"
    for sent, found, result in zip(messages, plain["records"], put, strict=True):
        assert (found["topic"], found["queueId"], found["flag"]) == (sent.topic, sent.queue_id, 7)
        assert base64.b64decode(found["body"]) == bytes(sent.body)
        assert found["propertiesRaw"].encode() == sent.properties
        assert (found["queueOffset"], found["totalSize"]) == (result.queue_offset, result.size)
        assert found["storeTimestamp"] == result.store_ms
        assert result.msg_id.endswith(f"{result.physical_offset:016X}")
    units = read_queues(tmp_path)
    for sent, result, arrival in zip(messages, put, arrivals, strict=True):
        key = f"{sent.topic}@{sent.queue_id}"
        unit = [result.queue_offset, result.physical_offset, result.size, sent.tags_code]
        assert units[key][result.queue_offset] == unit
        assert (arrival.topic, arrival.queue_id, arrival.offset_end) == (sent.topic, sent.queue_id, unit[0] + 1)
        assert [arrival.physical_offset, arrival.size, arrival.tags_code] == unit[1:]
    for topic, queue_id in store.queues():
        records = [read_record(content) for content in read_all(store, topic, queue_id)]
        assert [each["physicalOffset"] for each in records] == [unit[1] for unit in units[f"{topic}@{queue_id}"]]
    store.close()
    directory = StoreDirectory(RealFiles(), str(tmp_path))
    records_seen = [entry for entry in directory.walk_log() if isinstance(entry, Record)]
    assert [entry.physical_offset for entry in records_seen] == [result.physical_offset for result in put]
    del records_seen
    directory.close()
    assert verify(RealFiles(), str(tmp_path)).problems == []


def test_nothing_is_visible_before_dispatch(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    result = store.put(message())
    assert (store.visible_end("T", 0), store.log_end) == (0, result.log_end)
    assert store.get("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert (store.queues(), len(store.dispatch(10)), store.dispatch(10)) == ([], 1, [])
    assert (store.visible_end("T", 0), store.queues()) == (1, [("T", 0)])


def test_statuses_and_next_offsets(tmp_path: Path) -> None:
    """For each status of getMessage the store returns the same next offset as RocketMQ."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(tag="a" if index < 4 else "b") for index in range(15)])
    asked = {offset: store.get("T", 0, offset, 32) for offset in (-1, 0, 8, 10, 14, 15, 16, 1000)}
    assert {offset: (found.status.name, found.offset_next) for offset, found in asked.items()} == {
        -1: ("OFFSET_TOO_SMALL", 0),
        # A file holds ten units, and a pull never reads across the end of a file.
        0: ("FOUND", 10),
        8: ("FOUND", 10),
        10: ("FOUND", 15),
        14: ("FOUND", 15),
        15: ("OFFSET_OVERFLOW_ONE", 15),
        16: ("OFFSET_OVERFLOW_BADLY", 15),
        1000: ("OFFSET_OVERFLOW_BADLY", 15),
    }
    assert {(found.offset_min, found.offset_max) for found in asked.values()} == {(0, 15)}
    filtered = store.get("T", 0, 4, 32, (lambda code: code == tags_code("a"), None))
    assert (filtered.status, filtered.offset_next, filtered.records) == (GetStatus.NO_MATCHED_MESSAGE, 10, [])
    some = store.get("T", 0, 2, 32, (lambda code: code == tags_code("b"), None))
    assert (some.offsets, some.offset_next) == (list(range(4, 10)), 10)
    by_property = store.get("T", 0, 0, 32, (None, sql_filter("TAGS = 'b'", "SQL92")))
    assert by_property.offsets == list(range(4, 10))


@pytest.mark.parametrize("topic", ["", "../x", "a/b", ".", "..", "x" * 128, "nul\0", "new\nline", "ü" * 64])
def test_bad_topics_are_refused(tmp_path: Path, topic: str) -> None:
    store = open_store(tmp_path)
    with pytest.raises(MessageRefusedError):
        store.put(message(topic))
    assert store.log_end == 0


def test_too_large_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path, evolve(SMALL, message_size_max=5000))
    for refused in (
        message(body=b"x" * 5001),
        message(properties={"k": "v" * 32_767}),
        message(properties={"k": "\0" * 512}),
        message(properties={"k": "v" * 32_762 + "\0"}),
        message(queue_id=-1),
        message(queue_id=2**31),
        message(body=b"x" * 2000),
    ):
        with pytest.raises(MessageRefusedError):
            store.put(refused)
    assert (store.log_end, store.put(message("x" * 127)).queue_offset) == (0, 0)


@pytest.mark.parametrize("value", ["\0", "a \0 byte", "at the end\0", "\0" * 511, "\0at the start"])
def test_properties_with_zero_bytes_are_stored(tmp_path: Path, value: str) -> None:
    store = open_store(tmp_path / "0")
    count = 16
    for size in range(count):
        stripped = message(properties={"k": value})
        stripped = structs.replace(stripped, properties=stripped.properties[:-1], body=b"b" * (size * 61 % 300))
        store.put(stripped)
        killed = tmp_path / "1"
        shutil.rmtree(killed, ignore_errors=True)
        shutil.copytree(tmp_path / "0", killed)
        opened = open_store(killed)
        assert opened.visible_end("T", 0) == size + 1
        opened.close()
        assert verify(RealFiles(), str(killed)).problems == []
    store.dispatch(count)
    for record in read_all(store, "T", 0):
        assert read_record(record)["properties"] == {"k": value}


def test_a_batch_is_stored_in_one_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for size in range(0, 900, 36):
        store.put(message(body=b"x" * size))
        results = store.put_batch([message(body=b"y" * 100, tag="t"), message(body=b"z"), message("U", 1)])
        starts = {result.physical_offset // SMALL.commit_log_file_size for result in results}
        assert (len(starts), results[1].physical_offset) == (1, results[0].log_end)
        assert results[1].queue_offset == results[0].queue_offset + 1
    count = store.visible_end("T", 0)
    while store.dispatched_end < store.log_end:
        store.dispatch(7)
    assert (count, store.visible_end("T", 0), store.visible_end("U", 1)) == (0, 75, 25)
    store.close()
    assert verify(RealFiles(), str(tmp_path)).problems == []
    assert len(read_log(tmp_path)["blanks"]) > 2


def test_a_refused_batch_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    for batch in (
        [message(), message(body=b"x" * 1025)],
        [message(), message(queue_id=-1)],
        [message(body=b"x" * 900) for _ in range(3)],
    ):
        with pytest.raises(MessageRefusedError):
            store.put_batch(batch)
    reserve = RealMappedFile.reserve

    def nearly_full(self: RealMappedFile, start: int, stop: int) -> None:
        if stop > 1500:
            raise OSError(errno.ENOSPC, "No space left on device", "log")
        reserve(self, start, stop)

    monkeypatch.setattr(RealMappedFile, "reserve", nearly_full)
    with pytest.raises(OSError, match="No space"):
        store.put_batch([message(body=b"x" * 500) for _ in range(3)])
    assert store.log_end == 0
    assert [result.queue_offset for result in store.put_batch([message(), message()])] == [0, 1]


def put_until_full(store: MessageStore) -> int:
    """Put messages until the disk is full; returns the number of stored messages."""
    for count in range(1000):
        try:
            store.put(message())
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return count
    raise AssertionError("the disk is not full")


def test_a_full_disk_leaves_no_partial_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, [message() for _ in range(5)])
    reserve = RealMappedFile.reserve
    monkeypatch.setattr(RealMappedFile, "reserve", raising(OSError(errno.ENOSPC, "No space left on device", "log")))
    count = put_until_full(store)
    assert count == SMALL.consume_queue_file_size // 20 - 5
    end = store.log_end
    with pytest.raises(OSError, match="No space"):
        store.put(message())
    assert (store.log_end, len(read_all(store, "T", 0))) == (end, 5)
    assert len(store.dispatch(100)) == count
    visible = store.visible_end("T", 0)
    monkeypatch.setattr(RealMappedFile, "reserve", reserve)
    _put, arrivals = put_and_dispatch(store, [message()])
    assert [arrival.offset_end for arrival in arrivals] == list(range(visible + 1, store.visible_end("T", 0) + 1))
    store.close()
    verdict = verify(RealFiles(), str(tmp_path))
    assert (verdict.problems, verdict.messages) == ([], arrivals[-1].offset_end)


def test_a_full_disk_at_a_file_end_can_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    put, _arrivals = put_and_dispatch(store, [message(body=b"x" * 800) for _ in range(2)])
    reserve = RealMappedFile.reserve

    def full(self: RealMappedFile, start: int, stop: int) -> None:
        if start == 0:
            raise OSError(errno.ENOSPC, "No space left on device", "log")
        reserve(self, start, stop)

    monkeypatch.setattr(RealMappedFile, "reserve", full)
    with pytest.raises(OSError, match="No space"):
        store.put(message(body=b"x" * 800))
    assert store.log_end == SMALL.commit_log_file_size > put[-1].log_end
    assert (store.dispatch(10), store.dispatched_end) == ([], store.log_end)
    store.close()
    assert verify(RealFiles(), str(tmp_path)).messages == 2


def test_a_store_can_be_opened_only_once(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from longpoll_broker.errors import StoreUserError\n"
        "from model_tests.support.broker.stores import open_store\n"
        "try:\n    open_store(sys.argv[1]).close()\n"
        "except StoreUserError as error:\n    print(error)\n    sys.exit(2)\n"
    )
    store = open_store(tmp_path)
    with pytest.raises(StoreUserError, match="in use"):
        open_store(tmp_path)
    arguments = [sys.executable, "-c", script, str(tmp_path)]
    other = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert (other.returncode, "in use" in other.stdout) == (2, True), other.stderr
    store.close()
    assert subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60).returncode == 0


@fewer(2)
@given(limits=st.lists(st.integers(1, 9), min_size=1, max_size=8), handed_max=st.integers(0, 6))
def test_records_handed_over_equal_records_read_from_the_log(
    tmp_path_factory: pytest.TempPathFactory, limits: list[int], handed_max: int
) -> None:
    arrivals: list[list[object]] = []
    for count_max in (10_000, handed_max):
        store = open_store(tmp_path_factory.mktemp("store"))
        seen: list[object] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue_builder, "HANDED_COUNT_MAX", count_max)
            for index, limit in enumerate(limits):
                for each in mixed_messages(5 * index + 3)[-5:]:
                    store.put(each)
                seen.extend((each.topic, each.queue_id, each.offset_end, each.size) for each in store.dispatch(limit))
            while store.dispatched_end < store.log_end:
                seen.extend((each.topic, each.queue_id, each.offset_end, each.size) for each in store.dispatch(3))
        store.close()
        arrivals.append(seen)
    assert arrivals[0] == arrivals[1]


def test_properties_are_found_by_queue_offset(tmp_path: Path) -> None:
    """The filter of a held pull looks up the properties of one message."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(queue_id=index % 2, properties={"color": f"c{index}"}) for index in range(6)])
    for index in range(6):
        lookup = present(store.properties_at("T", index % 2, index // 2))
        assert (lookup("color"), lookup("size")) == (f"c{index}", None)
    store.put(message())
    nowhere = (("T", 0, 3), ("T", 0, -1), ("T", 2, 0), ("U", 0, 0))
    assert [store.properties_at(*place) for place in nowhere] == [None] * 4


def test_a_store_can_be_opened_after_a_failed_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    put_and_dispatch(store, [message()] * 5)
    store.abandon()
    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "_recover", raising(OSError(errno.EIO, "the disk failed")))
        for _ in range(2):
            with pytest.raises(OSError, match="the disk failed"):
                open_store(tmp_path)
    store = open_store(tmp_path)
    assert store.visible_end("T", 0) == 5


def store_times(directory: Path) -> list[int]:
    """The store times of messages from every kind of put, while the system clock is set back."""
    runtime = Clock()
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
    """Searches by time and recovery rely on store times that never decrease."""
    times = store_times(tmp_path)
    assert (times, times) == (sorted(times), [2_000] * 6 + [2_200] + [2_200] * 7)


def prepared(store: MessageStore) -> int:
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
def test_store_times_never_decrease_between_kinds_of_appends(first: str, later: str, tmp_path: Path) -> None:
    runtime = Clock()
    runtime.now_ms = 2_000
    store = MessageStore.open(runtime, str(tmp_path), SMALL)
    # A burst is accepted only if its queue exists.
    store.put(message())
    runtime.now_ms = 5_000
    times = WAYS[first](store)
    runtime.now_ms = 4_000
    times += WAYS[later](store)
    store.close()
    assert len(times) >= 2
    assert set(times) == {5_000}


MESSAGES = st.builds(
    message,
    st.sampled_from(["T", "U", "SCHEDULE_TOPIC_XXXX", "bad/topic"]),
    st.integers(-1, 2),
    st.sampled_from([b"", b"body", b"x" * 300, b"y" * 1024, b"z" * 1025]),
    tag=st.sampled_from([None, "a", "ä", "zero\0", "\0" * 600]),
    born_host=st.sampled_from([message().born_host] * 5 + [HOST_V6]),
    sys_flag=st.sampled_from([0, 0, 1, 0x4, 0x8, 0xC, 0x30]),
)


def put_each(store: MessageStore, messages: Sequence[MessageToStore]) -> list[Arrival]:
    found: list[Arrival] = []
    for each in messages:
        try:
            store.put(each)
        except MessageRefusedError:
            continue
        found += store.dispatch(10)
    return found


def put_bursts(store: MessageStore, messages: Sequence[MessageToStore]) -> list[Arrival]:
    found: list[Arrival] = []
    while messages:
        burst = store.put_burst(messages)
        arrivals = store.dispatch(len(messages))
        assert list(arrivals) == list(burst)
        found += [*arrivals, *put_each(store, messages[len(burst) : len(burst) + 1])]
        messages = messages[len(burst) + 1 :]
    return found


def stored(messages: Sequence[MessageToStore], config: StoreConfig, *, in_bursts: bool) -> tuple[list[Arrival], bytes]:
    with tempfile.TemporaryDirectory() as directory:
        store = MessageStore.open(StillRuntime(), directory, config)
        try:
            arrivals = (put_bursts if in_bursts else put_each)(store, messages)
            log = b"".join(bytes(segment.view) for segment in store._log.segments.segments)
        finally:
            store.close()
    return arrivals, log


@given(st.lists(MESSAGES, max_size=20))
def test_a_burst_is_stored_like_single_messages(messages: list[MessageToStore]) -> None:
    assert stored(messages, SMALL, in_bursts=False) == stored(messages, SMALL, in_bursts=True)


def test_a_burst_ends_before_a_special_message() -> None:
    """A burst ends before a message that needs special handling, at the file's end, and if no disk block is free."""
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(directory, evolve(SMALL, commit_log_file_size=65_536))
        plain = message()
        assert not store.put_burst([plain]), "the queue does not exist yet"
        put_each(store, [plain])
        assert len(store.put_burst([plain, message("T", 0, born_host=HOST_V6), plain])) == 3
        for other in (
            message("T", 1),
            message("U", 0),
            message("T", 0, sys_flag=0x4),
            message("T", 0, b"x" * (SMALL.message_size_max + 1)),
            message("T", 0, tag="zero\0"),
            structs.replace(plain, inner_queues=(("U", 0),)),
            structs.replace(plain, flag=2**31),
        ):
            store.put(plain)
            (arrival,) = store.put_burst([plain, other, plain])
            assert store.log_end == arrival.log_end
        store.abandon()
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(directory, evolve(SMALL, consume_queue_file_size=4_000))
        put_each(store, [message()])
        size = store.log_end
        assert len(store.put_burst([message()] * 100)) == (SMALL.commit_log_file_size - 8) // size - 1
        assert store.put(message()).physical_offset == SMALL.commit_log_file_size
        assert len(store.put_burst([message()] * 2)) == 2
        store.abandon()
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(directory, evolve(SMALL, commit_log_file_size=65_536))
        put_each(store, [message()])
        segment = store._log.segments.segments[0]
        segment.reserved_end = store.log_end + 2 * store.log_end
        assert len(store.put_burst([message()] * 5)) == 2
        store.abandon()


class _KilledError(Exception):
    """Ends a write as a kill of the process would."""


class _LastView:
    """A map that stores only the first `left` bytes, as if the process were killed during its last write."""

    def __init__(self, view: memoryview, left: int) -> None:
        self.view = view
        self.left = left

    def __setitem__(self, part: slice, content: memoryview) -> None:
        """Copy the bytes that are left; raise `_KilledError` once no more bytes are left."""
        count = min(self.left, len(content))
        self.view[part.start : part.start + count] = content[:count]
        self.left -= count
        if count < len(content):
            raise _KilledError


def kept_after_kill(written: int) -> int:
    """Returns how many messages of a burst of three survive a kill after `written` bytes of the burst."""
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(directory)
        put_each(store, [message()])
        segment = store._log.segments.segments[0]
        mapped, view = segment.mapped, segment.view
        mapped.view = _LastView(view, written)  # type: ignore[misc,assignment]
        with pytest.raises(_KilledError):
            store.put_burst([message(tag="a")] * 3)
        mapped.view = view  # type: ignore[misc]
        store.abandon()
        store = open_store(directory)
        found = store.visible_end("T", 0) - 1
        store.close()
    return found


CUTS = (0, 1, 40, 120, 200, 250, 300)


def test_bursts_that_end_early() -> None:
    """A killed burst leaves no message, and a burst ends before a number that is too large for its field."""
    assert [kept_after_kill(written) for written in CUTS] == [0] * len(CUTS)
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(directory)
        put_each(store, [message()])
        burst = store.put_burst([message(), structs.replace(message(), reconsume_times=2**40), message()])
        assert [arrival.offset_end for arrival in burst] == [2]
        assert store.put(message()).queue_offset == 2
        store.abandon()


PARTS: Final = st.lists(
    st.lists(
        st.builds(
            message,
            body=st.sampled_from([b"", b"body", b"x" * 300, b"z" * (SMALL.message_size_max + 1)]),
            tag=st.sampled_from([None, "a", "ä", "zero\0"]),
            born_host=st.just(HOST_V6),
        )
        | st.builds(
            message, body=st.sampled_from([b"body", b"x" * 300]), tag=st.sampled_from([None, "a"]), sys_flag=st.just(1)
        ),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: [[each for each in part if each.born_host == parts[0][0].born_host] for part in parts])


def put_prepared(store: MessageStore, parts: Sequence[Sequence[MessageToStore]]) -> list[PutResult]:
    batch = store.prepare("T", 0)
    for part in parts:
        batch.add(part)
    first = store.put_prepared(batch)
    results = list(batch.results(first))
    assert [each.physical_offset for each in results] == list(batch.starts(first))
    return results


def stored_in_parts(
    parts: Sequence[Sequence[MessageToStore]], *, prepared: bool
) -> tuple[list[PutResult] | str, Sequence[Arrival], bytes]:
    """Put a batch in parts; returns the results or the error's text, all arrivals, and all bytes of the log."""
    with tempfile.TemporaryDirectory() as directory:
        store = MessageStore.open(StillRuntime(), directory, SMALL)
        store.put(message(queue_id=0))
        found: list[PutResult] | str
        try:
            found = (
                put_prepared(store, parts) if prepared else store.put_batch([each for part in parts for each in part])
            )
        except MessageRefusedError as error:
            found = str(error)
        store.put(message(queue_id=0))
        arrivals = store.dispatch(100)
        store.close()
        files = sorted(Path(directory, "commitlog").iterdir())
        return found, arrivals, b"".join(file.read_bytes() for file in files)


@given(PARTS)
def test_a_prepared_batch_is_that_batch(parts: list[list[MessageToStore]]) -> None:
    parts = [part for part in parts if part]
    assert stored_in_parts(parts, prepared=True) == stored_in_parts(parts, prepared=False)


def test_a_prepared_batch_is_never_split_between_files(tmp_path: Path) -> None:
    large = [message(body=b"x" * 500)] * 3
    store = open_store(tmp_path, evolve(SMALL, commit_log_file_size=2048))
    for _ in range(3):
        store.put(message())
    results = put_prepared(store, [large[:2], large[2:]])
    assert [each.queue_offset for each in results] == [3, 4, 5]
    assert results[0].physical_offset == 2048
    with pytest.raises(MessageRefusedError, match="cannot hold it"):
        put_prepared(store, [large, large])
    assert put_prepared(store, [[message()]])[0].queue_offset == 6
    assert [arrival.offset_end for arrival in store.dispatch(100)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_prepared_batch_is_handed_over_and_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    monkeypatch.setattr(QueueBuilder, "_read", lambda *_told: None)
    put_prepared(store, [[message()], [message()]])
    assert len(store.dispatch(10)) == 2
    with pytest.raises(MessageRefusedError, match="cannot be a directory"):
        store.prepare("..", 0)
