"""Messages on their way into the store: what is told of them, and how one goes to another topic and comes back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from longpoll_broker.service.send.append import Appender, brought_back, delayed, moved
from longpoll_broker.service.send.send_events import SendEvents, Stored
from longpoll_broker.store.bursts import PreparedBatch
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_broker.testing.stores import message
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.properties import DELAY_LEVELS_MS, FORM_4_9, read_properties
from longpoll_protocol.tags import java_hash
from longpoll_runtime.real import RealRuntime

LEVEL_COUNT = len(DELAY_LEVELS_MS)
MESSAGE = replace(message(), topic="T", queue_id=5)


class Appended(RealRuntime):
    """A runtime, and a store that numbers what it is given; both note what they do."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Any] = []

    def step(self, action: str) -> None:
        """Note it."""
        self.notes.append(action)

    def put(self, stored: MessageToStore) -> Any:
        """One message."""
        self.notes.append("put")
        return f"{stored.topic} stored"

    def put_batch(self, messages: Sequence[MessageToStore]) -> list[Any]:
        """All of them."""
        self.notes.append("put_batch")
        return [f"{each.topic} stored" for each in messages]

    def put_prepared(self, batch: PreparedBatch) -> PutResult:
        """All of them, from 30 of their queue and 4000 of the log on."""
        self.notes.append(("put_prepared", batch))
        return PutResult(30, 4_000, batch.sizes[0], 9, batch.first.store_host)

    def put_burst(self, messages: Sequence[MessageToStore]) -> Sequence[Any]:
        """The first of them."""
        self.notes.append("put_burst")
        return messages[:1]


class Events(SendEvents):
    """Notes what is told."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def now_ns(self) -> int:
        """A moment."""
        self.notes.append("now")
        return 7

    def appended(self, stored: Iterable[Stored], after_ns: int) -> None:
        """Note it."""
        self.notes.append(([(each.topic, tag, result) for each, tag, result in stored], after_ns))


def appender_of(appended: Appended) -> Appender:
    """An appender to it."""
    store: Any = appended
    return Appender(appended, store, Events(appended.notes))


def test_what_is_appended_is_told_with_its_tag_since_before_it_was() -> None:
    """One, or the messages of a batch, each with its own; the step point comes first."""
    appended = Appended()
    result: Any = appender_of(appended).append(MESSAGE, "a")
    assert result == "T stored"
    assert appended.notes == ["append", "now", "put", ([("T", "a", "T stored")], 7)]

    appended = Appended()
    results: Any = appender_of(appended).append_batch([(MESSAGE, "a"), (replace(MESSAGE, topic="U"), "b")])
    assert results == ["T stored", "U stored"]
    told = [("T", "a", "T stored"), ("U", "b", "U stored")]
    assert appended.notes == ["append", "now", "put_batch", (told, 7)]


def test_of_a_long_batch_each_message_is_told_with_its_own_tag() -> None:
    """Where the first stands is the answer."""
    appended = Appended()
    batch = PreparedBatch("T", 5, 1_000)
    batch.add([replace(MESSAGE, body=b"one"), replace(MESSAGE, body=b"two and more")])
    first = appender_of(appended).append_prepared(batch, ["a", "b"])
    small, large = batch.sizes
    assert first == PutResult(30, 4_000, small, 9, MESSAGE.store_host)
    second = PutResult(31, 4_000 + small, large, 9, MESSAGE.store_host)
    told = [("T", "a", first), ("T", "b", second)]
    assert appended.notes == ["append", "now", ("put_prepared", batch), (told, 7)]


def test_a_burst_is_told_of_by_its_sender() -> None:
    """Which knows how many the store took."""
    appended = Appended()
    arrivals: Any = appender_of(appended).append_burst([MESSAGE, MESSAGE])
    assert arrivals == [MESSAGE]
    assert appended.notes == ["append", "put_burst"]


@pytest.mark.parametrize(
    ("level", "queue_id", "text"),
    [(1, 0, "1"), (LEVEL_COUNT, LEVEL_COUNT - 1, "7"), (LEVEL_COUNT + 1, LEVEL_COUNT - 1, str(LEVEL_COUNT))],
)
def test_a_delayed_message_waits_in_the_queue_of_its_level(level: int, queue_id: int, text: str) -> None:
    """One beyond the last level is of the last, and says so; its own place is kept in its properties."""
    properties = {"DELAY": "1" if level == 1 else "7"}
    waits = delayed(MESSAGE, properties, level, FORM_4_9, level_count=LEVEL_COUNT)
    assert (waits.topic, waits.queue_id) == (SCHEDULE_TOPIC, queue_id)
    kept = {"DELAY": text, "REAL_TOPIC": "T", "REAL_QID": "5"}
    assert read_properties(waits.properties.decode()) == properties == kept


def record_of(properties: dict[str, str], sys_flag: int = 0) -> Any:
    """A record of the schedule with these properties."""
    stored = moved(MESSAGE, {}, "S", 0, FORM_4_9)
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    parts = {name: getattr(stored, name) for name in ("flag", "born_ms", "born_host", "store_host", "reconsume_times")}
    return SimpleNamespace(properties=text, body=memoryview(b"body"), sys_flag=sys_flag, **parts)


def test_a_message_comes_back_to_its_own_topic() -> None:
    """With its tag's hash, and without the bits of a transaction; the properties that brought it here stay."""
    properties = {"REAL_TOPIC": "T", "REAL_QID": "5", "TAGS": "a"}
    for forgets, left in ((False, properties), (True, {"TAGS": "a"})):
        back = brought_back(record_of(properties, sys_flag=0xF), FORM_4_9, forgets_place=forgets)
        assert back is not None
        found, tag = back
        assert (found.topic, found.queue_id, found.body, tag) == ("T", 5, b"body", "a")
        assert (found.tags_code, found.sys_flag) == (java_hash("a"), 0x3)
        assert read_properties(found.properties.decode()) == left
    back = brought_back(record_of({"REAL_TOPIC": "T", "REAL_QID": "5"}), FORM_4_9)
    assert back is not None
    assert (back[0].tags_code, back[1]) == (0, "")
    assert "REAL_TOPIC" in read_properties(back[0].properties.decode())


def test_a_message_that_comes_back_may_be_given_further_properties() -> None:
    """Beside its own, and instead of them."""
    record = record_of({"REAL_TOPIC": "T", "REAL_QID": "5", "A": "1"})
    back = brought_back(record, FORM_4_9, forgets_place=True, more={"A": "2", "B": "3"})
    assert back is not None
    assert read_properties(back[0].properties.decode()) == {"A": "2", "B": "3"}


@pytest.mark.parametrize(
    ("topic", "queue", "comes"),
    [
        ("T", "0", True),
        ("T", "9" * 10, True),
        ("T", "9" * 11, False),
        ("T", "-1", False),
        ("T", "x", False),
        ("T", "٣", False),
        ("T", "", False),
        ("", "0", False),
    ],
)
def test_a_message_that_does_not_say_where_it_belongs_does_not_come_back(topic: str, queue: str, comes: bool) -> None:
    """A queue id is at most ten digits."""
    properties = {"REAL_TOPIC": topic, "REAL_QID": queue}
    assert (brought_back(record_of(properties), FORM_4_9) is not None) is comes
