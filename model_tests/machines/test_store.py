"""The mapped store compared with a plain model: append, dispatch, read, flush, close, kill, open, in any order.

The model is lists in memory and two facts about files: a read stops at the end of a consume queue's file, and
everything is visible after opening. Files are so small that log and queues roll over within a run.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest
from attrs import Factory, define, evolve
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from model_tests.support.broker.plain.plain_store import read_record
from model_tests.support.broker.stores import SMALL, message, open_store

from longpoll_broker.store.messages import MessageToStore
from longpoll_broker.store.verify import verify
from longpoll_protocol.properties import tags_code
from longpoll_runtime.files import RealFiles, RealMappedFile

CONFIG = evolve(SMALL, transfer_bytes_max_in_memory=800, transfer_count_max_in_memory=6)
UNITS_PER_FILE = CONFIG.consume_queue_file_size // 20
QUEUES = [("A", 0), ("A", 1), ("%RETRY%B", 0)]
TAGS = ["red", "AaAa", "BBBB", None]
PREPARED = 0x4


@pytest.fixture(autouse=True, scope="module")
def no_syncs() -> Iterator[None]:
    """Skip every sync. The machine kills the process and never cuts the power, so unsynced data stays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        patch.setattr(RealMappedFile, "sync", lambda *_: None)
        yield


@define
class Message:
    body: str
    tag: str | None
    size: int


@define
class Queue:
    """A queue of the model, in which `messages[:visible]` can be read."""

    messages: list[Message] = Factory(list)
    visible: int = 0
    known: bool = False


def expected_read(queue: Queue, offset: int, count: int, tag: str | None) -> tuple[str, int, list[int]]:
    """Return the (status, next offset, message offsets) that the rules of `getMessage` require."""
    end = queue.visible
    if not queue.known:
        return "NO_MESSAGE_IN_QUEUE", 0, []
    if end == 0:
        return "NO_MESSAGE_IN_QUEUE", 0, []
    if offset >= end:
        return ("OFFSET_OVERFLOW_ONE" if offset == end else "OFFSET_OVERFLOW_BADLY", end, [])
    stop = min(end, (offset // UNITS_PER_FILE + 1) * UNITS_PER_FILE)
    taken: list[int] = []
    size = 0
    for index in range(offset, stop):
        each = queue.messages[index]
        limits = (count, CONFIG.transfer_count_max_in_memory)
        if taken and (len(taken) >= min(limits) or size + each.size > CONFIG.transfer_bytes_max_in_memory):
            return "FOUND", index, taken
        if tag is None or tags_code(each.tag) == tags_code(tag):
            taken.append(index)
            size += each.size
    return "FOUND" if taken else "NO_MATCHED_MESSAGE", stop, taken


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def open_empty(self) -> None:
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="longpoll-store-"))
        self.directory = self.root / "0"
        self.kills = 0
        self.queues = {key: Queue() for key in QUEUES}
        self.log: list[tuple[str, int] | None] = []
        self.dispatched = 0
        self.store = open_store(self.directory, CONFIG)

    @rule(
        key=st.sampled_from(QUEUES),
        body=st.integers(0, 220).map(lambda size: "z" * size),
        tag=st.sampled_from(TAGS),
        count=st.integers(1, 6),
        prepared=st.integers(0, 9).map(lambda die: die == 0),
    )
    def append(self, key: tuple[str, int], body: str, tag: str | None, *, count: int, prepared: bool) -> None:
        for _ in range(count):
            self._append(key, body, tag, prepared=prepared)

    @rule(keys=st.lists(st.sampled_from(QUEUES), max_size=6), size=st.integers(0, 220), tag=st.sampled_from(TAGS))
    def append_burst(self, keys: list[tuple[str, int]], size: int, tag: str | None) -> None:
        """Append as many messages of a burst as the store accepts at once, and then the remaining ones one by one."""
        body = "r" * size
        burst = self.store.put_burst([message(*key, body.encode(), tag=tag) for key in keys])
        for key, arrival in zip(keys, burst, strict=False):
            queue = self.queues[key]
            assert (arrival.topic, arrival.queue_id, arrival.offset_end - 1) == (*key, len(queue.messages))
            queue.messages.append(Message(body, tag, arrival.size))
            self.log.append(key)
        for key in keys[len(burst) :]:
            self._append(key, body, tag, prepared=False)

    def _append(self, key: tuple[str, int], body: str, tag: str | None, *, prepared: bool) -> None:
        made: MessageToStore = message(*key, body.encode(), tag=tag, sys_flag=PREPARED if prepared else 0)
        end = self.store.log_end
        result = self.store.put(made)
        queue = self.queues[key]
        queue.known = True
        assert result.queue_offset == (0 if prepared else len(queue.messages))
        assert end <= result.physical_offset < result.log_end == self.store.log_end
        if not prepared:
            queue.messages.append(Message(body, tag, result.size))
        self.log.append(None if prepared else key)

    @rule(limit=st.integers(1, 25))
    def dispatch(self, limit: int) -> None:
        arrivals = [(each.topic, each.queue_id, each.offset_end) for each in self.store.dispatch(limit)]
        moved = self.log[self.dispatched : self.dispatched + limit]
        self.dispatched += len(moved)
        assert arrivals == self._show(moved)

    def _show(self, moved: list[tuple[str, int] | None]) -> list[tuple[str, int, int]]:
        shown = []
        for key in moved:
            if key is not None:
                self.queues[key].visible += 1
                shown.append((*key, self.queues[key].visible))
        return shown

    @rule(
        key=st.sampled_from(QUEUES),
        offset=st.integers(0, 60),
        count=st.integers(0, 12),
        tag=st.sampled_from(["red", "AaAa", "blue", None]),
    )
    def read(self, key: tuple[str, int], offset: int, count: int, tag: str | None) -> None:
        wanted: Callable[[int], bool] | None = None if tag is None else (lambda code: code == tags_code(tag))
        queue = self.queues[key]
        # Most offsets are inside the queue, and some up to two beyond its end.
        offset %= queue.visible + 3
        found = self.store.get(*key, offset, count, (wanted, None))
        status, offset_next, taken = expected_read(queue, offset, count, tag)
        assert (found.status.name, found.offset_next, found.offsets) == (status, offset_next, taken)
        content = b"".join(found.records)
        assert found.size_bytes == len(content) == sum(queue.messages[index].size for index in taken)
        for index in taken:
            record = read_record(content[: queue.messages[index].size])
            content = content[queue.messages[index].size :]
            assert (record["queueOffset"], record["bodyLength"]) == (index, len(queue.messages[index].body))
            assert record["properties"].get("TAGS") == queue.messages[index].tag

    @rule()
    def flush(self) -> None:
        assert self.store.flush() == self.store.flushed_end == self.store.log_end

    @rule()
    def flush_queues(self) -> None:
        self.store.flush_queues()
        assert (self.directory / "checkpoint").stat().st_size == 4096

    @rule()
    def close_and_open(self) -> None:
        """Stop cleanly and open again; the closed directory has no damage."""
        self.store.close()
        verdict = verify(RealFiles(), str(self.directory))
        assert (verdict.problems, verdict.messages) == ([], len(self.log))
        self._open()

    @rule()
    def kill_and_open(self) -> None:
        """Open a copy of the directory, as after a kill, and check that at most the ends of files are damaged."""
        self.kills += 1
        killed = self.root / str(self.kills)
        shutil.copytree(self.directory, killed)
        self.store.abandon()
        shutil.rmtree(self.directory)
        self.directory = killed
        assert {problem.kind for problem in verify(RealFiles(), str(killed)).problems} <= {"tail"}
        self._open()

    def _open(self) -> None:
        end = self.store.log_end
        self.store = open_store(self.directory, CONFIG)
        assert self.store.log_end == self.store.dispatched_end == end
        self._show(self.log[self.dispatched :])
        self.dispatched = len(self.log)
        for queue in self.queues.values():
            queue.known = bool(queue.messages)

    @precondition(lambda self: hasattr(self, "store"))
    @invariant()
    def ranges_agree(self) -> None:
        for key, queue in self.queues.items():
            assert (self.store.visible_start(*key), self.store.visible_end(*key)) == (0, queue.visible)
        assert self.store.queues() == sorted(key for key, queue in self.queues.items() if queue.visible)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.abandon()
            shutil.rmtree(self.root)


TestStore = StoreMachine.TestCase
