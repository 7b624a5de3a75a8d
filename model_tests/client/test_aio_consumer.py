"""Consumers on an event loop: polling, control, administrators, hooks, and broadcasting."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options, new_topic, send_numbered
from model_tests.support.broker.raw_client import PATIENCE_S, RawClient
from model_tests.support.client import (
    BAD,
    QUEUE,
    RUNTIME,
    Clients,
    Heard,
    Told,
    fill,
    from_first,
    lag,
    name_server_of,
    run,
    send,
)

from longpoll_broker.broker import Broker
from longpoll_client import (
    Admin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ConfigError,
    LifecycleError,
    MessageModel,
    MessageQueue,
    PullConsumer,
    ReceivedMessage,
    Retry,
)
from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.consume.offsets import LocalOffsets
from longpoll_client.link.steps import Call, Steps
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import RequestCode
from longpoll_runtime import Buffer
from longpoll_runtime.files import RealFiles


@pytest.fixture
def name_server(broker: Broker) -> str:
    """Start a broker for this test alone, because every test uses the same group; returns its name server."""
    return name_server_of(broker)


def test_a_poll_may_be_cancelled_at_any_time_and_a_close_ends_it(name_server: str) -> None:
    """The next poll returns the messages of a cancelled poll, and an iteration ends when its consumer is closed."""

    async def story() -> None:
        consumer = AsyncPullConsumer(name_server, topics=topic, **member_options(from_first(rebalance_s=0.2)))
        async with consumer:
            sending = asyncio.create_task(fill(name_server, topic, 30))
            seen: list[int] = []
            while len(seen) < 30:
                polling = asyncio.create_task(consumer.poll(PATIENCE_S, 1))
                await asyncio.wait([polling], timeout=0.001)
                if not polling.done():
                    polling.cancel()
                with suppress(asyncio.CancelledError):
                    seen += [int(message.body) for message in await polling]
            await sending
            assert sorted(seen) == list(range(30))
            assert await consumer.poll(0.0) == []
            await fill(name_server, topic, 1)
            async for message in consumer:
                assert message.body == b"0"
                break

            async def iterate() -> None:
                async for _message in consumer:
                    raise AssertionError("nothing more was sent")

            iterating = asyncio.create_task(iterate())
            await asyncio.sleep(0)
            await consumer.close()
            await iterating

    with new_topic(name_server, 2) as topic:
        run(story)


def test_a_listener_may_raise_hang_retry_and_close(name_server: str, caplog: pytest.LogCaptureFixture) -> None:
    """Hooks get the results of the listener. A close in a listener waits for the listener's own result."""
    hook = Told()

    async def story() -> None:
        closed = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> Retry | None:
            body = messages[0].body
            if body == b"0":
                assert isinstance(messages, list)
                messages.clear()  # A listener may change the list that it gets.
                raise ValueError("mistake")
            if body == b"1":
                await asyncio.sleep(PATIENCE_S)
            if body == b"2":
                raise Retry
            await consumer.close()
            closed.set()
            return None

        options = from_first(rebalance_s=0.2, consume_timeout_s=0.1, thread_count=1, persist_s=0.05, hooks=[hook])
        consumer = AsyncPushConsumer(name_server, topics=topic, listener=listen, **member_options(options))
        async with AsyncProducer(name_server) as producer:
            for number in range(4):
                await producer.send(topic, b"%d" % number)
        await consumer.start()
        await closed.wait()
        await consumer.close()
        with pytest.raises(LifecycleError):
            await consumer.start()

    with new_topic(name_server, 1) as topic:
        run(story)
        assert lag(name_server, topic) == 0
    assert [words in caplog.text for words in ("ValueError('mistake')", "is cancelled", "Retry")] == [True, True, False]
    ended = [event for event in hook.events if event[0] == "after"]
    assert [type(event[4]) for event in ended] == [ValueError, TimeoutError, type(None), type(None)]
    assert [event[5] for event in ended] == [False, False, False, True]


def test_administrators_are_answered(clients: Clients, broker: Broker, topic: str) -> None:
    """The consumer answers requests for its state, to consume one message, and to reset offsets (307, 309 and 220)."""
    heard = Heard()
    send(clients.name_server, topic, b"0", b"1", b"2")
    consumer = clients.pushing(topic, heard, rebalance_s=0.2)
    assert sorted(heard.wait(3)) == [b"0", b"1", b"2"]
    member = clients.member(consumer)
    queue = next(queue for queue in consumer.queues if queue.topic == topic)
    fields = {"consumerGroup": "G", "clientId": member.client_id}
    with RawClient(broker.address) as client:
        answer = client.call(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        assert answer.code == 0
        assert b'"consumeOKTPS"' in bytes(answer.body)
        clients.call(member.reset_soon, {queue: 1})
        assert heard.wait(5)[3:] == [b"1", b"2"]
        sent = clients.producer().send(topic, b"3")
        assert heard.wait(6)[5:] == [b"3"]
        answer = client.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields | {"msgId": sent.broker_msg_id})
        assert b"CR_SUCCESS" in bytes(answer.body)
    assert heard.bodies[6:] == [b"3"]


def broadcast(topic: str, file: Path | None = None, **options: object) -> MemberConfig:
    """Return a broadcasting member of the topic's group, which starts at the first message by default."""
    told = {"start_at": "first", "offsets_file": None if file is None else str(file), **options}
    return MemberConfig(group=f"G-{topic}", message_model=MessageModel.BROADCASTING, **told)  # type: ignore[arg-type]


def numbers(clients: Clients, topic: str, member: MemberConfig, count: int) -> list[int]:
    consumer = clients.pulling(topic, member)
    assert [queue.topic for queue in consumer.queues] == [topic]
    found: list[int] = []
    while len(found) < count:
        found += [int(message.body) for message in consumer.poll(PATIENCE_S)]
    consumer.commit()
    clients.persist(consumer)
    assert consumer.committed(consumer.queues[0]) == found[-1] + 1
    consumer.close()
    return found


def test_each_broadcast_member_gets_everything_and_continues_from_its_file(
    clients: Clients, name_server: str, topic: str, tmp_path: Path
) -> None:
    """A consumer with a file continues where it stopped, and a consumer without a file begins again.

    The broker stores no offset of either consumer.
    """
    file = tmp_path / "offsets.json"
    send_numbered(name_server, topic, 20)
    members = [
        broadcast(topic, file, batch_count_max=5, cached_count_max=5),
        broadcast(topic, client_id="another@host#1"),
        broadcast(topic, client_id="another@host#1"),
    ]
    assert [numbers(clients, topic, member, 20) for member in members] == [list(range(20))] * 3
    entry = {"brokerName": "longpoll", "topic": topic, "queueId": 0, "offset": 20}
    (kept,) = msgspec.json.decode(file.read_bytes())
    assert kept | {"brokerName": "longpoll"} == entry
    with Admin(name_server) as admin:
        assert {row.stored for row in admin.offsets(f"G-{topic}", [topic])} <= {None, 0}
    send(name_server, topic, b"20")
    with PullConsumer(name_server, topics=topic, **member_options(broadcast(topic, file))) as consumer:
        assert [message.body for message in consumer.poll(PATIENCE_S)] == [b"20"]


def test_a_member_that_started_at_the_end_continues_from_there(clients: Clients, topic: str, tmp_path: Path) -> None:
    """The next run of the member gets the messages sent in between, even if the first run consumed none."""
    member = broadcast(topic, tmp_path / "offsets.json", start_at="last")
    send(clients.name_server, topic, b"before")
    for is_back in (False, True):
        consumer = clients.pulling(topic, member)
        if is_back:
            assert [message.body for message in consumer.poll(PATIENCE_S)] == [b"meanwhile"]
        consumer.close()
        send(clients.name_server, topic, b"meanwhile")


@pytest.mark.parametrize("is_orderly", [False, True])
def test_a_broadcasting_member_sends_nothing_back(
    clients: Clients, topic: str, caplog: pytest.LogCaptureFixture, is_orderly: bool
) -> None:
    """Deferred messages are logged or retried locally, and unreadable ones are skipped."""
    send(clients.name_server, topic, b"late", BAD, b"good")
    heard = Heard(lambda _message: Retry() if heard.bodies == [b"late"] else None)
    member = broadcast(topic, suspend_s=0.01, max_attempts=1)
    with caplog.at_level(logging.WARNING):
        consumer = clients.pushing(topic, heard, member, is_orderly=is_orderly)
        wait_until(lambda: b"good" in heard.bodies)
        assert [queue.topic for queue in consumer.queues] == [topic]
        consumer.close()
    assert heard.bodies == [b"late", *[b"late"] * is_orderly, b"good"]
    counts = consumer.statistics[topic]
    assert (counts.sent_back_count, counts.unreadable_count) == (0, 1)
    assert ("does not come again" in caplog.text) is not is_orderly
    assert f"{topic} queue 0 offset 1 is unreadable and is skipped" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{}", b'[{"topic":1}]', b"\xff", b"[" * 10_000])
def test_a_damaged_file_is_named(name_server: str, tmp_path: Path, content: bytes) -> None:
    """A damaged file is named in the error and not overwritten, so a user can repair its offsets."""
    file = tmp_path / "offsets.json"
    file.write_bytes(content)
    for kind in (PullConsumer, AsyncPullConsumer):
        with pytest.raises(ConfigError, match=r"offsets file .* fix it"):
            kind(name_server, **member_options(broadcast("T", file)))
    assert file.read_bytes() == content


def test_offsets_that_cannot_be_stored_are_reported(
    clients: Clients, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If offsets cannot be stored, the consumer logs this and continues."""
    folder = tmp_path / "folder"
    folder.mkdir()
    send(clients.name_server, topic, b"1", b"2")
    consumer = clients.pulling(topic, broadcast(topic, folder / "offsets.json", persist_s=3600.0))
    assert [message.body for message in consumer.poll(PATIENCE_S, 1)] == [b"1"]
    shutil.rmtree(folder)
    consumer.commit(sync=False)
    with pytest.raises(ConfigError, match="cannot be written"):
        consumer.commit(**({} if clients.is_loop else {"sync": True}))
    assert f"offset of {topic} queue 0" in caplog.text
    assert [message.body for message in consumer.poll(PATIENCE_S, 1)] == [b"2"]
    folder.mkdir()


class Slow(RealFiles):
    """Files whose writes wait for permission and fail on request."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.writing = self.most_at_once = 0
        self.failures = 0
        self.written: list[bytes] = []

    def write_atomic(self, path: str, content: Buffer) -> None:
        self.writing += 1
        self.most_at_once = max(self.most_at_once, self.writing)
        self.begun.set()
        assert self.goes_on.wait(PATIENCE_S)
        self.writing -= 1
        if self.failures:
            self.failures -= 1
            raise OSError("the disk is full")
        self.written.append(bytes(content))
        super().write_atomic(path, content)


class Places:
    """The offsets of a broadcasting member on an event loop."""

    def __init__(self, files: RealFiles, path: Path) -> None:
        self.instance = AsyncInstance(RUNTIME, "127.0.0.1:1")
        self._offsets = LocalOffsets(files, str(path), "first")

    async def store(self, queue: MessageQueue, offset: int) -> None:
        await self.instance.run(self._offsets.store(queue, offset))

    async def stored(self, queue: MessageQueue) -> int | None:
        return await self.instance.run(self._offsets.stored(queue))


def offsets_of(content: bytes) -> list[int]:
    return [entry["offset"] for entry in msgspec.json.decode(content)]


def test_a_cancelled_store_does_not_overwrite_a_later_one(tmp_path: Path) -> None:
    """A cancelled store cannot stop its thread, and this thread must not overwrite a later store."""
    files = Slow()

    async def story() -> None:
        places = Places(files, tmp_path / "offsets.json")
        first = asyncio.create_task(places.store(QUEUE, 1))
        await asyncio.to_thread(files.begun.wait, PATIENCE_S)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(places.store(QUEUE, 2))
        for _turn in range(3):
            await asyncio.sleep(0)
        files.goes_on.set()
        await second
        await places.instance.written()

    run(story)
    assert (offsets_of((tmp_path / "offsets.json").read_bytes()), files.most_at_once) == ([2], 1)


def test_a_failed_write_of_offsets_is_retried(tmp_path: Path) -> None:
    """A failed write is retried the next time, also if no offset has moved since."""
    files = Slow()
    files.goes_on.set()
    files.failures = 1
    path = tmp_path / "offsets.json"

    async def story() -> None:
        places = Places(files, path)
        with pytest.raises(ConfigError, match="the disk is full"):
            await places.store(QUEUE, 7)
        await places.store(QUEUE, 7)
        await places.store(QUEUE, 7)

    run(story)
    assert [offsets_of(content) for content in files.written] == [[7]]
    assert asyncio.run(Places(files, path).stored(QUEUE)) == 7


def test_a_consumer_that_is_closed_at_once_causes_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    """The consumer is closed while it starts an action."""

    async def story() -> None:
        instance = AsyncInstance(RUNTIME, "127.0.0.1:1")
        instance.begin(asyncio.sleep(0))
        await instance.end_jobs()
        instance.begin(asyncio.sleep(0))

    run(story)
    gc.collect()
    assert [str(warned.message) for warned in recwarn] == []


def test_a_close_waits_for_an_exchange_about_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange could otherwise store an offset or take a lock after the close."""
    done: list[str] = []

    async def story() -> None:
        answered = asyncio.Event()
        member = AsyncPullConsumer("127.0.0.1:1", group="G")._member

        def noted(name: str, work: Callable[[], object]) -> Steps[None]:
            yield Call(work)
            done.append(name)

        monkeypatch.setattr(member, "leave", lambda: noted("leave", lambda: None))
        member.soon(lambda: noted("exchange", answered.wait), rebalances=True)
        closing = asyncio.create_task(member.close())
        for _turn in range(10):
            await asyncio.sleep(0)
        answered.set()
        await closing

    run(story)
    assert done == ["exchange", "leave"]
