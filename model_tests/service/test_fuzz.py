"""A broker of its own process under fuzzed frames and half-open connections: it stays whole, and others are served.

Beside the fuzzers a bystander sends messages and waits for them; each must come. Afterwards the process has as many
threads as before, little more memory of its own, nothing on stderr that it did not expect, and stops cleanly.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from attrs import define, field
from model_tests.service.fuzzing import Fuzzer

from longpoll_broker.service.admin.admin_processor import AdminProcessor
from longpoll_broker.testing.brokers import Connect, StartBroker
from longpoll_broker.testing.raw_client import RawClient, pull_fields, records_of, send_fields
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import HeaderError
from longpoll_runtime import Address

FUZZERS: Final = 4
PATIENCE_S: Final = 60.0
"""How long anything is waited for: a machine that stalls is no fault of the broker's."""
TOGETHER: Final = 64
"""Frames of one write."""
HALF_OPEN: Final = 100
MEMORY_KIB_MAX: Final = 40 * 1024
"""Most that the broker's own memory may grow by while the second half of the frames is served.

It grows in steps of up to 30 MB, where tables double, and ends: 3,000,000 frames leave 50 MB more than 500,000 did.
"""
ANSWER_SIZE_MIN: Final = 50
"""Bytes answered for each frame sent, at least: a refusal has over a hundred, and some frames have no answer."""
CONFIG: Final = "autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\nenablePropertyFilter=true\n"


@define
class Served:
    """A serving process."""

    process: subprocess.Popen[str]
    address: Address

    def status(self, name: str) -> int:
        """A number of /proc/PID/status."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
        assert found is not None
        return int(found[1])


@contextmanager
def serving(directory: Path, *more: str) -> Iterator[Served]:
    """Serve on a store of its own with small files, and more options if need be, until the end of the block."""
    conf = directory / "broker.conf"
    conf.write_text(f"{CONFIG}mappedFileSizeCommitLog=67108864\nmappedFileSizeConsumeQueue=20000\n")
    options = ["--listen", "127.0.0.1:0", "--name-server", "127.0.0.1:0", "--store", str(directory / "store"), *more]
    command = [sys.executable, "-c", "from longpoll.cli import main; main()", "serve", "--config", str(conf), *options]
    errors = (directory / "stderr").open("w")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        ready = re.match(r"ready broker=(\S+):(\d+)", process.stdout.readline())
        assert ready is not None, (directory / "stderr").read_text()
        yield Served(process, (ready[1], int(ready[2])))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        errors.close()


@define
class Bystander:
    """A client that goes its own way: it sends, and waits for what it sent. `served` counts the rounds."""

    address: Address
    served: int = 0
    failure: BaseException | None = None
    _stop: threading.Event = field(factory=threading.Event, init=False)

    def prepare(self) -> None:
        """Make the topics that everybody uses."""
        with RawClient(self.address) as client:
            for topic in ("SAFE", "F0", "F1", "F2"):
                client.call(
                    RequestCode.UPDATE_AND_CREATE_TOPIC,
                    {"topic": topic, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"},
                )
            for group in ("SAFE", "FG0", "FG1"):
                body = f'{{"groupName":"{group}"}}'.encode()
                client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    def run(self) -> None:
        """Go on until told to stop; what fails is kept."""
        try:
            with RawClient(self.address) as puller, RawClient(self.address) as sender:
                while not self._stop.is_set():
                    fields = pull_fields("SAFE", self.served, timeout_ms=60_000, group="SAFE")
                    opaque = puller.send(RequestCode.PULL_MESSAGE, fields)
                    body = b"%d" % self.served
                    sent = sender.reply(sender.send(RequestCode.SEND_MESSAGE_V2, send_fields("SAFE"), body), PATIENCE_S)
                    assert sent is not None, f"the send of round {self.served} is not answered"
                    reply = puller.reply(opaque, PATIENCE_S)
                    assert reply is not None, f"the pull of round {self.served} is not answered"
                    assert [bytes(record.body) for record in records_of(reply)] == [body]
                    self.served += 1
        except (AssertionError, OSError) as error:
            self.failure = error

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run while the block does."""
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
        assert self.failure is None, self.failure
        assert self.served > 0


def fuzz(address: Address, seed: int, count: int) -> int:
    """Send `count` frames, reading what comes; a connection that the broker closes is opened again. Bytes answered."""
    fuzzer = Fuzzer(seed)
    answered = 0
    left = count
    while left > 0:
        with socket.create_connection(address, PATIENCE_S) as sock:
            is_open = True
            while left > 0 and is_open and not fuzzer.spoiled:
                now = min(left, TOGETHER)
                left -= now
                with suppress(ConnectionError):
                    sock.sendall(b"".join(fuzzer.frame() for _ in range(now)))
                got, is_open = read_all(sock, 0.0)
                answered += got
            fuzzer.spoiled = False
            # When the peer has closed its side too, it has served all that was sent.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            answered += read_all(sock, PATIENCE_S)[0]
    return answered


def read_all(sock: socket.socket, timeout_s: float) -> tuple[int, bool]:
    """Read until nothing more comes in time: how many bytes, and whether the peer is still there."""
    sock.settimeout(timeout_s)
    read = 0
    try:
        while got := len(sock.recv(1 << 20)):
            read += got
    except (BlockingIOError, TimeoutError):
        return read, True
    except ConnectionError:
        return read, False
    finally:
        sock.settimeout(PATIENCE_S)
    return read, False


def fuzz_all(address: Address, seed: int, count: int) -> None:
    """Several fuzzers at once; most of what they send is answered."""
    with ThreadPoolExecutor(FUZZERS) as pool:
        answered = sum(pool.map(lambda number: fuzz(address, seed + number, count // FUZZERS), range(FUZZERS)))
    assert answered > count * ANSWER_SIZE_MIN


@contextmanager
def half_open(address: Address) -> Iterator[None]:
    """Connections that begin a frame and never end it, and as many that are gone at once."""
    with ExitStack() as stack:
        for number in range(HALF_OPEN):
            sock = stack.enter_context(socket.create_connection(address, PATIENCE_S))
            sock.sendall(b"\x00\x00\x01\x00\x00\x00\x00\x80{"[: 1 + number % 9])
            socket.create_connection(address, PATIENCE_S).close()
        yield


def stays_whole(directory: Path, count: int, seed: int) -> None:
    """Fuzz a broker with `count` frames."""
    with serving(directory) as served:
        bystander = Bystander(served.address)
        bystander.prepare()
        with half_open(served.address), bystander.beside():
            fuzz_all(served.address, seed, count // 2)
            threads, memory_kib = served.status("Threads"), served.status("RssAnon")
            fuzz_all(served.address, seed + FUZZERS, count // 2)
            grown_kib = served.status("RssAnon") - memory_kib
            assert served.status("Threads") <= threads
        assert grown_kib < MEMORY_KIB_MAX, f"seed {seed}: {grown_kib} KiB more"
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
    errors = (directory / "stderr").read_text()
    assert "Traceback" not in errors, f"seed {seed}: {errors[:3000]}"


def test_fuzzed_frames_cost_nobody_else_anything(tmp_path: Path) -> None:
    """Twenty thousand of them, and a hundred half-open connections."""
    stays_whole(tmp_path, 20_000, seed=1)


@pytest.mark.long
def test_a_million_fuzzed_frames_cost_nobody_else_anything(tmp_path: Path) -> None:
    """The same at length."""
    stays_whole(tmp_path, 1_000_000, seed=2)


def test_planted_a_processor_that_fails_unexpectedly_is_seen(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the test above looks for on stderr: a fault that is no header's is logged with its traceback."""

    def fails(*_arguments: object) -> None:
        raise LookupError("planted")

    def refuses(*_arguments: object) -> None:
        raise HeaderError("a planted request", "field", "is planted")

    monkeypatch.setattr(AdminProcessor, "min_offset", refuses)
    monkeypatch.setattr(AdminProcessor, "max_offset", fails)
    broker = start_broker()
    assert connect(broker.address).call(RequestCode.GET_MIN_OFFSET, {}).code == 1
    assert "planted" not in caplog.text
    assert connect(broker.address).call(RequestCode.GET_MAX_OFFSET, {}).code == 1
    assert "LookupError: planted" in caplog.text
