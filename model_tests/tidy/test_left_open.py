"""An open socket of a failed test does not fail the next test, and a test that leaves a thread fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

MODEL_TESTS: Final = Path(__file__).parents[1]
SOCKETS: Final = """
import gc
import socket

import pytest


@pytest.fixture
def opened():
    left = socket.socket()
    assert left.fileno() < 0, "the fixture fails"


def test_that_fails_with_an_open_socket():
    left = socket.socket()
    try:
        left.missing
    except AttributeError:
        assert left.fileno() < 0, "the test fails"


def test_whose_fixture_fails_with_an_open_socket(opened): ...


def test_that_passes():
    gc.collect()
"""


THREADS: Final = """
import threading

import conftest

leave = threading.Event()


def test_that_leaves_a_thread():
    conftest.ENDING_S = 0.1
    threading.Thread(target=leave.wait, name="left").start()


def test_that_joins_its_thread_late():
    conftest.ENDING_S = 60.0
    threading.Timer(0.01, leave.set).start()


def test_that_passes(): ...
"""


def run(directory: Path, tests: str, *plugin: str) -> str:
    file = directory / "test_left.py"
    file.write_text(tests)
    words = ["-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", str(directory), *plugin, str(file)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(MODEL_TESTS), *sys.path])}
    command = [sys.executable, "-m", "pytest", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=directory).stdout


def test_a_socket_that_a_failed_test_left_open_fails_no_other(tmp_path: Path) -> None:
    """Each failure is reported once; without the hook of `conftest.py` a warning fails the next test."""
    with_hook, without = run(tmp_path, SOCKETS, "-p", "conftest"), run(tmp_path, SOCKETS)

    assert "1 failed, 1 passed, 1 error in" in with_hook, with_hook
    assert "1 failed, 1 passed, 1 error in" not in without, without


def test_a_test_that_leaves_a_thread_fails(tmp_path: Path) -> None:
    """The error names the thread; a thread that is about to end does not count."""
    said = run(tmp_path, THREADS, "-p", "conftest")

    assert "3 passed, 1 error in" in said, said
    assert "assert ['left'] == []" in said
