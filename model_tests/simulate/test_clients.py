"""The real broker, name server, Python client and recording proxy in a simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest
from model_tests.support.broker.client_scenarios import member_options

from longpoll_broker.broker import Broker
from longpoll_broker.shared.topics import TopicConfig
from longpoll_client import Producer, PushConsumer, ReceivedMessage, Retry
from longpoll_client.settings import MemberConfig
from longpoll_observe.observer import Observer
from longpoll_simulation.disk import Disk
from longpoll_simulation.files import SimulatedFiles
from longpoll_simulation.network import Network
from longpoll_simulation.run import CONFIG, STORE
from longpoll_simulation.runtime import SimulatedRuntime
from longpoll_simulation.strategies import RandomWalk
from longpoll_simulation.world import World

TOPIC: Final = "Greetings"
COUNT: Final = 6


def sent_and_consumed(seed: int, *, observed: bool) -> tuple[list[bytes], int, float]:
    """Run producer and push consumer, perhaps through the proxy; returns bodies in order, points, virtual seconds."""
    world = World(RandomWalk(seed))
    network = Network(world)

    def process(name: str) -> SimulatedRuntime:
        return SimulatedRuntime(network, SimulatedFiles(Disk(), before=world.point), name)

    bodies: list[bytes] = []

    def main() -> None:
        broker = Broker.start(process("broker"), "/store", config=CONFIG, store_config=STORE)
        broker.topics.put(TopicConfig(TOPIC, 2, 2))
        broker.topics.put(TopicConfig("%RETRY%readers", 1, 1))
        names = "{}:{}".format(*broker.name_server_address)
        proxy = None
        if observed:
            proxy = Observer.start(
                process("proxy"), brokers=[broker.address], name_server=broker.name_server_address,
                record_directory="/record",
            )  # fmt: skip
            assert proxy.name_server_address is not None
            names = "{}:{}".format(*proxy.name_server_address)
        runtime = process("client")
        done = runtime.event()

        def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
            bodies.extend(bytes(message.body) for message in messages)
            if len(bodies) == COUNT:
                done.set()
            return None

        config = MemberConfig(group="readers", start_at="first")
        with (
            PushConsumer(names, topics=TOPIC, listener=listen, **member_options(config), runtime=runtime),
            Producer(names, runtime=runtime) as producer,
        ):
            for number in range(COUNT):
                producer.send(TOPIC, str(number).encode())
            assert done.wait(60)
        if proxy is not None:
            proxy.stop()
            assert sum(total.answers for total in proxy.totals.values()) > COUNT
        broker.stop()

    begun_ns = world.now_ns
    world.run(main)
    assert all(actor.done for actor in world.actors)
    return bodies, world.step, (world.now_ns - begun_ns) / 1e9


@pytest.mark.parametrize("observed", [False, True])
def test_clients_and_proxy_run_as_they_are(observed: bool) -> None:
    """Each message is consumed once, no thread remains, and a seed repeats its run."""
    for seed in range(2):
        run = sent_and_consumed(seed, observed=observed)
        assert sorted(run[0]) == [str(number).encode() for number in range(COUNT)]
        assert sent_and_consumed(seed, observed=observed) == run


def handed_over(seed: int) -> Counter[bytes]:
    """How often each message is consumed when a second orderly member joins while listeners run."""
    world = World(RandomWalk(seed))
    network = Network(world)
    counts: Counter[bytes] = Counter()

    def process(name: str) -> SimulatedRuntime:
        return SimulatedRuntime(network, SimulatedFiles(Disk(), before=world.point), name)

    def main() -> None:
        broker = Broker.start(process("broker"), "/store", config=CONFIG, store_config=STORE)
        broker.topics.put(TopicConfig(TOPIC, 2, 2))
        broker.topics.put(TopicConfig("%RETRY%readers", 1, 1))
        names = "{}:{}".format(*broker.name_server_address)
        runtimes = [process("first"), process("second")]
        done = runtimes[0].event()

        def member(runtime: SimulatedRuntime) -> PushConsumer:
            def listen(messages: Sequence[ReceivedMessage]) -> None:
                runtime.sleep(0.4)
                counts.update(bytes(message.body) for message in messages)
                if len(counts) == 2 * COUNT:
                    done.set()

            config = MemberConfig(group="readers", start_at="first")
            return PushConsumer(
                names, topics=TOPIC, listener=listen, **member_options(config), orderly=True, runtime=runtime
            )

        with Producer(names, runtime=runtimes[0]) as producer, member(runtimes[0]):
            for number in range(2 * COUNT):
                producer.send(TOPIC, str(number).encode(), queue_id=number % 2)
            runtimes[0].sleep(0.6)
            with member(runtimes[1]):
                assert done.wait(60)
        broker.stop()

    world.run(main)
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_changes_hands_in_order_repeats_no_consumed_message(seed: int) -> None:
    assert handed_over(seed) == Counter(str(number).encode() for number in range(2 * COUNT))
