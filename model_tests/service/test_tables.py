"""The broker's tables on disk: damaged files, saves before the answer, and offsets that must not exceed the log."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_until, wait_visible
from model_tests.support.broker.raw_client import RawClient, send_message
from model_tests.support.broker.simulated_store import DIRECTORY, Ended, StoreRuntime
from model_tests.support.broker.stores import SMALL, message
from model_tests.support.service import ShiftedRuntime
from model_tests.support.simulation.disk import Disk
from model_tests.support.simulation.files import SimulatedFiles
from model_tests.support.store import killed

import longpoll.cli
from longpoll.cli import main
from longpoll_broker.broker import CORRECTED_TOLD_MAX, Broker, correct_positions
from longpoll_broker.rocketmq.transactions import GROUP
from longpoll_broker.send.append import HALF_TOPIC
from longpoll_broker.shared import topics
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.timer_offsets import DelayOffsets, TimerOffsets
from longpoll_broker.shared.topics import Groups, TopicConfig, Topics
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.upkeep import config_files
from longpoll_broker.upkeep.config_files import DELAYS, GROUPS, OFFSETS, TIMERS, TOPICS, ConfigFiles
from longpoll_broker.upkeep.flush_service import FlushService
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.names import TIMER_TOPIC
from longpoll_runtime.files import RealFiles
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

SOUND: dict[str, dict[str, Any]] = {
    TOPICS: {"topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 3}}},
    GROUPS: {"subscriptionGroupTable": {"G": {"groupName": "G", "retryQueueNums": 3}}},
    OFFSETS: {"offsetTable": {"T@G": {"0": 3}}},
    DELAYS: {"offsetTable": {"1": 3}},
    TIMERS: {"offsetTable": {"first": 3, "read": 3, "deliveredMs": 3}},
}
WRONG_ROWS: dict[str, list[Any]] = {
    TOPICS: [
        7,
        {"topicName": "T", "writeQueueNums": -1},
        *({"topicName": "T", "readQueueNums": count} for count in ("x", 99_999, -1)),
    ],
    GROUPS: [7, {"groupName": 7}],
    OFFSETS: [7, {"0": 2**64}, {"x": 1}],
    DELAYS: ["x", 2**64],
    TIMERS: ["x", {}],
}
NO_TABLE = json.dumps(dict.fromkeys(("topicConfigTable", "subscriptionGroupTable", "offsetTable")))
DAMAGES = [
    (name, json.dumps({key: dict.fromkeys(table, row)}))
    for name, content in SOUND.items()
    for key, table in content.items()
    for row in WRONG_ROWS[name]
] + [(name, text) for name in SOUND for text in ("", "[]", "{}", "\xff", "[" * 5_000, '{"other":{}}', NO_TABLE)]


def loaded(directory: Path) -> ConfigFiles:
    offsets, delays = Offsets(), DelayOffsets()
    files = ConfigFiles(RealRuntime(), str(directory), Topics(), Groups(), offsets, delays)
    files.load()
    return files


def found(files: ConfigFiles) -> list[int]:
    """Returns one value from each table. The value is 0 if the table lacks its entry."""
    topic, group = files.topics.get("T"), files.groups.by_name.get("G")
    return [
        0 if topic is None else topic.read_queue_nums,
        0 if group is None else group.retry_queue_nums,
        files.offsets.query("T", "G", 0) or 0,
        files.delays.by_level.get(1, 0),
        files.timers.read,
    ]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for name, content in SOUND.items():
        (tmp_path / name).write_text(json.dumps(content))
        (tmp_path / f"{name}.bak").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(("name", "text"), DAMAGES, ids=lambda value: value[:70])
def test_the_backup_of_a_damaged_table_is_used(
    config: Path, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    """If a table is damaged, its .bak is used; a log line names the table, and the next save writes it again."""
    (config / name).write_bytes(text.encode("latin-1"))
    files = loaded(config)
    assert found(files) == [3] * len(SOUND)
    assert f"{config / name} " in caplog.text
    files.save()
    assert (config / f"{name}.bak").read_text() == json.dumps(SOUND[name])
    (config / f"{name}.bak").unlink()
    assert found(loaded(config)) == [3] * len(SOUND)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            TOPICS,
            '{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":1000000000}}}',
            "1000000000 queues, 0 to 16384",
        ),
        (TOPICS, '{"topicConfigTable":{"T":{"topicName":"T","writeQueueNums":16385}}}', "16385 queues, 0 to 16384"),
        (OFFSETS, '{"offsetTable":{"T@G":{"0":9223372036854775808}}}', "cannot be used"),
        (OFFSETS, '{"offsetTable":{"T@G":{"0":"x"}}}', "cannot be used"),
    ],
)
def test_a_table_with_too_many_queues_is_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    """A topic of a billion queues would cost every client minutes and gigabytes, so such a table is refused."""
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=said):
        loaded(tmp_path)


def test_a_disk_that_fails_while_a_table_is_repaired_loses_nothing(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config / OFFSETS).write_bytes(b"{")
    files = loaded(config)
    write_atomic = files.runtime.files.write_atomic

    def fails_in_the_end(path: str, content: bytes) -> None:
        if path.endswith(OFFSETS):
            raise OSError("injected")
        write_atomic(path, content)

    monkeypatch.setattr(files.runtime.files, "write_atomic", fails_in_the_end)
    with pytest.raises(OSError, match="injected"):
        files.save()
    assert loaded(config).offsets.query("T", "G", 0) == 3


@pytest.mark.parametrize("name", SOUND)
def test_a_file_without_its_table_is_reported(config: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    (config / name).write_text("{}")
    (config / f"{name}.bak").unlink()
    assert sorted(found(loaded(config))) == [0, 3, 3, 3, 3]
    assert f"{config / name} holds no table" in caplog.text
    (config / f"{name}.bak").write_text("{")
    with pytest.raises(ConfigError, match=r"\.bak cannot be read"):
        loaded(config)


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.timeout(20)
def test_a_fifo_is_ignored_as_a_table(config: Path, name: str) -> None:
    (config / name).unlink()
    os.mkfifo(config / name)
    files = loaded(config)
    assert found(files) == [3] * len(SOUND)
    files.save()
    assert (config / name).is_file()
    os.mkfifo(config / f"{TOPICS}.tmp")
    files.topics.changed = True
    with pytest.raises(OSError, match=r"\.tmp"):
        files.save()


@pytest.mark.parametrize(
    "path",
    [
        "config/topics.json",
        "config/delayOffset.json",
        "checkpoint",
        "commitlog/" + "0" * 20,
        "consumequeue/T/0/" + "0" * 20,
        "deletedTopics.json",
    ],
)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.timeout(20)
def test_a_wrong_kind_of_file_in_a_store_is_one_line(tmp_path: Path, path: str, make: Callable[[Path], None]) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    make(tmp_path / path)
    given = ["serve", "--store", str(tmp_path), "--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert path.rpartition("/")[2] in result.output


def test_a_file_in_place_of_the_config_directory_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file in place of the config directory is refused, and a topic that has another topic's name is reported."""
    (tmp_path / TOPICS).write_text('{"topicConfigTable": {"T": {"topicName": "U"}}}')
    assert loaded(tmp_path).topics.get("U") is None
    assert "the topic T has an illegal or another name" in caplog.text
    with pytest.raises(NotADirectoryError):
        loaded(tmp_path / TOPICS)


def test_an_empty_store_path_is_refused(tmp_path: Path) -> None:
    """An empty path is refused, because it would mean the current directory."""
    result = CliRunner().invoke(main, ["serve", "--store", ""])
    assert (result.exit_code, "the path is empty" in result.output) == (2, True)
    conf = tmp_path / "broker.conf"
    for key in ("storePathRootDir", "storePathCommitLog", "storePathConsumeQueue", "storePathIndex"):
        conf.write_text(f"{key}=\n")
        result = CliRunner().invoke(main, ["serve", "--config", str(conf)])
        assert (result.exit_code, f"{key} cannot be ''" in result.output) == (2, True)
    conf.write_text("storePathCommitLog=a,b\n")
    assert "a log in several directories is not" in CliRunner().invoke(main, ["serve", "--config", str(conf)]).output


def test_no_path_of_a_command_may_be_empty() -> None:
    """Every path option has the type `FilledPath`, except `store`, whose directory must exist already."""
    sources = Path(longpoll.cli.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "=click.Path(" in path.read_text()] == ["store.py"]


NEVER_MS = 3_600_000
TOPIC = {
    "topic": "Made", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "2", "perm": "4",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
GROUP_BODY = json.dumps({"groupName": "Made", "consumeEnable": False}).encode()


def change(client: RawClient, killed: Path, store: Path) -> list[tuple[list[str], list[str]]]:
    """Change topics and groups; returns which topics and groups named Made the tables contain after each answer.

    The tables are read from a copy of the directory, as after a kill.
    """
    found = []
    for code, fields, body in (
        (RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC, b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP_BODY),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Made"}, b""),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "Made"}, b""),
    ):
        assert client.call(code, fields, body).code == 0
        copy = killed / str(int(code))
        (store / "config").mkdir(exist_ok=True)
        shutil.copytree(store / "config", copy, dirs_exist_ok=True)
        names = []
        for file, key in (("topics.json", "topicConfigTable"), ("subscriptionGroup.json", "subscriptionGroupTable")):
            table = json.loads((copy / file).read_text())[key] if (copy / file).exists() else {}
            names.append([name for name in table if name == "Made"])
        found.append((names[0], names[1]))
    return found


@pytest.mark.parametrize("waiting_count_max", [0, config_files.WAITING_COUNT_MAX])
def test_a_change_that_is_answered_outlives_a_kill(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting_count_max: int
) -> None:
    monkeypatch.setattr(config_files, "WAITING_COUNT_MAX", waiting_count_max)
    rare = evolve(SMALL_STORE, flush_interval_ms=NEVER_MS)
    client = brokers.client(store_config=rare)
    saved = change(client, tmp_path / "killed", tmp_path / "store")
    assert saved == [(["Made"], []), (["Made"], ["Made"]), ([], ["Made"]), ([], [])]
    assert json.loads((tmp_path / "killed" / "17" / "topics.json").read_text())["topicConfigTable"]["Made"]["perm"] == 4


def test_a_failed_save_is_reported(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, admin, bystander = brokers.served_two(store_config=evolve(SMALL_STORE, flush_interval_ms=NEVER_MS))
    send_message(bystander, "Other")
    stands, goes_on = broker.runtime.event(), broker.runtime.event()
    write_atomic = RealFiles.write_atomic

    def fails(files: RealFiles, path: str, content: bytes) -> None:
        if path.endswith("topics.json") and not goes_on.is_set():
            stands.set()
            goes_on.wait()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write_atomic(files, path, content)

    monkeypatch.setattr(RealFiles, "write_atomic", fails)
    asked = admin.send(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
    try:
        assert stands.wait(60.0)
        assert send_message(bystander, "Other", b"meanwhile") == 1
    finally:
        goes_on.set()
    refused = admin.answer(asked)
    assert refused.code == 1
    assert "could not be saved yet: OSError: [Errno 28]" in str(refused.remark)
    assert admin.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, GROUP_BODY).code == 0
    table = json.loads(Path(broker.store.directory, "config", "topics.json").read_text())["topicConfigTable"]
    assert table["Made"]["readQueueNums"] == 3


@given(
    st.dictionaries(
        st.text(),
        st.dictionaries(st.text(), st.dictionaries(st.integers(0, 99), st.integers(-(2**63), 2**63 - 1))),
        min_size=1,
    )
)
def test_a_table_encoded_in_parts_equals_the_whole_table(content: dict[str, dict[str, dict[int, int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics, "PART_COUNT", 4)
        assert config_files._text(content) == msgspec.json.format(msgspec.json.encode(content), indent=1)


DELAYED = "DELAY\x011\x02"
BEYOND: dict[str, dict[str, Any]] = {
    DELAYS: {"offsetTable": {"1": 50}},
    OFFSETS: {"offsetTable": {f"{HALF_TOPIC}@{GROUP}": {"0": 50}, "T@G": {"0": 50, "1": 1}}},
    TIMERS: {"offsetTable": {"first": 50, "read": 60, "deliveredMs": 7}},
}
CORRECTED: dict[str, dict[str, Any]] = {
    DELAYS: {"1": 2},
    OFFSETS: {f"{HALF_TOPIC}@{GROUP}": {"0": 0}, "T@G": {"0": 2, "1": 0}},
    TIMERS: {"first": 0, "read": 0, "deliveredMs": 7},
}


def table(store: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store / "config" / name).read_text())["offsetTable"]
    return found


def test_offsets_beyond_the_log_are_corrected_before_requests_are_served(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Offsets of groups, delay levels, transaction checks and the timer are set back to their queue's end."""
    runtime = ShiftedRuntime()
    store = tmp_path / "again"
    broker, client = brokers.served(runtime=runtime, directory=str(store))
    for number in range(2):
        send_message(client, "T", b"%d" % number, properties=DELAYED)
    runtime.ahead_ms = runtime.gone_ms = 10_000
    wait_visible(broker, "T", 2)
    broker.stop()
    for name, content in BEYOND.items():
        (store / "config" / name).write_text(json.dumps(content))
    broker = brokers.start(runtime=runtime, directory=str(store))
    assert {name: table(killed(store), name) for name in BEYOND} == CORRECTED
    assert "delay level 1 was at 50 of its queue, which ends at 2" in caplog.text
    assert f"group {GROUP} was at 50 of {HALF_TOPIC} queue 0, which ends at 0" in caplog.text
    client = brokers.connect(broker)
    for number in range(4):
        send_message(client, "T", b"%d" % number, properties=DELAYED)
    runtime.ahead_ms = runtime.gone_ms = 20_000
    wait_visible(broker, "T", 6)


def test_valid_offsets_stay_and_few_corrections_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A truncated log may leave every group's offset beyond its end, so the number of log lines is limited."""
    world = World()
    world.fill()
    offsets = Offsets({f"T@G{number}": {0: 9} for number in range(CORRECTED_TOLD_MAX + 5)} | {"T@ok": {0: 1, 1: 0}})
    assert correct_positions(offsets, DelayOffsets({1: 1}), TimerOffsets((1, 1, 0)), world.store)
    assert (offsets.by_pair["T@G3"], offsets.by_pair["T@ok"], offsets.changed) == ({0: 1}, {0: 1, 1: 0}, True)
    assert len(caplog.messages) == CORRECTED_TOLD_MAX + 1
    assert caplog.messages[-1] == "5 more positions were corrected"
    offsets.changed = False
    assert not correct_positions(offsets, DelayOffsets({1: 1}), TimerOffsets((1, 1, 0)), world.store)
    assert not offsets.changed


def offset(client: RawClient, topic: str, group: str) -> str | None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    return (client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields).ext_fields or {}).get("offset")


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_5, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_groups_offset_is_removed_with_its_topic(brokers: Brokers, tmp_path: Path, policy: Policy) -> None:
    store = tmp_path / "store"
    config = evolve(SMALL_STORE, flush_interval_ms=10)
    broker, client = brokers.served(directory=str(store), policy=policy, store_config=config)
    for topic in ("T", "Other"):
        for number in range(3):
            send_message(client, topic, b"%d" % number)
        broker.groups.find("G")
        broker.offsets.commit(topic, "G", 0, 3)
    wait_until(lambda: (store / "config" / OFFSETS).exists() and "Other@G" in table(store, OFFSETS))
    assert client.delete_topic("T") == 0
    stays = policy is ROCKETMQ_4_9
    assert ("T@G" in table(store, OFFSETS)) == stays
    # A consumer that is still running commits its old offset once more.
    late = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "3"}
    assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, late).code == (17 if policy is ROCKETMQ_5 else 0)
    send_message(client, "T", b"new")
    wait_visible(broker, "T", 1)
    assert (offset(client, "T", "G"), offset(client, "Other", "G")) == ("3" if stays else "0", "3")
    broker.stop()
    broker = brokers.start(directory=str(store), policy=policy)
    # The next start still ignores the old offset, although one message has been added since the deletion.
    assert offset(brokers.connect(broker), "T", "G") == ("1" if stays else "0")


class World:
    def __init__(self, disk: Disk | None = None, before: Callable[[str, str], None] | None = None) -> None:
        self.disk = disk or Disk()
        if disk is None:
            self.disk.make_directory("/data")
            self.disk.root.sync(self.disk.number)
        self.runtime = StoreRuntime()
        self.runtime.simulated = SimulatedFiles(self.disk)
        self.store = MessageStore.open(self.runtime, DIRECTORY, SMALL)
        self.offsets, self.delays, self.timers = Offsets(), DelayOffsets(), TimerOffsets()
        self.files = ConfigFiles(
            self.runtime, f"{DIRECTORY}/config", Topics(), Groups(), self.offsets, self.delays, self.timers,
            self.store.flush,
        )  # fmt: skip
        self.files.load()
        self.flusher = FlushService(self.runtime, self.store, self.files, 500, {})
        if before is not None:
            self.runtime.simulated.before = before

    def fill(self) -> None:
        for topic in ("T", HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
            self.store.put(message(topic))
        self.store.dispatch(100)
        end = self.store.visible_end("T", 0)
        self.offsets.commit("T", "G", 0, end)
        self.offsets.commit(HALF_TOPIC, GROUP, 0, end)
        self.delays.put(1, end)
        self.timers.put(end, end, 7, 0)

    def ends(self) -> dict[str, tuple[int, int]]:
        """Maps each topic to the offset that its table has stored and the end of the topic's queue."""
        positions = {
            "T": self.offsets.query("T", "G", 0) or 0,
            HALF_TOPIC: self.offsets.query(HALF_TOPIC, GROUP, 0) or 0,
            SCHEDULE_TOPIC: self.delays.by_level.get(1, 0),
            TIMER_TOPIC: self.timers.read,
        }
        return {topic: (at, self.store.visible_end(topic, 0)) for topic, at in positions.items()}


def cut_at(number: int, seed: int) -> dict[str, tuple[int, int]] | None:
    """Cut the power before the given disk call of a round; returns the restarted world's `ends`.

    Messages arrive and tables change during the sync of the log. If the round has fewer calls, the result is None.
    """
    calls = 0

    def before(operation: str, path: str) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise Ended
        if operation == "sync" and "commitlog" in path and world.store.log_end < 4 * first_end:
            world.fill()

    world = World()
    world.fill()
    world.flusher._round()
    first_end = world.store.log_end
    world.fill()
    assert world.runtime.simulated is not None
    world.runtime.simulated.before = before
    try:
        world.flusher._round()
        world.flusher._save()
    except Ended:
        world.runtime.simulated.before = lambda *_: None
        return World(world.disk.cut(random.Random(seed), "none")).ends()
    return None


def test_a_topic_saved_in_a_new_store_survives_a_power_cut() -> None:
    """The names of the store's directory and of its parents are synced."""
    for seed in range(10):
        world = World(Disk())
        world.files.topics.put(TopicConfig("Made", 1, 1))
        world.files.save_names()
        assert f"{DIRECTORY}/config/topics.json" in world.disk.cut(random.Random(seed), "none").paths()


def test_offsets_are_saved_after_their_records() -> None:
    """Whenever the power is cut, no saved table has an offset beyond the end of its queue."""
    number = 1
    while (found := cut_at(number, number)) is not None:
        assert all(0 < at <= end for at, end in found.values()), (number, found)
        number += 1
    assert number > 20
    world = World()
    world.fill()
    world.files.flush = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        world.files.save()
    assert world.files.runtime.files.list(f"{DIRECTORY}/config") == []
    world.files.flush = world.store.flush
    world.files.save()
    assert {OFFSETS, DELAYS, TIMERS} <= set(world.files.runtime.files.list(f"{DIRECTORY}/config"))


def test_transaction_checks_correct_a_committed_offset(
    broker: Broker,
) -> None:
    broker.offsets.commit(HALF_TOPIC, GROUP, 0, 50)
    assert broker.sending.checks._standing(HALF_TOPIC) == (0, 0)
    assert broker.offsets.query(HALF_TOPIC, GROUP, 0) == 0
