"""The load harness: it cuts what it receives rightly, counts what the broker has, and sees a broker that is slow."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll.racing.plan import Delivery, RaceReport
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.testing.brokers import StartBroker, wait_until
from longpoll_broker.testing.harness import held
from longpoll_broker.testing.harness.frames import (
    Answer,
    AnswerStream,
    PullTemplate,
    framed,
)
from longpoll_broker.testing.harness.held import HeldPlan, _Holding, hold
from longpoll_broker.testing.harness.latency import fan_outs, wakes
from longpoll_broker.testing.harness.throughput import fill, pulls, sends
from longpoll_broker.testing.harness.topics import make_topic
from longpoll_broker.testing.harness.workers import private_bytes, together
from longpoll_client.errors import ClientError
from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.frames.command import Command, encode
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.stalls import STALL_MS, WAIT_MS, StallWatch


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2**31 - 1), st.integers(0, 300)), max_size=8), st.data())
def test_answers_are_cut_the_same_however_they_arrive(values: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Code, opaque and body size of each, whatever the chunks; counting gives their number and sum."""
    commands = [Command(code, opaque, CommandFlag.RESPONSE, body=bytes(size)) for code, opaque, size in values]
    stream = b"".join(b"".join(encode(command)) for command in commands)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    chunks = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reading, counting = AnswerStream(), AnswerStream()
    counts = [counting.count(chunk) for chunk in chunks]

    assert [Answer(*each) for each in values] == [answer for chunk in chunks for answer in reading.answers(chunk)]
    assert (len(values), sum(size for *_, size in values)) == tuple(map(sum, zip(*counts, strict=True)))


@given(st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_a_patched_pull_is_the_pull(offset: int, opaque: int) -> None:
    """The template with numbers put in is, byte for byte, the frame that the encoder makes."""
    template = PullTemplate("T")
    before, between, after = template.patched()
    texts = [b"%d" % offset, b"%d" % opaque]
    if b"queueOffset" not in before:
        texts.reverse()

    assert template.frame(0, offset, opaque) == framed(before + texts[0] + between + texts[1] + after)


@pytest.mark.long
def test_rates_are_of_what_the_broker_has(broker: Broker) -> None:
    """Every send that is counted is in a queue, and every pull brings what is stored."""
    rate = sends(broker.address, "S", 2, seconds=0.3, warm_s=0.1)
    stored = fill(broker.address, "P", 500)
    pulled = pulls(broker.address, "P", stored, 2, seconds=0.3, warm_s=0.1)

    assert rate.count == sum(broker.store.visible_end("S", queue) for queue in range(8))
    assert 0 < rate.per_second <= rate.count / 0.3 * 1.5
    assert broker.store.visible_end("P", 0) == stored.count == 500
    assert pulled.count > 500
    assert pulled.per_second > 0


class Slow(RealRuntime):
    """A runtime that takes its time at one of the law's actions."""

    def __init__(self, action: str, seconds: float) -> None:
        super().__init__()
        self._action = action
        self._seconds = seconds

    def step(self, action: str) -> None:
        if action == self._action:
            self.sleep(self._seconds)


def test_a_slow_wake_is_seen(start_broker: StartBroker) -> None:
    broker = start_broker(runtime=Slow("run", 0.03))
    taken = wakes(broker.address, "W", 5)

    assert len(taken) == 5
    assert min(taken) >= 30


def test_one_message_answers_every_pull(start_broker: StartBroker) -> None:
    found = fan_outs(start_broker().address, "F", 40, 4, 3)

    assert len(found) == 3
    assert all(0 < one.first_ms <= one.last_ms for one in found)


HOUR_MS = 3_600_000


class Clock(RealRuntime):
    """A runtime whose monotonic clock, which the harness shares, a test may set forward."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ns = 0
        self.monotonic_ns = lambda: time.monotonic_ns() + self.ahead_ns


@pytest.mark.parametrize("same_moment", [False, True])
def test_held_pulls_are_counted_to_the_last(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, same_moment: bool
) -> None:
    """The broker holds every pull, then answers each one, none before it is due."""
    clock = Clock()
    monkeypatch.setattr(held, "monotonic_ns", clock.monotonic_ns)
    broker = start_broker(
        runtime=clock, config=BrokerConfig(hold_timeout_ms_max=HOUR_MS, channel_idle_ms_max=2 * HOUR_MS)
    )
    plan = HeldPlan("H", HOUR_MS, pull_count=500, line_count=4, queue_count=10, same_moment=same_moment, idle_s=0.0)
    make_topic(broker.address, "H", 10)
    counts: list[int] = []
    read = _Holding.read

    def memory_bytes() -> int:
        counts.append(len(broker.hold_service))
        return private_bytes(os.getpid())

    def read_after_an_hour(holding: _Holding, *, until_accepted: bool) -> None:
        if not until_accepted:
            clock.ahead_ns = HOUR_MS * 1_000_000
            broker.loops[0].wake()
        read(holding, until_accepted=until_accepted)

    monkeypatch.setattr(_Holding, "read", read_after_an_hour)
    report = hold(broker.address, os.getpid(), memory_bytes, plan)

    assert counts == [0, 500]
    assert 0 <= report.late_p50_ms <= report.late_p99_ms <= report.late_max_ms
    assert len(broker.hold_service) == 0


def _work(begin: Callable[[], None], what: str) -> str:
    begin()
    if what == "fails":
        raise ClientError("planted")
    if what == "ends":
        os._exit(3)
    return what


@pytest.mark.long
def test_a_load_process_that_fails_or_ends_is_an_error() -> None:
    """Results come in order; a failure is passed on, an end is noticed."""
    assert together([partial(_work, what="a"), partial(_work, what="b")]) == ["a", "b"]
    with pytest.raises(ClientError, match="planted"):
        together([partial(_work, what="fails")])
    with pytest.raises(ClientError, match="ended early"):
        together([partial(_work, what="ends")])


def test_a_mapped_file_is_not_a_process_s_own_memory(tmp_path: Path) -> None:
    """Pages of a shared mapping do not count, those of an array do."""
    size = 64 * 2**20
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(size)
        before = private_bytes(os.getpid())
        with mmap.mmap(file.fileno(), size) as mapped:
            mapped[:] = b"x" * size
            with_file = private_bytes(os.getpid())
        array = bytearray(b"x") * size
        with_array = private_bytes(os.getpid())

    assert with_file - before < size / 4
    assert with_array - before > size * 3 / 4
    assert len(array) == size


def test_a_stall_excuses_what_it_covers_and_no_more() -> None:
    """Only the part of a delay in which the machine stood still, and only stalls worth the name."""
    watch = StallWatch()
    second_ns = 10**9
    watch.note_sleep(second_ns, 2 * second_ns)
    watch.note_sleep(5 * second_ns, 5 * second_ns + int(STALL_MS / 2 * 1e6))
    watch.note_wait(second_ns // 10, int(1.9 * second_ns))
    watch.note_wait(second_ns // 10, 4 * second_ns)
    watch.note_wait(10, 6 * second_ns)

    assert watch.stalled_ms(0, 10 * second_ns) == 1_100
    assert watch.stalled_ms(int(1.5 * second_ns), 3 * second_ns) == 500
    assert watch.stalled_ms(int(3.95 * second_ns), 10 * second_ns) == 50
    assert watch.stalled_ms(5 * second_ns, 10 * second_ns) == 0
    excused, late = Delivery(0, 0, 700, 650), Delivery(0, 1, 700, 100)
    report = RaceReport(10, (excused, late), 100)
    assert report.unexplained == (late,)
    assert report.later_than(500) == 2
    assert report.later_than(800) == 0


def test_waits_for_a_processor_are_read_from_the_kernel() -> None:
    """Two threads that turn in circles on one processor wait for each other, and the watch sees it from outside."""
    program = (
        "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.fork(); print(flush=True)\n"
        "while os.getppid(): pass"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as turning:
        assert turning.stdout is not None
        turning.stdout.readline()
        begin_ns = time.monotonic_ns()
        with StallWatch(turning.pid) as watch:
            wait_until(lambda: watch.stalled_ms(begin_ns, time.monotonic_ns()) > 0)
        os.killpg(turning.pid, signal.SIGKILL)

    assert watch.stalled_ms(begin_ns, time.monotonic_ns()) >= WAIT_MS
