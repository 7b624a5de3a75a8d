"""Clients with two brokers in one cluster; the name server runs in the first one's process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen
from model_tests.client.test_transactions import check_now
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.client_scenarios import RUNTIME
from model_tests.support.broker.raw_client import PATIENCE_S, RawClient, records_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_client import (
    Admin,
    ConsumerConfig,
    MessageModel,
    OutgoingMessage,
    Producer,
    PullConsumer,
    ReceivedMessage,
    SendResult,
    Sql,
    TransactionProducer,
    TransactionState,
)
from longpoll_client.checks import Topics
from longpoll_protocol.codes import RequestCode
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
        """The first messages that a new member of a group gets."""
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


def polled(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    while len(messages) < count:
        found = consumer.poll(PATIENCE_S)
        assert found, "no message came in time"
        messages += found
    return messages


def test_sends_and_queues_are_shared_out(cluster: Cluster) -> None:
    """Each queue gets as many messages, each member half of the queues, or all that is broadcast."""
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


def test_messages_are_found_by_their_order_tag_property_and_key(cluster: Cluster) -> None:
    """An order is one queue's, a batch too; a key's messages are at both brokers."""
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


def test_delays_and_transactions_of_both_brokers_end(cluster: Cluster) -> None:
    """A transaction is asked about at the broker that has it."""
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
