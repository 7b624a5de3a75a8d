"""A long batch whose records were made before, against the same messages put as a batch at once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from longpoll_broker.store.dispatch import Dispatcher
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, MessageToStore, PutResult
from longpoll_broker.testing.stores import HOST_V6, SMALL, StillRuntime, message, open_store
from longpoll_protocol.errors import MessageRefusedError

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


def stored(
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
@settings(max_examples=60)
def test_a_prepared_batch_is_that_batch(parts: list[list[MessageToStore]]) -> None:
    """To the byte, or it is refused with the same words and nothing is left of it."""
    parts = [part for part in parts if part]
    assert stored(parts, prepared=True) == stored(parts, prepared=False)


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
