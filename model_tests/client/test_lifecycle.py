"""Clients leave nothing behind after a start, a close, an interrupted close, or garbage collection."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from queue import SimpleQueue
from typing import Any

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic, share_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import (
    RUNTIME,
    Clients,
    Heard,
    client_threads,
    consumed,
    from_first,
    run,
    send,
    socket_count,
)

from longpoll_client import (
    Admin,
    AsyncProducer,
    AsyncPushConsumer,
    ConfigError,
    LifecycleError,
    LongpollError,
    MessageQueue,
    NoRouteError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SendResult,
    TransactionProducer,
    TransactionState,
    remoting,
)
from longpoll_client.consume import group_member
from longpoll_client.lifecycle import Closing, State
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime.threads import RealThread


@pytest.fixture
def topic(name_server: str) -> Iterator[str]:
    with new_topic(name_server, 1) as made:
        with Producer(name_server) as producer:
            producer.send(made, b"x")
        yield made


def config(**options: object) -> MemberConfig:
    return MemberConfig(group=f"G-{uuid.uuid4().hex}", start_at="first", **options)  # type: ignore[arg-type]


def assert_over(consumer: PushConsumer, before: set[threading.Thread]) -> None:
    assert consumer._member.lifecycle.state is State.CLOSED
    wait_until(lambda: client_threads() <= before)
    with pytest.raises(LifecycleError, match="closed; create a new one"):
        consumer.start()


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_listener_may_close_its_consumer(name_server: str, topic: str, is_orderly: bool) -> None:
    """The listener's result counts, no thread of the member is left, and the next member continues at once.

    Callbacks get the topic's queue, and not that of the group's retry topic.
    """
    before, options = client_threads(), {**member_options(config()), "topics": topic, "orderly": is_orderly}
    closed, shares = threading.Event(), list[str]()

    def close(_message: ReceivedMessage) -> None:
        own.close()
        closed.set()

    told = share_options(lambda queue, _is_ours: shares.append(queue.topic))
    own = PushConsumer(name_server, listener=Heard(close), **options, **told)
    own.start()
    assert closed.wait(PATIENCE_S)
    assert_over(own, before)
    assert shares == [topic]
    send(name_server, topic, b"y")
    heard = Heard()
    with PushConsumer(name_server, listener=heard, **options):
        assert heard.wait(1) == [b"y"]
    wait_until(lambda: client_threads() <= before)


def let_the_timer_share(consumer: PushConsumer) -> None:
    """Change the group so that the timer's thread rebalances too.

    The timer's thread must not wait for the closing thread.
    """
    passed = threading.Event()
    member = consumer._member
    assert member.broker_requests.requested(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0, 0), "")
    member._timer.after(0.0, passed.set)
    assert passed.wait(PATIENCE_S), "the timer's thread waits for the closing thread"


@pytest.mark.parametrize("ours", [True, False])
def test_an_assignment_callback_may_close_its_consumer(name_server: str, topic: str, ours: bool) -> None:
    """A callback about assigned queues may close its consumer on any thread, and then no queue is started."""
    before, closed = client_threads(), threading.Event()

    def share(_queue: MessageQueue, is_ours: bool) -> None:
        if is_ours is ours:
            timer = member._timer._thread
            if timer is None or not timer.is_current():
                let_the_timer_share(consumer)
            consumer.close()
            closed.set()

    options = {**member_options(config()), **share_options(share)}
    consumer = PushConsumer(name_server, topics=topic, listener=consumed, **options)
    member = consumer._member
    consumer.start()
    if not ours:
        # The queues go to another member as soon as the group changes.
        member.soon(lambda: member.rebalancer.lose(member.queues))
    assert closed.wait(PATIENCE_S)
    assert_over(consumer, before)
    assert consumer.queues == () or ours


def test_a_check_may_close_its_producer(name_server: str, topic: str) -> None:
    """A transaction check runs on the timer's thread, and a close in the check must not wait for this thread."""
    before, closed = client_threads(), threading.Event()
    producer = TransactionProducer(
        name_server, group="sellers", check_transaction=lambda _message: TransactionState.UNKNOWN
    )

    def close() -> None:
        producer.close()
        closed.set()

    producer.send(topic, b"x", lambda: TransactionState.COMMIT)
    producer._timer.after(0.0, close)
    assert closed.wait(PATIENCE_S)
    producer.close()
    wait_until(lambda: client_threads() <= before)
    with pytest.raises(LifecycleError):
        producer.send(topic, b"y", lambda: TransactionState.COMMIT)


def test_a_failed_start_can_be_repeated(name_server: str) -> None:
    """A second start succeeds when the missing part is there, and starts no thread twice."""
    before = client_threads()
    name = f"late-{uuid.uuid4().hex}"
    with closing(
        PushConsumer(name_server, topics=name, listener=consumed, **member_options(config(waits_for_topics=False)))
    ) as consumer:
        with pytest.raises(NoRouteError, match="is unknown to the name server"):
            consumer.start()
        with Producer(name_server) as producer:
            producer.send(name, b"x")
        consumer._member._instance.forget_route(name)
        consumer.start()
        wait_until(lambda: consumer.statistics.get(name) is not None and consumer.statistics[name].consumed_count == 1)
        with pytest.raises(LifecycleError, match="already started"):
            consumer.start()
        listeners = [each for each in client_threads() - before if each.name.startswith("listener-")]
        assert len(listeners) == 4
    wait_until(lambda: client_threads() <= before)


@pytest.mark.parametrize("kind", ["push", "pull", "%DLQ%", "%RETRY%"])
def test_a_consumer_waits_for_a_topic_that_is_created_later(
    clients: Clients, topic: str, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A waiting consumer reads its other topics. A consumer always waits for topics that brokers create."""
    monkeypatch.setattr(group_member, "RETRY_S", 0.02)
    is_push, prefix = kind == "push", kind if kind.startswith("%") else ""
    late, heard = f"{prefix}late-{uuid.uuid4().hex}", Heard()
    made = config(waits_for_topics=not prefix)
    consumer = clients.push(made, heard) if is_push else clients.pull(made)

    def came(body: bytes) -> bool:
        if not is_push:
            heard.messages += consumer.poll(0.01)
        return body in heard.bodies

    consumer.subscribe(topic)
    consumer.subscribe(late)
    consumer.start()
    wait_until(lambda: came(b"x"))
    clients.producer().send(late, b"late")
    wait_until(lambda: came(b"late"))
    assert f"waits for its topic: topic '{late}' is unknown to the name server" in caplog.text


@pytest.mark.parametrize("kind", ["push", "orderly", "pull"])
def test_a_call_that_does_not_fit_the_state_is_refused(clients: Clients, topic: str, kind: str) -> None:
    """Before the start and after the close a call is refused if it needs a running client; no thread is left."""
    before = client_threads()
    is_pull = kind == "pull"
    made = clients.pull(config()) if is_pull else clients.push(config(), consumed, is_orderly=kind == "orderly")
    polls: list[Callable[[], object]] = [lambda: made.poll(0.0, 1), made.commit] if is_pull else []

    def refused(*calls: Callable[[], object]) -> None:
        for call in calls:
            with pytest.raises(LifecycleError, match=r"start|closed; create a new one"):
                call()

    refused(*polls)
    with pytest.raises(ConfigError, match="pass topics, or call assign before start"):
        made.start()
    made.subscribe(topic)
    made.start()
    refused(made.start)
    for poll in polls:
        poll()
    assert (isinstance(made.queues, tuple), made.statistics is not None) == (True, True)
    closer = RUNTIME.spawn("closer", made.close)
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    made.close()
    refused(lambda: made.subscribe(topic), made.start, *polls)
    wait_until(lambda: client_threads() <= before)


@pytest.fixture
def empty_topic(name_server: str) -> Iterator[str]:
    """A topic with two queues and no message."""
    with new_topic(name_server, 2) as made:
        yield made


TURNS = 30
"""A number of event loop iterations that exceeds the iterations of a close."""


def running(kind: str, clients: Clients, topic: str) -> Any:
    """Return a started client of this kind that has connections."""
    if kind == "push":
        return clients.pushing(topic, consumed, group=kind)
    if kind == "pull":
        return clients.pulling(topic, group=kind)
    if kind == "producer":
        producer = clients.producer()
        producer.send(topic, b"x")
        return producer
    seller = clients.transactions(lambda _message: TransactionState.COMMIT)
    seller.send(topic, b"x", clients.plain(lambda: TransactionState.COMMIT))
    return seller


@pytest.mark.parametrize("kind", ["producer", "transactions", "push", "pull"])
def test_a_close_may_be_cancelled_at_every_await(name_server: str, empty_topic: str, kind: str) -> None:
    """After a cancellation the close continues, a second close waits for it, and a third has nothing to do."""

    async def close(client: Any, turns: int) -> None:
        closing = asyncio.create_task(client.close())
        for _turn in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await client.close()
        await client.close()

    with ExitStack() as stack:
        clients = Clients(name_server, stack, is_loop=True)
        for turns in range(0, TURNS, 3):
            before = socket_count()
            client = running(kind, clients, empty_topic)
            assert socket_count() > before
            clients.call(close, client.client, turns)
            wait_until(lambda: socket_count() <= before)  # noqa: B023 - it is called at once


def test_a_listener_that_ignores_cancellation_does_not_delay_a_close(
    name_server: str, empty_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener that ignores its cancellation is left behind, as on threads, and the log reports it."""

    async def story() -> None:
        heard, let_go = asyncio.Event(), asyncio.Event()

        async def deaf(_messages: Sequence[ReceivedMessage]) -> Retry | None:
            heard.set()
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            return None

        consumer = AsyncPushConsumer(
            name_server, topics=empty_topic, listener=deaf, **member_options(from_first("deaf", close_timeout_s=0.05))
        )
        async with AsyncProducer(name_server) as producer:
            await producer.send(empty_topic, b"x")
        await consumer.start()
        await heard.wait()
        await consumer.close()
        let_go.set()
        await asyncio.gather(*consumer._working, return_exceptions=True)

    run(story)
    assert "are left behind" in caplog.text


def test_a_second_close_waits_for_a_listeners_close(name_server: str, empty_topic: str) -> None:
    """A second close, such as the end of a `with`, waits until the offsets of the listener's messages are stored."""

    async def story() -> None:
        closed = asyncio.Event()

        async def closes(_messages: Sequence[ReceivedMessage]) -> Retry | None:
            await consumer.close()
            closed.set()
            await asyncio.sleep(0)
            return None

        consumer = AsyncPushConsumer(
            name_server, topics=empty_topic, listener=closes, **member_options(from_first("closes"))
        )
        async with AsyncProducer(name_server) as producer, consumer:
            await producer.send(empty_topic, b"x", queue_id=0)
            await closed.wait()

    run(story)
    with Admin(name_server) as admin:
        assert sum(row.lag for row in admin.offsets("closes", [empty_topic])) == 0


def test_a_close_whose_event_loop_was_closed_starts_again() -> None:
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


@pytest.mark.parametrize("kind", ["push", "pull", "transactions"])
def test_an_interrupted_close_is_continued_by_the_next_close(
    name_server: str, empty_topic: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C at any wait of a close the next close does the rest, and no thread or connection is left."""
    before = threading.active_count(), socket_count()
    honest, waits = RealThread.join, list[int]()

    def join(thread: RealThread, timeout: float | None = None) -> None:
        waits.append(1)
        if len(waits) == number:
            raise KeyboardInterrupt
        honest(thread, timeout)

    interrupted, stack = 0, ExitStack()
    clients = Clients(name_server, stack, is_loop=False)
    for number in range(1, 9):  # noqa: B007 - `join` looks at it
        send(name_server, empty_topic, b"x")
        client = running(kind, clients, empty_topic)
        waits.clear()
        with monkeypatch.context() as patched:
            patched.setattr(RealThread, "join", join)
            try:
                client.close()
            except KeyboardInterrupt:
                interrupted += 1
        client.close()
        client.close()
        wait_until(lambda: (threading.active_count(), socket_count()) <= before)
    stack.close()
    assert interrupted >= 2


@pytest.fixture(autouse=True)
def none_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait until every thread of the test's clients has ended, before the patches of the test are undone."""
    assert monkeypatch is not None
    before = set(threading.enumerate())
    yield
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_a_garbage_collected_producer_ends(name_server: str, topic: str) -> None:
    """A producer that was not closed warns like an open file and ends; each of its sends still gets one result."""
    told: SimpleQueue[SendResult | LongpollError] = SimpleQueue()
    producer = Producer(name_server)
    before = set(threading.enumerate())
    for _number in range(100):
        producer.send_nowait(topic, b"body", callback=told.put)
    assert set(threading.enumerate()) > before
    with pytest.warns(ResourceWarning, match="a producer of group longpoll-producer was dropped and not closed"):
        del producer
    assert [type(told.get(timeout=PATIENCE_S)) for _number in range(100)] == [SendResult] * 100
    assert told.empty()


def test_a_garbage_collected_producer_with_requests_ends(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer of a producer with requests checks at each heartbeat whether the producer still exists."""
    monkeypatch.setattr("longpoll_client.produce.requests.HEARTBEAT_S", 0.01)
    producer = Producer(name_server)
    producer.request_nowait(topic, b"anybody?", callback=lambda _reply: None, timeout_s=PATIENCE_S)
    instance = producer._instance
    with pytest.warns(ResourceWarning, match="dropped"):
        del producer
    assert instance.is_abandoned


def test_a_garbage_collected_admin_ends(name_server: str) -> None:
    """An `Admin` that was not closed ends with a warning too."""
    admin = Admin(name_server)
    assert admin.topic_names() is not None
    with pytest.warns(ResourceWarning, match="an Admin was dropped"):
        del admin


def test_a_producer_may_be_collected_on_a_thread_that_has_its_lock(
    name_server: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may run on a thread that has the client's lock; the connection still ends."""
    monkeypatch.setattr(remoting, "LOCK_WAIT_S", 0.01)
    producer = Producer(name_server)
    producer.send(topic, b"body")
    instance = producer._instance
    client = next(iter(instance._clients.values()))
    with client._lock, pytest.warns(ResourceWarning, match="dropped"):
        del producer
    assert client.is_open
    client.call(105, timeout_s=PATIENCE_S)
    wait_until(lambda: not client.is_open)
