"""Tries mutants of one module in a separate process, and yields their results as they come."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec
from model_tests.mutants.code.server import Failed, Order, Result

ROOT: Final = Path(__file__).resolve().parents[3]
SERVER: Final = "model_tests.mutants.code.server"
SAID_MAX: Final = 3_000
"""So much of what a server said is shown when it fails, characters."""


class CannotTellError(Exception):
    """The tests could not be run; the text says why."""


def tried(path: Path, name: str, tests: Sequence[str], wanted: frozenset[str] | None = None) -> Iterator[Result]:
    """Try mutants of a file with these tests (relative to the checkout); raises CannotTellError."""
    order = Order(path=str(path), name=name, tests=tuple(tests), wanted=wanted)
    places = [str(ROOT / folder) for folder in (".", "spec", "reference")]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [sys.executable, "-m", SERVER],
            cwd=ROOT,
            # Hashes of texts that are the same each time: buckets are dealt to shards by them.
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(places)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(msgspec.json.encode(order))
            server.stdin.close()
            for line in server.stdout:
                row = msgspec.json.decode(line, type=Result | Failed)
                if isinstance(row, Failed):
                    raise CannotTellError(f"{name}: {row.why}{_end_of(said)}")
                yield row
            if server.wait():
                raise CannotTellError(f"{name}: the server ended with {server.returncode}{_end_of(said)}")
        finally:
            server.terminate()


def _end_of(said: IO[bytes]) -> str:
    said.seek(0)
    return "\n" + said.read().decode(errors="replace")[-SAID_MAX:]
