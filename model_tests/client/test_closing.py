"""A close that is cancelled, interrupted or held up by a listener is gone on with: nothing of a client is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import (
    Admin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ConsumerConfig,
    ConsumeStatus,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartAt,
    TransactionProducer,
    TransactionState,
)
from longpoll_client.lifecycle import Closing
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.threads import RealThread

RUNTIME = RealRuntime()
PATIENCE_S = 20.0
TURNS = 30
"""More than a close takes."""


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The name server of an embedded broker."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        yield "{}:{}".format(*broker.name_server_address)


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    """Two queues."""
    with new_topic(name_server, 2) as topic:
        yield topic


def connections() -> int:
    """Sockets that this process has."""
    return sum(1 for one in Path("/proc/self/fd").iterdir() if is_socket(one))


def is_socket(descriptor: Path) -> bool:
    """Whether it is one, if it is still there."""
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except OSError:
        return False


def config(group: str, **options: Any) -> ConsumerConfig:
    """A group's, from the first message on."""
    return ConsumerConfig(group, start_at=StartAt.FIRST, **options)


async def consumed(_messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
    """A listener."""
    return ConsumeStatus.SUCCESS


async def committed(_message: ReceivedMessage) -> TransactionState:
    """A check."""
    return TransactionState.COMMIT


async def running(kind: str, name_server: str, topic: str) -> Any:
    """A client of this kind that has connections."""
    if kind in {"producer", "transactions"}:
        producer = (
            AsyncProducer(RUNTIME, name_server)
            if kind == "producer"
            else AsyncTransactionProducer(RUNTIME, name_server, "sellers", committed)
        )
        if isinstance(producer, AsyncProducer):
            await producer.send(topic, b"x")
        else:
            await producer.send(topic, b"x", lambda: committed(None))  # type: ignore[arg-type] # it does not look
        return producer
    consumer: AsyncPushConsumer | AsyncPullConsumer = (
        AsyncPushConsumer(RUNTIME, name_server, config(kind), consumed)
        if kind == "push"
        else AsyncPullConsumer(RUNTIME, name_server, config(kind))
    )
    consumer.subscribe(topic)
    await consumer.start()
    return consumer


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Tell a story, of which no task is left."""

    async def told() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(told())


@pytest.mark.parametrize("kind", ["producer", "transactions", "push", "pull"])
def test_a_close_may_be_cancelled_at_every_await(name_server: str, topic: str, kind: str) -> None:
    """It goes on all the same, the second one waits for that, and a third has nothing to do."""

    async def story() -> None:
        for turns in range(0, TURNS, 3):
            before = connections()
            client = await running(kind, name_server, topic)
            assert connections() > before
            closing = asyncio.create_task(client.close())
            for _turn in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await client.close()
            await client.close()
            wait_until(lambda: connections() <= before)  # noqa: B023 - it is called at once

    run(story)


def test_a_listener_that_is_not_to_be_cancelled_holds_no_close_up(
    name_server: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left behind, as on threads, and the log says so."""

    async def story() -> None:
        heard, let_go = asyncio.Event(), asyncio.Event()

        async def deaf(_messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            heard.set()
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return ConsumeStatus.SUCCESS

        consumer = AsyncPushConsumer(RUNTIME, name_server, config("deaf", close_timeout_s=0.05), deaf)
        consumer.subscribe(topic)
        async with AsyncProducer(RUNTIME, name_server) as producer:
            await producer.send(topic, b"x")
        await consumer.start()
        await heard.wait()
        await consumer.close()
        let_go.set()
        await asyncio.gather(*consumer._working, return_exceptions=True)

    run(story)
    assert "are left behind" in caplog.text


def test_who_closes_after_a_listener_did_waits_until_it_is_done(name_server: str, topic: str) -> None:
    """The end of a `with`, most likely: what the listener has consumed is stored by then."""

    async def story() -> None:
        closed = asyncio.Event()

        async def closes(_messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            await consumer.close()
            closed.set()
            await asyncio.sleep(0)
            return ConsumeStatus.SUCCESS

        consumer = AsyncPushConsumer(RUNTIME, name_server, config("closes"), closes)
        consumer.subscribe(topic)
        async with AsyncProducer(RUNTIME, name_server) as producer, consumer:
            await producer.send(topic, b"x", queue_id=0)
            await closed.wait()

    run(story)
    with Admin(RUNTIME, name_server) as admin:
        assert sum(row.lag for row in admin.offsets("closes", [topic])) == 0


def test_a_close_whose_loop_was_closed_is_begun_anew() -> None:
    """What it was to do was cancelled with that loop, so it is done by the next."""
    closing, done = Closing(), list[str]()

    async def work() -> None:
        done.append("begun")
        if len(done) == 1:
            await asyncio.Event().wait()
        done.append("ended")

    async def given_up() -> None:
        closing.begin(work)
        await asyncio.sleep(0)

    asyncio.run(given_up())
    asyncio.run(closing.wait(work))
    asyncio.run(closing.wait(work))
    assert done == ["begun", "begun", "ended"]


def made(kind: str, name_server: str, topic: str) -> PushConsumer | PullConsumer | TransactionProducer:
    """A client on threads that runs."""
    if kind == "transactions":
        seller = TransactionProducer(RUNTIME, name_server, "sellers", lambda _message: TransactionState.COMMIT)
        seller.send(topic, b"x", lambda: TransactionState.COMMIT)
        return seller
    consumer: PushConsumer | PullConsumer = (
        PushConsumer(RUNTIME, name_server, config(kind), lambda _messages: ConsumeStatus.SUCCESS)
        if kind == "push"
        else PullConsumer(RUNTIME, name_server, config(kind))
    )
    consumer.subscribe(topic)
    consumer.start()
    return consumer


@pytest.mark.parametrize("kind", ["push", "pull", "transactions"])
def test_a_close_that_is_interrupted_is_gone_on_with(
    name_server: str, topic: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at each of its waits: the next close does the rest, and no thread and no connection is left."""
    before = threading.active_count(), connections()
    honest, waits = RealThread.join, list[int]()

    def join(thread: RealThread, timeout: float | None = None) -> None:
        waits.append(1)
        if len(waits) == number:
            raise KeyboardInterrupt
        honest(thread, timeout)

    interrupted = 0
    for number in range(1, 9):  # noqa: B007 - `join` looks at it
        with Producer(RUNTIME, name_server) as producer:
            producer.send(topic, b"x")
        client = made(kind, name_server, topic)
        waits.clear()
        with monkeypatch.context() as patched:
            patched.setattr(RealThread, "join", join)
            try:
                client.close()
            except KeyboardInterrupt:
                interrupted += 1
        client.close()
        client.close()
        wait_until(lambda: (threading.active_count(), connections()) <= before)
    assert interrupted >= 2
