"""The published Rust broker and name server: built once by cargo and cached, run on free loopback ports.

A debug build without debug information takes some minutes of two cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen
from model_tests.conformance.java_broker import free_port, listening

VERSION: Final = "1.0.0"
CRATES: Final = ("rocketmq-namesrv", "rocketmq-broker")
BUILD_S: Final = 3_000.0
SETTINGS: Final = """[broker]
listenPort = {broker}
brokerIp1 = "127.0.0.1"
storePathRootDir = "{home}/store"
namesrvAddr = "127.0.0.1:{name_server}"
autoCreateTopicEnable = true
[broker.brokerIdentity]
brokerName = "rust-a"
brokerClusterName = "Rust"
brokerId = 0
[broker.brokerServerConfig]
bindAddress = "127.0.0.1"
[store]
storePathRootDir = "{home}/store"
haListenAddress = "127.0.0.1"
haListenPort = {ha}
"""


class RustUnavailableError(Exception):
    """The Rust broker is not available here; the message gives the reason."""


@frozen
class RustBroker:
    address: tuple[str, int]
    name_server: tuple[str, int]
    start: str


def built() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = cache / "longpoll" / f"rocketmq-rust-{VERSION}"
    programs = root / "bin"
    if all((programs / f"{crate}-rust").exists() for crate in CRATES):
        return programs
    if shutil.which("cargo") is None:
        raise RustUnavailableError("no cargo on PATH: install Rust to try the Rust broker")
    crates = [f"{crate}@{VERSION}" for crate in CRATES]
    settings = {**os.environ, "CARGO_PROFILE_DEV_DEBUG": "0"}
    done = subprocess.run(
        ["cargo", "install", "--debug", "--locked", "--root", str(root), *crates],
        env=settings, capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RustUnavailableError(f"cargo cannot build the Rust broker: {done.stderr[-500:]}")
    return programs


@contextmanager
def running(programs: Path, home: Path) -> Iterator[RustBroker]:
    name_server, broker = free_port(()), free_port((-2, 1))
    home.mkdir(parents=True)
    settings = home / "broker.toml"
    settings.write_text(SETTINGS.format(broker=broker, ha=broker + 1, home=home, name_server=name_server))
    words = ["--listenPort", str(name_server), "--bindAddress", "127.0.0.1", "--rocketmqHome", str(home)]
    with listening([str(programs / "rocketmq-namesrv-rust"), *words], home, "name-server", name_server):
        yield RustBroker(
            ("127.0.0.1", broker), ("127.0.0.1", name_server), f"{programs / 'rocketmq-broker-rust'} -c {settings}"
        )
