"""A message store that several threads write to at once, switched between any two accesses of its code.

A stage is made from a seed: one to three producers, each with single messages, bursts, batches, or messages that a
light queue lists as well, one or two dispatchers, up to two flushers and perhaps a disk whose queues fail for a while,
one or two files of queues that may be mapped and two readers that look at all of them, somebody who deletes another
topic of which a message comes now and then, or one who removes the log's oldest files from a full disk. Whatever comes
between, every message is one whole record of the log, becomes visible once in each queue that lists it, in the order of
its offsets, and what a flush returned for is durable and told by the checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import attrs
import msgspec
from attrs import define, field
from model_tests.simulate.preempted import FEW_SHARE, Preemption
from model_tests.support.broker.stores import SMALL, message

from longpoll_broker.store import burst_append, dispatch, message_store, segment
from longpoll_broker.store.log import commit_log
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, MessageToStore
from longpoll_broker.store.queues import consume_queue
from longpoll_broker.store.queues.queue_table import OTHER_MAPS
from longpoll_simulation.disk import Disk
from longpoll_simulation.files import SimulatedFiles
from longpoll_simulation.network import Network
from longpoll_simulation.runtime import SimulatedRuntime

FILES: Final = tuple(
    str(module.__file__) for module in (dispatch, message_store, burst_append, commit_log, segment, consume_queue)
)
"""Where an actor may be interrupted; of a pair in the first alone."""
CONFIG: Final = attrs.evolve(SMALL, index=False, multi_dispatch=True, light_queues=True)
TOPIC: Final = "T"
LIGHT: Final = "%LMQ%a"
NAMES: Final = {"INNER_MULTI_DISPATCH": LIGHT}
PUTS: Final = 2
"""How often a producer appends."""
LIGHT_SHARE: Final = 0.25
BURST_SHARE: Final = 0.4
BATCH_SHARE: Final = 0.2
GONE: Final = "gone"
"""The topic that is deleted; of its messages nothing is wanted but that they harm no others."""
DELETING_SHARE: Final = 0.25
EXPIRING_SHARE: Final = 0.25
BIG_SIZE: Final = 700
"""Of a body where files expire: two messages fill a file of the log."""
EXPIRES: Final = 4
"""How often whoever removes files looks."""
FULL: Final = 0.9
PAIR_SHARE: Final = 0.3
"""How many stages have one producer, of two messages at a time, and one dispatcher alone, at work for longer: the
second message is not handed over, so it falls behind and catches up again and again, and they meet at that place, which
is one of a few accesses."""
PAIR_PUTS: Final = 8
FAILING_SHARE: Final = 0.2
MAPS: Final = (1, 2, 1000)
"""How many files of queues may be mapped."""
READERS: Final = 2
"""How many there are where files are mapped again and again."""
READS: Final = 2
"""How often each looks at all queues."""
HANDED_MAX: Final = (1, 2, 100)
"""How many records are handed over to a dispatcher that is behind; what is more it reads from the log."""


@define(eq=False)
class Stage:
    """One run. Invariant: `bodies` are all that producers were told is stored, by queue and offset, and where."""

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
    """How many of the next calls for files of queues fail."""
    bodies: dict[tuple[str, int, int], tuple[int, bytes]] = field(factory=dict, init=False)
    stored_ms: int = field(default=0, init=False)
    """The greatest store time that a producer was told."""
    flushed: list[tuple[int, int]] = field(factory=list, init=False)
    """Up to where each flush said that all is durable, and the greatest store time before it."""
    arrivals: list[Arrival] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.is_pair = random.Random(self.seed ^ 0xB0).random() < PAIR_SHARE
        kind = random.Random(self.seed ^ 0xD0).random()
        self.deletes = not self.is_pair and kind < DELETING_SHARE
        self.expires = not self.is_pair and kind > 1 - EXPIRING_SHARE
        few_share = 0.0 if self.is_pair or self.expires else FEW_SHARE
        self.preemption = Preemption(self.seed, FILES[:1] if self.is_pair else FILES, few_share=few_share)
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
        """A call for a file: a point, or an error. Raises OSError."""
        self.preemption.world.point(operation, path)
        if self.failing and "/consumequeue/" in path and operation in {"create", "map", "reserve"}:
            self.failing -= 1
            raise OSError(28, "No space left on device", path)

    # -- the actors --------------------------------------------------------------------------------------------------

    def produce(self, name: str) -> None:
        """Append single messages, bursts of two, or batches of two."""
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
                self.runtime.sleep(0)  # the other one's turn
            elif self.expires:
                self.put(made[0])
            else:
                self.put_somehow(made)

    def put_somehow(self, made: Sequence[MessageToStore]) -> None:
        """Append two messages in one of the ways there are, or the first alone."""
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
        """Append one, unless its queue's file cannot be made."""
        try:
            put = self.store.put(made)
        except OSError:
            return
        self.note(made, put.queue_offset, put.physical_offset, put.store_ms)

    def put_batch(self, made: Sequence[MessageToStore]) -> None:
        """Append two as neighbours, unless a file cannot be made."""
        try:
            puts = self.store.put_batch(made)
        except OSError:
            return
        assert puts[0].log_end == puts[1].physical_offset, "another message stands inside a batch"
        for each, put in zip(made, puts, strict=True):
            self.note(each, put.queue_offset, put.physical_offset, put.store_ms)

    def note(self, made: MessageToStore, offset: int, physical_offset: int, store_ms: int) -> None:
        """A producer is told where its message stands."""
        if made.topic == GONE:
            return
        key = (made.topic, made.queue_id, offset)
        assert key not in self.bodies, "two messages have one offset"
        self.bodies[key] = physical_offset, bytes(made.body)
        self.stored_ms = max(self.stored_ms, store_ms)

    def dispatch(self) -> None:
        """Make visible what there is, once or twice; of a pair as often as messages come."""
        for _ in range(PAIR_PUTS if self.is_pair else self.random.randint(1, 2)):
            self.show()
            if self.is_pair:
                self.runtime.sleep(0)

    def show(self) -> None:
        """Make a few messages visible, and note them; a disk that has no room is tried again later."""
        try:
            self.arrivals += self.store.dispatch(self.random.choice((1, 3, 100)) if not self.is_pair else 100)
        except OSError:
            return

    def read(self) -> None:
        """Look at every visible message that a producer was told of: it is listed where it was stored."""
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
        """Remove what the full disk has no room for: of what was visible and durable some is, and some is not yet."""
        for _ in range(EXPIRES):
            self.show()
            self.store.flush()
            self.store.remove_expired()

    def play(self) -> None:
        """Let the actors run, and look; raises what is wrong."""
        self.store = MessageStore.open(self.runtime, "/store", CONFIG)
        with handing_over(1 if self.is_pair else self.random.choice(HANDED_MAX)):
            for queue_id in range(2):  # a burst goes to queues that there are
                body = f"first-{queue_id}".encode()
                self.put(message(TOPIC, queue_id, body.ljust(BIG_SIZE, b"-") if self.expires else body))
            self.failing = self.random.randint(1, 3) if self.random.random() < FAILING_SHARE else 0
            self.preemption.run(self.actors())
        self.failing = 0
        self.look()

    def actors(self) -> dict[str, Callable[[], None]]:
        """Producers, dispatchers and flushers, as many as the seed says; or one producer and one dispatcher."""
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

    # -- what must hold ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """What must hold when nobody is at work."""
        while self.store.dispatched_end < self.store.log_end or self.store.is_behind:
            self.show()
        self.look_at_queues()
        self.look_at_disk()

    def look_at_queues(self) -> None:
        """Each queue tells its messages once each, in order, and has their bodies."""
        told: dict[tuple[str, int], list[Arrival]] = {}
        for arrival in sorted(self.arrivals, key=lambda each: (each.topic, each.queue_id, each.offset_end)):
            told.setdefault((arrival.topic, arrival.queue_id), []).append(arrival)
        for key in self.store.queues():
            if key[0] == GONE:
                continue
            offsets = [arrival.offset_end - 1 for arrival in told.get(key, [])]
            assert offsets == list(range(self.store.visible_end(*key))), f"queue {key} told of {offsets}"
        for (topic, queue_id, offset), (physical_offset, body) in self.there().items():
            unit = self.store.unit(topic, queue_id, offset)
            assert unit is not None, f"message {offset} of queue {queue_id} is not visible"
            assert unit[0] == physical_offset, f"message {offset} of queue {queue_id} is listed elsewhere"
            assert self.body_at(self.store, unit[0]) == body, f"message {offset} of queue {queue_id} is another one"

    def there(self) -> dict[tuple[str, int, int], tuple[int, bytes]]:
        """The messages whose files of the log have not gone."""
        start = self.store.log_start
        return {key: placed for key, placed in self.bodies.items() if placed[0] >= start}

    def body_at(self, store: MessageStore, physical_offset: int) -> bytes | None:
        """The body of a record; None when none is there."""
        record = store.read_record(physical_offset)
        return None if record is None else bytes(record.body)

    def look_at_disk(self) -> None:
        """The checkpoint tells of every flush, and what a flush returned for is there after a cut of the power."""
        physic_ms = self.store._checkpoint.physic_ms
        for _end, stored_ms in self.flushed:
            assert physic_ms >= stored_ms, "the checkpoint has forgotten a flush"
        durable_end = max((end for end, _stored_ms in self.flushed), default=0)
        kept = [unit for unit in map(self.unit_of, self.there()) if unit[0] + unit[1] <= durable_end]
        bodies = {physical_offset: self.body_at(self.store, physical_offset) for physical_offset, _size in kept}
        left = SimulatedFiles(self.disk.cut(self.random))
        again = MessageStore.open(SimulatedRuntime(Network(self.preemption.world), left), "/store", CONFIG)
        for physical_offset, body in bodies.items():
            assert self.body_at(again, physical_offset) == body, f"what was flushed at {physical_offset} is lost"

    def unit_of(self, key: tuple[str, int, int]) -> tuple[int, int]:
        """Where a message stands in the log, and its size."""
        unit = self.store.unit(*key)
        assert unit is not None
        return unit[0], unit[1]


@contextmanager
def handing_over(count: int) -> Iterator[None]:
    """Let a dispatcher that is behind be handed over so few records as long as the block runs."""
    honest, dispatch.HANDED_COUNT_MAX = dispatch.HANDED_COUNT_MAX, count  # type: ignore[misc]
    try:
        yield
    finally:
        dispatch.HANDED_COUNT_MAX = honest  # type: ignore[misc]
