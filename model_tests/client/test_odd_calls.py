"""Calls that are odd, wrong, or made in the wrong place: an error that says so at once, and nothing lost or stopped."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from longpoll_broker.testing.brokers import wait_until
from longpoll_client import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ConsumerConfig,
    ConsumeStatus,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    StartAt,
)
from longpoll_client.aio.group import GroupCalls
from longpoll_client.consume.membership import Membership
from longpoll_client.consume.workers import Answer
from longpoll_client.errors import AnswerTimeoutError
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME = RealRuntime()
PATIENCE_S = 10.0
ENDLESS = [math.inf, 1e12]
NO_TIMES: list[Any] = [math.nan, "3", None]


def config(group: str) -> ConsumerConfig:
    """From the first message, one thread or task."""
    return ConsumerConfig(group, start_at=StartAt.FIRST, thread_count=1)


def test_time_outs_without_end_and_those_that_are_none(name_server: str, topic: str) -> None:
    """On threads: a year is as good as no end, what has passed is none at all, and the rest is told at once."""
    with Producer(RUNTIME, name_server) as producer, PullConsumer(RUNTIME, name_server, config("T")) as consumer:
        for timeout_s in ENDLESS:
            assert producer.send(topic, b"x", timeout_s=timeout_s).code == 0
        told: list[object] = []
        producer.send_async(topic, b"x", told.append, timeout_s=math.inf)
        wait_until(lambda: len(told) == 1)
        assert isinstance(told[0], SendResult)
        for wrong in NO_TIMES:
            with pytest.raises(ConfigError, match="seconds"):
                producer.send(topic, b"x", timeout_s=wrong)
        consumer.subscribe(topic)
        consumer.start()
        assert [len(consumer.poll(timeout_s, 1)) for timeout_s in ENDLESS] == [1, 1]
        with pytest.raises(ConfigError, match="at least 1"):
            consumer.poll(1.0, 0)
        assert len(consumer.poll(math.inf)) == 1
        assert consumer.poll(-1.0) == []


def test_the_same_on_an_event_loop(name_server: str, topic: str) -> None:
    """With the same errors."""

    async def story() -> None:
        consumer = AsyncPullConsumer(RUNTIME, name_server, config("L"))
        consumer.subscribe(topic)
        async with asyncio.timeout(PATIENCE_S), AsyncProducer(RUNTIME, name_server) as producer, consumer:
            for timeout_s in ENDLESS:
                assert (await producer.send(topic, b"x", timeout_s=timeout_s)).code == 0
            for wrong in NO_TIMES:
                with pytest.raises(ConfigError, match="seconds"):
                    await producer.send(topic, b"x", timeout_s=wrong)
            assert [len(await consumer.poll(timeout_s, 1)) for timeout_s in ENDLESS] == [1, 1]
            with pytest.raises(ConfigError, match="at least 1"):
                await consumer.poll(1.0, -1)
            assert await consumer.poll(-1.0) == []

    asyncio.run(story())


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"body": "text"}, "pass bytes"),
    ({"body": None}, "pass bytes"),
    ({"keys": ["a", "b"]}, "keys is"),
    ({"tags": 5}, "tags is"),
    ({"properties": {"a": 5}}, "property 'a'"),
    ({"properties": {"a": ""}}, "property 'a'"),
    ({"properties": {"": "a"}}, "property ''"),
    ({"delay_level": "2"}, "delay_level"),
    ({"delay_level": -1}, "delay_level"),
    ({"topic": 5}, "topic '5'"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=str)
def test_what_cannot_be_sent_is_told_before_it_is(wrong: dict[str, Any], words: str) -> None:
    """Text where bytes belong, a list of keys, a property that brokers drop silently: nobody is asked."""
    with Producer(RUNTIME, "127.0.0.1:1") as producer, pytest.raises(ConfigError, match=words):
        producer.send(**{"topic": "T", "body": b"x"} | wrong)
    with pytest.raises(ConfigError, match="is not text"):
        Producer(RUNTIME, None)  # type: ignore[arg-type] # a mistake


def test_a_callback_that_waits_for_an_answer_is_told_at_once(name_server: str, topic: str) -> None:
    """It would wait for its own thread; the connection serves on."""
    outcomes: list[object] = []
    told = threading.Event()

    with Producer(RUNTIME, name_server) as producer:

        def send_more(_outcome: object) -> None:
            try:
                outcomes.append(producer.send(topic, b"inside"))
            except (ConfigError, AnswerTimeoutError) as error:
                outcomes.append(error)
            told.set()

        producer.send_async(topic, b"x", send_more)
        assert told.wait(PATIENCE_S)
        assert "a callback cannot wait" in str(outcomes[0])
        assert producer.send(topic, b"after").code == 0


@pytest.mark.parametrize("exits", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_listener_that_exits_ends_neither_its_thread_nor_the_process(
    name_server: str, topic: str, exits: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """Its message is put off as one of any other that raises, and the next one comes."""

    def listen(messages: Sequence[ReceivedMessage]) -> Answer:
        if messages[0].body == b"bad":
            raise exits
        return ConsumeStatus.SUCCESS

    with (
        Producer(RUNTIME, name_server) as producer,
        PushConsumer(RUNTIME, name_server, config("E"), listen) as consumer,
    ):
        consumer.subscribe(topic)
        consumer.start()
        for body in (b"bad", b"good"):
            producer.send(topic, body)
        wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count == 1)
        assert consumer.statistics[topic].sent_back_count == 1
    assert exits.__name__ in caplog.text


def test_a_listener_whose_own_work_was_cancelled_has_put_its_message_off(name_server: str, topic: str) -> None:
    """Of every task that gives messages: none of them ends by what a listener let through."""

    async def story() -> None:
        consumed = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> Answer:
            if messages[0].body == b"bad":
                work = asyncio.create_task(asyncio.sleep(3600))
                work.cancel()
                await work
            consumed.set()
            return ConsumeStatus.SUCCESS

        consumer = AsyncPushConsumer(RUNTIME, name_server, config("C"), listen)
        consumer.subscribe(topic)
        async with asyncio.timeout(PATIENCE_S), AsyncProducer(RUNTIME, name_server) as producer, consumer:
            for body in (b"bad", b"bad", b"good"):
                await producer.send(topic, body)
            await consumed.wait()
            assert consumer.statistics[topic].later_count == 2

    asyncio.run(story())


class Unusual(BaseException):
    """As other packages have their own for what no `except Exception` is to take."""


@pytest.mark.parametrize("exits", [SystemExit, Unusual])
@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_coroutine_that_exits_ends_neither_its_task_nor_the_loop(
    name_server: str, topic: str, exits: type[BaseException], is_orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its message is put off; the one task went on, where it was gone untold and its queue was never heard of again."""

    async def story() -> None:
        consumed = asyncio.Event()
        tries = 0

        async def listen(messages: Sequence[ReceivedMessage]) -> Answer:
            nonlocal tries
            tries += messages[0].body == b"bad"
            if messages[0].body == b"bad" and tries == 1:
                raise exits
            if messages[0].body == b"good":
                consumed.set()
            return ConsumeStatus.SUCCESS

        options = ConsumerConfig("X", start_at=StartAt.FIRST, thread_count=1, suspend_s=0.01)
        consumer = AsyncPushConsumer(RUNTIME, name_server, options, listen, is_orderly=is_orderly)
        consumer.subscribe(topic)
        async with asyncio.timeout(PATIENCE_S), AsyncProducer(RUNTIME, name_server) as producer, consumer:
            for body in (b"bad", b"good"):
                await producer.send(topic, body)
            await consumed.wait()
            assert consumer.statistics[topic].later_count == 1

    asyncio.run(story())
    assert exits.__name__ in caplog.text


def test_a_plain_function_that_listens_on_a_loop_is_taken_at_its_word(name_server: str, topic: str) -> None:
    """It was given its message and said so: that was put off, again and again, and a dead letter in the end."""

    async def story() -> None:
        bodies: list[bytes] = []

        def listen(messages: Sequence[ReceivedMessage]) -> Answer:
            bodies.append(messages[0].body)
            last.set()
            return ConsumeStatus.SUCCESS

        last = asyncio.Event()
        consumer = AsyncPushConsumer(RUNTIME, name_server, config("P"), listen)
        consumer.subscribe(topic)
        async with asyncio.timeout(PATIENCE_S), AsyncProducer(RUNTIME, name_server) as producer:
            await producer.send(topic, b"1")
            async with consumer:
                await last.wait()
        assert consumer.statistics[topic].later_count == 0
        assert consumer.statistics[topic].consumed_count == 1
        assert bodies == [b"1"]

    asyncio.run(story())


@pytest.mark.parametrize("on_loop", [False, True])
def test_a_member_that_its_brokers_do_not_take_says_so(
    name_server: str, topic: str, on_loop: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As brokers of 5.x do with a group of a name that they do not take: it had no queue, and nobody was told why."""

    async def story() -> None:
        listening = AsyncPushConsumer(RUNTIME, name_server, config("ünusual"), lambda _messages: ConsumeStatus.SUCCESS)
        listening.subscribe(topic)
        async with listening:
            assert listening.queues == ()

    async def nobody(_calls: GroupCalls, _route: object) -> list[str]:
        return []

    monkeypatch.setattr(Membership, "members", lambda _membership, _route: [])
    monkeypatch.setattr(GroupCalls, "members", nobody)
    if on_loop:
        asyncio.run(story())
    else:
        with PullConsumer(RUNTIME, name_server, config("ünusual")) as consumer:
            consumer.subscribe(topic)
            consumer.start()
            assert consumer.queues == ()
    assert f"no broker of topic {topic} has this member in group ünusual" in caplog.text
