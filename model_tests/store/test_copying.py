"""A store that is a copy of another one: equal to the byte, whatever the pieces; what does not fit is refused whole."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.broker.stores import (
    SMALL,
    message,
    mixed_messages,
    open_store,
    put_and_dispatch,
    read_all,
    result_of,
)
from model_tests.support.present import present
from model_tests.support.store import index_all

from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.recovery import Checkpoint, load_checkpoint, of_the_past
from longpoll_broker.store.replica_append import (
    BATCH_OVERHEAD_SIZE_MAX,
    OVERHEAD_SIZE_MAX,
    CopyRefusedError,
    next_piece,
)
from longpoll_broker.store.verify import verify
from longpoll_protocol.log_record import MAGIC_BLANK, MAGIC_V1, SCHEDULE_TOPIC, SIZE_AND_MAGIC
from longpoll_protocol.sizes import MIB
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime


class Pair:
    """A store and its copy, in two directories."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        self.source = self.opened("source")
        self.copy = self.opened("copy")

    def opened(self, name: str) -> MessageStore:
        store = open_store(self.directory / name)
        self._stack.callback(store.close)
        return store

    def crash_copy(self) -> None:
        self.copy.abandon()
        self.copy = self.opened("copy")

    def content(self, start: int, stop: int | None = None) -> memoryview:
        whole = bytearray()
        while (part := self.source.log_part(start + len(whole), 1000)) is not None:
            whole += part
        return memoryview(bytes(whole if stop is None else whole[: stop - start]))

    def copy_rest(self, piece_size: int | None = None) -> None:
        """Copy what is missing, in pieces of a size or in one."""
        content = self.content(self.copy.log_end)
        pending = bytearray()
        for at in range(0, len(content), piece_size or max(len(content), 1)):
            pending += content[at : at + (piece_size or len(content))]
            del pending[: self.copy.put_copied(self.copy.log_end, memoryview(bytes(pending)))]
        assert not pending
        while self.copy.dispatched_end < self.copy.log_end:
            self.copy.dispatch(100)

    def check_equal(self) -> None:
        """The same log and the same queues."""
        assert self.copy.log_end == self.source.log_end
        assert self.copy.queues() == self.source.queues()
        for queue in self.source.queues():
            assert read_all(self.copy, *queue) == read_all(self.source, *queue)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def logs_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "commitlog").iterdir())}


@settings(max_examples=8)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=3), st.integers(0, 2**32))
def test_a_copy_in_pieces_is_byte_equal(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int) -> None:
    """Also after a kill of the copy."""
    directory = tmp_path_factory.mktemp("pair")
    drawn = random.Random(seed)
    with ExitStack() as stack:
        pair = Pair(directory, stack)
        for size in sizes:
            put_and_dispatch(pair.source, mixed_messages(drawn.randrange(40)))
            pair.copy_rest(size)
            pair.check_equal()
            if drawn.random() < 0.3:
                pair.crash_copy()
                pair.check_equal()
        pair.source.put(message(body=b"one's own go on where the other's would"))
        pair.copy.put(message(body=b"one's own go on where the other's would"))
        pair.copy.dispatch(1)
        assert pair.copy.visible_end("T", 0) == 1
    assert verify(RealFiles(), str(directory / "copy")).problems == []
    assert logs_of(directory / "copy").keys() == logs_of(directory / "source").keys()


def test_what_is_delayed_is_due_by_the_levels_of_the_copy(tmp_path: Path) -> None:
    """A slave that becomes master uses its own delay levels."""
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack)
        put_and_dispatch(pair.source, [message(SCHEDULE_TOPIC, 1, properties={"DELAY": "2"})])
        pair.copy.close()
        pair.copy = open_store(tmp_path / "copy", evolve(SMALL, delay_levels="1s 1h"))
        stack.callback(pair.copy.close)
        pair.copy_rest()
        due_ms = [store.unit(SCHEDULE_TOPIC, 1, 0) for store in (pair.source, pair.copy)]
        assert due_ms[0] is not None
        assert due_ms[1] is not None
        assert (due_ms[1][2] - due_ms[0][2], due_ms[1][:2]) == (3_600_000 - 5_000, due_ms[0][:2])


def test_a_stretch_that_was_left_out_is_seen(pair: Pair) -> None:
    """The physical offset shows it, or else the queue's offsets."""
    put_and_dispatch(pair.source, [message(body=bytes([number])) for number in range(4)])
    first, second = (pair.source.unit("T", 0, number) for number in (0, 1))
    assert first is not None
    assert second is not None
    pair.copy.put_copied(0, pair.content(0, first[1]))
    with pytest.raises(CopyRefusedError, match=f"sends its log from {second[0] + second[1]}"):
        pair.copy.put_copied(second[0] + second[1], pair.content(second[0] + second[1]))
    assert pair.copy.log_end == first[1]
    # As a sender would that leaves a record out and gives those after it new places.
    forged = bytearray(pair.content(second[0] + second[1])[: second[1]])
    forged[28:36] = first[1].to_bytes(8)
    with pytest.raises(CopyRefusedError, match="is number 2 of T queue 0, and number 1 comes next here"):
        pair.copy.put_copied(first[1], memoryview(bytes(forged)))
    forged[20:28] = (0).to_bytes(8)
    assert pair.copy.put_copied(first[1], memoryview(bytes(forged))) == second[1]
    assert pair.copy.visible_end("T", 0) == 0, "a queue that begins anew"


@pytest.mark.parametrize("number", [2, -1, 2**62])
def test_a_queue_begins_with_no_message_that_the_log_has_no_room_before(pair: Pair, number: int) -> None:
    """Its file would start at an impossible offset, or fill the disk."""
    put_and_dispatch(pair.source, [message(), message(queue_id=1)])
    first, second = pair.source.unit("T", 0, 0), pair.source.unit("T", 1, 0)
    assert first is not None
    assert second is not None
    forged = bytearray(pair.content(0))
    forged[second[0] + 20 : second[0] + 28] = number.to_bytes(8, signed=True)
    with pytest.raises(CopyRefusedError, match=f"has number {number} of its queue, but the log before it"):
        pair.copy.put_copied(0, memoryview(bytes(forged)))
    assert pair.copy.log_end == second[0]
    forged[second[0] + 20 : second[0] + 28] = (1).to_bytes(8)
    assert pair.copy.put_copied(second[0], memoryview(bytes(forged))[second[0] :]) == second[1]


@pytest.mark.parametrize(
    ("magic", "size_max"),
    [(MAGIC_BLANK, 4 * MIB + BATCH_OVERHEAD_SIZE_MAX), (MAGIC_V1, 4 * MIB + OVERHEAD_SIZE_MAX)],
    ids=["blank", "record"],
)
def test_a_blank_may_be_as_long_as_a_batch_and_a_record_as_a_message(magic: int, size_max: int) -> None:
    for more in (0, 1):
        head = SIZE_AND_MAGIC.pack(size_max + more, magic)
        start = 64 * MIB - size_max - more - (0 if magic == MAGIC_BLANK else 100)
        if more:
            with pytest.raises(CopyRefusedError, match="set maxMessageSize to the other broker's value"):
                next_piece(memoryview(head), start, 64 * MIB, 4 * MIB)
        else:
            assert next_piece(memoryview(head), start, 64 * MIB, 4 * MIB) is None


def test_a_batch_that_leaves_a_large_blank_is_copied(tmp_path: Path) -> None:
    """Short messages with a long topic take twice their size in the log."""
    config = evolve(SMALL, commit_log_file_size=MIB, message_size_max=64 * 1024)
    source, copy = open_store(tmp_path / "source", config), open_store(tmp_path / "copy", config)
    topic = "T" * 127
    source.put(message(topic, body=bytes(60_000)))
    batch = source.prepare(topic, 0)
    batch.add([message(topic, body=b"x")] * 4700)
    source.put_prepared(batch)
    while source.dispatched_end < source.log_end:
        source.dispatch(4096)
    assert source.log_end > MIB
    at = 0
    while at < source.log_end:
        part = present(source.log_part(at, 2 * MIB))
        at += copy.put_copied(at, part)
        del part
    assert copy.log_end == source.log_end


@pytest.mark.parametrize("abort", ["there", "gone"])
def test_a_future_time_hides_no_message_copied_later(pair: Pair, caplog: pytest.LogCaptureFixture, abort: str) -> None:
    """A checkpoint with that time would make a later start skip messages."""
    put_and_dispatch(pair.source, [message() for _ in range(4)])
    forged = bytearray(pair.content(0))
    second = present(pair.source.unit("T", 0, 1))
    for start in (0, second[0]):
        forged[start + 56 : start + 64] = (2**60).to_bytes(8)
    pair.copy.put_copied(0, memoryview(bytes(forged))[: 2 * second[0]])
    pair.copy.dispatch(9)
    pair.copy.flush_queues()
    known = load_checkpoint(RealFiles(), f"{pair.copy.directory}/checkpoint")
    assert known.logics_ms < 2**60
    pair.copy.put_copied(2 * second[0], memoryview(bytes(forged))[2 * second[0] :])
    pair.copy.flush()
    pair.copy.abandon()
    told = [line for line in caplog.messages if "speaks of a time to come" in line]
    assert len(told) == 1
    if abort == "gone":
        (Path(pair.copy.directory) / "abort").unlink()
    again = open_store(pair.copy.directory)
    assert again.visible_end("T", 0) == 4


@pytest.mark.parametrize("number", ["physic_ms", "logics_ms"])
def test_a_checkpoint_of_a_time_to_come_counts_as_never_written(number: str) -> None:
    known = evolve(Checkpoint(physic_ms=5, logics_ms=5, durable_offset=7), **{number: 2**60})
    assert of_the_past(known, lambda: 9) == Checkpoint()
    assert of_the_past(evolve(known, **{number: 9}), lambda: 9).durable_offset == 7


@pytest.mark.parametrize("at", [0, 4, 8, 30, 95])
def test_a_changed_byte_is_seen(pair: Pair, at: int) -> None:
    """Earlier records are kept."""
    put_and_dispatch(pair.source, [message(body=b"first"), message(body=b"second" * 20)])
    end = present(pair.source.unit("T", 0, 0))
    damaged = bytearray(pair.content(0))
    damaged[end[1] + at] ^= 0x55
    with pytest.raises(CopyRefusedError, match=f"at {end[1]} of the other log"):
        pair.copy.put_copied(0, memoryview(bytes(damaged)))
    assert pair.copy.log_end == end[1]
    pair.copy_rest()
    pair.check_equal()


def test_files_of_another_size_are_seen(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack)
        put_and_dispatch(pair.source, mixed_messages(40))
        for size in (1024, 4096):
            other = open_store(tmp_path / f"other{size}", evolve(SMALL, commit_log_file_size=size))
            stack.callback(other.close)
            with pytest.raises(CopyRefusedError, match="mappedFileSizeCommitLog"):
                other.put_copied(0, pair.content(0))
        with pytest.raises(CopyRefusedError, match="where no file of"):
            pair.copy.put_copied(3, pair.content(3))


def test_a_topic_that_is_no_name_is_refused(pair: Pair) -> None:
    put_and_dispatch(pair.source, [message("ABC")])
    forged = bytes(pair.content(0)).replace(b"\x03ABC", b"\x03../")
    with pytest.raises(CopyRefusedError, match="cannot be a directory name"):
        pair.copy.put_copied(0, memoryview(forged))
    assert pair.copy.queues() == []


def test_a_copy_may_begin_with_a_later_file(pair: Pair) -> None:
    """A RocketMQ master sends only its last file to a slave that has no log."""
    put_and_dispatch(pair.source, [message(body=bytes(300)) for _ in range(20)])
    start = 2 * SMALL.commit_log_file_size
    content = pair.content(start)
    assert pair.copy.put_copied(start, content) == len(content)
    while pair.copy.dispatched_end < pair.copy.log_end:
        pair.copy.dispatch(100)
    index_all(pair.copy)
    assert (pair.copy.log_start, pair.copy.log_end) == (start, pair.source.log_end)
    first = pair.copy.visible_start("T", 0)
    assert 0 < first < 20
    assert read_all(pair.copy, "T", 0) == read_all(pair.source, "T", 0)[first:]
    pair.crash_copy()
    assert read_all(pair.copy, "T", 0) == read_all(pair.source, "T", 0)[first:]


def test_a_topic_made_anew_is_so_in_the_copy(pair: Pair) -> None:
    """A deletion leaves no record, so the first message of the new topic shows it."""
    put_and_dispatch(pair.source, [message(body=b"old"), message(queue_id=1, body=b"old"), message("U")])
    pair.copy_rest()
    pair.source.delete_topic("T")
    put_and_dispatch(pair.source, [message(body=b"new"), message("U"), message(queue_id=1, body=b"new")])
    pair.copy_rest()
    pair.check_equal()
    pair.crash_copy()
    pair.check_equal()
    assert pair.copy.visible_end("T", 0) == 1


def test_what_came_to_a_topic_made_anew_stays_when_its_other_queues_are_told_later(pair: Pair) -> None:
    put_and_dispatch(pair.source, [message(body=b"old"), message(queue_id=1, body=b"old"), message("U")])
    pair.copy_rest()
    pair.source.delete_topic("T")
    put_and_dispatch(pair.source, [message(queue_id=2, body=b"new"), message("U")])
    pair.copy_rest()
    put_and_dispatch(pair.source, [message(body=b"new")])
    pair.copy_rest()
    for _ in range(2):
        # Queue 1 of the old one is still there: its message might be the new topic's.
        assert pair.copy.queues() == [("T", 0), ("T", 1), ("T", 2), ("U", 0)]
        for queue in pair.source.queues():
            assert read_all(pair.copy, *queue) == read_all(pair.source, *queue)
        pair.crash_copy()
    put_and_dispatch(pair.source, [message(queue_id=1, body=b"new"), message(queue_id=2, body=b"more")])
    pair.copy_rest()
    pair.check_equal()
    pair.crash_copy()
    pair.check_equal()
    assert pair.copy.visible_end("T", 2) == 2


def test_also_when_all_of_it_comes_in_one_piece(pair: Pair) -> None:
    put_and_dispatch(pair.source, [message(queue_id=1, body=b"old"), message(body=b"old")])
    pair.source.delete_topic("T")
    put_and_dispatch(pair.source, [message(queue_id=2, body=b"new"), message(body=b"new"), message(queue_id=2)])
    pair.copy_rest()
    pair.check_equal()
    pair.crash_copy()
    pair.check_equal()
    assert read_all(pair.copy, "T", 2) == read_all(pair.source, "T", 2)


def test_a_topic_made_anew_again_and_again(pair: Pair) -> None:
    chosen = random.Random(21)
    for _ in range(40):
        for _ in range(chosen.randrange(4)):
            put_and_dispatch(pair.source, [message(queue_id=chosen.randrange(3), body=chosen.randbytes(9))])
            if chosen.random() < 0.3:
                pair.copy_rest()
            if chosen.random() < 0.1:
                pair.crash_copy()
        pair.copy_rest()
        for queue in pair.source.queues():
            assert read_all(pair.copy, *queue) == read_all(pair.source, *queue)
        pair.source.delete_topic("T")


def test_the_files_of_a_queue_made_anew_that_cannot_be_removed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy continues once the files can be removed."""
    put_and_dispatch(pair.source, [message(body=b"old"), message(body=b"old"), message("U")])
    pair.copy_rest()
    pair.source.delete_topic("T")
    put_and_dispatch(pair.source, [message(queue_id=2, body=b"new"), message(body=b"new")])
    remove = RealFiles.remove

    def refusing(files: RealFiles, path: str) -> None:
        if "/copy/consumequeue/T/0/" in path:
            raise OSError(errno.EIO, "a disk that fails", path)
        remove(files, path)

    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "remove", refusing)
        for _ in range(2):
            with pytest.raises(OSError, match="a disk that fails"):
                pair.copy_rest()
    pair.copy_rest()
    pair.check_equal()
    pair.crash_copy()
    pair.check_equal()


def test_what_nobody_sees_yet_may_be_kept_back(pair: Pair) -> None:
    put_and_dispatch(pair.source, [message()])
    end = pair.source.log_end
    pair.source.put(message())
    told = present(pair.source.log_part(0, 10_000, only_visible=True))
    assert len(told) == end
    assert pair.source.log_part(end, 10_000, only_visible=True) is None
    assert pair.source.log_part(end, 10_000) is not None
    pair.source.dispatch(1)
    assert pair.source.log_part(end, 10_000, only_visible=True) is not None


def test_messages_that_no_queue_lists_are_copied(pair: Pair) -> None:
    """Prepared messages move no queue."""
    put_and_dispatch(pair.source, [message(sys_flag=4), message(), message(sys_flag=12), message()])
    pair.copy_rest()
    pair.check_equal()
    assert pair.copy.visible_end("T", 0) == 2


class Ahead(RealRuntime):
    """A clock that is an hour ahead."""

    def unix_ms(self) -> int:
        return super().unix_ms() + 3_600_000


def test_what_is_put_after_a_copy_is_stored_no_sooner(pair: Pair) -> None:
    """A slave that becomes master continues from its master's clock."""
    source = MessageStore.open(Ahead(), str(pair.directory / "ahead"), SMALL)
    put_and_dispatch(source, [message()])
    content = present(source.log_part(0, 1000))
    assert source.log_part(source.log_end, 1000) is None
    assert pair.copy.put_copied(0, content) == source.log_end
    last = present(source.read_record(0))
    assert pair.copy.put(message()).store_ms == last.store_ms


def test_where_nothing_was_copied_to_is_forgotten(pair: Pair) -> None:
    assert pair.copy.put_copied(4 * SMALL.commit_log_file_size, memoryview(b"")) == 0
    assert pair.copy.log_end == 4 * SMALL.commit_log_file_size
    # Nor is there anything to index, which a thread would look for without end.
    is_indexed = pair.copy.index(10)
    pair.copy.forget_beginning()
    assert (is_indexed, pair.copy.log_end) == (True, 0)
    put_and_dispatch(pair.source, [message(properties={"KEYS": "k"})])
    pair.copy_rest()
    pair.copy.forget_beginning()
    assert pair.copy.index(10)
    assert len(result_of(pair.copy.query("T", "k", 9, 0, 2**60))[0].records) == 1
    assert pair.copy.log_end == pair.source.log_end
    pair.check_equal()
