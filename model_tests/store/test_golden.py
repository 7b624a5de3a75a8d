"""Our broker reads, opens and continues the Java broker's store."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner
from model_tests.store.conftest import GOLDEN
from model_tests.support.broker.plain.plain_store import read_log, read_queues, read_record
from model_tests.support.broker.stores import message, open_store, put_and_dispatch, read_all

from longpoll.cli import main
from longpoll_broker.config import StoreConfig
from longpoll_broker.store.inspect import Blank, StoreDirectory
from longpoll_broker.store.messages import GetStatus
from longpoll_broker.store.verify import verify
from longpoll_protocol.log_record import Record, host_text
from longpoll_protocol.properties import decode_properties
from longpoll_runtime.files import RealFiles


@pytest.fixture
def found(java_store: Path) -> Iterator[StoreDirectory]:
    with closing(StoreDirectory(RealFiles(), str(java_store))) as directory:
        yield directory


def as_expected(record: Record) -> dict[str, Any]:
    """Returns a record in the form of the expected file, with RocketMQ's names and the digest of a long body."""
    fields = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "totalSize": record.size,
        "magic": f"{record.magic:08X}",
        "bodyCRC": record.body_crc,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_ms,
        "bornHost": host_text(record.born_host),
        "storeTimestamp": record.store_ms,
        "storeHost": host_text(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_offset,
        "bodyLength": len(record.body),
        "properties": decode_properties(record.properties),
        "propertiesRaw": record.properties.decode("utf-8", "replace"),
    }
    if len(record.body) > 128:
        return fields | {"bodySha256": hashlib.sha256(record.body).hexdigest()}
    return fields | {"body": base64.b64encode(record.body).decode()}


def test_every_record_is_read_field_by_field(found: StoreDirectory, java_expected: dict[str, Any]) -> None:
    expected = [
        {name: value for name, value in record.items() if name != "bodyCRCok"}
        for record in java_expected["commitlog"]["records"]
    ]
    records = [as_expected(entry) for entry in found.walk_log() if isinstance(entry, Record)]
    assert (records, len(expected)) == (expected, 1272)


def test_blanks_and_units_are_read(found: StoreDirectory, java_expected: dict[str, Any]) -> None:
    blanks = [entry for entry in found.walk_log() if isinstance(entry, Blank)]
    units = {f"{queue.topic}@{queue.queue_id}": list(map(list, queue.units(0))) for queue in found.queues}
    assert [{"physicalOffset": each.physical_offset, "size": each.size} for each in blanks] == java_expected[
        "commitlog"
    ]["blanks"]
    assert {key: each for key, each in units.items() if each} == {
        key: queue["units"] for key, queue in java_expected["consumequeues"].items() if queue["units"]
    }


def test_verify_accepts_the_java_store(java_store: Path, java_expected: dict[str, Any]) -> None:
    result = CliRunner().invoke(main, ["store", "verify", str(java_store), "--json"])
    assert result.exit_code == 0, result.output
    verdict = json.loads(result.stdout)
    assert verdict["messages"] == len(java_expected["commitlog"]["records"])
    assert verdict["problems"] == []
    ranges = {f"{queue['topic']}@{queue['queue']}": (queue["min"], queue["max"]) for queue in verdict["queues"]}
    assert sorted(ranges) == sorted(java_expected["consumequeues"])
    for key, queue in java_expected["queues"].items():
        assert ranges.get(key, (0, 0)) == (queue["min"], queue["max"]), key


def test_reading_never_writes(java_store: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in java_store.rglob("*")}
    for path in sorted(java_store.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    java_store.chmod(0o555)
    try:
        assert CliRunner().invoke(main, ["store", "verify", str(java_store), "--json"]).exit_code == 0
        assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in java_store.rglob("*")} == before
    finally:
        for path in [java_store, *java_store.rglob("*")]:
            path.chmod(0o755)


def test_our_store_serves_messages(java_store: Path, java_expected: dict[str, Any], java_config: StoreConfig) -> None:
    by_offset = {record["physicalOffset"]: record for record in java_expected["commitlog"]["records"]}
    store = open_store(java_store, java_config)
    checked = 0
    for key, queue in java_expected["queues"].items():
        topic, queue_id = key.rsplit("@", 1)
        assert store.visible_start(topic, int(queue_id)) == queue["min"], key
        assert store.visible_end(topic, int(queue_id)) == queue["max"], key
        if any(isinstance(each, dict) for each in queue["physicalOffsets"]) or key == "T_trim@1":
            continue
        records = [read_record(content) for content in read_all(store, topic, int(queue_id))]
        assert [record["physicalOffset"] for record in records] == queue["physicalOffsets"], key
        for record in records:
            assert record["propertiesRaw"] == by_offset[record["physicalOffset"]]["propertiesRaw"]
            checked += 1
    assert checked > 1200


def test_a_queue_without_records_on_4_9(java_store: Path, java_config: StoreConfig) -> None:
    """Java 4.9.7 first returns minimum offset 0 and OFFSET_FOUND_NULL, and later MESSAGE_WAS_REMOVING."""
    store = open_store(java_store, java_config)
    found = store.get("T_trim", 1, 0, 32)
    assert (found.status, found.offset_next) == (GetStatus.OFFSET_FOUND_NULL, 100)
    assert (found.offset_min, found.offset_max) == (0, 150)
    found = store.get("T_trim", 1, 100, 32)
    assert (found.status, found.offset_next) == (GetStatus.MESSAGE_WAS_REMOVING, 150)


def test_a_queue_without_records_on_5(java_store: Path, java_config: StoreConfig) -> None:
    """Java 5.5.0 moves the queue's minimum offset to the queue's end."""
    store = open_store(java_store, evolve(java_config, minimum_follows_log=True))
    assert store.ends("T_trim", 1) == (150, 150)
    found = store.get("T_trim", 1, 0, 32)
    assert (found.status, found.offset_next) == (GetStatus.OFFSET_TOO_SMALL, 150)
    assert store.get("T_trim", 1, 150, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.visible_start("T_trim", 0) == 202


def test_messages_are_found_by_their_store_time(
    java_store: Path, java_expected: dict[str, Any], java_config: StoreConfig
) -> None:
    store = open_store(java_store, java_config)
    one_file = {key for key, queue in java_expected["consumequeues"].items() if len(queue["files"]) == 1}
    checked = 0
    for asked, (time_ms, offset) in java_expected["searchOffsetByTime"].items():
        topic, queue_id, _which = asked.split("@")
        if f"{topic}@{queue_id}" in one_file:
            stored_ms = store.store_ms_of(topic, int(queue_id), store.offset_by_time(topic, int(queue_id), time_ms))
            assert stored_ms == store.store_ms_of(topic, int(queue_id), offset), asked
            checked += 1
    assert checked > 0
    assert store.offset_by_time("T_plain", 0, 0) == 0
    assert store.offset_by_time("T_plain", 0, 2**60) == 149


def test_the_java_store_is_continued_and_reopened(
    java_store: Path, java_expected: dict[str, Any], java_config: StoreConfig
) -> None:
    store = open_store(java_store, java_config)
    assert store.log_end == java_expected["commitlog"]["endOfLastRecord"]
    put, arrivals = put_and_dispatch(store, [message("T_plain", 1, b"x" * 3000, tag="A") for _ in range(40)])
    assert [result.queue_offset for result in put] == list(range(150, 190))
    assert [arrival.offset_end for arrival in arrivals] == list(range(151, 191))
    store.close()
    verdict = verify(RealFiles(), str(java_store))
    assert (verdict.problems, verdict.messages) == ([], 1272 + 40)
    old = java_expected["commitlog"]["records"]
    assert [each["physicalOffset"] for each in read_log(java_store)["records"][: len(old)]] == [
        each["physicalOffset"] for each in old
    ]
    assert len(read_queues(java_store)["T_plain@1"]) == 190
    store = open_store(java_store, java_config)
    assert len(read_all(store, "T_plain", 1)) == 190


def test_a_crashed_copy_recovers(java_store: Path, java_expected: dict[str, Any], java_config: StoreConfig) -> None:
    """If the abort file exists and the queue files are missing, recovery rebuilds the queue files byte for byte."""
    (java_store / "abort").touch()
    shutil.rmtree(java_store / "consumequeue")
    (java_store / "checkpoint").unlink()
    open_store(java_store, java_config).close()
    rebuilt = read_queues(java_store)
    log_start = java_expected["commitlog"]["records"][0]["physicalOffset"]
    checked = 0
    for key, queue in java_expected["consumequeues"].items():
        expected = [unit for unit in queue["units"] if unit[1] >= log_start]
        assert [unit for unit in rebuilt.get(key, []) if unit[1] >= log_start] == expected, key
        checked += len(expected)
    assert checked > 1200


def test_a_store_that_java_5_5_wrote_by_default_is_served(tmp_path: Path) -> None:
    """The store contains an empty RocksDB database, an empty compaction checkpoint, a timer and a light queue."""
    with tarfile.open(GOLDEN / "store-5.5.0-default.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    parts = {each.name for each in tmp_path.iterdir()}
    assert {"rocksdbstore", "compaction", "timerlog", "timerwheel"} <= parts
    assert CliRunner().invoke(main, ["store", "verify", str(tmp_path)]).exit_code == 0
    config = StoreConfig(
        commit_log_file_size=104_857_600,
        index_slot_count=4_000,
        index_entry_count=1_000,
        multi_dispatch=True,
        light_queues=True,
    )
    store = open_store(tmp_path, config)
    found = {
        topic: [base64.b64decode(read_record(content)["body"]) for content in read_all(store, topic, 0)]
        for topic in ("T", "%LMQ%1")
    }
    assert found == {"T": [b"m0", b"m1", b"m4", b"m5", b"m2"], "%LMQ%1": [b"m4"]}
    put_and_dispatch(store, [message()])
    store.close()
    assert {each.name for each in tmp_path.iterdir()} >= parts
