"""Bursts and reused answers are what requests served one by one get, to the byte."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, one_by_one
from model_tests.support.broker.raw_client import (
    RawClient,
    bodies_of,
    pull_fields,
    send_fields,
    send_message,
)
from model_tests.support.broker.sockless import Peer, ThreadlessBroker
from model_tests.support.broker.stores import StillRuntime
from msgspec import structs

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.shared.topics import GroupConfig, TopicConfig
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.frames import Command, Serialisation, encode
from longpoll_spec.policy import preset

LONG_MS = 10**9
CONFIG = BrokerConfig(hold_timeout_ms_max=LONG_MS)
STORE = evolve(SMALL_STORE, commit_log_file_size=1 << 16)
POLICIES = ["strict", "strict-clone"]
"""Those under which one thread decides what is told first."""
PEERS = 3
TOPIC = "T00000"
"""Each example replaces it by a name as long, of a topic without messages: so pulls wait for its first ones."""
NUMBERS = itertools.count(1)
Told = tuple[int, bytes]


class Twin:
    """A broker with some connections that have no sockets."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.peers = [Peer(broker, 11 + number) for number in range(PEERS)]

    def told(self, told: Sequence[Told]) -> tuple[object, ...]:
        """Bytes to each connection, counts, and the number of held pulls."""
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
    """A send, or a pull; most pulls wait at the end, where many are alike."""
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
    """A broker and one that serves each request alone, both with a clock that stands still."""
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
def test_a_quick_broker_is_a_plain_one(twins: tuple[Twin, Twin], told: list[Told]) -> None:
    """Both give the same bytes, the same log and the same counts."""
    quick, plain = twins
    topic = b"T%05d" % next(NUMBERS)
    told = [(number, content.replace(TOPIC.encode(), topic)) for number, content in told]
    assert quick.told(told) == plain.told(told)


def pair(brokers: Brokers, directory: Any, config: BrokerConfig = CONFIG) -> list[Twin]:
    options: dict[str, Any] = {"config": config, "runtime": StillRuntime()}
    quick, plain = (brokers.start(directory=f"{directory}/{name}", **options) for name in ("quick", "plain"))
    return [Twin(quick), Twin(one_by_one(plain))]


def alike(count: int, topic: str = "R") -> list[Told]:
    """Pulls that wait for the next message of a queue that has one, and three messages in one piece."""
    send = Command(RequestCode.SEND_MESSAGE_V2, 1, ext_fields=send_fields(topic, 0), body=b"body")
    pull = Command(RequestCode.PULL_MESSAGE, 2, ext_fields=pull_fields(topic, 1, timeout_ms=LONG_MS))
    first, wait = b"".join(encode(send)), b"".join(encode(pull))
    return [(0, first), *[(1 + number % 2, wait) for number in range(count)], (0, first * 3)]


def pulls(*changes: dict[str, str]) -> bytes:
    """Pulls at the end of a queue without messages, in one piece."""
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
    """Answers to pulls like earlier ones, after a change of the broker."""
    twin.broker.topics.put(TopicConfig("T", 4, 4))
    begun = twin.told([(0, pulls({}, {"queueId": "1"}, {}))])
    change(twin.broker)
    return begun, twin.told([(1, pulls({"queueId": "1"}, {}, {"subscription": "a || b"}, {"expressionType": "x"}))])


@pytest.mark.parametrize("change", CHANGES, ids=["fewer queues", "no reading", "deleted", "group"])
def test_what_was_checked_before_is_checked_again(
    brokers: Brokers, tmp_path: Any, change: Callable[[Broker], object]
) -> None:
    """A replaced topic or group counts for the next pull."""
    quick, plain = pair(brokers, tmp_path)
    assert after(quick, change) == after(plain, change)


def test_a_pull_like_the_last_one_asks_again_what_may_have_changed(broker: Broker) -> None:
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
