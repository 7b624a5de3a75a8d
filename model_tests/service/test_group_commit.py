"""Sends under SYNC_FLUSH: answered when durable, many by one sync, with code 10 when the disk fails or stalls."""

from __future__ import annotations

import errno
import pathlib
import shutil
import threading

import attrs
import pytest

from longpoll_broker.config import StoreConfig
from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.service.send.group_commit import GroupCommit
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.testing.brokers import SMALL_STORE, Connect, StartBroker
from longpoll_broker.testing.raw_client import RawClient, send_fields, send_message
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime

SYNC: StoreConfig = attrs.evolve(SMALL_STORE, flush_disk_sync=True, flush_interval_ms=1_000_000)
WAIT_S = 20.0


class Disk:
    """A disk that works only while it is let; it counts its syncs of the log."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.works = threading.Event()
        self.works.set()
        self.asked = threading.Event()
        self.fails = False
        self.syncs = 0
        flush = SegmentList.flush

        def slow(segments: SegmentList, start: int, stop: int) -> None:
            if segments.directory.endswith("commitlog"):
                self.syncs += 1
                self.asked.set()
                assert self.works.wait(WAIT_S)
                if self.fails:
                    raise OSError(errno.EIO, "the disk failed")
            flush(segments, start, stop)

        patch.setattr(SegmentList, "flush", slow)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk under every store of this test."""
    return Disk(monkeypatch)


def send(client: RawClient, properties: str = "") -> int:
    """Send a message without waiting for its answer; the request's opaque."""
    return client.send(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, properties), b"x")


def code_of(client: RawClient, opaque: int) -> int | None:
    """The code that a request was answered with."""
    reply = client.reply(opaque)
    return reply.code if reply is not None else None


def test_one_sync_answers_all_that_waited(start_broker: StartBroker, connect: Connect, disk: Disk) -> None:
    """What was sent while the disk worked is durable by one further sync, and the broker served others meanwhile."""
    broker = start_broker(store_config=SYNC)
    client = connect(broker.address)
    send_message(client, "T")
    disk.works.clear()
    disk.asked.clear()
    before = disk.syncs
    first = send(client)
    assert disk.asked.wait(WAIT_S)
    others = [send(client) for _ in range(20)]
    # Answered by the thread that took the twenty before, so they are in the log by now, and wait.
    client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    disk.works.set()
    assert [code_of(client, opaque) for opaque in (first, *others)] == [ResponseCode.SUCCESS] * 21
    assert disk.syncs - before == 2
    assert broker.store.flushed_end == broker.store.log_end


def test_a_failing_disk_is_told(start_broker: StartBroker, connect: Connect, disk: Disk) -> None:
    """A message that the disk does not take is answered 10; it is in the log, and the next one is fine again."""
    client = connect(start_broker(store_config=SYNC).address)
    disk.fails = True
    assert code_of(client, send(client)) == ResponseCode.FLUSH_DISK_TIMEOUT
    disk.fails = False
    assert send_message(client, "T") == 1


def test_a_stalled_disk_is_told_in_time(start_broker: StartBroker, connect: Connect, disk: Disk) -> None:
    """A sync that takes longer than `syncFlushTimeout` costs 10, not a silent producer; no answer comes twice."""
    client = connect(start_broker(store_config=attrs.evolve(SYNC, sync_flush_timeout_ms=50)).address)
    disk.works.clear()
    stalled = send(client)
    assert code_of(client, stalled) == ResponseCode.FLUSH_DISK_TIMEOUT
    disk.works.set()
    assert client.reply(send(client)) is not None
    assert client.reply(stalled, 0.0) is None


def test_who_does_not_wait_is_answered_at_once(start_broker: StartBroker, connect: Connect, disk: Disk) -> None:
    """A message with `WAIT` false is answered while the disk stands still."""
    client = connect(start_broker(store_config=SYNC).address)
    disk.works.clear()
    try:
        assert code_of(client, send(client, "WAIT\x01false\x02")) == ResponseCode.SUCCESS
        assert disk.syncs == 0
    finally:
        disk.works.set()


def send_first(client: RawClient) -> int | None:
    """The code of a send that makes a topic of 8 queues."""
    reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields("New", 1) | {"d": "8"}, b"x")
    return reply.code


def test_a_topic_that_a_send_made_outlives_a_kill(
    start_broker: StartBroker, connect: Connect, tmp_path: pathlib.Path
) -> None:
    """When the send is answered, the saved table has the topic with all its queues."""
    broker = start_broker(store_config=SYNC)
    assert send_first(connect(broker.address)) == ResponseCode.SUCCESS
    shutil.copytree(tmp_path / "store", tmp_path / "killed")

    restarted = start_broker(store_config=SYNC, directory=str(tmp_path / "killed"))
    topic = restarted.topics.get("New")
    assert topic is not None
    assert topic.write_queue_nums == 8


def test_a_topic_that_cannot_be_saved_fails_only_its_own_sends(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends to the new topic get 10 until it is saved; sends to a saved topic succeed."""
    client = connect(start_broker(store_config=SYNC).address)
    send_message(client, "T")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "write_atomic", fail)
        assert [send_first(client), send_first(client)] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
        assert send_message(client, "T") == 1
    assert send_first(client) == ResponseCode.SUCCESS


def test_stopping_answers_what_waits(tmp_path: pathlib.Path, disk: Disk) -> None:
    """A stop answers every request once, and who comes later syncs itself."""
    runtime = RealRuntime()
    store = MessageStore.open(runtime, f"{tmp_path}/store", SYNC)
    commits = GroupCommit(runtime, store, 10_000, lambda _outbox: None, lambda: None)
    told: list[bool] = []

    def done(is_durable: bool, _outbox: Outbox) -> None:
        told.append(is_durable)

    commits.start()
    for _ in range(50):
        commits.submit(0, done, Outbox(), wants_topics=False)
    commits.stop()
    assert told == [True] * 50
    commits.submit(1, done, Outbox(), wants_topics=False)
    assert told[50:] == [False]
    store.close()
    assert disk.syncs == 0


def test_an_answer_before_the_sync_is_seen(
    start_broker: StartBroker, connect: Connect, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A committer that answers without syncing leaves bytes that are not durable behind the answer."""
    monkeypatch.setattr(MessageStore, "flush", lambda store: store.log_end)
    broker = start_broker(store_config=SYNC)
    send_message(connect(broker.address), "T")
    assert broker.store.flushed_end < broker.store.log_end
    assert disk.syncs == 0
