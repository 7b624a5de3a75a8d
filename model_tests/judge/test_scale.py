"""Histories of any size, and lines of any length, take bounded memory."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from model_tests.support.judge.generate import Load, simulate, simulated_meta
from model_tests.support.judge.laggards import write_lagging
from model_tests.support.judge.recording import write
from model_tests.support.judge.tiles import write_large

from longpoll_judge.read.source import find
from longpoll_judge.run.local import LocalEngine
from longpoll_judge.run.pipeline import judge_on

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
KIB = 1024
PEAK_BYTES_MAX = 640 << 20
"""The memory limit, including the interpreter and its libraries; docs/performance.md has measured figures."""


def peak_of(history: Path) -> int:
    result = judge_on(LocalEngine(threads=1), find([history]), wake_ms=100, late_ms=50, say=lambda _text: None)
    assert result.verdict == "valid"
    # getrusage is not used, because it inherits the maximum of the parent process.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (peak,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * KIB


@pytest.mark.parametrize("queues", [1, 16])
def test_memory_is_that_of_a_few_windows(tmp_path: Path, queues: int) -> None:
    peaks = []
    for events in (1_000_000, 8_000_000):
        directory = tmp_path / str(events)
        write_large(directory, Load(events=events, queues=queues))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks.append(pool.apply(peak_of, (directory,)))

    assert peaks[1] < 1.25 * peaks[0]
    assert max(peaks) < PEAK_BYTES_MAX


LAGGING_PEAK_BYTES_MAX = 600 << 20
"""The memory limit in docs/performance.md for groups that read old messages."""


LAGGING_IN_ONE_QUEUE: Final = pytest.param(
    1,
    marks=pytest.mark.xfail(strict=True, reason="a part of a queue also has the messages that laggards read"),
)


@pytest.mark.parametrize("queues", [LAGGING_IN_ONE_QUEUE, 16])
def test_memory_does_not_grow_if_groups_lag(tmp_path: Path, queues: int) -> None:
    peaks = []
    for events in (1_600_000, 5_000_000):
        directory = tmp_path / str(events)
        write_lagging(directory, Load(events=events, queues=queues, consumers=("*",)), 16)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks.append(pool.apply(peak_of, (directory,)))

    assert peaks[1] < 1.25 * peaks[0]
    assert max(peaks) < LAGGING_PEAK_BYTES_MAX


# -- a line of a gigabyte is one gap in the evidence -------------------------------------------------------------------

HUGE_BYTES: Final = 1 << 30
MEMORY_KIB_MAX: Final = 600 * 1024
"""The memory limit of a judgement in KiB; a judge without events uses a quarter of it."""


def huge_part(directory: Path, kind: str) -> int:
    """A history whose only part has a line of a gigabyte in its middle; returns its number of events."""
    write(directory, simulate(Load(events=2_000, timeout_ms=60)), simulated_meta())
    part = directory / "part-000000.ndjson"
    lines = part.read_bytes().splitlines(keepends=True)
    half = len(lines) // 2
    if kind == "plain":
        with part.open("wb") as file:
            file.write(b"".join(lines[:half]))
            # The line is a hole in the file, which reads as zeros and takes no disk space.
            file.seek(HUGE_BYTES, os.SEEK_CUR)
            file.write(b"\n" + b"".join(lines[half:]))
    else:
        part.unlink()
        with pa.CompressedOutputStream(str(part) + ".zst", "zstd") as stream:
            stream.write(b"".join(lines[:half]))
            for _ in range(HUGE_BYTES >> 20):
                stream.write(bytes(1 << 20))
            stream.write(b"\n" + b"".join(lines[half:]))
    return len(lines)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["plain", "compressed"])
def test_a_line_of_a_gigabyte_is_a_gap(tmp_path: Path, kind: str) -> None:
    count = huge_part(tmp_path / "history", kind)
    command = [sys.executable, "-m", "longpoll", "judge", str(tmp_path / "history"), "--engine", "local", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said, complaint = running.stdout.read(), running.stderr.read()
        _process, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    result = json.loads(said)

    assert (running.returncode, result["verdict"], result["events"]) == (3, "unknown", count)
    assert [gap["kind"] for gap in result["gaps"]] == ["damage"]
    assert "a line longer than 16777216 bytes" in result["gaps"][0]["why"]
    assert b"Traceback" not in complaint
    assert usage.ru_maxrss < MEMORY_KIB_MAX
