"""On a real disk that has no room, or that must not be written to, sends are refused and pulls go on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = Path(__file__).with_name("small_disk.py")
WITHOUT_RIGHTS: Final = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
"""Root without its right to write anywhere."""
NAMESPACE: Final = ("unshare", "--user", "--map-root-user", "--mount")
PATIENCE_S: Final = 120.0


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own."""
    return subprocess.run(
        [*words], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip


def need_namespace() -> None:
    """Skip where this machine does not let its users mount in a namespace of their own."""
    if shutil.which(NAMESPACE[0]) is None or run(*NAMESPACE, "true").returncode:
        pytest.skip("no disk of its own: users may not mount here; test_crash.py refuses in the file layer instead")


def test_on_a_full_disk_pulls_go_on() -> None:
    need_namespace()
    done = run(*NAMESPACE, sys.executable, str(SCRIPT), "full")

    assert done.returncode == 0, done.stderr[-3000:]


def test_in_a_directory_that_must_not_be_written_to_pulls_go_on() -> None:
    done = run(*(WITHOUT_RIGHTS if os.getuid() == 0 else ()), sys.executable, str(SCRIPT), "forbidden")

    assert done.returncode == 0, done.stderr[-3000:]
