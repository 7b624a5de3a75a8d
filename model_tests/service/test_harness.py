"""The load harness and the broker comparison: they count what the broker has, and see a broker that is slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from model_tests.bench import broker_bench, leaving
from model_tests.bench.broker_figures import FIGURES, OURS, Value, value_of
from model_tests.bench.broker_measures import Scale, measure
from model_tests.bench.broker_shown import missed
from model_tests.bench.broker_sides import Side, ours
from model_tests.support.broker.brokers import StartBroker, wait_until
from model_tests.support.broker.harness import held
from model_tests.support.broker.harness.held import HeldPlan, _Holding, hold
from model_tests.support.broker.harness.latency import wakes
from model_tests.support.broker.harness.throughput import fill, pulls, sends
from model_tests.support.broker.harness.topics import make_topic
from model_tests.support.broker.harness.workers import private_bytes
from model_tests.support.service import ShiftedRuntime
from rich.progress import Progress

from longpoll.wire.racing.plan import Delivery, RaceReport
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.stalls import STALL_MS, WAIT_MS, StallWatch


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


HOUR_MS = 3_600_000


@pytest.mark.parametrize("same_moment", [False, True])
def test_held_pulls_are_counted_to_the_last(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, same_moment: bool
) -> None:
    clock = ShiftedRuntime()
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
            clock.gone_ms = HOUR_MS
            broker.loops[0].wake()
        read(holding, until_accepted=until_accepted)

    monkeypatch.setattr(_Holding, "read", read_after_an_hour)
    report = hold(broker.address, os.getpid(), memory_bytes, plan)
    assert counts == [0, 500]
    assert 0 <= report.late_p50_ms <= report.late_p99_ms <= report.late_max_ms
    assert len(broker.hold_service) == 0


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


ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_whole_comparison_runs(tmp_path: Path) -> None:
    """Every figure of ours comes out, on a short scale; a broker that scans for deadlines misses the bar on them."""
    options = ("--knob", "expiry=scan")
    with ours(OURS, tmp_path / "a") as side, ours("other", tmp_path / "b", options) as other:
        values = measure([side], [other], Scale(0.4, 1), Progress(disable=True))
        faulty: Side = attrs.evolve(other, name=OURS)
        planted = measure([faulty], [], Scale(1, 1), Progress(disable=True), only={"overshoot"})
    assert len(values) == len(FIGURES)
    assert missed(planted) == [FIGURES["overshoot_p99"].name]


def test_the_command_tells_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the machine, the figures and what was missed; exit code 1 when something was."""
    value = value_of(FIGURES["overshoot_p99"], {OURS: [48.4]})
    asked: list[list[str] | None] = []

    def measured(*_told: Any, only: list[str] | None) -> list[Value]:
        asked.append(only)
        return [value]

    monkeypatch.setattr(broker_bench, "measure", measured)
    monkeypatch.setattr(broker_bench, "ours", lambda *_side: nullcontext())
    monkeypatch.setattr(sys, "argv", ["broker_bench", "--json", "--without-java", "--only", "overshoot"])
    code = broker_bench.main()
    assert asked == [["overshoot"]]
    told = json.loads(capsys.readouterr().out)
    assert code == 1
    assert told["missed"] == ["answer after the deadline, p99"]
    assert told["figures"][0]["sides"] == {OURS: 48.4}
    assert told["machine"]["cores"]


def test_every_bench_can_be_stopped() -> None:
    scripts = [*(ROOT / "model_tests/bench").glob("*_bench.py"), ROOT / "model_tests/bench/__main__.py"]
    assert len(scripts) > 10
    assert [path.name for path in scripts if "\n    leaving.run(" not in path.read_text()] == []


@pytest.mark.long
@pytest.mark.parametrize("words", [["attacks"], ["broker"], ["opening"], ["polling"]], ids=str)
def test_a_part_of_the_benches_that_is_stopped_leaves_nothing(tmp_path: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "model_tests.bench", *words]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as bench:
        wait_until(lambda: bench.poll() is not None or bool(list(tmp_path.glob("**/commitlog"))), 60.0)
        assert bench.poll() is None
        bench.terminate()
        code = bench.wait()
    assert (code, list(tmp_path.iterdir())) == (leaving.STOPPED, [])
    assert [words for words in _command_lines() if str(tmp_path) in words] == []


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text(errors="replace")
