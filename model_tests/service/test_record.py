"""The history that a broker records of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from longpoll_broker import record
from longpoll_broker.record import HistoryRecorder, RecordError
from longpoll_broker.runtime.interface import AppendFile
from longpoll_broker.runtime.real import RealRuntime
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import pull_fields, send_fields, send_message
from longpoll_broker.wire.codes import CommandFlag, RequestCode
from longpoll_spec.history import META_FILE, PART_GLOB, Event, Meta
from longpoll_spec.policy import STRICT, STRICT_CLONE, Policy


def events_of(directory: Path) -> list[Event]:
    """Every event of a history, by sequence."""
    lines = b"".join(part.read_bytes() for part in sorted(directory.glob(PART_GLOB)))
    return msgspec.json.Decoder(Event).decode_lines(lines)


def one(events: list[Event], kind: str, **fields: Any) -> Event:
    """The one event of this kind with these fields."""
    found = [
        event for event in events if event.event == kind and all(getattr(event, k) == v for k, v in fields.items())
    ]
    assert len(found) == 1, (kind, fields, found)
    return found[0]


@pytest.mark.parametrize("policy", [STRICT, STRICT_CLONE], ids=lambda policy: policy.name)
def test_a_wake_is_told_from_request_to_answer(
    policy: Policy, start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """Every event in its order, with what the judge needs; intervals never run backwards."""
    directory = tmp_path / "history"
    broker = start_broker(policy=policy, record_directory=str(directory))
    puller, sender = connect(broker.address), connect(broker.address)
    send_message(sender, "T", properties="TAGS\x01a\x02")
    opaque = puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=10_000, subscription="a || b"))
    wait_until(lambda: len(broker.hold_service) == 1)
    send_message(sender, "T", properties="TAGS\x01b\x02")
    assert puller.reply(opaque) is not None
    expired = puller.call(RequestCode.PULL_MESSAGE, pull_fields("T", 2, timeout_ms=20))
    assert expired.code == 19
    broker.stop()

    events = events_of(directory)
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
    assert visible.after_ns <= answered.before_ns
    late = one(events, "request_received", timeout_ms=20)
    assert one(events, "expire", request=late.request)
    assert one(events, "answer_sent", request=late.request).cause == "expired"


def test_a_second_life_is_a_second_source(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    """With a name of its own; what was visible before is told once a queue."""
    directory = tmp_path / "history"
    first = start_broker(record_directory=str(directory))
    send_message(connect(first.address), "T", queue_id=3)
    first.stop()
    start_broker(record_directory=str(directory)).stop()
    meta = msgspec.json.decode((directory / META_FILE).read_bytes(), type=Meta)
    names = [source.name for source in meta.sources]
    assert len(set(names)) == 2
    assert meta.policy == "strict"
    told = one(events_of(directory), "make_visible", source=names[1])
    assert (told.topic, told.queue, told.visible_end) == ("T", 3, 1)


def test_a_stop_answers_in_the_history_too(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    """Cause stopped, before the connection closes."""
    directory = tmp_path / "history"
    broker = start_broker(record_directory=str(directory))
    client = connect(broker.address)
    send_message(client, "T")
    client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=10_000))
    wait_until(lambda: len(broker.hold_service) == 1)
    broker.stop()
    events = events_of(directory)
    answered = one(events, "answer_sent", cause="stopped")
    assert (answered.code, answered.offset_next) == (19, 1)
    assert answered.sequence < one(events, "connection_closed").sequence


def test_a_refused_send_and_a_refused_pull_are_told_as_answers(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    """With their codes; a one-way request leaves no word, for it wants none."""
    directory = tmp_path / "history"
    broker = start_broker(record_directory=str(directory))
    client = connect(broker.address)
    assert client.call(RequestCode.SEND_MESSAGE_V2, send_fields("a@b")).code == 1
    assert client.call(RequestCode.PULL_MESSAGE, pull_fields("U", 0)).code == 17
    client.send(RequestCode.PULL_MESSAGE, pull_fields("U", 0, timeout_ms=10_000), flag=CommandFlag.ONE_WAY)
    client.send(RequestCode.SEND_MESSAGE_V2, send_fields("V"), flag=CommandFlag.ONE_WAY)
    wait_until(lambda: broker.store.visible_end("V", 0) == 1)
    broker.stop()
    events = events_of(directory)
    codes = {each.request: each.code for each in events if each.event == "answer_sent"}
    asked = {each.request: each.topic for each in events if each.event == "request_received"}
    assert {asked[request]: code for request, code in codes.items()} == {"a@b": 1, "U": 17}
    assert set(asked) == set(codes)


class SlowRuntime(RealRuntime):
    """Its append files write only when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = self.event()
        real = self._files.open_append

        def open_append(path: str) -> AppendFile:
            file = real(path)
            write = file.write

            def wait_and_write(content: bytes | bytearray) -> None:
                self.allowed.wait(10)
                write(content)

            file.write = wait_and_write  # type: ignore[method-assign] # pyright: ignore[reportAttributeAccessIssue]
            return file

        self._files.open_append = open_append  # type: ignore[method-assign,assignment]


@pytest.fixture
def small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for about ten events, and little patience."""
    monkeypatch.setattr(record, "WAITING_SIZE_MAX", 1_000)
    monkeypatch.setattr(record, "WAIT_S", 0.01)


def test_what_the_disk_cannot_take_is_declared_lost(
    small_queue: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequence numbers have no gap, and accepted plus lost is everything."""
    runtime = SlowRuntime()
    recorder = HistoryRecorder(runtime, str(tmp_path), broker="b", policy="strict")
    monkeypatch.setattr(recorder, "_wait_s", 0.01, raising=False)
    for number in range(100):
        recorder.put("append", 0, queue_offset=number)
    runtime.allowed.set()
    wait_until(lambda: not recorder._waiting)
    recorder.put("append", 0, queue_offset=100)
    recorder.stop()
    events = events_of(tmp_path)
    assert [event.sequence for event in events] == list(range(len(events)))
    appended = sum(event.event == "append" for event in events)
    lost = sum(event.lost_count for event in events)
    assert lost > 0
    assert appended + lost == 101


def test_a_directory_that_cannot_be_used_is_a_users_error(tmp_path: Path) -> None:
    """A file in its place, or a foreign meta file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot record"):
        HistoryRecorder(RealRuntime(), str(tmp_path / "file"), broker="b", policy="strict")
    (tmp_path / META_FILE).write_text("nonsense")
    with pytest.raises(RecordError, match="not a history"):
        HistoryRecorder(RealRuntime(), str(tmp_path), broker="b", policy="strict")
