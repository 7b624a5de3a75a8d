"""A line of a gigabyte is one gap in the evidence: it is named, what is around it is judged, and nobody holds it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from longpoll_judge.testing.generate import Load, simulate, simulated_meta, write

HUGE_BYTES: Final = 1 << 30
MEMORY_KIB_MAX: Final = 600 * 1024
"""What judging may take in all; a judge without any events takes a quarter of it."""


def huge_part(directory: Path, kind: str) -> int:
    """A history whose only part has a line of a gigabyte in its middle; returns how many events it has."""
    write(directory, simulate(Load(events=2_000, timeout_ms=60)), simulated_meta())
    part = directory / "part-000000.ndjson"
    lines = part.read_bytes().splitlines(keepends=True)
    half = len(lines) // 2
    if kind == "plain":
        with part.open("wb") as file:
            file.write(b"".join(lines[:half]))
            file.seek(HUGE_BYTES, os.SEEK_CUR)  # a hole, which is read as zeros and takes no room
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
    """Every other event is judged, the verdict is unknown, and memory stays bounded."""
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
