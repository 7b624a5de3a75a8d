"""Members of one group that want different messages: which of them finds out, and what it says."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack

import pytest

from longpoll_broker.testing.brokers import wait_until
from longpoll_client import AsyncPushConsumer, ConsumerConfig, ConsumeStatus, PushConsumer, StartAt
from longpoll_client.consume.membership import Others, make_subscription
from longpoll_client.consume.statistics import Statistics
from longpoll_protocol.bodies import (
    ConsumeFromWhere,
    ConsumerConnection,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
LOGGER = "longpoll_client.consume.membership"


def wanted(**expressions: str) -> dict[str, SubscriptionData]:
    """What one wants, by topic; an expression that begins with a colon is none of tags."""
    return {
        topic: make_subscription(topic, text.removeprefix(":"), "SQL92" if text.startswith(":") else "TAG", 1)
        for topic, text in expressions.items()
    }


def told(subscriptions: dict[str, SubscriptionData]) -> Command:
    """What a broker answers that has them."""
    body = ConsumerConnection(
        connection_set=[],
        subscription_table=subscriptions,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    )
    return Command(ResponseCode.SUCCESS, 1, 1, None, memoryview(body.encode()))


def others_of(own: dict[str, SubscriptionData]) -> tuple[Others, Statistics]:
    """What a member has that wants these, and has told so."""
    statistics = Statistics(RUNTIME)
    others = Others(ConsumerConfig("G"), statistics)
    assert not others.is_due(own)
    assert others.is_due(own)
    return others, statistics


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
def test_what_differs_is_counted_and_said(
    own: dict[str, SubscriptionData],
    there: dict[str, SubscriptionData],
    counted: set[str],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Counted each time, for the topics that are wanted here; said once, until it is something else."""
    others, statistics = others_of(own)
    with caplog.at_level(logging.WARNING, LOGGER):
        others.look(told(there))
        others.look(told(there))
    expected = [f"members of group G want different messages, and lose some: {said}"] if said else []
    assert caplog.messages == expected
    assert {topic: counts.differing_count for topic, counts in statistics.snapshot().items()} == dict.fromkeys(
        counted, 2
    )
    with caplog.at_level(logging.WARNING, LOGGER):
        others.look(told(own))
        others.look(told(there))
    assert caplog.messages == expected * 2


def test_a_line_says_what_others_want_of_ten_topics(caplog: pytest.LogCaptureFixture) -> None:
    """And how many there are more."""
    others, _statistics = others_of(wanted(T="*"))
    with caplog.at_level(logging.WARNING, LOGGER):
        others.look(told(wanted(T="*", **{f"U{number:02}": "a" for number in range(12)})))
    (line,) = caplog.messages
    assert line.count("nothing here, a there") == 10
    assert line.endswith("U09: nothing here, a there; and 2 topics more")


def test_of_what_cannot_be_read_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Nor of an answer that is no success, as that of a broker that knows no member yet, or lets no client ask."""
    others, statistics = others_of(wanted(T="*"))
    with caplog.at_level(logging.WARNING, LOGGER):
        others.look(Command(ResponseCode.CONSUMER_NOT_ONLINE, 1, 1, None, told(wanted(T="a")).body))
        others.look(Command(ResponseCode.SUCCESS, 1, 1, None, memoryview(b"{")))
    assert (caplog.messages, statistics.snapshot()) == ([], {})


def test_what_was_wanted_before_is_not_held_against_the_others() -> None:
    """After a change brokers are told first: they have this member's own old wish."""
    own = wanted(T="a")
    others, _statistics = others_of(own)
    own = {**own, **wanted(T="b")}
    assert not others.is_due(own)
    assert others.is_due(own)


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_member_finds_out_what_another_wants(name_server: str, topic: str, is_loop: bool) -> None:
    """From its broker, with its heartbeats; the other is on threads, and wanted its own last."""
    first = config(topic)
    with ExitStack() as stack:
        if is_loop:
            assert asyncio.run(found_on_loop(name_server, topic, first))
            return
        member = stack.enter_context(PushConsumer(RUNTIME, name_server, first, lambda _messages: ConsumeStatus.SUCCESS))
        member.subscribe(topic, "red")
        member.start()
        stack.enter_context(another(name_server, topic, first))
        wait_until(lambda: topic in member.statistics and member.statistics[topic].differing_count > 0)
    assert member.statistics[topic].differing_count > 0


async def found_on_loop(name_server: str, topic: str, first: ConsumerConfig) -> bool:
    """The same on an event loop."""

    async def listen(_messages: object) -> ConsumeStatus:
        return ConsumeStatus.SUCCESS

    member = AsyncPushConsumer(RUNTIME, name_server, first, listen)
    member.subscribe(topic, "red")
    async with member:
        with await asyncio.to_thread(another, name_server, topic, first):
            await asyncio.to_thread(
                wait_until, lambda: topic in member.statistics and member.statistics[topic].differing_count > 0
            )
    return member.statistics[topic].differing_count > 0


def config(topic: str) -> ConsumerConfig:
    """A group whose members tell brokers of themselves often."""
    return ConsumerConfig(f"G-{topic}", start_at=StartAt.FIRST, heartbeat_s=0.05)


def another(name_server: str, topic: str, first: ConsumerConfig) -> PushConsumer:
    """A member of the group, started, that wants something else."""
    member = PushConsumer(RUNTIME, name_server, first, lambda _messages: ConsumeStatus.SUCCESS)
    member.subscribe(topic, "blue")
    member.start()
    return member


def test_members_that_want_the_same_are_told_nothing(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often they look."""
    looks: list[int] = []
    honest = Others.look

    def look(self: Others, answer: Command) -> None:
        looks.append(answer.code)
        honest(self, answer)

    monkeypatch.setattr(Others, "look", look)
    with ExitStack() as stack:
        members = [another(name_server, topic, config(topic)) for _number in range(2)]
        for member in members:
            stack.enter_context(member)
        wait_until(lambda: looks.count(ResponseCode.SUCCESS) > 9)
        assert all(counts.differing_count == 0 for member in members for counts in member.statistics.values())
