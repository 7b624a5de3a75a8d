"""One slave's connection at its master: what it says counts, what it is sent, and when it counts as getting further."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from model_tests.service.slaves import Log, Slave, transfers

from longpoll_broker.io.channel import Outbox
from longpoll_broker.rocketmq.replication import replicator, slave_connection
from longpoll_broker.rocketmq.replication.replicator import SlaveWait, SlaveWaits
from longpoll_broker.rocketmq.replication.slave_connection import TURN_SIZE, UNREPORTED_SIZE_MAX, SlaveConnection
from longpoll_broker.shared.statistics import SECOND_NS, TransferRate
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.replication import (
    HEAD_SIZE,
    TRANSFER_SIZE_MAX,
    TransferReader,
    encode_head,
    encode_report,
)


def link_of(
    slave: Slave, log: Log, *, size: int = 64, begins_with_last_file: bool = False, only_visible: bool = False
) -> SlaveConnection:
    """A connection that was made at 1."""
    socket: Any = slave
    store: Any = log
    return SlaveConnection(socket, slave.peer, store, size, begins_with_last_file, only_visible, 1, 1)


def begun(log: Log, offset: int = 0, *, size: int = 64) -> tuple[Slave, SlaveConnection]:
    """A slave that has reported offset 2."""
    slave = Slave()
    link = link_of(slave, log, size=size)
    slave.report(offset)
    assert link.read(2)
    return slave, link


def test_reports_of_a_slave() -> None:
    """Only a whole report within the log counts."""
    slave, log = Slave(), Log(100)
    link = link_of(slave, log)
    assert str(link) == "slave 10.0.0.1:1"
    slave.said = [encode_report(7)[:3], encode_report(7)[3:7]]
    assert link.read(2)
    assert (link.asked_offset, link.heard_ns, link.moved_ns) == (None, 1, 1)
    slave.said = [encode_report(7)[7:] + encode_report(8) + encode_report(9)[:5]]
    assert link.read(3)
    assert (link.asked_offset, link.reported_offset, link.next_offset) == (8, 8, 8)
    assert (link.heard_ns, link.moved_ns) == (3, 3)
    slave.said = [b""]
    assert not link.read(4)
    slave, link = begun(Log(100), 100)
    assert link.reported_offset == 100
    slave.report(101)
    with pytest.raises(RemoteProtocolError, match="has a log up to 101, but this one ends at 100, so they differ"):
        link.read(3)


def test_who_reports_without_end_does_not_keep_the_others_from_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_connection, "_READS_MAX", 3)
    slave, link = begun(Log(100))
    slave.said = [encode_report(0)] * 5
    assert link.read(3)
    assert len(slave.said) == 2


@pytest.mark.parametrize(
    ("begins_with_last_file", "end", "first"),
    [(False, 2_500, 300), (True, 2_500, 2_000), (True, 3_000, 3_000), (True, 999, 0)],
)
def test_who_has_nothing_is_sent_all_or_the_last_file(begins_with_last_file: bool, end: int, first: int) -> None:
    slave, log = Slave(), Log(end, 0 if begins_with_last_file else 300)
    link = link_of(slave, log, begins_with_last_file=begins_with_last_file)
    slave.report(0)
    assert link.read(2)
    assert (link.asked_offset, link.next_offset, link.lacked_size) == (0, first, 0)


def test_what_is_removed() -> None:
    """Removed bytes cannot be requested; removal during a transfer ends the connection."""
    slave, link = begun(Log(2_000, 1_000), 1_000)
    assert link.next_offset == 1_000
    slave = Slave()
    link = link_of(slave, Log(2_000, 1_000))
    slave.report(999)
    with pytest.raises(
        RemoteProtocolError, match=r"asks for the log from 999 on, but the files before 1000 were removed"
    ):
        link.read(2)
    assert link.asked_offset is None
    log = Log(2_000)
    slave, link = begun(log, 1_000)
    log.log_start = log.log_end = 1_000
    assert not link.write(3)
    log.log_start = 1_001
    with pytest.raises(RemoteProtocolError, match="is at 1000, before 1001, where the log begins"):
        link.write(4)
    assert slave.took() == b""


def test_what_is_sent_in_a_turn() -> None:
    slave, log = Slave(), Log(100)
    link = link_of(slave, log)
    link.greet()
    assert not link.write(2)
    assert (slave.took(), link.is_blocked, link.sent_ns) == (b"", False, 1)
    log = Log(3 * TURN_SIZE)
    slave, link = begun(log, size=TURN_SIZE - HEAD_SIZE)
    assert link.write(3)
    assert len(slave.took()) == TURN_SIZE
    slave, link = begun(log, size=TURN_SIZE - HEAD_SIZE - 1)
    assert link.write(3)
    assert len(slave.took()) == 2 * (TURN_SIZE - 1)
    log.log_end = TURN_SIZE // 2
    slave, link = begun(log)
    assert not link.write(3)
    slave, log = Slave(), Log(100, visible_end=40)
    link = link_of(slave, log, only_visible=True)
    slave.report(0)
    link.read(2)
    assert not link.write(3)
    assert slave.took() == transfers(log, 0, 40)


@pytest.mark.parametrize("room", [1, 5, 12, 13, 64, 76, 77])
def test_what_is_sent_in_pieces_is_the_log_in_its_transfers(room: int) -> None:
    log = Log(200)
    slave, link = begun(log, 10)
    assert not link.is_blocked
    got = b""
    for now_ns in range(3, 1_000):
        slave.room = room
        assert not link.write(now_ns)
        if not slave.taken:
            break
        assert link.sent_ns == now_ns
        got += slave.took()
    assert got == transfers(log, 10, 64, 64, 62)
    assert (link.is_blocked, link.next_offset) == (False, 200)


def test_a_greeting_says_where_it_is() -> None:
    log = Log(100)
    slave, link = begun(log, 100)
    link.greet()
    link.greet()
    assert link.is_blocked
    assert not link.write(3)
    assert slave.took() == encode_head(100, 0)
    log.log_end, slave.room = 150, 5
    link.write(4)
    link.greet()
    slave.room = 1_000
    link.write(5)
    assert slave.took() == transfers(log, 100, 50)


def test_progress_of_a_slave() -> None:
    log = Log(UNREPORTED_SIZE_MAX + 1)
    slave, link = begun(log, size=UNREPORTED_SIZE_MAX)
    slave.room = HEAD_SIZE + UNREPORTED_SIZE_MAX - 1
    link.write(3)
    assert (link.moved_ns, link.lacked_size, link.sent_ns) == (3, UNREPORTED_SIZE_MAX, 3)
    slave.room = 1
    link.write(4)
    assert (link.moved_ns, link.lacked_size) == (4, UNREPORTED_SIZE_MAX + 1), "its last byte, and the next is begun"
    slave.room = 100
    link.write(5)
    assert (link.moved_ns, link.sent_ns) == (4, 5)
    link.greet()
    link.write(6)
    assert (link.moved_ns, link.sent_ns) == (4, 6)
    slave.report(0)
    link.read(7)
    assert (link.moved_ns, link.heard_ns) == (4, 7)
    slave.report(1)
    link.read(8)
    assert (link.moved_ns, link.lacked_size) == (8, UNREPORTED_SIZE_MAX)
    link.greet()
    link.write(9)
    assert (link.moved_ns, link.sent_ns) == (8, 9), "by a greeting nobody gets further"
    log.log_end += 1
    link.write(10)
    assert link.moved_ns == 8, "too many are unreported again"
    slave.report(5)
    log.log_end += 1
    link.read(11)
    link.write(12)
    assert link.moved_ns == 12
    slave, link = begun(Log(100), 100)
    slave.report(100)
    link.read(3)
    assert (link.moved_ns, link.lacked_size) == (3, 0)
    link = link_of(slave, Log(100))
    link.next_offset, link.reported_offset = 10, 60
    assert link.lacked_size == 0, "it has more than it was sent from here"


def test_bytes_of_a_second() -> None:
    slave, link = begun(Log(100))
    link.write(3)
    link.flow.look(SECOND_NS)
    assert link.flow.per_second == 0
    link.flow.look(SECOND_NS + 1)
    assert link.flow.per_second == len(slave.took()) == 100 + 2 * HEAD_SIZE
    flow = TransferRate(7)
    flow.add(100)
    flow.add(200)
    flow.look(6 + SECOND_NS)
    assert flow.per_second == 0
    flow.look(7 + SECOND_NS)
    assert flow.per_second == 300
    flow.add(100)
    flow.look(7 + 3 * SECOND_NS)
    assert flow.per_second == 50
    flow.look(7 + 4 * SECOND_NS)
    assert flow.per_second == 0


def nobody(is_copied: bool, outbox: Outbox) -> None:
    """Is told nothing."""


def wait(log_end: int, deadline_ns: int) -> SlaveWait:
    return SlaveWait(log_end, deadline_ns, nobody)


@pytest.mark.parametrize("seed", range(20))
def test_each_is_over_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(replicator, "SPARE_COUNT", random.Random(seed).choice([0, 3, 1_000]))
    drawn = random.Random(seed)
    waits, plain = SlaveWaits(), list[SlaveWait]()
    now_ns = copied_end = log_end = 0
    for _step in range(300):
        kind = drawn.randrange(4)
        if kind < 2:
            log_end += drawn.randrange(1, 4)
            plain.append(wait(log_end, now_ns + 10))
            assert waits.add(plain[-1])
            continue
        if kind == 2:
            copied_end = drawn.randrange(copied_end, log_end + 1)
            found = waits.take_copied(copied_end)
            due = [each for each in plain if each.log_end <= copied_end]
        else:
            now_ns += drawn.randrange(8)
            found = waits.take_late(now_ns)
            due = [each for each in plain if each.deadline_ns <= now_ns]
        assert sorted(map(id, found)) == sorted(map(id, due))
        plain = [each for each in plain if each not in due]
        assert waits.count == len(plain)
    assert len(waits.take_late(None)) == len(plain)


def test_those_left_come_up_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicator, "SPARE_COUNT", 0)
    waits, ends = SlaveWaits(), random.Random(7).sample(range(100), 100)
    for deadline_ns, end in enumerate(ends):
        waits.add(wait(end, deadline_ns))
    waits.take_late(60)
    assert len(waits._by_end) == 39
    left = sorted(ends[61:])
    assert [[each.log_end for each in waits.take_copied(end)] for end in left] == [[end] for end in left]


def test_what_is_over_is_not_kept() -> None:
    waits = SlaveWaits()
    for is_late in (False, True):
        assert waits.add(wait(10, 100))
        assert len(waits.take_late(100) if is_late else waits.take_copied(10)) == 1
        assert (len(waits._by_end), len(waits._by_deadline)) == (0, 0)


def test_what_nobody_copies_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicator, "SPARE_COUNT", 10)
    waits = SlaveWaits()
    for number in range(10_000):
        assert waits.add(wait(number, number + 3))
        waits.take_late(number)
        assert 0 < waits.count <= 4
        assert len(waits._by_end) <= 2 * waits.count + 10 + 1


@pytest.mark.parametrize("head", [(-1, 0), (0, -1), (0, TRANSFER_SIZE_MAX + 1)])
def test_a_transfer_that_no_master_sends_is_refused(head: tuple[int, int]) -> None:
    reader = TransferReader()
    reader.receive(struct.pack(">qi", *head))
    with pytest.raises(RemoteProtocolError, match="is that address its port for slaves"):
        reader.next_transfer()
