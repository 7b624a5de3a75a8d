"""The first requests of a cold process, on many threads at once, with turns of a microsecond.

msgspec makes a class's table of fields at the first decoding and shows it half made to other threads; here it is made
where the class is defined (`longpoll_spec.tables`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from model_tests.service import cold_conversions

pytestmark = pytest.mark.long
PROCESSES: Final = 3
COLD_PROCESSES: Final = 50
ROOT: Final = Path(__file__).parents[2]


def conversions(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(cold_conversions.__file__), *arguments]
    path = {"PYTHONPATH": f"{ROOT / 'spec'}:{ROOT / 'reference'}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=path)


def test_no_first_conversion_ends_any_of_many_processes() -> None:
    """`tidy/test_packages.py` shows without threads why that is safe."""
    for _ in range(COLD_PROCESSES):
        ended = conversions()
        assert ended.returncode == 0, ended.stderr
        assert int(ended.stdout) > 90


def test_planted_tables_made_at_first_use_end_it() -> None:
    assert any(conversions("planted").returncode == -signal.SIGSEGV for _ in range(PROCESSES))
