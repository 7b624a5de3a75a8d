"""Messages on their way into the store: how a request becomes one, and how one changes its topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from model_tests.support.broker.stores import message
from model_tests.support.present import present
from msgspec.structs import replace

from longpoll_broker.send.append import HALF_TOPIC, Appender, SendEvents, Stored, brought_back, delayed, moved
from longpoll_broker.send.message_builder import MessageBuilder, SendRefusedError
from longpoll_broker.shared.queues import NewQueues
from longpoll_broker.shared.topics import GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, TRAITS_4_9, TRAITS_5, Traits
from longpoll_broker.store.burst_append import PreparedBatch
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_protocol.headers import SendMessageRequestHeader
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.message import read_handle
from longpoll_protocol.names import DEAD_PREFIX, RETRY_PREFIX, TIMER_TOPIC
from longpoll_protocol.properties import DELAY_LEVELS_MS, FORM_4_9, java_hash, read_properties, write_properties
from longpoll_runtime.real import RealRuntime

CHANNEL: Any = SimpleNamespace(host_bytes=b"producer", peer_host=("127.0.0.1", 1), number=1, owner="127.0.0.1")
HOST = bytes(range(1, 9))
QUEUES = NewQueues(lambda _topic, _queue_id: True)


def maker_of(traits: Traits = STRICT_TRAITS, inner_queues: Any = None) -> MessageBuilder:
    """A builder of a broker with topic T, at a moment of 1 ms."""
    runtime = RealRuntime()
    runtime.unix_ms = lambda: 1  # type: ignore[method-assign]
    topics = Topics()
    topics.put(TopicConfig("T", 4, 4))
    return MessageBuilder(
        runtime,
        "cluster",
        topics,
        Groups(auto_create=False),
        HOST,
        traits,
        inner_queues,
        queues=QUEUES,
    )


def header_of(
    topic: str = "T", text: str | None = None, *, max_reconsume: int | None = None, tried: int | None = 3
) -> Any:
    return SendMessageRequestHeader(
        topic=topic, queue_id=2, sys_flag=13, born_timestamp=9, flag=6, properties=text, reconsume_times=tried,
        max_reconsume_times=max_reconsume,
    )  # fmt: skip


def made(builder: MessageBuilder, header: Any, body: Any = b"body") -> Any:
    return builder.of_request(CHANNEL, header, 2, body, builder.properties(header))


def pairs(**properties: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def test_a_message_is_as_it_was_asked_for() -> None:
    """With both hosts, and the number of tries."""
    message = made(maker_of(), header_of(text=pairs(TAGS="a")))
    assert (message.topic, message.queue_id, message.body, message.flag, message.sys_flag) == ("T", 2, b"body", 6, 13)
    assert (message.born_ms, message.born_host, message.store_host) == (9, b"producer", HOST)
    assert (message.reconsume_times, message.tags_code) == (3, java_hash("a"))
    assert read_properties(message.properties.decode()) == {"TAGS": "a", "CLUSTER": "cluster"}
    assert made(maker_of(), header_of(tried=None)).reconsume_times == 0
    changing = bytearray(b"body")
    view = memoryview(b"body")
    assert made(maker_of(), header_of(), view).body is view
    copied = made(maker_of(), header_of(), changing).body
    assert (type(copied), copied) == (bytes, b"body")
    builder = maker_of()
    assert made(builder, header_of()).properties is builder.added_properties
    assert builder.added_properties == write_properties({"CLUSTER": "cluster"}, STRICT_TRAITS.properties_form)


def test_properties_that_a_version_adds() -> None:
    """4.9 removes WAIT; 5.x stores it, the region and a key."""
    stored = read_properties(made(maker_of(), header_of(text=pairs(WAIT="false", K="v"))).properties.decode())
    assert stored == {"K": "v", "CLUSTER": "cluster"}
    builder = maker_of(TRAITS_5)
    stored = read_properties(made(builder, header_of(text=pairs(WAIT="false", UNIQ_KEY="mine"))).properties.decode())
    assert stored == {
        "WAIT": "false", "UNIQ_KEY": "mine", "CLUSTER": "cluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    keys = [builder.properties(header_of())["UNIQ_KEY"] for _ in range(2)]
    assert keys == ["0102030405060708000000000001000" + str(number) for number in (0, 1)]
    builder = maker_of(TRAITS_5)
    builder.store_host = bytes(range(20))
    assert builder.properties(header_of())["UNIQ_KEY"] == "0C0D0E0F10111213" + "0000000000010000"


def test_offsets_in_further_queues_are_the_stores_alone_to_give() -> None:
    asked: list[dict[str, str]] = []

    class Inner:
        def named(self, message: Any, properties: dict[str, str], _channel: Any) -> Any:
            asked.append(properties)
            return "named"

    text = pairs(INNER_MULTI_QUEUE_OFFSET="7", INNER_MULTI_DISPATCH="%LMQ%a")
    assert made(maker_of(inner_queues=Inner()), header_of(text=text)) == "named"
    assert asked == [{"INNER_MULTI_DISPATCH": "%LMQ%a", "CLUSTER": "cluster"}]
    assert made(maker_of(inner_queues=Inner()), header_of()).topic == "T"
    stored = read_properties(made(maker_of(), header_of(text=text)).properties.decode())
    assert stored["INNER_MULTI_QUEUE_OFFSET"] == "7"


@pytest.mark.parametrize(("most", "tried", "dead"), [(3, 3, False), (2, 3, True), (None, 5, False), (None, 6, True)])
def test_a_message_tried_too_often_is_dead(most: int | None, tried: int, dead: bool) -> None:
    """The request or the group gives the limit."""
    for traits, delay in ((STRICT_TRAITS, "2"), (TRAITS_5, "-1")):
        builder = maker_of(traits)
        builder.groups.put(GroupConfig("G", retry_max_times=5))
        header = header_of(
            RETRY_PREFIX + "G", pairs(DELAY="2") if dead and delay == "-1" else None, max_reconsume=most, tried=tried
        )
        message = made(builder, header)
        if not dead:
            assert (message.topic, message.queue_id) == (RETRY_PREFIX + "G", 2)
        else:
            assert (message.topic, message.queue_id) == (DEAD_PREFIX + "G", 0)
            assert read_properties(message.properties.decode()).get("DELAY", "2") == delay
            assert builder.topics.get(DEAD_PREFIX + "G") == TopicConfig(DEAD_PREFIX + "G", 1, 1)


def test_a_message_tried_too_often_whose_group_or_dead_letters_cannot_be() -> None:
    with pytest.raises(SendRefusedError) as error:
        made(maker_of(), header_of(RETRY_PREFIX + "G"))
    assert error.value.code == 26
    builder = maker_of()
    name = "G" * 127
    builder.groups.put(GroupConfig(name))
    with pytest.raises(SendRefusedError) as error:
        made(builder, header_of(RETRY_PREFIX + name, max_reconsume=0))
    assert error.value.code == 1


@pytest.mark.parametrize(
    ("properties", "topic", "queue_id"),
    [
        ({"DELAY": "1"}, SCHEDULE_TOPIC, 0),
        ({"DELAY": "3"}, SCHEDULE_TOPIC, 2),
        ({"DELAY": "0"}, "T", 2),
        ({"DELAY": "-3"}, "T", 2),
        ({"TRAN_MSG": "True"}, HALF_TOPIC, 0),
        ({"TRAN_MSG": "true", "DELAY": "3"}, HALF_TOPIC, 0),
        ({"TRAN_MSG": "no"}, "T", 2),
    ],
)
def test_where_a_message_of_its_kind_goes(properties: dict[str, str], topic: str, queue_id: int) -> None:
    message = made(maker_of(), header_of(text=pairs(**properties)))
    assert (message.topic, message.queue_id) == (topic, queue_id)
    assert message.sys_flag == (13 & ~0xC if topic == HALF_TOPIC else 13)


def test_numbers_that_a_message_gives() -> None:
    assert [MessageBuilder.level(each) for each in ({}, {"DELAY": "+4"})] == [0, 4]
    with pytest.raises(SendRefusedError) as error:
        MessageBuilder.level({"DELAY": "x"})
    assert error.value.code == 1
    text = pairs(TRAN_MSG="true", UNIQ_KEY="mine")
    for traits, name in ((STRICT_TRAITS, None), (TRAITS_5, "mine")):
        stored = read_properties(made(maker_of(traits), header_of(text=text)).properties.decode())
        assert stored.get("__transactionId__") == name
    keyless = attrs.evolve(TRAITS_5, stores_region=False)
    stored = read_properties(made(maker_of(keyless), header_of(text=pairs(TRAN_MSG="true"))).properties.decode())
    assert "__transactionId__" not in stored


@pytest.mark.parametrize(
    ("properties", "traits", "topic"),
    [
        ({"TIMER_DELIVER_MS": "60000"}, TRAITS_5, TIMER_TOPIC),
        ({"TIMER_DELIVER_MS": "60000"}, STRICT_TRAITS, TIMER_TOPIC),
        ({"TIMER_DELIVER_MS": "60000"}, TRAITS_4_9, "T"),
        # A level wins, and the wish is forgotten.
        ({"TIMER_DELIVER_MS": "60000", "DELAY": "1"}, TRAITS_5, SCHEDULE_TOPIC),
        ({"DELAY": "0"}, TRAITS_5, "T"),
    ],
)
def test_a_message_waits_for_its_time_but_for_4_9(properties: dict[str, str], traits: Traits, topic: str) -> None:
    builder = maker_of(traits)
    header = header_of(text=pairs(UNIQ_KEY="mine", **properties))
    put = builder.properties(header)
    message = builder.of_request(CHANNEL, header, 2, b"body", put)
    assert message.topic == topic
    assert ("TIMER_DELIVER_MS" in put) == ("TIMER_DELIVER_MS" in properties and topic != SCHEDULE_TOPIC)
    handle = builder.recall_handle(message, put)
    told = None if handle is None else read_handle(handle)
    assert (told and (told.topic, told.time, told.key)) == (("T", "59001", "mine") if topic == TIMER_TOPIC else None)


def test_a_message_that_is_tried_again_at_a_time_is_not_recalled() -> None:
    builder = maker_of(TRAITS_5)
    message = replace(made(builder, header_of()), topic=TIMER_TOPIC)
    told = {"REAL_TOPIC": f"{RETRY_PREFIX}G", "TIMER_OUT_MS": "59999", "UNIQ_KEY": "mine"}
    assert builder.recall_handle(message, told) is None
    assert builder.recall_handle(message, told | {"REAL_TOPIC": "T"}) is not None
    assert builder.recall_handle(replace(message, topic="T"), told | {"REAL_TOPIC": "T"}) is None


LEVEL_COUNT = len(DELAY_LEVELS_MS)
MESSAGE = replace(message(), topic="T", queue_id=5)


class Appended(RealRuntime):
    """A runtime, and a store that numbers what it is given; both note what they do."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Any] = []

    def step(self, action: str) -> None:
        self.notes.append(action)

    def put(self, stored: MessageToStore) -> Any:
        self.notes.append("put")
        return f"{stored.topic} stored"

    def put_batch(self, messages: Sequence[MessageToStore]) -> list[Any]:
        self.notes.append("put_batch")
        return [f"{each.topic} stored" for each in messages]

    def put_prepared(self, batch: PreparedBatch) -> PutResult:
        self.notes.append(("put_prepared", batch))
        return PutResult(30, 4_000, batch.sizes[0], 9, batch.first.store_host)

    def put_burst(self, messages: Sequence[MessageToStore]) -> Sequence[Any]:
        self.notes.append("put_burst")
        return messages[:1]


class Events(SendEvents):
    """Notes what is told."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def now_ns(self) -> int:
        self.notes.append("now")
        return 7

    def appended(self, stored: Iterable[Stored], after_ns: int) -> None:
        self.notes.append(([(each.topic, tag, result) for each, tag, result in stored], after_ns))


def appender_of(appended: Appended) -> Appender:
    store: Any = appended
    return Appender(appended, store, Events(appended.notes))


def test_arrivals_after_an_append() -> None:
    """An arrival for each message, with its own tag; a burst's sender makes its own."""
    appended = Appended()
    result: Any = appender_of(appended).append(MESSAGE, "a")
    assert result == "T stored"
    assert appended.notes == ["append", "now", "put", ([("T", "a", "T stored")], 7)]
    appended = Appended()
    results: Any = appender_of(appended).append_batch([(MESSAGE, "a"), (replace(MESSAGE, topic="U"), "b")])
    assert results == ["T stored", "U stored"]
    told = [("T", "a", "T stored"), ("U", "b", "U stored")]
    assert appended.notes == ["append", "now", "put_batch", (told, 7)]
    appended = Appended()
    batch = PreparedBatch("T", 5, 1_000)
    batch.add([replace(MESSAGE, body=b"one"), replace(MESSAGE, body=b"two and more")])
    first = appender_of(appended).append_prepared(batch, ["a", "b"])
    small, large = batch.sizes
    assert first == PutResult(30, 4_000, small, 9, MESSAGE.store_host)
    second = PutResult(31, 4_000 + small, large, 9, MESSAGE.store_host)
    arrived = [("T", "a", first), ("T", "b", second)]
    assert appended.notes == ["append", "now", ("put_prepared", batch), (arrived, 7)]
    appended = Appended()
    arrivals: Any = appender_of(appended).append_burst([MESSAGE, MESSAGE])
    assert (arrivals, appended.notes) == ([MESSAGE], ["append", "put_burst"])


@pytest.mark.parametrize(
    ("level", "queue_id", "text"),
    [(1, 0, "1"), (LEVEL_COUNT, LEVEL_COUNT - 1, "7"), (LEVEL_COUNT + 1, LEVEL_COUNT - 1, str(LEVEL_COUNT))],
)
def test_a_delayed_message_waits_in_the_queue_of_its_level(level: int, queue_id: int, text: str) -> None:
    """A level beyond the last counts as the last."""
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
    """With its tag's hash, and without the transaction bits."""
    properties = {"REAL_TOPIC": "T", "REAL_QID": "5", "TAGS": "a"}
    for forgets, left in ((False, properties), (True, {"TAGS": "a"})):
        back = present(brought_back(record_of(properties, sys_flag=0xF), FORM_4_9, forgets_place=forgets))
        found, tag = back
        assert (found.topic, found.queue_id, found.body, tag) == ("T", 5, b"body", "a")
        assert (found.tags_code, found.sys_flag) == (java_hash("a"), 0x3)
        assert read_properties(found.properties.decode()) == left
    back = present(brought_back(record_of({"REAL_TOPIC": "T", "REAL_QID": "5"}), FORM_4_9))
    assert (back[0].tags_code, back[1]) == (0, "")
    assert "REAL_TOPIC" in read_properties(back[0].properties.decode())
    record = record_of({"REAL_TOPIC": "T", "REAL_QID": "5", "A": "1"})
    back = present(brought_back(record, FORM_4_9, forgets_place=True, more={"A": "2", "B": "3"}))
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
    properties = {"REAL_TOPIC": topic, "REAL_QID": queue}
    assert (brought_back(record_of(properties), FORM_4_9) is not None) is comes
