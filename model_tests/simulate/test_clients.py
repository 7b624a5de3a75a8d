"""The real broker, name server, Python client and recording proxy in a simulation."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest
from attrs import define, field
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.simulation.network import Network
from model_tests.support.simulation.run import CONFIG, STORE
from model_tests.support.simulation.runtime import SimulatedRuntime
from model_tests.support.simulation.strategies import FewSwitches, RandomWalk

from longpoll_broker.broker import Broker
from longpoll_broker.shared.topics import TopicConfig
from longpoll_client import Producer, PushConsumer, ReceivedMessage
from longpoll_client.consume.puller import RETRY_S
from longpoll_client.settings import MemberConfig
from longpoll_observe.observer import Observer
from longpoll_runtime import Condition
from longpoll_simulation.world import Strategy, World
from longpoll_spec.errors import LongpollError

TOPIC: Final = "T"
GROUP: Final = "readers"
QUEUES: Final = 2


@contextmanager
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


class Cluster:
    """A broker with a topic, and its clients, in one simulation. At the end no thread is left."""

    def __init__(self, strategy: Strategy) -> None:
        self.world = World(strategy)
        self.network = Network(self.world)

    @property
    def now_s(self) -> float:
        return self.world.now_ns / 1e9

    def process(self, name: str) -> SimulatedRuntime:
        return SimulatedRuntime(self.network, process=name)

    def run(self, scenario: Callable[[Broker, str], None]) -> None:
        def main() -> None:
            broker = Broker.start(self.process("broker"), "/store", config=CONFIG, store_config=STORE)
            broker.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES))
            broker.topics.put(TopicConfig(f"%RETRY%{GROUP}", 1, 1))
            scenario(broker, "{}:{}".format(*broker.name_server_address))
            broker.stop()

        with quiet():
            self.world.run(main)
        left = [str(actor) for actor in self.world.actors if not actor.done]
        assert not left, f"{', '.join(left)} did not end"

    def consumer(
        self, names: str, runtime: SimulatedRuntime, listener: Callable[[Sequence[ReceivedMessage]], None], **more: Any
    ) -> PushConsumer:
        config = more.pop("config", MemberConfig(group=GROUP, start_at="first"))
        return PushConsumer(names, topics=TOPIC, listener=listener, **member_options(config), runtime=runtime, **more)


# -- one run from a seed, with checks of what the consumer gets, and when ----------------------------------------------

COUNT: Final = 12
HOLD_MS: Final = 2_000
PULL_TIMEOUT_S: Final = 4.0
CACHED_SIZE_MAX: Final = 1_000
PAUSES_S: Final = (0.0, 0.0, 0.01, 0.5, 2.3)
"""Pauses in seconds before a message is sent; the longest pause is longer than a pull may be held."""
SIZES: Final = (10, 100, 400)
BEYOND: Final = 50
CUT_SHARE: Final = 0.3
BEYOND_SHARE: Final = 0.3
SETTLED_S: Final = 1.0
"""Seconds after which a new consumer has its queues assigned and its pulls are held."""
LOOK_S: Final = 0.01
HELD_COUNT: Final = QUEUES + 1
"""Held pulls of a settled consumer: one per queue, and one for its retry queue."""
PROMPT_S: Final = 0.3
CUT_S: Final = 2 * RETRY_S + 1.0
"""Time limit in seconds for a message after the connections were cut, including the delays before retries."""
END_S: Final = 60.0


@define(eq=False)
class ClientRun:
    """One run. Invariant: `acknowledged_s` and `consumed_s` map each body to the virtual time of its first event.

    The seed chooses pauses between messages, and whether the consumer has a low flow-control limit, a stored offset
    beyond the queue's end, or connections that are cut. Each acknowledged message must be consumed promptly, and
    exactly once if no connection was cut.
    """

    seed: int
    draw: random.Random = field(init=False)
    cluster: Cluster = field(init=False)
    acknowledged_s: dict[bytes, float] = field(factory=dict)
    consumed_s: dict[bytes, float] = field(factory=dict)
    counts: Counter[bytes] = field(factory=Counter)
    cut_s: float | None = None
    cuts: bool = field(init=False)
    begins_beyond: bool = field(init=False)
    news: Condition = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.cluster = Cluster(FewSwitches(self.seed))
        self.cuts = self.draw.random() < CUT_SHARE
        self.begins_beyond = self.draw.random() < BEYOND_SHARE

    @property
    def now_s(self) -> float:
        return self.cluster.now_s

    def play(self) -> None:
        self.cluster.run(self.main)
        self.look()

    def main(self, broker: Broker, names: str) -> None:
        runtime = self.cluster.process("client")
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
                # The consumer is moved to the queue's end, so it does not consume these messages.
                self.acknowledged_s.clear()
            with self.cluster.consumer(names, runtime, self.listen, config=config):
                self.settle(runtime, broker)
                self.produce(runtime, producer)
                self.await_consumed(END_S)

    def settle(self, runtime: SimulatedRuntime, broker: Broker) -> None:
        until_s = self.now_s + SETTLED_S
        while len(broker.hold_service) < HELD_COUNT:
            assert self.now_s < until_s, f"the consumer's pulls are not held {SETTLED_S} s after its start"
            runtime.sleep(LOOK_S)

    def await_consumed(self, limit_s: float) -> None:
        until_s = self.now_s + limit_s
        with self.news:
            while not self.acknowledged_s.keys() <= self.consumed_s.keys() and self.now_s < until_s:
                self.news.wait(until_s - self.now_s)

    def produce(self, runtime: SimulatedRuntime, producer: Producer) -> None:
        cut_at = self.draw.randrange(COUNT) if self.cuts else None
        for number in range(COUNT):
            runtime.sleep(self.draw.choice(PAUSES_S))
            if number == cut_at:
                self.cut_s = self.now_s
                for sock in self.cluster.network.sockets:
                    if sock.fileno() >= 0:
                        sock.cut()
            self.send(producer, f"{number}".encode().ljust(self.draw.choice(SIZES), b"."))

    def send(self, producer: Producer, body: bytes) -> None:
        """Send the message until it is acknowledged, which may duplicate it if the connection is cut."""
        for _ in range(10):
            try:
                producer.send(TOPIC, body)
            except LongpollError:
                continue
            self.acknowledged_s[body] = self.now_s
            return
        raise AssertionError("a send is refused ten times")

    def listen(self, messages: Sequence[ReceivedMessage]) -> None:
        with self.news:
            for message in messages:
                body = bytes(message.body)
                self.consumed_s.setdefault(body, self.now_s)
                self.counts[body] += 1
            self.news.notify_all()

    def look(self) -> None:
        for body, at_s in self.acknowledged_s.items():
            assert body in self.consumed_s, f"message {body[:10]!r} is never consumed"
            late_s = self.consumed_s[body] - at_s - self.granted_s(at_s)
            assert late_s <= 0, (
                f"message {body[:10]!r} is consumed {late_s + self.granted_s(at_s):.2f} s after its send"
            )
        assert self.cut_s is not None or max(self.counts.values()) == 1, "a message is consumed twice"

    def granted_s(self, at_s: float) -> float:
        if self.cut_s is None or at_s < self.cut_s - PROMPT_S:
            return PROMPT_S
        return max(self.cut_s + CUT_S - at_s, PROMPT_S)


# -- scenarios with simulated clients --------------------------------------------------------------------------------


def sent_and_consumed(seed: int, *, observed: bool) -> tuple[list[bytes], int, float]:
    """Run a producer and a push consumer; returns bodies in order, number of scheduling points and virtual seconds."""
    cluster = Cluster(RandomWalk(seed))
    bodies: list[bytes] = []

    def scenario(broker: Broker, names: str) -> None:
        proxy = None
        if observed:
            proxy = Observer.start(
                cluster.process("proxy"), brokers=[broker.address], name_server=broker.name_server_address,
                record_directory="/record",
            )  # fmt: skip
            assert proxy.name_server_address is not None
            names = "{}:{}".format(*proxy.name_server_address)
        runtime = cluster.process("client")
        done = runtime.event()

        def listen(messages: Sequence[ReceivedMessage]) -> None:
            bodies.extend(bytes(message.body) for message in messages)
            if len(bodies) == COUNT:
                done.set()

        with cluster.consumer(names, runtime, listen), Producer(names, runtime=runtime) as producer:
            for number in range(COUNT):
                producer.send(TOPIC, str(number).encode())
            assert done.wait(60)
        if proxy is not None:
            proxy.stop()
            assert sum(total.answers for total in proxy.totals.values()) > COUNT

    begun_s = cluster.now_s
    cluster.run(scenario)
    return bodies, cluster.world.step, cluster.now_s - begun_s


@pytest.mark.parametrize("observed", [False, True])
def test_unchanged_clients_and_proxy_run_in_the_simulation(observed: bool) -> None:
    for seed in range(2):
        run = sent_and_consumed(seed, observed=observed)
        assert sorted(run[0]) == sorted(str(number).encode() for number in range(COUNT))
        assert sent_and_consumed(seed, observed=observed) == run


def handed_over(seed: int) -> Counter[bytes]:
    cluster = Cluster(RandomWalk(seed))
    counts: Counter[bytes] = Counter()

    def scenario(_broker: Broker, names: str) -> None:
        runtimes = [cluster.process("first"), cluster.process("second")]
        done = runtimes[0].event()

        def listen(runtime: SimulatedRuntime, messages: Sequence[ReceivedMessage]) -> None:
            runtime.sleep(0.4)
            counts.update(bytes(message.body) for message in messages)
            if len(counts) == COUNT:
                done.set()

        first, second = (
            partial(cluster.consumer, names, runtime, partial(listen, runtime), orderly=True) for runtime in runtimes
        )
        with Producer(names, runtime=runtimes[0]) as producer, first():
            for number in range(COUNT):
                producer.send(TOPIC, str(number).encode(), queue_id=number % 2)
            runtimes[0].sleep(0.6)
            with second():
                assert done.wait(60)

    cluster.run(scenario)
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_is_handed_over_repeats_no_consumed_message(seed: int) -> None:
    assert handed_over(seed) == Counter(str(number).encode() for number in range(COUNT))
