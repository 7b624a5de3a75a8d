"""What a kill leaves unsynced, what a power cut makes of it, and calls that fail: each once lost messages or more.

Most of it was found by `testing.simulated` from seeds, the rest by looking further; here each stands by itself.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from attrs import evolve

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.queues.queue_table import QueueTable
from longpoll_broker.store.verify import verify
from longpoll_broker.testing.simulated.store import DIRECTORY, StoreRuntime
from longpoll_broker.testing.stores import SMALL, message, put_and_dispatch, read_all
from longpoll_simulation.disk import Disk
from longpoll_simulation.file_bytes import SECTOR_SIZE
from longpoll_simulation.files import SimulatedFiles

CUT_COUNT = 100
FULL = 0.9


class World:
    """A disk, its present files, and the store that is open there; `fails` names the calls that fail once."""

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
        """Do something of which the first such call fails."""
        self.fails = [(operation, path)]
        with pytest.raises(OSError, match=os.strerror(self.code)):
            call()
        assert self.fails == []

    def killed(self) -> World:
        """Opened again after a kill."""
        return World(self.disk.kill(), self.config)

    def cuts(self) -> Iterator[World]:
        """Opened again after each of many power cuts."""
        for seed in range(CUT_COUNT):
            yield World(self.disk.cut(random.Random(seed), "directory"), self.config)

    def bodies(self, topic: str = "T") -> list[bytes]:
        """The bodies, of four bytes at the beginning, of a topic's queue 0."""
        return [record[88:92] for record in read_all(self.store, topic, 0)]


def test_names_that_a_killed_process_made_are_synced_with_the_next_flush() -> None:
    """A kill, then a flush, then a power cut: what the flush promised is there, with the name of its file."""
    world = World()
    put_and_dispatch(world.store, [message(body=b"kept")])
    world = world.killed()
    assert world.store.flush() == world.store.log_end > 0
    assert {tuple(each.bodies()) for each in world.cuts()} == {(b"kept",)}


def bodies_after_a_failed_removal() -> tuple[list[list[bytes]], ...]:
    """What the topic has whose files could not be removed: while it is so, made again, and after each kind of end."""
    world = World()
    put_and_dispatch(world.store, [message(body=b"old%d" % number) for number in range(3)])
    world.failing("remove", "consumequeue", lambda: world.store.delete_topic("T"))
    # Tried again by whoever needs the name, and refused where it fails again; after a start too.
    world.failing("remove", "consumequeue", lambda: world.store.put(message()))
    while_left = [world.bodies()]
    world.store.close()
    reopened = World(world.disk, fails=[("remove", "consumequeue")])
    while_left.append(reopened.bodies())
    put_and_dispatch(reopened.store, [message(body=b"new0")])
    made_again = [reopened.bodies()]
    reopened.store.flush()
    made_again += [each.bodies() for each in (reopened.killed(), *reopened.cuts())]
    return while_left, made_again


def test_a_topic_gets_nothing_of_a_deleted_one_whose_files_stayed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue's file that cannot be removed is told, and no later topic's; one that takes it over is seen."""
    while_left, made_again = bodies_after_a_failed_removal()
    assert "the files of the deleted topic T cannot be removed" in caplog.text
    assert while_left == [[], []]
    assert {tuple(bodies) for bodies in made_again} == {(b"new0",)}
    monkeypatch.setattr(QueueTable, "remove_left", lambda *_: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        bodies_after_a_failed_removal()


def test_a_second_deletion_removes_what_the_first_could_not() -> None:
    """And says so only when it has; what is left is known after further deletions and starts."""
    world = World()
    put_and_dispatch(world.store, [message(body=b"old0"), message("U")])
    world.failing("remove", "consumequeue/T", lambda: world.store.delete_topic("T"))
    world.failing("remove", "consumequeue/T", lambda: world.store.delete_topic("T"))
    world.store.delete_topic("U")
    assert [name for name in world.files.list(f"{DIRECTORY}/consumequeue/T/0") if name] != []
    world.store.delete_topic("T")
    assert world.files.list(f"{DIRECTORY}/consumequeue/T/0") == []


@pytest.mark.parametrize("file_size", [2048, 16_384])
def test_nothing_old_follows_what_is_new(file_size: int) -> None:
    """What a recovery cut off does not come back behind a record of the same size that was written in its place.

    In the same file, and in a later one.
    """
    world = World(config=evolve(SMALL, commit_log_file_size=file_size))
    # A record is one sector, so that a cut may leave any of them without its neighbours.
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
    """A record's file goes only after the unit that speaks of it is durable: else its offset would be given again."""
    world = World()
    put_and_dispatch(world.store, [message("gone")] + [message(body=b"b" * 700)] * 4)
    world.store.flush()
    world.store.index(100)
    assert world.store.remove_expired() > 0
    assert {each.store.visible_end("gone", 0) for each in world.cuts()} == {1}


def test_a_file_that_cannot_be_removed_leaves_no_gap() -> None:
    """It stays, and is tried again, before any after it goes."""
    world = World()
    put_and_dispatch(world.store, [message(body=b"b" * 700)] * 6)
    world.store.flush()
    world.store.index(100)
    world.failing("remove", "commitlog", world.store.remove_expired)
    # What is left of them later is a store all the same.
    world.store.put(message(body=b"last"))
    world.store.remove_expired()
    assert world.killed().store.log_start > 0


def test_a_file_that_got_no_length_is_no_damage() -> None:
    """On a full disk a file may get a name and nothing else: it goes again, and the closed store is sound."""
    world = World()
    world.failing("lengthen", "commitlog", lambda: world.store.put(message()))
    world.store.close()
    assert verify(world.files, DIRECTORY).problems == []


def test_a_batch_is_stored_as_a_whole_or_not_at_all() -> None:
    """Also when the second message's queue cannot be looked for."""
    world = World()
    batch = [message("A"), message("B")]
    world.failing("list", "consumequeue/B", lambda: world.store.put_batch(batch))
    assert world.store.log_end == 0
    assert [each.queue_offset for each in world.store.put_batch(batch)] == [0, 0]


def test_a_deleted_topic_stays_deleted_after_a_clean_stop_and_a_kill() -> None:
    """A recovery after a crash begins before the clean stop, so the note of the deletion is still needed."""
    world = World()
    put_and_dispatch(world.store, [message("gone"), message("kept")])
    world.store.delete_topic("gone")
    world.store.close()
    world = World(world.disk).killed()
    assert world.store.queues() == [("kept", 0)]


def test_a_deletion_says_nothing_of_what_comes_after_a_lost_end() -> None:
    """A power cut may take the end of the log that a deletion was noted with: what is written there later is listed."""
    world = World()
    put_and_dispatch(world.store, [message("T", body=b"b" * 700)])
    world.store.delete_topic("T")
    lost = [each for each in world.cuts() if each.store.log_end == 0]
    assert lost
    for each in lost:
        put_and_dispatch(each.store, [message("T", body=b"new!")])
        assert each.killed().bodies() == [b"new!"]


def test_a_deletion_that_failed_takes_no_effect_later() -> None:
    """Its note may stand there though the call failed; it is taken back, and what the topic gets from now on stays."""
    world = World()
    put_and_dispatch(world.store, [message(body=b"old!")])
    world.failing("sync_directory", DIRECTORY, lambda: world.store.delete_topic("T"))
    put_and_dispatch(world.store, [message(body=b"new!")])
    world.store.close()
    assert World(world.disk).bodies() == [b"old!", b"new!"]


def test_one_queue_that_cannot_be_removed_keeps_no_other() -> None:
    """A deletion removes the files of all queues that it can, though one fails."""
    world = World()
    put_and_dispatch(world.store, [message(queue_id=queue_id) for queue_id in range(3)])
    world.failing("sync_directory", "consumequeue/T/0", lambda: world.store.delete_topic("T"))
    assert [path for path in world.disk.paths() if "consumequeue" in path] == []


def test_what_a_killed_process_had_not_flushed_is_durable_before_it_is_shown() -> None:
    """Where only what is durable may be seen: a kill, an opening that shows it, a power cut; it is there."""
    world = World(config=evolve(SMALL, flush_disk_sync=True, visible_when_durable=True))
    world.store.put(message(body=b"seen"))
    world = world.killed()
    assert world.bodies() == [b"seen"]

    assert all(cut.bodies() == [b"seen"] for cut in world.cuts())


def test_what_a_clean_stop_leaves_needs_no_power() -> None:
    """Messages, queues and an index of several sectors stand there after a power cut as when the store was closed."""
    count = 60
    world = World(config=evolve(SMALL, index_entry_count=200))
    put_and_dispatch(world.store, [message(properties={"KEYS": f"k{index}"}, body=b"kept") for index in range(count)])
    world.store.close()

    for cut in itertools.islice(world.cuts(), 20):
        assert cut.bodies() == [b"kept"] * count
        found = [len(cut.store.query("T", f"k{index}", 9, 0, 2**60).records) for index in range(count)]
        assert found == [1] * count
