"""Sends over real sockets: bursts, batches, ends of transactions, and answers that wait until messages are durable."""

from __future__ import annotations

import errno
import pathlib
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, one_by_one, wait_held, wait_visible
from model_tests.support.broker.harness.topics import make_topic
from model_tests.support.broker.raw_client import (
    PATIENCE_S,
    RawClient,
    send_fields,
    send_message,
)
from model_tests.support.broker.sockless import Peer, ThreadlessBroker
from model_tests.support.broker.stores import StillRuntime

from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.store.messages import Arrival, MessageToStore
from longpoll_broker.store.segment import SegmentList
from longpoll_broker.upkeep.config_files import ConfigFiles
from longpoll_broker.upkeep.flush_service import QUEUES_EVERY, QUEUES_SIZE, FlushService
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.frames import Command, encode
from longpoll_protocol.properties import DELAY, INNER_QUEUES, PREPARED
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

STORE = evolve(SMALL_STORE, commit_log_file_size=16_384, message_size_max=2_000, multi_dispatch=True)
"""Log files are so small that bursts reach the end of a file."""

PROPERTIES = [
    "",
    "UNIQ_KEY\x0101\x02WAIT\x01true\x02TAGS\x01a\x02",
    "KEYS\x01k\x02TAGS\x01\u00e4",
    "TAGS\x01z\0\x02",
    "damaged",
    f"{DELAY}\x012\x02",
    f"{DELAY}\x01soon\x02",
    f"{PREPARED}\x01true\x02",
    f"{INNER_QUEUES}\x01U\x02",
]


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    """Returns one send as bytes: usually a plain one, sometimes with unusual fields, flags, code or body."""
    fields = send_fields(draw(st.sampled_from("TTTTU")), draw(st.integers(0, 3)), draw(st.sampled_from(PROPERTIES)))
    odd = draw(st.sampled_from([{}] * 12 + [
        {"b": "%RETRY%none"}, {"b": "SCHEDULE_TOPIC_XXXX"}, {"b": "bad/name"}, {"b": "TBW102"}, {"c": "none", "b": "V"},
        {"e": "-1"}, {"e": "99"}, {"e": "x"}, {"f": "4"}, {"f": "12"}, {"f": "48"}, {"m": "true"}, {"j": "3"},
    ]))  # fmt: skip
    flag = draw(st.sampled_from([0] * 8 + [int(CommandFlag.ONE_WAY), int(CommandFlag.RESPONSE), 8]))
    code = draw(st.sampled_from([RequestCode.SEND_MESSAGE_V2] * 12 + [RequestCode.SEND_BATCH_MESSAGE, 9_999]))
    body = draw(st.sampled_from([b"body"] * 8 + [b"", b"x" * 300, b"y" * 2_001]))
    return b"".join(encode(Command(code, draw(st.integers(0, 99)), flag, ext_fields=fields | odd, body=body)))


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Peer, Peer]]:
    """Clients of two brokers with stopped clocks; one broker serves bursts, and the other does not."""
    directories = [str(tmp_path_factory.mktemp(name)) for name in ("bursts", "single")]
    with (
        ThreadlessBroker.start(StillRuntime(), directories[0], store_config=STORE) as bursts,
        ThreadlessBroker.start(StillRuntime(), directories[1], store_config=STORE) as single,
    ):
        yield Peer(bursts), Peer(one_by_one(single))


@settings(max_examples=30)
@given(st.lists(sends(), max_size=24).map(b"".join))
def test_a_burst_is_served_like_single_sends(peers: tuple[Peer, Peer], content: bytes) -> None:
    bursts, single = peers
    assert bursts.told(content) == single.told(content)


@pytest.fixture
def bursts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    stored: list[int] = []
    put_burst = broker.store.put_burst

    def noted(messages: Sequence[MessageToStore]) -> Sequence[Arrival]:
        stored.append(len(messages))
        return put_burst(messages)

    monkeypatch.setattr(broker.store, "put_burst", noted)
    return stored


SYNC: StoreConfig = attrs.evolve(SMALL_STORE, flush_disk_sync=True, flush_interval_ms=1_000_000)


class Disk:
    """A disk whose syncs wait until the test permits them, and that counts the syncs of the log."""

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
                assert self.works.wait(PATIENCE_S)
                if self.fails:
                    raise OSError(errno.EIO, "the disk failed")
            flush(segments, start, stop)

        patch.setattr(SegmentList, "flush", slow)

    def sticks(self) -> None:
        """Let the next sync block until `works` is set."""
        self.works.clear()
        self.asked.clear()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def send(client: RawClient, properties: str = "") -> int:
    return client.send(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, properties), b"x")


def code_of(client: RawClient, opaque: int) -> int | None:
    reply = client.reply(opaque)
    return reply.code if reply is not None else None


def test_one_sync_answers_all_waiting_sends(brokers: Brokers, disk: Disk) -> None:
    """The broker serves other requests during the sync, and one sync answers all waiting sends."""
    broker, client = brokers.served(store_config=SYNC)
    send_message(client, "T")
    disk.sticks()
    before = disk.syncs
    first = send(client)
    assert disk.asked.wait(PATIENCE_S)
    others = [send(client) for _ in range(20)]
    # The thread that answers this request has read the twenty sends before it, so they are in the log and wait for the
    # sync.
    client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    disk.works.set()
    assert [code_of(client, opaque) for opaque in (first, *others)] == [ResponseCode.SUCCESS] * 21
    assert (disk.syncs - before, broker.store.flushed_end) == (2, broker.store.log_end)


def test_a_send_without_wait_is_answered_at_once(brokers: Brokers, disk: Disk) -> None:
    client = brokers.client(store_config=SYNC)
    disk.works.clear()
    try:
        assert code_of(client, send(client, "WAIT\x01false\x02")) == ResponseCode.SUCCESS
        # The thread of delayed messages may sync too, because it makes waiting messages visible each second.
        assert not disk.threads & {"io-0", "committer"}
    finally:
        disk.works.set()


def send_first(client: RawClient) -> int | None:
    reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields("New", 1) | {"d": "8"}, b"x")
    return reply.code


@pytest.fixture
def saved_by_the_committer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the committer saves topics here, so the result does not depend on timing."""
    monkeypatch.setattr(ConfigFiles, "save_names", lambda _files: None)
    monkeypatch.setattr(ConfigFiles, "save", lambda _files: None)


def made_by(properties: str) -> tuple[int, dict[str, str]]:
    return RequestCode.SEND_MESSAGE_V2, send_fields("New", 1, properties) | {"d": "8"}


def sent_back(level: int) -> tuple[int, dict[str, str]]:
    fields = {"offset": "0", "group": "G", "delayLevel": str(level), "originMsgId": "", "originTopic": "T"}
    return RequestCode.CONSUMER_SEND_MSG_BACK, fields


def tried(tries: int) -> tuple[int, dict[str, str]]:
    return RequestCode.SEND_MESSAGE_V2, send_fields("%RETRY%G") | {"j": str(tries), "l": "16"}


@pytest.mark.usefixtures("saved_by_the_committer_alone")
@pytest.mark.parametrize("config", [SYNC, SMALL_STORE], ids=["SYNC", "ASYNC"])
@pytest.mark.parametrize(
    ("requests", "made"),
    [
        ([made_by("DELAY\x013\x02")], "New"),
        ([made_by("TIMER_DELAY_SEC\x01100\x02")], "New"),
        ([made_by("TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01k\x02")], "New"),
        ([sent_back(0)], "%RETRY%G"),
        ([sent_back(1)], "%RETRY%G"),
        ([sent_back(-1)], "%DLQ%G"),
        ([tried(1), tried(17)], "%DLQ%G"),
    ],
    ids=["delayed", "timed", "prepared", "sent back", "sent back later", "sent back as dead", "tried too often"],
)
def test_a_created_topic_survives_a_kill(
    *,
    requests: list[tuple[int, dict[str, str]]],
    made: str,
    config: StoreConfig,
    brokers: Brokers,
    tmp_path: pathlib.Path,
) -> None:
    """The saved table has the topic when the request is answered, whichever kind of message created it."""
    client = brokers.client(store_config=config)
    send_message(client, "T")
    assert {client.call(code, fields, b"x").code for code, fields in requests} == {ResponseCode.SUCCESS}
    assert f'"{made}"'.encode() in (tmp_path / "store" / "config" / "topics.json").read_bytes()


def test_an_unsaved_topic_fails_only_its_own_sends(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    client = brokers.client(store_config=SYNC)
    send_message(client, "T")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "write_atomic", fail)
        assert [send_first(client), send_first(client)] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
        assert send_message(client, "T") == 1
    assert send_first(client) == ResponseCode.SUCCESS


class Rounds:
    def __init__(self, growths: list[int]) -> None:
        self.growths = growths
        self.log_end = self.flushed_end = 0
        self.round = 0
        self.flushed_in: list[int] = []
        self.fails: set[int] = set()

    def wait(self, _timeout_s: float) -> bool:
        """Begin the next round; returns true after the last round."""
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
def test_queues_are_flushed_periodically_and_after_many_bytes(growths: list[int], flushed_in: list[int]) -> None:
    rounds = Rounds(growths)
    run(rounds)
    assert rounds.flushed_in == flushed_in


def test_a_failed_flush_of_queues_is_retried() -> None:
    rounds = Rounds([QUEUES_SIZE, QUEUES_SIZE] + [0] * 3 * QUEUES_EVERY)
    rounds.fails = {1, QUEUES_EVERY}
    run(rounds)
    assert rounds.flushed_in == [1, QUEUES_EVERY, 2 * QUEUES_EVERY]


def run(rounds: Rounds) -> None:
    store: Any = rounds
    tables: Any = SimpleNamespace(save=lambda: None)
    service = FlushService(RealRuntime(), store, tables, 500, {})
    service._stop = store
    service._run()


SYNC_NEVER = attrs.evolve(SMALL_STORE, flush_disk_sync=True)
SHORT_S = 0.2


@pytest.mark.parametrize(
    ("policy", "seen"), [(STRICT, False), (ROCKETMQ_5, False), (ROCKETMQ_4_9, True)], ids=["strict", "5", "4.9"]
)
def test_visibility_of_a_message_before_its_sync(policy: Policy, seen: bool, brokers: Brokers, disk: Disk) -> None:
    """Depending on the policy, a held pull is answered before the sync ends, or after it."""
    broker, puller, sender = brokers.served_two(policy=policy, store_config=SYNC_NEVER)
    make_topic(broker.address, "T", 1)
    opaque = puller.hold("T")
    wait_held(broker)
    disk.sticks()
    acknowledged = sender.send(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"m")
    assert disk.asked.wait(PATIENCE_S)
    early = puller.reply(opaque, PATIENCE_S if seen else SHORT_S)
    disk.works.set()
    assert (early is not None, (early or puller.answer(opaque)).code) == (seen, 0)
    assert sender.answer(acknowledged).code == 0


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_a_delayed_message_becomes_visible_after_its_sync(policy: Policy, brokers: Brokers) -> None:
    # If no thread polls the delay levels, the thread of delayed messages syncs itself, so the flush thread need not
    # run.
    interval_ms = SYNC_NEVER.flush_interval_ms if policy.notify == "dispatcher_poll" else 1_000_000
    config = attrs.evolve(SYNC_NEVER, flush_interval_ms=interval_ms)
    broker, client = brokers.served(policy=policy, store_config=config)
    client.put("T", b"m", properties="DELAY\x011\x02")
    wait_visible(broker, "T", 1)
    assert client.pull("T").code == 0
