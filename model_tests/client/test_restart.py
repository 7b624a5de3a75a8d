"""Groups over restarts and losses of brokers, name servers and masters."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from model_tests.support.broker import client_scenarios as stories
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.client import RUNTIME, name_server_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_client import (
    OutgoingMessage,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
)
from longpoll_client.consume import member, puller
from longpoll_client.errors import ClientError
from longpoll_client.link import routes
from longpoll_client.link.routes import PullSource
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import RequestCode, ResponseCode

LONG_COUNT = 100_000


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again after 20 ms instead of 3 s, and for routes each time."""
    monkeypatch.setattr(puller, "RETRY_S", 0.02)
    monkeypatch.setattr(member, "RETRY_S", 0.02)
    monkeypatch.setattr(routes, "ROUTE_AGE_S_MAX", 0.05)


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("is_orderly", [False, True])
def test_listeners_survive_a_restart_of_broker_and_name_server(tmp_path: Path, is_orderly: bool) -> None:
    """Twice both are gone for a while: nothing is lost, and the last messages come as the first did."""
    store = str(tmp_path / "store")
    seen: set[bytes] = set()
    lock = threading.Lock()

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        with lock:
            seen.update(message.body for message in messages)
        return None

    def send(part: int, name_server: str) -> None:
        with Producer(name_server) as producer:
            for number in range(20):
                producer.send_batch("T", [OutgoingMessage(b"%d-%d-%d" % (part, number, at)) for at in range(5)])

    broker = Broker.start(RUNTIME, store, store_config=SMALL_STORE)
    addresses: dict[str, Any] = {"listen": broker.address, "name_server": broker.name_server_address}
    name_server = "{}:{}".format(*broker.name_server_address)
    send(0, name_server)
    config = MemberConfig(group="G", start_at="first", rebalance_s=0.2, heartbeat_s=0.2, persist_s=0.1)
    with PushConsumer(name_server, topics="T", listener=listen, **member_options(config), orderly=is_orderly):
        for part in (1, 2):
            wait_until(lambda part=part: len(seen) == part * 100)  # type: ignore[misc] # bound at once
            broker.stop()
            broker = Broker.start(RUNTIME, store, store_config=SMALL_STORE, **addresses)
            send(part, name_server)
        wait_until(lambda: len(seen) == 300)
    broker.stop()
    assert len(seen) == 300


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_hundred_thousand_messages_over_members_that_come_and_go(tmp_path: Path) -> None:
    """None lost, duplicates counted and each explained by a rebalance."""
    with Broker.start(RUNTIME, str(tmp_path / "store")) as broker:
        report = stories.rebalance("{}:{}".format(*broker.name_server_address), LONG_COUNT)
    print(f"rebalance: {report}")  # noqa: T201 - the figure that the test is run for
    assert report.lost == ()
    assert report.distinct == report.sent == LONG_COUNT
    assert report.unexplained == ()


# A name server has a broker of its own here, that has no topic and makes none.
READY = re.compile(r"ready broker=(\S+) name-server=(\S+) store=\S+ ha=(\S+)")


class Seen:
    """What a group has consumed, and how often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[bytes] = Counter()
        self.places: Counter[tuple[int, int]] = Counter()
        """By queue and queue offset, how often what stands there has come."""

    def listen(self, messages: Sequence[ReceivedMessage]) -> Retry | None:
        """Count them."""
        with self._lock:
            self.counts.update(message.body for message in messages)
            self.places.update((message.queue_id, message.queue_offset) for message in messages)
        return None

    def has(self, bodies: set[bytes]) -> bool:
        """Whether all of these have come."""
        with self._lock:
            return bodies <= self.counts.keys()


@pytest.fixture
def brokers() -> Iterator[ExitStack]:
    """The brokers, which are stopped at the end."""
    with ExitStack() as stack:
        yield stack


@contextmanager
def consuming(name_server: str, seen: Seen) -> Iterator[None]:
    """A group of one that begins with the first message."""
    config = MemberConfig(group="G", start_at="first", rebalance_s=0.2, heartbeat_s=0.2, persist_s=0.1)
    with PushConsumer(name_server, topics="T", listener=seen.listen, **member_options(config)):
        yield


def slave_of(directory: Path, master: str, ha: str, name_server: str) -> Broker:
    """A slave that is known to the master's name server."""
    config = BrokerConfig(
        role="SLAVE", broker_id=1, slave_read=True, master=master, ha_master=ha, name_servers=name_server
    )
    return Broker.start(RUNTIME, str(directory), config=config, store_config=SMALL_STORE)


def test_who_is_far_behind_reads_at_the_slave_and_comes_back(tmp_path: Path, brokers: ExitStack) -> None:
    """With no memory for the master's log every reader is behind there, and none at the slave, which sends it back."""
    store = attrs.evolve(SMALL_STORE, memory_size=1)
    config = BrokerConfig(slave_read=True, ha_port=0)
    master = brokers.enter_context(Broker.start(RUNTIME, str(tmp_path / "master"), config=config, store_config=store))
    assert master.replicating.replicator is not None
    name_server = name_server_of(master)
    slave = brokers.enter_context(
        slave_of(
            tmp_path / "slave",
            "{}:{}".format(*master.address),
            "{}:{}".format(*master.replicating.replicator.address),
            name_server,
        )
    )
    bodies = {b"%d" % number for number in range(300)}
    with Producer(name_server) as producer:
        for body in sorted(bodies):
            producer.send("T", body)
        wait_until(lambda: slave.store.dispatched_end == master.store.log_end)
        wait_until(lambda: slave.topics.get("T") is not None)
        seen = Seen()
        with consuming(name_server, seen):
            wait_until(lambda: seen.has(bodies))
            asked = [broker.handler.request_counts.get(RequestCode.PULL_MESSAGE, 0) for broker in (master, slave)]
            assert min(asked) > 1
            producer.send("T", b"later")
            wait_until(lambda: seen.has({b"later"}))
    assert set(seen.counts.values()) == {1}


@pytest.mark.long
def test_a_master_killed_under_load_loses_nothing_that_it_acknowledged(
    tmp_path: Path, brokers: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumers continue at the slave, and at the master when it is back.

    No message comes twice unless its reader is sent back: after a change of broker it may be ahead of the new one.
    """
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerRole=SYNC_MASTER\nmappedFileSizeCommitLog=8388608\nmappedFileSizeConsumeQueue=20000\n")
    command = [sys.executable, "-c", "from longpoll.cli import main; main()", "serve", "--config", str(conf)]
    command += ["--store", str(tmp_path / "master")]
    first = ["--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0", "--ha", "127.0.0.1:0"]
    process, (address, at, ha) = served([*command, *first], brokers)
    slave = brokers.enter_context(slave_of(tmp_path / "slave", address, ha, at))
    wait_until(lambda: slave.replicating.follower is not None and slave.replicating.follower.is_connected)
    name_servers = f"{at};{name_server_of(slave)}"
    seen, sent = Seen(), set[bytes]()
    with consuming(name_servers, seen):
        send_until_it_dies(name_servers, sent, process)
        wait_until(lambda: seen.has(sent))
        wait_until(lambda: slave.handler.request_counts.get(RequestCode.PULL_MESSAGE, 0) > 0)
        again = ["--listen", address, "--name-server", at, "--ha", ha]
        process, _places = served([*command, *again], brokers)
        follower = slave.replicating.follower
        assert follower is not None
        wait_until(lambda: follower.is_connected)
        before = len(sent)
        with Producer(name_servers) as producer:
            for number in range(20):
                body = b"again %d" % number
                wait_until(lambda body=body: tries(producer, body))  # type: ignore[misc]
                sent.add(body)
        wait_until(lambda: seen.has(sent))
        assert len(sent) == before + 20
    # A send that was not answered may be stored all the same, and sent again: it then stands at two places.
    moves = sum("the offset is moved" in line.getMessage() for line in caplog.records)
    assert sum(count - 1 for count in seen.places.values()) <= moves


def served(command: list[str], stack: ExitStack) -> tuple[subprocess.Popen[str], tuple[str, str, str]]:
    """Run a broker; its process and its addresses for requests, routes and slaves."""
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)))
    stack.callback(process.kill)
    assert process.stdout is not None
    ready = READY.match(process.stdout.readline())
    assert ready is not None
    return process, (ready[1], ready[2], ready[3])


def tries(producer: Producer, body: bytes) -> bool:
    """Send a message; whether a slave has it."""
    try:
        return producer.send("T", body).code == ResponseCode.SUCCESS
    except ClientError:
        return False


def send_until_it_dies(name_servers: str, sent: set[bytes], process: subprocess.Popen[str]) -> None:
    """Send messages and kill their broker meanwhile; those that were acknowledged."""
    with Producer(name_servers) as producer:
        for number in range(10_000):
            body = b"%d" % number
            try:
                result = producer.send("T", body)
            except ClientError:
                break
            assert result.code == ResponseCode.SUCCESS
            sent.add(body)
            if number == 200:
                threading.Thread(target=lambda: process.send_signal(signal.SIGKILL)).start()
    process.wait()
    assert len(sent) > 200


class Known:
    """Where brokers are, as a test says."""

    def __init__(self, by_id: dict[int, str]) -> None:
        self.by_id = by_id

    def broker_address_of(self, _broker_name: str, broker_id: int) -> str:
        """The address."""
        return self.by_id.get(broker_id) or self.by_id[min(self.by_id)]

    def other_broker_id(self, _broker_name: str, address: str) -> int | None:
        """Another's id."""
        return min((each for each, other in self.by_id.items() if other != address), default=None)


def test_which_broker_is_asked() -> None:
    """The one that the last answer names; another one for a while where it cannot be reached, and then it again."""
    known = Known({0: "m", 1: "s"})
    source = PullSource(known, "b")
    assert (source.address(0), source.broker_id) == ("m", 0)
    source.suggested(1)
    assert (source.address(1), source.broker_id) == ("s", 1)
    source.suggested(0)
    assert source.address(2) == "m"
    assert source.fell_back(2)
    assert (source.address(3), source.broker_id) == ("s", 1)
    source.suggested(0)
    assert source.address(4) == "s", "the master is away for three seconds"
    assert not source.fell_back(5), "both are away: ask again later"
    assert source.address(int(4e9)) == "m"
    source.suggested(0)
    source.suggested(-5)
    assert source.address(int(4e9)) == "m"
    source.suggested(7)
    assert source.address(int(4e9)) == "m", "nobody knows broker 7"
    known.by_id = {0: "m"}
    assert not source.fell_back(int(9e9))
    assert source.address(int(9e9)) == "m"
