"""Java's broker 4.9.7 and this broker open one store alternately, and this broker reads a store of 5.5.0.

Each broker must serve every byte of every message that the other broker stored, find the message by its key, and
continue after the other broker was stopped or killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from attrs import define, evolve, field
from model_tests.conformance.java_broker import VERSIONS, running
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields
from model_tests.support.broker.stores import open_store
from model_tests.support.java import class_path_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.store.inspect import StoreDirectory
from longpoll_broker.store.verify import verify
from longpoll_protocol.bodies import load_json
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.log_record import Record
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, Policy

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

OURS: Final = StoreConfig(
    commit_log_file_size=65_536, consume_queue_file_size=2_000, index_slot_count=400, index_entry_count=1_000
)
SETTINGS: Final = (
    "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=400\nmaxIndexNum=1000\n"
    # Frequent flushes let the checkpoint move during the test.
    "flushIntervalCommitLog=20\nflushIntervalConsumeQueue=20"
)
"""Settings that make the files so small that log, queues and index roll over."""
TOPICS: Final = ("Orders", "Other")
QUEUES: Final = 3
READY_S: Final = 60.0
FOR_EVER: Final = str(2**60)

Opened = Callable[[Path], AbstractContextManager[tuple[str, int]]]
"""Opens a broker on the store in a directory; yields its address."""


@pytest.fixture(scope="module")
def class_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {version: class_path_of(tmp_path_factory.mktemp("maven"), version) for version in VERSIONS}


@define
class Sent:
    """The records sent to a store, by queue; the bytes of a record are those of its first pull."""

    records: dict[tuple[str, int], list[bytes]] = field(
        factory=lambda: {(topic, queue_id): [] for topic in TOPICS for queue_id in range(QUEUES)}
    )
    count: int = 0


def wait_until_ready(client: RawClient, topic: str) -> None:
    deadline_s = time.monotonic() + READY_S
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    while (reply := client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)).code != ResponseCode.SUCCESS:
        assert time.monotonic() < deadline_s, reply.remark


def send_some(client: RawClient, sent: Sent, count: int) -> None:
    """Send messages to every queue: bodies up to two kilobytes, tags, keys, unicode."""
    for _ in range(count):
        number = sent.count
        topic, queue_id = TOPICS[number % len(TOPICS)], number // len(TOPICS) % QUEUES
        keys = f"UNIQ_KEY\x01U{number:04}\x02KEYS\x01k{number} grp{number % 7}\x02"
        properties = f"{keys}TAGS\x01tag{number % 3}\x02Ö\x01ü€\x02"
        body = bytes([number % 256]) * (number * 97 % 2000 + 1)
        reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id, properties), body)
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        assert (reply.ext_fields or {})["queueOffset"] == str(len(sent.records[topic, queue_id]))
        # The bytes of a message are recorded at its first pull.
        sent.records[topic, queue_id].append(b"")
        sent.count += 1


def pull_all(client: RawClient, topic: str, queue_id: int, count: int, tag: str = "*") -> list[bytes]:
    """Pull every record of a queue, or every record with a tag, following the next offsets as a consumer does."""
    deadline_s = time.monotonic() + READY_S
    records: list[bytes] = []
    offset = 0
    while len(records) < count:
        fields = pull_fields(topic, offset, queue_id=queue_id, subscription=tag)
        reply = client.call(RequestCode.PULL_MESSAGE, fields)
        assert time.monotonic() < deadline_s, f"{topic}@{queue_id} at {offset}: {reply.code} {reply.remark}"
        if reply.code == ResponseCode.SUCCESS:
            body = bytes(reply.body)
            for record in records_of(reply):
                records.append(body[: record.size])
                body = body[record.size :]
        if reply.code in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}:
            offset = int((reply.ext_fields or {})["nextBeginOffset"])
    return records


def found_by_key(client: RawClient, topic: str, key: str) -> list[bytes]:
    fields = {"topic": topic, "key": key, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": FOR_EVER}
    reply = client.call(RequestCode.QUERY_MESSAGE, fields)
    body, records = bytes(reply.body), []
    for record in records_of(reply):
        records.append(body[: record.size])
        body = body[record.size :]
    return records


def check_all(client: RawClient, sent: Sent) -> None:
    if sent.count:
        last = sent.count - 1
        wait_until(lambda: bool(found_by_key(client, TOPICS[last % len(TOPICS)], f"U{last:04}")))
    everything: dict[int, bytes] = {}
    for (topic, queue_id), known in sent.records.items():
        served = pull_all(client, topic, queue_id, len(known))
        reply = client.call(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
        assert (reply.ext_fields or {})["offset"] == str(len(known)), (topic, queue_id)
        assert [old or new for old, new in zip(known, served, strict=True)] == served, (topic, queue_id)
        sent.records[topic, queue_id] = served
        for record in served:
            text = record[record.index(b"UNIQ_KEY\x01U") + 10 :][:4]
            everything[int(text)] = record
    assert sorted(everything) == list(range(sent.count))
    for number in range(0, sent.count, 17):
        topic = TOPICS[number % len(TOPICS)]
        assert found_by_key(client, topic, f"k{number}") == [everything[number]], number
        assert found_by_key(client, topic, f"U{number:04}") == [everything[number]], number
    for topic, queue_id in sent.records:
        expected = [
            record
            for number, record in sorted(everything.items())
            if number % 3 == 1 and record in sent.records[topic, queue_id]
        ]
        assert pull_all(client, topic, queue_id, len(expected), tag="tag1") == expected, (topic, queue_id)
    group = [everything[number] for number in range(sent.count) if number % 7 == 3 and number % 2]
    assert found_by_key(client, TOPICS[1], "grp3") == group[-64:]


def check_tables(client: RawClient, turn: int) -> None:
    deadline_s = time.monotonic() + READY_S
    while client.call(RequestCode.PULL_MESSAGE, pull_fields(TOPICS[1], 0, queue_id=QUEUES - 1)).code:
        assert time.monotonic() < deadline_s, "the topic is not known"
    beyond = client.call(RequestCode.PULL_MESSAGE, pull_fields(TOPICS[1], 0, queue_id=QUEUES))
    assert beyond.code == ResponseCode.SYSTEM_ERROR
    fields = {"consumerGroup": "CG", "topic": TOPICS[0], "queueId": "1"}
    assert (client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields).ext_fields or {})["offset"] == str(turn)
    groups = load_json(client.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}).body)
    assert groups["subscriptionGroupTable"]["CG"]["retryMaxTimes"] == turn


def change_tables(client: RawClient, turn: int) -> None:
    group = {"groupName": "CG", "retryMaxTimes": turn}
    body = json.dumps(group).encode()
    assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
    fields = {"consumerGroup": "CG", "topic": TOPICS[0], "queueId": "1", "commitOffset": str(turn)}
    assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0


def leave_backups_only(store: Path) -> None:
    """Damage the JSON tables of the store, so that the next broker must use their `.bak` files."""
    for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json"):
        path = store / "config" / name
        path.replace(path.with_name(f"{path.name}.bak"))
        path.write_text("{")


@contextmanager
def ours(home: Path, config: StoreConfig = OURS) -> Iterator[tuple[str, int]]:
    with Broker.start(RealRuntime(), str(home / "store"), policy=ROCKETMQ_4_9, store_config=config) as broker:
        yield broker.address


@contextmanager
def theirs(home: Path, class_path: str, settings: str = SETTINGS) -> Iterator[tuple[str, int]]:
    with running(class_path, home, settings=settings) as broker:
        yield broker.address


def go_round(home: Path, sent: Sent, opened: Opened, count: int, turn: int = 0) -> None:
    """Open the store, check the other broker's messages, send more and check again.

    The tables of topics, groups and offsets are changed if `turn` is at least 1, and checked if it is at least 2.
    """
    home.mkdir(exist_ok=True)
    with opened(home) as address, RawClient(address) as client:
        if turn > 1:
            check_tables(client, turn - 1)
        for topic in TOPICS:
            wait_until_ready(client, topic)
        check_all(client, sent)
        send_some(client, sent, count)
        check_all(client, sent)
        if turn:
            change_tables(client, turn)


def sound(home: Path) -> None:
    """Assert that the directory has no damage; an incomplete last record is allowed, because a kill may leave one."""
    problems = verify(RealFiles(), str(home / "store")).problems
    assert [problem for problem in problems if problem.kind != "tail"] == []
    if not (home / "store" / "abort").exists():
        assert problems == []


@pytest.mark.parametrize("first", [pytest.param("java", marks=pytest.mark.long), "ours"])
def test_java_and_our_broker_open_one_store_in_turns(class_paths: dict[str, str], tmp_path: Path, first: str) -> None:
    """The brokers alternately open the store, four times in all; each serves every message and appends more."""
    sent = Sent()

    java: Opened = partial(theirs, class_path=class_paths["4.9.7"])
    turns = [java, ours, java, ours] if first == "java" else [ours, java, ours, java]
    home = tmp_path / "0"
    for number, opened in enumerate(turns):
        go_round(home, sent, opened, 120, number + 1)
        assert not (home / "store" / "abort").exists()
        sound(home)
        shutil.copytree(home / "store", tmp_path / str(number + 1) / "store")
        home = tmp_path / str(number + 1)
        if number < 2:
            leave_backups_only(home / "store")


def test_delayed_messages_with_custom_levels_are_delivered_by_the_other_broker(
    class_paths: dict[str, str], tmp_path: Path
) -> None:
    """With the same `messageDelayLevel`, each broker delivers the messages that the other broker had delayed."""
    levels = "1s 4s 2d"
    config = evolve(OURS, delay_levels=levels)
    properties = {level: f"DELAY\x01{level}\x02" for level in (2, 3)}
    with ours(tmp_path, config) as address, RawClient(address) as client:
        wait_until_ready(client, "Late")
        begun_s = time.monotonic()
        for level, text in properties.items():
            reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields("Late", 0, text), b"%d" % level)
            assert reply.code == ResponseCode.SUCCESS
        early = client.call(RequestCode.PULL_MESSAGE, pull_fields("Late", 0)).code == ResponseCode.PULL_NOT_FOUND
        assert early or time.monotonic() - begun_s >= 4, "the message was delivered too early"
    sound(tmp_path)
    with (
        running(class_paths["4.9.7"], tmp_path, settings=f"{SETTINGS}\nmessageDelayLevel={levels}") as java,
        RawClient(java.address) as client,
    ):
        wait_until_ready(client, "Late")
        (record,) = pull_all(client, "Late", 0, 1)
        assert b"REAL_TOPIC\x01Late" in record
        reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields("Late", 1, properties[2]), b"2")
        assert reply.code == ResponseCode.SUCCESS
    sound(tmp_path)
    with ours(tmp_path, config) as address, RawClient(address) as client:
        pull_all(client, "Late", 1, 1)
        reply = client.call(RequestCode.GET_MAX_OFFSET, {"topic": "Late", "queueId": "0"})
        assert (reply.ext_fields or {})["offset"] == "1", "a message with a delay of two days was delivered"
    sound(tmp_path)


def queue_files(store: Path) -> dict[str, bytes]:
    paths = [path for part in ("consumequeue", "consumequeue_ext") for path in sorted((store / part).glob("*/*/*"))]
    return {str(path.relative_to(store)): path.read_bytes() for path in paths if any(path.read_bytes())}


@pytest.mark.long
def test_extended_queues_are_read_by_both_brokers(class_paths: dict[str, str], tmp_path: Path) -> None:
    """With `enableConsumeQueueExt` each broker finds the other's messages by tag, and writes the same log bytes."""
    sent = Sent()
    config = evolve(OURS, extended_queues=True, extended_file_size=404)

    settings = f"{SETTINGS}\nenableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=404"
    java = partial(theirs, class_path=class_paths["4.9.7"], settings=settings)
    go_round(tmp_path / "0", sent, java, 150)
    shutil.copytree(tmp_path / "0" / "store", tmp_path / "1" / "store")
    expected = queue_files(tmp_path / "1" / "store")
    assert len([name for name in expected if name.startswith("consumequeue_ext/Orders")]) > QUEUES
    for part in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(tmp_path / "1" / "store" / part)
    open_store(tmp_path / "1" / "store", config).close()
    assert queue_files(tmp_path / "1" / "store") == expected
    go_round(tmp_path / "1", sent, partial(ours, config=config), 150)
    go_round(tmp_path / "1", sent, java, 50)
    go_round(tmp_path / "1", sent, partial(ours, config=config), 50)
    sound(tmp_path / "1")


@pytest.mark.long
def test_a_killed_store_is_recovered_by_the_other(class_paths: dict[str, str], tmp_path: Path) -> None:
    """Each broker is killed in the middle of its work. The other broker opens its store and finds every message."""
    sent = Sent()

    @contextmanager
    def java_killed(home: Path) -> Iterator[tuple[str, int]]:
        with running(class_paths["4.9.7"], home, settings=SETTINGS) as broker:
            yield broker.address
            os.kill(broker.process_id, signal.SIGKILL)

    go_round(tmp_path / "0", sent, java_killed, 150)
    assert (tmp_path / "0" / "store" / "abort").exists()
    sound(tmp_path / "0")

    @contextmanager
    def ours_killed(home: Path) -> Iterator[tuple[str, int]]:
        with ours(home) as address:
            yield address
            shutil.copytree(home / "store", tmp_path / "1" / "store")

    go_round(tmp_path / "0", sent, ours_killed, 150)
    assert (tmp_path / "1" / "store" / "abort").exists()
    sound(tmp_path / "1")
    go_round(tmp_path / "1", sent, java_killed, 50)
    go_round(tmp_path / "1", sent, ours, 50)
    sound(tmp_path / "1")


def ends_of(address: tuple[str, int], sent: Sent) -> list[int]:
    """The number of messages that each queue has had, as reported by a broker."""
    with RawClient(address) as client:
        wait_until_ready(client, TOPICS[0])
        replies = [
            client.call(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
            for topic, queue_id in sent.records
        ]
    return [int((reply.ext_fields or {})["offset"]) for reply in replies]


@pytest.mark.long
def test_both_brokers_survive_a_zeroed_tail_and_only_ours_a_truncated_file(
    class_paths: dict[str, str], tmp_path: Path
) -> None:
    """Each broker keeps the records before zeros at the end. With a truncated file, 4.9.7 does not start."""
    sent = Sent()
    go_round(tmp_path / "0", sent, ours, 40)
    (tmp_path / "0" / "store" / "abort").touch()
    found = StoreDirectory(RealFiles(), str(tmp_path / "0" / "store"))
    last = [entry for entry in found.walk_log() if isinstance(entry, Record)][-1]
    file, position = found.place(last.physical_offset)
    found.close()
    torn_at = position + last.size // 2
    for name in ("zeroed", "zeroed-java", "cut", "cut-java"):
        shutil.copytree(tmp_path / "0" / "store", tmp_path / name / "store")
        path = tmp_path / name / "store" / file
        content = path.read_bytes()[:torn_at]
        path.write_bytes(content if name.startswith("cut") else content.ljust(65_536, b"\0"))
    ends: dict[str, list[int]] = {}
    for name in ("zeroed", "cut"):
        with ours(tmp_path / name) as address:
            ends[name] = ends_of(address, sent)
    with running(class_paths["4.9.7"], tmp_path / "zeroed-java", settings=SETTINGS) as broker:
        ends["zeroed-java"] = ends_of(broker.address, sent)
    whole = [len(known) - ((last.topic, last.queue_id) == key) for key, known in sent.records.items()]
    assert ends == dict.fromkeys(("zeroed", "cut", "zeroed-java"), whole)
    with (
        pytest.raises(AssertionError, match="BrokerStartup ended with"),
        running(class_paths["4.9.7"], tmp_path / "cut-java", settings=SETTINGS),
    ):
        pytest.fail("it started")


@pytest.mark.long
def test_a_flipped_bit_ends_the_log_and_only_ours_saves_the_removed_bytes(
    class_paths: dict[str, str], tmp_path: Path
) -> None:
    """With a flipped bit in an acknowledged record of a killed store, 4.9.7 loses all later messages.

    4.9.7 logs the failed CRC. Our broker saves the bytes that it removes.
    """
    sent = Sent()
    go_round(tmp_path / "ours", sent, ours, 40)
    store = tmp_path / "ours" / "store"
    (store / "abort").touch()
    # Without a checkpoint the recovery begins at the start of the log.
    (store / "checkpoint").unlink()
    found = StoreDirectory(RealFiles(), str(store))
    records = [entry for entry in found.walk_log() if isinstance(entry, Record)]
    rotten = records[-10]
    file, position = found.place(rotten.physical_offset + rotten.size // 2)
    found.close()
    content = bytearray((store / file).read_bytes())
    content[position] ^= 1
    (store / file).write_bytes(content)
    shutil.copytree(store, tmp_path / "java" / "store")
    kept = [
        sum((each.topic, each.queue_id) == key for each in records if each.physical_offset < rotten.physical_offset)
        for key in sent.records
    ]
    with ours(tmp_path / "ours") as address:
        assert ends_of(address, sent) == kept
    aside = b"".join(each.read_bytes() for each in sorted((tmp_path / "ours" / "store" / "commitlog_cut").iterdir()))
    assert all(record in aside for known in sent.records.values() for record in known[-1:])
    with running(class_paths["4.9.7"], tmp_path / "java", settings=SETTINGS) as broker:
        assert ends_of(broker.address, sent) == kept
    said = "".join(each.read_text("utf-8", "replace") for each in (tmp_path / "java").glob("*.log"))
    lines = [line for line in said.splitlines() if "CRC check failed" in line]
    assert len(lines) == 1
    assert " ERROR " not in lines[0]


@pytest.mark.long
@pytest.mark.parametrize(("version", "policy"), [("4.9.7", ROCKETMQ_4_9), ("5.5.0", ROCKETMQ_5)])
def test_both_brokers_index_a_batch_by_the_same_of_two_tags(
    class_paths: dict[str, str], tmp_path: Path, version: str, policy: Policy
) -> None:
    """4.9.7 appends the request's properties to those of each message, so the last tag counts; 5.5.0 appends none."""
    tags = ("TAGS\x01own\x02", "TAGS\x01request\x02"), ("TAGS\x01own\x02", "TAGS\x01\x02"), ("", "TAGS\x01request\x02")

    def found(address: tuple[str, int]) -> list[tuple[int, ...]]:
        codes = []
        with RawClient(address) as client:
            wait_until_ready(client, TOPICS[0])
            for queue_id, (own, request) in enumerate(tags):
                fields = send_fields(TOPICS[0], queue_id, request) | {"m": "true"}
                assert (
                    client.call(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch([BatchMessage(b"x", own)])).code
                    == 0
                )
                assert len(pull_all(client, TOPICS[0], queue_id, 1)) == 1
                pulls = [pull_fields(TOPICS[0], 0, queue_id=queue_id, subscription=tag) for tag in ("own", "request")]
                codes.append(tuple(client.call(RequestCode.PULL_MESSAGE, each).code for each in pulls))
        return codes

    with running(class_paths[version], tmp_path / "java", settings=SETTINGS) as broker:
        by_java = found(broker.address)
    with Broker.start(RealRuntime(), str(tmp_path / "ours"), policy=policy, store_config=OURS) as ours_:
        assert found(ours_.address) == by_java
    assert (by_java[0] == (0, 20)) is (version == "5.5.0")
    assert verify(RealFiles(), str(tmp_path / "java" / "store")).problems == []


def test_a_store_of_5_5_0_is_read(class_paths: dict[str, str], tmp_path: Path) -> None:
    """Our broker reads every record as 5.5.0 stored and served it, and finds no damage in the directory."""
    sent = Sent()

    java = partial(theirs, class_path=class_paths["5.5.0"])
    home = tmp_path / "0"
    go_round(home, sent, java, 300)
    verdict = verify(RealFiles(), str(home / "store"))
    assert verdict.problems == []
    assert verdict.messages >= sent.count
    found = StoreDirectory(RealFiles(), str(home / "store"))
    read: dict[tuple[str, int], list[bytes]] = {key: [] for key in sent.records}
    for entry in found.walk_log():
        if isinstance(entry, Record) and (entry.topic, entry.queue_id) in read:
            file, position = found.place(entry.physical_offset)
            content = (home / "store" / file).read_bytes()
            read[entry.topic, entry.queue_id].append(content[position : position + entry.size])
    found.close()
    assert read == sent.records
