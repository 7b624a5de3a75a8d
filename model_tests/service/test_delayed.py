"""Delayed, timed, prepared and sent-back messages, and checks of unfinished transactions."""

from __future__ import annotations

import base64
import json
import logging
import shutil
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_until, wait_visible
from model_tests.support.broker.raw_client import (
    RawClient,
    records_of,
    send_fields,
    send_message,
)
from model_tests.support.present import present
from model_tests.support.service import ShiftedRuntime

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.rocketmq import timers
from longpoll_broker.rocketmq.admin.client_processor import Producers
from longpoll_broker.rocketmq.delay_levels import SEEN_PARTS
from longpoll_broker.rocketmq.timers import TimerService
from longpoll_broker.rocketmq.transactions import GIVEN_UP_TOPIC, GROUP, OP_TOPIC
from longpoll_broker.send.append import HALF_TOPIC
from longpoll_broker.send.message_builder import DELAY_MS_MAX
from longpoll_broker.shared import timer_offsets
from longpoll_broker.shared.timer_offsets import TimerCounts
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.verify import verify
from longpoll_client.messages import ReceivedMessage, decode_messages
from longpoll_protocol.bodies import TimerCheckpoint
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.message import (
    HANDLE_SIZE_MAX,
    PROPERTIES_SIZE_MAX,
    RecallHandle,
    read_handle,
)
from longpoll_protocol.properties import FORM_5, encode_properties, read_properties
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_5, Policy

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HOUR_MS = 3_600_000
NOTED_MS = 2 * HOUR_MS // SEEN_PARTS


def test_a_clock_step_changes_no_delay(brokers: Brokers) -> None:
    runtime = ShiftedRuntime()
    runtime.ahead_ms = HOUR_MS
    broker, client = brokers.served(runtime=runtime, config=BrokerConfig(channel_idle_ms_max=24 * HOUR_MS))
    send_message(client, "T", b"before", properties="DELAY\x0118\x02")
    runtime.ahead_ms = 0
    send_message(client, "T", b"after", properties="DELAY\x0118\x02")
    wait_visible(broker, SCHEDULE, 2, 17)
    schedule = broker.keeping.schedule
    # The queue's end is recorded again only after 1/64 of the level's delay.
    runtime.gone_ms = NOTED_MS
    wait_until(lambda: bool(schedule._seen[17].notes) and schedule._seen[17].notes[-1][1] == 2)
    runtime.gone_ms = 2 * HOUR_MS - 60_000
    send_message(client, "T", b"other", properties="DELAY\x011\x02")
    # When this message is delivered, the schedule thread has also checked the other delay levels.
    wait_visible(broker, "T", 1)
    assert client.bodies("T") == [b"other"]
    runtime.gone_ms = 2 * HOUR_MS + NOTED_MS
    wait_visible(broker, "T", 3)
    bodies = set(client.bodies("T"))
    assert bodies == {b"before", b"after", b"other"}


def test_configured_delay_levels_are_used(brokers: Brokers, tmp_path: Path) -> None:
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
    # After a crash that loses the queue, recovery takes the due times from the log.
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


def test_a_store_is_not_opened_with_invalid_delay_levels(tmp_path: Path) -> None:
    with pytest.raises(StoreUserError, match="messageDelayLevel cannot be '1x': level 1"):
        MessageStore.open(RealRuntime(), str(tmp_path / "s"), attrs.evolve(SMALL_STORE, delay_levels="1x"))


def prepare(client: RawClient) -> dict[str, str]:
    reply = client.put("T", b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01PG\x02TAGS\x01t\x02")
    assert reply.ext_fields is not None
    return {
        "producerGroup": "PG",
        "tranStateTableOffset": reply.ext_fields["queueOffset"],
        "commitLogOffset": str(int(reply.ext_fields["msgId"][16:], 16)),
        "fromTransactionCheck": "false",
        "msgId": "U",
    }


def test_an_unwritable_broker_accepts_no_send_back(tmp_path: Path, brokers: Brokers) -> None:
    with Broker.start(
        RealRuntime(), str(tmp_path), config=BrokerConfig(permission=4), store_config=SMALL_STORE
    ) as broker:
        client = brokers.connect(broker)
        assert send_message(client, "T") == 0
        fields = {"offset": "0", "group": "G", "delayLevel": "0"}
        assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 16


HALF = "TRAN_MSG\x01true\x02PGROUP\x01{group}\x02TAGS\x01t\x02UNIQ_KEY\x01unique\x02"
QUICK = BrokerConfig(transaction_timeout_ms=0, transaction_check_interval_ms=HOUR_MS, transaction_check_count_max=2)
"""The interval of an hour lets the tests start each round of transaction checks themselves."""
STORE = evolve(SMALL_STORE, flush_interval_ms=20)
"""Each flush of the store, every 20 ms, may start a round of transaction checks."""
COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"


def prepare_message(client: RawClient, body: bytes, group: str = "PG", properties: str | None = None) -> None:
    fields = send_fields("T", 0, properties or HALF.format(group=group)) | {"g": str(RealRuntime().unix_ms())}
    assert client.call(RequestCode.SEND_MESSAGE_V2, fields, body).code == 0


def joined(checking: Broker, brokers: Brokers) -> RawClient:
    client = brokers.connect(checking)
    assert client.beat(producers=["PG"]).code == 0
    return client


def end(client: RawClient, question: Command, answer: str) -> None:
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
    """Start one round of checks at the next flush, and prevent further rounds until the next call."""
    checks = checking.sending.checks
    checks._due_ns = 0
    wait_until(lambda: checks._due_ns != 0)


@pytest.fixture
def checking(tmp_path: Path) -> Iterator[Broker]:
    with Broker.start(RealRuntime(), str(tmp_path / "store"), config=QUICK, store_config=STORE) as started:
        yield started


def test_a_producers_answer_decides_its_transaction(checking: Broker, brokers: Brokers) -> None:
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


def test_an_undecided_transaction_is_checked_until_the_limit(
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
        # The broker may log that it gives up the check after another thread has made the message visible.
        wait_until(lambda: "is given up after 2 questions" in caplog.text)
    wait_visible(checking, GIVEN_UP_TOPIC, 1)
    prepare_message(client, b"dropped")
    check_now(checking)
    end(client, client.wait_push(), ROLLBACK)
    ended = checking.store.visible_end(HALF_TOPIC, 0)
    check_now(checking)
    wait_until(lambda: checking.offsets.query(HALF_TOPIC, GROUP, 0) == ended)
    assert client.bodies("T") == []


def test_an_ended_transaction_is_not_checked(tmp_path: Path, brokers: Brokers) -> None:
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


def test_a_full_prepared_message_does_not_stop_the_checks(
    checking: Broker, brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_another_producer_of_the_group_is_checked(checking: Broker, brokers: Brokers) -> None:
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


def test_transaction_checks_continue_after_a_restart(tmp_path: Path, brokers: Brokers) -> None:
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
def test_the_producer_table_equals_a_plain_set(steps: list[tuple[str, int, str, str]]) -> None:
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


START_MS = 1_800_000_000_500


class Clock(RealRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS

    def unix_ms(self) -> int:
        return self.now_ms


def send(client: RawClient, topic: str = "T", *, key: str = "K", **properties: str) -> Command:
    text = encode_properties({"UNIQ_KEY": key, **properties})
    return client.put(topic, properties=text)


def keys(client: RawClient, topic: str = "T") -> list[str]:
    answer = client.pull(topic)
    return [properties["UNIQ_KEY"] for properties in stored(answer)]


def stored(answer: Command) -> list[dict[str, str]]:
    return [read_properties(record.properties.decode()) for record in records_of(answer)] if answer.code == 0 else []


def are_read(broker: Broker, count: int) -> None:
    wait_until(lambda: broker.keeping.timer is not None and broker.keeping.timer._read == count)


def started(brokers: Brokers, clock: Clock, tmp_path: Path, policy: Policy = ROCKETMQ_5) -> Broker:
    config = BrokerConfig(recall_message=True)
    return brokers.start(runtime=clock, policy=policy, config=config, directory=str(tmp_path / "store"))


Timed = tuple[Clock, Broker, RawClient]


@pytest.fixture
def timed(brokers: Brokers, tmp_path: Path) -> Timed:
    clock = Clock()
    broker = started(brokers, clock, tmp_path)
    return clock, broker, brokers.connect(broker)


@pytest.mark.parametrize(
    ("wishes", "out_ms"),
    [
        ({"TIMER_DELAY_SEC": "2"}, START_MS - 500 + 2000),
        ({"TIMER_DELAY_MS": "1500"}, START_MS - 500 + 1000),
        ({"TIMER_DELAY_MS": "1501"}, START_MS - 500 + 2000),
        ({"TIMER_DELIVER_MS": str(START_MS + 1)}, START_MS - 500),
        ({"TIMER_DELAY_SEC": "+2", "TIMER_DELAY_MS": "9", "TIMER_DELIVER_MS": "x"}, START_MS - 500 + 2000),
        ({"TIMER_DELAY_SEC": "2", "DELAY": "0"}, START_MS - 500 + 2000),
    ],
)
def test_a_timed_message_waits_for_its_second(timed: Timed, wishes: Mapping[str, str], out_ms: int) -> None:
    clock, broker, client = timed
    sent = present(send(client, **wishes).ext_fields)
    assert read_handle(sent["recallHandle"]) == RecallHandle("T", "broker-a", str(out_ms + 1), "K")
    are_read(broker, 1)
    clock.now_ms = out_ms + 999
    send(client, key="later")
    wait_until(lambda: keys(client) == ["later"])
    clock.now_ms += 1
    wait_until(lambda: keys(client) == ["later", "K"])
    _later, properties = stored(client.pull("T"))
    assert properties["TIMER_OUT_MS"] == str(out_ms)
    assert properties["TIMER_ENQUEUE_MS"] == str(START_MS - 500)
    assert properties["TIMER_DEQUEUE_MS"] == str(clock.now_ms)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "0")


@pytest.mark.parametrize(
    ("wishes", "code"),
    [
        ({"TIMER_DELAY_SEC": "0"}, 0),
        ({"TIMER_DELAY_SEC": "-5"}, 0),
        ({"TIMER_DELIVER_MS": "1000"}, 0),
        ({"TIMER_DELAY_SEC": "2", "TIMER_OUT_MS": "5"}, 0),
        ({"TIMER_DELAY_SEC": "abc"}, 13),
        ({"TIMER_DELAY_SEC": ""}, 0),
        ({"TIMER_DELAY_MS": str(DELAY_MS_MAX + 1)}, 13),
        ({"TIMER_DELAY_SEC": "9" * 30}, 13),
        ({"TIMER_DELIVER_MS": "1000", "TIMER_DEL_UNIQKEY": "K"}, 13),
    ],
)
def test_a_past_time_is_ignored_and_an_invalid_one_refused(timed: Timed, wishes: Mapping[str, str], code: int) -> None:
    _clock, _broker, client = timed
    answer = send(client, **wishes)
    assert answer.code == code
    assert answer.ext_fields is not None
    assert "recallHandle" not in answer.ext_fields
    if code == 0:
        wait_until(lambda: keys(client) == ["K"])


def recall(client: RawClient, handle: str, topic: str = "T") -> Command:
    return client.call(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})


def test_a_recalled_message_is_not_delivered(timed: Timed) -> None:
    clock, broker, client = timed
    handles = {}
    for topic, key in (("T", "K"), ("T", "L"), ("U", "K")):
        sent = present(send(client, topic, key=key, TIMER_DELAY_SEC="5").ext_fields)
        handles[topic, key] = sent["recallHandle"]
    for _ in range(2):
        answer = recall(client, handles["T", "K"])
        assert (answer.code, answer.ext_fields) == (0, {"msgId": "K", "MSG_REGION": "DefaultRegion"})
    are_read(broker, 5)
    clock.now_ms += 7000
    wait_until(lambda: keys(client) == ["L"])
    wait_until(lambda: keys(client, "U") == ["K"])
    assert (recall(client, handles["T", "K"]).code, keys(client)) == (604, ["L"])


def test_an_invalid_recall_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    clock = Clock()
    client = brokers.connect(started(brokers, clock, tmp_path))
    send_message(client, "T")
    soon = str(clock.now_ms + 1000)
    for handle, topic, code, words in (
        ("zzz", "T", 604, "handle is invalid"),
        ("", "T", 604, "handle is invalid"),
        (base64.urlsafe_b64encode(b"v2 T broker-a 1 K").decode(), "T", 604, "handle is invalid"),
        (RecallHandle("U", "broker-a", soon, "K").encode(), "T", 604, "topic not match"),
        (RecallHandle("T", "other", soon, "K").encode(), "T", 604, "not available"),
        (RecallHandle("T", "broker-a", "5", "K").encode(), "T", 604, "timestamp invalid"),
        (RecallHandle("T", "broker-a", "x", "K").encode(), "T", 604, "timestamp invalid"),
        (RecallHandle("T", "broker-a", soon, "").encode(), "T", 604, "handle is invalid"),
        (RecallHandle("T", "broker-a", soon, "K\2REAL_TOPIC\1U").encode(), "T", 604, "handle is invalid"),
        (RecallHandle("T", "broker-a", soon, "K\0").encode(), "T", 604, "handle is invalid"),
        (RecallHandle("none", "broker-a", soon, "K").encode(), "none", 17, "not exist"),
    ):
        answer = recall(client, handle, topic)
        assert answer.code == code, handle
        assert words in str(answer.remark)
    forbidding = brokers.client(runtime=clock, policy=ROCKETMQ_5, directory=str(tmp_path / "forbidding"))
    assert recall(forbidding, RecallHandle("T", "broker-a", soon, "K").encode()).code == 16


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=20), st.text(max_size=40))
def test_a_handle_is_read_as_it_was_written(topic: str, broker_name: str, time: str, key: str) -> None:
    handle = RecallHandle(topic, broker_name, time, key)
    try:
        text = handle.encode()
        has_blank = any(" " in part for part in (topic, broker_name, time, key))
        whole = len(text) <= HANDLE_SIZE_MAX and not any(
            "\ud800" <= c <= "\udfff" for c in f"{topic}{broker_name}{time}{key}"
        )
    except UnicodeError:
        return
    assert read_handle(text) == (None if has_blank or not whole else handle)


def test_a_timed_message_leaves_room_for_two_properties(timed: Timed) -> None:
    """The delivery of a timed message adds two properties, so a message without room for them is refused."""
    clock, broker, client = timed
    sizes = range(PROPERTIES_SIZE_MAX - 350, PROPERTIES_SIZE_MAX - 100, 5)
    sent = {str(size): send(client, key=str(size), TIMER_DELAY_SEC="1", long="x" * size).code for size in sizes}
    assert set(sent.values()) == {0, 13}
    taken = [key for key, code in sent.items() if code == 0]
    are_read(broker, len(taken))
    clock.now_ms += 5000
    wait_visible(broker, "T", len(taken))


def test_waiting_messages_outlive_a_restart(brokers: Brokers, tmp_path: Path) -> None:
    clock = Clock()
    broker = started(brokers, clock, tmp_path)
    client = brokers.connect(broker)
    for key, delay in (("late", "30"), ("first", "1"), ("second", "5"), ("later", "40")):
        send(client, key=key, TIMER_DELAY_SEC=delay)
    are_read(broker, 4)
    clock.now_ms += 3000
    wait_until(lambda: keys(client) == ["first"])
    broker.stop()
    kept = json.loads((tmp_path / "store" / "config" / "timerOffset.json").read_text())["offsetTable"]
    assert kept == {"first": 0, "read": 4, "deliveredMs": START_MS - 500 + 1000}
    clock.now_ms += 4000
    broker = started(brokers, clock, tmp_path)
    client = brokers.connect(broker)
    wait_until(lambda: keys(client) == ["first", "second"])
    send(client, key="new", TIMER_DELAY_SEC="1")
    are_read(broker, 5)
    clock.now_ms += 60_000
    wait_until(lambda: keys(client) == ["first", "second", "new", "late", "later"])
    broker.stop()
    client = brokers.connect(started(brokers, clock, tmp_path))
    send(client, key="end")
    wait_until(lambda: keys(client) == ["first", "second", "new", "late", "later", "end"])


class Stream:
    """A queue of the timer that grows by one message at each read."""

    def __init__(self) -> None:
        self.end = 1

    def visible_end(self, _topic: str, _queue_id: int) -> int:
        self.end = min(self.end + 1, 10_000)
        return self.end

    def visible_start(self, _topic: str, _queue_id: int) -> int:
        return 0

    def unit(self, _topic: str, _queue_id: int, offset: int) -> tuple[int, int, int]:
        return offset, 1, 0

    def read_record(self, _physical_offset: int) -> Any:
        return SimpleNamespace(properties=b"TIMER_OUT_MS\x011000\x02")


def test_endless_sends_do_not_delay_timed_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "READ_COUNT", 1)
    stream: Any = Stream()
    shown: list[int] = []
    appender: Any = None
    service = Deliveries(Clock(), stream, appender, timer_offsets.TimerOffsets(), lambda: shown.append(1), FORM_5)
    service.delivered = []
    service.run()
    assert service.delivered == [0, 1]
    service.run()
    assert service.delivered == [0, 1, 2]


def test_a_second_of_many_messages_becomes_visible_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "SHOWN_COUNT", 4)
    shown: list[int] = []
    appender: Any = None
    offsets = timer_offsets.TimerOffsets()
    service = Deliveries(Clock(), appender, appender, offsets, lambda: shown.append(len(service.delivered)), FORM_5)
    service.delivered, service._due = [], [(10, offset, 0, "T") for offset in range(10)]
    assert service._deliver_second()
    assert (shown, service.delivered) == ([3, 7], list(range(10)))


def test_too_many_timed_messages_are_refused(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_offsets, "PENDING_COUNT_MAX", 1)
    clock, broker, client = timed
    assert send(client, TIMER_DELAY_SEC="5").code == 0
    wait_until(lambda: broker.shared.timers.pending_count == 1)
    refused = send(client, key="L", TIMER_DELAY_SEC="5")
    assert (refused.code, "flow control" in str(refused.remark)) == (1, True)
    clock.now_ms += 7000
    wait_until(lambda: broker.shared.timers.pending_count == 0)
    assert send(client, key="L", TIMER_DELAY_SEC="5").code == 0


class Deliveries(TimerService):
    delivered: list[int]

    def _recalled(self, taken: Sequence[tuple[int, int, int, str]]) -> set[tuple[str, str]]:
        return set()

    def _deliver(self, entry: tuple[int, int, int, str], recalled: set[tuple[str, str]]) -> None:
        self.delivered.append(entry[1])


def test_a_message_read_late_does_not_count_as_delivered() -> None:
    offsets = timer_offsets.TimerOffsets()
    service = object.__new__(Deliveries)
    service.delivered, service.offsets, service._read, service._gone = [], offsets, 6, set()
    service._due, service._pending = [(10, 5, 0, "T"), (11, 4, 0, "T")], [4, 5]
    service.counts, service.runtime = TimerCounts(), Clock()
    offsets.put(3, 4, 12, 0)
    assert service._deliver_second()
    assert (service.delivered, offsets.first, offsets.read, offsets.delivered_ms) == ([5], 4, 6, 10)
    assert service._deliver_second()
    assert (service.delivered, offsets.first, offsets.read, offsets.delivered_ms) == ([5, 4], 6, 6, 11)


def waiting_counts(client: RawClient) -> tuple[dict[str, tuple[int, int]], int]:
    """Returns the table of waiting timed messages (GET_TIMER_METRICS, 61) and the table's version.

    The table maps each topic to its number of waiting messages and the time when that number last changed.
    """
    answer = client.call(RequestCode.GET_TIMER_METRICS)
    assert answer.code == 0
    told = json.loads(bytes(answer.body))
    counts = {topic: (each["count"], each["timeStamp"]) for topic, each in told["timingCount"].items()}
    return counts, told["dataVersion"]["counter"]


def test_the_waiting_messages_of_a_topic_are_counted(brokers: Brokers, tmp_path: Path) -> None:
    clock = Clock()
    broker = started(brokers, clock, tmp_path)
    client = brokers.connect(broker)
    assert waiting_counts(client) == ({}, 0)
    send(client, TIMER_DELAY_SEC="5")
    recalled = present(send(client, key="L", TIMER_DELAY_SEC="7").ext_fields)
    send(client, "U", TIMER_DELAY_SEC="9")
    are_read(broker, 3)
    assert waiting_counts(client)[0] == {"T": (2, START_MS), "U": (1, START_MS)}
    broker.stop()
    broker = started(brokers, clock, tmp_path)
    client = brokers.connect(broker)
    are_read(broker, 3)
    before, version = waiting_counts(client)
    assert before == {"T": (2, START_MS), "U": (1, START_MS)}
    clock.now_ms += 6_500
    wait_until(lambda: waiting_counts(client)[0] == {"T": (1, START_MS + 6_500), "U": (1, START_MS)})
    assert waiting_counts(client)[1] > version
    fields = {"topic": "T", "producerGroup": "PG", "recallHandle": recalled["recallHandle"]}
    assert client.call(RequestCode.RECALL_MESSAGE, fields).code == 0
    clock.now_ms += 10_000
    ended = {"T": (0, clock.now_ms), "U": (0, clock.now_ms)}
    wait_until(lambda: waiting_counts(client)[0] == ended)
    assert keys(client) == ["K"]


@pytest.mark.parametrize("body", [b"", bytes(31), TimerCheckpoint(-1, 0).encode(), TimerCheckpoint(0, -1).encode()])
def test_an_invalid_timer_checkpoint_is_refused(body: bytes) -> None:
    with pytest.raises(HeaderError, match="TimerCheckpoint"):
        TimerCheckpoint.decode(body)
