"""Single looks into a store: the properties of one message, and a directory whose opening failed."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.testing.stores import message, open_store, put_and_dispatch


def test_the_properties_of_one_message_are_looked_up(tmp_path: Path) -> None:
    """By its queue and offset, as a pull that is held with a filter asks; where no message is there is nothing."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message(queue_id=index % 2, properties={"color": f"c{index}"}) for index in range(6)])
    for index in range(6):
        lookup = store.properties_at("T", index % 2, index // 2)
        assert lookup is not None
        assert (lookup("color"), lookup("size")) == (f"c{index}", None)
    store.put(message())
    nowhere = (("T", 0, 3), ("T", 0, -1), ("T", 2, 0), ("U", 0, 0))
    assert [store.properties_at(*place) for place in nowhere] == [None] * 4


def test_a_store_that_could_not_be_recovered_can_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery that fails lets go of the directory; the next one finds every message."""
    store = open_store(tmp_path)
    put_and_dispatch(store, [message()] * 5)
    store.abandon()

    def failing(_store: MessageStore) -> None:
        raise OSError(errno.EIO, "the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "_recover", failing)
        for _ in range(2):
            with pytest.raises(OSError, match="the disk failed"):
                open_store(tmp_path)
    store = open_store(tmp_path)
    assert store.visible_end("T", 0) == 5
