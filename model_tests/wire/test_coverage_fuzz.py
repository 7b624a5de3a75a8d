"""The coverage-guided fuzzer, if it is installed (`make setup` installs it where possible)."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.raw_client import RawClient, send_message

from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.store.verify import verify
from longpoll_runtime.real import RealRuntime

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "model_tests" / "wire" / "coverage_fuzz.py"
INSTALLED: Final = importlib.util.find_spec("atheris") is not None


def run(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if not INSTALLED:
        pytest.skip("no coverage-guided fuzzing: atheris is not installed: make setup")
    (directory / "corpus").mkdir()
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "spec", "reference"))
    words = ["corpus" if word == "CORPUS" else word for word in options]
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        cwd=directory, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip


def serve_corpus(directory: Path, corpus: list[bytes]) -> None:
    """Send each input of the corpus to a whole broker as a peer's stream, and check that another client is served."""
    config = StoreConfig(commit_log_file_size=64 * 1024 * 1024, consume_queue_file_size=20_000)
    with (
        Broker.start(RealRuntime(), str(directory / "store"), store_config=config) as broker,
        RawClient(broker.address) as bystander,
    ):
        for content in corpus:
            with RawClient(broker.address) as peer, suppress(ConnectionError):
                peer.send_bytes(content)
            send_message(bystander, "SAFE")
        wait_until(lambda: broker.connection_count == 1)
    assert verify(RealRuntime().files, str(directory / "store")).problems == []


@pytest.mark.long
def test_nothing_that_a_peer_sends_is_an_unexpected_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done = run(tmp_path, "CORPUS", "-runs=100000", "-max_len=4096", "-seed=1")
    assert done.returncode == 0, done.stderr[-3000:]
    found = [int(count) for count in re.findall(r"cov: (\d+)", done.stderr)]
    assert found[-1] > found[0]
    serve_corpus(tmp_path, [path.read_bytes() for path in sorted((tmp_path / "corpus").iterdir())])
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.long
def test_an_unexpected_error_is_found(tmp_path: Path) -> None:
    done = run(tmp_path, "planted", "CORPUS", "-runs=100000", "-max_len=4096", "-seed=1")
    assert done.returncode != 0
    assert list(tmp_path.glob("crash-*"))
