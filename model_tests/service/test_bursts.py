"""Bursts and reused answers give the same bytes as single requests; batches, their size limits, and slow batches."""

from __future__ import annotations

import gc
import itertools
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, one_by_one, wait_until, wait_visible
from model_tests.support.broker.observed import events_of
from model_tests.support.broker.raw_client import (
    RawClient,
    bodies_of,
    pull_fields,
    records_of,
    send_fields,
    send_message,
)
from model_tests.support.broker.sockless import Peer, ThreadlessBroker
from model_tests.support.broker.stores import StillRuntime
from msgspec import structs

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.io.channel import Outbox, Parts
from longpoll_broker.send import send_processor
from longpoll_broker.send.send_processor import BatchLimits, LongBatches, Turns
from longpoll_broker.shared.topics import GroupConfig, TopicConfig
from longpoll_broker.shared.version_traits import STRICT_TRAITS, TRAITS_5
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames import HEADER_SIZE_MAX, Command, Serialisation, encode
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import preset

LONG_MS = 10**9
CONFIG = BrokerConfig(hold_timeout_ms_max=LONG_MS)
STORE = evolve(SMALL_STORE, commit_log_file_size=1 << 16)
POLICIES = ["strict", "strict-clone"]
"""The policies in which a single thread decides the order of notifications."""
PEERS = 3
TOPIC = "T00000"
"""Each example replaces this name by an equally long name of a new topic without messages, so that pulls wait."""
NUMBERS = itertools.count(1)
Told = tuple[int, bytes]


class Twin:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.peers = [Peer(broker, 11 + number) for number in range(PEERS)]

    def told(self, told: Sequence[Told]) -> tuple[object, ...]:
        """Returns the bytes sent to each connection, the counters and the number of held pulls after these requests."""
        before, heard = self.counts(), []
        for number, content in told:
            answers = self.peers[number].told(content)
            heard.append((answers, [peer.heard() for peer in self.peers]))
        return heard, self.counts() - before, len(self.broker.hold_service)

    def counts(self) -> Counter[object]:
        items = self.broker.shared.statistics._items
        return Counter({key: item.value for key, item in items.items() if "LATENCY" not in key[0]})


@st.composite
def requests(draw: st.DrawFn, *, is_send: bool) -> bytes:
    """Draws sends and pulls; most pulls wait at the end of a queue, and many pulls are identical."""
    flag = draw(st.sampled_from([0] * 6 + [int(CommandFlag.ONE_WAY)]))
    kind = draw(st.sampled_from([Serialisation.JSON] * 4 + [Serialisation.ROCKETMQ]))
    queue = draw(st.integers(0, 1))
    opaque = draw(st.integers(0, 9))
    if is_send:
        text = draw(st.sampled_from(["", "TAGS\x01a\x02", "TAGS\x01b\x02KEYS\x01k\x02"]))
        command = Command(
            RequestCode.SEND_MESSAGE_V2, opaque, flag, send_fields(TOPIC, queue, text), b"x" * draw(st.integers(1, 40)),
            serialisation=kind,
        )  # fmt: skip
    else:
        fields = pull_fields(TOPIC, draw(st.sampled_from([0, 0, 1, 2, 3, 5, 99])), queue_id=queue, timeout_ms=LONG_MS)
        odd: dict[str, str] = draw(
            st.sampled_from(
                [{}] * 6
                + [{"subscription": "a"}, {"subscription": "a || b"}, {"maxMsgNums": "1"}, {"sysFlag": "4"}]
                + [{"consumerGroup": "H"}, {"sysFlag": "7", "commitOffset": "2"}, {"maxMsgNums": "-1"}]
            )
        )
        command = Command(RequestCode.PULL_MESSAGE, opaque, flag, fields | odd, serialisation=kind)
    return b"".join(encode(command))


PIECES = st.tuples(
    st.integers(0, PEERS - 1),
    st.lists(st.one_of(*[requests(is_send=kind) for kind in (True, False, False)]), min_size=1, max_size=6).map(
        b"".join
    ),
)


@pytest.fixture(scope="module", params=POLICIES)
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Twin, Twin]]:
    """Two brokers with stopped clocks: one serves bursts, and the other serves each request alone."""
    policy = preset(request.param)
    places = [str(tmp_path_factory.mktemp(name)) for name in ("quick", "plain")]
    settings: dict[str, Any] = {"policy": policy, "config": CONFIG, "store_config": STORE}
    with (
        ThreadlessBroker.start(StillRuntime(), places[0], **settings) as quick,
        ThreadlessBroker.start(StillRuntime(), places[1], **settings) as plain,
    ):
        yield Twin(quick), Twin(one_by_one(plain))


@settings(max_examples=25)
@given(told=st.lists(PIECES, max_size=20))
def test_bursts_do_not_change_the_brokers_behaviour(twins: tuple[Twin, Twin], told: list[Told]) -> None:
    quick, plain = twins
    topic = b"T%05d" % next(NUMBERS)
    told = [(number, content.replace(TOPIC.encode(), topic)) for number, content in told]
    assert quick.told(told) == plain.told(told)


def pair(brokers: Brokers, directory: Any, config: BrokerConfig = CONFIG) -> list[Twin]:
    options: dict[str, Any] = {"config": config, "runtime": StillRuntime()}
    quick, plain = (brokers.start(directory=f"{directory}/{name}", **options) for name in ("quick", "plain"))
    return [Twin(quick), Twin(one_by_one(plain))]


def alike(count: int, topic: str = "R") -> list[Told]:
    """Identical pulls that wait for the next message of a queue with one message, and three sends, in one write."""
    send = Command(RequestCode.SEND_MESSAGE_V2, 1, ext_fields=send_fields(topic, 0), body=b"body")
    pull = Command(RequestCode.PULL_MESSAGE, 2, ext_fields=pull_fields(topic, 1, timeout_ms=LONG_MS))
    first, wait = b"".join(encode(send)), b"".join(encode(pull))
    return [(0, first), *[(1 + number % 2, wait) for number in range(count)], (0, first * 3)]


def pulls(*changes: dict[str, str]) -> bytes:
    fields = pull_fields("T", 0, timeout_ms=LONG_MS)
    commands = [Command(RequestCode.PULL_MESSAGE, 3, ext_fields=fields | change) for change in changes]
    return b"".join(b"".join(encode(command)) for command in commands)


CHANGES: list[Callable[[Broker], object]] = [
    lambda broker: broker.topics.put(TopicConfig("T", 1, 1)),
    lambda broker: broker.topics.put(TopicConfig("T", 4, 4, perm=2)),
    lambda broker: broker.topics.remove("T"),
    lambda broker: broker.groups.put(GroupConfig("G", consume_enable=False)),
]


def after(twin: Twin, change: Callable[[Broker], object]) -> tuple[object, ...]:
    twin.broker.topics.put(TopicConfig("T", 4, 4))
    begun = twin.told([(0, pulls({}, {"queueId": "1"}, {}))])
    change(twin.broker)
    return begun, twin.told([(1, pulls({"queueId": "1"}, {}, {"subscription": "a || b"}, {"expressionType": "x"}))])


@pytest.mark.parametrize(
    "change", CHANGES, ids=["fewer queues", "topic not readable", "topic deleted", "group disabled"]
)
def test_a_replaced_topic_or_group_is_checked_again(
    brokers: Brokers, tmp_path: Any, change: Callable[[Broker], object]
) -> None:
    """If a topic or group is replaced, the next pull is checked again, although an earlier check succeeded."""
    quick, plain = pair(brokers, tmp_path)
    assert after(quick, change) == after(plain, change)


def test_a_repeated_pull_rechecks_what_may_have_changed(broker: Broker) -> None:
    with RawClient(broker.address) as client:
        for tag in ("a", "b", "a"):
            send_message(client, "T", tag.encode(), properties=f"TAGS\x01{tag}\x02")

        def pull(offset: int = 0, **changes: str) -> tuple[int, list[bytes]]:
            reply = client.pull("T", offset, **changes)
            return reply.code, bodies_of(reply)

        for _ in range(2):
            assert pull() == (0, [b"a", b"b", b"a"])
        for _ in range(2):
            assert pull(subscription="a") == (0, [b"a", b"a"])
        for _ in range(2):
            assert pull(1) == (0, [b"b", b"a"])
            assert pull(3)[0] == ResponseCode.PULL_NOT_FOUND
            assert [pull(offset)[0] for offset in (4, -1)] == [ResponseCode.PULL_OFFSET_MOVED] * 2
            assert pull(queueId="9")[0] == ResponseCode.SYSTEM_ERROR
        broker.shared.groups.put(GroupConfig("H", consume_enable=False))
        assert pull(consumerGroup="H")[0] == ResponseCode.NO_PERMISSION
        assert [pull()[0], client.pull("none").code] == [0, ResponseCode.TOPIC_NOT_EXIST]
        assert pull(0, sysFlag="5", commitOffset="2") == (0, [b"a", b"b", b"a"])
        assert broker.shared.offsets.query("T", "G", 0) == 2
        topics, groups = broker.shared.topics, broker.shared.groups
        topic, group = topics.get("T"), groups.find("G")
        assert topic is not None
        assert group is not None
        topics.put(structs.replace(topic, perm=2))
        assert pull()[0] == ResponseCode.NO_PERMISSION
        topics.put(topic)
        assert pull()[0] == 0
        groups.put(structs.replace(group, consume_enable=False))
        assert pull()[0] == ResponseCode.NO_PERMISSION
        groups.put(group)
        assert pull()[0] == 0


COUNT: Final = 7
BODY: Final = encode_batch(
    BatchMessage(b"b" * number, f"TAGS\x01t{number}\x02K\x01v" if number else "", number) for number in range(COUNT)
)
SYNC: Final = evolve(SMALL_STORE, flush_disk_sync=True)


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every batch as slow, and serve other connections after every two messages of a batch."""
    monkeypatch.setattr(send_processor, "LONG_SIZE", 0)
    monkeypatch.setattr(send_processor, "TURN_COUNT", 2)


@pytest.fixture
def unending(monkeypatch: pytest.MonkeyPatch, short_turns: None, brokers: Brokers) -> Iterator[list[bool]]:
    """Batches do not end until the yielded list has an item; the fixture adds an item before the brokers stop."""
    ended: list[bool] = []

    def parts(messages: Iterable[Any]) -> Iterator[list[Any]]:
        found = original(messages)
        yield next(found)
        while not ended:
            yield []
        yield from found

    original = send_processor._parts
    monkeypatch.setattr(send_processor, "_parts", parts)
    yield ended
    ended.append(True)


def asked(client: RawClient, times: int = 1) -> int:
    return client.send(RequestCode.SEND_BATCH_MESSAGE, send_fields("T") | {"m": "true"}, BODY * times)


def test_the_messages_and_property_bytes_of_a_turn_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_processor, "TURN_COUNT", 3)
    monkeypatch.setattr(send_processor, "TURN_SIZE", 10)
    messages: Any = [(SimpleNamespace(properties=bytes(size)), "") for size in (0, 0, 0, 4, 6, 20, 1)]
    parts = [[len(message.properties) for message, _tag in part] for part in send_processor._parts(messages)]
    assert parts == [[0, 0, 0], [4, 6], [20], [1]]


@pytest.mark.parametrize("count", [1, 20])
def test_other_clients_are_served_during_long_batches(
    count: int, unending: list[bool], broker: Broker, brokers: Brokers
) -> None:
    bystander = brokers.connect(broker)
    sending = [brokers.connect(broker) for _ in range(count)]
    batches = [
        (client, asked(client), client.send(RequestCode.SEND_MESSAGE_V2, send_fields("T"))) for client in sending
    ]
    for _ in range(3):
        offset = send_message(bystander, "Other")
        assert len(records_of(bystander.pull("Other", offset))) == 1
    for client, batch, send in batches:
        assert client.reply(batch, 0.0) is None
        assert client.reply(send, 0.0) is None
    unending.append(True)
    ends = []
    for client, batch, send in batches:
        stored, sent = client.reply(batch), client.reply(send)
        assert stored is not None
        assert sent is not None
        fields, sent_fields = stored.ext_fields or {}, sent.ext_fields or {}
        ends.append(int(fields["queueOffset"]) + len(fields["msgId"].split(",")))
        assert int(sent_fields["queueOffset"]) >= ends[-1]
    assert broker.store.visible_end("T", 0) >= max(ends) + 1


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_batch_of_a_closed_connection_is_not_stored(
    unending: list[bool], nothing_collected: None, brokers: Brokers
) -> None:
    broker = brokers.start(config=BrokerConfig(unfinished_bytes_max=4 * len(BODY)))
    gone, stays = brokers.connect(broker), brokers.connect(broker)
    send_message(stays, "T")
    asked(gone, 3)
    wait_until(lambda: len(broker.totals.unfinished.by_peer) == 1)
    batch = asked(stays, 2)
    assert gone.wait_closed()
    unending.append(True)
    stored = stays.answer(batch)
    count = len((stored.ext_fields or {})["msgId"].split(","))
    assert broker.store.visible_end("T", 0) == 1 + count


def answered(broker: Broker, client: RawClient) -> tuple[Any, ...]:
    """Send a batch; returns its answer, with offsets in place of message ids, and the stored messages."""
    reply = client.call(
        RequestCode.SEND_BATCH_MESSAGE, send_fields("T", 0, "A\x01b\x02TAGS\x01own\x02") | {"m": "true"}, BODY
    )
    fields = dict(reply.ext_fields or {})
    places = [int(each[-16:], 16) for each in fields.pop("msgId", "").split(",")]
    wait_visible(broker, "T", COUNT)
    records = records_of(client.pull("T"))
    assert places == [record.physical_offset for record in records]
    parts = [
        (bytes(record.body), record.properties, record.flag, record.queue_offset, record.size) for record in records
    ]
    units = [broker.store.unit("T", 0, offset) for offset in range(COUNT)]
    return reply.code, fields, places, parts, units


@pytest.mark.parametrize("policy", ["strict", "rocketmq-4.9", "rocketmq-5"])
def test_a_batch_in_turns_equals_a_batch_at_once(
    policy: str, tmp_path: Any, brokers: Brokers, request: pytest.FixtureRequest
) -> None:
    told = []
    for way in ("once", "turns"):
        if way == "turns":
            request.getfixturevalue("short_turns")
        history = tmp_path / f"{way}-history"
        options: Any = {"directory": str(tmp_path / way), "record_directory": str(history)}
        broker, client = brokers.served(policy=preset(policy), **options)
        found = answered(broker, client)
        broker.stop()
        events = [
            (event.event, event.queue_offset, event.tag, event.request)
            for event in events_of(history)
            if event.event in {"append", "message_acknowledged"}
        ]
        assert [event[0] for event in events].count("append") == COUNT
        assert [event[0] for event in events].count("message_acknowledged") == COUNT
        told.append((found, events))
    assert told[0] == told[1]


@pytest.mark.parametrize("sync", [False, True])
def test_a_long_batch_that_is_damaged_at_its_end_is_not_stored(short_turns: None, sync: bool, brokers: Brokers) -> None:
    broker, client = brokers.served(store_config=SMALL_STORE if not sync else SYNC)
    fields = send_fields("T") | {"m": "true"}
    for body in (BODY[:-1], BODY + struct.pack(">i", 3)):
        reply = client.call(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        assert (reply.code, "is damaged" in (reply.remark or "")) == (1, True)
    assert broker.store.visible_end("T", 0) == 0
    assert client.call(RequestCode.SEND_BATCH_MESSAGE, fields, BODY).code == 0
    assert broker.store.visible_end("T", 0) == COUNT


# -- only one long batch is processed at a time ------------------------------------------------------------------------


class Box(Outbox):
    __slots__ = ("written",)

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write(self, channel: Any, parts: Parts, count: int = 1) -> None:
        self.written.append(channel.name)


def channel_of(name: str) -> Any:
    return SimpleNamespace(name=name, peer=name, rest=None, rest_size=0, gives_way=False)


def turn(outbox: Outbox, channel: Any) -> None:
    rest, channel.rest = channel.rest, None
    rest(outbox)


def noted(name: str, count: int, notes: list[str], *, fails: bool = False) -> Turns:
    """A batch of `count` turns that are recorded in `notes`; its last turn returns an answer or raises ValueError."""
    for _ in range(count - 1):
        notes.append(name)
        yield
    notes.append(name)
    if fails:
        raise ValueError("no batch")
    return lambda _outbox: (b"done",)


def test_batches_in_turns() -> None:
    batches, outbox, notes = LongBatches(RealRuntime().lock()), Box(), list[str]()
    command = Command(320, 1, body=b"body")
    first, second, third = map(channel_of, ("first", "second", "third"))
    for each in (first, second, third):
        assert batches.begin(each, command, noted(each.name, 3, notes), outbox) is None
        assert (each.rest_size, each.gives_way) == (4, True)
    turn(outbox, third)
    turn(outbox, second)
    assert (notes, outbox.written) == (["first", "second", "third", "first", "first"], ["first"])
    turn(outbox, first)
    assert first.rest is None
    turn(outbox, third)
    turn(outbox, third)
    assert (notes[5:], outbox.written) == (["second", "second"], ["first", "second"])
    third.rest = each = None
    fourth = channel_of("fourth")
    batches.begin(fourth, command, noted("fourth", 2, notes), outbox)
    turn(outbox, fourth)
    assert notes[7:] == ["fourth", "fourth"]
    assert (outbox.written[2:], fourth.rest) == (["fourth"], None)
    batches, outbox, notes = LongBatches(RealRuntime().lock()), Box(), list[str]()
    command = Command(320, 1, body=b"body")
    bad, good = channel_of("bad"), channel_of("good")
    batches.begin(bad, command, noted("bad", 2, notes, fails=True), outbox)
    batches.begin(good, command, noted("good", 2, notes), outbox)
    turn(outbox, good)
    turn(outbox, good)
    assert (notes, outbox.written) == (["bad", "good", "bad", "good"], ["bad", "good"])
    batches, notes = LongBatches(RealRuntime().lock()), list[str]()
    start = partial(batches.begin, channel_of("any"), Command(320, 1, body=b"body"))
    assert start(noted("long", 3, notes), Box()) is None
    assert start(noted("short", 1, notes), Box()) == (b"done",)
    assert send_processor.TURN_COUNT * len(encode_batch([BatchMessage(b"", "")])) == send_processor.LONG_SIZE


SIZE_MAX: Final = SMALL_STORE.message_size_max
ONE_SIZE: Final = 22
COUNT_MAX: Final = 31_650
"""The largest number of messages in a batch for a broker with an IPv4 address, as docs/safety.md states."""


def one(body_size: int = 0) -> bytes:
    return struct.pack(">iiiii", ONE_SIZE + body_size, 0, 0, 0, body_size) + bytes(body_size) + struct.pack(">h", 0)


def sent(client: RawClient, body: bytes, serialisation: Serialisation = Serialisation.JSON) -> Command:
    return client.call(
        RequestCode.SEND_BATCH_MESSAGE, send_fields("T") | {"m": "true"}, body, serialisation=serialisation
    )


def assert_stored_iff_acknowledged(broker: Broker, reply: Command, before: int) -> int:
    """Assert that the store has as many new messages as the answer has ids; returns the number of new messages."""
    ids = (reply.ext_fields or {}).get("msgId", "")
    count = len(ids.split(",")) if reply.code == ResponseCode.SUCCESS else 0
    assert broker.store.visible_end("T", 0) - before == count
    return count


@pytest.mark.parametrize(
    ("config", "body", "count"),
    [
        pytest.param(SMALL_STORE, one(SIZE_MAX - ONE_SIZE), 1, id="largest size"),
        pytest.param(SMALL_STORE, one(SIZE_MAX - ONE_SIZE + 1), 0, id="a byte too large"),
        pytest.param(SMALL_STORE, one(1_500_000) * 3, 0, id="three messages together too large"),
        pytest.param(SYNC, one() * COUNT_MAX, COUNT_MAX, id="largest number of messages"),
        pytest.param(SYNC, one() * (COUNT_MAX + 1), 0, id="a message too many"),
        pytest.param(SMALL_STORE, one() * (COUNT_MAX + 1), 0, id="a message too many, async"),
    ],
)
def test_a_batch_is_stored_and_acknowledged_or_neither(
    brokers: Brokers, config: StoreConfig, body: bytes, count: int
) -> None:
    """Just below each limit a batch is stored and acknowledged as a whole; just above the limit it is refused."""
    broker, client = brokers.served(store_config=config)
    reply = sent(client, body)
    assert assert_stored_iff_acknowledged(broker, reply, 0) == count
    assert reply.code == (ResponseCode.SUCCESS if count else ResponseCode.MESSAGE_ILLEGAL), reply.remark
    assert assert_stored_iff_acknowledged(broker, sent(client, one() * 3), count) == 3


def test_a_too_large_batch_is_an_error_on_5() -> None:
    """The encoder of 5.x raises an error for a too large batch; the limit depends on the broker's address."""
    limits = [BatchLimits.of(100, size, traits) for size in (16, 40) for traits in (STRICT_TRAITS, TRAITS_5)]
    for limit, error in zip(limits, (MessageRefusedError, HeaderError) * 2, strict=True):
        assert len(list(limit.read(one(100 - ONE_SIZE)))) == 1
        with pytest.raises(error, match="at most 100"):
            limit.read(one(101 - ONE_SIZE))
    assert [limit.count_max for limit in limits] == [COUNT_MAX, COUNT_MAX, 18_324, 18_324]
    assert COUNT_MAX * 33 < HEADER_SIZE_MAX
