"""A channel, a thread pool and a store, with switches between any two accesses of their code.

For a channel, a seed chooses two or three writers with answers of several buffers, a loop that sends the remaining
bytes when the socket has room, and sometimes a close. The socket must get each answer once, complete and contiguous,
and nothing after the close. While bytes remain, the loop must watch the socket.

For a pool, a seed chooses one or two threads with room for a few tasks, slow tasks, two or three threads that offer
tasks, and the stop. Each accepted task must either run once or be refused once as late. A rejected task must neither
run nor be refused.

For a store, a seed chooses one to three producers (single messages, bursts, batches, or messages also listed by a light
queue), one or two dispatchers, up to two flushers, perhaps a disk whose queue files fail for a while, few mapped queue
files with two readers, and a thread that deletes another topic or removes the oldest log files from a full disk. Every
message must be one complete record of the log and become visible once in each of its queues, in the order of offsets.
Everything before a returned flush must be durable and covered by the checkpoint.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import attrs
import msgspec
import pytest
from attrs import define, field
from model_tests.simulate.stress import FEW_SHARE, Preemption, Run, first_fault
from model_tests.simulate.test_clients import ClientRun
from model_tests.support.broker.stores import SMALL, message
from model_tests.support.simulation.disk import Disk
from model_tests.support.simulation.files import SimulatedFiles
from model_tests.support.simulation.network import Network
from model_tests.support.simulation.runtime import SimulatedRuntime

from longpoll_broker.hold import pull_pool
from longpoll_broker.hold.pull_pool import PoolExecutor
from longpoll_broker.io import channel
from longpoll_broker.io.channel import Channel, Limits, Outbox
from longpoll_broker.store import burst_append, commit_log, consume_queue, message_store, queue_builder, segment
from longpoll_broker.store.consume_queue import OTHER_MAPS
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, MessageToStore

CHANNEL_FILES: Final = (str(channel.__file__),)
LIMITS: Final = Limits(1 << 20, 1 << 20, 10, 1000)
CLOSE_SHARE: Final = 0.2


@define(eq=False)
class ChannelStage:
    """One run; also acts as the channel's loop, poller and socket.

    Invariant: `sent` has the bytes that the open socket accepted, in order.
    """

    seed: int
    preemption: Preemption = field(init=False)
    sent: bytearray = field(factory=bytearray, init=False)
    watches_write: bool = field(default=False, init=False)
    is_open: bool = field(default=True, init=False)
    given_up: bool = field(default=False, init=False)
    channel: Channel = field(init=False)
    frames: dict[str, list[bytes]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.preemption = Preemption(self.seed, CHANNEL_FILES)
        stage: Any = self
        self.channel = Channel(stage, stage, ("127.0.0.1", 1), 1, stage, LIMITS, self.preemption.lock())

    # -- the loop, the poller and the socket -------------------------------------------------------------------------

    @property
    def poller(self) -> Any:
        return self

    def modify(self, _socket: object, *, read: bool, write: bool, data: object) -> None:
        assert self.is_open, "a socket is watched after it was closed"
        self.watches_write = write

    def unregister(self, _socket: object) -> None:
        self.watches_write = False

    def close(self) -> None:
        self.is_open = False

    def close_soon(self, _channel: Channel) -> None:
        self.given_up = True

    def send(self, data: bytes) -> int:
        assert self.is_open, "a socket is sent to after it was closed"
        room = self.preemption.random.randint(0, len(data))
        if not room:
            raise BlockingIOError
        self.sent += bytes(data[:room])
        return room

    def send_parts(self, parts: Sequence[bytes]) -> int:
        return self.send(b"".join(map(bytes, parts)))

    # -- the actors --------------------------------------------------------------------------------------------------

    def write(self, name: str) -> None:
        for frame in self.frames[name]:
            self.channel.write([frame[:1], frame[1:3], frame[3:]])
            self.channel.flush()

    def go_on(self) -> None:
        for _ in range(3):
            if self.watches_write:
                self.channel.flush()

    def play(self) -> None:
        names = ["a", "b", "c"][: self.preemption.random.choice((2, 3))]
        self.frames = {name: [f"<{name * (3 + number)}{number}>".encode() for number in range(3)] for name in names}
        actors: dict[str, Callable[[], None]] = {name: partial(self.write, name) for name in names}
        actors["loop"] = self.go_on
        if self.preemption.random.random() < CLOSE_SHARE:
            actors["close"] = self.channel.close
        self.preemption.run(actors)
        assert not self.given_up, "a reading connection is given up"
        if not self.channel.closed:
            assert self.watches_write == self.channel.unsent(), "the loop does not watch for the remaining bytes"
        while self.watches_write:
            self.channel.flush()
        self.look()

    def look(self) -> None:
        """Check that each thread's answers were sent once, complete and in order, or up to the channel's close."""
        text = bytes(self.sent)
        wanted = {name: list(frames) for name, frames in self.frames.items()}
        while text:
            found = [name for name, frames in wanted.items() if frames and frames[0].startswith(text[: len(frames[0])])]
            assert found, f"the socket got bytes that no thread has written: {text[:12]!r}"
            frame = wanted[found[0]].pop(0)
            assert self.channel.closed or text.startswith(frame), "an answer was sent in part"
            text = text[len(frame) :]
        assert self.channel.closed or not any(wanted.values()), "an answer was never sent"


POOL_FILES: Final = (str(pull_pool.__file__),)
LATE_MS: Final = 5
TAKES_S: Final = (0.0, 0.0, 0.002, 0.02)
"""Durations of tasks in seconds. The longest task makes the tasks after it late."""
TASKS: Final = 3


@define(eq=False)
class PoolStage:
    seed: int
    preemption: Preemption = field(init=False)
    runtime: SimulatedRuntime = field(init=False)
    pool: PoolExecutor = field(init=False)
    taken: dict[str, bool] = field(factory=dict, init=False)
    ran: Counter[str] = field(factory=Counter, init=False)
    refused: Counter[str] = field(factory=Counter, init=False)

    def __attrs_post_init__(self) -> None:
        self.preemption = Preemption(self.seed, POOL_FILES)
        self.runtime = SimulatedRuntime(Network(self.preemption.world))
        draw = self.preemption.random
        run: Any = self.run
        refuse: Any = self.refuse
        self.pool = PoolExecutor(self.runtime, run, refuse, draw.randint(1, 2), draw.choice((1, 2, 10)), LATE_MS)

    def run(self, pull: str, _cause: str, _outbox: Outbox) -> None:
        self.ran[pull] += 1
        self.runtime.sleep(self.preemption.random.choice(TAKES_S))

    def refuse(self, pull: str, _cause: str, _outbox: Outbox) -> None:
        self.refused[pull] += 1

    def offer(self, name: str) -> None:
        for number in range(TASKS):
            pull: Any = f"{name}-{number}"
            self.taken[pull] = self.pool.submit(pull, "woken", Outbox())
            self.runtime.sleep(self.preemption.random.choice(TAKES_S[1:3]))

    def play(self) -> None:
        names = "abc"[: self.preemption.random.randint(2, 3)]
        actors: dict[str, Callable[[], None]] = {name: partial(self.offer, name) for name in names}

        def all_of_it() -> None:
            self.pool.start()
            threads = [self.runtime.spawn(name, target) for name, target in actors.items()]
            for thread in threads:
                thread.join()
            self.pool.stop()

        self.preemption.run({"owner": all_of_it})
        for pull, was_taken in self.taken.items():
            ends = self.ran[pull] + self.refused[pull]
            assert ends == was_taken, f"a pull that was {'taken' if was_taken else 'not taken'} has {ends} ends"


STORE_FILES: Final = tuple(
    str(module.__file__) for module in (queue_builder, message_store, burst_append, commit_log, segment, consume_queue)
)
"""Source files in which the scheduler may interrupt an actor. In a run of a pair, only the first file is interrupted.
"""
STORE_CONFIG: Final = attrs.evolve(SMALL, index=False, multi_dispatch=True, light_queues=True)
TOPIC: Final = "T"
LIGHT: Final = "%LMQ%a"
NAMES: Final = {"INNER_MULTI_DISPATCH": LIGHT}
PUTS: Final = 2
LIGHT_SHARE: Final = 0.25
BURST_SHARE: Final = 0.4
BATCH_SHARE: Final = 0.2
GONE: Final = "gone"
"""The deleted topic, whose deletion must not harm other messages."""
DELETING_SHARE: Final = 0.25
EXPIRING_SHARE: Final = 0.25
BIG_SIZE: Final = 700
"""Body size in runs with expiring files, so that two messages fill a log file."""
EXPIRES: Final = 4
FULL: Final = 0.9
PAIR_SHARE: Final = 0.3
"""Share of runs with only one producer, which sends two messages at a time, and one dispatcher.

These runs are longer than other runs. The second message is not handed over, so the dispatcher repeatedly falls behind
and catches up, and producer and dispatcher often run the same section of a few accesses at the same time."""
PAIR_PUTS: Final = 8
FAILING_SHARE: Final = 0.2
MAPS: Final = (1, 2, 1000)
READERS: Final = 2
READS: Final = 2
HANDED_MAX: Final = (1, 2, 100)
"""How many records are handed over to a dispatcher that has fallen behind and reads later records from the log."""


@define(eq=False)
class StoreStage:
    """One run. Invariant: `bodies` maps queue and offset to each acknowledged message and its offset in the log."""

    seed: int
    preemption: Preemption = field(init=False)
    runtime: SimulatedRuntime = field(init=False)
    disk: Disk = field(factory=Disk, init=False)
    store: MessageStore = field(init=False)
    is_pair: bool = field(init=False)
    deletes: bool = field(init=False)
    expires: bool = field(init=False)
    readers: int = field(init=False)
    failing: int = field(default=0, init=False)
    """How many of the next calls on queue files will fail."""
    bodies: dict[tuple[str, int, int], tuple[int, bytes]] = field(factory=dict, init=False)
    stored_ms: int = field(default=0, init=False)
    flushed: list[tuple[int, int]] = field(factory=list, init=False)
    """(durable end that a flush returned, greatest store time before the flush) of each flush."""
    arrivals: list[Arrival] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.is_pair = random.Random(self.seed ^ 0xB0).random() < PAIR_SHARE
        kind = random.Random(self.seed ^ 0xD0).random()
        self.deletes = not self.is_pair and kind < DELETING_SHARE
        self.expires = not self.is_pair and kind > 1 - EXPIRING_SHARE
        few_share = 0.0 if self.is_pair or self.expires else FEW_SHARE
        self.preemption = Preemption(self.seed, STORE_FILES[:1] if self.is_pair else STORE_FILES, few_share=few_share)
        maps = random.Random(self.seed ^ 0xE0).choice(MAPS)
        self.readers = READERS if maps < MAPS[-1] else 0
        files = SimulatedFiles(
            self.disk, before=self.before, used_ratio=lambda: FULL if self.expires else 0.0, maps_max=OTHER_MAPS + maps
        )
        self.runtime = SimulatedRuntime(Network(self.preemption.world), files)

    @property
    def random(self) -> random.Random:
        return self.preemption.random

    def before(self, operation: str, path: str) -> None:
        """Before a file operation, let the scheduler switch, or raise OSError as planned."""
        self.preemption.world.point(operation, path)
        if self.failing and "/consumequeue/" in path and operation in {"create", "map", "reserve"}:
            self.failing -= 1
            raise OSError(28, "No space left on device", path)

    # -- the actors --------------------------------------------------------------------------------------------------

    def produce(self, name: str) -> None:
        for number in range(PAIR_PUTS if self.is_pair or self.expires else PUTS):
            self.runtime.unix_ahead_ms += 1
            queue_id = self.random.randrange(2)
            bodies = [f"{name}-{number}-{each}".encode() * 3 for each in range(2)]
            if self.expires:
                bodies = [body.ljust(BIG_SIZE, b"-") for body in bodies]
            made = [message(TOPIC, queue_id, body) for body in bodies]
            if self.is_pair:
                for each in made:
                    self.put(each)
                self.runtime.sleep(0)  # Let the other actor run.
            elif self.expires:
                self.put(made[0])
            else:
                self.put_somehow(made)

    def put_somehow(self, made: Sequence[MessageToStore]) -> None:
        if self.random.random() < BURST_SHARE:
            for put, arrival in zip(made, self.store.put_burst(made), strict=False):
                self.note(put, arrival.offset_end - 1, arrival.physical_offset, arrival.store_ms)
        elif self.random.random() < BATCH_SHARE:
            self.put_batch(made)
        elif self.deletes:
            self.put(message(GONE, made[0].queue_id))
            self.put(made[0])
        elif self.random.random() < LIGHT_SHARE:
            listed = message(TOPIC, made[0].queue_id, bytes(made[0].body), properties=NAMES)
            self.put(msgspec.structs.replace(listed, inner_queues=((LIGHT, 0),)))
        else:
            self.put(made[0])

    def put(self, made: MessageToStore) -> None:
        try:
            put = self.store.put(made)
        except OSError:
            return
        self.note(made, put.queue_offset, put.physical_offset, put.store_ms)

    def put_batch(self, made: Sequence[MessageToStore]) -> None:
        try:
            puts = self.store.put_batch(made)
        except OSError:
            return
        assert puts[0].log_end == puts[1].physical_offset, "another message stands inside a batch"
        for each, put in zip(made, puts, strict=True):
            self.note(each, put.queue_offset, put.physical_offset, put.store_ms)

    def note(self, made: MessageToStore, offset: int, physical_offset: int, store_ms: int) -> None:
        if made.topic == GONE:
            return
        key = (made.topic, made.queue_id, offset)
        assert key not in self.bodies, "two messages have one offset"
        self.bodies[key] = physical_offset, bytes(made.body)
        self.stored_ms = max(self.stored_ms, store_ms)

    def dispatch(self) -> None:
        """Make messages visible once or twice, or `PAIR_PUTS` times in a run of a pair."""
        for _ in range(PAIR_PUTS if self.is_pair else self.random.randint(1, 2)):
            self.show()
            if self.is_pair:
                self.runtime.sleep(0)

    def show(self) -> None:
        """Make a few messages visible and record them; ignore errors of a full disk, because another call retries."""
        try:
            self.arrivals += self.store.dispatch(self.random.choice((1, 3, 100)) if not self.is_pair else 100)
        except OSError:
            return

    def read(self) -> None:
        for _ in range(READS):
            for (topic, queue_id, offset), (physical_offset, _body) in list(self.bodies.items()):
                start, end = self.store.ends(topic, queue_id)
                unit = self.store.unit(topic, queue_id, offset) if start <= offset < end else (physical_offset,)
                is_there = unit is not None or physical_offset < self.store.log_start
                assert is_there, f"message {offset} of queue {queue_id} is not visible to a reader"
                assert unit is None or unit[0] == physical_offset, f"a reader finds message {offset} elsewhere"

    def flush(self) -> None:
        before_ms = self.stored_ms
        self.flushed.append((self.store.flush(), before_ms))
        self.store.flush_queues()

    def delete(self) -> None:
        for _ in range(2):
            self.store.delete_topic(GONE)

    def expire(self) -> None:
        """Remove expired files from a full disk while only some messages are visible and durable."""
        for _ in range(EXPIRES):
            self.show()
            self.store.flush()
            self.store.remove_expired()

    def play(self) -> None:
        self.store = MessageStore.open(self.runtime, "/store", STORE_CONFIG)
        with handing_over(1 if self.is_pair else self.random.choice(HANDED_MAX)):
            for queue_id in range(2):  # A burst is accepted only if its queues exist.
                body = f"first-{queue_id}".encode()
                self.put(message(TOPIC, queue_id, body.ljust(BIG_SIZE, b"-") if self.expires else body))
            self.failing = self.random.randint(1, 3) if self.random.random() < FAILING_SHARE else 0
            self.preemption.run(self.actors())
        self.failing = 0
        self.look()

    def actors(self) -> dict[str, Callable[[], None]]:
        draw = self.random
        counts = (1, 1, 0) if self.is_pair else (draw.randint(2, 3), draw.randint(1, 2), draw.randint(0, 2))
        producers, dispatchers, flushers = counts
        actors: list[tuple[str, Callable[[], None]]] = [
            *((name, partial(self.produce, name)) for name in "abc"[:producers]),
            *((f"dispatch {number}", self.dispatch) for number in range(dispatchers)),
            *((f"flush {number}", self.flush) for number in range(flushers)),
            *((f"read {number}", self.read) for number in range(0 if self.is_pair else self.readers)),
            *([("delete", self.delete)] if self.deletes else []),
            *([("expire", self.expire)] if self.expires else []),
        ]
        draw.shuffle(actors)
        return dict(actors)

    # -- checks after a run ------------------------------------------------------------------------------------------

    def look(self) -> None:
        while self.store.dispatched_end < self.store.log_end or self.store.is_behind:
            self.show()
        self.look_at_queues()
        self.look_at_disk()

    def look_at_queues(self) -> None:
        told: dict[tuple[str, int], list[Arrival]] = {}
        for arrival in sorted(self.arrivals, key=lambda each: (each.topic, each.queue_id, each.offset_end)):
            told.setdefault((arrival.topic, arrival.queue_id), []).append(arrival)
        for key in self.store.queues():
            if key[0] == GONE:
                continue
            offsets = [arrival.offset_end - 1 for arrival in told.get(key, [])]
            assert offsets == list(range(self.store.visible_end(*key))), f"queue {key} reported {offsets}"
        for (topic, queue_id, offset), (physical_offset, body) in self.there().items():
            unit = self.store.unit(topic, queue_id, offset)
            assert unit is not None, f"message {offset} of queue {queue_id} is not visible"
            assert unit[0] == physical_offset, f"message {offset} of queue {queue_id} is listed elsewhere"
            assert self.body_at(self.store, unit[0]) == body, f"message {offset} of queue {queue_id} is another one"

    def there(self) -> dict[tuple[str, int, int], tuple[int, bytes]]:
        start = self.store.log_start
        return {key: placed for key, placed in self.bodies.items() if placed[0] >= start}

    def body_at(self, store: MessageStore, physical_offset: int) -> bytes | None:
        record = store.read_record(physical_offset)
        return None if record is None else bytes(record.body)

    def look_at_disk(self) -> None:
        """Check that the checkpoint covers every flush, and that flushed data survives a power cut."""
        physic_ms = self.store._checkpoint.physic_ms
        for _end, stored_ms in self.flushed:
            assert physic_ms >= stored_ms, "the checkpoint does not cover a flush"
        durable_end = max((end for end, _stored_ms in self.flushed), default=0)
        kept = [unit for unit in map(self.unit_of, self.there()) if unit[0] + unit[1] <= durable_end]
        bodies = {physical_offset: self.body_at(self.store, physical_offset) for physical_offset, _size in kept}
        left = SimulatedFiles(self.disk.cut(self.random))
        again = MessageStore.open(SimulatedRuntime(Network(self.preemption.world), left), "/store", STORE_CONFIG)
        for physical_offset, body in bodies.items():
            assert self.body_at(again, physical_offset) == body, f"the flushed message at {physical_offset} is lost"

    def unit_of(self, key: tuple[str, int, int]) -> tuple[int, int]:
        unit = self.store.unit(*key)
        assert unit is not None
        return unit[0], unit[1]


@contextmanager
def handing_over(count: int) -> Iterator[None]:
    honest, queue_builder.HANDED_COUNT_MAX = queue_builder.HANDED_COUNT_MAX, count  # type: ignore[misc]
    try:
        yield
    finally:
        queue_builder.HANDED_COUNT_MAX = honest  # type: ignore[misc]


STAGES: Final[dict[str, tuple[Callable[[int], Run], int, int]]] = {
    "channel": (ChannelStage, 60, 6_000),
    "pool": (PoolStage, 120, 30_000),
    "store": (StoreStage, 70, 20_000),
    "client": (ClientRun, 15, 3_000),
}
"""Maps each kind of run to (function that creates a run from a seed, seeds of a quick test, seeds of a long test)."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", STAGES)
def test_the_stages_are_correct_under_random_interleavings(name: str) -> None:
    make, seeds, _seeds_long = STAGES[name]
    assert first_fault(range(seeds), make) is None


@pytest.mark.long
@pytest.mark.parametrize("name", STAGES)
def test_the_stages_are_correct_under_many_interleavings(name: str) -> None:
    make, seeds, seeds_long = STAGES[name]
    assert first_fault(range(seeds, seeds_long), make) is None


def test_the_stages_reach_the_situations_that_they_test() -> None:
    stores = [StoreStage(seed) for seed in range(60)]
    pools = [PoolStage(seed) for seed in range(60)]
    runs: list[Run] = [*stores, *pools]
    for run in runs:
        run.play()

    assert any(stage.is_pair for stage in stores)
    assert any(len(stage.flushed) > 1 for stage in stores)
    assert any(topic.startswith("%LMQ%") for stage in stores for topic, _queue_id in stage.store.queues())
    assert any(stage.preemption.switches > 10 for stage in stores)
    assert any(stage.deletes for stage in stores)
    assert any(stage.store.log_start > 0 for stage in stores)
    assert sum(stage.ran.total() for stage in pools) > 60
    assert any(stage.refused for stage in pools)
    assert any(not taken for stage in pools for taken in stage.taken.values())
