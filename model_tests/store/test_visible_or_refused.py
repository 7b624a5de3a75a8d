"""What is acknowledged becomes visible, or is refused: full disks, no inodes, no descriptors, one queue or all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest
from attrs import define, evolve, field
from model_tests.support.broker.simulated.store import DIRECTORY, StoreRuntime
from model_tests.support.broker.stores import SMALL, message, read_all
from msgspec.structs import replace

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import TopicLeavingError
from longpoll_broker.store import dispatch
from longpoll_broker.store.message_store import DISPATCH, MessageStore
from longpoll_broker.store.verify import verify
from longpoll_protocol.properties import INNER_QUEUES
from longpoll_simulation.disk import Disk
from longpoll_simulation.files import SimulatedFiles

GROWING = ("create", "lengthen", "reserve", "make_directory", "map")
MULTI = evolve(SMALL, multi_dispatch=True, index=False)
UNITS_A_FILE = SMALL.consume_queue_file_size // 20


@define
class World:
    """A store on a simulated disk, whose calls fail where `where` is a part of the path."""

    config: StoreConfig = MULTI
    disk: Disk = field(factory=Disk)
    where: str = ""
    code: int = errno.ENOSPC
    failing: tuple[str, ...] = GROWING
    store: MessageStore = field(init=False)
    runtime: StoreRuntime = field(factory=StoreRuntime)

    def __attrs_post_init__(self) -> None:
        self.runtime.simulated = SimulatedFiles(self.disk, before=self.before)
        self.store = MessageStore.open(self.runtime, DIRECTORY, self.config)

    def before(self, operation: str, path: str) -> None:
        if self.where and self.where in path and operation in self.failing:
            raise OSError(self.code, os.strerror(self.code), path)

    def show(self) -> None:
        while self.store.dispatched_end < self.store.log_end or self.store.is_behind:
            if not self.store.dispatch(100) and self.store.dispatched_end == self.store.log_end:
                return

    def bodies(self, topic: str, queue_id: int = 0) -> int:
        """How many messages of a queue can be read."""
        return len(read_all(self.store, topic, queue_id))


def prepared(store: MessageStore, topic: str) -> None:
    """A long batch of two."""
    batch = store.prepare(topic, 0)
    batch.add([message(topic), message(topic)])
    store.put_prepared(batch)


def further(store: MessageStore, topic: str) -> None:
    """A message of another topic that this one's queue lists too."""
    store.put(replace(message("Known", properties={INNER_QUEUES: topic}), inner_queues=((topic, 0),)))


WAYS: dict[str, Callable[[MessageStore, str], object]] = {
    "alone": lambda store, topic: store.put(message(topic)),
    "batch": lambda store, topic: store.put_batch([message("Known"), message(topic)]),
    "prepared": prepared,
    "further": further,
}


@pytest.mark.parametrize("put", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO])
def test_a_send_to_a_new_topic_is_refused_where_its_queue_cannot_be_made(
    put: Callable[[MessageStore, str], object], code: int
) -> None:
    """Nothing of it is in the log, others are visible at once, and it is taken when there is room again."""
    world = World(code=code)
    world.store.put(message("Known"))
    world.where = "consumequeue/New"
    end = world.store.log_end
    with pytest.raises(OSError, match=os.strerror(code)):
        put(world.store, "New")
    assert (world.store.log_end, world.store.troubles) == (end, {})
    world.store.put(message("Known"))
    world.show()
    assert world.bodies("Known") == 2
    world.where = ""
    put(world.store, "New")
    world.show()
    assert world.bodies("New") > 0
    world.store.close()
    assert verify(world.runtime.files, DIRECTORY).problems == []


@pytest.mark.parametrize("put", WAYS.values(), ids=WAYS)
def test_a_send_to_a_known_topic_is_refused_where_its_queue_cannot_grow(
    put: Callable[[MessageStore, str], object],
) -> None:
    """At the end of its file, although the earlier messages are not visible yet."""
    world = World()
    for _ in range(UNITS_A_FILE):
        world.store.put(message("Old"))
    world.where = "consumequeue/Old"
    with pytest.raises(OSError, match="No space"):
        put(world.store, "Old")
    assert world.store.put_burst([message("Old")]) == []
    world.show()
    assert world.bodies("Old") == UNITS_A_FILE
    world.where = ""
    put(world.store, "Old")
    world.show()
    assert world.bodies("Old") > UNITS_A_FILE


def test_a_queue_that_cannot_be_mapped_keeps_back_its_own_messages_only() -> None:
    """Its next send is refused, a health check reports it, and all is shown once that can be."""
    world = World(code=errno.EMFILE)
    first = world.store.put(message("Stuck"))
    world.store.put(message("Stuck"))
    stuck = world.store._table.topics["Stuck"].queues[0]
    # As another queue's map may have taken its place.
    stuck.segments.segments[0]._mapped = None
    world.where = "consumequeue/Stuck"
    world.store.put(message("Other"))
    world.show()
    assert (world.bodies("Other"), world.store.visible_end("Stuck", 0)) == (1, 0)
    assert world.store.dispatched_end == world.store.log_end
    assert world.store.is_behind
    assert "Too many open files" in world.store.troubles[DISPATCH]
    with pytest.raises(OSError, match="earlier messages are not visible yet"):
        world.store.put(message("Stuck"))
    assert world.store.put_burst([message("Stuck")]) == []
    world.store.flush_queues()
    assert world.store._checkpoint.durable_offset < first.physical_offset
    world.where = ""
    world.show()
    assert (world.bodies("Stuck"), world.store.troubles) == (2, {})
    world.store.put(message("Stuck"))
    world.show()
    world.store.close()
    assert verify(world.runtime.files, DIRECTORY).problems == []


def stuck_world() -> World:
    """A store with two messages of a queue that cannot be mapped, and one of another behind them."""
    world = World(code=errno.EMFILE)
    world.store.put(message("Stuck"))
    world.store.put(message("Stuck"))
    world.store._table.topics["Stuck"].queues[0].segments.segments[0]._mapped = None
    world.where = "consumequeue/Stuck"
    world.store.put(message("Other"))
    world.show()
    assert world.store.is_behind
    return world


def test_a_kill_keeps_what_is_behind() -> None:
    """The checkpoint says nothing of messages that came after it."""
    world = stuck_world()
    world.store.flush_queues()
    world = World(disk=world.disk.kill())
    assert (world.bodies("Stuck"), world.bodies("Other")) == (2, 1)


def test_a_store_that_is_behind_is_not_closed_well() -> None:
    """The next start makes everything visible."""
    world = stuck_world()
    with pytest.raises(OSError, match="Too many open files"):
        world.store.close()
    assert world.runtime.files.exists(f"{DIRECTORY}/abort")
    world = World(disk=world.disk.kill())
    assert (world.bodies("Stuck"), world.bodies("Other")) == (2, 1)


def test_a_start_that_cannot_show_everything_is_refused() -> None:
    """Nobody would see what was acknowledged."""
    world = stuck_world()
    with pytest.raises(OSError, match="Too many open files"):
        World(disk=world.disk.kill(), where="consumequeue/Stuck", code=errno.EMFILE)


def test_a_topic_that_is_behind_can_be_deleted() -> None:
    """Nothing waits for it any more."""
    world = stuck_world()
    world.store.delete_topic("Stuck")
    world.show()
    assert (world.store.is_behind, world.store.troubles) == (False, {})
    world.where = ""
    world.store.put(message("Stuck"))
    world.show()
    assert world.bodies("Stuck") == 1


def test_the_log_keeps_what_is_behind() -> None:
    """Retention removes no file whose messages are not visible yet."""
    world = stuck_world()
    while world.store.log_end < 4 * SMALL.commit_log_file_size:
        world.store.put(message("Other", body=b"b" * 400))
        world.show()
    world.store.flush()
    world.runtime.simulated._used_ratio = lambda: 0.9  # type: ignore[union-attr] # made above
    assert world.store.remove_expired() == 0
    world.where = ""
    world.show()
    assert world.store.remove_expired() > 0


def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy's log grows whatever its queues do: then the cursor stops, and goes on later."""
    monkeypatch.setattr(dispatch, "BEHIND_COUNT_MAX", 1)
    world = World()
    world.store.put(message("Stuck"))
    world.store.put(message("Stuck"))
    world.store._table.topics["Stuck"].queues[0].segments.segments[0]._mapped = None
    world.where = "consumequeue/Stuck"
    with pytest.raises(OSError, match="too many messages wait"):
        world.show()
    assert world.store.dispatched_end < world.store.log_end
    world.where = ""
    world.show()
    assert (world.bodies("Stuck"), world.store.troubles) == (2, {})


def test_others_have_their_turn_behind_many_that_fail() -> None:
    """A few of those are tried in a call, each in its turn."""
    count = 3 * dispatch.RETRIED_COUNT
    world = World(code=errno.EMFILE)
    for number in range(count):
        world.store.put(message(f"Stuck{number}"))
        world.store._table.topics[f"Stuck{number}"].queues[0].segments.segments[0]._mapped = None
    world.where = "consumequeue/Stuck"
    world.show()
    world.where = "consumequeue/Stuck0/"
    for _ in range(4):
        world.store.dispatch(100)
    assert [world.bodies(f"Stuck{number}") for number in range(count)] == [0] + [1] * (count - 1)


def test_a_file_that_is_not_full_yet_stays() -> None:
    """The next one is made with the message that needs it, which may be before the earlier ones are visible."""
    world = World()
    for _ in range(2 * UNITS_A_FILE + 1):
        world.store.put(message("T", body=b"b" * 400))
    world.runtime.simulated._used_ratio = lambda: 0.9  # type: ignore[union-attr] # made above
    world.store.dispatch(UNITS_A_FILE + 3)
    world.store.flush()
    assert world.store.remove_expired() > 0
    world.show()
    assert world.store.visible_end("T", 0) == 2 * UNITS_A_FILE + 1
    assert world.bodies("T") > UNITS_A_FILE - 3


def test_a_topic_that_is_leaving_is_told_so() -> None:
    """Not as an error of the disk."""
    world = World()
    world.store.put(message("T"))
    world.store.begin_deletion("T")
    with pytest.raises(TopicLeavingError):
        world.store.put(message("T"))
    world.store.finish_deletion("T")
