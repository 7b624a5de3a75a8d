"""Real servers for tests and measurements: they start on loopback, and can be stopped, killed and restarted.

If a server is not installed, the error tells how to install it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

ROOT: Final = Path(__file__).parents[2]
JARS: Final = Path(os.environ.get("KAFKA_JARS", ROOT / "build" / "kafka"))
"""The folder of Kafka's jars, which `mvn dependency:copy-dependencies` of org.apache.kafka:kafka_2.13 fills."""
LOOK_S: Final = 0.05
STOP_S: Final = 30
CLUSTER: Final = "MkU3OEVBNTcwNTJENDM2Qg"
Words = Callable[[int, Path], Sequence[str]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@frozen
class Kind:
    words: Words
    """Returns the server's command for a port and a directory."""
    scheme: str
    is_here: bool
    where: str
    """A sentence that tells how to install the server."""
    version: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("",)
    hello: bytes = b""
    """A request that a ready server answers with +. If it is empty, a server that accepts a connection is ready."""

    def told_version(self) -> str:
        done = subprocess.run(self.version, capture_output=True, text=True, check=False)
        found = re.search(r"\d+\.\d[\w.]*", done.stdout + done.stderr)
        return found[0] if found else ""


def _kafka(port: int, directory: Path) -> Sequence[str]:
    settings, other = directory / "server.properties", free_port()
    if not settings.exists():
        settings.write_text(
            f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{other}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{other}\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={directory / 'data'}\n"
            "offsets.topic.replication.factor=1\nshare.coordinator.state.topic.replication.factor=1\n"
            "share.coordinator.state.topic.min.isr=1\ngroup.share.min.record.lock.duration.ms=1000\n"
        )
        format_words = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
        subprocess.run([*_java(), *format_words], check=True, capture_output=True)
    return [*_java(), "kafka.Kafka", str(settings)]


def _java() -> list[str]:
    return ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]


def _etcd(port: int, directory: Path) -> Sequence[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    words = ["etcd", "--data-dir", str(directory / "etcd"), "--listen-client-urls", client]
    words += ["--advertise-client-urls", client, "--listen-peer-urls", peer]
    return [*words, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]


def _on_path(name: str) -> bool:
    return shutil.which(name) is not None


KINDS: Final = {
    "redis": Kind(
        lambda port, at: ["redis-server", "--port", str(port), "--dir", str(at), "--save", "", "--appendonly", "yes"],
        "redis",
        _on_path("redis-server"),
        "the Debian package redis-server",
        ("redis-server", "--version"),
        ("blpop", "blmove", "xread", "xreadgroup"),
        b"PING\r\n",
    ),
    "nats": Kind(
        lambda port, at: ["nats-server", "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(at)],
        "nats",
        _on_path("nats-server"),
        "go install github.com/nats-io/nats-server/v2@latest",
        ("nats-server", "--version"),
    ),
    "beanstalkd": Kind(
        lambda port, at: ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(at), "-f", "0"],
        "beanstalkd",
        _on_path("beanstalkd"),
        "the Debian package beanstalkd",
        ("beanstalkd", "-v"),
    ),
    "etcd": Kind(
        _etcd,
        "etcd",
        _on_path("etcd"),
        "the Debian package etcd-server",
        ("etcd", "--version"),
        ("watch", "newest"),
    ),
    "kafka": Kind(
        _kafka,
        "kafka",
        _on_path("java") and any(JARS.glob("kafka_2.13-*.jar")),
        "the jars of org.apache.kafka:kafka_2.13:4.2.2 from Maven, in the folder KAFKA_JARS",
        ("java", "-cp", f"{JARS}/*", "kafka.Kafka", "--version"),
        ("fetch", "share"),
    ),
    "moto": Kind(
        lambda port, _at: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        "sqs+http",
        find_spec("moto") is not None,
        "the dependency group s3",
        (sys.executable, "-c", "import moto; print('moto', moto.__version__)"),
    ),
}


@define(eq=False)
class Server:
    kind: Kind
    directory: Path
    port: int = field(factory=free_port)
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def url(self) -> str:
        """The server's address for `longpoll kit`."""
        return f"{self.kind.scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = self.kind.words(self.port, self.directory)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        while not self._serves():
            try:
                code = self.process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            text = (self.directory / "log").read_text(errors="replace")[-2_000:]
            raise RuntimeError(f"{words[0]} ended with {code}: {text}")

    def _serves(self) -> bool:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", self.port)):
                return False
            trial.sendall(self.kind.hello)
            return not self.kind.hello or trial.recv(64).startswith(b"+")

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(STOP_S)


@contextmanager
def running(name: str, directory: Path) -> Iterator[Server]:
    server = Server(KINDS[name], directory)
    server.start()
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)
