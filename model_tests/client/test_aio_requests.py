"""Requests and replies on an event loop: who asks gets what its message's consumer answers, or an error in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from model_tests.client.test_aio_consumer import RUNTIME, config, name_server, run
from msgspec.structs import replace

from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import (
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeStatus,
    OutgoingMessage,
    Producer,
    ReceivedMessage,
)
from longpoll_client.errors import ClientError, ConnectionLostError, LifecycleError, ReplyTimeoutError
from longpoll_spec.errors import ConfigError

__all__ = ["name_server"]
SILENT = b"say nothing"


def test_each_request_gets_its_own_reply_or_an_error(name_server: str) -> None:
    """Many at once; one without a reply ends in time, a cancelled one is forgotten, and the close ends the rest."""

    async def story() -> None:
        replier = AsyncProducer(RUNTIME, name_server, "repliers")
        asked: list[ReceivedMessage] = []
        silent = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            asked.extend(messages)
            if messages[0].body == SILENT:
                silent.set()
            else:
                await replier.reply(messages[0], messages[0].body[::-1])
            return ConsumeStatus.SUCCESS

        service = AsyncPushConsumer(RUNTIME, name_server, config(), listen)
        service.subscribe(topic)
        asking = AsyncProducer(RUNTIME, name_server, "askers")
        async with replier, service:
            bodies = [b"%d" % number for number in range(10, 30)]
            replies = await asyncio.gather(*(asking.request(topic, body, timeout_s=10.0) for body in bodies))
            assert [reply.body for reply in replies] == [body[::-1] for body in bodies]
            numbers = {message.body: message.properties["CORRELATION_ID"] for message in asked}
            assert [reply.properties["CORRELATION_ID"] for reply in replies] == [numbers[body] for body in bodies]
            with pytest.raises(ReplyTimeoutError, match=r"no reply within 0\.1 s"):
                await asking.request(topic, SILENT, timeout_s=0.1)
            for ends_by_close in (False, True):
                silent.clear()
                waiting = asyncio.create_task(asking.request(topic, SILENT, timeout_s=10.0))
                await silent.wait()
                if ends_by_close:
                    await asking.close()
                    with pytest.raises(ConnectionLostError, match="before a reply came"):
                        await waiting
                else:
                    waiting.cancel()
                    await asyncio.wait([waiting])
                assert asking._requests is not None
                assert asking._requests._waiting == {}
            with pytest.raises(LifecycleError):
                await asking.request(topic, b"x")
            with pytest.raises(ConfigError, match="is not a request"):
                await replier.reply(replace(asked[0], properties={}), b"x")
            with pytest.raises(ConfigError, match="not allowed"):
                await replier.request("%no such", b"x")

    with new_topic(name_server, 2) as topic:
        run(story)


def test_a_request_that_nobody_awaits_is_called_back_once(name_server: str) -> None:
    """With the reply, with an error in time, and with one by the close; what raises, or is refused, harms no other."""

    async def story() -> None:
        replier = AsyncProducer(RUNTIME, name_server, "repliers")
        silent = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            if messages[0].body == SILENT:
                silent.set()
            else:
                await replier.reply(messages[0], messages[0].body[::-1])
            return ConsumeStatus.SUCCESS

        def failing(_outcome: ReceivedMessage | ClientError) -> None:
            raise ValueError("a callback's own")

        service = AsyncPushConsumer(RUNTIME, name_server, config(), listen)
        service.subscribe(topic)
        asking = AsyncProducer(RUNTIME, name_server, "askers")
        told: asyncio.Queue[ReceivedMessage | ClientError] = asyncio.Queue()
        async with replier, service:
            asking.request_async(topic, OutgoingMessage(b"x"), failing, timeout_s=10.0)
            for number in range(10, 20):
                asking.request_async(topic, OutgoingMessage(b"%d" % number), told.put_nowait, timeout_s=10.0)
            outcomes = [await told.get() for _number in range(10)]
            replies = {outcome.body for outcome in outcomes if isinstance(outcome, ReceivedMessage)}
            assert replies == {(b"%d" % number)[::-1] for number in range(10, 20)}
            asking.request_async(topic, OutgoingMessage(SILENT), told.put_nowait, timeout_s=0.1)
            assert isinstance(await told.get(), ReplyTimeoutError)
            for wrong in ({"KEYS": "reserved for the client"}, {"": "no name"}):
                with pytest.raises(ConfigError):
                    asking.request_async(topic, OutgoingMessage(b"x", properties=wrong), told.put_nowait)
            silent.clear()
            asking.request_async(topic, OutgoingMessage(SILENT), told.put_nowait, timeout_s=10.0)
            await silent.wait()
            await asking.close()
            assert isinstance(told.get_nowait(), ConnectionLostError)
            with pytest.raises(LifecycleError):
                asking.request_async(topic, OutgoingMessage(b"x"), told.put_nowait)
            assert told.empty()

    with new_topic(name_server, 2) as topic:
        run(story)


def test_a_request_of_a_thread_is_answered_from_a_loop(name_server: str) -> None:
    """Both kinds of client speak of the same thing."""

    async def story() -> None:
        async def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            await replier.reply(messages[0], b"to " + messages[0].body)
            return ConsumeStatus.SUCCESS

        replier = AsyncProducer(RUNTIME, name_server)
        service = AsyncPushConsumer(RUNTIME, name_server, config(), listen)
        service.subscribe(topic)
        async with replier, service:
            with Producer(RUNTIME, name_server, "askers") as asking:
                reply = await asyncio.to_thread(asking.request, topic, b"you", timeout_s=10.0)
        assert reply.body == b"to you"

    with new_topic(name_server, 2) as topic:
        run(story)
