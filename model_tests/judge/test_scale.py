"""Memory does not grow with a history, whether it is spread over queues or all on one."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from longpoll_judge.read.source import find
from longpoll_judge.run.job import judge_on
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.testing.generate import Load
from longpoll_judge.testing.laggards import write_lagging
from longpoll_judge.testing.tiles import write_large

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
KIB = 1024
PEAK_BYTES_MAX = 640 << 20
"""What docs/judge.md says, with the interpreter and its libraries."""


def peak_of(history: Path) -> int:
    """The most memory that a process took which judged the history, in bytes; it must be valid."""
    result = judge_on(LocalEngine(threads=1), find([history]), wake_ms=100, late_ms=50, say=lambda _text: None)
    assert result.verdict == "valid"
    # Not getrusage: its maximum is handed down from the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * KIB


@pytest.mark.parametrize("queues", [1, 16])
def test_memory_is_that_of_a_few_stretches(tmp_path: Path, queues: int) -> None:
    """Eight times as many events take hardly more memory, and less than is stated."""
    peaks = []
    for events in (1_000_000, 8_000_000):
        directory = tmp_path / str(events)
        write_large(directory, Load(events=events, queues=queues))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks.append(pool.apply(peak_of, (directory,)))

    assert peaks[1] < 1.25 * peaks[0]
    assert max(peaks) < PEAK_BYTES_MAX


LAGGING_PEAK_BYTES_MAX = 600 << 20
"""What docs/judge.md says of 16 groups that read from offset 0 on."""


@pytest.mark.parametrize("queues", [1, 16])
def test_memory_does_not_grow_where_groups_lag(tmp_path: Path, queues: int) -> None:
    """Three times as many events, and laggards three times as far behind, take hardly more memory."""
    peaks = []
    for events in (1_600_000, 5_000_000):
        directory = tmp_path / str(events)
        write_lagging(directory, Load(events=events, queues=queues, consumers=("*",)), 16)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks.append(pool.apply(peak_of, (directory,)))

    assert peaks[1] < 1.25 * peaks[0]
    assert max(peaks) < LAGGING_PEAK_BYTES_MAX
