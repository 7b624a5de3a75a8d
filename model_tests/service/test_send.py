"""Batches and ends of transactions that RocketMQ refuses for what they ask, as both Java versions were seen to."""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.service.sockless import Peer, ThreadlessBroker
from model_tests.support.broker.brokers import SMALL_STORE, Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import pull_fields, records_of, send_fields
from model_tests.support.broker.stores import StillRuntime
from model_tests.support.service import answer_of, served, served_two

from longpoll_broker.fast.send_bursts import SendBursts
from longpoll_broker.io.channel import NO_END_NS
from longpoll_broker.store.messages import Arrival, MessageToStore
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.fast.send_request import SendCommand, read_send
from longpoll_protocol.frames.command import Command, encode
from longpoll_protocol.properties import DELAY, INNER_QUEUES, PREPARED
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

BATCH = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"m" + struct.pack(">h", 0)

POLICIES = pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)


@pytest.mark.parametrize(("policy", "answered"), [(STRICT, True), (ROCKETMQ_4_9, False), (ROCKETMQ_5, False)])
def test_wrong_ends_of_transactions(
    policy: Policy, answered: bool, start_broker: StartBroker, connect: Connect
) -> None:
    client = connect(start_broker(policy=policy).address)
    fields = {"producerGroup": "PG", "tranStateTableOffset": "0", "commitLogOffset": "0"}

    def end(how: str) -> int:
        return client.send(RequestCode.END_TRANSACTION, fields | {"commitOrRollback": how})

    undecided = end("0")
    for how in ("4", "-1", "31"):
        reply = answer_of(client, end(how))
        assert reply.code == 1
    # Answers come in the order of the requests.
    assert (client.reply(undecided, 0.01) is not None) is answered


@POLICIES
def test_the_broker_picks_each_queue_in_turn(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    broker, client = served(start_broker, connect, policy=policy)
    client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"first")
    topic = broker.topics.get("T")
    assert topic is not None
    count = topic.write_queue_nums
    assert count > 1

    def queue_of(reply: Command | None) -> int:
        assert reply is not None
        assert reply.code == 0
        assert reply.ext_fields is not None
        return int(reply.ext_fields["queueId"])

    alone = [queue_of(client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T", -1), b"x")) for _ in range(2 * count)]
    burst = client.send_burst(RequestCode.SEND_MESSAGE_V2, [(send_fields("T", -1), b"y")] * 2 * count)
    together = [queue_of(client.reply(opaque)) for opaque in burst]
    for queues in (alone, together):
        assert Counter(queues) == dict.fromkeys(range(count), 2)


STORE = evolve(SMALL_STORE, commit_log_file_size=16_384, message_size_max=2_000, multi_dispatch=True)
"""Files so small that bursts meet their ends."""

PROPERTIES = [
    "",
    "UNIQ_KEY\x0101\x02WAIT\x01true\x02TAGS\x01a\x02",
    "KEYS\x01k\x02TAGS\x01\u00e4",
    "TAGS\x01z\0\x02",
    "damaged",
    f"{DELAY}\x012\x02",
    f"{DELAY}\x01soon\x02",
    f"{PREPARED}\x01true\x02",
    f"{INNER_QUEUES}\x01U\x02",
]


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    """One request as bytes: most are plain sends, the others go every other way there is."""
    fields = send_fields(draw(st.sampled_from("TTTTU")), draw(st.integers(0, 3)), draw(st.sampled_from(PROPERTIES)))
    odd = draw(st.sampled_from([{}] * 12 + [
        {"b": "%RETRY%none"}, {"b": "SCHEDULE_TOPIC_XXXX"}, {"b": "bad/name"}, {"b": "TBW102"}, {"c": "none", "b": "V"},
        {"e": "-1"}, {"e": "99"}, {"e": "x"}, {"f": "4"}, {"f": "12"}, {"f": "48"}, {"m": "true"}, {"j": "3"},
    ]))  # fmt: skip
    flag = draw(st.sampled_from([0] * 8 + [int(CommandFlag.ONE_WAY), int(CommandFlag.RESPONSE), 8]))
    code = draw(st.sampled_from([RequestCode.SEND_MESSAGE_V2] * 12 + [RequestCode.SEND_BATCH_MESSAGE, 9_999]))
    body = draw(st.sampled_from([b"body"] * 8 + [b"", b"x" * 300, b"y" * 2_001]))
    return b"".join(encode(Command(code, draw(st.integers(0, 99)), flag, ext_fields=fields | odd, body=body)))


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, Peer]]:
    """Of a broker that serves bursts, and of one that does not, both with a clock that stands still."""
    directories = [str(tmp_path_factory.mktemp(name)) for name in ("bursts", "single")]
    with (
        ThreadlessBroker.start(StillRuntime(), directories[0], store_config=STORE) as bursts,
        ThreadlessBroker.start(StillRuntime(), directories[1], store_config=STORE, is_fast=False) as single,
    ):
        yield Peer(bursts), Peer(single)


@settings(max_examples=30)
@given(st.lists(sends(), max_size=24).map(b"".join))
def test_a_burst_is_served_as_its_sends_are(peers: tuple[Peer, Peer], content: bytes) -> None:
    bursts, single = peers

    assert bursts.told(content) == single.told(content)


def plain_burst(count: int) -> bytes:
    """So many plain sends with different opaques."""
    fields = send_fields("T", 0, "TAGS\x01a\x02")
    return b"".join(
        b"".join(encode(Command(RequestCode.SEND_MESSAGE_V2, number, ext_fields=fields, body=b"x" * number)))
        for number in range(count)
    )


def test_a_burst_is_stored_in_one_go(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start_broker()
    peer = Peer(broker)
    peer.tell(plain_burst(1))
    stored: list[int] = []
    put_burst = broker.store.put_burst

    def noted(messages: Sequence[MessageToStore]) -> Sequence[Arrival]:
        stored.append(len(messages))
        return put_burst(messages)

    monkeypatch.setattr(broker.store, "put_burst", noted)
    peer.tell(plain_burst(10))

    assert stored == [9]


def test_a_broker_with_more_to_do_for_each_send_serves_no_bursts(start_broker: StartBroker, tmp_path: Path) -> None:
    """A history is recorded, or the disk is waited for."""
    recording = start_broker(record_directory=str(tmp_path / "history"))
    waiting = start_broker(directory=str(tmp_path / "waiting"), store_config=evolve(STORE, flush_disk_sync=True))
    plain = start_broker(directory=str(tmp_path / "plain"))

    assert [recording.handler.send_bursts, waiting.handler.send_bursts] == [None, None]
    assert plain.handler.send_bursts is not None


def test_pipelined_sends_wake_a_held_pull(start_broker: StartBroker, connect: Connect) -> None:
    broker, sender, puller = served_two(start_broker, connect)
    sender.send_bytes(plain_burst(1))
    assert sender.reply(0) is not None
    pulled = puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=20_000))
    wait_until(lambda: len(broker.hold_service) == 1)
    sender.send_bytes(plain_burst(40))
    replies = [sender.reply(number) for number in range(40)]
    answer = answer_of(puller, pulled)
    bodies = [bytes(record.body) for record in records_of(answer)]
    assert bodies == [b"x" * number for number in range(len(bodies))]
    assert bodies
    assert [reply.ext_fields["queueOffset"] for reply in replies if reply and reply.ext_fields] == [
        str(1 + number) for number in range(40)
    ]


def test_sends_that_cannot_be_stored_together_after_all_are_served(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SendBursts, "_put", lambda *_: 0)
    broker, client = served(start_broker, connect)
    opaques = client.send_burst(
        RequestCode.SEND_MESSAGE_V2, [(send_fields("T"), b"%d" % number) for number in range(9)]
    )
    answers = [client.reply(opaque) for opaque in opaques]
    assert [answer and answer.code for answer in answers] == [0] * 9
    wait_until(lambda: broker.store.visible_end("T", 0) == 9)
    pulled = client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
    assert [bytes(record.body) for record in records_of(pulled)] == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize(
    ("properties", "reads_max"), [([f"{DELAY}\x011\x02"], 2), ([""], 2), (["", "", f"{DELAY}\x011\x02"], 20)]
)
def test_few_sends_are_read_for_nothing(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, properties: list[str], reads_max: int
) -> None:
    count = [0]

    def counted(header: bytes, body: memoryview) -> SendCommand | None:
        count[0] += 1
        return read_send(header, body)

    monkeypatch.setattr("longpoll_protocol.fast.typed_connection.read_send", counted)
    broker = start_broker()
    bursts = broker.handler.send_bursts
    assert bursts is not None
    moments = itertools.cycle([0, NO_END_NS + 1])
    bursts.now_ns = lambda: next(moments)
    client = connect(broker.address)
    texts = (properties * 200)[:200]
    opaques = client.send_burst(RequestCode.SEND_MESSAGE_V2, [(send_fields("T", 0, text), b"x") for text in texts])
    assert all(client.reply(opaque) is not None for opaque in opaques)
    assert 200 <= count[0] <= 200 * reads_max
