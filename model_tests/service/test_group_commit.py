"""When the disk is synced: for sends under SYNC_FLUSH, and by the flush thread."""

from __future__ import annotations

import errno
import pathlib
import shutil
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Connect, StartBroker
from model_tests.support.broker.raw_client import RawClient, send_fields, send_message

from longpoll_broker.config import StoreConfig
from longpoll_broker.shared.topics import TopicConfig
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.upkeep.config_files import ConfigFiles
from longpoll_broker.upkeep.flush_service import QUEUES_EVERY, QUEUES_SIZE, FlushService
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
        self.threads: set[str] = set()
        flush = SegmentList.flush

        def slow(segments: SegmentList, start: int, stop: int) -> None:
            if segments.directory.endswith("commitlog"):
                self.syncs += 1
                self.threads.add(threading.current_thread().name)
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


def test_who_does_not_wait_is_answered_at_once(start_broker: StartBroker, connect: Connect, disk: Disk) -> None:
    client = connect(start_broker(store_config=SYNC).address)
    disk.works.clear()
    try:
        assert code_of(client, send(client, "WAIT\x01false\x02")) == ResponseCode.SUCCESS
        assert not disk.threads & {"io-0", "committer"}  # the schedule's thread shows waiting messages each second
    finally:
        disk.works.set()


def send_first(client: RawClient) -> int | None:
    """The code of a send that makes a topic of 8 queues."""
    reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields("New", 1) | {"d": "8"}, b"x")
    return reply.code


@pytest.fixture
def saved_by_the_committer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other thread saves topics, so none can be in time by chance."""
    monkeypatch.setattr(ConfigFiles, "save_names", lambda _files: None)
    monkeypatch.setattr(ConfigFiles, "save", lambda _files: None)


@pytest.mark.usefixtures("saved_by_the_committer_alone")
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


@pytest.mark.usefixtures("saved_by_the_committer_alone")
@pytest.mark.parametrize(
    "properties",
    ["DELAY\x013\x02", "TIMER_DELAY_SEC\x01100\x02", "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01k\x02"],
    ids=["delayed", "timed", "prepared"],
)
def test_a_topic_outlives_a_kill_whatever_message_made_it(
    properties: str, start_broker: StartBroker, connect: Connect, tmp_path: pathlib.Path
) -> None:
    """Also one that waits in another topic, which is saved already."""
    client = connect(start_broker(store_config=SYNC).address)
    send_message(client, "T")
    reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields("New", 1, properties) | {"d": "8"}, b"x")
    assert reply.code == ResponseCode.SUCCESS
    assert b'"New"' in (tmp_path / "store" / "config" / "topics.json").read_bytes()


@pytest.mark.usefixtures("saved_by_the_committer_alone")
@pytest.mark.parametrize(("level", "made"), [(0, "%RETRY%G"), (1, "%RETRY%G"), (-1, "%DLQ%G")])
def test_a_topic_that_a_message_sent_back_made_outlives_a_kill(
    level: int, made: str, start_broker: StartBroker, connect: Connect, tmp_path: pathlib.Path
) -> None:
    client = connect(start_broker(store_config=SYNC).address)
    send_message(client, "T")
    fields = {"offset": "0", "group": "G", "delayLevel": str(level), "originMsgId": "", "originTopic": "T"}
    assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS
    assert f'"{made}"'.encode() in (tmp_path / "store" / "config" / "topics.json").read_bytes()


@pytest.mark.usefixtures("saved_by_the_committer_alone")
def test_a_topic_of_dead_letters_outlives_a_kill(
    start_broker: StartBroker, connect: Connect, tmp_path: pathlib.Path
) -> None:
    """A send to the retry topic, which is saved already, makes it; the saved table has it with the answer."""
    client = connect(start_broker(store_config=SYNC).address)
    fields = send_fields("%RETRY%G")
    codes = [
        client.call(RequestCode.SEND_MESSAGE_V2, fields | {"j": str(tries), "l": "16"}, b"x").code for tries in (1, 17)
    ]
    saved = (tmp_path / "store" / "config" / "topics.json").read_bytes()

    assert codes == [ResponseCode.SUCCESS] * 2
    assert b'"%DLQ%G"' in saved


def test_a_topic_is_saved_before_the_table_is_marked_as_changed(start_broker: StartBroker) -> None:
    """A thread that makes a topic may be interrupted between the two; another thread already sends to it."""
    broker = start_broker(store_config=SYNC)
    broker.topics.put(TopicConfig("New", 8, 8))
    broker.topics.changed = False
    assert broker.sending.commits is not None
    broker.sending.commits.save_topics()

    assert broker.topics.unsaved == {}


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


class Rounds:
    """A store that grows by so much before each round, and says in which rounds its queues were flushed."""

    def __init__(self, growths: list[int]) -> None:
        self.growths = growths
        self.log_end = self.flushed_end = 0
        self.round = 0
        self.flushed_in: list[int] = []
        self.fails: set[int] = set()
        """The rounds in which queues cannot be flushed."""

    def wait(self, _timeout_s: float) -> bool:
        """Begin the next round; true when there are no more."""
        if self.round == len(self.growths):
            return True
        self.log_end += self.growths[self.round]
        self.round += 1
        return False

    def flush(self) -> None:
        self.flushed_end = self.log_end

    def is_set(self) -> bool:
        return False

    def flush_queues_in_turns(self) -> Iterator[None]:
        self.flushed_in.append(self.round)
        if self.round in self.fails:
            raise OSError(errno.EIO, "the disk failed")
        yield

    def index(self, _count: int) -> bool:
        return True


@pytest.mark.parametrize(
    ("growths", "flushed_in"),
    [
        ([1] * 2 * QUEUES_EVERY, [QUEUES_EVERY, 2 * QUEUES_EVERY]),
        ([0] * 2 * QUEUES_EVERY, []),
        ([QUEUES_SIZE, QUEUES_SIZE - 1, 1, 0, QUEUES_SIZE], [1, 3, 5]),
    ],
)
def test_queues_are_flushed_now_and_then_and_when_much_has_come(growths: list[int], flushed_in: list[int]) -> None:
    rounds = Rounds(growths)
    run(rounds)
    assert rounds.flushed_in == flushed_in


def test_queues_that_could_not_be_flushed_are_tried_again_though_nothing_comes() -> None:
    """With the next turn of all queues, and not twice a second though there is much to do."""
    rounds = Rounds([QUEUES_SIZE, QUEUES_SIZE] + [0] * 3 * QUEUES_EVERY)
    rounds.fails = {1, QUEUES_EVERY}
    run(rounds)
    assert rounds.flushed_in == [1, QUEUES_EVERY, 2 * QUEUES_EVERY]


def run(rounds: Rounds) -> None:
    """All the rounds of a flush service with this store."""
    store: Any = rounds
    tables: Any = SimpleNamespace(save=lambda: None)
    service = FlushService(RealRuntime(), store, tables, 500, {})
    service._stop = store
    service._run()
