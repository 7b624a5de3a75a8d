"""The broker killed with -9 under load, on a full disk, and with more queues than open files."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import attrs
import pytest
from model_tests.support.broker.brokers import SMALL_STORE, Brokers
from model_tests.support.broker.plain.plain_store import read_record
from model_tests.support.broker.raw_client import RawClient, records_of, send_fields, send_message
from model_tests.support.broker.stores import open_store, read_all, result_of

from longpoll_broker.config import StoreConfig
from longpoll_broker.store.consume_queue import OTHER_MAPS
from longpoll_broker.store.verify import verify
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime.files import RealFiles, RealMappedFile

CONFIG = StoreConfig(
    commit_log_file_size=65_536, consume_queue_file_size=2_000, index_slot_count=400, index_entry_count=1_000
)
BROKER_CONF = """flushDiskType=SYNC_FLUSH
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=400
maxIndexNum=1000
"""
QUEUES = 4
IN_FLIGHT = 16
ANSWER_S = 60.0
"""So long even a machine whose disk stands still for others does not take."""
READY = re.compile(r"ready broker=(\S+):(\d+) ")


def run_and_kill(
    directory: Path, conf: Path, names: list[str], chance: random.Random, *, burst_size_max: int = 1
) -> list[tuple[int, int, str]]:
    """Serve, send pipelined, kill at a random moment; (queue, offset, name) of every acknowledged message.

    With `burst_size_max` above 1 up to so many sends leave as one piece.
    """
    command = [sys.executable, "-c", "from longpoll.cli import main; main()", "serve", "--store", str(directory)]
    command += ["--config", str(conf), "--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0"]
    acknowledged: list[tuple[int, int, str]] = []
    said = directory.parent / "said.txt"
    with (
        said.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | {"PYTHONFAULTHANDLER": "1"}
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = READY.match(process.stdout.readline())
            assert ready is not None, said.read_text()[-2000:]
            with RawClient((ready[1], int(ready[2]))) as client:
                waiting: list[tuple[int, str]] = []
                deadline_s = time.monotonic() + chance.uniform(0.005, 0.2)
                # The second message shows that the broker took more than one before it is killed.
                while time.monotonic() < deadline_s or len(acknowledged) < 2:
                    burst = [f"{len(names) + number}" for number in range(chance.randint(1, burst_size_max))]
                    names += burst
                    requests = [
                        (send_fields("T", int(name) % QUEUES, f"KEYS\x01k{name}\x02"), padded(name, chance))
                        for name in burst
                    ]
                    opaques = client.send_burst(RequestCode.SEND_MESSAGE_V2, requests)
                    waiting += zip(opaques, burst, strict=True)
                    while len(waiting) >= IN_FLIGHT:
                        opaque, sent = waiting.pop(0)
                        reply = client.reply(opaque, ANSWER_S)
                        if reply is None:
                            # Where does each of its threads stand? `faulthandler` tells before it ends.
                            os.kill(process.pid, signal.SIGABRT)
                            process.wait()
                        assert reply is not None, f"no answer; the broker said {said.read_text()[-8000:]}"
                        assert reply.code == ResponseCode.SUCCESS, reply.remark
                        told = reply.ext_fields or {}
                        acknowledged.append((int(told["queueId"]), int(told["queueOffset"]), sent))
                os.kill(process.pid, signal.SIGKILL)
        finally:
            process.kill()
    return acknowledged


def padded(name: str, chance: random.Random) -> bytes:
    return name.encode() + b" " * chance.randrange(400)


def check(directory: Path, acknowledged: dict[tuple[int, int], str]) -> int:
    """Recover and compare: every acknowledged message is in its place; how many messages there are."""
    assert {problem.kind for problem in verify(RealFiles(), str(directory)).problems} <= {"tail"}
    found: dict[tuple[int, int], str] = {}
    with closing(open_store(directory, CONFIG)) as store:
        for queue_id in range(QUEUES):
            for offset, content in enumerate(read_all(store, "T", queue_id)):
                record = read_record(content)
                assert record["queueOffset"] == offset
                found[queue_id, offset] = str(record["properties"]["KEYS"])[1:]
        assert {place: found.get(place) for place in acknowledged} == acknowledged
        assert len(set(found.values())) == len(found), "a message is there twice"
        for name in random.Random(len(found)).sample(sorted(found.values()), min(20, len(found))):
            assert len(result_of(store.query("T", f"k{name}", 64, 0, 2**60))[0].records) == 1, name
    verdict = verify(RealFiles(), str(directory))
    assert (verdict.problems, verdict.messages) == ([], len(found))
    return len(found)


def kill_often(directory: Path, times: int, seed: int, *, in_bursts: bool = False) -> int:
    """Kill a broker so many times on one store, and check after each; how many messages it holds in the end.

    Sends come in bursts where no disk is waited for: a kill leaves what was written to the map.
    """
    conf = directory.parent / "broker.conf"
    conf.write_text(BROKER_CONF.replace("SYNC", "ASYNC") if in_bursts else BROKER_CONF)
    burst_size_max = 12 if in_bursts else 1
    chance = random.Random(seed)
    names: list[str] = []
    acknowledged: dict[tuple[int, int], str] = {}
    count = 0
    for number in range(times):
        for queue_id, offset, name in run_and_kill(directory, conf, names, chance, burst_size_max=burst_size_max):
            assert acknowledged.setdefault((queue_id, offset), name) == name, "an offset was given twice"
        # Otherwise the broker itself recovers what it left, at its next start.
        if number % 4 == 0 or number == times - 1:
            count = check(directory, acknowledged)
    with pytest.raises(AssertionError):
        check(directory, acknowledged | {(0, 1_000_000): "never"})
    return count


def test_a_kill_under_load_loses_nothing(tmp_path: Path) -> None:
    """With sync flush every acknowledged message survives `kill -9`."""
    assert kill_often(tmp_path / "store", 1, seed=1) > 1


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    count = kill_often(tmp_path / "store", 200, seed=2)
    print(f"{count} messages after 200 kills")  # noqa: T201
    assert count > 200


@pytest.mark.long
def test_kills_under_bursts_of_sends_lose_nothing(tmp_path: Path) -> None:
    """Thirty kills without syncs."""
    assert kill_often(tmp_path / "store", 30, seed=4, in_bursts=True) > 30


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_pulls_go_on_where_sends_cannot(brokers: Brokers, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """On a full or read-only disk sends get 14."""
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


def test_a_pull_without_a_map_is_told_and_nothing_is_passed_over(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pull gets code 1 while the queue's file cannot be opened."""
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
        # One of the three queues may have the map there is.
        assert set(codes) <= {ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS}
        send_message(other, "Fresh")
        assert len(records_of(other.pull("Fresh"))) == 1
    for queue_id in range(3):
        assert len(records_of(client.pull("T", queue_id=queue_id))) == 1
