"""The load harness and the broker comparison: they count what the broker has, and see a broker that is slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from model_tests.bench import broker_bench
from model_tests.bench.broker_figures import FIGURES, OURS, Value, value_of
from model_tests.support.broker.brokers import wait_until

from longpoll.wire.race import Delivery, RaceReport
from longpoll_runtime.host_pauses import STALL_MS, WAIT_MS, HostPauseWatch


def test_a_stall_excuses_what_it_covers_and_no_more() -> None:
    """Only long host pauses count, and only the part of a delay that they cover."""
    watch = HostPauseWatch()
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
    assert (report.later_than(500), report.later_than(800)) == (2, 0)


@pytest.mark.parametrize(("listing_ms", "reading_ms", "stalled_ms"), [(60, 0, 60), (0, 30, 0), (0, 60, 180)])
def test_a_pause_during_a_reading_is_seen(listing_ms: int, reading_ms: int, stalled_ms: int) -> None:
    """The watch pauses while it reads the waits of three threads; many short reads are no pause."""
    now_ns = 0

    def list_threads(_tasks: str) -> list[str]:
        nonlocal now_ns
        now_ns += listing_ms * 1_000_000
        return ["1", "2", "3"]

    def read_wait_ns(_path: str) -> int:
        nonlocal now_ns
        now_ns += reading_ms * 1_000_000
        return 0

    watch = HostPauseWatch(now_ns=lambda: now_ns, list_threads=list_threads, read_wait_ns=read_wait_ns)
    watch._look()
    watch._runs()
    assert watch.stalled_ms(0, now_ns) == stalled_ms


def test_waits_for_a_processor_are_read_from_the_kernel() -> None:
    """Two busy threads share one processor."""
    program = (
        "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.fork(); print(flush=True)\n"
        "while os.getppid(): pass"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as turning:
        assert turning.stdout is not None
        turning.stdout.readline()
        begin_ns = time.monotonic_ns()
        try:
            with HostPauseWatch(turning.pid) as watch:
                wait_until(lambda: watch.stalled_ms(begin_ns, time.monotonic_ns()) > 0)
        finally:
            os.killpg(turning.pid, signal.SIGKILL)
    assert watch.stalled_ms(begin_ns, time.monotonic_ns()) >= WAIT_MS


ROOT = Path(__file__).parents[2]


def test_the_command_tells_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 if a limit was missed."""
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
    assert (code, told["missed"]) == (1, ["answer after the deadline, p99"])
    assert told["figures"][0]["sides"] == {OURS: 48.4}
    assert told["machine"]["cores"]


def test_every_bench_can_be_stopped() -> None:
    scripts = [*(ROOT / "model_tests/bench").glob("*_bench.py"), ROOT / "model_tests/bench/__main__.py"]
    assert len(scripts) > 8
    assert [path.name for path in scripts if "\n    leaving.run(" not in path.read_text()] == []
