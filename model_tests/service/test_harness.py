"""The load harness and the broker comparison: their counts match the broker's, and a slow broker is noticed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from model_tests.support.broker.brokers import wait_until

from longpoll.wire.race import Delivery, RaceReport
from longpoll_runtime.host_pauses import STALL_MS, WAIT_MS, HostPauseWatch


def test_a_host_pause_explains_only_the_delay_it_covers() -> None:
    """Only long host pauses count, and each pause is subtracted only from the part of a delay that it covers."""
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
    """A host pause is detected while the wait times of three threads are read; many short reads are no host pause."""
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
    """Two busy threads share one processor, and the kernel reports their waits."""
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
