"""A sequence of mapped files: when a file's name becomes durable, and that making one waits for nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from attrs import evolve

from longpoll_broker.testing.stores import SMALL, message, open_store
from longpoll_runtime.files import RealFiles, RealMappedFile


def test_names_that_could_not_be_made_durable_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a flush that could not open a directory the next one syncs it; else a power cut could take the file."""
    store = open_store(tmp_path)
    store.put(message())
    synced: list[str] = []
    sync = RealFiles.sync_directory

    def failing(files: RealFiles, path: str) -> None:
        synced.append(path)
        if len(synced) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        sync(files, path)

    monkeypatch.setattr(RealFiles, "sync_directory", failing)
    with pytest.raises(OSError, match="too many open files"):
        store.flush()
    assert store.flushed_end == 0
    assert store.flush() == store.log_end
    assert synced == [synced[0], f"{tmp_path}/commitlog", str(tmp_path), str(tmp_path.parent)]


def first_messages(directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Make the first message of each of 64 queues visible while no sync ever returns; how many are visible."""

    def stand_still(*_: object) -> None:
        raise AssertionError("who waits for a sync keeps every other queue waiting")

    # A log of one file: where the next is made before the one before is durable, a sync is waited for.
    store = open_store(directory, evolve(SMALL, commit_log_file_size=1 << 20))
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "sync_directory", stand_still)
        patch.setattr(RealFiles, "write_atomic", stand_still)
        patch.setattr(RealMappedFile, "sync", stand_still)
        for queue_id in range(64):
            store.put(message("NEW", queue_id))
        store.dispatch(64)
    visible = sum(store.visible_end("NEW", queue_id) for queue_id in range(64))
    store.close()
    return visible


def test_the_first_message_of_a_queue_waits_for_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a queue's files costs a few system calls, none of which waits for the disk to write."""
    assert first_messages(tmp_path, monkeypatch) == 64
