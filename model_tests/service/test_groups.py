"""Consumer groups: names, subscriptions, light queues and multi-dispatch."""

from __future__ import annotations

import struct
from pathlib import Path

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_held, wait_visible
from model_tests.support.broker.observed import events_of, observing
from model_tests.support.broker.raw_client import (
    RawClient,
    bodies_of,
    pull_fields,
    records_of,
    send_fields,
    send_message,
)
from model_tests.support.broker.stores import message
from model_tests.support.broker.subscription_script import play, play_strict
from model_tests.support.store import killed

from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.hold.hold_table import HoldTable
from longpoll_broker.io.channel import Outbox
from longpoll_broker.store.consume_queue import ConsumeQueue
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.verify import verify
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.properties import read_properties
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy, preset

STRICT_NAME, OLD, NEW = "strict", "rocketmq-4.9", "rocketmq-5"
LONG = {STRICT_NAME: 256, OLD: 1_025, NEW: 256}
"""For each policy, the length of a name that is one character too long."""


@pytest.fixture(params=LONG)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        (b"null", {STRICT_NAME: 1, OLD: 0, NEW: 0}),
        (b"", {STRICT_NAME: 1, OLD: 1, NEW: 0}),
        (b"{}", {STRICT_NAME: 1, OLD: 1, NEW: 29}),
        (b"{", {STRICT_NAME: 1, OLD: 1, NEW: 1}),
    ],
)
def test_an_invalid_group_changes_nothing(version: str, brokers: Brokers, body: bytes, codes: dict[str, int]) -> None:
    broker = brokers.start(policy=preset(version))
    before = dict(broker.groups.by_name)
    client = brokers.connect(broker)
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == codes[version]
    assert broker.groups.by_name == before


def test_a_group_name_that_is_too_long_is_refused(version: str, brokers: Brokers) -> None:
    broker, client = brokers.served(policy=preset(version))
    send_message(client, "T")
    for size in (LONG[version], 100_000):
        name = "g" * size
        made = client.create_group(name)
        assert made.code == (29 if version == NEW else 1)
        assert made.remark is not None
        assert len(made.remark) < 500
        assert client.commit("T", name, 7) != 0
        assert client.pull("T", group=name).code == 26
        back = {"offset": "0", "group": name, "delayLevel": "0"}
        assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 26
    if version != NEW:
        assert client.commit("t" * 900_000, "G", 7) == 1
    assert all(len(name) < 256 for name in broker.groups.by_name)
    assert all(len(pair) < 512 for pair in broker.offsets.by_pair)


CONFIG = BrokerConfig(property_filter=True)


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_heartbeats_count_as_in_rocketmq(policy: Policy, brokers: Brokers) -> None:
    """A heartbeat's subscriptions take effect as in RocketMQ, except that strict parses the tags itself."""
    played = play_strict if policy is STRICT else play
    assert played(brokers.client(policy=policy, config=CONFIG)) == []


LIGHT = attrs.evolve(SMALL_STORE, multi_dispatch=True, light_queues=True)
LONG_MS = 30_000
NAMES = "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"


def bodies(client: RawClient, topic: str, offset: int = 0) -> list[bytes]:
    reply = client.pull(topic, offset, group="%LMQ%g")
    return bodies_of(reply) if reply.code == 0 else []


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_a_pull_of_a_light_queue_is_woken(policy: Policy, brokers: Brokers) -> None:
    """A record that is listed in several queues, with its own offset in each queue, wakes a pull of a light queue."""
    broker = brokers.start(policy=policy, store_config=LIGHT)
    puller, sender = brokers.connect(broker), brokers.connect(broker)
    fields = pull_fields("%LMQ%b", 0, timeout_ms=LONG_MS, group="%LMQ%g")
    opaque = puller.send(RequestCode.PULL_MESSAGE, fields)
    wait_held(broker)
    send_message(sender, "T", b"m", properties=NAMES)
    reply = puller.answer(opaque)
    assert reply.code == 0
    (record,) = records_of(reply)
    assert (record.topic, bytes(record.body)) == ("T", b"m")
    assert read_properties(record.properties.decode())["INNER_MULTI_QUEUE_OFFSET"] == "0,0"
    send_message(sender, "T", b"n", properties="INNER_MULTI_DISPATCH\x01%LMQ%b\x02")
    wait_visible(broker, "%LMQ%b", 2)
    assert (bodies(puller, "T"), bodies(puller, "%LMQ%a")) == ([b"m", b"n"], [b"m"])
    assert bodies(puller, "%LMQ%b", 1) == [b"n"]


def test_the_proxy_records_the_offset_in_the_light_queue(brokers: Brokers, tmp_path: Path) -> None:
    """The offset of a record in a light queue differs from the record's offset in its own queue."""
    broker = brokers.start(store_config=LIGHT)
    with observing(broker.address, tmp_path / "history") as proxy:
        (door,) = proxy.doors.values()
        client = brokers.connect(door)
        send_message(client, "U")
        for properties in ("", "", NAMES, "", NAMES, "INNER_MULTI_DISPATCH\x01U\x02"):
            send_message(client, "T", properties=properties)
        for topic in ("T", "%LMQ%b", "U"):
            assert client.pull(topic, group="%LMQ%g").code == 0
    told = {event.topic: event.offsets for event in events_of(tmp_path / "history") if event.offsets}
    assert told == {"T": [0, 1, 2, 3, 4, 5], "%LMQ%b": [0, 1], "U": [0, 1]}


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
def test_light_queues_survive_a_restart(crashed: bool, brokers: Brokers, tmp_path: Path) -> None:
    """Light queues still exist after a clean stop, and are rebuilt from the log after a crash."""
    broker = brokers.start(store_config=LIGHT)
    for number in range(3):
        send_message(brokers.connect(broker), "T", b"%d" % number, properties=NAMES)
    broker.stop()
    if crashed:
        (tmp_path / "store" / "abort").touch()
        for name in ("%LMQ%a", "%LMQ%b", "T"):
            for file in (tmp_path / "store" / "consumequeue" / name / "0").iterdir():
                file.unlink()
    broker, client = brokers.served(store_config=LIGHT)
    assert bodies(client, "%LMQ%a") == [b"0", b"1", b"2"]
    send_message(client, "T", b"3", properties=NAMES)
    assert bodies(client, "%LMQ%b", 3) == [b"3"]
    broker.stop()
    assert verify(RealRuntime().files, str(tmp_path / "store")).problems == []


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ("%LMQ%a,../x", 13),
        ("%LMQ%a,%LMQ%a", 13),
        ("%LMQ%a,T", 13),
        (",".join(f"%LMQ%{number}" for number in range(129)), 13),
        (",".join(f"%LMQ%{number}" for number in range(3)), 1),
        ("%LMQ%a,%LMQ%b", 0),
    ],
    ids=["a path", "a queue twice", "the own topic", "129 names", "more queues than the broker permits", "valid names"],
)
def test_valid_names_of_light_queues_are_accepted(names: str, code: int, brokers: Brokers) -> None:
    broker = brokers.start(store_config=attrs.evolve(LIGHT, light_queue_count_max=2))
    fields = send_fields("T", properties=f"INNER_MULTI_DISPATCH\x01{names}\x02")
    assert brokers.connect(broker).call(RequestCode.SEND_MESSAGE_V2, fields, b"x").code == code
    assert broker.store.visible_end("T", 0) == (code == 0)


def test_messages_visible_before_a_failure_are_announced(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first queue's message is announced although the disk has no space for the second queue."""
    broker = brokers.start(store_config=LIGHT)
    puller, sender = brokers.connect(broker), brokers.connect(broker)
    opaque = puller.hold("%LMQ%a")
    wait_held(broker)
    put = ConsumeQueue.put

    def fails_for_b(queue: ConsumeQueue, arrival: Arrival) -> bool:
        if queue.topic == "%LMQ%b":
            raise OSError("no room")
        return put(queue, arrival)

    monkeypatch.setattr(ConsumeQueue, "put", fails_for_b)
    sender.send(RequestCode.SEND_MESSAGE_V2, send_fields("T", properties=NAMES), b"m")
    reply = puller.answer(opaque)
    assert bodies_of(reply) == [b"m"]
    monkeypatch.undo()
    wait_visible(broker, "%LMQ%b", 1)
    assert broker.store.visible_end("%LMQ%a", 0) == 1


def committed(client: RawClient, group: str, queue_id: int) -> int | None:
    return client.committed("T", group, queue_id, setZeroIfNotFound="false")


def fill(store: MessageStore) -> None:
    for queue_id in (0, 1, 3):
        store.put_batch([message("T", queue_id)] * 8)
    store.dispatch(100)


def test_javas_file_of_offsets_is_read(brokers: Brokers, tmp_path: Path) -> None:
    """RocketMQ's offsets file is read from its .bak too, and with unquoted keys."""
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    store = MessageStore.open(RealRuntime(), str(tmp_path / "store"), LIGHT)
    fill(store)
    store.close()
    (config / "lmqConsumerOffset.json").write_text("")
    (config / "lmqConsumerOffset.json.bak").write_text(
        '{\n\t"lmqOffsetTable":{"T@%LMQ%g":8\n\t},\n\t"offsetTable":{"T@G":{0:2,1:7}}\n}'
    )
    (config / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:1},"T@H":{0:1}}}')
    client = brokers.client(store_config=LIGHT)
    assert [committed(client, group, 1) for group in ("%LMQ%g", "G")] == [8, 7]
    assert committed(client, "H", 0) == 0


OFFSETS = "INNER_MULTI_QUEUE_OFFSET\x01"
CLAIMS = [
    f"{OFFSETS}5\x02",
    f"{OFFSETS}5\x02INNER_MULTI_DISPATCH\x01../x\x02DELAY\x0118\x02",
    f"{OFFSETS}3\x02INNER_MULTI_DISPATCH\x01%LMQ%a\x02TRAN_MSG\x01true\x02",
    f"{OFFSETS}5\x02INNER_MULTI_DISPATCH\x01T\x02DELAY\x0118\x02",
]
"""Properties with forged offsets in additional queues, which a producer must not be able to set."""


def places_after_a_crash(store_config: StoreConfig, brokers: Brokers, directory: Path) -> set[tuple[str, int, int]]:
    """Send forged offsets alone and in a batch, simulate a kill of the broker, and list the queues' messages."""
    # The long flush interval prevents a checkpoint, because a restart would skip the messages before a checkpoint.
    config = attrs.evolve(store_config, flush_interval_ms=3_600_000)
    _broker, client = brokers.served(store_config=config, directory=str(directory / "0"))
    for claim in CLAIMS:
        text = claim.encode()
        batch = struct.pack(">iiiii", 23 + len(text), 0, 0, 0, 1) + b"m" + struct.pack(">h", len(text)) + text
        assert client.put("T", properties=claim).code == 0
        assert client.call(RequestCode.SEND_BATCH_MESSAGE, send_fields("T") | {"m": "true"}, batch).code == 0
    store = brokers.start(store_config=LIGHT, directory=str(killed(directory / "0", "1"))).store
    return {(topic, queue_id, store.visible_end(topic, queue_id)) for topic, queue_id in store.queues()}


def test_stored_names_of_light_queues_never_become_paths(brokers: Brokers, tmp_path: Path) -> None:
    """Readers check the names of light queues, so a stored name never becomes a path."""
    places = places_after_a_crash(SMALL_STORE, brokers, tmp_path)
    assert {topic for topic, _queue_id, _end in places} == {
        "T", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "%LMQ%a",
    }  # fmt: skip
    assert not (tmp_path / "1" / "x").exists()


@pytest.mark.parametrize("comes", ["before", "after"])
@pytest.mark.parametrize("policy", [STRICT, preset("strict-clone")], ids=lambda policy: policy.name)
def test_a_held_pull_uses_its_groups_new_subscription(comes: str, policy: Policy, brokers: Brokers) -> None:
    """A message that only the new tags match answers the held pull, before or after the heartbeat that changes them."""
    broker, client = brokers.served(policy=policy)

    def subscribe(tag: str, version: int) -> None:
        wanted = {"topic": "T", "subString": tag, "tagsSet": [tag], "codeSet": [], "subVersion": version}
        assert client.beat(consumers={"G": [wanted]}).code == 0

    client.create_topic("T")
    subscribe("A", 1)
    held = client.hold("T", group="G", sysFlag=2)
    wait_held(broker)
    if comes == "after":
        subscribe("B", 2)
    assert client.put("T", properties="TAGS\x01B\x02").code == 0
    if comes == "before":
        wait_visible(broker, "T", 1)
        subscribe("B", 2)
    assert client.answer(held).code == 0


def test_a_changed_subscription_is_applied_under_the_locks(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notifier may take pulls at the same time, so the change of a subscription needs the locks."""
    broker, _client = brokers.served()
    locks = {id(shard.table): shard.lock for shard in broker.hold_service._shards}
    free, keys = [], HoldTable.keys

    def noted(table: HoldTable) -> list[tuple[str, int]]:
        is_free = locks[id(table)].acquire(False)
        if is_free:
            locks[id(table)].release()
        free.append(is_free)
        return keys(table)

    monkeypatch.setattr(HoldTable, "keys", noted)
    broker.pulling.resubscribed("G", ["T"], Outbox())
    assert free == [False] * len(locks)
