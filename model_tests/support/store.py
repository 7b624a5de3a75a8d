"""Helpers for tests of the store: a clock, and a copy of a directory as after a kill."""

from __future__ import annotations

import shutil
from pathlib import Path

from longpoll_broker.store.message_store import MessageStore
from longpoll_runtime.real import RealRuntime


class Clock(RealRuntime):
    """A runtime whose wall clock (in ms) a test sets, on a machine with a million bytes of memory."""

    now_ms = 1_000_000

    def unix_ms(self) -> int:
        return self.now_ms

    def memory_size(self) -> int:
        return 1_000_000


def killed(store: Path, name: str = "killed") -> Path:
    """Copy the directory of an open store to a sibling of this name, in the state that a kill would leave."""
    copy = store.parent / name
    shutil.rmtree(copy, ignore_errors=True)
    # Another thread may rename a temporary file before it is copied.
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*.tmp"))
    return copy


def index_all(store: MessageStore, count: int = 1_000) -> None:
    """Index every message of the log, `count` at a time."""
    while not store.index(count):
        pass
