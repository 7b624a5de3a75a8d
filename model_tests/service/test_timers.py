"""Messages of 5.x that wait for a time: when they go, what recalls them, and what restarts and slaves know of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import Brokers, wait_until, wait_visible
from model_tests.support.broker.raw_client import RawClient, records_of, send_message
from model_tests.support.present import present

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.rocketmq import timers
from longpoll_broker.rocketmq.timers import TimerService
from longpoll_broker.send.message_builder import DELAY_MS_MAX
from longpoll_broker.shared import timer_offsets
from longpoll_broker.shared.timer_offsets import TimerCounts
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
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_5, Policy

START_MS = 1_800_000_000_500


class Clock(RealRuntime):
    """A wall clock that only tests move."""

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
    """A clock, a broker by it, and a client."""
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
def test_a_message_waits_until_the_second_it_wished_for(timed: Timed, wishes: Mapping[str, str], out_ms: int) -> None:
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
def test_a_wish_that_is_over_is_none_and_one_that_cannot_be_is_refused(
    timed: Timed, wishes: Mapping[str, str], code: int
) -> None:
    _clock, _broker, client = timed
    answer = send(client, **wishes)
    assert answer.code == code
    assert answer.ext_fields is not None
    assert "recallHandle" not in answer.ext_fields
    if code == 0:
        wait_until(lambda: keys(client) == ["K"])


def recall(client: RawClient, handle: str, topic: str = "T") -> Command:
    return client.call(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})


def test_a_recalled_message_goes_nowhere(timed: Timed) -> None:
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


def test_what_recalls_nothing_is_refused(brokers: Brokers, tmp_path: Path) -> None:
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


def test_properties_fit_when_it_goes(timed: Timed) -> None:
    """The delivery adds two properties, so a message without room is refused."""
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
    """A timer's queue that one more message comes to whenever it is asked for one."""

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


def test_who_sends_without_end_keeps_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_too_many_that_wait_are_refused(timed: Timed, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """A timer that records its deliveries of messages that were not recalled."""

    delivered: list[int]

    def _recalled(self, taken: Sequence[tuple[int, int, int, str]]) -> set[tuple[str, str]]:
        return set()

    def _deliver(self, entry: tuple[int, int, int, str], recalled: set[tuple[str, str]]) -> None:
        self.delivered.append(entry[1])


def test_one_that_was_read_late_is_not_taken_for_delivered() -> None:
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
    """By topic how many wait and since when that is so, and the version, as 61 tells."""
    answer = client.call(RequestCode.GET_TIMER_METRICS)
    assert answer.code == 0
    told = json.loads(bytes(answer.body))
    counts = {topic: (each["count"], each["timeStamp"]) for topic, each in told["timingCount"].items()}
    return counts, told["dataVersion"]["counter"]


def test_it_is_told_how_many_wait_for_a_topic(brokers: Brokers, tmp_path: Path) -> None:
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
def test_what_is_no_checkpoint_is_refused(body: bytes) -> None:
    with pytest.raises(HeaderError, match="TimerCheckpoint"):
        TimerCheckpoint.decode(body)
