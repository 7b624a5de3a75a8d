"""What the Python client writes, read by Java's own classes, and the other way round."""

from __future__ import annotations

import base64
import ipaddress
import os
import subprocess
from pathlib import Path

import pytest
from model_tests.conformance.java_broker import VERSIONS, JavaUnavailableError, resolve

from longpoll_client import Compression
from longpoll_client.produce.message_ids import MessageIds
from longpoll_protocol.compression import pack, unpack
from longpoll_runtime.real import RealRuntime

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
RUN_S = 60.0
BODIES = (b"0123456789" * 1000, b"0123456789" * 100_000)
"""The longer one is many blocks of LZ4, which has 64 KiB in each."""


@pytest.mark.parametrize("version", VERSIONS)
def test_java_reads_our_ids_and_bodies_and_we_read_its_bodies(version: str, tmp_path: Path) -> None:
    """Time, address and process as `mqadmin` asks an id for them; each compression both ways."""
    pytest.importorskip("lz4", reason="LZ4 NOT TRIED: the extra 'compression' is not installed")
    pytest.importorskip("zstandard", reason="ZSTANDARD NOT TRIED: the extra 'compression' is not installed")
    try:
        class_path = resolve(tmp_path, version)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA NOT TRIED: {error}")
    runtime = RealRuntime()
    before_ms = runtime.unix_ms()
    made = MessageIds(runtime).new(3)
    after_ms = runtime.unix_ms()
    given = [(kind, body) for kind in Compression for body in BODIES]
    packed = [f"{kind.name}:{base64.b64encode(pack(kind, body)).decode()}" for kind, body in given]

    command = ["java", "-Xmx128m", "-cp", class_path, str(HERE / "java" / "Reads.java"), *made, *packed]
    output = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=True).stdout
    ids = [line.split()[1:] for line in output.splitlines() if line.startswith("ID ")]
    bodies = [line.split()[1:] for line in output.splitlines() if line.startswith("BODY ")]

    assert len(ids) == 3
    for sent_ms, address, process in ids:
        assert before_ms <= int(sent_ms) <= after_ms
        assert ipaddress.ip_address(address).packed == runtime.identity()[:4]
        assert int(process) == os.getpid() % 65_536
    assert [name for name, _theirs, _again in bodies] == [kind.name for kind, _body in given]
    for (kind, body), (_name, unpacked, again) in zip(given, bodies, strict=True):
        assert base64.b64decode(unpacked) == body
        assert unpack(kind.sys_flag, base64.b64decode(again), len(body)) == body
