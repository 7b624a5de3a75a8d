"""Memory of columns that are done with is kept for the next ones."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PAGE_BYTES = 4096
COLUMN_BYTES, COLUMNS, TIMES = 2 << 20, 4, 10
AGAIN_AND_AGAIN = f"""
import resource
from longpoll_judge.columns.memory import give_back_memory, keep_freed_memory
assert keep_freed_memory()
def faults():
    columns = [b"x" * {COLUMN_BYTES} for _ in range({COLUMNS})]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
first = faults()
before = [faults() for _ in range({TIMES})][-1]
give_back_memory()
print(before - first, faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_columns_of_the_same_size_take_the_memory_of_those_before_them() -> None:
    """The system is not asked for it anew, page by page, until it is given back; in another process."""
    found = subprocess.run([sys.executable, "-c", AGAIN_AND_AGAIN], capture_output=True, text=True, check=True)

    kept, given_back = map(int, found.stdout.split())
    assert kept < COLUMN_BYTES // PAGE_BYTES < given_back
