"""A broker on a real disk that ends: a file system of four mebibytes, or a directory that its user must not write to.

    unshare --user --map-root-user --mount python small_disk.py full
    setpriv --bounding-set -dac_override,-dac_read_search python small_disk.py forbidden

A process of its own, because mounting needs a namespace, and root must lose its right to write anywhere. It ends with
0 when sends were refused while pulls went on, and everything went on when there was room again. Run by
`test_small_disk.py`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.store.verify import verify
from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, records_of, send_fields
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime.real import RealRuntime

DISK_SIZE: Final = 4 * 1024 * 1024
BALLAST_SIZE: Final = DISK_SIZE // 2
LOG_FILE_SIZE: Final = 256 * 1024
BODY: Final = bytes(8000)
SENDS_MAX: Final = DISK_SIZE // len(BODY) + 1
HOLD_MS: Final = 30_000


def go_on_beside(store: Path, *, ballast: Path | None) -> None:
    """Fill the disk, look that pulls are served, make room, and look that sends are taken again."""
    config = StoreConfig(commit_log_file_size=LOG_FILE_SIZE, consume_queue_file_size=20_000, index=False)
    with (
        Broker.start(RealRuntime(), str(store), store_config=config) as broker,
        RawClient(broker.address) as sender,
        RawClient(broker.address) as puller,
    ):
        assert send(sender) == 0
        if ballast is None:
            permit(store, 0o555)
        stored = fill(sender)
        reply = puller.call(RequestCode.PULL_MESSAGE, pull_fields("T", stored - 5))
        assert len(records_of(reply)) == 5
        held = puller.send(RequestCode.PULL_MESSAGE, pull_fields("T", stored, timeout_ms=HOLD_MS))
        wait_until(lambda: len(broker.hold_service) == 1)
        assert send(sender) == ResponseCode.SERVICE_NOT_AVAILABLE
        if ballast is None:
            permit(store, 0o755)
        else:
            ballast.unlink()
        assert send(sender) == 0
        woken = puller.reply(held)
        assert woken is not None
        assert [record.queue_offset for record in records_of(woken)] == [stored]
    assert not verify(RealRuntime().files, str(store)).problems


def permit(store: Path, mode: int) -> None:
    """Change who may make files in the store's directories; the files themselves stay open."""
    for directory in [store, *(path for path in store.rglob("*") if path.is_dir())]:
        directory.chmod(mode)


def fill(sender: RawClient) -> int:
    """Send until it is refused; how many messages there are. Nothing but 0 and 14 is answered."""
    for stored in range(1, SENDS_MAX):
        code = send(sender)
        if code:
            assert code == ResponseCode.SERVICE_NOT_AVAILABLE, code
            assert stored > 5
            return stored
    raise AssertionError("the disk took more than it has room for")


def send(client: RawClient) -> int:
    return client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), BODY).code


def main(kind: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if kind == "forbidden":
            go_on_beside(directory / "store", ballast=None)
            return
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", name], check=True)
        try:
            ballast = directory / "ballast"
            ballast.write_bytes(bytes(BALLAST_SIZE))
            go_on_beside(directory / "store", ballast=ballast)
        finally:
            subprocess.run(["umount", name], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
