"""A thread that ends by an exception ends the process: exit code 70, its name and the traceback on stderr."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from model_tests.support.spec.cases import quick_if

from longpoll_runtime.real import RealRuntime
from longpoll_runtime.threads import EXIT_THREAD_DIED, spawn

PATIENCE_S: Final = 60.0
ANYWHERE: Final = ("--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0")
POLLING: Final = ("serve", *ANYWHERE, "--policy", "rocketmq-4.9")
OBSERVE: Final = ("observe", "--listen", "127.0.0.1:0", "--broker", "127.0.0.1:1", "--record", "{directory}/history")
THREADS: Final[dict[str, Sequence[str]]] = {
    "io-0": ("serve", *ANYWHERE),
    "schedule": ("serve", *ANYWHERE),
    "timer": ("serve", *ANYWHERE, "--policy", "rocketmq-5"),
    "flusher": ("serve", *ANYWHERE),
    "table-saver": ("serve", *ANYWHERE),
    "committer": ("serve", *ANYWHERE, "--config", "{directory}/broker.conf"),
    "commit-watcher": ("serve", *ANYWHERE, "--config", "{directory}/broker.conf"),
    "dispatcher": POLLING,
    "pull-0": POLLING,
    "pull-watcher": POLLING,
    "scanner": POLLING,
    "history-writer": ("serve", *ANYWHERE, "--record", "{directory}/history"),
    "replicator": ("serve", *ANYWHERE, "--ha", "127.0.0.1:0"),
    "follower": ("serve", *ANYWHERE, "--slave-of", "127.0.0.1:1"),
    "table-copier": ("serve", *ANYWHERE, "--slave-of", "127.0.0.1:1"),
    "registrar": ("serve", *ANYWHERE, "--register-at", "127.0.0.1:1"),
    "relay": OBSERVE,
    "measure": (*OBSERVE, "--name-server", "127.0.0.1:1"),
    "look-up": (*OBSERVE, "--broker", "localhost:1"),
}
"""Every thread of a served broker and of the proxy, and a command that has it."""
PLANT: Final = """
import struct, sys
from longpoll_runtime import real
from longpoll.cli import main
name, spawn = sys.argv.pop(1), real.spawn
def fail():
    raise struct.error("planted")
def planted(thread, target, died):
    return spawn(thread, fail if thread == name else target, died)
real.spawn = planted
main()
"""


@pytest.mark.parametrize("name", quick_if(THREADS, lambda name: name in {"io-0", "relay"}))
def test_a_thread_that_dies_ends_the_process(tmp_path: Path, name: str) -> None:
    (tmp_path / "broker.conf").write_text("flushDiskType=SYNC_FLUSH\n")
    command = [part.format(directory=tmp_path) for part in THREADS[name]]
    ended = subprocess.run(
        [sys.executable, "-c", PLANT, name, *command], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )

    assert ended.returncode == EXIT_THREAD_DIED, ended.stderr
    assert f"thread {name} has ended by a fault of the program" in ended.stderr
    assert "struct.error: planted" in ended.stderr


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(0), KeyboardInterrupt(), AssertionError("planted")])
def test_whatever_ends_a_thread_is_told(error: BaseException) -> None:
    told: list[tuple[str, BaseException]] = []

    def fails() -> None:
        raise error

    RealRuntime(thread_died=lambda name, why: told.append((name, why))).spawn("planted", fails).join()
    assert told == [("planted", error)]


def test_a_thread_that_returns_tells_nothing() -> None:
    told: list[str] = []
    ran = threading.Event()
    thread = spawn("planted", ran.set, lambda name, _why: told.append(name))
    thread.join()
    assert ran.is_set()
    assert told == []
