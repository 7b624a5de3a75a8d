"""`make nightly` stops at its deadline, orders tests by its seed, and reports failed and unfinished tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path

import msgspec
import pytest
from attrs import evolve
from click.testing import CliRunner
from model_tests.nightly import __main__ as nightly
from model_tests.nightly.__main__ import Part, exit_of, main, run_tests
from model_tests.nightly.plugin import Line
from model_tests.support.broker.brokers import wait_until

from longpoll.output import Exit

SUITE = """
import threading
import pytest

@pytest.mark.long
@pytest.mark.parametrize("number", range(6))
def test_right(number):
    assert number < 6

@pytest.mark.long
def test_wrong():
    assert 1 == 2

@pytest.mark.long
@pytest.mark.whole_machine
def test_endless():
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        raise AssertionError("whoever is interrupted may fail")

def test_quick():
    raise AssertionError("a quick test is not a nightly one")
"""
WRONG = "@pytest.mark.long\ndef test_wrong():\n    assert 1 == 2\n"
IN_ORDER = 0
"""A seed that keeps two tests in their order."""
RIGHT = Part("a", 1, (), (), 0, 1.0)


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(nightly, "LOGS", tmp_path / "logs")
    (tmp_path / "test_suite.py").write_text(SUITE)
    return ["-p", "no:cacheprovider", str(tmp_path / "test_suite.py")]


def order(tmp_path: Path) -> list[str]:
    lines = (tmp_path / "logs" / "shared.jsonl").read_bytes().splitlines()
    return [row.test for row in (msgspec.json.decode(line, type=Line) for line in lines) if row.outcome == "started"]


def test_the_long_tests_run_in_the_order_of_the_seed(suite: list[str], tmp_path: Path) -> None:
    """The seed shuffles the long tests; quick tests and tests of the whole machine are left out."""
    orders = []
    for seed in (1, 2):
        part = run_tests("shared", 1.0, seed, suite)
        assert (part.passed, len(part.failed), part.unfinished, part.not_reached) == (6, 1, (), 0)
        assert "test_wrong" in part.failed[0]
        orders.append(order(tmp_path))
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert exit_of([part]) == Exit.VIOLATED


def test_no_test_starts_after_the_deadline(suite: list[str]) -> None:
    part = run_tests("shared", 0.0, 1, [*suite, "-n", "2"])

    assert (part.passed, part.failed, part.not_reached) == (0, (), 7)
    assert exit_of([part]) == Exit.UNKNOWN


def test_a_test_that_does_not_end_is_killed_and_counts_as_unfinished(
    suite: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit counts from the start of the first test, so a slow start of pytest does not matter."""
    log, wait = tmp_path / "logs" / "alone.jsonl", nightly._wait

    def wait_for_begin(process: subprocess.Popen[bytes], _until_s: float) -> int | None:
        wait_until(lambda: log.exists() and b"started" in log.read_bytes())
        return wait(process, 0.0)

    monkeypatch.setattr(nightly, "_wait", wait_for_begin)
    part = run_tests("alone", 1.0, 1, suite, grace_s=0.0)

    assert (part.passed, part.failed, len(part.unfinished)) == (0, (), 1)


def test_a_failure_is_shown_before_the_end(suite: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is printed at once, so it is not lost if pytest must be killed."""
    # The child writes to a file, because `capfd` truncates its own file and loses concurrent output.
    shown = tmp_path / "shown"

    def kill(process: subprocess.Popen[bytes], _until_s: float) -> int:
        wait_until(lambda: b"assert 1 == 2" in shown.read_bytes())
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    monkeypatch.setattr(nightly, "_wait", kill)
    endless = "@pytest.mark.long\ndef test_endless():\n    threading.Event().wait()\n"
    Path(suite[-1]).write_text(SUITE[: SUITE.index("@")] + WRONG + endless)
    with shown.open("w") as terminal, redirect_stderr(terminal):
        part = run_tests("shared", 1.0, IN_ORDER, suite)

    assert part.failed[0].endswith("test_wrong")


def test_a_worker_that_crashes_is_a_failure(suite: list[str]) -> None:
    Path(suite[-1]).write_text("import os, pytest\n@pytest.mark.long\ndef test_crash():\n    os._exit(70)\n")
    part = run_tests("shared", 1.0, 1, [*suite, "-n", "1"])

    assert [name.rpartition("::")[2] for name in part.failed] == ["test_crash"]
    assert exit_of([part]) == Exit.VIOLATED


def test_a_suite_that_cannot_be_collected_is_a_failure(suite: list[str]) -> None:
    Path(suite[-1]).write_text("import no_such_module")
    part = run_tests("shared", 1.0, 1, suite)

    assert "exit code" in part.failed[0]


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([RIGHT, evolve(RIGHT, unfinished=("x",))], Exit.OK),
        ([RIGHT, evolve(RIGHT, failed=("x",))], Exit.VIOLATED),
        ([evolve(RIGHT, passed=0)], Exit.UNKNOWN),
    ],
)
def test_the_exit_code_is_that_of_the_reported_tests(parts: list[Part], code: Exit) -> None:
    """One failed test fails the run, and a run without a passed test proves nothing."""
    assert exit_of(parts) == code


def test_the_seed_is_printed_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed is the date, and the printed line is the command that repeats the run."""
    monkeypatch.setattr(nightly, "run_simulation", lambda *_: RIGHT)
    monkeypatch.setattr(nightly, "run_tests", lambda *_: evolve(RIGHT, failed=("test_x",)))
    done = CliRunner().invoke(main, ["--minutes", "1"])

    assert done.exit_code == Exit.VIOLATED
    assert re.search(r"seed (20\d{6}); repeat it with: make nightly MINUTES=1 SEED=\1", done.stderr)
    assert "failed: test_x" in done.stdout


def test_ctrl_c_ends_the_started_tests(suite: list[str]) -> None:
    """The tests run in a process group, which the runner ends when it is interrupted."""
    code = (
        # A shell starts background processes with SIGINT ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import sys; from model_tests.nightly import __main__ as n; from pathlib import Path;"
        f"n.LOGS = Path({str(Path(suite[-1]).parent / 'logs')!r}); n.run_tests('alone', 9.0, 1, {suite!r})"
    )
    log = Path(suite[-1]).parent / "logs" / "alone.jsonl"
    with subprocess.Popen([sys.executable, "-c", code], cwd=nightly.ROOT, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        wait_until(lambda: process.poll() is not None or (log.exists() and b"started" in log.read_bytes()))
        assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGINT)
        # All processes of the tests share the stream, so it ends only when every process has ended.
        process.stderr.read()
        assert process.wait() != 0
