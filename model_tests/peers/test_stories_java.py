"""The Python client's scenarios with the real Java brokers 4.9.7 and 5.5.0, and a Java broker at our name server."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from model_tests.conformance.java_broker import VERSIONS, JavaBroker, running
from model_tests.support.broker import client_scenarios as stories
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.client import Clients
from model_tests.support.java import class_path_of, java_broker_of
from model_tests.support.spec.cases import quick_if

from longpoll_broker.broker import Broker
from longpoll_client import (
    Admin,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    TransactionProducer,
    TransactionState,
)
from longpoll_client.errors import ClientError, UnreachableError
from longpoll_client.settings import MemberConfig

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]
PART = 50
"""The number of messages in each of the three parts of the restart test."""


@pytest.fixture(scope="module", params=VERSIONS)
def java_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    with java_broker_of(tmp_path_factory.mktemp("java"), str(request.param)) as broker:
        yield broker


@pytest.fixture
def name_server(java_broker: JavaBroker) -> str:
    return _registered(java_broker)


def _registered(java_broker: JavaBroker) -> str:
    address = "{}:{}".format(*java_broker.name_server)
    with Admin(address) as admin:
        stories.wait_for(lambda: bool(admin.masters()), "the broker is registered")
    return address


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_nothing_is_lost_while_members_come_and_go(name_server: str, count: int) -> None:
    report = stories.rebalance(name_server, count)
    print(f"rebalance with the Java broker: {report}")  # noqa: T201 - the figure that the test is run for
    assert report.lost == ()
    assert report.distinct == report.sent == count
    assert report.unexplained == ()


@pytest.mark.parametrize("is_loop", [False, True])
def test_an_orderly_group_keeps_order_after_retries(name_server: str, is_loop: bool) -> None:
    with ExitStack() as stack:
        report = stories.orderly(name_server, 800, Clients(name_server, stack, is_loop=is_loop).consumer)
    assert (report.count, report.out_of_order, report.at_once, report.put_off) == (800, 0, 0, 16)


def test_an_event_loop_ends_transactions(name_server: str) -> None:
    with stories.new_topic(name_server, 4) as topic, ExitStack() as stack:
        clients = Clients(name_server, stack, is_loop=True)
        producer = clients.transactions(lambda _message: TransactionState.UNKNOWN)
        for number in range(100):
            state = TransactionState.ROLLBACK if number % 5 == 4 else TransactionState.COMMIT
            producer.send(topic, b"%d" % number, clients.plain(partial(TransactionState, state)))
        consumer, found = clients.pulling(topic, group="loop"), set[int]()
        while len(found) < 80:
            found |= {int(message.body) for message in consumer.poll(stories.PATIENCE_S)}
        assert consumer.poll(0.1) == []
    assert found == {number for number in range(100) if number % 5 != 4}


@pytest.mark.parametrize("name", quick_if(stories.FLOW_LIMITS, lambda name: name == "count"))
def test_flow_control_pauses_and_resumes_pulling(name_server: str, name: str) -> None:
    """The limits are the number of waiting messages, their bytes, and their span of offsets."""
    report = stories.flow_control(name_server, 80, 1_000, **stories.FLOW_LIMITS[name])
    assert 0 < report.waiting < 80
    assert (report.stopped_by, report.consumed, report.stopped_after) == (name, 80, None)


def test_broadcast_members_get_everything_and_resume_from_a_file(name_server: str, tmp_path: Path) -> None:
    """Two members get everything; after a restart the member with a file of offsets gets only new messages."""
    first, second, again = stories.broadcasting(name_server, 100, str(tmp_path / "offsets.json"))
    assert first == second == list(range(100))
    assert again == [0]


def test_a_failing_message_ends_among_the_dead_letters(name_server: str) -> None:
    report = stories.retry(name_server, raises=False)
    assert (report.reconsume_times, report.dead, report.tags) == ((0, 1, 2), (b"poison",), "red")


def test_a_group_continues_from_its_stored_offsets(name_server: str) -> None:
    first, second = stories.restart(name_server, 200)
    assert sorted(first + second) == list(range(200))


def test_topics_groups_and_offsets_can_be_queried(name_server: str) -> None:
    with stories.new_topic(name_server, 2) as topic, Admin(name_server) as admin:
        stories.send_numbered(name_server, topic, 10)
        with PullConsumer(name_server, group="asked", topics=topic) as consumer:
            assert consumer.poll(stories.PATIENCE_S)
            assert topic in admin.topic_names()
            (group,) = [group for group in admin.groups() if group.name == "asked"]
            assert len(group.members) == 1
        assert sum(row.lag for row in admin.offsets("asked", [topic])) == 10
        for queue in admin.topic(topic).readable:
            admin.set_offset("asked", queue, "last")
        assert sum(row.lag for row in admin.offsets("asked", [topic])) == 0
        admin.delete_topic(topic)


@pytest.mark.parametrize("version", VERSIONS)
def test_our_transactions_are_checked_and_ended_at_the_java_broker(version: str, tmp_path: Path) -> None:
    class_path = class_path_of(tmp_path, version)
    states = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)
    left_open = frozenset(range(2, 31, 3))
    kept = frozenset(range(0, 31, 3)) | left_open - {14}
    asked: Counter[bytes] = Counter()

    def check(message: ReceivedMessage) -> TransactionState:
        asked[message.body] += 1
        return TransactionState.COMMIT if int(message.body) in kept else TransactionState.ROLLBACK

    settings = "transactionCheckInterval=500\ntransactionTimeOut=4000"
    with running(class_path, tmp_path / "home", settings=settings) as java:
        name_server = _registered(java)
        with (
            stories.new_topic(name_server, 4) as topic,
            TransactionProducer(name_server, group="PG", check_transaction=check) as producer,
            closing(PullConsumer(name_server, group="G", topics=())) as consumer,
        ):
            for number in range(31):
                producer.send(topic, b"%d" % number, lambda number=number: states[number % 3])  # type: ignore[misc] # bound at once
            consumer.subscribe(topic)
            consumer.start()
            seen: Counter[bytes] = Counter()
            while len(seen) < len(kept):
                messages = consumer.poll(stories.PATIENCE_S)
                assert messages, sorted(seen)
                seen.update(message.body for message in messages)
            stories.wait_for(lambda: left_open <= {int(body) for body in asked}, "a question about each")
    assert {int(body) for body in seen} == kept


@pytest.mark.parametrize("version", VERSIONS)
def test_a_java_broker_registers_at_our_name_server(version: str, tmp_path: Path) -> None:
    """Clients use the routes of the two brokers, and the name server drops the Java broker when it ends."""
    class_path = class_path_of(tmp_path, version)
    with Broker.start(stories.RUNTIME, str(tmp_path / "store")) as broker:
        name_server = "{}:{}".format(*broker.name_server_address)
        with Admin(name_server) as admin:
            with running(class_path, tmp_path / "home", settings=f"namesrvAddr={name_server}"):
                stories.wait_for(lambda: len(admin.masters()) == 2, "both brokers are known")
                with stories.new_topic(name_server, 8) as topic, Producer(name_server) as producer:
                    stories.wait_for(lambda: len(admin.topic(topic).readable) == 16, "both brokers have the topic")
                    producer._instance.forget_route(topic)
                    results = [producer.send_batch(topic, [OutgoingMessage(b"x")] * 10)[0] for _number in range(16)]
                    assert len({result.queue for result in results}) == 16
                    assert _consumed(name_server, topic, 160) == {"broker-a": 80, "java-broker": 80}
            stories.wait_for(lambda: list(admin.masters()) == ["broker-a"], "the Java broker is forgotten")


@pytest.mark.parametrize("version", quick_if(VERSIONS, lambda version: version == "4.9.7"))
def test_a_group_survives_a_restart_of_the_java_broker_and_then_the_loss_of_its_name_server(
    version: str, tmp_path: Path
) -> None:
    class_path = class_path_of(tmp_path, version)
    seen: Counter[bytes] = Counter()

    def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
        seen.update(message.body for message in messages)
        return None

    def consumed(part: int) -> None:
        stories.wait_for(lambda: sum(body.startswith(b"%d-" % part) for body in seen) == PART, f"part {part}")

    home = tmp_path / "home"
    with ExitStack() as clients:
        with running(class_path, home) as java:
            name_server = _registered(java)
            topic = clients.enter_context(stories.new_topic(name_server, 4))
            producer = clients.enter_context(Producer(name_server))
            config = MemberConfig(group="survivors", start_at="first", thread_count=1, persist_s=0.5)
            clients.enter_context(PushConsumer(name_server, topics=topic, listener=listen, **member_options(config)))
            _send_part(producer, topic, 0)
            consumed(0)
        with pytest.raises(UnreachableError):
            producer.send(topic, b"to nobody", timeout_s=1.0)
        with running(class_path, home, before=java) as java:
            _registered(java)
            _send_part(producer, topic, 1)
            consumed(1)
            os.kill(java.name_server_process_id, signal.SIGTERM)
            stories.wait_for(lambda: not _answers(java.name_server), "the name server is gone")
            _send_part(producer, topic, 2)
            consumed(2)
    print(f"restart: {len(seen)} messages, {seen.total() - len(seen)} of them again")  # noqa: T201 - a figure
    assert set(seen) == {b"%d-%d" % (part, number) for part in range(3) for number in range(PART)}


def _send_part(producer: Producer, topic: str, part: int) -> None:
    for number in range(PART):

        def is_sent(number: int = number) -> bool:
            try:
                producer.send(topic, b"%d-%d" % (part, number))
            except ClientError:
                return False
            return True

        stories.wait_for(is_sent, f"message {number} of part {part} is sent")


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, 1.0).close()
    except OSError:
        return False
    return True


def _consumed(name_server: str, topic: str, count: int) -> dict[str, int]:
    found: dict[str, int] = {}
    with PullConsumer(name_server, group="G", topics=topic) as consumer:
        assert {queue.broker_name for queue in consumer.queues} == {"broker-a", "java-broker"}
        names = {address: name for name, address in consumer._member._instance._routes._addresses.items()}
        while sum(found.values()) < count:
            messages = consumer.poll(stories.PATIENCE_S)
            assert messages, found
            name = names[messages[0].store_host]
            found[name] = found.get(name, 0) + len(messages)
    return found
