"""A master's thread for its slaves, round by round: who is accepted, sent to, let go, and which sends are answered."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
from model_tests.service.slaves import BEGUN_NS, MS, NO_DESCRIPTORS, Bench, Slave, transfers
from model_tests.support.service import reasons

from longpoll_broker.io.transport import ACCEPT_PAUSE_S
from longpoll_broker.rocketmq.replication import replicator
from longpoll_broker.rocketmq.replication.replicator import ACCEPT_COUNT_MAX, LOOK_S
from longpoll_protocol.replication import encode_head
from longpoll_runtime.real import RealPoller

Told = list[tuple[int, bool, str]]


def following(bench: Bench, *offsets: int) -> list[Slave]:
    """Slaves that have connected and reported."""
    slaves = [Slave(port=port) for port in range(1, len(offsets) + 1)]
    bench.connect(*slaves)
    for slave, offset in zip(slaves, offsets, strict=True):
        slave.report(offset)
    bench.rounds(None)
    for slave in slaves:
        slave.took()
    bench.later_notes()
    return slaves


def test_what_a_slave_is_sent() -> None:
    """From its first report on; a turn that leaves something continues at once."""
    bench = Bench()
    bench.log.log_end = 150
    slave = Slave()
    bench.waiting.append(slave)
    bench.rounds(None, None, partial(slave.report, 10), None)
    assert slave.took() == transfers(bench.log, 10, 64, 64, 12)
    assert bench.timeouts == [None, LOOK_S, LOOK_S, LOOK_S], "without slaves nobody is waited for"
    bench.log.log_end = 160
    bench.rounds(None)
    assert (slave.took(), bench.peers()) == (transfers(bench.log, 150, 10), [("10.0.0.1", 1)])
    assert bench.later_notes() == [], "nothing to wake, nothing to watch otherwise"
    bench = Bench(transfer_size=1 << 20)
    first, second = following(bench, 0, 0)
    bench.timeouts.clear()
    bench.log.log_end = (1 << 20) + 5
    second.report(bench.log.log_end)
    bench.rounds(None, None, None)
    assert (bench.timeouts, len(first.took())) == ([LOOK_S, 0, LOOK_S], bench.log.log_end + 2 * 12)


@pytest.mark.parametrize("only_visible", [False, True])
@pytest.mark.parametrize("begins_with_last_file", [False, True])
def test_what_the_settings_say_of_the_log(only_visible: bool, begins_with_last_file: bool) -> None:
    bench = Bench(only_visible=only_visible, begins_with_last_file=begins_with_last_file, transfer_size=10_000)
    bench.log.log_end, bench.log.visible_end = 2_500, 2_400
    slave = Slave()
    bench.connect(slave)
    bench.report(slave, 0)
    start, stop = 2_000 if begins_with_last_file else 0, 2_400 if only_visible else 2_500
    assert slave.took() == transfers(bench.log, start, stop - start)


def test_a_crowd_is_accepted_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(slave_count_max=1)
    bench.log.log_end = 3
    (slave,) = following(bench, 0)
    bench.report(slave, 3)
    crowd = [Slave(port=port) for port in range(100, 102 + ACCEPT_COUNT_MAX)]
    bench.waiting += crowd
    bench.log.log_end = 7
    bench.rounds(None)
    assert [each.is_closed for each in crowd] == [True] * ACCEPT_COUNT_MAX + [False] * 2
    assert (slave.took(), bench.peers()) == (transfers(bench.log, 3, 4), [slave.peer])
    assert reasons(caplog, "slave_refused") == ["there are 1 already"] * ACCEPT_COUNT_MAX


def test_without_descriptors_the_port_is_left_alone_for_a_while() -> None:
    bench = Bench()
    slave = Slave()
    bench.waiting, bench.accept_error = [slave], NO_DESCRIPTORS
    bench.rounds(None, None)
    assert bench.timeouts == [None, LOOK_S]
    assert bench.later_notes() == [("modify", "listener", False, False)]
    bench.accept_error = None
    pause_ms = int(ACCEPT_PAUSE_S * 1_000)
    bench.at(pause_ms, -1)
    assert bench.later_notes() == []
    bench.at(pause_ms)
    assert bench.later_notes() == [("modify", "listener", True, False)]
    bench.at(pause_ms)
    assert (bench.later_notes(), bench.peers()) == ([], [slave.peer])


@pytest.mark.parametrize(
    ("host", "networks", "is_one"),
    [
        ("10.1.2.3", ["10.0.0.0/8", "2001:db8::/32"], True),
        ("11.0.0.1", ["10.0.0.0/8", "2001:db8::/32"], False),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("::ffff:10.1.2.3", ["::ffff:0:0/96"], False),
        ("2001:db8::1", ["10.0.0.0/8", "2001:db8::/32"], True),
        ("2001:db9::1", ["10.0.0.0/8", "2001:db8::/32"], False),
        ("10.1.2.3", ["2001:db8::/32"], False),
    ],
)
def test_slaves_come_from_the_networks_that_are_named(host: str, networks: list[str], is_one: bool) -> None:
    bench = Bench(networks=networks)
    slave = Slave(host=host)
    bench.connect(slave)
    assert (bench.peers() == [slave.peer], slave.is_closed) == (is_one, not is_one)


def test_who_has_said_nothing_gives_way_to_who_comes(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(slave_count_max=2)
    bench.log.log_end = 7
    slow, other, more, last = (Slave(port=port) for port in (1, 2, 3, 4))
    bench.connect(slow, other)
    bench.waiting.append(more)
    slow.report(0)
    other.report(0)
    bench.rounds(None)
    assert (bench.peers(), slow.is_closed) == ([other.peer, more.peer], True)
    assert slow.said, "it is closed and not read from"
    bench.report(more, 0)
    bench.report(other, 7)
    bench.report(more, 7)
    bench.connect(last)
    assert (bench.peers(), last.is_closed) == ([other.peer, more.peer], True)
    assert reasons(caplog, "slave_closed") == ["it has copied nothing yet, and another one is there"]
    assert reasons(caplog, "slave_refused") == ["there are 2 already"]


def test_who_copies_nothing_gives_way_to_who_comes(caplog: pytest.LogCaptureFixture) -> None:
    """Last of all one that claims to have everything. A report of more than was sent is a lie."""
    bench = Bench(slave_count_max=2)
    bench.log.log_end = 7
    current, stranger, slave, late, more = (Slave(port=port) for port in (1, 2, 3, 4, 5))
    bench.connect(current, stranger)
    current.report(7)
    stranger.report(0)
    bench.rounds(None)
    bench.connect(slave)
    assert (bench.peers(), stranger.is_closed) == ([current.peer, slave.peer], True)
    bench.report(slave, 0)
    bench.report(slave, 7)
    bench.connect(late)
    assert (bench.peers(), current.is_closed) == ([slave.peer, late.peer], True)
    late.report(0)
    bench.report(late, 7)
    assert (bench.peers(), late.is_closed) == ([slave.peer], True)
    assert reasons(caplog, "slave_closed")[-1] == "reports a log up to 7, but was sent only up to 0"
    bench.connect(more)
    assert bench.peers() == [slave.peer, more.peer]


def test_a_bad_slave_costs_others_nothing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(slave_count_max=9)
    ends, lies, falls, good = following(bench, 0, 0, 0, 0)
    ends.said.append(b"")
    lies.report(-1)
    falls.said.append(b"")
    falls.close_error = OSError("it cannot be closed")
    bench.log.log_end = 5
    bench.rounds(None)
    assert bench.peers() == [good.peer]
    assert [each.is_closed for each in (ends, lies, falls, good)] == [True, True, True, False]
    assert good.took() == transfers(bench.log, 0, 5)
    said, cannot, too = reasons(caplog, "slave_closed")
    assert said == too == "it has closed the connection"
    assert "an offset is at least 0" in cannot
    assert bench.timeouts[-1] == LOOK_S
    bench.rounds(None)
    assert bench.timeouts[-1] == LOOK_S, "who was let go has nothing more"


def test_a_fault_of_ours_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    (slave,) = following(bench, 0)
    bench.log.is_broken = True
    bench.rounds(None, None)
    assert (bench.peers(), slave.is_closed, bench.timeouts[-1]) == ([], True, None)
    assert reasons(caplog, "slave_closed") == ["of a fault here"]
    assert "the log is broken" in caplog.text


def test_who_says_nothing_is_let_go_after_its_time(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(idle_ms_max=100)
    (slave,) = following(bench, 0)
    bench.now_ns = BEGUN_NS + 40 * MS
    bench.connect(silent := Slave(port=2))
    bench.at(100)
    assert bench.peers() == [slave.peer, silent.peer]
    bench.now_ns = BEGUN_NS + 101 * MS
    slave.report(0)
    bench.rounds(None)
    bench.at(140)
    assert len(bench.peers()) == 2
    bench.at(140, 1)
    assert bench.peers() == [slave.peer]
    bench.at(201, 1)
    assert bench.peers() == []
    assert reasons(caplog, "slave_closed") == ["it has sent nothing for 100 ms"] * 2


def test_who_gets_no_further_is_let_go_after_its_time(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(idle_ms_max=100)
    stuck, good = following(bench, 0, 0)
    bench.log.log_end = 10
    bench.at(50)
    for ns in (50 * MS, 100 * MS, 150 * MS, 150 * MS + 1):
        bench.now_ns = BEGUN_NS + ns
        stuck.report(0)
        good.report(10)
        assert len(bench.peers()) == 2
        bench.rounds(None)
    assert bench.peers() == [good.peer]
    assert reasons(caplog, "slave_closed") == ["it has got no further for 100 ms"]


def test_greetings_and_full_sockets() -> None:
    bench = Bench(heartbeat_ms=100)
    bench.log.log_end = 7
    slave, silent = Slave(port=1), Slave(port=2)
    bench.connect(slave, silent)
    bench.report(slave, 7)
    greeting = encode_head(7, 0)
    for ms, ns, told in ((100, 0, b""), (100, 1, greeting), (150, 0, b""), (200, 1, b""), (200, 2, greeting)):
        bench.at(ms, ns)
        assert slave.took() == told
    assert silent.took() == b""
    bench = Bench()
    (slave,) = following(bench, 0)
    bench.log.log_end, slave.room = 20, 5
    bench.rounds(None, None)
    assert bench.later_notes() == [("modify", 1, True, True)]
    asked_count, slave.room = slave.asked_count, 1_000
    bench.rounds(None, None)
    assert bench.later_notes() == [("modify", 1, True, False)]
    assert (slave.took(), slave.asked_count) == (transfers(bench.log, 0, 20), asked_count)
    bench = Bench()
    bench.replicator.appended()
    assert bench.later_notes() == []
    following(bench, 0)
    for _round in range(2):
        bench.replicator.appended()
        bench.replicator.appended()
        bench.rounds(None)
        assert bench.later_notes() == ["wake"]


def test_what_is_told_of_each_slave() -> None:
    bench = Bench(behind_bytes_max=100)
    bench.log.log_end = 150
    near, far, silent = Slave(port=1), Slave(port=2), Slave(port=3, host="10.0.0.2")
    bench.connect(near, far, silent)
    near.report(51)
    far.report(50)
    bench.rounds(None)
    bench.now_ns += 2_000 * MS
    bench.rounds(None)
    told = [
        (each.addr, each.diff, each.in_sync, each.slave_ack_offset, each.transfer_from_where)
        for each in bench.replicator.slaves
    ]
    assert told == [
        ("10.0.0.1:1", 99, True, 51, 150),
        ("10.0.0.1:2", 100, False, 50, 150),
        ("10.0.0.2:3", 151, False, -1, -1),
    ]
    sent = len(transfers(bench.log, 51, 64, 35))
    assert [each.transferred_byte_in_second for each in bench.replicator.slaves] == [sent // 2, (sent + 1) // 2, 0]
    assert bench.replicator.behind_bytes == {"10.0.0.1:1": 99, "10.0.0.1:2": 100, "10.0.0.2:3": 150}
    bench.log.log_end = 50
    assert bench.replicator.behind_bytes["10.0.0.1:1"] == 0, "it may report while the end is looked at"
    assert bench.replicator.address == bench.address


def test_a_send_is_answered_when_the_slave_that_is_ahead_has_it() -> None:
    bench = Bench()
    told: Told = []
    bench.log.log_end = 30
    first, second = following(bench, 0, 0)
    for end in (10, 20, 30):
        bench.submit(end, told)
    assert (bench.later_notes(), told) == (["wake"], [])
    bench.report(first, 9)
    assert told == []
    bench.report(second, 20)
    assert (told, bench.replicator.copied_end) == ([(10, True, "later"), (20, True, "later")], 20)
    bench.report(first, 19)
    second.said.append(b"")
    bench.rounds(None)
    assert bench.replicator.copied_end == 20, "it never goes back"
    first.said.append(b"")
    bench.rounds(None)
    bench.timeouts.clear()
    bench.submit(31, told)
    assert bench.later_notes() == ["wake"]
    bench.rounds(None)
    assert bench.timeouts == [LOOK_S], "without a slave, but with somebody who waits"
    assert len(told) == 2


@pytest.mark.parametrize("silent_count", [0, 1])
@pytest.mark.parametrize(("needed", "end"), [(1, 30), (2, 20), (3, 10), (4, 0)])
def test_a_send_is_answered_when_as_many_as_are_needed_have_it(needed: int, end: int, silent_count: int) -> None:
    bench = Bench(needed_count=needed, slave_count_max=9)
    told: Told = []
    bench.log.log_end = 40
    following(bench, 20, 30, 10)
    bench.connect(*[Slave(port=9)] * silent_count)
    for each in range(1, 41):
        bench.submit(each, told)
    bench.rounds(None)
    assert [said for said, _, _ in told] == list(range(1, end + 1))


def test_sends_that_wait_for_no_slave() -> None:
    bench = Bench(needed_count=1)
    told: Told = []
    bench.submit(0, told)
    bench.rounds(None)
    assert told == []
    bench = Bench(needed_count=0)
    told = []
    bench.rounds(None)
    bench.submit(10, told)
    assert (told, bench.later_notes()) == ([(10, True, "at once")], [])
    bench = Bench(timeout_ms=100)
    told = []
    bench.submit(10, told)
    bench.at(100, -1)
    assert told == []
    bench.at(100)
    assert told == [(10, False, "later")]


def test_one_more_than_may_wait_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicator, "WAITING_COUNT_MAX", 1)
    bench = Bench()
    told: Told = []
    bench.submit(10, told)
    bench.submit(20, told)
    assert (told, bench.later_notes()) == ([(20, False, "at once")], ["wake"])


def test_an_answer_that_fails_costs_no_other_one_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    told: Told = []
    bench.log.log_end = 20
    (slave,) = following(bench, 0)

    def falls(is_copied: bool, outbox: Any) -> None:
        raise ZeroDivisionError(f"no answer: {is_copied}, {outbox}")

    bench.replicator.submit(5, falls, None)  # type: ignore[arg-type] # it waits
    bench.submit(10, told)
    bench.report(slave, 20)
    assert told == [(10, True, "later")]
    assert "a send gets no answer" in caplog.text


@pytest.mark.parametrize(("behind", "is_near"), [(99, True), (100, False)])
def test_a_slave_that_lacks_too_much_is_not_waited_for(behind: int, is_near: bool) -> None:
    bench = Bench(behind_bytes_max=100)
    bench.log.log_end = 50
    assert not bench.replicator.is_near(0)
    following(bench, 50)
    assert bench.replicator.is_near(50 + behind) == is_near
    assert Bench(needed_count=1).replicator.is_near(1 << 40)


def test_the_end_of_a_replicator() -> None:
    """Everything is closed, and waiting sends are answered."""
    bench = Bench()
    told: Told = []
    slaves = following(bench, 0, 0)
    bench.replicator.start()
    bench.submit(10, told)
    bench.later_notes()
    # Somebody has the lock, and found that the end has not come.
    bench.lock().meanwhile = partial(bench.wait_quietly, 20, told)
    bench.replicator.stop()
    assert bench.later_notes() == ["wake", "join", "close", "close"]
    assert [slave.is_closed for slave in slaves] == [True, True]
    assert (bench.peers(), bench.replicator.behind_bytes) == ([], {})
    assert sorted(told) == [(10, False, "later"), (20, False, "later")]
    bench.submit(30, told)
    assert (told[2:], bench.later_notes()) == ([(30, False, "at once")], [])
    bench = Bench()
    told = []
    bench.lock().meanwhile = partial(bench.wait_quietly, 20, told)
    bench.replicator.stop()
    assert told == [(20, False, "later")]
    assert bench.later_notes() == ["wake", "close", "close"], "no thread was started"
    bench = Bench()
    bench.replicator.start()
    assert bench.later_notes() == [("spawn", "replicator")]
    bench.rounds(bench.replicator.stop, None)
    assert bench.timeouts == [None]


def test_a_stop_between_a_wait_and_its_wake_answers_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The send gets 12 from `stop`."""
    bench = Bench()
    told: Told = []
    bench.replicator._poller = RealPoller()
    honest = os.eventfd_write

    def write(descriptor: int, value: int) -> None:
        monkeypatch.setattr(os, "eventfd_write", honest)
        bench.replicator.stop()
        honest(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", write)
    bench.submit(10, told)
    assert told == [(10, False, "later")]
