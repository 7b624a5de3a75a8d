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

from longpoll_spec.policy import PRESETS

pytestmark = pytest.mark.long
PROCESSES: Final = 3
COLD_PROCESSES: Final = 50
ROOT: Final = Path(__file__).parents[2]


def conversions(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One cold process that races for every class."""
    command = [sys.executable, str(cold_conversions.__file__), *arguments]
    path = {"PYTHONPATH": f"{ROOT / 'spec'}:{ROOT / 'reference'}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=path)


def test_no_first_conversion_ends_any_of_many_processes() -> None:
    """Several threads convert to each class first; `tidy/test_tables.py` shows without threads why that is safe."""
    for _ in range(COLD_PROCESSES):
        ended = conversions()
        assert ended.returncode == 0, ended.stderr
        assert int(ended.stdout) > 90


def test_planted_tables_made_at_first_use_end_it() -> None:
    """Msgspec's own way ended 8 of 8 processes, so it ends one of three."""
    assert any(conversions("planted").returncode == -signal.SIGSEGV for _ in range(PROCESSES))


COLD: Final = """
import sys, tempfile, threading
from longpoll_broker.config import StoreConfig
from longpoll_runtime.real import RealRuntime
from longpoll_broker.broker import Broker
from longpoll_broker.testing.raw_client import RawClient, pull_fields, send_fields
from longpoll_protocol.frames.frame import Serialisation
from longpoll_spec.policy import preset

small = StoreConfig(commit_log_file_size=8 << 20, consume_queue_file_size=20_000)
place = {"topic": "T", "queueId": "0"}
commit = place | {"consumerGroup": "G", "commitOffset": "1"}
requests = [
    (310, send_fields("T")), (11, pull_fields("T", 0, timeout_ms=100)), (10, {}), (15, commit), (14, commit),
    (30, place), (29, place | {"timestamp": "1"}), (31, place), (12, {"topic": "T", "key": "k", "maxNum": "1",
    "beginTimestamp": "0", "endTimestamp": "9"}), (36, {"offset": "0", "group": "G", "delayLevel": "0"}),
    (37, {"producerGroup": "P", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8"}),
    (38, {"consumerGroup": "G"}), (17, place | {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}),
]
sys.setswitchinterval(1e-6)
with tempfile.TemporaryDirectory() as directory, Broker.start(
    RealRuntime(), directory, policy=preset(sys.argv[1]), store_config=small
) as broker:
    barrier = threading.Barrier(len(requests))
    def ask(code, fields):
        with RawClient(broker.address) as client:
            barrier.wait()
            for kind in Serialisation:
                client.send(code, fields, b"x", serialisation=kind)
            assert client.reply(1, 3600) is not None
    threads = [threading.Thread(target=ask, args=request) for request in requests]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
print("served")
"""


@pytest.mark.parametrize("policy", PRESETS)
def test_a_cold_broker_serves_many_at_once(policy: str) -> None:
    """Under every policy, whichever threads decode."""
    command = [sys.executable, "-c", COLD, policy]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "served\n"), ended.stderr
