"""A slave behind its master, through real sockets: the same log and queues, whatever ends a connection or a process."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from model_tests.conformance.java_broker import free_port

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.core.tables.topics import GroupConfig, TopicConfig
from longpoll_broker.opening import ANY_PORT
from longpoll_broker.service.following import follower, table_copies
from longpoll_broker.service.following.asking import PeerError
from longpoll_broker.service.following.master import Master
from longpoll_broker.service.following.table_copies import TableCopies
from longpoll_broker.service.replication import replicator
from longpoll_broker.service.replication.flow import Flow
from longpoll_broker.service.replication.slave_link import UNREPORTED_SIZE_MAX, SlaveLink
from longpoll_broker.testing.brokers import SMALL_STORE, Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, records_of, send_fields, send_message
from longpoll_broker.testing.stores import message, read_all
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Address, Socket
from longpoll_runtime.sockets import RealListener, RealPoller
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

TINY: StoreConfig = attrs.evolve(SMALL_STORE, commit_log_file_size=64 * 1024, message_size_max=32 * 1024)
"""Files that a few dozen messages fill."""
LONG_MS: Final = 600_000
"""What no passing test waits for."""
POLICIES = pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)


class Cluster:
    """A master and slaves of it, each in a directory of its own."""

    def __init__(self, start_broker: StartBroker, directory: Path, connect: Connect) -> None:
        self._start = start_broker
        self.directory = directory
        self._connect = connect

    def master(
        self, *, policy: Policy = STRICT, store: StoreConfig = TINY, listen: Address = ANY_PORT, **settings: Any
    ) -> Broker:
        """A broker that slaves may follow."""
        config = BrokerConfig(**{"ha_port": 0, **settings})
        directory = str(self.directory / "master")
        return self._start(directory=directory, policy=policy, config=config, store_config=store, listen=listen)

    def slave(
        self, ha: Address, *, policy: Policy = STRICT, name: str = "slave", store: StoreConfig = TINY, **settings: Any
    ) -> Broker:
        """A broker that follows whoever sends its log there."""
        given = {"role": "SLAVE", "broker_id": 1, "ha_master": f"{ha[0]}:{ha[1]}", "slave_read": True}
        config = BrokerConfig(**{**given, **settings})
        directory = str(self.directory / name)
        return self._start(directory=directory, policy=policy, config=config, store_config=store)

    def fill(self, broker: Broker, count: int, size: int = 100) -> None:
        """Send messages to queue 0 of T."""
        client = self._connect(broker.address)
        for number in range(count):
            send_message(client, "T", number.to_bytes(4) + bytes(size))


@pytest.fixture
def cluster(start_broker: StartBroker, tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Nothing started yet; slaves soon try again."""
    monkeypatch.setattr(follower, "RETRY_MS", 20)
    return Cluster(start_broker, tmp_path, connect)


def ha_of(broker: Broker) -> Address:
    """Where slaves connect."""
    assert broker.replicating.replicator is not None
    return broker.replicating.replicator.address


def caught_up(slave: Broker, master: Broker) -> bool:
    """Whether a slave has and shows everything, and its master knows that."""
    assert master.replicating.replicator is not None
    behind = master.replicating.replicator.behind_bytes
    ends = {slave.store.dispatched_end, master.store.dispatched_end, master.store.log_end}
    return len(ends) == 1 and set(behind.values()) == {0}


def check_equal(slave: Broker, master: Broker) -> None:
    """The same messages in the same queues."""
    wait_until(lambda: caught_up(slave, master))
    assert slave.store.queues() == master.store.queues()
    for queue in master.store.queues():
        assert read_all(slave.store, *queue) == read_all(master.store, *queue)


@POLICIES
def test_a_slave_has_what_its_master_has(cluster: Cluster, connect: Connect, policy: Policy) -> None:
    """What was there before it came and what is sent meanwhile, over several files; and pulls find it there."""
    master = cluster.master(policy=policy)
    cluster.fill(master, 20)
    slave = cluster.slave(ha_of(master), policy=policy)
    cluster.fill(master, 60, 3000)
    check_equal(slave, master)
    assert master.store.log_end > 2 * TINY.commit_log_file_size
    slave.topics.put(TopicConfig("T"))
    reply = connect(slave.address).call(RequestCode.PULL_MESSAGE, pull_fields("T", 78))
    assert [bytes(record.body)[:4] for record in records_of(reply)] == [(58).to_bytes(4), (59).to_bytes(4)]


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_slave_that_has_nothing_begins_with(cluster: Cluster, policy: Policy) -> None:
    """All of the log under strict; RocketMQ's master sends the last file, as both versions of it do."""
    master = cluster.master(policy=policy)
    cluster.fill(master, 60, 3000)
    slave = cluster.slave(ha_of(master), policy=policy)
    wait_until(lambda: caught_up(slave, master))
    size = TINY.commit_log_file_size
    last = master.store.log_end - master.store.log_end % size
    assert slave.store.log_start == (last if policy is ROCKETMQ_4_9 else 0)
    assert slave.store.visible_end("T", 0) == 60
    cluster.fill(master, 3)
    wait_until(lambda: caught_up(slave, master))
    assert read_all(slave.store, "T", 0) == read_all(master.store, "T", 0)[slave.store.visible_start("T", 0) :]


def test_a_slave_goes_on_where_it_stopped(cluster: Cluster) -> None:
    """Stopped, or master and slave both, in whatever order they come back; a slave may have slaves of its own."""
    master = cluster.master()
    port = ha_of(master)[1]
    slave = cluster.slave(ha_of(master), ha_port=0)
    third = cluster.slave(ha_of(slave), name="third", broker_id=2)
    cluster.fill(master, 10)
    check_equal(slave, master)
    slave.stop()
    cluster.fill(master, 30, 3000)
    master.stop()
    slave = cluster.slave(("127.0.0.1", port), ha_port=slave_port(slave))
    assert slave.store.visible_end("T", 0) == 10
    master = cluster.master(ha_port=port)
    cluster.fill(master, 1)
    check_equal(slave, master)
    check_equal(third, slave)


@pytest.mark.parametrize(("policy", "only_visible"), [(STRICT, True), (ROCKETMQ_4_9, False), (ROCKETMQ_5, False)])
def test_no_slave_is_ahead_of_what_its_master_shows(cluster: Cluster, policy: Policy, only_visible: bool) -> None:
    """Under strict; RocketMQ sends whatever is in the log."""
    master = cluster.master(policy=policy)
    slave = cluster.slave(ha_of(master), policy=policy)
    replicator = master.replicating.replicator
    assert replicator is not None
    wait_until(lambda: bool(replicator._links))
    assert [link.only_visible for link in replicator._links] == [only_visible]
    cluster.fill(master, 3)
    check_equal(slave, master)


def slave_port(slave: Broker) -> int:
    """Its own port for slaves, to be given again."""
    return ha_of(slave)[1]


def test_who_waits_at_a_slave_is_told_of_what_is_copied(cluster: Cluster, connect: Connect) -> None:
    """By what the master sends, and not by a scan."""
    master = cluster.master()
    slave = cluster.slave(ha_of(master))
    cluster.fill(master, 1)
    check_equal(slave, master)
    slave.topics.put(TopicConfig("T"))
    client = connect(slave.address)
    opaque = client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=30_000))
    wait_until(lambda: len(slave.hold_service) == 1)
    cluster.fill(master, 1)
    reply = client.reply(opaque)
    assert reply is not None
    assert len(records_of(reply)) == 1


def lines_of(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """The reasons told with an event."""
    return [told["reason"] for told in told_of(caplog) if told["event"] == event]


def told_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The fields of every line that has some."""
    return [found for record in caplog.records if (found := getattr(record, "longpoll_fields", None)) is not None]


def test_a_slave_whose_log_is_longer_is_let_go(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """As it is after a master lost its last messages: who has more cannot follow, and both logs stay as they are."""
    master = cluster.master()
    cluster.fill(master, 5)
    master.stop()
    shutil.copytree(cluster.directory / "master", cluster.directory / "slave")
    other = cluster._start(directory=str(cluster.directory / "slave"), store_config=TINY)
    cluster.fill(other, 3)
    end = other.store.log_end
    other.stop()
    with caplog.at_level(logging.INFO):
        master = cluster.master()
        slave = cluster.slave(ha_of(master))
        wait_until(lambda: any("so they differ" in reason for reason in lines_of(caplog, "slave_closed")))
    assert slave.store.log_end == end


def test_a_slave_whose_log_differs_takes_nothing(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Its end is in the middle of a record of the master's: nothing of that is shown."""
    other = cluster._start(directory=str(cluster.directory / "slave"), store_config=TINY)
    cluster.fill(other, 3, 120)
    end = other.store.log_end
    other.stop()
    with caplog.at_level(logging.INFO):
        master = cluster.master()
        cluster.fill(master, 50)
        slave = cluster.slave(ha_of(master))
        wait_until(lambda: any("no record and no blank" in reason for reason in lines_of(caplog, "master_lost")))
    assert (slave.store.log_end, slave.store.visible_end("T", 0)) == (end, 3)


class FakeMaster:
    """Sends a slave whatever a test says."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listening.getsockname()
        self.connected: socket.socket | None = None

    def accept(self) -> int:
        """Wait for the slave, and for where its log ends."""
        self.close_connection()
        self._listening.settimeout(20)
        self.connected = self._listening.accept()[0]
        self.connected.settimeout(20)
        return self.report()

    def report(self) -> int:
        """What it says next."""
        assert self.connected is not None
        content = b""
        while len(content) < 8:
            got = self.connected.recv(8 - len(content))
            assert got, "the slave has closed the connection"
            content += got
        return int.from_bytes(content, signed=True)

    def send(self, offset: int, content: bytes, size: int | None = None) -> None:
        """A transfer."""
        assert self.connected is not None
        self.connected.sendall(struct.pack(">qi", offset, len(content) if size is None else size) + content)

    def is_closed(self) -> bool:
        """Whether the slave ends the connection."""
        assert self.connected is not None
        try:
            while self.connected.recv(4096):
                pass
        except ConnectionError:
            pass
        return True

    def close_connection(self) -> None:
        """End the connection, if there is one."""
        if self.connected is not None:
            self.connected.close()

    def close(self) -> None:
        """Everything."""
        self.close_connection()
        self._listening.close()


@pytest.fixture
def fake_master() -> Any:
    """One that is closed at the end."""
    fake = FakeMaster()
    yield fake
    fake.close()


def log_of(cluster: Cluster, count: int) -> bytes:
    """The log of a store with messages."""
    source = cluster._start(directory=str(cluster.directory / "source"), store_config=TINY)
    for number in range(count):
        source.store.put(message(body=bytes([number]) * 50))
    part = source.store.log_part(0, source.store.log_end)
    assert part is not None
    content = bytes(part)
    del part
    source.stop()
    return content


def test_half_a_record_is_neither_shown_nor_reported(cluster: Cluster, fake_master: FakeMaster) -> None:
    """A master that dies in the middle of one leaves whole ones; the slave asks for it anew, and survives a crash."""
    content = log_of(cluster, 2)
    half = len(content) // 2
    slave = cluster.slave(fake_master.address)
    assert fake_master.accept() == 0
    fake_master.send(0, content[: half + 20])
    assert fake_master.report() == half
    fake_master.close_connection()
    assert fake_master.accept() == half
    assert slave.store.visible_end("T", 0) == 1
    fake_master.send(half, content[half : half + 1])
    fake_master.send(half + 1, b"")
    fake_master.send(half + 1, content[half + 1 :])
    assert fake_master.report() == len(content)
    assert slave.store.visible_end("T", 0) == 2


def test_a_record_that_comes_byte_by_byte_is_looked_at_twice(
    cluster: Cluster, fake_master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its head is there, and when it is whole; it was copied as often as a piece of it came."""
    content = log_of(cluster, 2)
    slave = cluster.slave(fake_master.address)
    looked_at: list[int] = []
    put = slave.store.put_copied

    def counted(start: int, given: memoryview) -> int:
        looked_at.append(len(given))
        return put(start, given)

    monkeypatch.setattr(slave.store, "put_copied", counted)
    assert fake_master.accept() == 0
    half = len(content) // 2
    for at in range(half):
        fake_master.send(at, content[at : at + 1])
    assert fake_master.report() == half
    assert looked_at == [*range(1, 9), half]
    fake_master.send(half, content[half:])
    assert fake_master.report() == len(content)
    assert slave.store.visible_end("T", 0) == 2


@pytest.mark.parametrize(
    ("transfer", "told"),
    [
        ((7, b""), "but 20 comes next here"),
        ((0, b"HTTP/1.1 400 Bad Request"), "no record and no blank"),
        ((0, b"", -1), "is that address its port for slaves"),
        ((-1, b"", 0), "is that address its port for slaves"),
        ((0, b"", 4 * 1024 * 1024 - 11), "is that address its port for slaves"),
        ((5, b"x" * 100), "where no file of"),
        ((0, bytes(100)), "no record and no blank"),
    ],
)
def test_what_is_no_log_ends_the_connection(
    cluster: Cluster, fake_master: FakeMaster, caplog: pytest.LogCaptureFixture, transfer: tuple[Any, ...], told: str
) -> None:
    """With a line that says what it is; nothing is appended, and the slave tries again."""
    slave = cluster.slave(fake_master.address)
    assert fake_master.accept() == 0
    if transfer[0]:
        # An empty log takes any beginning, so this one gets one, but where a beginning is what is wrong.
        fake_master.send(0, log_of(cluster, 1)[: 20 if transfer[0] == 7 else 0])
    fake_master.send(*transfer)
    assert fake_master.is_closed()
    wait_until(lambda: any(told in reason for reason in lines_of(caplog, "master_lost")))
    assert slave.store.log_end == 0
    assert fake_master.accept() == 0


@pytest.mark.parametrize("sent", [b"HTTP/1.1 400 Bad Request", b"H"])
def test_an_empty_log_begins_nowhere_for_what_is_no_log(cluster: Cluster, fake_master: FakeMaster, sent: bytes) -> None:
    """Also not where a file might begin: a true master that comes later would take it for a longer log."""
    slave = cluster.slave(fake_master.address)
    assert fake_master.accept() == 0
    start = TINY.commit_log_file_size * 9
    fake_master.send(start, sent)
    if len(sent) > 8:
        assert fake_master.is_closed()
    else:
        wait_until(lambda: slave.store.log_end == start)
    assert fake_master.accept() == 0
    content = log_of(cluster, 1)
    fake_master.send(0, content)
    assert fake_master.report() == len(content)
    wait_until(lambda: slave.store.visible_end("T", 0) == 1)


def test_a_master_that_says_nothing_is_left(
    cluster: Cluster, fake_master: FakeMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """And so is a slave that does: each is asked to say something now and then."""
    cluster.slave(fake_master.address, ha_idle_ms_max=100, ha_heartbeat_ms=20)
    assert [fake_master.accept(), fake_master.report()] == [0, 0]
    assert fake_master.is_closed()
    wait_until(lambda: lines_of(caplog, "master_lost") == ["it has sent nothing for 100 ms"])
    master = cluster.master(ha_idle_ms_max=100)
    with socket.create_connection(ha_of(master)) as silent:
        silent.settimeout(20)
        assert silent.recv(1) == b""
    wait_until(lambda: lines_of(caplog, "slave_closed") == ["it has sent nothing for 100 ms"])


def test_a_master_greets_a_slave_that_lacks_nothing(cluster: Cluster) -> None:
    """With where it is and no bytes, from the first report on and not before."""
    master = cluster.master(ha_heartbeat_ms=20)
    with socket.create_connection(ha_of(master)) as slave:
        slave.settimeout(20)
        slave.sendall(struct.pack(">q", 0))
        assert slave.recv(12, socket.MSG_WAITALL) == bytes(12)
        assert slave.recv(12, socket.MSG_WAITALL) == bytes(12)


@pytest.mark.parametrize(
    ("report", "told"),
    [(-1, "an offset is at least 0"), (10**12, "so they differ"), (-(2**63), "an offset is at least 0")],
)
def test_a_report_that_cannot_be_ends_the_connection(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, report: int, told: str
) -> None:
    """And costs no other slave anything."""
    master = cluster.master()
    slave = cluster.slave(ha_of(master))
    with socket.create_connection(ha_of(master)) as bad:
        bad.settimeout(20)
        bad.sendall(struct.pack(">q", report))
        assert bad.recv(1) == b""
    wait_until(lambda: any(told in reason for reason in lines_of(caplog, "slave_closed")))
    cluster.fill(master, 3)
    wait_until(lambda: caught_up(slave, master))


def test_there_are_no_more_slaves_than_may_be(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """One more is closed at once; the others go on."""
    master = cluster.master(slave_count_max=1)
    slave = cluster.slave(ha_of(master))
    cluster.fill(master, 1)
    wait_until(lambda: caught_up(slave, master))
    with socket.create_connection(ha_of(master)) as more:
        more.settimeout(20)
        assert more.recv(1) == b""
    wait_until(lambda: [told["count"] for told in told_of(caplog) if told["event"] == "slave_refused"] == [1])
    cluster.fill(master, 1)
    wait_until(lambda: caught_up(slave, master))


def test_who_does_not_say_what_it_wants_keeps_no_slave_out(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """It gives its place to who comes, and one that has said it does not."""
    master = cluster.master(slave_count_max=2, ha_idle_ms_max=LONG_MS)
    cluster.fill(master, 1)
    with socket.create_connection(ha_of(master)) as first, socket.create_connection(ha_of(master)) as second:
        first.sendall(bytes(7))
        slave = cluster.slave(ha_of(master))
        wait_until(lambda: slave.store.dispatched_end == master.store.log_end)
        first.settimeout(20)
        assert first.recv(1) == b""
        other = cluster.slave(ha_of(master), name="other")
        second.settimeout(20)
        assert second.recv(1) == b""
    cluster.fill(master, 1)
    wait_until(lambda: caught_up(slave, master) and caught_up(other, master))
    with socket.create_connection(ha_of(master)) as more:
        more.settimeout(20)
        assert more.recv(1) == b""
    reason = "it has not said what it wants, and another one is there"
    assert lines_of(caplog, "slave_closed")[:2] == [reason, reason]
    assert lines_of(caplog, "slave_refused") == ["there are 2 already"]


def test_a_byte_now_and_then_keeps_no_place(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A report in parts, a byte again and again, is nothing said before it is whole: its place is a slave's then.

    Who drips has as many bytes left as it said when it is let go, unless the machine was too slow for that.
    """
    master = cluster.master(slave_count_max=1, ha_idle_ms_max=400)
    cluster.fill(master, 1)
    deadline_s, said = time.monotonic() + 20, 7
    while said > 6:
        assert time.monotonic() < deadline_s, "it is let go only after its last byte"
        said, is_gone = 0, False
        with socket.create_connection(ha_of(master)) as dripping, suppress(ConnectionError):
            dripping.settimeout(0.15)
            while not is_gone:
                said += dripping.send(b"\0") if said < 7 else 0
                with suppress(TimeoutError):
                    is_gone = dripping.recv(1) == b""
    # The line follows the close.
    wait_until(lambda: "it has sent nothing for 400 ms" in lines_of(caplog, "slave_closed"))
    slave = cluster.slave(ha_of(master))
    wait_until(lambda: slave.store.dispatched_end == master.store.log_end)


def test_a_slave_that_gets_no_further_is_let_go(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Though it reads all that it is sent, and says again and again that it has nothing."""
    master = cluster.master(ha_idle_ms_max=200, ha_heartbeat_ms=20)
    cluster.fill(master, 1)
    deadline_s = time.monotonic() + 20
    # On a busy machine it may be let go for its silence, and tries again.
    while "it has got no further for 200 ms" not in lines_of(caplog, "slave_closed"):
        assert time.monotonic() < deadline_s, lines_of(caplog, "slave_closed")
        with socket.create_connection(ha_of(master)) as pretender, suppress(ConnectionError):
            pretender.settimeout(20)
            pretender.sendall(bytes(8))
            while pretender.recv(4096) != b"" and time.monotonic() < deadline_s:
                # Each greeting is answered.
                pretender.sendall(bytes(8))


class Taken:
    """A slave's socket: what it says is a list of bytes, and it takes what it may."""

    def __init__(self, *said: bytes) -> None:
        self.said = list(said)
        self.room = 0

    def recv_into(self, buffer: bytearray) -> int:
        """The next bytes."""
        if not self.said:
            raise BlockingIOError
        content = self.said.pop(0)
        buffer[: len(content)] = content
        return len(content)

    def send_parts(self, parts: tuple[bytes, ...]) -> int:
        """As many as there is room for."""
        size = min(self.room, sum(map(len, parts)))
        if not size:
            raise BlockingIOError
        self.room -= size
        return size


def test_what_counts_as_said_and_as_got_further(cluster: Cluster) -> None:
    """A whole report is something said; bytes taken count until too many are unreported, and having everything does."""
    master = cluster.master(store=attrs.evolve(SMALL_STORE, commit_log_file_size=64 * MIB))
    cluster.fill(master, 20, size=MIB)
    taken: Any = Taken(bytes(7))
    link = SlaveLink(taken, ("127.0.0.1", 1), master.store, MIB, False, False, 1, 1)
    assert link.read(2)
    assert (link.heard_ns, link.moved_ns) == (1, 1)
    taken.said = [bytes(1)]
    assert link.read(3)
    assert (link.heard_ns, link.moved_ns, link.lacked_size) == (3, 3, 0)
    taken.room = 10
    assert not link.write(4)
    assert (link.moved_ns, link.lacked_size) == (4, MIB)
    taken.said = [bytes(8)]
    assert link.read(5)
    assert (link.heard_ns, link.moved_ns) == (5, 4)
    taken.room = 17 * MIB
    for now_ns in range(6, 30):
        link.write(now_ns)
    assert link.lacked_size > UNREPORTED_SIZE_MAX
    stuck_ns = link.moved_ns
    taken.room = MIB
    link.write(40)
    assert link.moved_ns == stuck_ns < 40
    taken.said = [struct.pack(">q", MIB)]
    assert link.read(41)
    assert (link.heard_ns, link.moved_ns) == (41, 41)
    taken.room = 100 * MIB
    while link.write(42):
        pass
    taken.said = [struct.pack(">q", master.store.log_end)]
    assert link.read(43)
    assert (link.lacked_size, link.moved_ns) == (0, 43)
    taken.said = [struct.pack(">q", master.store.log_end)]
    assert link.read(44)
    assert link.moved_ns == 44


def test_a_slave_that_begins_with_the_last_file_lacks_nothing_before_it(cluster: Cluster) -> None:
    """It reports 0 until that file has something."""
    master = cluster.master()
    cluster.fill(master, 1000)
    assert master.store.log_start == 0 < TINY.commit_log_file_size < master.store.log_end
    taken: Any = Taken(bytes(8))
    link = SlaveLink(taken, ("127.0.0.1", 1), master.store, MIB, True, False, 1, 1)
    assert link.read(2)
    assert (link.reported_offset, link.lacked_size) == (0, 0)
    assert link.next_offset > 0


def test_a_crowd_at_the_port_for_slaves_keeps_nobody_from_being_served(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast strangers connect: slaves have their turn in between."""
    master = cluster.master(slave_addresses="127.0.0.1")
    slave = cluster.slave(ha_of(master))
    cluster.fill(master, 1)
    wait_until(lambda: caught_up(slave, master))
    accept, is_over = RealListener.accept, threading.Event()
    near, far = socket.socketpair()

    def crowd(listener: RealListener) -> tuple[Socket, Address]:
        if listener.address != ha_of(master) or is_over.is_set():
            return accept(listener)
        stranger: Any = near
        return stranger, ("10.0.0.1", 1)

    monkeypatch.setattr(RealListener, "accept", crowd)
    with near, far, RawClient(ha_of(master)):
        try:
            cluster.fill(master, 3)
            wait_until(lambda: caught_up(slave, master))
        finally:
            is_over.set()


@pytest.mark.parametrize(
    ("allowed", "is_one"),
    [("127.0.0.1", True), ("10.0.0.0/8; 127.0.0.0/8", True), ("10.0.0.0/8", False), ("127.0.0.2", False), ("", True)],
)
def test_slaves_may_come_from_these_addresses(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, allowed: str, is_one: bool
) -> None:
    """Others are told nothing."""
    master = cluster.master(slave_addresses=allowed)
    cluster.fill(master, 1)
    with socket.create_connection(ha_of(master)) as slave:
        slave.settimeout(20)
        told = b""
        with suppress(ConnectionError):
            slave.sendall(bytes(8))
            told = slave.recv(1)
        assert bool(told) == is_one
    assert lines_of(caplog, "slave_refused") == ([] if is_one else ["slaveAddresses does not have it"])


@pytest.mark.parametrize(
    ("peer", "allowed", "is_one"),
    [
        ("::ffff:10.0.0.7", "10.0.0.0/8", True),
        ("::ffff:10.0.0.7", "::ffff:0:0/96", False),
        ("::ffff:11.0.0.7", "10.0.0.0/8", False),
        ("2001:db8::1", "10.0.0.0/8; 2001:db8::/32", True),
        ("2001:db8::1", "10.0.0.0/8", False),
        ("10.0.0.7", "2001:db8::/32", False),
    ],
)
def test_an_ipv4_slave_that_an_ipv6_socket_shows_is_one_of_ipv4(
    cluster: Cluster, peer: str, allowed: str, is_one: bool
) -> None:
    """`::ffff:10.0.0.7` is 10.0.0.7, and networks are compared with that; others with what they are."""
    found = cluster.master(slave_addresses=allowed).replicating.replicator
    assert found is not None
    assert found._refusal((peer, 1)) == ("" if is_one else "slaveAddresses does not have it")


def test_without_descriptors_slaves_are_accepted_later(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is not looked at again at once, which would be for ever, and a line a try in the log."""
    monkeypatch.setattr(replicator, "ACCEPT_PAUSE_S", 0.01)
    done: list[str] = []
    accept, modify = RealListener.accept, RealPoller.modify

    def refused(listener: RealListener) -> tuple[Socket, Address]:
        if listener.address != ha_of(master) or done.count("refused") == 3:
            return accept(listener)
        done.append("refused")
        raise OSError(errno.EMFILE, "Too many open files")

    def told(poller: RealPoller, key: Any, *, read: bool, write: bool, data: object) -> None:
        modify(poller, key, read=read, write=write, data=data)
        if isinstance(key, RealListener) and key.address == ha_of(master):
            done.append("looked at" if read else "left alone")

    master = cluster.master()
    monkeypatch.setattr(RealListener, "accept", refused)
    monkeypatch.setattr(RealPoller, "modify", told)
    slave = cluster.slave(ha_of(master))
    cluster.fill(master, 3)
    wait_until(lambda: len(slave.store.queues()) > 0 and caught_up(slave, master))
    assert done == ["refused", "left alone", "looked at"] * 3
    assert ["Too many open files" in reason for reason in lines_of(caplog, "connection_refused")] == [True] * 3


def test_settings_that_cannot_be_are_told(cluster: Cluster) -> None:
    """Each with what to write instead."""
    with pytest.raises(ConfigError, match="haTransferBatchSize"):
        cluster.master(transfer_size=0)
    with pytest.raises(ConfigError, match="only a slave can follow"):
        cluster.master(ha_master="127.0.0.1:1")
    for bad in ("localhost", "10.0.0.1/8", "127.0.0.1,127.0.0.2"):
        with pytest.raises(ConfigError, match=r"slaveAddresses: .*write addresses or networks"):
            cluster.master(slave_addresses=bad)
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        cluster.slave(("127.0.0.1", 0))


def test_tables_are_copied_and_a_slave_is_found_by_the_name_server(cluster: Cluster, connect: Connect) -> None:
    """A slave that is told of a name server alone hears of its master there, and clients hear of the slave."""
    master = cluster.master()
    cluster.fill(master, 3)
    master.groups.put(GroupConfig("G", retry_max_times=3))
    master.offsets.commit("T", "G", 0, 2)
    master.shared.delays.put(3, 7)
    at = "{}:{}".format(*master.name_server_address)
    slave = cluster.slave(ha_of(master), ha_master="", name_servers=at)
    check_equal(slave, master)
    tables = slave.replicating.tables
    assert tables is not None
    wait_until(lambda: tables.round_count > 0)
    assert slave.topics.by_name == master.topics.by_name
    assert slave.groups.by_name == master.groups.by_name
    assert (slave.offsets.by_pair, slave.shared.delays.by_level) == ({"T@G": {0: 2}}, {3: 7})
    client = connect(master.name_server_address)
    addresses = {"0": "{}:{}".format(*master.address), "1": "{}:{}".format(*slave.address)}
    assert (
        brokers_of(client, RequestCode.GET_BROKER_CLUSTER_INFO)["brokerAddrTable"]["broker-a"]["brokerAddrs"]
        == addresses
    )
    route = brokers_of(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert [data["brokerAddrs"] for data in route["brokerDatas"]] == [addresses]
    slave.stop()
    wait_until(
        lambda: (
            list(brokers_of(client, RequestCode.GET_BROKER_CLUSTER_INFO)["brokerAddrTable"]["broker-a"]["brokerAddrs"])
            == ["0"]
        )
    )


ACCOUNTS: Final = """
accounts:
  - accessKey: administrator
    secretKey: 87654321
    admin: true
"""


def test_a_slave_signs_what_it_asks(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A master with accounts tells its tables, and takes the slave in; not by another secret, which is told."""
    accounts = cluster.directory / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    master = cluster.master(acl_file=str(accounts))
    master.groups.put(GroupConfig("G"))
    at: dict[str, Any] = {
        "master": "{}:{}".format(*master.address),
        "name_servers": "{}:{}".format(*master.name_server_address),
    }
    slave = cluster.slave(ha_of(master), **at, access_key="administrator", secret_key="87654321")  # noqa: S106 - no secret
    tables, registrar = slave.replicating.tables, slave.replicating.registrar
    assert tables is not None
    assert registrar is not None
    wait_until(lambda: tables.round_count > 0 and registrar.registered_count > 0)
    assert "G" in slave.groups.by_name
    assert not lines_of(caplog, "table_not_copied")
    cluster.slave(ha_of(master), name="other", **at, access_key="administrator", secret_key="12345678")  # noqa: S106
    wait_until(lambda: len(lines_of(caplog, "table_not_copied")) == 4 and bool(lines_of(caplog, "not_registered")))
    assert "12345678" not in caplog.text


def brokers_of(client: RawClient, code: int, fields: dict[str, str] | None = None) -> dict[str, Any]:
    """What a name server says."""
    return dict(json.loads(bytes(client.call(code, fields).body)))


def test_a_table_that_changes_is_copied_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its version: topics made and groups removed are so at the slave, also what the slave made by itself."""
    monkeypatch.setattr(table_copies, "COPY_MS", 10)
    master = cluster.master()
    slave = cluster.slave(ha_of(master), master="{}:{}".format(*master.address))
    master.groups.put(GroupConfig("G"))
    wait_until(lambda: "G" in slave.groups.by_name)
    slave.groups.put(GroupConfig("own"))
    master.topics.put(TopicConfig("later"))
    master.groups.remove("G")
    wait_until(lambda: slave.groups.by_name == master.groups.by_name)
    wait_until(lambda: slave.topics.get("later") is not None)
    master.stop()
    slave.offsets.commit("T", "G", 0, 5)
    assert slave.offsets.query("T", "G", 0) == 5


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, b"not json"),
        (RequestCode.GET_ALL_TOPIC_CONFIG, b'{"topicConfigTable":{"T":7}}'),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, b'{"offsetTable":[]}'),
        (RequestCode.GET_ALL_DELAY_OFFSET, b'{"offsetTable":{"x":1}}'),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, b'{"subscriptionGroupTable":{"G":{}}}'),
    ],
)
def test_a_table_that_cannot_be_read_changes_nothing(cluster: Cluster, code: int, body: bytes) -> None:
    """It is told, and what the slave has stays; the other tables are taken."""
    slave = cluster.slave(("127.0.0.1", 1))
    slave.topics.put(TopicConfig("T"))
    before = slave.topics.by_name.copy()
    copies = TableCopies(
        slave.runtime,
        Master(None, None),
        slave.topics,
        slave.groups,
        slave.offsets,
        slave.shared.delays,
        None,
        lambda: 0,
    )
    answers: dict[int, bytes] = {
        RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@G":{0:4}}}',
        RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:9}}',
    }
    copies.copy(Told({**answers, code: body}))  # type: ignore[arg-type]
    assert copies.round_count == 0
    assert slave.topics.by_name == before
    assert slave.offsets.query("T", "G", 0) == (None if code == RequestCode.GET_ALL_CONSUMER_OFFSET else 4)
    assert slave.shared.delays.by_level == ({} if code == RequestCode.GET_ALL_DELAY_OFFSET else {1: 9})


class Told:
    """A master that answers what a test says, and refuses everything else."""

    def __init__(self, bodies: dict[int, bytes]) -> None:
        self._bodies = bodies

    def ask(self, code: int) -> Command:
        """The answer; raises PeerError."""
        if code not in self._bodies:
            raise PeerError("refused")
        return Command(0, body=self._bodies[code])


def send_now(cluster: Cluster, broker: Broker, connect: Connect, properties: str = "") -> int:
    """Send one message; the answer's code."""
    return connect(broker.address).call(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, properties), b"x").code


@pytest.mark.parametrize("flushes", [False, True])
def test_a_sync_master_answers_when_a_slave_has_it(cluster: Cluster, connect: Connect, flushes: bool) -> None:
    """11 without a slave, 0 with one; who does not wait is answered 0 at once. The message stays in any case."""
    store = attrs.evolve(TINY, flush_disk_sync=flushes)
    master = cluster.master(role="SYNC_MASTER", store=store)
    assert send_now(cluster, master, connect) == ResponseCode.SLAVE_NOT_AVAILABLE
    assert send_now(cluster, master, connect, "WAIT\x01false") == ResponseCode.SUCCESS
    slave = cluster.slave(ha_of(master), store=store)
    wait_until(lambda: caught_up(slave, master))
    for count in range(3, 6):
        assert send_now(cluster, master, connect) == ResponseCode.SUCCESS
        assert slave.store.log_end == master.store.log_end
        assert master.store.visible_end("T", 0) == count


class SilentSlave:
    """Follows, and reports what a test says."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address)

    def report(self, offset: int) -> None:
        """Say up to where it has the log."""
        self.socket.sendall(struct.pack(">q", offset))


def test_a_slave_that_is_late_or_far_behind(cluster: Cluster, connect: Connect) -> None:
    """12 when it does not report in time, 11 at once when it lacks more than `haSlaveFallbehindMax`."""
    master = cluster.master(role="SYNC_MASTER", slave_timeout_ms=50, slave_behind_bytes_max=1_000)
    slave = SilentSlave(ha_of(master))
    slave.report(0)
    replicator = master.replicating.replicator
    assert replicator is not None
    wait_until(lambda: bool(replicator.behind_bytes))
    assert send_now(cluster, master, connect) == ResponseCode.FLUSH_SLAVE_TIMEOUT
    slave.report(master.store.log_end)
    wait_until(lambda: replicator.copied_end == master.store.log_end)
    while master.store.log_end - replicator.copied_end < 900:
        assert send_now(cluster, master, connect) == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert send_now(cluster, master, connect) == ResponseCode.SLAVE_NOT_AVAILABLE
    slave.socket.close()
    wait_until(lambda: not replicator.behind_bytes)
    assert send_now(cluster, master, connect) == ResponseCode.SLAVE_NOT_AVAILABLE


@POLICIES
def test_a_send_that_waits_for_a_silent_slave_keeps_nobody_else_waiting(
    cluster: Cluster, connect: Connect, policy: Policy
) -> None:
    """Others send what waits for no slave, and pull, also what waits; it is answered when the slave has it."""
    master = cluster.master(role="SYNC_MASTER", policy=policy, in_sync_replicas=2, slave_timeout_ms=LONG_MS)
    slave = SilentSlave(ha_of(master))
    slave.report(0)
    replicator = master.replicating.replicator
    assert replicator is not None
    wait_until(lambda: bool(replicator.behind_bytes))
    waiting, other = connect(master.address), connect(master.address)
    opaques = [waiting.send(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x") for _ in range(50)]
    wait_until(lambda: master.store.visible_end("T", 0) == 50)
    for number in range(50):
        assert send_now(cluster, master, connect, "WAIT\x01false") == ResponseCode.SUCCESS
        pulled = other.call(RequestCode.PULL_MESSAGE, pull_fields("T", number, timeout_ms=20_000))
        assert pulled.code == ResponseCode.SUCCESS
    assert waiting.reply(opaques[0], 0) is None
    slave.report(master.store.log_end)
    answers = [waiting.reply(opaque) for opaque in opaques]
    assert [answer and answer.code for answer in answers] == [ResponseCode.SUCCESS] * 50
    slave.socket.close()


def test_who_waits_for_a_slave_is_told_when_the_master_stops(cluster: Cluster, connect: Connect) -> None:
    """That no slave has it in time: 12 at once, and not only when its time is over."""
    master = cluster.master(role="SYNC_MASTER", slave_timeout_ms=LONG_MS)
    slave = SilentSlave(ha_of(master))
    slave.report(0)
    replicator = master.replicating.replicator
    assert replicator is not None
    wait_until(lambda: bool(replicator.behind_bytes))
    waiting = connect(master.address)
    opaques = [waiting.send(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x") for _ in range(3)]
    wait_until(lambda: replicator._waits.count == 3)
    master.stop()
    answers = [waiting.reply(opaque) for opaque in opaques]
    assert [answer and answer.code for answer in answers] == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3
    assert not replicator.behind_bytes
    slave.socket.close()


def ha_status(connect: Connect, broker: Broker) -> dict[str, Any]:
    """What 907 tells."""
    answer = connect(broker.address).call(RequestCode.GET_BROKER_HA_STATUS)
    assert answer.code == ResponseCode.SUCCESS
    told: dict[str, Any] = json.loads(bytes(answer.body))
    return told


def test_master_and_slave_tell_how_far_they_are(cluster: Cluster, connect: Connect) -> None:
    """907: the master each slave, also one that has not said what it wants; a slave where its log comes from."""
    master = cluster.master(slave_behind_bytes_max=1_000, ha_heartbeat_ms=20)
    alone = ha_status(connect, master)
    assert (alone["master"], alone["haConnectionInfo"], alone["inSyncSlaveNums"]) == (True, [], 0)
    slave = cluster.slave(ha_of(master))
    cluster.fill(master, 20)
    wait_until(lambda: caught_up(slave, master))
    end = master.store.log_end
    silent = socket.create_connection(ha_of(master))
    wait_until(lambda: len(ha_status(connect, master)["haConnectionInfo"]) == 2)
    told = ha_status(connect, master)
    assert (told["masterCommitLogMaxOffset"], told["inSyncSlaveNums"]) == (end, 1)
    one, other = told["haConnectionInfo"]
    assert one["addr"].startswith("127.0.0.1:")
    assert (one["slaveAckOffset"], one["diff"], one["inSync"], one["transferFromWhere"]) == (end, 0, True, end)
    assert other["addr"] == "{}:{}".format(*silent.getsockname())
    assert (other["slaveAckOffset"], other["diff"], other["inSync"]) == (-1, end + 1, False)
    assert (other["transferFromWhere"], other["transferredByteInSecond"]) == (-1, 0)
    silent.close()
    followed = ha_status(connect, slave)
    client_side = followed["haClientRuntimeInfo"]
    assert (followed["master"], followed["haConnectionInfo"], client_side["maxOffset"]) == (False, [], end)
    assert client_side["masterAddr"] == "{}:{}".format(*ha_of(master))
    assert client_side["lastReadTimestamp"] > 0 < client_side["lastWriteTimestamp"]
    # Greetings go on, and are counted a second after another.
    wait_until(lambda: ha_status(connect, slave)["haClientRuntimeInfo"]["transferredByteInSecond"] > 0)
    wait_until(lambda: ha_status(connect, master)["haConnectionInfo"][0]["transferredByteInSecond"] > 0)
    slave.stop()
    slave = cluster.slave(("127.0.0.1", 1), ha_master="")
    assert ha_status(connect, slave)["haClientRuntimeInfo"]["masterAddr"] is None


def test_4_9_does_not_tell_how_far_slaves_are(cluster: Cluster, connect: Connect) -> None:
    """It does not know 907."""
    master = cluster.master(policy=ROCKETMQ_4_9)
    code = connect(master.address).call(RequestCode.GET_BROKER_HA_STATUS).code
    assert code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_bytes_of_a_second_are_told_after_it() -> None:
    """Per second also when it is looked later; those of the second before go."""
    flow = Flow(1_000)
    flow.add(300)
    flow.look(999_000_000)
    assert flow.per_second == 0
    flow.add(100)
    flow.look(2_000_001_000)
    assert flow.per_second == 200
    flow.look(3_000_001_000)
    assert flow.per_second == 0


def test_5_counts_brokers_and_asks_nobody_whether_they_are_there(cluster: Cluster, connect: Connect) -> None:
    """`inSyncReplicas` 1 is the master alone: 0 at once; with 2 a send waits for a slave, and 12 without one."""
    master = cluster.master(role="SYNC_MASTER", policy=ROCKETMQ_5)
    assert send_now(cluster, master, connect) == ResponseCode.SUCCESS
    master.stop()
    master = cluster.master(role="SYNC_MASTER", policy=ROCKETMQ_5, in_sync_replicas=2, slave_timeout_ms=50)
    assert send_now(cluster, master, connect) == ResponseCode.FLUSH_SLAVE_TIMEOUT
    slave = cluster.slave(ha_of(master), policy=ROCKETMQ_5)
    wait_until(lambda: caught_up(slave, master))
    slave.stop()


def test_a_java_slave_finds_the_table_of_topics(
    cluster: Cluster, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """It asks two ports below its master's; a master that cannot listen there serves all the same, and says so."""
    port = free_port((-2,))
    master = cluster.master(listen=("127.0.0.1", port))
    assert connect(("127.0.0.1", port - 2)).call(RequestCode.GET_ALL_TOPIC_CONFIG).code == ResponseCode.SUCCESS
    master.stop()
    with socket.create_server(("127.0.0.1", port - 2)):
        master = cluster.master(listen=("127.0.0.1", port))
    assert connect(master.address).call(RequestCode.GET_ALL_TOPIC_CONFIG).code == ResponseCode.SUCCESS
    assert "Java slaves cannot copy the table of topics" in caplog.text
