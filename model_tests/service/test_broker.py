"""A broker's life: start, stop, start again; what it keeps and whom it answers on the way out."""

from __future__ import annotations

import threading
from pathlib import Path

import attrs
import msgspec
import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.opening import ListenError
from longpoll_broker.testing.brokers import SMALL_STORE, Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, records_of, send_fields, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError, UserError
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, STRICT_CLONE, Policy

PULL = RequestCode.PULL_MESSAGE
LONG_MS = 30_000


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE], ids=lambda policy: policy.name)
def test_stopping_answers_everything_that_is_held(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    """With 19 and the offset each came with; then the connections are closed and the table is empty."""
    broker = start_broker(policy=policy)
    clients = [connect(broker.address) for _ in range(3)]
    send_message(clients[0], "T")
    opaques = [client.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS)) for client in clients]
    wait_until(lambda: len(broker.hold_service) == 3)
    broker.stop()
    for client, opaque in zip(clients, opaques, strict=True):
        reply = client.reply(opaque)
        assert reply is not None
        assert reply.ext_fields is not None
        assert (reply.code, reply.ext_fields["nextBeginOffset"]) == (19, "1")
        assert client.wait_closed()
    assert len(broker.hold_service) == 0


def test_rocketmq_stops_without_a_word(start_broker: StartBroker, connect: Connect) -> None:
    """The closed connection is all that a held client sees; the test above can fail."""
    broker = start_broker(policy=ROCKETMQ_4_9)
    client = connect(broker.address)
    send_message(client, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    opaque = client.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
    wait_until(lambda: len(broker.hold_service) == 1)
    broker.stop()
    assert client.reply(opaque) is None
    assert client.closed


def test_messages_offsets_and_topics_survive_a_restart(start_broker: StartBroker, connect: Connect) -> None:
    """Everything that was acknowledged is there again, and queue offsets go on."""
    broker = start_broker()
    client = connect(broker.address)
    for number in range(10):
        send_message(client, "T", b"%d" % number, queue_id=1)
    commit = {"consumerGroup": "G", "topic": "T", "queueId": "1", "commitOffset": "4"}
    assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    broker.stop()

    again = connect(start_broker().address)
    asked = again.call(RequestCode.QUERY_CONSUMER_OFFSET, commit)
    assert asked.ext_fields == {"offset": "4"}
    reply = again.call(PULL, pull_fields("T", 0, queue_id=1))
    assert [bytes(record.body) for record in records_of(reply)] == [b"%d" % number for number in range(10)]
    assert send_message(again, "T", queue_id=1) == 10


def test_the_tables_have_rocketmqs_shape(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    """As the Java broker reads them."""
    broker = start_broker(config=BrokerConfig(default_topic_queue_count=6))
    client = connect(broker.address)
    send_message(client, "T")
    client.call(PULL, pull_fields("T", 0))
    commit = {"consumerGroup": "G", "topic": "T", "queueId": "1", "commitOffset": "4"}
    client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    broker.stop()
    config = tmp_path / "store" / "config"
    topics = msgspec.json.decode((config / "topics.json").read_bytes())["topicConfigTable"]
    assert topics["T"] == {
        "topicName": "T",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    assert topics["TBW102"]["readQueueNums"] == 6
    groups = msgspec.json.decode((config / "subscriptionGroup.json").read_bytes())["subscriptionGroupTable"]
    assert groups["G"]["consumeEnable"] is True
    assert msgspec.json.decode((config / "consumerOffset.json").read_bytes()) == {"offsetTable": {"T@G": {"1": 4}}}


def test_fastjsons_unquoted_keys_and_a_backup_are_read(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """consumerOffset.json as Java writes it; topics.json damaged, so its .bak counts."""
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "consumerOffset.json").write_text('{\n\t"offsetTable":{\n\t\t"T@G":{0:12,1:7}\n\t}\n}')
    (config / "topics.json").write_text("{")
    (config / "topics.json.bak").write_text(
        '{"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T","topicSysFlag":0,"writeQueueNums":2}}}'
    )
    client = connect(start_broker().address)
    asked = client.call(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": "1"})
    assert asked.ext_fields == {"offset": "7"}
    assert client.call(PULL, pull_fields("T", 0, queue_id=1)).code == 19
    assert client.call(PULL, pull_fields("T", 0, queue_id=2)).code == 1


def test_a_topic_whose_configuration_was_lost_is_known_by_its_queues(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """A crash between the first message and the saving of topics.json loses no message."""
    broker = start_broker()
    send_message(connect(broker.address), "T", queue_id=2)
    broker.stop()
    for file in (tmp_path / "store" / "config").iterdir():
        file.unlink()
    reply = connect(start_broker().address).call(PULL, pull_fields("T", 0, queue_id=2))
    assert len(records_of(reply)) == 1


def test_what_cannot_be_used_is_said_in_one_line(start_broker: StartBroker, tmp_path: Path) -> None:
    """A port in use, a store in use, a damaged table, a file where a directory must be: a user's error each."""
    broker = start_broker()
    other = str(tmp_path / "other")
    with pytest.raises(ListenError, match="choose another address"):
        Broker.start(RealRuntime(), other, listen=broker.address)
    with pytest.raises(StoreUserError, match="in use"):
        Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE)
    (tmp_path / "other" / "config").mkdir(parents=True)
    (tmp_path / "other" / "config" / "topics.json").write_text("{")
    with pytest.raises(ConfigError, match=r"topics\.json"):
        Broker.start(RealRuntime(), other, store_config=SMALL_STORE)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="record"):
        Broker.start(
            RealRuntime(), str(tmp_path / "third"), store_config=SMALL_STORE, record_directory=str(tmp_path / "file")
        )


def test_a_failed_start_leaves_nothing_behind(start_broker: StartBroker, tmp_path: Path) -> None:
    """The ports and the store of a start that failed can be used at once."""
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{")
    runtime = RealRuntime()
    listener = runtime.listen("127.0.0.1", 0)
    address = listener.address
    listener.close()
    with pytest.raises(ConfigError):
        Broker.start(runtime, str(tmp_path / "store"), store_config=SMALL_STORE, listen=address)
    (config / "topics.json").unlink()
    assert start_broker(listen=address).address == address


def test_sends_wait_for_the_disk_under_sync_flush(start_broker: StartBroker, connect: Connect) -> None:
    """When the answer is there, the log is durable."""
    broker = start_broker(store_config=attrs.evolve(SMALL_STORE, flush_disk_sync=True, flush_interval_ms=1_000_000))
    client = connect(broker.address)
    for _ in range(3):
        send_message(client, "T")
        assert broker.store.flushed_end == broker.store.log_end


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_what_is_acknowledged_is_visible(start_broker: StartBroker, connect: Connect, sync: bool) -> None:
    """Strict makes it so before the answer leaves, and does not leave it to the flush thread."""
    store_config = attrs.evolve(SMALL_STORE, flush_disk_sync=sync, flush_interval_ms=1_000_000)
    broker = start_broker(store_config=store_config)
    client = connect(broker.address)
    for number in range(3):
        assert send_message(client, "T") == number
        assert broker.store.visible_end("T", 0) == number + 1


def test_a_stopped_broker_lets_go_of_its_log(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    """Also when the last thing that it made is the answer to a woken pull, with its slices of the log."""
    mapped = Path("/proc/self/maps")
    broker = start_broker()
    puller, sender = connect(broker.address), connect(broker.address)
    send_message(sender, "T")
    opaque = puller.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
    wait_until(lambda: len(broker.hold_service) == 1)
    send_message(sender, "T")
    assert puller.reply(opaque) is not None
    assert str(tmp_path) in mapped.read_text(encoding="utf-8")
    broker.stop()
    assert str(tmp_path) not in mapped.read_text(encoding="utf-8")


def test_a_stopped_broker_ends_its_threads(start_broker: StartBroker, connect: Connect) -> None:
    """Every thread that it started is joined, under any policy."""
    for policy in (STRICT, ROCKETMQ_4_9):
        before = set(threading.enumerate())
        broker = start_broker(policy=policy)
        with RawClient(broker.address) as client:
            send_message(client, "T")
        broker.stop()
        assert set(threading.enumerate()) == before


def flags_of_answers(client: RawClient, broker: Broker) -> set[int]:
    """The flags of answers to requests with a flag of 12: sends, pulls, held ones, refusals, and nonsense."""
    topic = {"topic": "T", "queueId": "0"}
    told = [
        (RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x"),
        (RequestCode.SEND_MESSAGE_V2, send_fields("T", 99), b"x"),
        (PULL, pull_fields("T", 0), b""),
        (PULL, pull_fields("T", 9), b""),
        (PULL, pull_fields("no such topic", 0), b""),
        (RequestCode.GET_MAX_OFFSET, topic, b""),
        (RequestCode.GET_MAX_OFFSET, {}, b""),
        (70_000, {}, b""),
    ]
    found = [client.reply(client.send(code, fields, body, flag=12)) for code, fields, body in told]
    sends = [client._request(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x", flag=12) for _ in range(3)]
    client.send_bytes(b"".join(content for _opaque, content in sends))
    found += [client.reply(opaque) for opaque, _content in sends]
    held = [client.send(PULL, pull_fields("T", 4, timeout_ms=LONG_MS), flag=12) for _ in range(3)]
    wait_until(lambda: len(broker.hold_service) == len(held))
    send_message(client, "T")
    found += [client.reply(opaque) for opaque in held]
    return {-1 if answer is None else answer.flag for answer in found}


@pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "plain"])
def test_every_answer_s_flag_is_1(start_broker: StartBroker, connect: Connect, *, is_fast: bool) -> None:
    """Java makes its answers anew: of the request's flag nothing is in them."""
    broker = start_broker(is_fast=is_fast)
    assert flags_of_answers(connect(broker.address), broker) == {1}
