"""Members that are broadcast to, on an event loop: each gets every message and keeps by itself where it stands.

What a file keeps is tried on threads as well: both have the same one.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from model_tests.client.test_aio_consumer import fill, run
from model_tests.client.test_unreadable import BAD, send

from longpoll_client import (
    Admin,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ConsumerConfig,
    ConsumeStatus,
    MessageModel,
    MessageQueue,
    PullConsumer,
    ReceivedMessage,
    StartAt,
)
from longpoll_client.aio.group import GroupCalls, LoopReach
from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.aio.places import BrokerPlaces, FilePlaces
from longpoll_client.errors import RefusedError
from longpoll_client.offsets import OffsetsFile
from longpoll_protocol.bodies import ConsumeType
from longpoll_protocol.codes import ResponseCode
from longpoll_runtime import Buffer
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME = RealRuntime()
PATIENCE_S = 20.0
QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=0)


def config(topic: str, file: Path | None = None, **options: object) -> ConsumerConfig:
    """A member of the topic's group, of the first message on if it does not say."""
    told = {"start_at": StartAt.FIRST, "offsets_file": None if file is None else str(file), **options}
    return ConsumerConfig(f"G-{topic}", message_model=MessageModel.BROADCASTING, **told)  # type: ignore[arg-type]


async def numbers(name_server: str, topic: str, member: ConsumerConfig, count: int) -> list[int]:
    """The bodies that a member polls, until it has so many."""
    consumer = AsyncPullConsumer(RUNTIME, name_server, member)
    consumer.subscribe(topic)
    found: list[int] = []
    async with consumer:
        assert [queue.topic for queue in consumer.queues] == [topic]
        while len(found) < count:
            found += [int(message.body) for message in await consumer.poll(PATIENCE_S)]
        await consumer.commit()
        await consumer._member._persist()
        assert await consumer.committed(consumer.queues[0]) == found[-1] + 1
    return found


def test_each_gets_everything_and_goes_on_from_its_file(name_server: str, topic: str, tmp_path: Path) -> None:
    """One that has a file goes on, also on threads; one that has none begins again; the broker keeps nothing."""
    file = tmp_path / "offsets.json"

    async def story() -> None:
        await fill(name_server, topic, 20)
        members = [
            config(topic, file, batch_count_max=5, cached_count_max=5),
            config(topic, client_id="another@host#1"),
        ]
        both = await asyncio.gather(*(numbers(name_server, topic, member, 20) for member in members))
        assert [sorted(each) for each in both] == [list(range(20))] * 2
        assert await numbers(name_server, topic, members[1], 20) == both[0]

    run(story)
    entry = {"brokerName": "longpoll", "topic": topic, "queueId": 0, "offset": 20}
    (kept,) = msgspec.json.decode(file.read_bytes())
    assert kept | {"brokerName": "longpoll"} == entry
    with Admin(RUNTIME, name_server) as admin:
        assert {row.stored for row in admin.offsets(f"G-{topic}", [topic])} <= {None, 0}
    send(name_server, topic, b"20")
    with PullConsumer(RUNTIME, name_server, config(topic, file)) as consumer:
        consumer.subscribe(topic)
        consumer.start()
        assert [message.body for message in consumer.poll(PATIENCE_S)] == [b"20"]


@pytest.mark.parametrize("is_loop", [True, False])
def test_one_that_began_at_the_end_and_got_nothing_goes_on_from_there(
    name_server: str, topic: str, tmp_path: Path, is_loop: bool
) -> None:
    """What comes while it is away is its own, also when it had consumed nothing."""
    member = config(topic, tmp_path / "offsets.json", start_at=StartAt.LAST)
    send(name_server, topic, b"before")

    async def on_loop(count: int) -> list[bytes]:
        consumer = AsyncPullConsumer(RUNTIME, name_server, member)
        consumer.subscribe(topic)
        async with consumer:
            return [message.body for message in await consumer.poll(PATIENCE_S)] if count else []

    def on_threads(count: int) -> list[bytes]:
        with PullConsumer(RUNTIME, name_server, member) as consumer:
            consumer.subscribe(topic)
            consumer.start()
            return [message.body for message in consumer.poll(PATIENCE_S)] if count else []

    def once(count: int) -> list[bytes]:
        return asyncio.run(on_loop(count)) if is_loop else on_threads(count)

    once(0)
    send(name_server, topic, b"meanwhile")
    assert once(1) == [b"meanwhile"]


@pytest.mark.parametrize("is_orderly", [False, True])
def test_nothing_is_sent_back(name_server: str, topic: str, caplog: pytest.LogCaptureFixture, is_orderly: bool) -> None:
    """What a listener puts off is told of, or waits in its place; what cannot be read is passed over."""
    send(name_server, topic, b"late", BAD, b"good")

    async def story() -> None:
        given: list[bytes] = []
        came = asyncio.Event()

        async def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
            given.append(messages[0].body)
            if messages[0].body == b"good":
                came.set()
            is_first = given == [b"late"]
            return ConsumeStatus.LATER if is_first else ConsumeStatus.SUCCESS

        member = config(topic, suspend_s=0.01, reconsume_count_max=0)
        consumer = AsyncPushConsumer(RUNTIME, name_server, member, listen, is_orderly=is_orderly)
        consumer.subscribe(topic)
        async with consumer:
            await came.wait()
            assert [queue.topic for queue in consumer.queues] == [topic]
        assert given == [b"late", *[b"late"] * is_orderly, b"good"]
        counts = consumer.statistics[topic]
        assert (counts.sent_back_count, counts.unreadable_count) == (0, 1)

    with caplog.at_level(logging.WARNING):
        run(story)
    assert ("does not come again" in caplog.text) is not is_orderly
    assert f"{topic} queue 0 offset 1 is unreadable, so it is passed over" in caplog.text


@pytest.mark.parametrize("content", [b"{}", b"\xff"])
def test_a_damaged_file_is_named(name_server: str, tmp_path: Path, content: bytes) -> None:
    """It is not overwritten: its offsets may be mended."""
    file = tmp_path / "offsets.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"offsets file .* mend it"):
        AsyncPullConsumer(RUNTIME, name_server, config("T", file))
    assert file.read_bytes() == content


class Slow(RealFiles):
    """Files whose writes wait, and fail while they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.writing = self.most_at_once = 0
        self.failures = 0
        self.written: list[bytes] = []

    def write_atomic(self, path: str, content: Buffer) -> None:
        """Write, once it may."""
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


def places_of(file: OffsetsFile) -> FilePlaces:
    """Those of a member that asks nobody."""
    instance = AsyncInstance(RUNTIME, "127.0.0.1:1")
    member = config("T")
    return FilePlaces(GroupCalls(instance, member, ConsumeType.CONSUME_ACTIVELY), member, file)


def offsets_of(content: bytes) -> list[int]:
    """What a file says."""
    return [entry["offset"] for entry in msgspec.json.decode(content)]


def test_a_store_that_is_cancelled_is_followed_by_later_ones(tmp_path: Path) -> None:
    """The file is written on a thread that cannot be stopped: what was stored after it must not be lost to it."""
    files = Slow()

    async def story() -> None:
        places = places_of(OffsetsFile(files, str(tmp_path / "offsets.json")))
        first = asyncio.create_task(places.store(QUEUE, 1))
        await asyncio.to_thread(files.begun.wait, PATIENCE_S)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(places.store(QUEUE, 2))
        for _turn in range(3):
            await asyncio.sleep(0)
        files.goes_on.set()
        await second
        await places.close()

    run(story)
    assert (offsets_of((tmp_path / "offsets.json").read_bytes()), files.most_at_once) == ([2], 1)


def test_what_could_not_be_written_is_written_the_next_time(tmp_path: Path) -> None:
    """Also when nothing has moved since, on both sides."""
    files = Slow()
    files.goes_on.set()
    files.failures = 1
    path = tmp_path / "offsets.json"

    async def story() -> None:
        places = places_of(OffsetsFile(files, str(path)))
        with pytest.raises(ConfigError, match="the disk is full"):
            await places.store(QUEUE, 7)
        await places.store(QUEUE, 7)
        await places.store(QUEUE, 7)

    run(story)
    assert [offsets_of(content) for content in files.written] == [[7]]
    assert OffsetsFile(files, str(path)).offset(QUEUE) == 7


def test_a_group_that_a_broker_has_never_heard_of_begins_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on threads: a broker of 5.x takes no offset of it (26), and is told later."""
    codes = [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, None, ResponseCode.SYSTEM_ERROR]
    told: list[int] = []

    async def story() -> None:
        calls = GroupCalls(AsyncInstance(RUNTIME, "127.0.0.1:1"), config("T"), ConsumeType.CONSUME_ACTIVELY)
        places = BrokerPlaces(calls, config("T"))

        async def find(*_asked: object) -> int:
            return 7

        async def reset(_queue: MessageQueue, offset: int) -> None:
            code = codes.pop(0)
            if code is not None:
                raise RefusedError("storing", code, "no")
            told.append(offset)

        async def stored(_queue: MessageQueue) -> None:
            return None

        monkeypatch.setattr(calls, "find", find)
        monkeypatch.setattr(places, "reset", reset)
        monkeypatch.setattr(places, "stored", stored)
        assert await places.begin(QUEUE) == 7
        await places.store(QUEUE, 7)
        with pytest.raises(RefusedError):
            await places.begin(msgspec.structs.replace(QUEUE, queue_id=1))

    run(story)
    assert told == [7]


def test_what_is_begun_and_ended_at_once_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    """A consumer that is closed while it is about to do something."""

    async def story() -> None:
        reach = LoopReach(AsyncInstance(RUNTIME, "127.0.0.1:1"))
        reach.begin(asyncio.sleep(0))
        await reach.close()
        reach.begin(asyncio.sleep(0))

    run(story)
    gc.collect()
    assert [str(warned.message) for warned in recwarn] == []
