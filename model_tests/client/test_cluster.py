"""Several brokers of a group, and brokers and name servers that restart."""

from __future__ import annotations

import random
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from attrs import define, evolve, field, frozen
from model_tests.client.test_transactions import check_now
from model_tests.simulate.test_clients import quiet
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import RawClient, records_of
from model_tests.support.client import RUNTIME, Heard, name_server_of, polled
from model_tests.support.ports import closed_port
from model_tests.support.simulation.disk import Disk
from model_tests.support.simulation.files import SimulatedFiles
from model_tests.support.simulation.network import Network
from model_tests.support.simulation.run import CONFIG, STORE
from model_tests.support.simulation.runtime import SimulatedRuntime
from model_tests.support.simulation.strategies import RandomWalk

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.shared.topics import TopicConfig
from longpoll_client import (
    Admin,
    ConsumerConfig,
    MessageModel,
    NoRouteError,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SendResult,
    Sql,
    Topics,
    TransactionProducer,
    TransactionState,
)
from longpoll_client.consume import group_member, puller
from longpoll_client.link import routes
from longpoll_client.link.routes import ROUTE_AGE_S_MAX, PullSource
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import RequestCode
from longpoll_simulation.world import World
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT

TOPIC: Final = "T"
COUNT: Final = 8
NAMES: Final = ("broker-a", "broker-b")


@frozen
class Cluster:
    """Two brokers, each with two queues of `TOPIC`."""

    brokers: tuple[Broker, Broker]
    name_server: str

    def consumed(self, group: str, topics: Topics, count: int) -> list[ReceivedMessage]:
        with PullConsumer(self.name_server, group=group, topics=topics) as consumer:
            return polled(consumer, count)


@pytest.fixture(params=[STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        found: list[Broker] = []
        for name in NAMES:
            known = "{}:{}".format(*found[0].name_server_address) if found else ""
            config = BrokerConfig(broker_name=name, name_servers=known, property_filter=True, transaction_timeout_ms=0)
            store = str(tmp_path / name)
            started = Broker.start(RUNTIME, store, policy=request.param, config=config, store_config=SMALL_STORE)
            found.append(stack.enter_context(started))
        name_server = "{}:{}".format(*found[0].name_server_address)
        with Admin(name_server) as admin:
            wait_until(lambda: set(admin.masters()) == set(NAMES))
            admin.create_topic(TOPIC, 2)
        yield Cluster((found[0], found[1]), name_server)


def test_sends_and_queues_are_distributed_evenly(cluster: Cluster) -> None:
    """Each queue gets the same number of messages, and each member half of the queues, or all when broadcasting."""
    with Producer(cluster.name_server) as producer:
        places = Counter((sent.queue.broker_name, sent.queue.queue_id) for sent in each(producer, COUNT))
    assert places == {(name, queue_id): COUNT // 4 for name in NAMES for queue_id in (0, 1)}
    with ExitStack() as stack:
        members = [
            stack.enter_context(PullConsumer(cluster.name_server, group="G", topics=TOPIC)) for _number in range(2)
        ]
        wait_until(lambda: not any(member.poll(0.01) for member in members) and {len(m.queues) for m in members} == {2})
        assert len({queue for member in members for queue in member.queues}) == 4
    everyone = ConsumerConfig(message_model=MessageModel.BROADCASTING)
    for _member in range(2):
        with PullConsumer(cluster.name_server, group="B", topics=TOPIC, config=everyone) as member:
            assert len({message.body for message in polled(member, COUNT)}) == COUNT


def each(producer: Producer, count: int) -> Iterator[SendResult]:
    return (producer.send(TOPIC, b"%d" % number) for number in range(count))


def test_messages_are_selected_by_order_key_tag_property_and_key(cluster: Cluster) -> None:
    """Messages with an order key are in one queue, also in a batch; messages with a key may be at either broker."""
    with Producer(cluster.name_server) as producer:
        for number in range(3):
            for order in (0, 2):
                producer.send(TOPIC, b"%d" % number, tag="order", keys="k", queue_selector=itemgetter(order))
        messages = [OutgoingMessage(b"b%d" % size, "batch", properties={"size": str(size)}) for size in range(3)]
        batch = producer.send_batch(TOPIC, messages)
    first = batch[0]
    assert [(sent.queue, sent.queue_offset - first.queue_offset) for sent in batch] == [
        (first.queue, number) for number in range(3)
    ]
    by_broker: dict[str, list[bytes]] = {}
    for message in cluster.consumed("tag", {TOPIC: "order"}, 6):
        by_broker.setdefault(message.store_host, []).append(message.body)
    assert list(by_broker.values()) == [[b"0", b"1", b"2"]] * 2
    assert [message.body for message in cluster.consumed("sql", {TOPIC: Sql("size > 0")}, 2)] == [b"b1", b"b2"]
    asked = {"topic": TOPIC, "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    for broker in cluster.brokers:
        with RawClient(broker.address) as client:
            assert len(records_of(client.call(RequestCode.QUERY_MESSAGE, asked))) == 3


def test_delays_and_transactions_end_at_both_brokers(cluster: Cluster) -> None:
    """The broker that has a transaction checks it."""
    states = {b"yes": TransactionState.COMMIT, b"no": TransactionState.ROLLBACK, b"ask": TransactionState.UNKNOWN}
    with (
        Producer(cluster.name_server) as producer,
        TransactionProducer(
            cluster.name_server, group="P", check_transaction=lambda _message: TransactionState.COMMIT
        ) as transactions,
    ):
        for at in (0, 2):
            producer.send(TOPIC, b"late", delay_s=1.0, queue_selector=itemgetter(at))
            for body in states:
                transactions.send(TOPIC, body, partial(states.__getitem__, body), queue_selector=itemgetter(at))
        for broker in cluster.brokers:
            check_now(broker)
        got = Counter((message.body, message.store_host) for message in cluster.consumed("G", TOPIC, 6))
    hosts = {"{}:{}".format(*broker.address) for broker in cluster.brokers}
    assert got == {(body, host): 1 for body in (b"late", b"yes", b"ask") for host in hosts}


PART: Final = 12
"""The number of messages before, during and after the loss."""
STEP_S: Final = 0.25
LOST_S: Final = 8.0
GAP_S: Final = 3.5
"""A send is retried at the other broker at once; the longest wait is the timeout of an answer, 3 s."""
BACK_S: Final = 10.0 + ROUTE_AGE_S_MAX
"""A restarted broker registers again, and clients look up its route every 30 s."""


@define(eq=False)
class Run:
    """One simulated run. Invariant: `sent` and `given` map each number to the time of its first send or delivery."""

    seed: int
    is_orderly: bool
    how: str
    """Whether the broker is `stopped` or `killed`, or its clients' connections are `cut`."""
    world: World = field(init=False)
    network: Network = field(init=False)
    draw: random.Random = field(init=False)
    sent: dict[int, tuple[str, float]] = field(factory=dict)
    given: dict[int, float] = field(factory=dict)
    counts: Counter[tuple[str, int, int]] = field(factory=Counter)
    """(Broker, queue, offset) -> number of deliveries."""
    last: dict[tuple[str, int], int] = field(factory=dict)
    out_of_order: int = 0
    host: str = ""
    """The address of the broker that is lost."""

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.world = World(RandomWalk(self.seed))
        self.network = Network(self.world)

    def process(self, name: str, disk: Disk | None = None) -> SimulatedRuntime:
        """Return a process with a disk in the simulation."""
        return SimulatedRuntime(self.network, SimulatedFiles(disk or Disk(), before=self.world.point), name)

    @property
    def now_s(self) -> float:
        return self.world.now_ns / 1e9

    def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        """Record a message, and whether it came in order."""
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
        """Send a message; if a broker fails, the producer itself tries the other broker."""
        result = producer.send(TOPIC, b"%d" % number)
        self.sent[number] = result.queue.broker_name, self.now_s

    def main(self) -> None:
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
                assert self.now_s - back_s < BACK_S, "no send reaches the broker again"
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
        """Send one part of the messages; no send may take long."""
        for number in range(first, first + PART):
            begun_s = self.now_s
            self.send(producer, number)
            assert self.now_s - begun_s < GAP_S, f"message {number} is sent after {self.now_s - begun_s:.1f} s"
            runtime.sleep(self.draw.choice((0.0, STEP_S)))
        return range(first, first + PART)

    def look(self, during: range) -> None:
        """Assert that no message is lost, late, out of order, or delivered twice from one offset."""
        assert self.sent.keys() <= self.given.keys(), f"lost {sorted(self.sent.keys() - self.given.keys())}"
        assert not (self.is_orderly and self.out_of_order)
        # A killed broker forgets the committed offsets of the last seconds.
        counts = [count for (host, *_place), count in self.counts.items() if self.how != "killed" or host != self.host]
        assert max(counts) == 1
        for number in during:
            broker, at_s = self.sent[number]
            if broker == "broker-a":
                late_s = self.given[number] - at_s
                assert late_s < GAP_S, f"message {number} of the other broker comes {late_s:.1f} s after its send"


@pytest.mark.parametrize("is_orderly", [False, True])
@pytest.mark.parametrize("how", ["cut", "stopped", "killed"])
def test_the_other_broker_continues_to_serve(is_orderly: bool, how: str) -> None:
    """Sends continue and later use the lost broker again; every acknowledged message comes once and in order."""
    run = Run(7, is_orderly, how)
    with quiet():
        run.world.run(run.main)
    names = {name for number, (name, _at_s) in run.sent.items() if PART <= number < 2 * PART}
    assert names == ({"broker-a", "broker-b"} if how == "cut" else {"broker-a"})


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after 20 ms instead of 3 s, and look up the route each time."""
    monkeypatch.setattr(puller, "RETRY_S", 0.02)
    monkeypatch.setattr(group_member, "RETRY_S", 0.02)
    monkeypatch.setattr(routes, "ROUTE_AGE_S_MAX", 0.05)


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("is_orderly", [False, True])
def test_listeners_survive_a_restart_of_broker_and_name_server(tmp_path: Path, is_orderly: bool) -> None:
    """Broker and name server are restarted twice; no message is lost, and the last messages arrive normally."""
    store = str(tmp_path / "store")
    heard = Heard()

    def send(part: int, name_server: str) -> None:
        with Producer(name_server) as producer:
            for number in range(20):
                producer.send_batch("T", [OutgoingMessage(b"%d-%d-%d" % (part, number, at)) for at in range(5)])

    with closed_port() as at, closed_port() as names:
        # The port stays bound from here on, so that no other test gets it between the two brokers.
        addresses: dict[str, Any] = {"listen": at, "name_server": names}
        broker = Broker.start(RUNTIME, store, store_config=SMALL_STORE, **addresses)
        name_server = name_server_of(broker)
        send(0, name_server)
        config = MemberConfig(group="G", start_at="first", rebalance_s=0.2, heartbeat_s=0.2, persist_s=0.1)
        with PushConsumer(name_server, topics="T", listener=heard, **member_options(config), orderly=is_orderly):
            for part in (1, 2):
                wait_until(lambda part=part: len(set(heard.bodies)) == part * 100)  # type: ignore[misc] # bound at once
                broker.stop()
                broker = Broker.start(RUNTIME, store, store_config=SMALL_STORE, **addresses)
                send(part, name_server)
            wait_until(lambda: len(set(heard.bodies)) == 300)
        broker.stop()
    assert len(set(heard.bodies)) == 300


# Each name server has its own broker here, without topics and without automatic creation.
READY = re.compile(r"ready broker=(\S+) name-server=(\S+) store=\S+ ha=(\S+)")


class Seen:
    """The messages that a group has consumed, with their numbers of deliveries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[bytes] = Counter()
        self.places: Counter[tuple[int, int]] = Counter()
        """How often the message at each queue and queue offset was delivered."""

    def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        with self._lock:
            self.counts.update(message.body for message in messages)
            self.places.update((message.queue_id, message.queue_offset) for message in messages)
        return None

    def has(self, bodies: set[bytes]) -> bool:
        with self._lock:
            return bodies <= self.counts.keys()


@pytest.fixture
def brokers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@contextmanager
def consuming(name_server: str, seen: Seen) -> Iterator[None]:
    config = MemberConfig(group="G", start_at="first", rebalance_s=0.2, heartbeat_s=0.2, persist_s=0.1)
    with PushConsumer(name_server, topics="T", listener=seen.listen, **member_options(config)):
        yield


def test_a_lagging_consumer_reads_at_the_slave_and_returns_to_the_master(tmp_path: Path, brokers: ExitStack) -> None:
    """A master without memory for its log sends every reader to the slave, which later sends the reader back."""
    bodies = {b"%d" % number for number in range(300)}
    with (
        Broker.start(RUNTIME, str(tmp_path / "master"), store_config=SMALL_STORE) as filling,
        Producer(name_server_of(filling)) as producer,
    ):
        for body in sorted(bodies):
            producer.send("T", body)
    shutil.copytree(tmp_path / "master", tmp_path / "slave")
    store = attrs.evolve(SMALL_STORE, memory_size=1)
    config = BrokerConfig(slave_read=True)
    master = brokers.enter_context(Broker.start(RUNTIME, str(tmp_path / "master"), config=config, store_config=store))
    name_server = name_server_of(master)
    config = BrokerConfig(role="SLAVE", broker_id=1, slave_read=True, name_servers=name_server)
    slave = brokers.enter_context(
        Broker.start(RUNTIME, str(tmp_path / "slave"), config=config, store_config=SMALL_STORE)
    )
    wait_until(lambda: slave.registrar is not None and slave.registrar.registered_count > 0)
    seen = Seen()
    with consuming(name_server, seen), Producer(name_server) as producer:
        wait_until(lambda: seen.has(bodies))
        asked = [broker.handler.request_counts.get(RequestCode.PULL_MESSAGE, 0) for broker in (master, slave)]
        assert min(asked) > 1
        producer.send("T", b"later")
        wait_until(lambda: seen.has({b"later"}))
    assert set(seen.counts.values()) == {1}


class Known:
    """A table of broker addresses for the test."""

    def __init__(self, by_id: dict[int, str]) -> None:
        self.by_id = by_id

    def broker_address_of(self, _broker_name: str, broker_id: int) -> str:
        return self.by_id.get(broker_id) or self.by_id[min(self.by_id)]

    def other_broker_id(self, _broker_name: str, address: str) -> int | None:
        return min((each for each, other in self.by_id.items() if other != address), default=None)


def test_pulls_go_to_the_suggested_broker_or_to_a_reachable_one() -> None:
    """The client pulls from the broker that the last answer suggests, or from another one while it is unreachable."""
    known = Known({0: "m", 1: "s"})
    source = PullSource(known, "b")
    assert source.address(0) == "m"
    source.suggested(1)
    assert source.address(1) == "s"
    source.suggested(0)
    assert source.address(2) == "m"
    assert source.fell_back(2)
    assert source.address(3) == "s"
    source.suggested(0)
    assert source.address(4) == "s", "the master is away for three seconds"
    assert not source.fell_back(5), "neither broker is reachable"
    assert source.address(int(4e9)) == "m"
    source.suggested(0)
    source.suggested(-5)
    assert source.address(int(4e9)) == "m"
    source.suggested(7)
    assert source.address(int(4e9)) == "m", "the route has no broker 7"
    known.by_id = {0: "m"}
    assert not source.fell_back(int(9e9))
    assert source.address(int(9e9)) == "m"
