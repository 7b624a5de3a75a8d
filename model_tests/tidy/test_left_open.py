"""A failed test that leaves a socket open makes no other test fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

MODEL_TESTS: Final = Path(__file__).parents[1]
TESTS: Final = """
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


def test_a_socket_that_a_failed_test_left_open_fails_no_other(tmp_path: Path) -> None:
    """Each failure is reported once; without the hook of `conftest.py` a warning fails the next test."""
    (tmp_path / "test_left.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(MODEL_TESTS), *sys.path])}
    results = {
        plugin: subprocess.run(
            [*command, *plugin, str(tmp_path / "test_left.py")],
            capture_output=True, text=True, check=False, env=environment, cwd=tmp_path,
        ).stdout
        for plugin in (("-p", "conftest"), ())
    }  # fmt: skip
    assert "1 failed, 1 passed, 1 error in" in results["-p", "conftest"], results
    assert "1 failed, 1 passed, 1 error in" not in results[()], results
