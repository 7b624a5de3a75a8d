"""Transactions that nobody ended: who is asked, with what, how often, and that an answer is taken."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Connect, wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.rocketmq.tables import producers
from longpoll_broker.rocketmq.tables.producers import Producers
from longpoll_broker.rocketmq.transactions.end_transaction_processor import OP_TOPIC
from longpoll_broker.rocketmq.transactions.transaction_check import GIVEN_UP_TOPIC, GROUP
from longpoll_broker.send.append import HALF_TOPIC
from longpoll_client.messages import ReceivedMessage, decode_messages
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime

HALF = "TRAN_MSG\x01true\x02PGROUP\x01{group}\x02TAGS\x01t\x02UNIQ_KEY\x01unique\x02"
StartBroker = Callable[..., Broker]
HOUR_MS = 3_600_000
QUICK = BrokerConfig(transaction_timeout_ms=0, transaction_check_interval_ms=HOUR_MS, transaction_check_count_max=2)
"""Rounds are made when a test says so: with one on its way before an answer came, that would count twice."""
STORE = evolve(SMALL_STORE, flush_interval_ms=20)
"""A round is made with each flush."""
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"


def prepare(client: RawClient, body: bytes, group: str = "PG", properties: str | None = None) -> None:
    fields = send_fields("T", 0, properties or HALF.format(group=group)) | {"g": str(RealRuntime().unix_ms())}
    assert client.call(RequestCode.SEND_MESSAGE_V2, fields, body).code == 0


def join(client: RawClient, group: str = "PG") -> None:
    """Say that this connection has a producer of the group."""
    heartbeat = {"clientID": "c", "producerDataSet": [{"groupName": group}]}
    assert client.call(RequestCode.HEART_BEAT, None, json.dumps(heartbeat).encode()).code == 0


def joined(broker: Broker, connect: Connect) -> RawClient:
    """A connection with a producer of the group."""
    client = connect(broker.address)
    join(client)
    return client


def end(client: RawClient, question: Command, answer: str) -> None:
    """Answer a question as a producer does."""
    asked = question.ext_fields or {}
    fields = {
        "producerGroup": "PG",
        "tranStateTableOffset": asked["tranStateTableOffset"],
        "commitLogOffset": asked["commitLogOffset"],
        "commitOrRollback": answer,
        "fromTransactionCheck": "true",
        "msgId": asked["msgId"],
    }
    assert client.call(RequestCode.END_TRANSACTION, fields).code == 0


def told(question: Command) -> ReceivedMessage:
    """The message that is asked about."""
    (message,) = decode_messages(question.body)
    return message


def bodies(client: RawClient, topic: str) -> list[bytes]:
    """What a consumer of the topic gets."""
    return [bytes(record.body) for record in records_of(client.call(RequestCode.PULL_MESSAGE, pull_fields(topic, 0)))]


def check_now(broker: Broker) -> None:
    """Have the broker do a round of questions with its next flush, and no other before this is called again."""
    checks = broker.sending.checks
    checks._due_ns = 0
    wait_until(lambda: checks._due_ns != 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that asks whatever age a transaction has, and twice at most."""
    with Broker.start(RealRuntime(), str(tmp_path / "store"), config=QUICK, store_config=STORE) as started:
        yield started


def test_a_producer_is_asked_and_its_answer_counts(broker: Broker, connect: Connect) -> None:
    client = connect(broker.address)
    prepare(client, b"kept")
    join(client)
    check_now(broker)
    question = client.wait_push()
    message = told(question)
    assert question.code == RequestCode.CHECK_TRANSACTION_STATE
    assert (message.topic, message.queue_id, message.body, message.tag) == ("T", 0, b"kept", "t")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert (question.ext_fields or {})["transactionId"] == "unique"
    end(client, question, COMMIT)
    assert bodies(client, "T") == [b"kept"]
    half_end = broker.store.visible_end(HALF_TOPIC, 0)
    check_now(broker)
    wait_until(lambda: broker.offsets.query(HALF_TOPIC, GROUP, 0) == half_end)
    wait_until(lambda: broker.offsets.query(OP_TOPIC, GROUP, 0) == 1)
    assert broker.store.visible_end(HALF_TOPIC, 0) == half_end


def test_a_rollback_drops_the_message_and_not_knowing_asks_again_until_it_is_given_up(
    broker: Broker, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = joined(broker, connect)
    with caplog.at_level(logging.WARNING):
        prepare(client, b"doubtful")
        for times in ("1", "2"):
            check_now(broker)
            question = client.wait_push()
            assert told(question).properties["TRANSACTION_CHECK_TIMES"] == times
            end(client, question, UNKNOWN)
        check_now(broker)
        wait_until(lambda: broker.store.visible_end(GIVEN_UP_TOPIC, 0) == 1)
    assert "is given up after 2 questions" in caplog.text
    prepare(client, b"dropped")
    check_now(broker)
    end(client, client.wait_push(), ROLLBACK)
    ended = broker.store.visible_end(HALF_TOPIC, 0)
    check_now(broker)
    wait_until(lambda: broker.offsets.query(HALF_TOPIC, GROUP, 0) == ended)
    assert bodies(client, "T") == []


def test_what_was_ended_in_time_is_never_asked_about(tmp_path: Path, connect: Connect) -> None:
    config = BrokerConfig(transaction_timeout_ms=HOUR_MS, transaction_check_interval_ms=HOUR_MS)
    with Broker.start(RealRuntime(), str(tmp_path / "store"), config=config, store_config=STORE) as broker:
        client = joined(broker, connect)
        for number in range(4):
            prepare(client, b"%d" % number)
        halves = [broker.store.unit(HALF_TOPIC, 0, offset) for offset in range(4)]
        for number in (1, 0, 3):
            unit = halves[number]
            assert unit is not None
            fields = {"tranStateTableOffset": str(number), "commitLogOffset": str(unit[0]), "msgId": "unique"}
            end(client, Command(RequestCode.CHECK_TRANSACTION_STATE, 1, ext_fields=fields), COMMIT)
        check_now(broker)
        wait_until(lambda: broker.offsets.query(HALF_TOPIC, GROUP, 0) == 2)
        wait_until(lambda: broker.offsets.query(OP_TOPIC, GROUP, 0) == 2)
        assert client.pushes == []
        assert bodies(client, "T") == [b"1", b"0", b"3"]


def test_expiring_messages_are_given_up(broker: Broker, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """Older than files are kept, by the time that its producer gave it."""
    client = joined(broker, connect)
    with caplog.at_level(logging.WARNING):
        fields = send_fields("T", 0, HALF.format(group="PG"))
        assert client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x").code == 0
        check_now(broker)
        wait_until(lambda: broker.store.visible_end(GIVEN_UP_TOPIC, 0) == 1)
    assert "after 0 questions" in caplog.text
    assert client.pushes == []


def test_a_message_without_room(broker: Broker, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    client = joined(broker, connect)
    full = HALF.format(group="PG") + "filler\x01"
    added = len("\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02CLUSTER\x01DefaultCluster")
    room = 32_767 - len(full) - added - len("\x02TRANSACTION") + 1
    with caplog.at_level(logging.WARNING):
        prepare(client, b"full", properties=full + "x" * room + "\x02")
        prepare(client, b"next")
        check_now(broker)
        assert told(client.wait_push()).body == b"next"
    assert "cannot be asked about" in caplog.text


def test_another_producer_of_the_group_is_asked_when_one_has_gone(broker: Broker, connect: Connect) -> None:
    stranger, first, second = connect(broker.address), connect(broker.address), connect(broker.address)
    join(stranger, "other")
    join(first)
    join(second)
    first.close()
    wait_until(lambda: broker.connection_count == 2)
    prepare(stranger, b"x")
    check_now(broker)
    assert told(second.wait_push()).body == b"x"
    assert second.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "PG"}).code == 0
    prepare(stranger, b"y")
    for _round in range(3):
        check_now(broker)
    wait_until(lambda: broker.store.visible_end(GIVEN_UP_TOPIC, 0) == 2)
    assert second.pushes == stranger.pushes == []


def test_a_restart_goes_on_where_it_was(tmp_path: Path, connect: Connect) -> None:
    store = str(tmp_path / "store")
    with Broker.start(RealRuntime(), store, config=QUICK, store_config=STORE) as broker:
        client = joined(broker, connect)
        prepare(client, b"x")
        check_now(broker)
        end(client, client.wait_push(), COMMIT)
        half_end = broker.store.visible_end(HALF_TOPIC, 0)
        check_now(broker)
        wait_until(lambda: broker.offsets.query(HALF_TOPIC, GROUP, 0) == half_end)
    with Broker.start(RealRuntime(), store, config=QUICK, store_config=STORE) as broker:
        assert broker.offsets.query(HALF_TOPIC, GROUP, 0) == half_end
        client = joined(broker, connect)
        prepare(client, b"y")
        check_now(broker)
        assert told(client.wait_push()).body == b"y"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["in", "out", "gone"]), st.integers(0, 3), st.sampled_from("ab"), st.sampled_from("xy")
        )
    )
)
def test_the_table_of_producers_is_that_of_a_plain_set(steps: list[tuple[str, int, str, str]]) -> None:
    table = Producers()
    plain: set[tuple[Hashable, str]] = set()
    clients: dict[Hashable, str] = {}
    for step, channel, group, client in steps:
        if step == "in":
            table.register(channel, group, client)
            if (channel, group) not in plain or clients[channel] != client:
                clients.pop(channel, None)
                clients[channel] = client
            plain.add((channel, group))
        elif step == "out":
            table.unregister(channel, group)
            plain.discard((channel, group))
        else:
            table.close(channel)
            plain = {pair for pair in plain if pair[0] != channel}
        for name in "ab":
            members = {member for member, of in plain if of == name}
            picked = {table.pick(name) for _turn in range(max(len(members), 1))}
            assert picked == (members or {None})
        assert table.quota.used == len(plain)
        clients = {channel: own for channel, own in clients.items() if any(pair[0] == channel for pair in plain)}
        for own in "xy":
            assert table.find(own) == next((each for each, id_ in reversed(clients.items()) if id_ == own), None)
        assert table._client_of == clients
        assert sum(map(len, table._clients.values())) == len(clients)


def test_there_is_an_end_to_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One over the limit is not noted, nor one with a name that no group may have."""
    monkeypatch.setattr(producers, "PRODUCER_COUNT_MAX", 1)
    table = Producers()
    table.register("a", "g", "x")
    table.register("b", "g", "x")
    assert [table.pick("g"), table.pick("g")] == ["a", "a"]
    table.close("a")
    table.register("a", "g" * 256, "x")
    assert table.pick("g" * 256) is None
    assert table.find("x") is None
