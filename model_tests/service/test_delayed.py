"""Delayed, prepared and sent-back messages, and checks of transactions that no producer ended."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Hashable, Iterator
from pathlib import Path

import attrs
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_until, wait_visible
from model_tests.support.broker.raw_client import (
    RawClient,
    send_fields,
    send_message,
)
from model_tests.support.present import present
from model_tests.support.service import ShiftedRuntime

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.rocketmq.admin.client_processor import Producers
from longpoll_broker.rocketmq.delay_levels import SEEN_PARTS
from longpoll_broker.rocketmq.transactions import GIVEN_UP_TOPIC, GROUP, OP_TOPIC
from longpoll_broker.send.append import HALF_TOPIC
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.verify import verify
from longpoll_client.messages import ReceivedMessage, decode_messages
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HOUR_MS = 3_600_000
NOTED_MS = 2 * HOUR_MS // SEEN_PARTS


def test_a_clock_that_is_set_changes_no_delay(brokers: Brokers) -> None:
    runtime = ShiftedRuntime()
    runtime.ahead_ms = HOUR_MS
    broker, client = brokers.served(runtime=runtime, config=BrokerConfig(channel_idle_ms_max=24 * HOUR_MS))
    send_message(client, "T", b"before", properties="DELAY\x0118\x02")
    runtime.ahead_ms = 0
    send_message(client, "T", b"after", properties="DELAY\x0118\x02")
    wait_visible(broker, SCHEDULE, 2, 17)
    schedule = broker.keeping.schedule
    # A 64th of the level later it is noted for the second time how far its queue goes.
    runtime.gone_ms = NOTED_MS
    wait_until(lambda: bool(schedule._seen[17].notes) and schedule._seen[17].notes[-1][1] == 2)
    runtime.gone_ms = 2 * HOUR_MS - 60_000
    send_message(client, "T", b"other", properties="DELAY\x011\x02")
    # Its delivery ends a round over all levels at that time.
    wait_visible(broker, "T", 1)
    assert client.bodies("T") == [b"other"]
    runtime.gone_ms = 2 * HOUR_MS + NOTED_MS
    wait_visible(broker, "T", 3)
    bodies = set(client.bodies("T"))
    assert bodies == {b"before", b"after", b"other"}


def test_levels_of_ones_own_are_waited_for(brokers: Brokers, tmp_path: Path) -> None:
    runtime, directory = ShiftedRuntime(), tmp_path / "own"
    own = attrs.evolve(SMALL_STORE, delay_levels="2h 3d")
    broker, client = brokers.served(runtime=runtime, directory=str(directory), store_config=own)
    for topic, level in (("Hours", 1), ("Days", 2), ("Days", 18)):
        send_message(client, topic, properties=f"DELAY\x01{level}\x02")
    back = {"offset": "0", "group": "G", "delayLevel": "0"}
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}').code == 0
    assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0
    wait_visible(broker, SCHEDULE, 3, 1)
    assert [broker.store.visible_end(SCHEDULE, queue_id) for queue_id in range(4)] == [1, 3, 0, 0]
    delays_ms = []
    for queue_id, offset in ((0, 0), (1, 0), (1, 1), (1, 2)):
        unit = present(broker.store.unit(SCHEDULE, queue_id, offset))
        record = broker.store.read_record(unit[0])
        assert record is not None
        delays_ms.append(unit[2] - record.store_ms)
    assert delays_ms == [2 * HOUR_MS, 72 * HOUR_MS, 72 * HOUR_MS, 72 * HOUR_MS]
    # A crash that leaves no queue: what is due when is told by the log.
    copy = tmp_path / "crashed"
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("consumequeue", "lock", "*.tmp"))
    broker.stop()
    runtime.ahead_ms = 71 * HOUR_MS
    broker = brokers.start(runtime=runtime, directory=str(copy), store_config=attrs.evolve(own, delay_levels="1s"))
    wait_visible(broker, "Hours", 1)
    broker.stop()
    shutil.rmtree(copy / "consumequeue")
    (copy / "abort").touch()
    broker = brokers.start(runtime=runtime, directory=str(copy), store_config=own)
    assert broker.store.visible_end("Days", 0) == 0
    runtime.ahead_ms = 73 * HOUR_MS
    wait_visible(broker, "Days", 2)
    wait_visible(broker, "%RETRY%G", 1)
    broker.stop()
    assert verify(RealFiles(), str(copy)).problems == []


def test_a_store_is_not_opened_with_levels_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StoreUserError, match="messageDelayLevel cannot be '1x': level 1"):
        MessageStore.open(RealRuntime(), str(tmp_path / "s"), attrs.evolve(SMALL_STORE, delay_levels="1x"))


def prepare(client: RawClient) -> dict[str, str]:
    """Send a prepared message; the fields that end its transaction."""
    reply = client.put("T", b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01PG\x02TAGS\x01t\x02")
    assert reply.ext_fields is not None
    return {
        "producerGroup": "PG",
        "tranStateTableOffset": reply.ext_fields["queueOffset"],
        "commitLogOffset": str(int(reply.ext_fields["msgId"][16:], 16)),
        "fromTransactionCheck": "false",
        "msgId": "U",
    }


def test_a_broker_that_may_not_take_messages_takes_none_back(tmp_path: Path, brokers: Brokers) -> None:
    with Broker.start(
        RealRuntime(), str(tmp_path), config=BrokerConfig(permission=4), store_config=SMALL_STORE
    ) as broker:
        client = brokers.connect(broker)
        assert send_message(client, "T") == 0
        fields = {"offset": "0", "group": "G", "delayLevel": "0"}
        assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 16


HALF = "TRAN_MSG\x01true\x02PGROUP\x01{group}\x02TAGS\x01t\x02UNIQ_KEY\x01unique\x02"
QUICK = BrokerConfig(transaction_timeout_ms=0, transaction_check_interval_ms=HOUR_MS, transaction_check_count_max=2)
"""Rounds are made when a test says so: with one on its way before an answer came, that would count twice."""
STORE = evolve(SMALL_STORE, flush_interval_ms=20)
"""A round is made with each flush."""
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"


def prepare_message(client: RawClient, body: bytes, group: str = "PG", properties: str | None = None) -> None:
    fields = send_fields("T", 0, properties or HALF.format(group=group)) | {"g": str(RealRuntime().unix_ms())}
    assert client.call(RequestCode.SEND_MESSAGE_V2, fields, body).code == 0


def joined(checking: Broker, brokers: Brokers) -> RawClient:
    """A producer of the group."""
    client = brokers.connect(checking)
    assert client.beat(producers=["PG"]).code == 0
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
    (message,) = decode_messages(question.body)
    return message


def check_now(checking: Broker) -> None:
    """Have the broker do a round of questions with its next flush, and no other before this is called again."""
    checks = checking.sending.checks
    checks._due_ns = 0
    wait_until(lambda: checks._due_ns != 0)


@pytest.fixture
def checking(tmp_path: Path) -> Iterator[Broker]:
    """A broker that asks whatever age a transaction has, and twice at most."""
    with Broker.start(RealRuntime(), str(tmp_path / "store"), config=QUICK, store_config=STORE) as started:
        yield started


def test_a_producer_is_asked_and_its_answer_counts(checking: Broker, brokers: Brokers) -> None:
    client = brokers.connect(checking)
    prepare_message(client, b"kept")
    assert client.beat(producers=["PG"]).code == 0
    check_now(checking)
    question = client.wait_push()
    message = told(question)
    assert question.code == RequestCode.CHECK_TRANSACTION_STATE
    assert (message.topic, message.queue_id, message.body, message.tag) == ("T", 0, b"kept", "t")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert (question.ext_fields or {})["transactionId"] == "unique"
    end(client, question, COMMIT)
    assert client.bodies("T") == [b"kept"]
    half_end = checking.store.visible_end(HALF_TOPIC, 0)
    check_now(checking)
    wait_until(lambda: checking.offsets.query(HALF_TOPIC, GROUP, 0) == half_end)
    wait_until(lambda: checking.offsets.query(OP_TOPIC, GROUP, 0) == 1)
    assert checking.store.visible_end(HALF_TOPIC, 0) == half_end


def test_a_rollback_drops_the_message_and_not_knowing_asks_again_until_it_is_given_up(
    checking: Broker, brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    client = joined(checking, brokers)
    with caplog.at_level(logging.WARNING):
        prepare_message(client, b"doubtful")
        for times in ("1", "2"):
            check_now(checking)
            question = client.wait_push()
            assert told(question).properties["TRANSACTION_CHECK_TIMES"] == times
            end(client, question, UNKNOWN)
        check_now(checking)
        # Another thread may show the message before the checks log it.
        wait_until(lambda: "is given up after 2 questions" in caplog.text)
    wait_visible(checking, GIVEN_UP_TOPIC, 1)
    prepare_message(client, b"dropped")
    check_now(checking)
    end(client, client.wait_push(), ROLLBACK)
    ended = checking.store.visible_end(HALF_TOPIC, 0)
    check_now(checking)
    wait_until(lambda: checking.offsets.query(HALF_TOPIC, GROUP, 0) == ended)
    assert client.bodies("T") == []


def test_what_was_ended_in_time_is_never_asked_about(tmp_path: Path, brokers: Brokers) -> None:
    config = BrokerConfig(transaction_timeout_ms=HOUR_MS, transaction_check_interval_ms=HOUR_MS)
    with Broker.start(RealRuntime(), str(tmp_path / "store"), config=config, store_config=STORE) as checking:
        client = joined(checking, brokers)
        for number in range(4):
            prepare_message(client, b"%d" % number)
        halves = [checking.store.unit(HALF_TOPIC, 0, offset) for offset in range(4)]
        for number in (1, 0, 3):
            unit = present(halves[number])
            fields = {"tranStateTableOffset": str(number), "commitLogOffset": str(unit[0]), "msgId": "unique"}
            end(client, Command(RequestCode.CHECK_TRANSACTION_STATE, 1, ext_fields=fields), COMMIT)
        check_now(checking)
        wait_until(lambda: checking.offsets.query(HALF_TOPIC, GROUP, 0) == 2)
        wait_until(lambda: checking.offsets.query(OP_TOPIC, GROUP, 0) == 2)
        assert (client.pushes, client.bodies("T")) == ([], [b"1", b"0", b"3"])


def test_a_message_without_room(checking: Broker, brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    client = joined(checking, brokers)
    full = HALF.format(group="PG") + "filler\x01"
    added = len("\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02CLUSTER\x01DefaultCluster")
    room = 32_767 - len(full) - added - len("\x02TRANSACTION") + 1
    with caplog.at_level(logging.WARNING):
        prepare_message(client, b"full", properties=full + "x" * room + "\x02")
        prepare_message(client, b"next")
        check_now(checking)
        assert told(client.wait_push()).body == b"next"
    assert "cannot be asked about" in caplog.text


def test_another_producer_of_the_group_is_asked_when_one_has_gone(checking: Broker, brokers: Brokers) -> None:
    stranger, first, second = brokers.connect(checking), joined(checking, brokers), joined(checking, brokers)
    assert stranger.beat(producers=["other"]).code == 0
    first.close()
    wait_until(lambda: checking.connection_count == 2)
    prepare_message(stranger, b"x")
    check_now(checking)
    assert told(second.wait_push()).body == b"x"
    assert second.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "PG"}).code == 0
    prepare_message(stranger, b"y")
    for _round in range(3):
        check_now(checking)
    wait_visible(checking, GIVEN_UP_TOPIC, 2)
    assert second.pushes == stranger.pushes == []


def test_a_restart_goes_on_where_it_was(tmp_path: Path, brokers: Brokers) -> None:
    store = str(tmp_path / "store")
    with Broker.start(RealRuntime(), store, config=QUICK, store_config=STORE) as checking:
        client = joined(checking, brokers)
        prepare_message(client, b"x")
        check_now(checking)
        end(client, client.wait_push(), COMMIT)
        half_end = checking.store.visible_end(HALF_TOPIC, 0)
        check_now(checking)
        wait_until(lambda: checking.offsets.query(HALF_TOPIC, GROUP, 0) == half_end)
    with Broker.start(RealRuntime(), store, config=QUICK, store_config=STORE) as checking:
        assert checking.offsets.query(HALF_TOPIC, GROUP, 0) == half_end
        client = joined(checking, brokers)
        prepare_message(client, b"y")
        check_now(checking)
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
        assert (table._client_of, sum(map(len, table._clients.values()))) == (clients, len(clients))
