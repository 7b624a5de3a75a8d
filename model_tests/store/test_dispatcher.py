"""The dispatcher's cursor between log and queues, and the messages that the dispatcher makes visible or refuses."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest
from attrs import define, evolve, field
from model_tests.support.broker.simulated_store import DIRECTORY, StoreRuntime
from model_tests.support.broker.stores import SMALL, message, read_all
from model_tests.support.simulation.disk import Disk
from model_tests.support.simulation.files import SimulatedFiles
from msgspec import structs
from msgspec.structs import replace

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreDamageError
from longpoll_broker.store import queue_builder
from longpoll_broker.store.message_store import DISPATCH, MessageStore
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.queue_builder import Handed, QueueBuilder
from longpoll_broker.store.verify import verify
from longpoll_protocol.log_record import MAGIC_V1, SCHEDULE_TOPIC, Damage, Record
from longpoll_protocol.properties import INNER_QUEUES

SIZE = 10
"""The size of each record in bytes; record n begins at byte n times `SIZE` of the log."""


class NotedLock:
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def __enter__(self) -> None:
        self._notes.append("lock")

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._notes.append("unlock")


class Queue:
    topic = "T"

    def __init__(self, queue_id: int = 0) -> None:
        self.queue_id = queue_id
        self.listed: list[int] = []
        self.is_full = False

    def may_list(self, offset: int, physical_offset: int) -> bool:
        """Allow any existing record. Records that a queue may not list are tested in `test_outsiders`."""
        return offset >= 0 and physical_offset >= 0

    def put(self, arrival: Arrival) -> bool:
        if self.is_full:
            raise OSError("no room")
        is_new = arrival.physical_offset not in self.listed
        self.listed += [arrival.physical_offset] * is_new
        return is_new


class Bench:
    def __init__(self, count: int = 0, cursor: int = 0) -> None:
        self.notes: list[str] = []
        self.end = self.flushed_end = count * SIZE
        self.special: dict[int, Any] = {}
        """Maps a log offset to the object that the log returns there instead of a record."""
        self.queue = Queue()
        self.inner: dict[int, list[tuple[Queue, int]]] = {}
        """Maps a record's physical offset to (additional queue, offset in this queue) of each further queue."""
        log: Any = self
        queue_of: Any = lambda _record: self.queue  # noqa: E731
        inner_of: Any = lambda record: self.inner.get(record.physical_offset, [])  # noqa: E731
        lock: Any = NotedLock(self.notes)
        self.cursor = QueueBuilder(log, lock, queue_of, inner_of, cursor * SIZE)

    def read(self, position: int) -> Any:
        self.notes.append(f"read {position}")
        record = SimpleNamespace(
            topic="T", queue_id=0, queue_offset=position // SIZE, tags_code=3, store_ms=4, physical_offset=position,
            size=SIZE,
        )  # fmt: skip
        return self.special.get(position, record)

    def append(self, *numbers: int, queue: Queue | None = None) -> list[Handed]:
        before = self.end
        self.end = self.flushed_end = (numbers[-1] + 1) * SIZE
        burst: Any = [(queue or self.queue, arrival_of(number)) for number in numbers]
        self.cursor.hand(burst, before)
        return list(burst)

    def dispatched(self, limit: int = 100) -> list[int]:
        return [arrival.physical_offset // SIZE for arrival in self.cursor.dispatch(limit)]

    def handed(self) -> list[int]:
        return [arrival.physical_offset // SIZE for arrival in self.cursor.waiting()]


def arrival_of(number: int) -> Arrival:
    return Arrival("T", 0, number + 1, 3, 4, number * SIZE, SIZE)


def test_appended_records_are_handed_over_in_order() -> None:
    """The dispatcher gets appended records in log order, without reading them."""
    bench = Bench()
    bench.append(0, 1)
    bench.append(2)
    assert bench.handed() == [0, 1, 2]
    assert (bench.dispatched(2), bench.cursor.cursor, bench.handed()) == ([0, 1], 2 * SIZE, [2])
    assert (bench.dispatched(2), bench.cursor.cursor, bench.handed()) == ([2], 3 * SIZE, [])
    assert (bench.notes, bench.queue.listed) == ([], [0, SIZE, 2 * SIZE])
    bench = Bench(2)
    assert bench.cursor.dispatch(1) == [arrival_of(0)]
    assert bench.notes == ["lock", "unlock", "read 0"]
    assert bench.dispatched() == [1]
    assert bench.cursor.cursor == 2 * SIZE


def test_a_cursor_that_is_behind_reads_the_log() -> None:
    """A cursor that has fallen behind reads records from the log until it has caught up."""
    bench = Bench(1)
    bench.append(1)
    assert (bench.handed(), bench.dispatched(2)) == ([], [0, 1])
    bench.append(2)
    assert (bench.handed(), bench.dispatched()) == ([], [2])
    bench.append(3, 4)
    bench.append(5)
    assert bench.handed() == [3, 4, 5]
    bench = Bench()
    bench.append(0)
    bench.end += SIZE
    bench.append(2)
    bench.end = SIZE
    bench.append(1)
    bench.end = 3 * SIZE
    assert (bench.handed(), bench.dispatched()) == ([0], [0, 1, 2])
    bench.append(3)
    assert bench.handed() == [3]
    bench = Bench()
    bench.append(0)
    bench.cursor.handed.clear()
    waiting = bench.append(1)
    assert list(bench.cursor.handed) == waiting
    bench.cursor._read(5, bench.end, [])
    assert bench.notes == ["lock", "unlock"]


def test_the_number_of_records_handed_over_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_builder, "HANDED_COUNT_MAX", 2)
    bench = Bench()
    for number in range(4):
        bench.append(number)
    assert bench.handed() == [0, 1]
    bench.flushed_end = bench.end
    assert bench.dispatched() == [0, 1, 2, 3]


def test_records_that_do_not_arrive() -> None:
    """A deleted queue lists no more records, and a record that is already listed causes no second arrival event."""
    bench = Bench()
    gone = Queue()
    bench.append(0)
    bench.append(1, queue=gone)
    bench.cursor.hand([(None, arrival_of(2))], bench.end)
    bench.end = bench.flushed_end = 3 * SIZE
    assert bench.handed() == [0, 1]
    bench.cursor.unlist([gone])  # type: ignore[list-item] # the fake one
    assert bench.handed() == [0]
    assert (bench.dispatched(), bench.cursor.cursor, gone.listed) == ([0], 3 * SIZE, [])
    bench = Bench(2)
    bench.queue.listed.append(0)
    assert (bench.dispatched(), bench.cursor.cursor) == ([1], 2 * SIZE)


def test_no_message_is_visible_before_it_is_durable() -> None:
    for handed in (True, False):
        bench = Bench(0 if handed else 3)
        if handed:
            bench.append(0, 1, 2)
        bench.cursor.only_durable = True
        bench.flushed_end = 2 * SIZE
        assert (bench.dispatched(), bench.dispatched()) == ([0, 1], [])
        reads = len(bench.notes)
        bench.cursor.only_durable = False
        assert bench.dispatched() == [2]
        assert (len(bench.notes) > reads) is not handed


@pytest.mark.parametrize("handed", [True, False])
def test_a_queue_that_cannot_grow_delays_only_its_own_records(handed: bool) -> None:
    """Every call first retries the records of the queue that could not grow; other queues' records are dispatched."""
    bench = Bench(0 if handed else 2)
    other = Queue(1)
    if handed:
        bench.append(0, 1)
    bench.dispatched(1)
    bench.queue.is_full = True
    assert (bench.dispatched(), bench.cursor.cursor, bench.cursor.visible_end) == ([], 2 * SIZE, SIZE)
    bench.append(2, queue=other)
    bench.append(3)
    assert (bench.dispatched(), str(bench.cursor.trouble)) == ([2], "no room")
    bench.queue.is_full = False
    bench.append(4, queue=other)
    assert bench.dispatched() == [1, 3, 4]
    assert (bench.cursor.trouble, bench.cursor.visible_end) == (None, 5 * SIZE)


def test_the_visible_end_may_be_read_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, seen = Bench(), []

    class Watched(deque[Arrival]):
        """Runs queries on another thread before and after every change of the deque."""

        def append(self, arrival: Arrival) -> None:
            seen.append(bench.cursor.visible_end)
            super().append(arrival)

        def popleft(self) -> Arrival:
            first = super().popleft()
            seen.append(bench.cursor.visible_end)
            return first

    monkeypatch.setattr(queue_builder, "deque", Watched)
    bench.append(0, 1, 2)
    bench.queue.is_full = True
    assert (bench.dispatched(), seen) == ([], [0, 0])
    bench.queue.is_full = False
    assert (bench.dispatched(), seen) == ([0, 1, 2], [0, 0, SIZE, 2 * SIZE, 3 * SIZE])


def test_damaged_records_blank_records_and_additional_queues() -> None:
    """Records before a damaged record are listed first. A blank record counts towards the limit and is not listed."""
    damage: Sequence[Any] = (None, Damage(0, "zeros", "a record"))
    for found in damage:
        bench = Bench(2)
        bench.special[SIZE] = found
        assert bench.dispatched() == [0]
        with pytest.raises(StoreDamageError, match=r"physical offset 10: .*longpoll store verify"):
            bench.dispatched()
        assert bench.cursor.cursor == SIZE
    bench = Bench(3)
    bench.special[SIZE] = 2 * SIZE
    assert (bench.dispatched(2), bench.cursor.cursor, bench.dispatched(1)) == ([0], 2 * SIZE, [2])
    bench = Bench(1)
    other, known = Queue(7), Queue(8)
    known.listed.append(0)
    bench.inner[0] = [(other, 5), (known, 6)]
    assert bench.cursor.dispatch(1) == [Arrival("T", 7, 6, 3, 4, 0, SIZE), arrival_of(0)]


def test_a_delayed_message_is_due_by_this_brokers_levels() -> None:
    record = Record(
        100, MAGIC_V1, 0, 2, 0, 5, 700, 0, 0, b"", 1_000, b"", 0, 0, memoryview(b""), SCHEDULE_TOPIC, b"DELAY\x012"
    )
    found = queue_builder.arrival_of(record, "T", 1, 9, (3_000, 77_000))
    assert found == Arrival("T", 1, 10, 78_000, 1_000, 700, 100)
    other = queue_builder.arrival_of(structs.replace(record, topic="T"), "T", 1, 9, (3_000, 77_000))
    assert other.tags_code == 0


GROWING = ("create", "lengthen", "reserve", "make_directory", "map")
MULTI = evolve(SMALL, multi_dispatch=True, index=False)
UNITS_A_FILE = SMALL.consume_queue_file_size // 20


@define
class World:
    """A store on a simulated disk. A disk call in `failing` fails if its path contains `where`."""

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
        return len(read_all(self.store, topic, queue_id))


def prepared(store: MessageStore, topic: str) -> None:
    batch = store.prepare(topic, 0)
    batch.add([message(topic), message(topic)])
    store.put_prepared(batch)


def further(store: MessageStore, topic: str) -> None:
    store.put(replace(message("Known", properties={INNER_QUEUES: topic}), inner_queues=((topic, 0),)))


WAYS: dict[str, Callable[[MessageStore, str], object]] = {
    "alone": lambda store, topic: store.put(message(topic)),
    "batch": lambda store, topic: store.put_batch([message("Known"), message(topic)]),
    "prepared": prepared,
    "further": further,
}


@pytest.mark.parametrize("put", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO])
def test_a_send_is_refused_if_its_queue_cannot_be_created(
    put: Callable[[MessageStore, str], object], code: int
) -> None:
    """The refused send leaves the log unchanged, other topics continue, and a retry succeeds once there is space."""
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
def test_a_send_is_refused_if_its_queue_cannot_grow(
    put: Callable[[MessageStore, str], object],
) -> None:
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


def test_an_unmappable_queue_delays_only_its_own_messages() -> None:
    """Later sends to the unmapped queue are refused and the health check reports it; other queues continue."""
    world = World(code=errno.EMFILE)
    first = world.store.put(message("Stuck"))
    world.store.put(message("Stuck"))
    stuck = world.store._table.topics["Stuck"].queues[0]
    # The map of the other queue may have taken the place of the stuck queue's map.
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
    """A store with two messages of a queue that cannot be mapped, and one later message of another queue."""
    world = World(code=errno.EMFILE)
    world.store.put(message("Stuck"))
    world.store.put(message("Stuck"))
    world.store._table.topics["Stuck"].queues[0].segments.segments[0]._mapped = None
    world.where = "consumequeue/Stuck"
    world.store.put(message("Other"))
    world.show()
    assert world.store.is_behind
    return world


def test_stores_that_are_behind() -> None:
    """A kill, a clean stop or a failed start loses no message, not even a message that is not yet visible."""
    world = stuck_world()
    world.store.flush_queues()
    world = World(disk=world.disk.kill())
    assert (world.bodies("Stuck"), world.bodies("Other")) == (2, 1)
    world = stuck_world()
    with pytest.raises(OSError, match="Too many open files"):
        world.store.close()
    assert world.runtime.files.exists(f"{DIRECTORY}/abort")
    world = World(disk=world.disk.kill())
    assert (world.bodies("Stuck"), world.bodies("Other")) == (2, 1)
    world = stuck_world()
    with pytest.raises(OSError, match="Too many open files"):
        World(disk=world.disk.kill(), where="consumequeue/Stuck", code=errno.EMFILE)
    world = stuck_world()
    world.store.delete_topic("Stuck")
    world.show()
    assert (world.store.is_behind, world.store.troubles) == (False, {})
    world.where = ""
    world.store.put(message("Stuck"))
    world.show()
    assert world.bodies("Stuck") == 1


def test_retention_keeps_files_with_invisible_messages() -> None:
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


def test_the_number_of_undispatched_messages_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor stops at the limit of undispatched messages, even if a copied log grows beyond this limit."""
    monkeypatch.setattr(queue_builder, "BEHIND_COUNT_MAX", 1)
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


def test_a_queue_behind_many_failing_ones_is_retried() -> None:
    count = 3 * queue_builder.RETRIED_COUNT
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
