"""A slave is told how far its master's timer is: started as a master it delivers what waits, and nothing again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from model_tests.service.test_timers import START_MS, Clock

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.service.following import follower, table_copies
from longpoll_broker.service.following.asking import Asking
from longpoll_broker.service.following.master import Master
from longpoll_broker.service.following.table_copies import TableCopies
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, records_of, send_fields
from longpoll_protocol.bodies import TimerCheckpoint
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.names import TIMER_TOPIC
from longpoll_protocol.properties import encode_properties
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

DELAYS, TIMER = RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_TIMER_CHECK_POINT


class Pair:
    """A master and its slave by one clock."""

    def __init__(self, start: StartBroker, directory: Path) -> None:
        self.clock = Clock()
        self._start, self._directory = start, directory
        self.master = self.started("master", BrokerConfig(ha_port=0))
        assert self.master.replicating.replicator is not None
        address = "{}:{}".format(*self.master.address)
        ha = "{}:{}".format(*self.master.replicating.replicator.address)
        self.slave = self.started("slave", BrokerConfig(role="SLAVE", broker_id=1, master=address, ha_master=ha))

    def started(self, name: str, config: BrokerConfig) -> Broker:
        return self._start(runtime=self.clock, policy=ROCKETMQ_5, config=config, directory=str(self._directory / name))

    def progress(self) -> tuple[int, int, int]:
        """How far the slave knows the master's timer to be."""
        return self.slave.shared.timers.progress


@pytest.fixture
def pair(start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setattr(table_copies, "TIMER_COPY_MS", 10)
    monkeypatch.setattr(follower, "RETRY_MS", 20)
    return Pair(start_broker, tmp_path)


def send(client: RawClient, body: bytes, **properties: str) -> None:
    """Send a message with these properties."""
    told = client.call(
        RequestCode.SEND_MESSAGE_V2,
        send_fields("T", properties=encode_properties({"UNIQ_KEY": "K", **properties})),
        body,
    )
    assert told.code == 0, told.remark


def bodies(client: RawClient) -> list[bytes]:
    """Those of the visible messages of T."""
    told = client.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
    return [bytes(record.body) for record in records_of(told)] if told.code == 0 else []


def test_a_slave_that_becomes_master_delivers_nothing_again(pair: Pair, connect: Connect) -> None:
    client = connect(pair.master.address)
    send(client, b"later", TIMER_DELAY_SEC="60")
    send(client, b"soon", TIMER_DELAY_SEC="1")
    wait_until(lambda: pair.master.shared.timers.pending_count == 2)
    pair.clock.now_ms += 3000
    wait_until(lambda: bodies(client) == [b"soon"])
    wait_until(lambda: pair.progress() == pair.master.shared.timers.progress != (0, 0, -1))
    wait_until(lambda: pair.slave.store.log_end == pair.master.store.log_end)
    pair.master.stop()
    pair.slave.stop()
    heir = pair.started("slave", BrokerConfig())
    client = connect(heir.address)
    # Waits as the one that is first in the queue: when it was read the other one was too.
    wait_until(lambda: heir.shared.timers.pending_count == 1)
    pair.clock.now_ms += 100_000
    wait_until(lambda: bodies(client)[-1:] == [b"later"])
    assert bodies(client) == [b"soon", b"later"]


def copies_of(slave: Broker) -> TableCopies:
    """Who copies tables for it, on the test's thread."""
    shared = slave.shared
    return TableCopies(
        shared.runtime,
        Master(None, None),
        shared.topics,
        shared.groups,
        shared.offsets,
        shared.delays,
        shared.timers,
        lambda: slave.store.log_end,
    )


@pytest.fixture
def lone(start_broker: StartBroker) -> Broker:
    return start_broker(policy=ROCKETMQ_5, config=BrokerConfig(role="SLAVE", broker_id=1))


@pytest.mark.parametrize("code", [DELAYS, TIMER])
def test_what_is_delivered_counts_when_it_is_here(
    lone: Broker, code: RequestCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is behind is waited for; in vain: nothing is taken, and it is told."""
    monkeypatch.setattr(table_copies, "LOG_WAIT_MS", 20)
    end = lone.store.log_end
    told = {
        DELAYS: Command(0, ext_fields={"logEnd": str(end)}, body=b'{"offsetTable":{1:9}}'),
        TIMER: Command(0, ext_fields={"logEnd": str(end), "firstOffset": "3"}, body=TimerCheckpoint(5000, 7).encode()),
    }
    ahead = {"logEnd": str(end + 1)}
    told[code] = evolve_fields(told[code], ahead)
    copies_of(lone).copy(Told(told))
    assert lone.shared.delays.by_level == ({} if code == DELAYS else {1: 9})
    assert lone.shared.timers.progress == ((0, 0, -1) if code == TIMER else (3, 7, 4000))


def evolve_fields(told: Command, fields: dict[str, str]) -> Command:
    return Command(told.code, ext_fields=fields, body=told.body)


class Told(Asking):
    """A master that answers what a test says."""

    def __init__(self, answers: Mapping[RequestCode, Command]) -> None:
        # Nothing is connected.
        self._answers = answers

    def ask(self, code: int, fields: dict[str, str] | None = None, body: object = b"") -> Command:
        return self._answers.get(RequestCode(code), Command(0, body=b"{}"))

    def __str__(self) -> str:
        return "a master"


def test_a_master_of_rocketmq_says_less(lone: Broker) -> None:
    lone.shared.timers.put(2, 4, 1000, 0)
    copies_of(lone).copy(Told({TIMER: Command(0, body=TimerCheckpoint(9000, 6).encode()[:32])}))
    assert lone.shared.timers.progress == (2, 6, 8000)


@pytest.mark.parametrize("body", [b"", bytes(31), TimerCheckpoint(-1, 0).encode(), TimerCheckpoint(0, -1).encode()])
def test_what_is_no_checkpoint_is_refused(body: bytes) -> None:
    with pytest.raises(HeaderError, match="TimerCheckpoint"):
        TimerCheckpoint.decode(body)


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9])
def test_others_have_no_timer_to_tell_of(start_broker: StartBroker, connect: Connect, policy: Policy) -> None:
    told = connect(start_broker(policy=policy).address).call(TIMER)
    assert told.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_timer_that_was_told_of_more_than_there_is_begins_where_its_queue_ends(pair: Pair, connect: Connect) -> None:
    """The messages that its log lacks it has not read: those that come in their places are not taken for delivered."""
    kept = {"first": 7, "read": 7, "deliveredMs": START_MS + 50_000}
    pair.slave.stop()
    directory = Path(pair.slave.store.directory) / "config"
    (directory / "timerOffset.json").write_text(json.dumps({"offsetTable": kept}))
    heir = pair.started("slave", BrokerConfig())
    client = connect(heir.address)
    wait_until(lambda: heir.shared.timers.read == 0)
    send(client, b"new", TIMER_DELAY_SEC="1")
    wait_until(lambda: heir.shared.timers.pending_count == 1)
    pair.clock.now_ms += 5000
    wait_until(lambda: bodies(client) == [b"new"])
    assert heir.store.visible_end(TIMER_TOPIC, 0) == 1
