"""Delayed, prepared and sent-back messages over real sockets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields, send_message
from model_tests.support.service import ShiftedRuntime, answer_of, served, served_two

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.rocketmq.timers.schedule_service import SEEN_PARTS, _Seen
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.verify import verify
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.log_record import Record
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy

PULL = RequestCode.PULL_MESSAGE
LONG_MS = 30_000
"""A deadline that no passing test waits for."""
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HOUR_MS = 3_600_000
NOTED_MS = 2 * HOUR_MS // SEEN_PARTS
policies = pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)


def messages(client: RawClient, topic: str) -> list[Record]:
    """What stands in queue 0 of a topic."""
    reply = client.call(PULL, pull_fields(topic, 0))
    return records_of(reply) if reply.code == 0 else []


def saved(store: Path) -> dict[str, int]:
    table: dict[str, int] = json.loads((store / "config" / "delayOffset.json").read_text())["offsetTable"]
    return table


@policies
def test_a_delayed_message_wakes_a_held_pull(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    runtime = ShiftedRuntime()
    broker, puller, sender = served_two(start_broker, connect, policy=policy, runtime=runtime)
    for number in range(3):
        assert send_message(sender, "T", b"%d" % number, properties="DELAY\x0118\x02TAGS\x01a\x02") == number
    wait_until(lambda: broker.store.visible_end(SCHEDULE, 17) == 3)
    opaque = puller.send(PULL, pull_fields("T", 0, timeout_ms=LONG_MS, subscription="a"))
    wait_until(lambda: len(broker.hold_service) == 1)
    assert broker.store.visible_end("T", 0) == 0
    runtime.ahead_ms = 2 * 3600 * 1000
    reply = answer_of(puller, opaque)
    assert reply.code == 0
    wait_until(lambda: broker.store.visible_end("T", 0) == 3)
    assert [bytes(record.body) for record in messages(sender, "T")] == [b"0", b"1", b"2"]


def test_delivery_goes_on_where_it_stood(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    runtime = ShiftedRuntime()
    directory = str(tmp_path / "again")
    broker, client = served(start_broker, connect, runtime=runtime, directory=directory)
    send_message(client, "T", b"first", properties="DELAY\x011\x02")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    runtime.ahead_ms = 0
    send_message(client, "T", b"second", properties="DELAY\x0118\x02")
    broker.stop()
    assert saved(tmp_path / "again") == {"1": 1}
    runtime.ahead_ms = 3 * 3600 * 1000
    broker = start_broker(runtime=runtime, directory=directory)
    wait_until(lambda: broker.store.visible_end("T", 0) == 2)

    assert [bytes(record.body) for record in messages(connect(broker.address), "T")] == [b"first", b"second"]


def test_a_clock_that_is_set_changes_no_delay(start_broker: StartBroker, connect: Connect) -> None:
    runtime = ShiftedRuntime()
    runtime.ahead_ms = HOUR_MS
    broker, client = served(
        start_broker, connect, runtime=runtime, config=BrokerConfig(channel_idle_ms_max=24 * HOUR_MS)
    )
    send_message(client, "T", b"before", properties="DELAY\x0118\x02")
    runtime.ahead_ms = 0
    send_message(client, "T", b"after", properties="DELAY\x0118\x02")
    wait_until(lambda: broker.store.visible_end(SCHEDULE, 17) == 2)
    schedule = broker.keeping.schedule
    # A 64th of the level later it is noted for the second time how far its queue goes.
    runtime.gone_ms = NOTED_MS
    wait_until(lambda: bool(schedule._seen[17].notes) and schedule._seen[17].notes[-1][1] == 2)
    runtime.gone_ms = 2 * HOUR_MS - 60_000
    send_message(client, "T", b"other", properties="DELAY\x011\x02")
    wait_until(lambda: schedule._seen[0].notes != [])
    assert [bytes(record.body) for record in messages(client, "T")] == []
    runtime.gone_ms = 2 * HOUR_MS + NOTED_MS
    wait_until(lambda: broker.store.visible_end("T", 0) == 3)
    bodies = {bytes(record.body) for record in messages(client, "T")}
    assert bodies == {b"before", b"after", b"other"}


def test_when_a_level_was_seen_is_noted_now_and_then() -> None:
    seen = _Seen(6_400)
    for moment_ms in range(0, 6_400, 10):
        seen.note(moment_ms * 1_000_000, 0, moment_ms // 10 + 1)
    assert len(seen.notes) == 64
    assert [seen.waited_ms(6_400 * 1_000_000, offset) for offset in (0, 1, 10, 11, 20)] == [
        6_400,
        6_300,
        6_300,
        6_200,
        6_200,
    ]
    assert len(seen.notes) == 62
    assert seen.waited_ms(6_400 * 1_000_000, 1_000) == 0
    seen.note(6_450 * 1_000_000, 1_000, 1_000)
    assert not seen.notes
    seen.note(6_500 * 1_000_000, 1_000, 1_001)
    seen.note(6_900 * 1_000_000, 1_000, 1_001)
    assert seen.waited_ms(7_000 * 1_000_000, 1_000) == 500


def test_levels_of_ones_own_are_waited_for(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    runtime, directory = ShiftedRuntime(), tmp_path / "own"
    own = attrs.evolve(SMALL_STORE, delay_levels="2h 3d")
    broker, client = served(start_broker, connect, runtime=runtime, directory=str(directory), store_config=own)
    for topic, level in (("Hours", 1), ("Days", 2), ("Days", 18)):
        send_message(client, topic, properties=f"DELAY\x01{level}\x02")
    back = {"offset": "0", "group": "G", "delayLevel": "0"}
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}').code == 0
    assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0
    wait_until(lambda: broker.store.visible_end(SCHEDULE, 1) == 3)
    assert [broker.store.visible_end(SCHEDULE, queue_id) for queue_id in range(4)] == [1, 3, 0, 0]
    delays_ms = []
    for queue_id, offset in ((0, 0), (1, 0), (1, 1), (1, 2)):
        unit = broker.store.unit(SCHEDULE, queue_id, offset)
        assert unit is not None
        record = broker.store.read_record(unit[0])
        assert record is not None
        delays_ms.append(unit[2] - record.store_ms)
    assert delays_ms == [2 * HOUR_MS, 72 * HOUR_MS, 72 * HOUR_MS, 72 * HOUR_MS]

    # A crash that leaves no queue: what is due when is told by the log.
    copy = tmp_path / "crashed"
    shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("consumequeue", "lock"))
    broker.stop()
    runtime.ahead_ms = 71 * HOUR_MS
    broker = start_broker(runtime=runtime, directory=str(copy), store_config=attrs.evolve(own, delay_levels="1s"))
    wait_until(lambda: broker.store.visible_end("Hours", 0) == 1)
    broker.stop()
    shutil.rmtree(copy / "consumequeue")
    (copy / "abort").touch()
    broker = start_broker(runtime=runtime, directory=str(copy), store_config=own)
    assert broker.store.visible_end("Days", 0) == 0
    runtime.ahead_ms = 73 * HOUR_MS
    wait_until(lambda: broker.store.visible_end("Days", 0) == 2)
    wait_until(lambda: broker.store.visible_end("%RETRY%G", 0) == 1)
    broker.stop()
    assert verify(RealFiles(), str(copy)).problems == []


def test_a_store_is_not_opened_with_levels_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(StoreUserError, match="messageDelayLevel cannot be '1x': level 1"):
        MessageStore.open(RealRuntime(), str(tmp_path / "s"), attrs.evolve(SMALL_STORE, delay_levels="1x"))


def prepare(client: RawClient) -> dict[str, str]:
    """Send a prepared message; the fields that end its transaction."""
    reply = client.call(
        RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, "TRAN_MSG\x01true\x02PGROUP\x01PG\x02TAGS\x01t\x02"), b"half"
    )
    assert reply.ext_fields is not None
    return {
        "producerGroup": "PG",
        "tranStateTableOffset": reply.ext_fields["queueOffset"],
        "commitLogOffset": str(int(reply.ext_fields["msgId"][16:], 16)),
        "fromTransactionCheck": "false",
        "msgId": "U",
    }


@policies
def test_a_prepared_message_is_seen_once_committed(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    broker, client = served(start_broker, connect, policy=policy)
    kept, dropped = prepare(client), prepare(client)
    wait_until(lambda: broker.store.visible_end("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 2)
    assert broker.store.visible_end("T", 0) == 0
    assert client.call(RequestCode.END_TRANSACTION, dropped | {"commitOrRollback": "12"}).code == 0
    assert client.call(RequestCode.END_TRANSACTION, kept | {"commitOrRollback": "8"}).code == 0
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)

    (found,) = messages(client, "T")
    assert (bytes(found.body), found.sys_flag, found.prepared_offset) == (b"half", 8, int(kept["commitLogOffset"]))
    wait_until(lambda: broker.store.visible_end("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0) == 2)
    ends = [broker.store.unit("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, offset) for offset in range(2)]
    bodies = [bytes(record.body) for end in ends if end and (record := broker.store.read_record(end[0]))]
    assert bodies == [b"1", b"0"]


@pytest.mark.parametrize(
    "wrong", [{"producerGroup": "other"}, {"tranStateTableOffset": "7"}, {"commitLogOffset": "1"}], ids=str
)
def test_wrong_ends_of_transactions(wrong: dict[str, str], start_broker: StartBroker, connect: Connect) -> None:
    """A wrong group or place is refused and delivers nothing."""
    broker, client = served(start_broker, connect)
    fields = prepare(client) | {"commitOrRollback": "8"} | wrong
    assert client.call(RequestCode.END_TRANSACTION, fields).code == 1
    assert broker.store.visible_end("T", 0) == 0


def test_a_message_sent_back_comes_again_and_then_dies(start_broker: StartBroker, connect: Connect) -> None:
    runtime = ShiftedRuntime()
    broker, client = served(start_broker, connect, runtime=runtime)
    send_message(client, "T", b"bad", properties="TAGS\x01a\x02")
    (record,) = messages(client, "T")
    for times in range(3):
        fields = {"offset": str(record.physical_offset), "group": "G", "delayLevel": "0", "maxReconsumeTimes": "2"}
        assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 0
        topic = "%RETRY%G" if times < 2 else "%DLQ%G"
        runtime.ahead_ms += 3600 * 1000
        wait_until(lambda name=topic, end=times % 2 + 1: broker.store.visible_end(name, 0) == end)  # type: ignore[misc]
        record = messages(client, topic)[-1]
        assert (record.reconsume_times, bytes(record.body)) == (times + 1, b"bad")

    assert [broker.store.visible_end(SCHEDULE, level - 1) for level in (3, 4, 5)] == [1, 1, 0]


def test_a_broker_that_may_not_take_messages_takes_none_back(tmp_path: Path, connect: Connect) -> None:
    with Broker.start(
        RealRuntime(), str(tmp_path), config=BrokerConfig(permission=4), store_config=SMALL_STORE
    ) as broker:
        client = connect(broker.address)
        assert send_message(client, "T") == 0
        fields = {"offset": "0", "group": "G", "delayLevel": "0"}
        assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == 16
