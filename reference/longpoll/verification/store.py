"""The rows of the stores: one that a Java broker wrote, and the one that our broker has just written."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from longpoll.verification.report import Row, Stopwatch
from longpoll_broker.store.verify import verify
from longpoll_runtime.files import RealFiles

JAVA_STORE: Final = "store-4.9.7-clean.tar.xz"
"""A store as a RocketMQ 4.9.7 broker left it after a clean stop; it ships with this package."""


def java_store_is_read() -> Sequence[Row]:
    """Unpack the Java broker's store and verify it."""
    with tempfile.TemporaryDirectory(prefix="longpoll-java-store-") as directory:
        with as_file(files("longpoll.verification") / JAVA_STORE) as archive, tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
        roots = [path.parent for path in Path(directory).rglob("commitlog") if path.is_dir()]
        return [store_row("store written by RocketMQ 4.9.7", roots[0])]


def store_row(what: str, directory: Path) -> Row:
    """Verify a store directory: all records are intact, and log and queues agree."""
    watch = Stopwatch()
    verdict = verify(RealFiles(), str(directory))
    damage = [problem for problem in verdict.problems if problem.kind == "damage"]
    detail = f"{verdict.messages:,} messages in {len(verdict.queues)} queues"
    if damage:
        first = damage[0]
        detail += (
            f"; damaged in {len(damage)} places, the first: {first.file}, byte {first.offset}: found {first.found}"
        )
    return Row("store", what, "violated" if damage else "ok", detail, watch.lap())
