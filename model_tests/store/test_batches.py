"""Bursts and prepared batches against the same messages put one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.stores import HOST_V6, SMALL, StillRuntime, message, open_store
from msgspec import structs

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.dispatch import Dispatcher
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, MessageToStore, PutResult
from longpoll_protocol.errors import MessageRefusedError

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
    """Put messages one by one; their arrivals."""
    found: list[Arrival] = []
    for each in messages:
        try:
            store.put(each)
        except MessageRefusedError:
            continue
        found += store.dispatch(10)
    return found


def put_bursts(store: MessageStore, messages: Sequence[MessageToStore]) -> list[Arrival]:
    """Put messages in bursts; the first of the rest by itself."""
    found: list[Arrival] = []
    while messages:
        burst = store.put_burst(messages)
        arrivals = store.dispatch(len(messages))
        assert list(arrivals) == list(burst)
        found += [*arrivals, *put_each(store, messages[len(burst) : len(burst) + 1])]
        messages = messages[len(burst) + 1 :]
    return found


def stored(messages: Sequence[MessageToStore], config: StoreConfig, *, in_bursts: bool) -> tuple[list[Arrival], bytes]:
    """The arrivals of messages, and the whole log."""
    with tempfile.TemporaryDirectory() as directory:
        store = MessageStore.open(StillRuntime(), directory, config)
        try:
            arrivals = (put_bursts if in_bursts else put_each)(store, messages)
            log = b"".join(bytes(segment.view) for segment in store._log.segments.segments)
        finally:
            store.close()
    return arrivals, log


@given(st.lists(MESSAGES, max_size=20))
def test_a_burst_is_stored_as_its_messages_are(messages: list[MessageToStore]) -> None:
    """The same bytes in the same files, the same arrivals in the same order, whatever stands in the burst."""
    assert stored(messages, SMALL, in_bursts=False) == stored(messages, SMALL, in_bursts=True)


def test_a_burst_takes_what_is_plain_and_no_more() -> None:
    """The first message that needs more ends it: a new queue, another form, a body too large."""
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(directory, evolve(SMALL, commit_log_file_size=65_536))
        plain = message()
        assert not store.put_burst([plain]), "the queue is not there yet"
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


def test_a_burst_ends_with_the_file() -> None:
    """A record that does not fit is for `put`, which goes on in the next file."""
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(directory, evolve(SMALL, consume_queue_file_size=4_000))
        put_each(store, [message()])
        size = store.log_end

        assert len(store.put_burst([message()] * 100)) == (SMALL.commit_log_file_size - 8) // size - 1
        assert store.put(message()).physical_offset == SMALL.commit_log_file_size
        assert len(store.put_burst([message()] * 2)) == 2
        store.abandon()


def test_a_burst_needs_no_system_call() -> None:
    """It stays in the present file and on the disk blocks that this has, so nothing can fail once it has begun."""
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(directory, evolve(SMALL, commit_log_file_size=65_536))
        put_each(store, [message()])
        segment = store._log.segments.segments[0]
        segment.reserved_end = store.log_end + 2 * store.log_end

        assert len(store.put_burst([message()] * 5)) == 2
        store.abandon()


class _KilledError(Exception):
    """The process is gone."""


class _LastView:
    """A map into which the last write of a process goes only as far as `left` bytes."""

    def __init__(self, view: memoryview, left: int) -> None:
        self.view = view
        self.left = left

    def __setitem__(self, part: slice, content: memoryview) -> None:
        """Copy what is left to copy; the process ends with the last of it."""
        count = min(self.left, len(content))
        self.view[part.start : part.start + count] = content[:count]
        self.left -= count
        if count < len(content):
            raise _KilledError


def kept_after_kill(written: int) -> int:
    """How many messages of a burst of three are found after a kill that came with `written` bytes of it written."""
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
"""Bytes of a burst of 309."""


def test_a_process_killed_in_a_burst_leaves_none_of_it() -> None:
    """The first record's mark is written last."""
    assert [kept_after_kill(written) for written in CUTS] == [0] * len(CUTS)


def test_a_wild_number_leaves_no_gap() -> None:
    """A number that fits no record ends the burst before it, and the offsets go on where they were."""
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
"""What is added together; all of one sender."""


def put_prepared(store: MessageStore, parts: Sequence[Sequence[MessageToStore]]) -> list[PutResult]:
    """Have a batch made in parts, and put."""
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
    """Where the messages stand, how they and one behind them arrive, and the whole log."""
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
    """To the byte, or it is refused with the same words and nothing is left of it."""
    parts = [part for part in parts if part]
    assert stored_in_parts(parts, prepared=True) == stored_in_parts(parts, prepared=False)


def test_a_prepared_batch_moves_to_the_next_file_as_a_whole(tmp_path: Path) -> None:
    """Where it does not fit; one that no file can hold is refused, and the next one has the queue's next offset."""
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
    """Not by the dispatcher; and for a name that is no queue's nothing is prepared."""
    store = open_store(tmp_path)
    monkeypatch.setattr(Dispatcher, "_read", lambda *_told: None)
    put_prepared(store, [[message()], [message()]])
    assert len(store.dispatch(10)) == 2
    with pytest.raises(MessageRefusedError, match="cannot be a directory"):
        store.prepare("..", 0)
