"""A slow request is processed in short steps (turns), and the broker serves other clients between two steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from attrs import define, field
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_until
from model_tests.support.broker.raw_client import (
    PATIENCE_S,
    RawClient,
    send_message,
)
from model_tests.support.broker.sockless import Peer, ThreadlessBroker
from model_tests.support.service import Box
from msgspec import json

from longpoll_broker.broker import Broker, limits_of
from longpoll_broker.config import BrokerConfig
from longpoll_broker.handler import BrokerHandler
from longpoll_broker.hold import hold_service, notifier
from longpoll_broker.hold.pull_runner import PASS_COST_MAX, RUN_COST
from longpoll_broker.io import processors, transport
from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.io.processors import Turns, in_turns
from longpoll_broker.io.transport import PASS_NS, QUEUED_SIZE_MAX, TURN_NS_MAX, TURN_NS_MIN, IoLoop
from longpoll_broker.rocketmq.admin import (
    client_calls,
    client_processor,
    lock_processor,
    progress_processor,
    table_processor,
)
from longpoll_broker.shared import offsets, topics
from longpoll_broker.shared.subscription import SUBSCRIPTION_COST
from longpoll_broker.shared.topics import TopicConfig
from longpoll_broker.store import index, message_store
from longpoll_broker.store.index import IndexFile
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command, encode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_5

WALKED_MAX = 4


@pytest.fixture
def unending(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> Iterator[list[bool]]:
    """Searches of the index do not end until the yielded list has an item; the fixture adds it before brokers stop."""
    ended: list[bool] = []

    def find(self: IndexFile, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        while not ended:
            yield None
        yield from original(self, hashed, begin_ms, end_ms)

    original = IndexFile.find
    monkeypatch.setattr(IndexFile, "find", find)
    monkeypatch.setattr(index, "WALKED_MAX", WALKED_MAX)
    yield ended
    ended.append(True)


CONSUMER: Final = b'{"groupName":"members","subscriptionDataSet":[{"topic":"T0","subString":"*","subVersion":1}]}'


QUEUES: Final = [{"topic": "T", "brokerName": "b", "queueId": number} for number in range(20)]
GROUPS: Final = [
    {"groupName": f"g{number}", "subscriptionDataSet": [{"topic": "T", "subString": "a||b"}]} for number in range(20)
]


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, {}),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g0"}),
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T0"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g0"}),
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "members"}),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "members"}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Wide"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Wide", "group": "members"}),
        (RequestCode.GET_TIMER_METRICS, {}),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "Wide", "group": "members", "timestamp": "0"}),
        (RequestCode.LOCK_BATCH_MQ, {"consumerGroup": "g", "clientId": "c", "mqSet": QUEUES}),
        (RequestCode.UNLOCK_BATCH_MQ, {"consumerGroup": "g", "clientId": "c", "mqSet": QUEUES}),
        (RequestCode.HEART_BEAT, {"clientID": "c", "consumerDataSet": GROUPS}),
        (RequestCode.HEART_BEAT, {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [
            {"topic": f"T{number}", "subString": "a||b"} for number in range(20)]}]}),
        (RequestCode.HEART_BEAT, {"clientID": "c", "producerDataSet": [{"groupName": f"g{n}"} for n in range(20)]}),
    ],
)  # fmt: skip
def test_a_long_request_is_served_in_turns(
    code: int, asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_body = any(not isinstance(value, str) for value in asked.values())
    config = BrokerConfig(auto_create_subscription_group=True)
    with ThreadlessBroker.start(
        RealRuntime(), str(tmp_path / "store"), policy=ROCKETMQ_5, config=config, store_config=SMALL_STORE
    ) as broker:
        broker.topics.put(TopicConfig("Wide", 20, 20))
        for number in range(20):
            broker.offsets.commit("Wide", "members", number, 0)
            broker.handler.shared.timer_counts.add(f"T{number}", 1, number)
            broker.topics.put(TopicConfig(f"T{number}", 2, 2))
            broker.groups.find(f"g{number}")
            for topic, group in ((f"T{number}", "g0"), ("T0", f"g{number}")):
                broker.offsets.commit(topic, group, 0, number)
        member = b'{"clientID":"c","producerDataSet":[{"groupName":"members"}],"consumerDataSet":[%s]}' % CONSUMER
        for number in range(20):
            beat = encode(Command(code=RequestCode.HEART_BEAT, opaque=1, body=member))
            Peer(broker, 20 + number).tell(b"".join(map(bytes, beat)))
        peer = Peer(broker)
        command = Command(
            code=code, opaque=1, ext_fields={} if is_body else asked, body=json.encode(asked) if is_body else b""
        )
        request = b"".join(map(bytes, encode(command)))
        # The first request makes the change and notifies the members, so the next requests only return the answer.
        peer.tell(request)
        broker.handler.end_pass(Outbox())
        at_once = peer.tell(request)
        assert peer.channel.rest is None
        assert at_once
        for module, name in (
            (client_processor, "PART_COUNT"), (topics, "PART_COUNT"), (offsets, "TURN_COUNT"),
            (progress_processor, "TURN_COUNT"), (lock_processor, "TURN_COUNT"), (client_calls, "RESET_COUNT"),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, 5)
        monkeypatch.setattr(client_processor, "HEARTBEAT_SIZE", 5 * SUBSCRIPTION_COST)
        told, count = peer.tell(request), 0
        while peer.channel.rest is not None:
            assert told == b""
            assert peer.channel.rest_size == len(command.body)
            rest, peer.channel.rest = peer.channel.rest, None
            peer.channel.gives_way, outbox = False, Outbox()
            rest(outbox)
            outbox.flush()
            told, count = peer.heard(), count + 1
            assert peer.channel.gives_way is (peer.channel.rest is not None)
        assert told == at_once
        assert count >= 3


def test_a_member_that_leaves_between_turns_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GET_CONSUMER_CONNECTION_LIST (203) lists only members that are still connected when the list reaches them."""
    monkeypatch.setattr(client_processor, "PART_COUNT", 2)
    subscriptions = ",".join(f'{{"topic":"T{each}","subString":"*","subVersion":1}}' for each in range(2))
    member = f'{{"clientID":"c","consumerDataSet":[{{"groupName":"members","subscriptionDataSet":[{subscriptions}]}}]}}'
    with ThreadlessBroker.start(RealRuntime(), str(tmp_path), policy=ROCKETMQ_5, store_config=SMALL_STORE) as broker:
        beat = encode(Command(code=RequestCode.HEART_BEAT, opaque=1, body=member.encode()))
        members = [Peer(broker, 20 + number) for number in range(5)]
        for one in members:
            one.tell(b"".join(map(bytes, beat)))
        monkeypatch.setattr(client_processor, "HEARTBEAT_SIZE", 2 * SUBSCRIPTION_COST)
        asked = Command(
            code=RequestCode.GET_CONSUMER_CONNECTION_LIST, opaque=1, ext_fields={"consumerGroup": "members"}
        )
        peer, counts = Peer(broker), []
        told = peer.tell(b"".join(map(bytes, encode(asked))))
        while (rest := peer.channel.rest) is not None:
            counts.append(len(told))
            if len(counts) == 2:
                broker.handler.closed(members[-1].channel)
            peer.channel.rest, outbox = None, Outbox()
            rest(outbox)
            outbox.flush()
            told = peer.heard()

    assert counts == [0, 0, 0]
    assert told.count(b'"clientId"') == 4


def test_a_fault_between_turns_is_answered() -> None:
    def turns() -> Turns:
        yield
        raise LookupError("gone")

    channel: Any = SimpleNamespace(rest=None, gives_way=False, peer="peer")
    assert in_turns(channel, Command(RequestCode.QUERY_MESSAGE, 5), turns()) is None
    rest, channel.rest, box = channel.rest, None, Box()
    rest(box)
    assert [(each.opaque, each.code, each.remark) for each in box.replies] == [(5, 1, "LookupError: gone")]
    assert channel.rest is None


def test_a_table_that_is_too_long_is_refused_at_the_limit(
    broker: Broker, client: RawClient, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """99,000 groups with long names do not fit into a frame, so the request is refused."""
    for number in range(20):
        broker.groups.find(f"{number:0255}")
    monkeypatch.setattr(topics, "PART_COUNT", 4)
    for module in (table_processor, processors):
        monkeypatch.setattr(module, "ANSWER_SIZE_MAX", 100)
    for peer, code in (
        (client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
        (brokers.names(broker), RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    ):
        answer = peer.call(code)
        assert answer.code == 1
        assert "over the limit of 100: ask for less" in str(answer.remark)


def queried(client: RawClient) -> int:
    fields = {"topic": "T", "key": "k", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**60)}
    return client.send(RequestCode.QUERY_MESSAGE, fields)


def test_a_close_during_a_query(unending: list[bool], brokers: Brokers) -> None:
    _broker, bystander, leaving = brokers.served_two()
    send_message(bystander, "T", properties="KEYS\x01k\x02")
    queried(leaving)
    assert send_message(bystander, "Other") == 0
    leaving.close()
    unending.append(True)
    assert send_message(bystander, "Other") == 1


class Passes:
    """A broker's I/O loop with a manual clock.

    It records the work of each pass (one round over the ready connections), and can halt between two passes.
    """

    def __init__(self, broker: Broker, patch: pytest.MonkeyPatch) -> None:
        self.broker, self.now_ns = broker, 0
        self.noted: list[list[int]] = [[]]
        self.halts, self.halted, self.goes_on = (broker.runtime.event() for _ in range(3))
        end = BrokerHandler.end_pass

        def end_pass(handler: BrokerHandler, outbox: Outbox) -> None:
            end(handler, outbox)
            outbox.flush()
            self.noted.append([])
            if self.halts.is_set():
                self.halted.set()
                self.goes_on.wait(PATIENCE_S)

        patch.setattr(BrokerHandler, "end_pass", end_pass)
        patch.setattr(broker.runtime, "monotonic_ns", lambda: self.now_ns)

    def after_a_halt(self, work: Callable[[], list[tuple[RawClient, int]]]) -> list[list[int]]:
        """Send requests while the I/O loop is halted; returns the work of each pass until all are answered."""
        self.halts.set()
        self.broker.loops[0].wake()
        assert self.halted.wait(PATIENCE_S)
        asked = work()
        begun = len(self.noted)
        self.goes_on.set()
        assert all(peer.reply(opaque) is not None for peer, opaque in asked)
        return [each for each in self.noted[begun - 1 :] if each]


def test_many_large_answers_take_several_passes(
    broker: Broker, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, passes = brokers.connect(broker), Passes(broker, monkeypatch)
    opaques = client.send_burst(RequestCode.GET_ALL_TOPIC_CONFIG, [({}, b"")] * 200)
    (size,) = {len(client.answer(opaque).body) for opaque in opaques}
    assert len(passes.noted) > 200 * size // QUEUED_SIZE_MAX


@define(eq=False)
class Faulty:
    """A clock and a `PassEnd` that raise errors; the I/O loop stops after its second pass."""

    calls: list[str] = field(factory=list)
    loop: IoLoop = field(init=False)
    has_more: bool = True

    def wait_s(self) -> float:
        return 0.0

    def end_pass(self, _outbox: Outbox) -> None:
        self._fail("end_pass")

    def run(self, _outbox: Outbox) -> None:
        self.loop._stopping = len(self.calls) == 3
        self._fail("run")

    def _fail(self, name: str) -> None:
        self.calls.append(name)
        raise LookupError(name)


def test_an_error_at_the_end_of_a_pass_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    faulty = Faulty()
    faulty.loop = IoLoop(RealRuntime(), "io", limits_of(BrokerConfig()), pass_end=faulty, clock=faulty)
    faulty.loop._run()
    faulty.loop.stop()
    assert faulty.calls == ["end_pass", "run"] * 2
    assert [record.message for record in caplog.records] == [
        "a pass could not be ended",
        "what was due could not be done",
    ] * 2


@pytest.mark.parametrize(
    ("ready", "turn_ns"), [(0, TURN_NS_MAX), (4, PASS_NS // 5), (9, PASS_NS // 10), (10_000, TURN_NS_MIN)]
)
def test_turns_are_shorter_if_more_connections_are_ready(ready: int, turn_ns: int) -> None:
    loop = IoLoop(RealRuntime(), "io", limits_of(BrokerConfig()))
    loop._run_pass([(object(), False, False)] * ready)
    assert loop._turn_ns == turn_ns
    loop.stop()


QUICK = RequestCode.GET_MIN_OFFSET
PLACE: Final = {"topic": "T", "queueId": "0"}


def test_a_client_that_was_slow_once_is_served_during_a_flood(
    broker: Broker, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, known = broker.loops[0], brokers.connect(broker)
    send_message(known, "T")
    (channel,) = loop._channels
    count = 10 * transport.RESTS_MAX
    new = [brokers.connect(broker) for _ in range(count)]
    wait_until(lambda: loop.channel_count == count + 1)
    passes, serve = Passes(broker, monkeypatch), loop._serve

    def note(one: Channel) -> None:
        passes.noted[-1].append(one.number)
        serve(one)

    def ask() -> list[tuple[RawClient, int]]:
        channel.is_slow = True
        return [(peer, peer.send(QUICK, PLACE)) for peer in (*new, known)]

    monkeypatch.setattr(loop, "_serve", note)
    found = passes.after_a_halt(ask)
    assert next(at for at, numbers in enumerate(found) if channel.number in numbers) < 3


@define(eq=False)
class Waiting:
    is_new: bool
    rest: None = None
    is_heavy: bool = True
    is_slow: bool = True
    closed: bool = False
    broken: bool = False


def test_slow_clients_do_not_delay_new_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = RealRuntime()
    clock_ns = [0]
    monkeypatch.setattr(runtime, "monotonic_ns", lambda: clock_ns[0])
    loop: Any = IoLoop(runtime, "io", limits_of(BrokerConfig()))
    known, new = Waiting(is_new=False), [Waiting(is_new=True) for _ in range(4)]
    served: list[str] = []

    def serve(channel: Waiting) -> None:
        served.append("new" if channel.is_new else "known")
        clock_ns[0] += PASS_NS + 1
        if channel is known:
            loop._unfinished[channel] = None

    monkeypatch.setattr(loop, "_serve", serve)
    loop._unfinished = dict.fromkeys((known, *new))
    for _ in range(8):
        waiting, loop._unfinished = loop._unfinished, {}
        loop._serve_unfinished(list(waiting))
    loop.stop()
    assert served in (["known", "new"] * 4, ["new", "known"] * 4)


@pytest.mark.parametrize("place", [0, 40])
def test_a_slow_client_is_read_during_a_flood_of_handshakes(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = RealRuntime()
    clock_ns = [0]
    monkeypatch.setattr(runtime, "monotonic_ns", lambda: clock_ns[0])
    loop: Any = IoLoop(runtime, "io", limits_of(BrokerConfig()))
    channels = [Waiting(is_new=True) for _ in range(40)]
    channels.insert(place, Waiting(is_new=False))
    read: list[bool] = []

    def receive(channel: Waiting, _now_ns: int) -> int:
        read.append(channel.is_new)
        clock_ns[0] += PASS_NS // 4
        return 0

    monkeypatch.setattr(loop, "_receive", receive)
    loop._receive_slow(channels, {}, 0)
    loop.stop()
    assert read == [False, True, True, True, True]
    assert len(loop._unread) == 36


def test_the_docs_state_the_bounds_of_turns() -> None:
    page = (Path(__file__).parents[2] / "docs/safety.md").read_text()
    rows = re.findall(r"^\| .*? \| (.*?) \|$", page.partition("## Long work")[2], re.MULTILINE)[2:]
    assert [[int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", row)[:2]] for row in rows] == [
        [notifier.CHECKED_COUNT, notifier.SQL_PART],
        [PASS_COST_MAX // RUN_COST, PASS_COST_MAX],
        [hold_service.EXPIRED_COUNT],
        [hold_service.RESUBSCRIBED_COUNT],
        [hold_service.DROPPED_COUNT],
        [transport.CLOSES_MAX],
        [topics.PART_COUNT],
        [index.WALKED_MAX],
        [message_store.QUEUES_A_TURN],
    ]
    assert f"At most {hold_service.LATER_MAX} arrivals" in page
    assert f"requests get {TURN_NS_MAX // 1_000_000} ms" in page
