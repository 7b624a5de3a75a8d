"""After a sync that failed the next one says nothing of what the disk lacks (Linux), so nothing is promised on it.

The simulated disk does as Linux does: pages that could not be written count as written, until they change, until they
are written anew, or until the system reads them again and they are as before.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pytest
from attrs import evolve
from model_tests.store.test_unsynced import World

from longpoll_broker.errors import SyncFailedError
from longpoll_broker.store.index.index_file import IndexFile
from longpoll_broker.store.log.commit_log import CommitLog
from longpoll_broker.store.queues.queue_table import OTHER_MAPS
from longpoll_broker.store.segment import Segment, SegmentList
from longpoll_broker.store.verify import verify
from longpoll_broker.testing.simulated.store import DIRECTORY
from longpoll_broker.testing.stores import SMALL, message, put_and_dispatch
from longpoll_simulation.disk import Disk

LOST_WITHIN: Final = 200
"""Cuts in which a planted fault has to lose something."""
EARLIER: Final = "an earlier sync failed"
CONFIG: Final = evolve(SMALL, flush_disk_sync=True, index_entry_count=4)
"""Index files of three entries, so that several are full."""


def failing_world() -> World:
    """One whose calls fail as a disk does."""
    world = World(config=CONFIG)
    world.code = errno.EIO
    return world


def test_after_a_failed_sync_of_the_log_nothing_is_promised_and_no_message_taken() -> None:
    """Not by a flush, not by any way to append; the queues go on, and opening it again heals it."""
    world = failing_world()
    store = world.store
    put_and_dispatch(store, [message(body=b"kept")])
    store.flush()
    put_and_dispatch(store, [message(body=b"seen")])
    kept = store.flushed_end
    world.failing("sync", "commitlog", store.flush)
    assert list(store.troubles) == ["log"]
    for call in (
        store.flush,
        lambda: store.put(message()),
        lambda: store.put_batch([message()]),
        lambda: store.put_prepared(store.prepare("T", 0)),
        lambda: store.put_copied(store.log_end, memoryview(b"")),
        store.flush_queues,
        store.close,
    ):
        with pytest.raises(SyncFailedError, match=EARLIER):
            call()
    assert store.put_burst([message()]) == []
    assert store.flushed_end == kept
    assert world.bodies() == []
    reopened = World(world.disk, CONFIG)
    assert reopened.bodies() == [b"kept", b"seen"]
    assert reopened.store.troubles == {}
    reopened.store.put(message(body=b"more"))
    assert reopened.store.flush() == reopened.store.log_end
    assert {tuple(each.bodies()) for each in reopened.cuts()} == {(b"kept", b"seen", b"more")}


def lost_in_some_cut(world: World, expected: list[bytes]) -> bool:
    """Whether one of many power cuts leaves less than was promised."""
    for seed in range(LOST_WITHIN):
        if World(world.disk.cut(random.Random(seed), "directory"), CONFIG).bodies() != expected:
            return True
    return False


@pytest.mark.parametrize("planted", [False, True])
def test_what_a_killed_process_could_not_sync_is_written_anew(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens the store knows nothing of that sync, and promises only what it has written again. Planted: not."""
    world = failing_world()
    world.store.put(message(body=b"seen"))
    world.failing("sync", "commitlog", world.store.flush)
    if planted:
        monkeypatch.setattr(CommitLog, "write_anew", lambda *_: None)
    world = world.killed()
    assert world.store.flush() == world.store.log_end > 0
    assert lost_in_some_cut(world, [b"seen"]) is planted


def test_what_the_system_reads_again_is_gone_and_was_promised_to_nobody() -> None:
    """After a failed sync and a kill pages may be as they were before: the log ends there, whole, and goes on."""
    world = failing_world()
    put_and_dispatch(world.store, [message(body=b"kept")])
    world.store.flush()
    world.store.put(message(body=b"lost" * 150))
    world.failing("sync", "commitlog", world.store.flush)
    disk = world.disk.kill()
    assert disk.evict(Always())
    world = World(disk, CONFIG)
    assert world.bodies() == [b"kept"]
    put_and_dispatch(world.store, [message(body=b"more")])
    assert world.bodies() == [b"kept", b"more"]
    world.store.close()
    assert verify(world.files, DIRECTORY).problems == []


class Always(random.Random):
    """Chance that is always on."""

    def random(self) -> float:
        """The least there is."""
        return 0.0


def forgiving(patch: pytest.MonkeyPatch) -> None:
    """Have syncs tried again after one that failed, as if it had said what the disk lacks."""
    patch.setattr(Segment, "failed", property(lambda _: None, lambda _self, _value: None))
    patch.setattr(SegmentList, "_failed", property(lambda _: None, lambda _self, _value: None))
    patch.setattr(IndexFile, "_failed", property(lambda _: None, lambda _self, _value: None), raising=False)


def test_a_checkpoint_never_follows_a_failed_sync_of_a_queue() -> None:
    """Messages are taken and shown; what the queue lacks is made anew from the log when the store is opened again."""
    world = failing_world()
    store = world.store
    put_and_dispatch(store, [message(body=b"kept")])
    before = world.files.read(f"{DIRECTORY}/checkpoint") if world.files.exists(f"{DIRECTORY}/checkpoint") else b""
    world.failing("sync", "consumequeue/T", store.flush_queues)
    put_and_dispatch(store, [message(body=b"more")])
    store.flush()
    for _ in range(2):
        with pytest.raises(SyncFailedError, match=EARLIER):
            store.flush_queues()
    assert list(store.troubles) == ["queues"]
    assert world.bodies() == [b"kept", b"more"]
    found = world.files.read(f"{DIRECTORY}/checkpoint") if world.files.exists(f"{DIRECTORY}/checkpoint") else b""
    assert found == before
    with pytest.raises(SyncFailedError, match=EARLIER):
        store.close()
    for each in (World(world.disk, CONFIG), *world.cuts()):
        assert each.bodies() == [b"kept", b"more"]
        each.store.flush_queues()
        assert each.store.troubles == {}


def test_a_queue_that_was_synced_for_its_map_in_vain_is_known() -> None:
    """Where the oldest map has to go and its bytes cannot be made durable, a later flush does not say that they are."""
    world = World(config=CONFIG)
    world.code = errno.EIO
    world.files._maps_max = OTHER_MAPS + 1
    world.store.close()
    world = World(world.disk, CONFIG)
    world.code = errno.EIO
    maps = world.store._table._maps
    maps.count_max = 1
    for queue_id in range(2):
        world.store.put(message(queue_id=queue_id))
    world.failing("sync", "consumequeue", lambda: [world.store.dispatch(1) for _ in range(20)])
    with pytest.raises(SyncFailedError, match=EARLIER):
        world.store.flush_queues()


def test_a_full_index_file_that_could_not_be_synced_is_never_believed() -> None:
    """The checkpoint does not know it; opened again the log is indexed anew, and every message is found by its key."""
    world = failing_world()
    store = world.store
    put_and_dispatch(store, [message(properties={"KEYS": f"k{number}"}) for number in range(8)])
    store.flush()
    world.failing("sync", "index", lambda: store.index(100))
    with pytest.raises(SyncFailedError, match=EARLIER):
        store.index(100)
    assert list(store.troubles) == ["index"]
    store.flush_queues()
    with pytest.raises(SyncFailedError, match=EARLIER):
        store.close()
    for each in (World(world.disk, CONFIG), *world.cuts()):
        assert each.store.index(100)
        found = [len(each.store.query("T", f"k{number}", 9, 0, 2**60).records) for number in range(8)]
        assert found == [1] * 8


@pytest.mark.parametrize(("code", "is_for_ever"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EMFILE, False)])
def test_names_that_could_not_be_synced(code: int, is_for_ever: bool) -> None:
    """For ever where the disk failed; tried again where the directory could not even be opened."""
    world = World(config=CONFIG)
    world.code = code
    end = world.store.put(message(body=b"kept")).physical_offset
    world.failing("sync_directory", "commitlog", world.store.flush)
    assert list(world.store.troubles) == ["log"]
    if is_for_ever:
        with pytest.raises(SyncFailedError, match=EARLIER):
            world.store.flush()
        with pytest.raises(SyncFailedError, match=EARLIER):
            world.store.put(message())
    else:
        world.store.put(message())
        assert world.store.flush() > end
        assert world.store.troubles == {}


# -- at each call ----------------------------------------------------------------------------------------------------


class Script:
    """Messages, flushes and deletions over several files, of which the n-th sync fails; what was promised."""

    def __init__(self, failing: int) -> None:
        self.world = World(config=CONFIG)
        self.promised: list[bytes] = []
        self.put: list[bytes] = []
        self.syncs = 0
        self.failing = failing
        self.world.files.before = self._before
        codes: set[int | None] = set()
        for step in self._steps():
            try:
                step()
            except OSError as error:
                codes.add(error.errno)
        assert codes <= {errno.EIO}

    def _before(self, operation: str, path: str) -> None:
        if operation in {"sync", "sync_directory"} and "tmp" not in path:
            self.syncs += 1
            if self.syncs == self.failing:
                raise OSError(errno.EIO, "the disk failed", path)

    def _steps(self) -> Iterator[Callable[[], object]]:
        store = self.world.store
        for number in range(12):
            yield partial(self._put, b"%04d" % number)
            yield lambda: store.dispatch(9)
            yield self._flush
            if number % 3 == 2:
                yield store.flush_queues
                yield lambda: store.index(9)
        yield lambda: store.delete_topic("U")
        yield self._flush
        yield store.flush_queues

    def _put(self, body: bytes) -> None:
        self.world.store.put(message(body=body + bytes(300), properties={"KEYS": "k" + body.decode()}))
        self.put.append(body)
        self.world.store.put(message("U", properties={"KEYS": "u"}))

    def _flush(self) -> None:
        self.world.store.flush()
        self.promised = list(self.put)

    def is_kept(self, disk: Disk) -> bool:
        """Whether the store of a disk has all that was promised, in order, and goes on."""
        world = World(disk, CONFIG)
        found = world.bodies()
        put_and_dispatch(world.store, [message(body=b"more")])
        world.store.close()
        whole = verify(world.files, DIRECTORY).problems == []
        return whole and found == self.put[: len(found)] and len(found) >= len(self.promised)


def kept_after_each_failing_sync(cuts: int) -> Iterator[tuple[int, bool]]:
    """For each sync of the script, failing: whether everything promised outlives a kill and power cuts."""
    count = Script(0).syncs
    assert count > 20
    for failing in range(1, count + 1):
        script = Script(failing)
        assert script.syncs >= failing
        yield failing, script.is_kept(script.world.disk.kill())
        for seed in range(cuts):
            yield failing, script.is_kept(script.world.disk.cut(random.Random(seed), "directory"))


def test_whatever_sync_fails_what_was_promised_is_kept() -> None:
    """Each sync of log, queues, index and names in its turn; then a kill, and power cuts."""
    assert [failing for failing, is_kept in kept_after_each_failing_sync(8) if not is_kept] == []


def test_planted_syncs_that_are_tried_again_lose_what_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very same with a store that believes the next sync."""
    forgiving(monkeypatch)
    assert not all(is_kept for _failing, is_kept in kept_after_each_failing_sync(8))
