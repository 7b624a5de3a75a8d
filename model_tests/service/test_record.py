"""The history that a broker records of its own requests and answers."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from model_tests.support.broker.brokers import Brokers, wait_held, wait_until, wait_visible
from model_tests.support.broker.observed import events_of
from model_tests.support.broker.raw_client import PATIENCE_S, pull_fields, send_fields, send_message

from longpoll_broker.broker import Broker
from longpoll_judge.run.pipeline import judge
from longpoll_protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from longpoll_protocol.codes import CommandFlag, MessageSysFlag, RequestCode
from longpoll_protocol.properties import java_hash
from longpoll_recorder import recorder as record
from longpoll_recorder.recorder import NUMBER_MAX, HistoryRecorder, RecordError
from longpoll_runtime import AppendFile, Buffer
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import META_FILE, Event, Meta
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, STRICT_CLONE, Policy


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "history"


def ended(broker: Broker, history: Path) -> list[Event]:
    broker.stop()
    return events_of(history)


def one(events: list[Event], kind: str, **fields: Any) -> Event:
    found = [
        event for event in events if event.event == kind and all(getattr(event, k) == v for k, v in fields.items())
    ]
    assert len(found) == 1, (kind, fields, found)
    return found[0]


def test_each_woken_pull_has_its_events(brokers: Brokers, history: Path) -> None:
    broker, puller, sender = brokers.served_two(record_directory=str(history))
    send_message(sender, "T")
    opaques = [puller.send_pull("T", 1, timeout_ms=10_000) for _ in range(3)]
    wait_held(broker, 3)
    send_message(sender, "T")
    assert all(puller.answer(opaque).code == 0 for opaque in opaques)
    events = ended(broker, history)
    asked = [event.request for event in events if event.event == "request_received" and event.may_hold]
    assert len(set(asked)) == 3
    for request in asked:
        assert one(events, "run", request=request)
        answered = one(events, "answer_sent", request=request)
        assert (answered.cause, answered.offsets) == ("woken", [1])


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE], ids=lambda policy: policy.name)
def test_the_events_of_a_wake(policy: Policy, brokers: Brokers, history: Path) -> None:
    broker, puller, sender = brokers.served_two(policy=policy, record_directory=str(history))
    send_message(sender, "T", properties="TAGS\x01a\x02")
    opaque = puller.send_pull("T", 1, timeout_ms=10_000, subscription="a || b")
    wait_held(broker)
    send_message(sender, "T", properties="TAGS\x01b\x02")
    assert puller.reply(opaque) is not None
    expired = puller.pull("T", 2, timeout_ms=20)
    assert expired.code == 19
    events = ended(broker, history)
    assert [event.sequence for event in events] == list(range(len(events)))
    assert all(event.after_ns <= event.before_ns for event in events)
    assert (events[0].event, events[-1].event) == ("source_started", "source_stopped")
    asked = one(events, "request_received", code=11, offset=1)
    assert (asked.topic, asked.queue, asked.group, asked.count_max) == ("T", 0, "G", 32)
    assert (asked.may_hold, asked.timeout_ms) == (True, 10_000)
    assert (asked.expression_type, asked.expression) == ("TAG", "a || b")
    assert one(events, "append", queue_offset=1).tag == "b"
    assert one(events, "message_acknowledged", queue_offset=1).tag == "b"
    visible = one(events, "make_visible", visible_end=2)
    answered = one(events, "answer_sent", request=asked.request)
    assert (answered.code, answered.cause, answered.offsets, answered.offset_next) == (0, "woken", [1], 2)
    assert (answered.topic, answered.queue) == ("T", 0)
    order = [
        one(events, kind, request=asked.request).sequence
        for kind in ("request_received", "hold", "recheck", "take", "run", "answer_sent")
    ]
    assert order == sorted(order)
    ends = [one(events, kind, request=asked.request).visible_end for kind in ("hold", "recheck", "take")]
    assert ends == [1, 1, 2]
    assert visible.after_ns <= answered.before_ns
    late = one(events, "request_received", timeout_ms=20)
    assert one(events, "expire", request=late.request)
    assert one(events, "answer_sent", request=late.request).cause == "expired"


@pytest.mark.parametrize("flag", [MessageSysFlag.TRANSACTION_PREPARED, MessageSysFlag.TRANSACTION_ROLLBACK])
def test_prepared_messages(flag: MessageSysFlag, brokers: Brokers, history: Path) -> None:
    broker, client = brokers.served(record_directory=str(history))
    for sys_flag in (0, int(flag)):
        assert client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T") | {"f": str(sys_flag)}).code == 0
    events = ended(broker, history)
    listed, other = (event.request for event in events if event.event == "request_received")
    assert one(events, "append").queue_offset == 0
    assert one(events, "message_acknowledged").request == listed
    answered = one(events, "answer_sent")
    assert (answered.request, answered.topic, answered.queue, answered.code) == (other, "T", 0, 0)


def test_numbers_beyond_the_schema_become_its_maximum(brokers: Brokers, history: Path) -> None:
    beyond = (1 << 63) - 1
    broker, client = brokers.served(record_directory=str(history))
    send_message(client, "T")
    fields = pull_fields("T", beyond, timeout_ms=beyond) | {"commitOffset": str(beyond)}
    assert client.call(RequestCode.PULL_MESSAGE, fields).code == 21
    assert client.pull("T", -beyond).code == 21
    group = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    client.call(RequestCode.UPDATE_CONSUMER_OFFSET, group | {"commitOffset": str(beyond)})
    assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, group).ext_fields == {"offset": str(beyond)}
    pulls = [event for event in ended(broker, history) if event.code == RequestCode.PULL_MESSAGE]
    assert [event.offset for event in pulls] == [NUMBER_MAX, -NUMBER_MAX]
    assert judge([history], engine="local").gaps == []


@pytest.mark.parametrize(
    ("policy", "codes"), [(STRICT, {"b"}), (ROCKETMQ_4_9, {"a"}), (ROCKETMQ_4_9, {"b"}), (ROCKETMQ_4_9, {})]
)
def test_an_expression_is_recorded_if_the_broker_uses_it(
    policy: Policy,
    codes: Collection[str],
    brokers: Brokers,
    history: Path,
) -> None:
    broker, client = brokers.served(policy=policy, record_directory=str(history))
    send_message(client, "T", properties="TAGS\x01a\x02")
    hashes = frozenset(map(java_hash, codes))
    wanted = SubscriptionData(topic="T", sub_string="a", sub_version=1, code_set=hashes)
    consumer = ConsumerData(group_name="G", subscription_data_set=[wanted])
    client.call(RequestCode.HEART_BEAT, None, HeartbeatData(client_id="c", consumer_data_set=[consumer]).encode())
    client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0) | {"sysFlag": "0", "subVersion": "1"})
    asked = one(ended(broker, history), "request_received", code=11)
    is_told = policy is STRICT or codes == {"a"}
    assert (asked.expression_type, asked.expression) == (("TAG", "a") if is_told else ("", ""))


def test_a_restarted_broker_is_a_second_source(brokers: Brokers, history: Path) -> None:
    first = brokers.start(record_directory=str(history))
    send_message(brokers.connect(first), "T", queue_id=3)
    first.stop()
    brokers.start(record_directory=str(history)).stop()
    meta = msgspec.json.decode((history / META_FILE).read_bytes(), type=Meta)
    names = [source.name for source in meta.sources]
    assert (len(set(names)), meta.policy) == (2, "strict")
    told = one(events_of(history), "make_visible", source=names[1])
    assert (told.topic, told.queue, told.visible_end) == ("T", 3, 1)


def test_refused_requests_are_answers(brokers: Brokers, history: Path) -> None:
    broker, client = brokers.served(record_directory=str(history))
    assert client.call(RequestCode.SEND_MESSAGE_V2, send_fields("a@b")).code == 1
    assert client.pull("U").code == 17
    client.send_pull("U", timeout_ms=10_000, flag=CommandFlag.ONE_WAY)
    client.send(RequestCode.SEND_MESSAGE_V2, send_fields("a@b"), flag=CommandFlag.ONE_WAY)
    client.send(RequestCode.SEND_MESSAGE_V2, send_fields("V"), flag=CommandFlag.ONE_WAY)
    wait_visible(broker, "V", 1)
    events = ended(broker, history)
    codes = {each.request: each.code for each in events if each.event == "answer_sent"}
    asked = {each.request: each.topic for each in events if each.event == "request_received"}
    assert {asked[request]: code for request, code in codes.items()} == {"a@b": 1, "U": 17}
    assert set(asked) == set(codes)
    assert len([each for each in events if each.event == "answer_sent"]) == len(codes)
    assert one(events, "append", topic="V")
    assert not any(each.event == "message_acknowledged" for each in events)


class FussyFile:
    """A file that accepts a number of bytes at first, and later only bytes whose space was reserved."""

    def __init__(self, file: AppendFile, disk: FullDisk) -> None:
        self._file = file
        self._disk = disk
        self._kept = 0
        self.sync, self.close = file.sync, file.close

    def reserve(self, size: int) -> None:
        if size - self._kept > self._disk.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._disk.room -= max(size - self._kept, 0)
        self._kept = max(size, self._kept)

    def write(self, content: Buffer) -> None:
        if self._disk.tears_at:
            self._file.write(memoryview(content)[: self._disk.tears_at])
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        assert self._disk.writes.wait(PATIENCE_S)
        assert len(content) <= self._kept, "bytes were written beyond the reserved ones"
        self._kept -= len(content)
        self._file.write(content)


class FullDisk(RealRuntime):
    """A disk with limited space; writes to it block until `writes` is set."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.tears_at = room, 0
        self.writes = threading.Event()
        self.writes.set()
        real = self._files.open_append
        self._files.open_append = lambda path: FussyFile(real(path), self)  # type: ignore[method-assign,assignment,return-value]


KEPT = 4_096


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder with room for a hundred events in memory and forty in one write, which never waits for the disk."""
    for name, value in {
        "WAITING_SIZE_MAX": 20_000, "BATCH_SIZE": 8_000, "KEPT_SIZE": KEPT, "TORN_SIZE_MAX": 2_048, "RETRY_S": 0.005,
    }.items():  # fmt: skip
        monkeypatch.setattr(record, name, value)


def whole_of(directory: Path, put: int) -> list[Event]:
    """Returns the recorded events; checks their numbers, the start and the end, and that lost events are reported."""
    events = events_of(directory)
    assert [event.sequence for event in events] == list(range(len(events)))
    assert (events[0].event, events[-1].event) == ("source_started", "source_stopped")
    numbers = [event.queue_offset for event in events if event.event == "append"]
    assert numbers == sorted(set(numbers))
    assert len(numbers) + sum(event.lost_count for event in events) == put
    missing = set(range(put)) - set(numbers)
    for number in missing:
        assert any(event.after_ns <= number * 10 <= number * 10 + 5 <= event.before_ns for event in events
                   if event.event == "lost"), number  # fmt: skip
    return events


def put_events(recorder: HistoryRecorder, numbers: range) -> None:
    for number in numbers:
        recorder.put("append", number * 10, before_ns=number * 10 + 5, queue_offset=number)


@pytest.mark.parametrize("wait_s", [0, 0.001])
def test_a_too_slow_disk_is_reported(wait_s: float, small_disk: None, tmp_path: Path) -> None:
    runtime = FullDisk(1 << 30)
    runtime.writes.clear()
    recorder = HistoryRecorder(runtime, str(tmp_path), broker="b", policy="strict", wait_s=wait_s)
    put_events(recorder, range(600))
    runtime.writes.set()
    recorder.stop()
    events = whole_of(tmp_path, 600)
    lost = sum(event.lost_count for event in events)
    assert lost > 0
    assert f"did not take {lost} events in time" in recorder.trouble


def test_a_full_disk_has_room_for_the_end(small_disk: None, tmp_path: Path) -> None:
    runtime = FullDisk(KEPT + 20_000)
    recorder = HistoryRecorder(runtime, str(tmp_path), broker="b", policy="strict", wait_s=0)
    put_events(recorder, range(2_000))
    recorder.stop()
    events = whole_of(tmp_path, 2_000)
    assert [event.event for event in events[-2:]] == ["lost", "source_stopped"]
    assert f"did not take {events[-2].lost_count} events" in recorder.trouble


def test_a_disk_with_room_again(small_disk: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runtime = FullDisk(KEPT + 10_000)
    recorder = HistoryRecorder(runtime, str(tmp_path), broker="b", policy="strict", wait_s=0)
    put_events(recorder, range(150))
    wait_until(lambda: recorder._refused is not None)
    put_events(recorder, range(150, 1_000))
    runtime.room += 1 << 20
    wait_until(lambda: recorder._refused is None and not recorder._waiting)
    put_events(recorder, range(1_000, 1_010))
    recorder.stop()
    events = whole_of(tmp_path, 1_010)
    assert [event.event for event in events].count("lost") == 1
    assert {event.queue_offset for event in events} > set(range(1_000, 1_010))
    assert ["trying again" in line.message for line in caplog.records] == [True, False]


@pytest.mark.parametrize("stays", [False, True], ids=["disk recovers", "disk stays full"])
def test_recording_continues_after_a_torn_write(stays: bool, small_disk: None, tmp_path: Path) -> None:
    runtime = FullDisk(1 << 20)
    recorder = HistoryRecorder(runtime, str(tmp_path), broker="b", policy="strict", wait_s=0)
    wait_until(lambda: recorder._sequence == 1 and not recorder._waiting)
    runtime.tears_at = 150
    put_events(recorder, range(50))
    wait_until(lambda: recorder._refused is not None)
    if stays:
        recorder._stopping = True
        recorder._thread.join()
        assert recorder._end_error is not None
        assert "has no end" in recorder.trouble
        return
    runtime.tears_at = 0
    recorder.stop()
    whole_of(tmp_path, 50)
    assert not recorder.trouble


def test_a_directory_that_cannot_be_used_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot record"):
        HistoryRecorder(RealRuntime(), str(tmp_path / "file"), broker="b", policy="strict")
    (tmp_path / META_FILE).write_text("nonsense")
    with pytest.raises(RecordError, match="not the meta file of a history"):
        HistoryRecorder(RealRuntime(), str(tmp_path), broker="b", policy="strict")
