"""A send request without sockets: decoding, the message that is stored, and the answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import attrs
import pytest
from model_tests.support.broker.stores import message
from model_tests.support.present import present
from model_tests.support.service import Box, decoded
from msgspec.structs import replace

from longpoll_broker.io.channel import Outbox
from longpoll_broker.send.append import HALF_TOPIC, Appender, SendEvents, Stored, brought_back, delayed, moved
from longpoll_broker.send.durability import Durability
from longpoll_broker.send.message_builder import MessageBuilder, SendRefusedError
from longpoll_broker.send.send_processor import SendProcessor
from longpoll_broker.shared.queues import NewQueues
from longpoll_broker.shared.topics import GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, TRAITS_4_9, TRAITS_5, Traits
from longpoll_broker.store.burst_append import PreparedBatch
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import SendMessageRequestHeader
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.message import BatchMessage, encode_batch, read_handle
from longpoll_protocol.names import DEAD_PREFIX, RETRY_PREFIX, TIMER_TOPIC
from longpoll_protocol.properties import (
    DELAY_LEVELS_MS,
    FORM_4_9,
    decode_properties,
    java_hash,
    read_properties,
    write_properties,
)
from longpoll_runtime.real import RealRuntime

ONE, ONE_V2, BATCH = RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0, 9))
QUEUES: Final = NewQueues(lambda _topic, _queue_id: True)
REGION: Final = {"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"}
NAMES: Final = {
    "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e", "sysFlag": "f",
    "bornTimestamp": "g", "flag": "h", "properties": "i", "batch": "m",
}  # fmt: skip
FIELDS: Final = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "queueId": "2",
    "sysFlag": "0",
    "bornTimestamp": "9",
    "flag": "6",
}
RECORD_SIZE: Final = 100


class World(RealRuntime):
    def __init__(self, *, offset: int = 0, commits: bool = False, error: Exception | None = None) -> None:
        super().__init__()
        self.notes: list[Any] = []
        self.stored: list[MessageToStore] = []
        self.offset = offset
        self.error = error
        self.message_size_max = 1000
        self.commits: Any = SimpleNamespace(submit=self.submit) if commits else None
        self.submitted: list[tuple[int, Any]] = []
        self.written: list[Command] = []
        self.topics = Topics()
        for topic in (TopicConfig("T", 4, 3), TopicConfig("R", 3, 4)):
            self.topics.put(topic)
        self.topics.unsaved = SavedAtOnce()

    def put(self, message: MessageToStore) -> PutResult:
        if self.error is not None:
            raise self.error
        self.stored.append(message)
        number = len(self.stored) - 1
        return PutResult(self.offset + number, number * RECORD_SIZE, RECORD_SIZE, 1, HOST)

    def put_batch(self, messages: Sequence[MessageToStore]) -> list[PutResult]:
        return [self.put(each) for each in messages]

    def submit(self, log_end: int, done: Any, _outbox: Outbox, *, wants_topics: bool) -> None:
        self.submitted.append((log_end, done))

    def processor(self, traits: Traits = STRICT_TRAITS, inner_queues: Any = None) -> SendProcessor:
        events = Told(self.notes)
        builder = MessageBuilder(self, "c", self.topics, Groups(), HOST, traits, inner_queues, queues=QUEUES)
        store: Any = self
        return SendProcessor(
            self.topics,
            builder,
            Appender(self, store, events),
            events,
            Durability(self.commits, syncs=self.commits is not None),
            traits,
        )


class SavedAtOnce(dict[str, TopicConfig]):
    """The unsaved topics of a table that is saved after every change."""

    def __setitem__(self, name: str, topic: TopicConfig) -> None:
        """Save the topic at once, so that no topic stays unsaved."""


class Told(SendEvents):
    __slots__ = ("notes",)

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def received(self, asked: Any) -> None:
        self.notes.append(("received", asked.number))

    def refused(self, asked: Any, code: int, outbox: Outbox) -> None:
        self.notes.append(("refused", asked.number, code))

    def acknowledged(self, asked: Any, stored: Any, outbox: Outbox) -> None:
        self.notes.append(("acknowledged", asked.number, [tag for _message, tag, _result in stored]))


def channel() -> Any:
    return SimpleNamespace(number=1, request_count=6, host_bytes=b"", peer_host=("127.0.0.2", 7), gives_way=False)


def command(code: int = ONE_V2, body: bytes = b"body", *, flag: int = 0, without: str = "", **changes: Any) -> Command:
    """A send request; `without` names a field to leave out."""
    fields = FIELDS | {name: str(value) for name, value in changes.items()}
    fields.pop(without, None)
    named = fields if code == ONE else {NAMES[name]: value for name, value in fields.items()}
    return Command(code, 11, flag, named, body=body)


def told(
    world: World, asked: Command, *, traits: Traits = STRICT_TRAITS, inner: Any = None
) -> tuple[int, dict[str, str]]:
    parts = present(world.processor(traits, inner).receive(channel(), asked, Outbox()))
    reply = decoded(parts)
    return reply.code, reply.ext_fields or {}


def pairs(**properties: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def batch(*messages: tuple[bytes, str]) -> bytes:
    return encode_batch([BatchMessage(body, properties) for body, properties in messages])


def one_or_two(kind: str, **fields: Any) -> Command:
    return command(**fields) if kind == "one" else command(BATCH, batch((b"1", ""), (b"2", "")), batch="true", **fields)


@pytest.mark.parametrize("code", [ONE, ONE_V2])
def test_a_message_is_stored_and_answered_with_its_place(code: int) -> None:
    world, sender = World(offset=5), channel()
    parts = present(world.processor().receive(sender, command(code, properties=pairs(TAGS="a")), Outbox()))
    reply = decoded(parts)
    message_id = "7F000001000000090000000000000000"
    assert (reply.code, reply.opaque) == (0, 11)
    assert reply.ext_fields == REGION | {"queueId": "2", "msgId": message_id, "queueOffset": "5"}
    assert world.notes == [("received", 7), ("acknowledged", 7, ["a"])]
    assert (sender.request_count, sender.host_bytes) == (7, bytes((127, 0, 0, 2, 0, 0, 0, 7)))
    (stored,) = world.stored
    assert (stored.topic, stored.queue_id, bytes(stored.body), stored.born_host) == ("T", 2, b"body", sender.host_bytes)


def test_a_batch_flag_makes_a_batch() -> None:
    world, sender = World(), channel()
    sender.host_bytes = b"known"
    world.processor().receive(sender, command(), Outbox())
    assert (sender.host_bytes, world.stored[0].born_host) == (b"known", b"known")
    several = batch((b"1", ""), (b"2", ""))
    counts = []
    for code, is_batch in ((ONE, True), (ONE_V2, True), (BATCH, True), (ONE, False), (BATCH, False)):
        world = World()
        told(world, command(code, several, batch=str(is_batch).lower()))
        counts.append(len(world.stored))
    assert counts == [2, 2, 2, 1, 1]
    for topic, picked in (("R", [0, 1, 2, 3, 0]), ("N", [0, 0])):
        world = World()
        world.topics.put(TopicConfig("N", 4, 0))
        processor = world.processor()
        for _ in picked:
            processor.receive(channel(), command(topic=topic, queueId=-1), Outbox())
        processor.receive(channel(), command(topic=topic, queueId=0), Outbox())
        assert [each.queue_id for each in world.stored] == [*picked, 0]


@pytest.mark.parametrize(("offset", "gives_way"), [(0, True), (5, False)])
def test_the_first_message_of_a_queue_ends_the_turn(offset: int, gives_way: bool) -> None:
    for asked in (command(), command(BATCH, batch((b"1", "")), batch="true")):
        sender = channel()
        World(offset=offset).processor().receive(sender, asked, Outbox())
        assert sender.gives_way is gives_way
    sender = channel()
    World(offset=-1).processor().receive(sender, command(BATCH, batch((b"1", ""), (b"2", "")), batch="true"), Outbox())
    assert not sender.gives_way


@pytest.mark.parametrize(
    ("error", "code"),
    [(MessageRefusedError("too long"), 13), (OSError("no disk"), 14)],
    ids=["refused message", "disk error"],
)
def test_a_message_refused_by_the_store_gets_its_code(error: Exception, code: int) -> None:
    world = World(error=error)
    assert told(world, command()) == (code, REGION)
    assert world.notes == [("received", 7), ("refused", 7, code)]


@pytest.mark.parametrize("traits", [STRICT_TRAITS, TRAITS_4_9, TRAITS_5], ids=["strict", "4.9", "5"])
@pytest.mark.parametrize("code", [ONE, ONE_V2])
def test_a_prepared_message_is_answered_with_its_key(code: int, traits: Traits) -> None:
    prepared = pairs(UNIQ_KEY="mine", TRAN_MSG="true", PGROUP="P")
    found = told(World(), command(code, properties=prepared, sysFlag=4), traits=traits)
    assert (found[0], found[1].get("transactionId")) == (0, None if traits is TRAITS_4_9 else "mine")


@pytest.mark.parametrize(("traits", "key"), [(STRICT_TRAITS, None), (TRAITS_5, "mine")], ids=["strict", "5"])
def test_5_answers_with_the_messages_key(traits: Traits, key: str | None) -> None:
    for kind in ("one", "batch"):
        asked = one_or_two(kind, properties=pairs(UNIQ_KEY="mine"))
        assert told(World(), asked, traits=traits)[1].get("transactionId") == key
    assert "transactionId" not in told(World(), one_or_two("batch"), traits=traits)[1]


@pytest.mark.parametrize("traits", [STRICT_TRAITS, TRAITS_5], ids=["strict", "5"])
@pytest.mark.parametrize(("kind", "end"), [("one", RECORD_SIZE), ("batch", 2 * RECORD_SIZE)])
@pytest.mark.parametrize(("is_durable", "code"), [(True, 0), (False, 10)])
def test_a_send_is_answered_when_durable(kind: str, end: int, is_durable: bool, code: int, traits: Traits) -> None:
    world, outbox = World(commits=True), Box()
    assert world.processor(traits).receive(channel(), one_or_two(kind), outbox) is None
    assert world.notes == [("received", 7)]
    ((log_end, done),) = world.submitted
    done(is_durable, outbox)
    assert (log_end, world.notes[1][0]) == (end, "acknowledged")
    assert [(each.code, each.opaque, (each.ext_fields or {})["queueOffset"]) for each in outbox.replies] == [
        (code, 11, "0")
    ]


@pytest.mark.parametrize("traits", [STRICT_TRAITS, TRAITS_5], ids=["strict", "5"])
@pytest.mark.parametrize("kind", ["one", "batch"])
def test_a_message_with_wait_false_is_answered_at_once(kind: str, traits: Traits) -> None:
    for text, waits in (("false", False), ("TRUE", True), ("no", False)):
        world = World(commits=True)
        parts = world.processor(traits).receive(channel(), one_or_two(kind, properties=pairs(WAIT=text)), Outbox())
        assert ((parts is None), len(world.submitted)) == (waits, waits)
    world = World()
    assert world.processor(traits).receive(channel(), one_or_two(kind), Outbox()) is not None


def test_a_one_way_send_gets_no_answer_after_the_sync() -> None:
    world, outbox = World(commits=True), Box()
    world.processor().receive(channel(), command(flag=CommandFlag.ONE_WAY.value), outbox)
    world.submitted[0][1](True, outbox)
    assert (outbox.replies, world.notes[-1][0]) == ([], "acknowledged")


@pytest.mark.parametrize("code", [ONE, ONE_V2])
def test_a_send_without_a_topic_gets_that_error(code: int) -> None:
    for asked in (command(code, without="topic"), command(code, topic=""), command(code, topic="", queueId="x")):
        world = World()
        assert told(world, asked) == (1, REGION)
        assert world.stored == []
    world, sender = World(), channel()
    world.processor().receive(sender, command(code, topic="", queueId="x"), Outbox())
    assert (sender.request_count, world.notes) == (6, [])
    with pytest.raises(HeaderError, match=r"queueId|\be\b"):
        told(World(), command(code, queueId="x"))


@pytest.mark.parametrize("code", [ONE, ONE_V2])
def test_5_names_the_field_that_is_missing(code: int) -> None:
    name = "topic" if code == ONE else "b"
    with pytest.raises(HeaderError, match=f"{name}.*is missing"):
        told(World(), command(code, without="topic"), traits=TRAITS_5)
    with pytest.raises(HeaderError, match="is empty"):
        told(World(), command(code, b""), traits=TRAITS_5)
    lenient = attrs.evolve(TRAITS_5, refuses_empty_body=False)
    assert told(World(), command(code, b""), traits=lenient)[0] == 0
    assert told(World(), command(code, b""))[0] == 0
    assert told(World(), command(code), traits=TRAITS_5)[0] == 0


def test_malformed_sends_raise() -> None:
    with pytest.raises(HeaderError):
        told(World(), Command(ONE_V2, 11), traits=TRAITS_5)
    with pytest.raises(HeaderError, match="has no message"):
        told(World(), command(BATCH, b"", batch="true", sysFlag=4))


@pytest.mark.parametrize(
    ("topic", "queue", "code"),
    [("T", 3, 0), ("T", 4, 1), ("R", 3, 0), ("R", 2, 0), ("R", 4, 1), ("R", 5, 1), ("T", 0, 0), ("T", 1, 0)],
)
def test_a_send_to_an_unknown_queue_is_refused(topic: str, queue: int, code: int) -> None:
    world = World()
    assert told(world, command(topic=topic, queueId=queue))[0] == code
    assert [each.queue_id for each in world.stored] == ([queue] if code == 0 else [])


@pytest.mark.parametrize(
    ("topic", "default_topic", "code"),
    [
        ("N", "TBW102", 0),
        ("N", "none", 17),
        ("a b", "TBW102", 1),
        ("SCHEDULE_TOPIC_XXXX", "TBW102", 16),
        ("%RETRY%G", "", 0),
    ],
)
def test_the_first_send_creates_its_topic(topic: str, default_topic: str, code: int) -> None:
    world = World()
    for name in ("TBW102", "SCHEDULE_TOPIC_XXXX"):
        if world.topics.get(name) is None:
            world.topics.put(TopicConfig(name, 8, 8, perm=7))
    assert told(world, command(topic=topic, defaultTopic=default_topic, queueId=0))[0] == code
    assert (world.topics.get(topic) is not None) is (code in {0, 16})


@pytest.mark.parametrize(("asked", "count"), [(3, 3), (None, 4), (0, 0)])
def test_a_created_topic_has_the_requested_queue_count(asked: int | None, count: int) -> None:
    world = World()
    world.topics.put(TopicConfig("TBW102", 8, 8, perm=7))
    fields: dict[str, Any] = {} if asked is None else {"defaultTopicQueueNums": asked}
    told(world, command(topic="N", queueId=-1, **fields))
    assert world.topics.by_name["N"].write_queue_nums == count


@pytest.mark.parametrize("kind", [ONE, ONE_V2, BATCH])
def test_batches(kind: int) -> None:
    """A flag marks a batch. Its size is limited by the store, and by the space for message ids in the answer."""
    world = World(offset=5)
    body = batch((b"1", pairs(TAGS="a")), (b"2", ""))
    code, fields = told(world, command(kind, body, batch="true"))
    ids = [f"7F00000100000009{position:016X}" for position in (0, RECORD_SIZE)]
    assert (code, fields) == (0, REGION | {"queueId": "2", "msgId": ",".join(ids), "queueOffset": "5"})
    assert world.notes[-1] == ("acknowledged", 7, ["a", ""])
    assert [(bytes(each.body), each.queue_id) for each in world.stored] == [(b"1", 2), (b"2", 2)]
    own = pairs(INNER_MULTI_QUEUE_OFFSET="7", K="v")
    asked = command(BATCH, batch((b"1", own), (b"2", "K\x01v")), batch="true")
    for inner, kept in ((SimpleNamespace(), False), (None, True)):
        world = World()
        told(world, asked, inner=inner, traits=TRAITS_5)
        assert ("INNER_MULTI_QUEUE_OFFSET" in read_properties(world.stored[0].properties.decode())) is kept
        assert world.stored[1].properties == b"K\x01v"
    for topic, traits, code in (
        ("%RETRY%G", STRICT_TRAITS, 0),
        ("%RETRY%G", TRAITS_5, 13),
        ("T", TRAITS_5, 0),
    ):
        world = World()
        world.topics.put(TopicConfig("%RETRY%G", 4, 4))
        assert told(world, command(BATCH, batch((b"1", "")), batch="true", topic=topic), traits=traits)[0] == code
    processor = World().processor()
    assert (processor.host_digits, processor._batches.size_max) == (b"7F00000100000009", 1000)
    assert told(World(), command(BATCH, batch((b"x" * 1000, "")), batch="true")) == (13, REGION)


@pytest.mark.parametrize(("traits", "tags"), [(STRICT_TRAITS, ["z", "z"]), (TRAITS_5, ["a", ""])], ids=["strict", "5"])
def test_a_batchs_tags_code_equals_that_of_its_records(traits: Traits, tags: list[str]) -> None:
    world = World()
    body = batch((b"1", pairs(TAGS="a")), (b"2", ""))
    told(world, command(BATCH, body, batch="true", properties=pairs(TAGS="z")), traits=traits)
    assert world.notes[-1][-1] == tags
    for each, tag in zip(world.stored, tags, strict=True):
        assert decode_properties(each.properties).get("TAGS", "") == tag
        assert each.tags_code == java_hash(tag)


@pytest.mark.parametrize(
    ("own", "stored"),
    [
        ("K\x01v\x02", b"K\x01v\x02Z\x01z\x02CLUSTER\x01c"),
        ("K\x01v", b"K\x01v\x02Z\x01z\x02CLUSTER\x01c"),
        ("", b"Z\x01z\x02CLUSTER\x01c"),
    ],
)
def test_a_batchs_properties_follow_those_of_each_message(own: str, stored: bytes) -> None:
    asked = command(BATCH, batch((b"1", own)), batch="true", properties=pairs(Z="z", WAIT="false"))
    world = World()
    told(world, asked)
    assert world.stored[0].properties == stored
    world = World()
    told(world, asked, traits=TRAITS_5)
    assert world.stored[0].properties == own.encode()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, 0),
        ({"sysFlag": 4}, 13),
        ({"sysFlag": 8}, 13),
        ({"properties": pairs(DELAY="1")}, 13),
        ({"properties": pairs(DELAY="0")}, 0),
        ({"properties": pairs(DELAY="-1")}, 0),
        ({"properties": pairs(TIMER_DELAY_SEC="1")}, 13),
        ({"properties": pairs(KEYS="TIMER_DELAY_SEC")}, 0),
    ],
)
def test_a_batch_may_be_neither_prepared_nor_delayed(fields: dict[str, Any], code: int) -> None:
    assert told(World(), command(BATCH, batch((b"1", "")), batch="true", **fields))[0] == code


def test_a_message_of_a_batch_does_not_wait_for_a_time() -> None:
    """5.x delivers a message of a batch at once, even if it has a delivery time."""
    plain, timed = (b"1", pairs(KEYS="TIMER_DELAY_MS")), (b"2", pairs(TIMER_DELIVER_MS="1"))
    for traits, messages, code in (
        (STRICT_TRAITS, [plain], 0),
        (STRICT_TRAITS, [plain, timed], 13),
        (TRAITS_5, [timed], 0),
    ):
        world = World()
        assert told(world, command(BATCH, batch(*messages), batch="true"), traits=traits)[0] == code
        assert bool(world.stored) == (code == 0)


@pytest.mark.parametrize("kind", ["one", "two"])
@pytest.mark.parametrize("level", ["x", " 1", "1.0", "-", "9999999999"])
def test_an_invalid_delay_level_is_refused(kind: str, level: str) -> None:
    world = World()
    assert told(world, one_or_two(kind, properties=pairs(DELAY=level))) == (1, {})
    assert (world.stored, world.notes) == ([], [("received", 7), ("refused", 7, 1)])
    assert told(world, command(queueId=9)) == (1, REGION)


CHANNEL: Any = SimpleNamespace(host_bytes=b"producer", peer_host=("127.0.0.1", 1), number=1, owner="127.0.0.1")


def maker_of(traits: Traits = STRICT_TRAITS, inner_queues: Any = None) -> MessageBuilder:
    """A message builder of a broker with topic T, at the time 1 ms."""
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


def test_a_message_has_the_fields_of_its_request() -> None:
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
    """4.9 removes the property WAIT; 5.x stores it, and adds the region and a key."""
    stored = read_properties(made(maker_of(), header_of(text=pairs(WAIT="false", K="v"))).properties.decode())
    assert stored == {"K": "v", "CLUSTER": "cluster"}
    builder = maker_of(TRAITS_5)
    stored = read_properties(made(builder, header_of(text=pairs(WAIT="false", UNIQ_KEY="mine"))).properties.decode())
    assert stored == {
        "WAIT": "false", "UNIQ_KEY": "mine", "CLUSTER": "cluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    keys = [builder.properties(header_of())["UNIQ_KEY"] for _ in range(2)]
    assert keys == [f"{HOST.hex().upper()}000000000001000{number}" for number in (0, 1)]
    builder = maker_of(TRAITS_5)
    builder.store_host = bytes(range(20))
    assert builder.properties(header_of())["UNIQ_KEY"] == "0C0D0E0F10111213" + "0000000000010000"


def test_a_sender_cannot_set_offsets_in_additional_queues() -> None:
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
def test_a_message_retried_too_often_becomes_a_dead_letter(most: int | None, tried: int, dead: bool) -> None:
    """The limit of retries comes from the request or from the group's configuration."""
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


def test_a_dead_letter_without_a_valid_group_is_refused() -> None:
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
def test_the_topic_and_queue_of_each_kind_of_message(properties: dict[str, str], topic: str, queue_id: int) -> None:
    message = made(maker_of(), header_of(text=pairs(**properties)))
    assert (message.topic, message.queue_id) == (topic, queue_id)
    assert message.sys_flag == (13 & ~0xC if topic == HALF_TOPIC else 13)


def test_numeric_properties_of_a_message() -> None:
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
        # If a message has both a delay level and a delivery time, the delivery time is dropped.
        ({"TIMER_DELIVER_MS": "60000", "DELAY": "1"}, TRAITS_5, SCHEDULE_TOPIC),
        ({"DELAY": "0"}, TRAITS_5, "T"),
    ],
)
def test_a_timed_message_waits_except_on_4_9(properties: dict[str, str], traits: Traits, topic: str) -> None:
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
    """Each appended message has its own arrival event with its tag; for a burst the sender creates the events."""
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
    """A delay level beyond the last level counts as the last level."""
    properties = {"DELAY": "1" if level == 1 else "7"}
    waits = delayed(MESSAGE, properties, level, FORM_4_9, level_count=LEVEL_COUNT)
    assert (waits.topic, waits.queue_id) == (SCHEDULE_TOPIC, queue_id)
    kept = {"DELAY": text, "REAL_TOPIC": "T", "REAL_QID": "5"}
    assert read_properties(waits.properties.decode()) == properties == kept


def record_of(properties: dict[str, str], sys_flag: int = 0) -> Any:
    stored = moved(MESSAGE, {}, "S", 0, FORM_4_9)
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    parts = {name: getattr(stored, name) for name in ("flag", "born_ms", "born_host", "store_host", "reconsume_times")}
    return SimpleNamespace(properties=text, body=memoryview(b"body"), sys_flag=sys_flag, **parts)


def test_a_delivered_message_returns_to_its_topic() -> None:
    """A delayed message gets the hash of its tag back at its delivery, and its transaction flags are cleared."""
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
def test_a_message_without_its_real_topic_is_dropped(topic: str, queue: str, comes: bool) -> None:
    properties = {"REAL_TOPIC": topic, "REAL_QID": queue}
    assert (brought_back(record_of(properties), FORM_4_9) is not None) is comes
