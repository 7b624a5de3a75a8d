"""The real message store on a simulated disk: a seed chooses operations and faults, and each step is checked.

A seed first chooses the possible operations and faults, because runs with all of them rarely get far (swarm testing,
Groce et al., ISSTA 2012). The run then puts, dispatches, flushes, deletes, closes and kills, cuts the power between or
inside operations, and makes calls fail. After every opening the store must match `StoreModel`, a list that knows
nothing of files, and pass its own verifier.

The schedules of `longpoll_simulation` test concurrency.
"""

from __future__ import annotations

import os
import random
from collections.abc import Container, Sequence
from typing import Final

from attrs import Factory, define, evolve, frozen
from model_tests.support.broker.stores import SMALL, message, result_of
from model_tests.support.simulation.disk import Disk, Order
from model_tests.support.simulation.files import ERRORS, SimulatedFiles

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.consume_queue import OTHER_MAPS
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, MessageToStore
from longpoll_broker.store.verify import verify
from longpoll_protocol.errors import MessageRefusedError
from longpoll_runtime import Files
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import LongpollError

EVER_MS = 2**60
FOUND_COUNT_MAX = 64


@frozen
class Made:
    """A message to put, and the key and body by which it is found again."""

    message: MessageToStore
    key: str
    body: bytes


@define
class Sent:
    """A message that was put. `is_gone` means that its topic was deleted later, so that no queue lists it."""

    topic: str
    queue_id: int
    offset: int
    start: int
    record: bytes
    key: str
    tags_code: int
    is_listed: bool
    is_gone: bool = False

    @property
    def stop(self) -> int:
        """The physical offset at which the message's record ends."""
        return self.start + len(self.record)

    @property
    def is_shown(self) -> bool:
        """Whether a queue lists the message once it is visible."""
        return self.is_listed and not self.is_gone


@define
class StoreModel:
    """The expected contents of the store.

    Invariant: `sent` has the log's records in order, and the records before `durable_end` must survive.
    """

    sent: list[Sent] = Factory(list)
    durable_end: int = 0
    may_lose: bool = False
    """Whether power was cut since the store was last open, so that records may be lost that are not durable."""
    start_max: int = 0
    """The greatest offset at which the log may begin after expired files were removed."""
    dispatched_end: int = 0
    late: list[Sent] = Factory(list)
    """Earlier messages that are not visible yet, because their queue could not grow."""
    unsure: dict[str, int] = Factory(dict)
    """Maps each topic whose deletion is unfinished to the log's end when the deletion began. The topic may exist or
    not."""
    was_unsure: set[str] = Factory(set)
    """Topics whose unfinished deletion took effect. The offsets of their later messages need not begin at 0."""

    def next_offset(self, topic: str, queue_id: int) -> int:
        for each in reversed(self.sent):
            if each.topic == topic and each.queue_id == queue_id and each.is_shown:
                return each.offset + 1
        return 0

    def put(self, store: MessageStore, made: Made, offset: int, start: int) -> None:
        """Record a new message, and check the offset and the bytes with which it is stored."""
        topic, queue_id = made.message.topic, made.message.queue_id
        view = store.record_at(start)
        assert view is not None, f"{topic}@{queue_id}: the message that was just put is missing"
        record = bytes(view)
        assert made.body in record, f"{topic}@{queue_id}: the body differs"
        is_listed = made.message.in_queue
        expected = self.next_offset(topic, queue_id) if is_listed else 0
        assert offset == expected, f"{topic}@{queue_id}: offset {offset}, not {expected}"
        self.sent.append(Sent(topic, queue_id, expected, start, record, made.key, made.message.tags_code, is_listed))

    def delete(self, topic: str) -> None:
        """Record the deletion of a topic, after which no queue lists its messages."""
        self.unsure.pop(topic, None)
        self.was_unsure.discard(topic)
        for each in self.sent:
            if each.topic == topic:
                each.is_gone = True

    def dispatched(self, arrivals: Sequence[Arrival], end: int, behind: Container[tuple[str, int]]) -> None:
        """Check that exactly the expected messages became visible.

        Messages of queues in `behind` may become visible later.
        """
        new = (each for each in self.sent if self.dispatched_end <= each.start < end)
        due = [each for each in (*self.late, *new) if each.is_shown]
        found = [(each.topic, each.queue_id, each.offset_end, each.physical_offset) for each in arrivals]
        starts = {each.physical_offset for each in arrivals}
        was_late, self.late = self.late, []
        for each in due:
            if each.start not in starts and (each.topic, each.queue_id) in behind:
                self.late.append(each)
        expected = [(each.topic, each.queue_id, each.offset + 1, each.start) for each in due if each not in self.late]
        # Messages that are tried again become visible before other messages, queue by queue.
        same = sorted(found) == sorted(expected) if was_late else found == expected
        assert same, f"arrived: {found}, not {expected}"
        self.dispatched_end = end

    def reopened(self, store: MessageStore) -> None:
        """Check all contents of a store that was just opened; from now on, missing messages count as lost."""
        end, start = store.log_end, store.log_start
        # The log may lose the blank record at the end of a file.
        durable = max((each.stop for each in self.sent if each.stop <= self.durable_end), default=0)
        assert end >= durable, f"the log ends at {end}, and {durable} was durable"
        self.durable_end, self.late = min(self.durable_end, end), []
        kept = [each for each in self.sent if each.start < end]
        assert self.may_lose or len(kept) == len(self.sent), f"the log ends at {end} and the power was never cut"
        assert start <= self.start_max, f"the log begins at {start}, and nothing after {self.start_max} could go"
        self.sent, self.may_lose = kept, False
        self._resolve(store, start)
        self.dispatched_end = store.dispatched_end
        assert self.dispatched_end == end
        self.compare(store)

    def _resolve(self, store: MessageStore, start: int) -> None:
        """Determine whether unfinished deletions took effect."""
        for topic, end in sorted(self.unsure.items()):
            before = [each for each in self.sent if each.topic == topic and each.start < end and each.is_shown]
            there = [each for each in before if each.start >= start]
            listed = [each for each in there if _is_listed(store, each)]
            assert listed in ([], there), f"{topic} was deleted in part"
            # If all records of a queue have expired, only its end shows whether the queue exists.
            if not listed and (there or all(store.visible_end(topic, each.queue_id) == 0 for each in before)):
                self.was_unsure.add(topic)
                for each in before:
                    each.is_gone = True
        self.unsure.clear()

    def compare(self, store: MessageStore) -> None:
        """Check every record of the log, and every queue up to its visible end."""
        start = store.log_start
        ends: dict[tuple[str, int], int] = {}
        for each in self.sent:
            if each.is_shown and each.start < self.dispatched_end:
                queue = ends.get((each.topic, each.queue_id), 0)
                is_first = not queue and each.topic in self.was_unsure
                assert is_first or each.offset == queue, (
                    f"{each.topic}@{each.queue_id}: {queue} comes before {each.offset}"
                )
                ends[each.topic, each.queue_id] = each.offset + 1
            if each.start < start:
                continue
            found = store.record_at(each.start)
            assert bytes(found or b"") == each.record, f"the record at {each.start} is another, or not there"
            if each.is_shown and each.start < self.dispatched_end:
                assert _is_listed(store, each), f"{each.topic}@{each.queue_id}: no unit {each.offset} for {each.start}"
        for topic, queue_id in sorted({(each.topic, each.queue_id) for each in self.sent}):
            end, expected = store.visible_end(topic, queue_id), ends.get((topic, queue_id), 0)
            assert end == expected, f"{topic}@{queue_id} ends at {end}, not {expected}"

    def find(self, store: MessageStore, wanted: Sent) -> bool:
        """Whether a query by the message's key finds its record."""
        return wanted.record in result_of(store.query(wanted.topic, wanted.key, FOUND_COUNT_MAX, 0, EVER_MS))[0].records


def _is_listed(store: MessageStore, sent: Sent) -> bool:
    return store.unit(sent.topic, sent.queue_id, sent.offset) == (sent.start, len(sent.record), sent.tags_code)


DIRECTORY: Final = "/data/store"
TOPICS: Final = ("A", "B", "%RETRY%C")
QUEUES: Final = (0, 0, 1, 9)
TAGS: Final = (None, "red", "AaAa")
BEGINS_MS: Final = 1_800_000_000_000
OPENINGS_MAX: Final = 5
"""How often an opening of the store may be interrupted or fail before the next one runs without a fault."""
PREPARED: Final = 0x4
INDEXED_COUNT: Final = 1000
HALF, FULL = 0.5, 0.9
"""Used shares of the disk. If more than 0.85 is used, the store may remove every file that it does not need."""

OPERATIONS: Final = {
    "put": 6, "put_burst": 4, "put_batch": 2, "dispatch": 5, "flush": 4, "flush_queues": 3, "index": 2, "find": 1,
    "expire": 2, "delete": 1, "write_back": 2, "wait": 6, "look": 1, "close": 2, "kill": 2, "cut": 2,
}  # fmt: skip
"""Maps each operation on a store to its relative frequency. A seed omits about a third of the operations."""
ORDERS: Final[tuple[Order, ...]] = ("none", "directory", "all")
SYNCS: Final = ("sync", "sync_directory")
ALWAYS: Final = frozenset({"put", "dispatch", "flush"})
BETWEEN: Final = ("put", "dispatch", "flush", "index", "delete", "write_back")
"""Operations that may run while the queues are being flushed."""
BETWEEN_CHANCE: Final = 0.2


class Ended(BaseException):
    """Raised inside an operation when a kill or a power cut ends the process."""


@frozen
class Swarm:
    """What a seed's run may do."""

    config: StoreConfig
    operations: tuple[str, ...]
    """The possible operations. Each is drawn from this tuple, so an operation that occurs several times is drawn more
    often."""
    ends_inside: bool
    """Whether a kill or power cut may interrupt an operation."""
    errors: bool
    """Whether file calls may fail."""
    failing: tuple[str, ...]
    """The file calls that may fail: all, or only syncs, whose failure has the worst effects."""
    power: bool
    """Whether operations are interrupted by power cuts instead of kills."""
    order: Order
    """The order in which the disk keeps name changes."""
    waits_ms: tuple[int, ...]
    maps_max: int
    """The maximum number of memory maps of queue files and other files."""


@define
class Tally:
    openings: int = 0
    messages: int = 0
    ended_inside: int = 0
    errors: int = 0
    cuts: int = 0
    story: list[str] = Factory(list)


class StoreRuntime(RealRuntime):
    """A runtime with real locks, simulated files and a manual clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = BEGINS_MS
        self.simulated: SimulatedFiles | None = None

    @property
    def files(self) -> Files:
        assert self.simulated is not None
        return self.simulated

    def unix_ms(self) -> int:
        return self.now_ms

    def memory_size(self) -> int:
        return 1 << 20


def draw_swarm(chance: random.Random) -> Swarm:
    config = evolve(
        SMALL,
        index=chance.random() < 0.6,
        extended_queues=chance.random() < 0.2,
        extended_file_size=200,
        visible_when_durable=chance.random() < 0.2,
        commit_log_file_size=chance.choice((2048, 2048, 8192)),
    )
    operations = [
        name
        for name, count in OPERATIONS.items()
        if name in ALWAYS or chance.random() < 0.65
        for _ in range(count)
    ]  # fmt: skip
    return Swarm(
        config,
        tuple(operations),
        ends_inside=chance.random() < 0.6,
        errors=chance.random() < 0.4,
        failing=chance.choice((tuple(ERRORS), SYNCS)),
        power=chance.random() < 0.7,
        order=chance.choice(ORDERS),
        waits_ms=chance.choice(((0, 1), (1, 2500), (5000,))),
        maps_max=OTHER_MAPS + chance.choice((1, 2, 3, 1000)),
    )


class SimulatedStore:
    """The run of one seed. Invariant: between operations, `store` is open on `runtime.simulated` and equals `model`."""

    def __init__(self, seed: int, swarm: Swarm | None = None) -> None:
        self.chance = random.Random(seed)
        self.swarm = swarm or draw_swarm(self.chance)
        self.runtime = StoreRuntime()
        self.model = StoreModel()
        self.tally = Tally()
        self.used = HALF
        self._calls_left = 0
        self._is_error = False
        self._is_over = False
        disk = Disk()
        disk.make_directory("/data")
        disk.root.sync(disk.number)
        self._boot(disk)
        self.store = self._open()

    # ------------------------------------------------------------------ the world

    def _boot(self, disk: Disk) -> None:
        self._is_over = False
        self.runtime.simulated = SimulatedFiles(
            disk,
            before=self._before,
            now_ms=self.runtime.unix_ms,
            used_ratio=lambda: self.used,
            maps_max=self.swarm.maps_max,
        )

    @property
    def disk(self) -> Disk:
        assert self.runtime.simulated is not None
        return self.runtime.simulated.disk

    def _before(self, operation: str, path: str) -> None:
        if self._is_over:
            raise Ended
        if self._calls_left == 0 or (self._is_error and operation not in self.swarm.failing):
            return
        self._calls_left -= 1
        if self._calls_left:
            return
        if self._is_error:
            code = self.chance.choice(ERRORS[operation])
            self.tally.errors += 1
            self._tell(f"  {operation} {path} fails: {os.strerror(code)}")
            raise OSError(code, os.strerror(code), path)
        self._is_over = True
        self.tally.ended_inside += 1
        self._tell(f"  ended before {operation} {path}")
        raise Ended

    def _tell(self, line: str) -> None:
        self.tally.story.append(line)

    def _plan(self) -> None:
        """Perhaps choose one of the next file calls to fail, or to be the last before the process ends."""
        self._calls_left = 0
        kinds = [is_error for is_error, there in ((False, self.swarm.ends_inside), (True, self.swarm.errors)) if there]
        if kinds and self.chance.random() < 0.15:
            self._is_error = self.chance.choice(kinds)
            self._calls_left = self.chance.choice((1, 2, 3, 5, 8, 13, 21))

    def _die(self, *, power: bool) -> None:
        """Kill the process or cut the power, and continue with the disk that is left."""
        if power:
            self.tally.cuts += 1
            self.model.may_lose = True
            self._boot(self.disk.cut(self.chance, self.swarm.order))
        else:
            self._boot(self.disk.kill())
            self._evict()
        self._tell("-- the power is cut" if power else "-- killed")

    def _evict(self) -> None:
        """Perhaps lose the pages that a failed sync did not write, as if the system read them from the disk again."""
        if self.chance.random() < 0.5 and self.disk.evict(self.chance):
            self._tell("-- what a failed sync left is read again")
            self.model.may_lose = True

    def _open(self) -> MessageStore:
        store: MessageStore | None = None
        for attempt in range(OPENINGS_MAX + 1):
            self._calls_left = 0
            if attempt < OPENINGS_MAX:
                self._plan()
            try:
                store = MessageStore.open(self.runtime, DIRECTORY, self.swarm.config)
            except Ended:
                self._die(power=self.swarm.power)
            except OSError as error:
                self._tell(f"opening fails: {error.strerror}")
            else:
                break
        assert store is not None, "the store cannot be opened"
        self._calls_left = 0
        self.tally.openings += 1
        self._tell(f"open from {store.log_start} to {store.log_end}")
        self.model.reopened(store)
        if self.chance.random() < 0.5:
            self._verify()
        return store

    def _verify(self) -> None:
        """Check that the store's verifier finds all records and no problem."""
        verdict = verify(self.runtime.files, DIRECTORY)
        assert verdict.problems == [], verdict.problems[0]
        names = self.runtime.files.list(f"{DIRECTORY}/commitlog")
        start = int(names[0]) if names else 0
        expected = sum(each.start >= start for each in self.model.sent)
        assert verdict.messages == expected, f"{verdict.messages} records, and {expected} were put"

    # ------------------------------------------------------------------ a run

    def run(self) -> Tally:
        """Run the seed. The message of a failed assertion includes the run's whole trace."""
        try:
            for _ in range(self.chance.randrange(5, 40)):
                self._do(self.chance.choice(self.swarm.operations))
            self._do("close")
        except (AssertionError, LongpollError, ValueError) as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n" + "\n".join(self.tally.story)) from error
        finally:
            self.store.abandon()
        return self.tally

    def _do(self, operation: str) -> None:
        self._tell(operation)
        self._plan()
        try:
            getattr(self, f"_do_{operation}")()
        except Ended:
            self._calls_left = 0
            self._die(power=self.swarm.power)
            self.store = self._open()
        except OSError as error:
            self._tell(f"  {operation} fails: {error.strerror}")
        except MessageRefusedError as error:
            # The batch is too large for any log file.
            self._tell(f"  {operation} is refused: {error}")
        self._calls_left = 0

    # ------------------------------------------------------------------ operations

    def _made(self) -> Made:
        chance, number = self.chance, self.tally.messages
        self.tally.messages += 1
        body = b"%d:" % number + b"b" * chance.choice((0, 10, 400, 700))
        key = f"k{number}"
        sent = message(
            chance.choice(TOPICS), chance.choice(QUEUES), body,
            tag=chance.choice(TAGS), properties={"KEYS": key},
            sys_flag=0 if chance.random() < 0.9 else PREPARED,
        )  # fmt: skip
        return Made(sent, key, body)

    def _do_put(self) -> None:
        made = self._made()
        put = self.store.put(made.message)
        self.model.put(self.store, made, put.queue_offset, put.physical_offset)

    def _do_put_burst(self) -> None:
        several = [self._made() for _ in range(self.chance.randrange(1, 5))]
        burst = self.store.put_burst([each.message for each in several])
        self._tell(f"  {len(burst)} of {len(several)}")
        for made, arrival in zip(several, burst, strict=False):
            self.model.put(self.store, made, arrival.offset_end - 1, arrival.physical_offset)

    def _do_put_batch(self) -> None:
        several = [self._made() for _ in range(self.chance.randrange(1, 4))]
        for made, put in zip(several, self.store.put_batch([each.message for each in several]), strict=True):
            self.model.put(self.store, made, put.queue_offset, put.physical_offset)

    def _do_dispatch(self) -> None:
        arrivals: Sequence[Arrival] = ()
        try:
            arrivals = self.store.dispatch(self.chance.randrange(1, 9))
        finally:
            if not self._is_over:
                behind = {(queue.topic, queue.queue_id) for queue in self.store._dispatcher.behind}
                self.model.dispatched(arrivals, self.store.dispatched_end, behind)

    def _do_flush(self) -> None:
        self.model.durable_end = self.store.flush()

    def _do_flush_queues(self) -> None:
        """Flush one queue after another, and sometimes run another operation between two queues."""
        for _ in self.store.flush_queues_in_turns(1):
            if self.chance.random() < BETWEEN_CHANCE:
                operation = self.chance.choice(BETWEEN)
                self._tell(f"  {operation} between two queues")
                getattr(self, f"_do_{operation}")()

    def _do_index(self) -> None:
        self.store.index(self.chance.randrange(1, 9))

    def _do_find(self) -> None:
        """Find a message by its key; the query first indexes new messages, so it misses none unless a call fails."""
        start, end, errors = self.store.log_start, self.store.dispatched_end, self.tally.errors
        there = [each for each in self.model.sent if start <= each.start < end]
        if there and self.swarm.config.index:
            wanted = self.chance.choice(there)
            found = self.model.find(self.store, wanted)
            assert found or errors < self.tally.errors, f"the record at {wanted.start} is not found by its key"

    def _do_expire(self) -> None:
        self.model.start_max = max(self.model.start_max, min(self.store.dispatched_end, self.store.flushed_end))
        self.used = FULL
        try:
            # The retention keeps messages that are not indexed yet, so index them first.
            self.store.index(INDEXED_COUNT)
            gone = self.store.remove_expired()
        finally:
            self.used = HALF
        self._tell(f"  {gone} files")

    def _do_delete(self) -> None:
        topic, store, model = self.chance.choice(TOPICS), self.store, self.model
        end, was_there = store.log_end, any(name == topic for name, _queue in store.queues())
        try:
            store.delete_topic(topic)
        except OSError:
            if was_there and all(name != topic for name, _queue in store.queues()):
                model.delete(topic)
                raise
            model.unsure[topic] = end
            if not was_there:
                # Only the next opening of the store shows whether the topic is deleted.
                raise Ended from None
            raise
        except Ended:
            model.unsure[topic] = end
            raise
        model.delete(topic)

    def _do_write_back(self) -> None:
        self.disk.write_back(self.chance)

    def _do_wait(self) -> None:
        self.runtime.now_ms += self.chance.choice(self.swarm.waits_ms)

    def _do_look(self) -> None:
        self.model.compare(self.store)

    def _do_close(self) -> None:
        """Close the store and open it again. After a clean close all is durable, and the verifier finds no problem."""
        end = self.store.log_end
        try:
            self.store.close()
        except OSError as error:
            self._tell(f"  close fails: {error.strerror}")
            self._evict()
        else:
            self._calls_left = 0
            self.model.durable_end = end
            self._verify()
            if self.chance.random() < 0.3:
                self._die(power=True)
        self.store = self._open()

    def _do_kill(self) -> None:
        self._die(power=False)
        self.store = self._open()

    def _do_cut(self) -> None:
        self._die(power=True)
        self.store = self._open()
