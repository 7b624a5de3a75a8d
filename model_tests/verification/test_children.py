"""What `longpoll verify` starts ends with it, also when it is killed and can stop nothing any more."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from longpoll.verification import real_client
from longpoll_broker.testing.raw_client import PATIENCE_S

PARENT = """
import subprocess, sys
from pathlib import Path
from longpoll.verification import served
if sys.argv[2:] == ["planted"]:
    start = subprocess.Popen
    def without(command, **more):
        return start([word for word in command if word != "--with-parent"], **more)
    served.subprocess.Popen = without
broker = served.ServedBroker(Path(sys.argv[1]), None)
print(broker._process.pid, flush=True)
sys.stdin.read()
"""
"""Starts a broker as `verify` does, says its id, and waits."""
CLIENT = """
import threading
class Producer:
    def __init__(self, group): pass
    def set_namesrv_addr(self, address): pass
    def start(self):
        print("started", flush=True)
        threading.Event().wait()
Message = PushConsumer = None
"""
"""A client library that hangs at its start."""


@contextmanager
def killed_parent(store: Path, *plant: str) -> Iterator[int]:
    """A descriptor of the broker's process, after the one that started it was killed; the broker is ended here."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(store), *plant], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        descriptor = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.send_signal(signal.SIGKILL)
            parent.wait()
            yield descriptor
        finally:
            if not has_ended(descriptor, 0):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)


def has_ended(descriptor: int, within_s: float) -> bool:
    """Whether a process ends in time."""
    return bool(select.select([descriptor], [], [], within_s)[0])


def test_the_broker_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """And stops as it should: its store says that it was closed."""
    store = tmp_path / "store"
    with killed_parent(store) as descriptor:
        assert has_ended(descriptor, PATIENCE_S)
    assert not (store / "abort").exists()


def test_the_real_clients_process_ends_with_its_parent(tmp_path: Path) -> None:
    """Even where its library hangs."""
    (tmp_path / "rocketmq").mkdir()
    (tmp_path / "rocketmq" / "__init__.py").write_text("")
    (tmp_path / "rocketmq" / "client.py").write_text(CLIENT)
    words = ("127.0.0.1:1", "topic", "group", "1", "1", "1")
    with subprocess.Popen(
        [sys.executable, str(real_client.CHILD), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == b"started\n"
            child.stdin.close()
            assert child.wait(PATIENCE_S) == 3
        except subprocess.TimeoutExpired:
            child.kill()
            pytest.fail("it goes on alone")
