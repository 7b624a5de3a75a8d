"""The real producer and push consumer in a simulation, with checks of what the consumer gets, and when.

A seed chooses pauses between messages (some longer than a hold), a consumer with a low flow-control limit, a stored
offset beyond the queue's end, and a cut of every connection. Each acknowledged message must be consumed: promptly, and
once if nothing was cut.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from attrs import define, field
from model_tests.support.broker.client_scenarios import member_options

from longpoll_broker.broker import Broker
from longpoll_broker.shared.topics import TopicConfig
from longpoll_client import Producer, PushConsumer, ReceivedMessage, Retry
from longpoll_client.consume.puller import RETRY_S
from longpoll_client.settings import MemberConfig
from longpoll_runtime.interface import Condition
from longpoll_simulation.disk import Disk
from longpoll_simulation.files import SimulatedFiles
from longpoll_simulation.network import Network
from longpoll_simulation.run import CONFIG, STORE
from longpoll_simulation.runtime import SimulatedRuntime
from longpoll_simulation.strategies import FewSwitches
from longpoll_simulation.world import World
from longpoll_spec.errors import LongpollError

TOPIC: Final = "T"
GROUP: Final = "readers"
QUEUES: Final = 2
COUNT: Final = 12
"""Messages of a run."""
HOLD_MS: Final = 2_000
PULL_TIMEOUT_S: Final = 4.0
CACHED_SIZE_MAX: Final = 1_000
"""Maximum bytes of a queue that wait for the listener: a few messages."""
PAUSES_S: Final = (0.0, 0.0, 0.01, 0.5, 2.3)
"""Pauses before a message: the longest is longer than a hold."""
SIZES: Final = (10, 100, 400)
BEYOND: Final = 50
"""A group's possible offset beyond the queue's end."""
CUT_SHARE: Final = 0.3
BEYOND_SHARE: Final = 0.3
SETTLED_S: Final = 1.0
"""Time after which a new consumer has its queues and held pulls."""
LOOK_S: Final = 0.01
"""Interval of checks whether the consumer's pulls are held."""
HELD_COUNT: Final = QUEUES + 1
"""Pulls of a settled consumer: one per queue, and one for its retry queue."""
PROMPT_S: Final = 0.3
"""Time limit for consuming a message without disturbances."""
CUT_S: Final = 2 * RETRY_S + 1.0
"""Time limit after a cut: a pull without an answer or connection is retried later."""
END_S: Final = 60.0


@define(eq=False)
class ClientRun:
    """One run. Invariant: `acknowledged_s` and `consumed_s` have the virtual time of each body's first event."""

    seed: int
    draw: random.Random = field(init=False)
    world: World = field(init=False)
    network: Network = field(init=False)
    acknowledged_s: dict[bytes, float] = field(factory=dict)
    consumed_s: dict[bytes, float] = field(factory=dict)
    counts: Counter[bytes] = field(factory=Counter)
    """How often each body was consumed."""
    cut_s: float | None = None
    """When every connection was cut."""
    cuts: bool = field(init=False)
    begins_beyond: bool = field(init=False)
    news: Condition = field(init=False)
    """Protects the consumption data, and signals changes."""

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.world = World(FewSwitches(self.seed))
        self.network = Network(self.world)
        self.cuts = self.draw.random() < CUT_SHARE
        self.begins_beyond = self.draw.random() < BEYOND_SHARE

    def process(self, name: str) -> SimulatedRuntime:
        """Create a process with its own disk."""
        return SimulatedRuntime(self.network, SimulatedFiles(Disk(), before=self.world.point), name)

    @property
    def now_s(self) -> float:
        return self.world.now_ns / 1e9

    def play(self) -> None:
        """Run the simulation and check the result; raises on a fault."""
        with quiet():
            self.world.run(self.main)
        left = [str(actor) for actor in self.world.actors if not actor.done]
        assert not left, f"{', '.join(left)} did not end"
        self.look()

    def main(self) -> None:
        broker = Broker.start(self.process("broker"), "/store", config=CONFIG, store_config=STORE)
        broker.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES))
        broker.topics.put(TopicConfig(f"%RETRY%{GROUP}", 1, 1))
        names = "{}:{}".format(*broker.name_server_address)
        runtime = self.process("client")
        self.news = runtime.condition()
        config = MemberConfig(
            group=GROUP,
            start_at="stored" if self.begins_beyond else "first",
            hold_s=HOLD_MS / 1000,
            pull_timeout_s=PULL_TIMEOUT_S,
            cached_size_max=CACHED_SIZE_MAX,
        )
        with Producer(names, runtime=runtime) as producer:
            if self.begins_beyond:
                for number in range(QUEUES):
                    self.send(producer, f"early-{number}".encode())
                    broker.offsets.commit(TOPIC, GROUP, number, BEYOND)
                self.acknowledged_s.clear()  # before the end to which the consumer is moved
            with PushConsumer(names, topics=TOPIC, listener=self.listen, **member_options(config), runtime=runtime):
                self.settle(runtime, broker)
                self.produce(runtime, producer)
                self.await_consumed(END_S)
        broker.stop()

    def settle(self, runtime: SimulatedRuntime, broker: Broker) -> None:
        """Wait until the consumer's pulls are held."""
        until_s = self.now_s + SETTLED_S
        while len(broker.hold_service) < HELD_COUNT:
            assert self.now_s < until_s, f"the consumer's pulls are not held {SETTLED_S} s after its start"
            runtime.sleep(LOOK_S)

    def await_consumed(self, limit_s: float) -> None:
        """Wait until each acknowledged message is consumed, at most `limit_s`."""
        until_s = self.now_s + limit_s
        with self.news:
            while not self.acknowledged_s.keys() <= self.consumed_s.keys() and self.now_s < until_s:
                self.news.wait(until_s - self.now_s)

    def produce(self, runtime: SimulatedRuntime, producer: Producer) -> None:
        """Send the messages with pauses; before one of them every connection may be cut."""
        cut_at = self.draw.randrange(COUNT) if self.cuts else None
        for number in range(COUNT):
            runtime.sleep(self.draw.choice(PAUSES_S))
            if number == cut_at:
                self.cut_s = self.now_s
                for sock in self.network.sockets:
                    if sock.fileno() >= 0:
                        sock.cut()
            self.send(producer, f"{number}".encode().ljust(self.draw.choice(SIZES), b"."))

    def send(self, producer: Producer, body: bytes) -> None:
        """Send until acknowledged; a cut may duplicate the message."""
        for _ in range(10):
            try:
                producer.send(TOPIC, body)
            except LongpollError:
                continue
            self.acknowledged_s[body] = self.now_s
            return
        raise AssertionError("a send is refused ten times")

    def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        with self.news:
            for message in messages:
                body = bytes(message.body)
                self.consumed_s.setdefault(body, self.now_s)
                self.counts[body] += 1
            self.news.notify_all()
        return None

    # -- what must hold ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        for body, at_s in self.acknowledged_s.items():
            assert body in self.consumed_s, f"message {body[:10]!r} is never consumed"
            late_s = self.consumed_s[body] - at_s - self.granted_s(at_s)
            assert late_s <= 0, (
                f"message {body[:10]!r} is consumed {late_s + self.granted_s(at_s):.2f} s after its send"
            )
        assert self.cut_s is not None or max(self.counts.values()) == 1, "a message is consumed twice"

    def granted_s(self, at_s: float) -> float:
        """Returns the allowed time from a message's acknowledgement to its consumption."""
        if self.cut_s is None or at_s < self.cut_s - PROMPT_S:
            return PROMPT_S
        return max(self.cut_s + CUT_S - at_s, PROMPT_S)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the client's log of cut connections in the block."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
