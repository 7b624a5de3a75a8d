"""Positions in queues: corrected where they are beyond an end, saved after the log, and gone with their topic."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import RawClient, send_message
from model_tests.support.broker.simulated.store import DIRECTORY, Ended, StoreRuntime
from model_tests.support.broker.stores import SMALL, message
from model_tests.support.service import ShiftedRuntime, served
from model_tests.support.store import killed

from longpoll_broker.rocketmq.transactions.transaction_check import GROUP
from longpoll_broker.send.append import HALF_TOPIC
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.timer_offsets import DelayOffsets, TimerOffsets
from longpoll_broker.shared.topics import Groups, Topics
from longpoll_broker.startup import CORRECTED_TOLD_MAX, correct_positions
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.upkeep.config_files import DELAYS, OFFSETS, TIMERS, ConfigFiles
from longpoll_broker.upkeep.flush_service import FlushService
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.names import TIMER_TOPIC
from longpoll_simulation.disk import Disk
from longpoll_simulation.files import SimulatedFiles
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

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
    """A table as it is saved."""
    found: dict[str, Any] = json.loads((store / "config" / name).read_text())["offsetTable"]
    return found


def test_positions_beyond_an_end_are_corrected_before_anything_is_served(
    start_broker: StartBroker, connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of groups, of delay levels, of the checks of transactions and of the timer; what comes next is served."""
    runtime = ShiftedRuntime()
    store = tmp_path / "again"
    broker, client = served(start_broker, connect, runtime=runtime, directory=str(store))
    for number in range(2):
        send_message(client, "T", b"%d" % number, properties=DELAYED)
    runtime.ahead_ms = runtime.gone_ms = 10_000
    wait_until(lambda: broker.store.visible_end("T", 0) == 2)
    broker.stop()
    for name, content in BEYOND.items():
        (store / "config" / name).write_text(json.dumps(content))
    broker = start_broker(runtime=runtime, directory=str(store))
    assert {name: table(killed(store), name) for name in BEYOND} == CORRECTED
    assert "delay level 1 was at 50 of its queue, which ends at 2" in caplog.text
    assert f"group {GROUP} was at 50 of {HALF_TOPIC} queue 0, which ends at 0" in caplog.text
    client = connect(broker.address)
    for number in range(4):
        send_message(client, "T", b"%d" % number, properties=DELAYED)
    runtime.ahead_ms = runtime.gone_ms = 20_000
    wait_until(lambda: broker.store.visible_end("T", 0) == 6)


def test_positions_up_to_an_end_stay_and_so_many_lines_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A log that was cut may leave every group beyond its end."""
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
    """A group's offset of queue 0."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    return (client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields).ext_fields or {}).get("offset")


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_5, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_groups_offset_ends_with_its_topic(
    start_broker: StartBroker, connect: Connect, tmp_path: Path, policy: Policy
) -> None:
    """On the disk, too, when the deletion is answered; 4.9 keeps it. Other topics' offsets stay."""
    store = tmp_path / "store"
    broker, client = served(start_broker, connect, directory=str(store), policy=policy)
    for topic in ("T", "Other"):
        for number in range(3):
            send_message(client, topic, b"%d" % number)
        broker.groups.find("G")
        broker.offsets.commit(topic, "G", 0, 3)
    wait_until(lambda: (store / "config" / OFFSETS).exists() and "Other@G" in table(store, OFFSETS))
    assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    stays = policy is ROCKETMQ_4_9
    assert ("T@G" in table(store, OFFSETS)) == stays
    send_message(client, "T", b"new")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    assert (offset(client, "T", "G"), offset(client, "Other", "G")) == ("3" if stays else "0", "3")
    broker.stop()
    broker = start_broker(directory=str(store), policy=policy)
    # One message has come since: a start does not believe the old offset.
    assert offset(connect(broker.address), "T", "G") == ("1" if stays else "0")


class World:
    """A store, tables that speak of its log, and the thread that saves both, on a simulated disk."""

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
        """A message more in each queue of which a table speaks, and the tables behind it."""
        for topic in ("T", HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
            self.store.put(message(topic))
        self.store.dispatch(100)
        end = self.store.visible_end("T", 0)
        self.offsets.commit("T", "G", 0, end)
        self.offsets.commit(HALF_TOPIC, GROUP, 0, end)
        self.delays.put(1, end)
        self.timers.put(end, end, 7, 0)

    def ends(self) -> dict[str, tuple[int, int]]:
        """By table a position and the end of its queue."""
        positions = {
            "T": self.offsets.query("T", "G", 0) or 0,
            HALF_TOPIC: self.offsets.query(HALF_TOPIC, GROUP, 0) or 0,
            SCHEDULE_TOPIC: self.delays.by_level.get(1, 0),
            TIMER_TOPIC: self.timers.read,
        }
        return {topic: (at, self.store.visible_end(topic, 0)) for topic, at in positions.items()}


def cut_at(number: int, seed: int) -> dict[str, tuple[int, int]] | None:
    """What a power cut leaves before one of the disk's calls of a round; None where a round has no so many.

    Messages come, and tables move on, while the log is being synced.
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


def test_no_position_is_saved_before_the_records_that_it_speaks_of() -> None:
    """A power cut before any call of the disk leaves no table beyond its queue, and those saved before it."""
    number = 1
    while (found := cut_at(number, number)) is not None:
        assert all(0 < at <= end for at, end in found.values()), (number, found)
        number += 1
    assert number > 20


def test_a_log_that_cannot_be_made_durable_keeps_positions_as_they_were_saved() -> None:
    """They are saved once it can be."""
    world = World()
    world.fill()
    world.files.flush = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        world.files.save()
    assert world.files.runtime.files.list(f"{DIRECTORY}/config") == []
    world.files.flush = world.store.flush
    world.files.save()
    assert {OFFSETS, DELAYS, TIMERS} <= set(world.files.runtime.files.list(f"{DIRECTORY}/config"))


def test_the_checks_of_transactions_correct_an_offset_that_somebody_committed(
    start_broker: StartBroker,
) -> None:
    """Once, with a line in the log: what comes next is asked about."""
    broker = start_broker()
    broker.offsets.commit(HALF_TOPIC, GROUP, 0, 50)
    assert broker.sending.checks._standing(HALF_TOPIC) == (0, 0)
    assert broker.offsets.query(HALF_TOPIC, GROUP, 0) == 0
