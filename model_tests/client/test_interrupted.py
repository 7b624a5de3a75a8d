"""Ctrl-C at any moment: the client goes on, and closes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_runtime.real import RealRuntime

ROOT = Path(__file__).parents[2]
PATIENCE_S = 40.0


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """The name server of an embedded broker."""
    with Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        yield "{}:{}".format(*broker.name_server_address)


@pytest.mark.parametrize("what", ["send", "poll", "subscribe"])
def test_who_was_interrupted_a_thousand_times_goes_on(name_server: str, what: str) -> None:
    """No lock is left taken, on which a thread of the client's would wait for ever; and nothing is in the way of it."""
    with new_topic(name_server, 2) as topic:
        command = [sys.executable, "-m", "model_tests.client.interrupted", what, name_server, topic, "7"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["after"] == (topic if what == "send" else "last")
    assert said["interrupted"] > 30
