"""The Spark session writes no log, leaves no files, and ends at once on Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
WAIT_S = 100
MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the test run's own parent chose
from longpoll.cli import main
main()
"""


def start(clean: Path, directory: Path, *options: str) -> subprocess.Popen[str]:
    (directory / "work").mkdir()
    (directory / "temporary").mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "judge", str(clean), "--engine", "spark", *options],
        cwd=directory / "work",
        env=os.environ | {"TMPDIR": str(directory / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_over(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*/*") if not path.name.startswith("hsperfdata"))


@pytest.mark.long
def test_spark_writes_no_log_lines_and_leaves_no_files(clean: Path, tmp_path: Path) -> None:
    process = start(clean, tmp_path)
    told, complained = process.communicate(timeout=WAIT_S)

    assert process.returncode == 0
    assert told.startswith("verdict: valid")
    assert complained == ""
    assert left_over(tmp_path) == []


@pytest.mark.long
def test_ctrl_c_ends_spark_at_once_without_remains(clean: Path, tmp_path: Path) -> None:
    process = start(clean, tmp_path)
    deadline = time.monotonic() + WAIT_S
    while not list(tmp_path.glob("temporary/longpoll-spark-*/local/blockmgr-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "Spark did not start"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGINT)
    told, complained = process.communicate(timeout=WAIT_S)

    assert process.returncode == 3
    assert told == ""
    assert complained.strip().startswith("longpoll: stopped by Ctrl-C")
    assert len(complained.strip().splitlines()) == 1
    assert children
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []
    assert left_over(tmp_path) == []


@pytest.mark.long
def test_an_invalid_master_is_reported_in_one_line(clean: Path, tmp_path: Path) -> None:
    process = start(clean, tmp_path, "--master", "nonsense")
    told, complained = process.communicate(timeout=WAIT_S)

    assert (process.returncode, told) == (2, "")
    assert "Spark does not start" in complained
    assert "Master must" in complained
    assert len(complained.strip().splitlines()) == 1
    assert left_over(tmp_path) == []
