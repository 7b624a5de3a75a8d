"""If the store's files disappear or the disk fails, the running broker refuses sends and reports this.

The tests use real files. Acknowledged messages stay readable, `/health` answers 503, and restored files are used again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, wait_until
from model_tests.support.broker.commands import StartCommand, commands
from model_tests.support.broker.raw_client import (
    PATIENCE_S,
    RawClient,
    records_of,
    send_message,
)
from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app

from longpoll.cli import main
from longpoll.wire.requests import topic_header
from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.metrics import BrokerCollector, with_health
from longpoll_broker.store.consume_queue import OTHER_MAPS
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime.files import RealFiles, RealMappedFile
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import UserError

SYNC: StoreConfig = attrs.evolve(SMALL_STORE, flush_disk_sync=True)
NOT_KEPT = {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SERVICE_NOT_AVAILABLE}
FIRST_LOG, FIRST_UNITS = "commitlog/" + "0" * 20, "consumequeue/T/0/" + "0" * 20


def removed(store: Path) -> None:
    """Rename the directory before its removal, because a broker that saves a table could make the removal fail."""
    shutil.rmtree(store.rename(store.with_name("removed")))


def log_unlinked(store: Path) -> None:
    (store / FIRST_LOG).unlink()


def log_replaced(store: Path) -> None:
    """Replace the log by another file of the same size."""
    size = (store / FIRST_LOG).stat().st_size
    (store / FIRST_LOG).unlink()
    with (store / FIRST_LOG).open("wb") as made:
        made.truncate(size)


def moved(store: Path) -> None:
    store.rename(store.with_name("moved"))


def exchanged(store: Path) -> None:
    """Move the directory away, and put another store with equal file names and sizes in its place."""
    store.rename(store.with_name("moved"))
    shutil.copytree(store.with_name("moved"), store)


TAKEN = [removed, log_unlinked, log_replaced, moved, exchanged]


@pytest.fixture
def start() -> Iterator[Callable[..., Broker]]:
    brokers: list[Broker] = []

    def started(directory: Path, config: StoreConfig = SYNC) -> Broker:
        brokers.append(Broker.start(RealRuntime(), str(directory), store_config=config))
        return brokers[-1]

    yield started
    for broker in brokers:
        with contextlib.suppress(OSError):
            broker.stop()


def code_of_send(client: RawClient, body: bytes = b"x") -> int:
    return client.put("T", body).code


def health(broker: Broker) -> tuple[str, str]:
    told: list[str] = []
    app = with_health(make_wsgi_app(CollectorRegistry()), broker)
    body = b"".join(app({"PATH_INFO": "/health"}, lambda status, _headers: told.append(status)))
    return told[0], body.decode()


def trouble_metrics(broker: Broker) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(BrokerCollector(broker))
    lines = [line for line in generate_latest(registry).decode().splitlines() if line.startswith("longpoll_store_tr")]
    return {line.partition('"')[2].partition('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


def is_readable(client: RawClient, count: int, topic: str = "T") -> bool:
    return len(records_of(client.pull(topic))) >= count


@pytest.mark.parametrize("take", TAKEN, ids=lambda take: take.__name__)
def test_a_deleted_store_refuses_sends_under_sync_flush(
    start: Callable[..., Broker], tmp_path: Path, take: Callable[[Path], None]
) -> None:
    broker = start(tmp_path / "store")
    with RawClient(broker.address) as client:
        for _ in range(3):
            send_message(client, "T")
        assert health(broker) == ("200 OK", "ok\n")
        assert trouble_metrics(broker) == {"log": 0, "queues": 0, "index": 0, "dispatch": 0}
        take(tmp_path / "store")
        assert [code_of_send(client) for _ in range(3)] == [
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            ResponseCode.SERVICE_NOT_AVAILABLE,
        ]
        assert is_readable(client, 3)
        status, text = health(broker)
        assert status == "503 Service Unavailable"
        assert text.startswith("log: ")
        assert trouble_metrics(broker)["log"] == 1


def test_a_deleted_store_is_reported_by_the_next_flush(start: Callable[..., Broker], tmp_path: Path) -> None:
    broker = start(tmp_path / "store", attrs.evolve(SMALL_STORE, flush_interval_ms=10))
    with RawClient(broker.address) as client:
        send_message(client, "T")
        removed(tmp_path / "store")
        wait_until(lambda: code_of_send(client) == ResponseCode.SERVICE_NOT_AVAILABLE)
        assert health(broker)[0].startswith("503")


def replaced(lock: Path) -> None:
    lock.rename(lock.with_name("kept"))
    lock.touch()


@pytest.mark.parametrize("config", [SMALL_STORE, SYNC], ids=["async", "sync"])
@pytest.mark.parametrize("take", [Path.unlink, replaced])
def test_a_store_without_its_lock_file_refuses_sends(
    start: Callable[..., Broker], tmp_path: Path, take: Callable[[Path], None], config: StoreConfig
) -> None:
    """Another broker could write the same files. When the lock file is restored, the broker uses the store again."""
    broker, lock = start(tmp_path / "store", attrs.evolve(config, flush_interval_ms=10)), tmp_path / "store" / "lock"
    with RawClient(broker.address) as client:
        send_message(client, "T")
        take(lock)
        if config is SYNC:
            assert code_of_send(client) in NOT_KEPT
        wait_until(lambda: code_of_send(client) == ResponseCode.SERVICE_NOT_AVAILABLE)
        status, text = health(broker)
        assert (status[:3], "/lock" in text) == ("503", True)
        other = "import sys; from longpoll_runtime.files import RealFiles; RealFiles().lock(sys.argv[1])"
        told = subprocess.run([sys.executable, "-c", other, lock], capture_output=True, check=False)
        assert b"locked by another process" in told.stderr
        if take is replaced:
            lock.with_name("kept").rename(lock)
            wait_until(lambda: code_of_send(client, b"after") == ResponseCode.SUCCESS)


def test_a_restored_store_is_used_again(start: Callable[..., Broker], tmp_path: Path) -> None:
    broker = start(tmp_path / "store", attrs.evolve(SYNC, flush_interval_ms=10))
    with RawClient(broker.address) as client:
        bodies = [b"before"]
        send_message(client, "T", bodies[0])
        moved(tmp_path / "store")
        told = code_of_send(client, b"told")
        assert told in NOT_KEPT
        assert code_of_send(client) == ResponseCode.SERVICE_NOT_AVAILABLE
        (tmp_path / "moved").rename(tmp_path / "store")
        wait_until(lambda: code_of_send(client, b"after") == ResponseCode.SUCCESS)
        wait_until(lambda: health(broker)[0] == "200 OK")
        assert broker.store.flushed_end == broker.store.log_end
    broker.stop()
    again = start(tmp_path / "store")
    with RawClient(again.address) as client:
        found = [record.body for record in records_of(client.pull("T"))]
    # FLUSH_DISK_TIMEOUT (10) means that the message is in the log; SERVICE_NOT_AVAILABLE (14) comes if the flush thread
    # notices the lost lock first.
    in_log = [b"told"] if told == ResponseCode.FLUSH_DISK_TIMEOUT else []
    assert found == [*bodies, *in_log, b"after"]


def test_saving_tables_does_not_recreate_a_moved_store(
    start: Callable[..., Broker], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(tmp_path / "store", attrs.evolve(SYNC, flush_interval_ms=10))
    moved(tmp_path / "store")
    with RawClient(broker.address) as client:
        told = client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_header("Another", 1).encode())
        assert told.code == ResponseCode.SYSTEM_ERROR
        assert "the store no longer exists" in (told.remark or "")
        wait_until(lambda: "could not be saved; trying again" in caplog.text)
        # The log has no file yet, and the broker creates none, because the message would seem to be stored.
        assert code_of_send(client) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not (tmp_path / "store").exists()
        (tmp_path / "moved").rename(tmp_path / "store")
        wait_until(lambda: code_of_send(client, b"kept") == ResponseCode.SUCCESS)
    broker.stop()
    again = start(tmp_path / "store")
    with RawClient(again.address) as client:
        assert is_readable(client, 1)


@pytest.mark.parametrize("way", ["file", "directory"])
def test_a_deleted_queue_is_reported_and_rebuilt(start: Callable[..., Broker], tmp_path: Path, way: str) -> None:
    broker = start(tmp_path / "store")
    with RawClient(broker.address) as client:
        for _ in range(3):
            send_message(client, "T")
        broker.store.flush_queues()
        if way == "file":
            (tmp_path / "store" / FIRST_UNITS).unlink()
        else:
            shutil.rmtree(tmp_path / "store" / "consumequeue" / "T")
        send_message(client, "T")
        with pytest.raises(FileNotFoundError):
            broker.store.flush_queues()
        assert health(broker)[1].startswith("queues: ")
        assert code_of_send(client) == ResponseCode.SUCCESS
        assert is_readable(client, 5)
    with pytest.raises(OSError, match="consumequeue/T/0"):
        broker.stop()
    again = start(tmp_path / "store")
    with RawClient(again.address) as client:
        assert is_readable(client, 5)
    assert again.store.troubles == {}


def test_after_a_failed_sync_sends_are_refused_until_the_broker_is_started_again(
    start: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start(tmp_path / "store")
    with RawClient(broker.address) as client:
        send_message(client, "T")
        sync = RealMappedFile.sync

        def fail_once(mapped: RealMappedFile, start_at: int, stop: int) -> None:
            if "/commitlog/" in mapped._path:
                monkeypatch.setattr(RealMappedFile, "sync", sync)
                raise OSError(errno.EIO, os.strerror(errno.EIO), mapped._path)
            sync(mapped, start_at, stop)

        monkeypatch.setattr(RealMappedFile, "sync", fail_once)
        assert [code_of_send(client, b"told"), *(code_of_send(client) for _ in range(3))] == [
            ResponseCode.FLUSH_DISK_TIMEOUT, *[ResponseCode.SERVICE_NOT_AVAILABLE] * 3,
        ]  # fmt: skip
        assert is_readable(client, 1)
        assert "Input/output error" in health(broker)[1]
    with pytest.raises(OSError, match="earlier sync"):
        broker.stop()
    again = start(tmp_path / "store")
    with RawClient(again.address) as client:
        assert is_readable(client, 2)
        assert code_of_send(client) == ResponseCode.SUCCESS
        assert health(again) == ("200 OK", "ok\n")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_pulls_continue_on_a_full_disk(brokers: Brokers, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """On a full or read-only disk, sends get SERVICE_NOT_AVAILABLE (14), and pulls continue."""
    _broker, client = brokers.served(store_config=attrs.evolve(SMALL_STORE, commit_log_file_size=16_384))
    for _ in range(3):
        send_message(client, "T", b"x" * 100)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(RealMappedFile, "reserve", refuse)
        patch.setattr(RealFiles, "_map", refuse)
        patch.setattr(RealFiles, "write_atomic", refuse)
        refused = stored = 0
        while refused < 3:
            reply = client.put("T", b"x" * 1000)
            assert reply.code in {ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE}
            refused += reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            stored += reply.code == ResponseCode.SUCCESS
            assert stored < 20
        pulled = client.pull("T")
        assert len(records_of(pulled)) == min(3 + stored, 32)
    offset = send_message(client, "T")
    assert offset == 3 + stored


def test_a_pull_without_a_map_gets_an_error_and_skips_nothing(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pull gets code 1 while the queue's file cannot be opened, and its offset does not move."""
    monkeypatch.setattr(RealFiles, "maps_max", lambda _self: OTHER_MAPS + 1)
    broker = brokers.start()
    client, other = brokers.connect(broker), brokers.connect(broker)
    for queue_id in range(3):
        send_message(client, "T", queue_id=queue_id)
        client.pull("T", queue_id=queue_id)
    map_file = RealFiles._map

    def refuse(files: RealFiles, path: str, size: int, *, writable: bool, create: bool) -> RealMappedFile:
        if "/consumequeue/T/" in path and not create:
            raise OSError(errno.EMFILE, "too many open files", path)
        return map_file(files, path, size, writable=writable, create=create)

    broker.store.flush_queues()
    with monkeypatch.context() as patch:
        patch.setattr(RealFiles, "_map", refuse)
        codes = [client.pull("T", queue_id=queue_id).code for queue_id in range(3)]
        assert codes.count(ResponseCode.SYSTEM_ERROR) >= 2
        # Only one map is allowed, and the file of one of the three queues may have it.
        assert set(codes) <= {ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS}
        send_message(other, "Fresh")
        assert len(records_of(other.pull("Fresh"))) == 1
    for queue_id in range(3):
        assert len(records_of(client.pull("T", queue_id=queue_id))) == 1


def test_serve_reports_its_health_and_its_end(tmp_path: Path) -> None:
    with commands("serve") as start_command:
        served, ready = _served(start_command, tmp_path / "store")
        assert _page(ready, "/health") == (200, "ok\n")
        host, port = ready["broker"].rsplit(":", 1)
        with RawClient((host, int(port))) as client:
            send_message(client, "T")
            removed(tmp_path / "store")
            wait_until(lambda: code_of_send(client) == ResponseCode.SERVICE_NOT_AVAILABLE)
        wait_until(lambda: _page(ready, "/health")[0] == 503)
        assert 'longpoll_store_trouble{part="log"} 1.0' in _page(ready, "/metrics")[1]
        served.send_signal(signal.SIGTERM)
        _out, told = served.communicate()
    assert served.returncode == 3
    assert told.splitlines()[-1].startswith(f"longpoll: cannot close the store {tmp_path / 'store'}: ")
    assert told.splitlines()[-1].endswith("; the next start will recover it")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((Path.mkdir, name) for name in (
            "lock", "abort", "abort.tmp", "checkpoint", "deletedTopics.json", "config/delayOffset.json", FIRST_LOG,
            FIRST_UNITS,
        )),
        *((Path.touch, name) for name in ("commitlog", "config", "consumequeue", "consumequeue/T")),
        *((os.mkfifo, name) for name in ("checkpoint", FIRST_LOG)),
    ],
)  # fmt: skip
def test_a_directory_in_place_of_a_file_is_named(
    start: Callable[..., Broker], tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    """The start fails with the path and a remedy, both for a directory in place of a file and for the reverse."""
    store = tmp_path / "store"
    with start(store) as broker, RawClient(broker.address) as client:
        send_message(client, "T")
    place = store / name
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    make(place)
    with pytest.raises(UserError, match=f"{place}.*(move it away|restore|away to start)"):
        start(store)
    said = CliRunner().invoke(main, ["store", "verify", str(store)])
    assert isinstance(said.exception, SystemExit | None)


@pytest.mark.parametrize("part", ["log", "queues"])
def test_a_truncated_file_does_not_end_the_broker(tmp_path: Path, part: str) -> None:
    """The messages of a truncated file are missing, /health reports it, and the other files are served."""
    store, settings = tmp_path / "store", tmp_path / "broker.conf"
    settings.write_text("flushIntervalCommitLog=10\n", encoding="utf-8")
    with commands("serve") as start_command:
        served, ready = _served(start_command, store, "--config", str(settings))
        host, port = ready["broker"].rsplit(":", 1)
        with RawClient((host, int(port))) as client:
            for topic in ("T", "U"):
                send_message(client, topic)
            os.truncate(store / (FIRST_LOG if part == "log" else FIRST_UNITS), 0)
            if part == "log":
                wait_until(lambda: code_of_send(client) == ResponseCode.SERVICE_NOT_AVAILABLE)
            else:
                assert client.pull("T").code != ResponseCode.SUCCESS
                code_of_send(client)
                assert send_message(client, "U") == 1
                assert is_readable(client, 2, "U")
        wait_until(lambda: "was cut" in _page(ready, "/health")[1])
        served.send_signal(signal.SIGTERM)
        served.communicate()
    assert served.returncode == 3


def _page(ready: dict[str, str], path: str) -> tuple[int, str]:
    connection = HTTPConnection(ready["metrics"], timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def _served(start_command: StartCommand, store: Path, *options: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    served = start_command(
        "--store", str(store), "--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
        *options,
    )  # fmt: skip
    assert served.stdout is not None
    return served, dict(pair.split("=", 1) for pair in served.stdout.readline().split()[1:])
