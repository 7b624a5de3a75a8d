"""One of two brokers is lost for a while, in virtual time: sends go to the other, and its messages are consumed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final

import pytest
from attrs import define, evolve, field
from model_tests.simulate.test_clients import quiet
from model_tests.support.broker.client_scenarios import member_options

from longpoll_broker.broker import Broker
from longpoll_broker.shared.topics import TopicConfig
from longpoll_client import Producer, PushConsumer, ReceivedMessage, Retry
from longpoll_client.errors import NoRouteError
from longpoll_client.link.routes import ROUTE_AGE_S_MAX
from longpoll_client.settings import MemberConfig
from longpoll_simulation.disk import Disk
from longpoll_simulation.files import SimulatedFiles
from longpoll_simulation.network import Network
from longpoll_simulation.run import CONFIG, STORE
from longpoll_simulation.runtime import SimulatedRuntime
from longpoll_simulation.strategies import RandomWalk
from longpoll_simulation.world import World

TOPIC: Final = "T"
PART: Final = 12
"""Messages before, during and after the loss."""
STEP_S: Final = 0.25
LOST_S: Final = 8.0
GAP_S: Final = 3.5
"""A send is tried again at the other broker at once; the longest wait is that for an answer, 3 s."""
BACK_S: Final = 10.0 + ROUTE_AGE_S_MAX
"""A stopped broker registers again, and clients ask for its route every 30 s."""


@define(eq=False)
class Run:
    """One run. Invariant: `sent` and `given` have the virtual time of each number's first of these."""

    seed: int
    is_orderly: bool
    how: str
    """The broker is `stopped` or `killed`, or its clients' connections are `cut`."""
    world: World = field(init=False)
    network: Network = field(init=False)
    draw: random.Random = field(init=False)
    sent: dict[int, tuple[str, float]] = field(factory=dict)
    given: dict[int, float] = field(factory=dict)
    counts: Counter[tuple[str, int, int]] = field(factory=Counter)
    """How often each place, by broker, queue and offset, was given."""
    last: dict[tuple[str, int], int] = field(factory=dict)
    out_of_order: int = 0
    host: str = ""
    """The address of the broker that is lost."""

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.world = World(RandomWalk(self.seed))
        self.network = Network(self.world)

    def process(self, name: str, disk: Disk | None = None) -> SimulatedRuntime:
        """A process with a disk."""
        return SimulatedRuntime(self.network, SimulatedFiles(disk or Disk(), before=self.world.point), name)

    @property
    def now_s(self) -> float:
        """The world's time."""
        return self.world.now_ns / 1e9

    def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        """Note what came, and whether it was in order."""
        for message in messages:
            queue = message.store_host, message.queue_id
            place = *queue, message.queue_offset
            if not self.counts[place]:
                self.out_of_order += message.queue_offset < self.last.get(queue, -1)
                self.last[queue] = message.queue_offset
            self.counts[place] += 1
            self.given.setdefault(int(message.body), self.now_s)
        return None

    def send(self, producer: Producer, number: int) -> None:
        """Send it: where one broker fails the producer tries the other one itself."""
        result = producer.send(TOPIC, b"%d" % number)
        self.sent[number] = result.queue.broker_name, self.now_s

    def main(self) -> None:
        """The first actor."""
        kept = Broker.start(self.process("a"), "/store", config=CONFIG, store_config=STORE)
        names = "{}:{}".format(*kept.name_server_address)
        disk, config = Disk(), evolve(CONFIG, broker_name="broker-b", name_servers=names)
        there = self.process("b", disk)
        lost = Broker.start(there, "/store", config=config, store_config=STORE)
        at = lost.address
        self.host = "{}:{}".format(*at)
        for broker in (kept, lost):
            broker.topics.put(TopicConfig(TOPIC, 2, 2))
            broker.topics.put(TopicConfig("%RETRY%G", 1, 1))
        runtime = self.process("client")
        group = MemberConfig(group="G", start_at="first", hold_s=2, pull_timeout_s=4.0, rebalance_s=5.0)
        with (
            Producer(names, runtime=runtime) as producer,
            closing(
                PushConsumer(
                    names,
                    topics=(),
                    listener=self.listen,
                    **member_options(group),
                    orderly=self.is_orderly,
                    runtime=runtime,
                )
            ) as consumer,
        ):
            while not {"broker-a", "broker-b"} <= {name for name, _at_s in self.sent.values()}:
                with suppress(NoRouteError):
                    self.send(producer, -1 - len(self.sent))
                producer._instance.doubt_route(TOPIC)
                runtime.sleep(1.0)
            consumer.subscribe(TOPIC)
            consumer.start()
            self.part(producer, runtime, 0)
            lost_s = self.now_s
            if self.how == "cut":
                for sock in self.network.sockets:
                    if sock.process == "client" and sock.other is not None and sock.other.process == "b":
                        sock.cut()
            elif self.how == "killed":
                disk = disk.kill()
                there.kill()
            else:
                lost.stop()
            during = self.part(producer, runtime, PART)
            runtime.sleep(max(0.0, lost_s + LOST_S - self.now_s))
            if self.how != "cut":
                lost = Broker.start(self.process("b", disk), "/store", config=config, store_config=STORE, listen=at)
            back_s, number = self.now_s, 2 * PART
            while number < 3 * PART or "broker-b" not in {self.sent[each][0] for each in range(2 * PART, number)}:
                assert self.now_s - back_s < BACK_S, "no send is back at the broker"
                self.send(producer, number)
                number += 1
                runtime.sleep(STEP_S)
            until_s = self.now_s + BACK_S
            while not self.sent.keys() <= self.given.keys() and self.now_s < until_s:
                runtime.sleep(STEP_S)
        lost.stop()
        kept.stop()
        self.look(during)

    def part(self, producer: Producer, runtime: SimulatedRuntime, first: int) -> range:
        """Send a part of the messages; none waits for long."""
        for number in range(first, first + PART):
            begun_s = self.now_s
            self.send(producer, number)
            assert self.now_s - begun_s < GAP_S, f"message {number} is sent after {self.now_s - begun_s:.1f} s"
            runtime.sleep(self.draw.choice((0.0, STEP_S)))
        return range(first, first + PART)

    def look(self, during: range) -> None:
        """Nothing is lost, late, out of order, or given twice from one place."""
        assert self.sent.keys() <= self.given.keys(), f"lost {sorted(self.sent.keys() - self.given.keys())}"
        assert not (self.is_orderly and self.out_of_order)
        # A killed broker forgets the offsets of the last seconds.
        counts = [count for (host, *_place), count in self.counts.items() if self.how != "killed" or host != self.host]
        assert max(counts) == 1
        for number in during:
            broker, at_s = self.sent[number]
            if broker == "broker-a":
                late_s = self.given[number] - at_s
                assert late_s < GAP_S, f"message {number} of the other broker comes {late_s:.1f} s after its send"


@pytest.mark.parametrize("is_orderly", [False, True])
@pytest.mark.parametrize("how", ["cut", "stopped", "killed"])
def test_the_other_broker_serves_on(is_orderly: bool, how: str) -> None:
    """Sends go on, and come back to the lost broker; every acknowledged message comes, in order and once."""
    run = Run(7, is_orderly, how)
    with quiet():
        run.world.run(run.main)
    names = {name for number, (name, _at_s) in run.sent.items() if PART <= number < 2 * PART}
    assert names == ({"broker-a", "broker-b"} if how == "cut" else {"broker-a"})
