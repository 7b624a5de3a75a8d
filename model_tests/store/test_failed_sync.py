"""Failed disk calls, and the effect of a kill or a power cut on unsynced pages."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import pytest
from attrs import evolve
from model_tests.support.broker.simulated_store import DIRECTORY, SimulatedStore, StoreRuntime
from model_tests.support.broker.stores import SMALL, message, put_and_dispatch, read_all, result_of
from model_tests.support.simulation.disk import SECTOR_SIZE, Disk
from model_tests.support.simulation.files import SimulatedFiles

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import SyncFailedError
from longpoll_broker.store.consume_queue import OTHER_MAPS
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.verify import verify

CUT_COUNT = 50
FULL = 0.9


class World:
    """A simulated disk with an open store. `fails` names the calls that fail once."""

    def __init__(
        self, disk: Disk | None = None, config: StoreConfig = SMALL, fails: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.config = config
        self.disk = disk or Disk()
        if disk is None:
            self.disk.make_directory("/data")
            self.disk.root.sync(self.disk.number)
        self.fails = list(fails)
        self.code = errno.EMFILE
        self.runtime = StoreRuntime()
        self.files = SimulatedFiles(self.disk, before=self._before, used_ratio=lambda: FULL)
        self.runtime.simulated = self.files
        self.store = MessageStore.open(self.runtime, DIRECTORY, config)

    def _before(self, operation: str, path: str) -> None:
        if self.fails and self.fails[0][0] == operation and self.fails[0][1] in path:
            self.fails.pop()
            raise OSError(self.code, os.strerror(self.code), path)

    def failing(self, operation: str, path: str, call: Callable[[], object]) -> None:
        self.fails = [(operation, path)]
        with pytest.raises(OSError, match=os.strerror(self.code)):
            call()
        assert self.fails == []

    def killed(self) -> World:
        return World(self.disk.kill(), self.config)

    def cuts(self) -> Iterator[World]:
        """Yields the store as it is after each of many power cuts."""
        for seed in range(CUT_COUNT):
            yield World(self.disk.cut(random.Random(seed), "directory"), self.config)

    def bodies(self, topic: str = "T") -> list[bytes]:
        return [record[88:92] for record in read_all(self.store, topic, 0)]


def test_names_that_a_killed_process_made_are_synced_with_the_next_flush() -> None:
    world = World()
    put_and_dispatch(world.store, [message(body=b"kept")])
    world = world.killed()
    assert world.store.flush() == world.store.log_end > 0
    assert {tuple(each.bodies()) for each in world.cuts()} == {(b"kept",)}


def test_a_recreated_topic_has_no_old_messages(caplog: pytest.LogCaptureFixture) -> None:
    """A topic that is created again shows none of its old messages, even if their files could not be removed before."""
    world = World()
    put_and_dispatch(world.store, [message(body=b"old%d" % number) for number in range(3)])
    world.failing("remove", "consumequeue", lambda: world.store.delete_topic("T"))
    # Each request that needs the topic's name retries the removal, and is refused if the removal fails again.
    world.failing("remove", "consumequeue", lambda: world.store.put(message()))
    assert world.bodies() == []
    world.store.close()
    reopened = World(world.disk, fails=[("remove", "consumequeue")])
    assert reopened.bodies() == []
    put_and_dispatch(reopened.store, [message(body=b"new0")])
    assert reopened.bodies() == [b"new0"]
    reopened.store.flush()
    for each in (reopened.killed(), *reopened.cuts()):
        assert each.bodies() == [b"new0"]
    assert "the files of the deleted topic T cannot be removed" in caplog.text


def test_a_second_deletion_removes_leftover_files() -> None:
    world = World()
    put_and_dispatch(world.store, [message(body=b"old0"), message("U")])
    world.failing("remove", "consumequeue/T", lambda: world.store.delete_topic("T"))
    world.failing("remove", "consumequeue/T", lambda: world.store.delete_topic("T"))
    world.store.delete_topic("U")
    assert [name for name in world.files.list(f"{DIRECTORY}/consumequeue/T/0") if name] != []
    world.store.delete_topic("T")
    assert world.files.list(f"{DIRECTORY}/consumequeue/T/0") == []


@pytest.mark.parametrize("file_size", [2048, 16_384])
def test_no_old_record_follows_a_new_one_after_a_crash(file_size: int) -> None:
    world = World(config=evolve(SMALL, commit_log_file_size=file_size))
    # Each record is one sector long, so a power cut may lose any record without its neighbours.
    count = (SECTOR_SIZE - world.store.put(message("X")).size + len(b"body")) // 4
    world = World(config=world.config)
    put = [world.store.put(message(body=name * count)) for name in (b"old0", b"old1", b"old2", b"old3")]
    assert [each.size for each in put] == [SECTOR_SIZE] * 4
    world.store.flush()
    world = World(world.disk.kill(), world.config)
    torn = world.files.map(f"{DIRECTORY}/commitlog/{0:020d}", file_size, writable=True)
    torn.view[SECTOR_SIZE : 2 * SECTOR_SIZE] = bytes(SECTOR_SIZE)
    torn.sync(0, file_size)
    world = world.killed()
    assert world.bodies() == [b"old0"]
    new = (b"old0", b"new1", b"new2", b"new3")
    for name in new[1:]:
        world.store.put(message(body=name * count))
    found = {tuple(each.bodies()) for each in world.cuts()}
    assert found <= {new[:kept] for kept in (1, 2, 3, 4)}
    assert len(found) > 1


def test_a_queue_keeps_its_end_when_its_records_expire() -> None:
    """The queue's last unit is synced before a log file is removed, so that no queue offset is assigned twice."""
    world = World()
    put_and_dispatch(world.store, [message("gone")] + [message(body=b"b" * 700)] * 4)
    world.store.flush()
    world.store.index(100)
    assert world.store.remove_expired() > 0
    assert {each.store.visible_end("gone", 0) for each in world.cuts()} == {1}


def test_a_file_that_cannot_be_removed_leaves_no_gap() -> None:
    world = World()
    put_and_dispatch(world.store, [message(body=b"b" * 700)] * 6)
    world.store.flush()
    world.store.index(100)
    world.failing("remove", "commitlog", world.store.remove_expired)
    # The files after the lost file still form a valid store.
    world.store.put(message(body=b"last"))
    world.store.remove_expired()
    assert world.killed().store.log_start > 0


def test_a_file_without_length_is_accepted() -> None:
    """On a full disk a file may get a name but no length; recovery accepts such a file."""
    world = World()
    world.failing("lengthen", "commitlog", lambda: world.store.put(message()))
    world.store.close()
    assert verify(world.files, DIRECTORY).problems == []


def test_a_batch_is_stored_as_a_whole_or_not_at_all() -> None:
    world = World()
    batch = [message("A"), message("B")]
    world.failing("list", "consumequeue/B", lambda: world.store.put_batch(batch))
    assert world.store.log_end == 0
    assert [each.queue_offset for each in world.store.put_batch(batch)] == [0, 0]


def test_a_deleted_topic_stays_deleted_after_a_clean_stop_and_a_kill() -> None:
    """Recovery begins before the clean stop, so without the deletion's note it would restore the topic's records."""
    world = World()
    put_and_dispatch(world.store, [message("gone"), message("kept")])
    world.store.delete_topic("gone")
    world.store.close()
    world = World(world.disk).killed()
    assert world.store.queues() == [("kept", 0)]


def test_a_deletion_ends_at_the_logs_lost_end() -> None:
    world = World()
    put_and_dispatch(world.store, [message("T", body=b"b" * 700)])
    world.store.delete_topic("T")
    lost = [each for each in world.cuts() if each.store.log_end == 0]
    assert lost
    for each in lost:
        put_and_dispatch(each.store, [message("T", body=b"new!")])
        assert each.killed().bodies() == [b"new!"]


def test_a_failed_deletion_has_no_later_effect() -> None:
    world = World()
    put_and_dispatch(world.store, [message(body=b"old!")])
    world.failing("sync_directory", DIRECTORY, lambda: world.store.delete_topic("T"))
    put_and_dispatch(world.store, [message(body=b"new!")])
    world.store.close()
    assert World(world.disk).bodies() == [b"old!", b"new!"]


def test_an_undeletable_queue_does_not_keep_the_others() -> None:
    world = World()
    put_and_dispatch(world.store, [message(queue_id=queue_id) for queue_id in range(3)])
    world.failing("sync_directory", "consumequeue/T/0", lambda: world.store.delete_topic("T"))
    assert [path for path in world.disk.paths() if "consumequeue" in path] == []


def test_unflushed_messages_of_a_kill_are_synced_before_visible() -> None:
    world = World(config=evolve(SMALL, flush_disk_sync=True, visible_when_durable=True))
    world.store.put(message(body=b"seen"))
    world = world.killed()
    assert world.bodies() == [b"seen"]
    assert all(cut.bodies() == [b"seen"] for cut in world.cuts())


def test_a_clean_stop_survives_a_power_cut() -> None:
    count = 60
    world = World(config=evolve(SMALL, index_entry_count=200))
    put_and_dispatch(world.store, [message(properties={"KEYS": f"k{index}"}, body=b"kept") for index in range(count)])
    world.store.close()
    for cut in itertools.islice(world.cuts(), 20):
        assert cut.bodies() == [b"kept"] * count
        found = [len(result_of(cut.store.query("T", f"k{index}", 9, 0, 2**60))[0].records) for index in range(count)]
        assert found == [1] * count


EARLIER: Final = "an earlier sync failed"
CONFIG: Final = evolve(SMALL, flush_disk_sync=True, index_entry_count=4)
"""Index files hold three entries, so that each test fills several files."""


def failing_world() -> World:
    world = World(config=CONFIG)
    world.code = errno.EIO
    return world


def test_after_a_failed_log_sync_no_message_is_accepted() -> None:
    """The queues stay readable, no message is acknowledged or accepted, and a restart repairs the log."""
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
        store.flush_queues,
        store.close,
    ):
        with pytest.raises(SyncFailedError, match=EARLIER):
            call()
    assert (store.put_burst([message()]), store.flushed_end, world.bodies()) == ([], kept, [])
    reopened = World(world.disk, CONFIG)
    assert (reopened.bodies(), reopened.store.troubles) == ([b"kept", b"seen"], {})
    reopened.store.put(message(body=b"more"))
    assert reopened.store.flush() == reopened.store.log_end
    assert {tuple(each.bodies()) for each in reopened.cuts()} == {(b"kept", b"seen", b"more")}


def test_bytes_of_a_failed_sync_are_written_again() -> None:
    world = failing_world()
    world.store.put(message(body=b"seen"))
    world.failing("sync", "commitlog", world.store.flush)
    world = world.killed()
    assert world.store.flush() == world.store.log_end > 0
    assert {tuple(each.bodies()) for each in world.cuts()} == {(b"seen",)}


def test_messages_lost_after_a_failed_sync_were_not_acknowledged() -> None:
    """After a failed sync the kernel may reload old pages, so the store acknowledges no message on these pages."""
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
    """A random source whose `random()` always returns 0.0, so every event with a positive probability happens."""

    def random(self) -> float:
        return 0.0


def test_a_checkpoint_never_follows_a_failed_sync_of_a_queue() -> None:
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
    assert (list(store.troubles), world.bodies()) == (["queues"], [b"kept", b"more"])
    found = world.files.read(f"{DIRECTORY}/checkpoint") if world.files.exists(f"{DIRECTORY}/checkpoint") else b""
    assert found == before
    with pytest.raises(SyncFailedError, match=EARLIER):
        store.close()
    for each in (World(world.disk, CONFIG), *world.cuts()):
        assert each.bodies() == [b"kept", b"more"]
        each.store.flush_queues()
        assert each.store.troubles == {}


def test_a_failed_sync_for_a_map_is_reported() -> None:
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
    world.fails = [("sync", "consumequeue")]
    world.store.dispatch(20)
    with pytest.raises(SyncFailedError, match=EARLIER):
        world.store.flush_queues()


def test_an_index_file_with_a_failed_sync_is_rebuilt() -> None:
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
        found = [len(result_of(each.store.query("T", f"k{number}", 9, 0, 2**60))[0].records) for number in range(8)]
        assert found == [1] * 8


@pytest.mark.parametrize(("code", "is_for_ever"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EMFILE, False)])
def test_a_failed_sync_of_names_is_permanent(code: int, is_for_ever: bool) -> None:
    """A failed sync of a directory is permanent, but a directory that could not be opened is tried again."""
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


class Script:
    """Stores, flushes and deletes messages while sync number n fails, and records the acknowledged messages."""

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
        """Whether the store on a disk contains every acknowledged message, in order, and accepts new messages."""
        world = World(disk, CONFIG)
        found = world.bodies()
        put_and_dispatch(world.store, [message(body=b"more")])
        world.store.close()
        whole = verify(world.files, DIRECTORY).problems == []
        return whole and found == self.put[: len(found)] and len(found) >= len(self.promised)


def kept_after_each_failing_sync(cuts: int) -> Iterator[tuple[int, bool]]:
    """Yields (number of a failed sync, whether all acknowledged messages survive it and a kill or power cut)."""
    count = Script(0).syncs
    assert count > 20
    for failing in range(1, count + 1):
        script = Script(failing)
        assert script.syncs >= failing
        yield failing, script.is_kept(script.world.disk.kill())
        for seed in range(cuts):
            yield failing, script.is_kept(script.world.disk.cut(random.Random(seed), "directory"))


def test_acknowledged_messages_survive_any_failed_sync() -> None:
    """Each sync fails in turn, a kill or power cuts follow, and every acknowledged message must still be there."""
    assert [failing for failing, is_kept in kept_after_each_failing_sync(3) if not is_kept] == []


QUICK_COUNT = 110


def test_random_faults_of_some_hundred_seeds() -> None:
    runs = [SimulatedStore(seed).run() for seed in range(QUICK_COUNT)]
    assert sum(run.messages for run in runs) > 5 * QUICK_COUNT
    assert (
        min(sum(run.cuts for run in runs), sum(run.ended_inside for run in runs), sum(run.errors for run in runs)) > 25
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_random_faults_of_many_seeds() -> None:
    for seed in range(QUICK_COUNT, 12_000):
        assert SimulatedStore(seed).run().openings > 1


def test_a_seed_determines_a_run() -> None:
    stories = [[tuple(SimulatedStore(seed).run().story) for seed in range(20)] for _ in range(2)]
    assert (stories[0], len(set(stories[0]))) == (stories[1], len(stories[0]))
