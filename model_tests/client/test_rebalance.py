"""How members share queues, as in the Java client, and members with different subscriptions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import wait_until
from model_tests.support.client import RUNTIME, Answers, Clients, consumed, from_first

from longpoll_client import (
    AnswerTimeoutError,
    MessageModel,
    MessageQueue,
    allocate_averagely,
    allocate_by_circle,
    allocate_by_consistent_hash,
    allocate_by_machine_room,
    allocate_near,
)
from longpoll_client.allocate import Allocate
from longpoll_client.consume.membership import Membership, SubscriptionCheck, make_subscription
from longpoll_client.consume.statistics import Statistics
from longpoll_client.link.routes import Route
from longpoll_client.link.steps import Ask
from longpoll_client.settings import MemberConfig
from longpoll_protocol.bodies import ConsumeFromWhere, ConsumerConnection, ConsumeType, HeartbeatData, SubscriptionData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command

ROWS: Final[list[dict[str, Any]]] = json.loads((Path(__file__).parent / "java_allocations.json").read_text())
"""The results of the classes of rocketmq-client 4.9.7, equal to those of 5.5.0.

Queues are given by their index."""
ROOMS: Final = ("east", "west", "north")


def room(name: str) -> str:
    """Return the machine room of a broker or a client: the text before the @ in its name or id."""
    return name.partition("@")[0]


def near(within: Allocate) -> Allocate:
    """Return a strategy that allocates queues by `within` to members in the machine room of the queue's broker."""
    return allocate_near(lambda queue: room(queue.broker_name), room, within)


ALLOCATES: Final[dict[str, Allocate]] = {
    "averagely": allocate_averagely,
    "circle": allocate_by_circle,
    "hash": allocate_by_consistent_hash,
    "room": allocate_by_machine_room(["east", "west"]),
    "near": near(allocate_averagely),
    "near hash": near(allocate_by_consistent_hash),
}


def queues_of(topic: str, brokers: int, queues: int) -> list[MessageQueue]:
    """Return a topic's queues: the same number for each broker."""
    names = [f"{ROOMS[number % 3]}@broker-{number}" for number in range(brokers)]
    return sorted(
        MessageQueue(topic=topic, broker_name=name, queue_id=each) for name in names for each in range(queues)
    )


def differing(allocates: dict[str, Allocate]) -> set[str]:
    """Return the strategies whose assignments differ from the Java client's."""
    found = set()
    for row in ROWS:
        every = queues_of(row["topic"], row["brokers"], row["queues"])
        for client_id, places in row["shares"].items():
            share = allocates[row["how"]](client_id, list(row["shares"]), reversed(every))
            if sorted(share) != [every[place] for place in places]:
                found.add(row["how"])
    return found


def test_every_allocation_equals_that_of_the_java_client() -> None:
    """The six strategies agree with Java for 14 groups of up to seven clients and four brokers."""
    assert {row["how"] for row in ROWS} == set(ALLOCATES)
    assert len(ROWS) == 14 * len(ALLOCATES)
    assert differing(ALLOCATES) == set()


@given(
    st.sets(st.builds("{}@{}".format, st.sampled_from(ROOMS), st.integers(0, 99)), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(0, 12),
    st.sampled_from(sorted(ALLOCATES)),
)
def test_each_queue_is_assigned_exactly_once(names: set[str], brokers: int, queues: int, how: str) -> None:
    every = queues_of("T", brokers, queues)
    shares = [queue for name in names for queue in ALLOCATES[how](name, names, every)]
    due = [queue for queue in every if how != "room" or room(queue.broker_name) != "north"]
    assert sorted(shares) == due
    assert ALLOCATES[how]("a stranger@1", names, every) == ()


@pytest.mark.parametrize("name", ["east", "east@", "@b", "east@b@c"])
def test_a_broker_name_without_a_machine_room_belongs_to_none(name: str) -> None:
    """As in Java, a broker whose name has no machine room belongs to none."""
    queue = MessageQueue(topic="T", broker_name=name, queue_id=0)
    assert allocate_by_machine_room(["east"])("me", ["me"], [queue]) == ()


ADDRESS = "127.0.0.1:10911"
CONFIG = MemberConfig(group="G")
ROUTE = Route("T", (), (), {"b": ADDRESS}, 0)
LOGGER = "longpoll_client.consume.membership"


def wanted(**expressions: str) -> dict[str, SubscriptionData]:
    """Return a member's subscriptions by topic; an expression that begins with a colon is not a tag expression."""
    return {
        topic: make_subscription(topic, text.removeprefix(":"), "SQL92" if text.startswith(":") else "TAG", 1)
        for topic, text in expressions.items()
    }


def told(subscriptions: dict[str, SubscriptionData]) -> Command:
    """Return the answer of a broker with these subscriptions."""
    body = ConsumerConnection(
        connection_set=[],
        subscription_table=subscriptions,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    )
    return Command(ResponseCode.SUCCESS, 1, 1, None, memoryview(body.encode()))


def others_of() -> tuple[SubscriptionCheck, Statistics]:
    """Return a check of the other members' subscriptions, and the statistics that count the differences."""
    statistics = Statistics(RUNTIME)
    return SubscriptionCheck(MemberConfig(group="G"), statistics), statistics


@pytest.mark.parametrize(
    ("own", "there", "counted", "said"),
    [
        (wanted(T="a || b"), wanted(T="b||a"), set(), ""),
        (wanted(T="*"), wanted(T=""), set(), ""),
        (wanted(T=":a > 1"), wanted(T=":a > 1"), set(), ""),
        (wanted(T="a"), wanted(T="b || a"), {"T"}, "T: a here, a || b there"),
        (wanted(T="*"), wanted(T="a"), {"T"}, "T: everything here, a there"),
        (wanted(T=":a > 1"), wanted(T="a"), {"T"}, "T: SQL92 a > 1 here, a there"),
        (wanted(T="*"), wanted(T="*", U="*"), set(), "U: nothing here, everything there"),
        (wanted(T="*", U="a"), wanted(T="*"), {"U"}, "U: a here, nothing there"),
    ],
)
def test_different_subscriptions_are_counted_and_logged(
    own: dict[str, SubscriptionData],
    there: dict[str, SubscriptionData],
    counted: set[str],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Different subscriptions are counted each time for the member's topics, and logged once per change."""
    others, statistics = others_of()
    with caplog.at_level(logging.WARNING, LOGGER):
        others.compare(told(there), own)
        others.compare(told(there), own)
    expected = [f"members of group G want different messages, and lose some: {said}"] if said else []
    assert caplog.messages == expected
    assert {topic: counts.differing_count for topic, counts in statistics.snapshot().items()} == dict.fromkeys(
        counted, 2
    )
    with caplog.at_level(logging.WARNING, LOGGER):
        others.compare(told(own), own)
        others.compare(told(there), own)
    assert caplog.messages == expected * 2


def test_a_log_line_lists_at_most_ten_topics(caplog: pytest.LogCaptureFixture) -> None:
    """The log line lists ten topics, and gives the number of the others."""
    others, _statistics = others_of()
    with caplog.at_level(logging.WARNING, LOGGER):
        others.compare(told(wanted(T="*", **{f"U{number:02}": "a" for number in range(12)})), wanted(T="*"))
    (line,) = caplog.messages
    assert line.count("nothing here, a there") == 10
    assert line.endswith("U09: nothing here, a there; and 2 topics more")


def test_an_unreadable_answer_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """The client ignores an error answer, for example from a broker that knows no member yet."""
    others, statistics = others_of()
    with caplog.at_level(logging.WARNING, LOGGER):
        others.compare(Command(ResponseCode.CONSUMER_NOT_ONLINE, 1, 1, None, told(wanted(T="a")).body), wanted(T="*"))
        others.compare(Command(ResponseCode.SUCCESS, 1, 1, None, memoryview(b"{")), wanted(T="*"))
    assert (caplog.messages, statistics.snapshot()) == ([], {})


class Broker(Answers):
    """A broker of one member."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.has: dict[str, SubscriptionData] = {}
        self.is_deaf = False
        self.heard: list[int] = []
        self.when_looked: Callable[[], None] = lambda: None

    def answer(self, asked: Ask) -> Command:
        """Store the heartbeat's subscriptions, and return them."""
        self.heard.append(asked.code)
        if asked.code == RequestCode.HEART_BEAT:
            if self.is_deaf:
                raise AnswerTimeoutError("no answer in time")
            (member,) = HeartbeatData.decode(asked.body).consumer_data_set
            self.has = {each.topic: each for each in member.subscription_data_set}
        else:
            self.when_looked()
        return told(self.has)


def alone() -> tuple[Broker, Membership]:
    return Broker(), Membership(RUNTIME, CONFIG, ConsumeType.CONSUME_PASSIVELY, lambda: "c", Statistics(RUNTIME))


def tell(broker: Broker, member: Membership, *, looks: bool) -> None:
    """Send a heartbeat. With `looks`, the member compares the subscriptions before it."""
    with suppress(AnswerTimeoutError):
        if looks:
            broker.run(member.check_subscriptions())
        broker.run(member.heartbeat([ROUTE]))


def want(member: Membership, topic: str) -> None:
    member.subscribe(make_subscription(topic, "*", "TAG", 1))


def test_an_outdated_broker_is_not_reported_as_a_difference(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that missed a change has the member's own old subscriptions, so the client does not compare them."""
    broker, member = alone()
    with caplog.at_level(logging.WARNING, LOGGER):
        want(member, "T")
        tell(broker, member, looks=False)
        want(member, "U")
        broker.is_deaf = True
        tell(broker, member, looks=False)
        tell(broker, member, looks=True)
        tell(broker, member, looks=True)
        assert broker.heard == [RequestCode.HEART_BEAT] * 4
        broker.is_deaf = False
        tell(broker, member, looks=True)
        tell(broker, member, looks=True)
    assert broker.heard[4:] == [
        RequestCode.HEART_BEAT,
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.HEART_BEAT,
    ]
    assert [line for line in caplog.messages if "different" in line] == []


def test_a_change_during_the_comparison_is_not_reported_as_a_difference(caplog: pytest.LogCaptureFixture) -> None:
    broker, member = alone()

    def change() -> None:
        want(member, "U")
        broker.has = {**broker.has, **wanted(U="*")}

    broker.when_looked = change
    with caplog.at_level(logging.WARNING, LOGGER):
        want(member, "T")
        tell(broker, member, looks=False)
        tell(broker, member, looks=True)
    assert RequestCode.GET_CONSUMER_CONNECTION_LIST in broker.heard
    assert caplog.messages == []


def wanting(clients: Clients, topic: str, expression: str) -> Any:
    member = clients.push(from_first(f"G-{topic}", heartbeat_s=0.05), consumed)
    member.subscribe(topic, expression)
    member.start()
    return member


def test_a_member_notices_another_members_different_subscription(clients: Clients, topic: str) -> None:
    """A member queries the other members' subscriptions from the broker before its heartbeats."""
    member = wanting(clients, topic, "red")
    wanting(clients, topic, "blue")
    wait_until(lambda: topic in member.statistics and member.statistics[topic].differing_count > 0)
    assert member.statistics[topic].differing_count > 0
