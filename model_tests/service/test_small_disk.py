"""A broker on a full disk: sends are refused, pulls go on, and sends succeed once there is room.

The test runs this file as a program in a new namespace, where it may mount a file system of 4 MiB.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields
from model_tests.support.present import present

from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.store.verify import verify
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime.real import RealRuntime

ROOT: Final = Path(__file__).parents[2]
NAMESPACE: Final = ("unshare", "--user", "--map-root-user", "--mount")
DISK_SIZE: Final = 4 * 1024 * 1024
BODY: Final = bytes(8000)
CONFIG: Final = StoreConfig(commit_log_file_size=256 * 1024, consume_queue_file_size=20_000, index=False)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a program in the namespace."""
    return subprocess.run(
        [*NAMESPACE, *words], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_on_a_full_disk_pulls_go_on() -> None:
    if shutil.which(NAMESPACE[0]) is None or run("true").returncode:
        pytest.skip("no disk of its own: users may not mount here; test_crash.py refuses in the file layer instead")
    done = run(sys.executable, __file__)
    assert done.returncode == 0, done.stderr[-3000:]


def send(client: RawClient) -> int:
    return client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), BODY).code


def fill_and_make_room(store: Path, ballast: Path) -> None:
    """Fill the disk, look that pulls are served, make room, and look that sends are taken again."""
    with (
        Broker.start(RealRuntime(), str(store), store_config=CONFIG) as broker,
        RawClient(broker.address) as sender,
        RawClient(broker.address) as puller,
    ):
        codes = [send(sender)]
        while codes[-1] == ResponseCode.SUCCESS:
            assert len(codes) < DISK_SIZE // len(BODY), "the disk took more than it has room for"
            codes.append(send(sender))
        stored = len(codes) - 1
        assert codes[-1] == ResponseCode.SERVICE_NOT_AVAILABLE
        assert len(records_of(puller.call(RequestCode.PULL_MESSAGE, pull_fields("T", stored - 5)))) == 5
        held = puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", stored, timeout_ms=30_000))
        wait_until(lambda: len(broker.hold_service) == 1)
        assert send(sender) == ResponseCode.SERVICE_NOT_AVAILABLE
        ballast.unlink()
        assert send(sender) == ResponseCode.SUCCESS
        woken = present(puller.reply(held))
        assert [record.queue_offset for record in records_of(woken)] == [stored]
    assert not verify(RealRuntime().files, str(store)).problems


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", name], check=True)
        try:
            (Path(name) / "ballast").write_bytes(bytes(DISK_SIZE // 2))
            fill_and_make_room(Path(name) / "store", Path(name) / "ballast")
        finally:
            subprocess.run(["umount", name], check=True)
