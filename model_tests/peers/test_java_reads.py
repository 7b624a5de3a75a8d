"""What the Python client writes, read by Java's own classes."""

from __future__ import annotations

import ipaddress
import os
import subprocess
from pathlib import Path

import pytest
from model_tests.conformance.java_broker import VERSIONS, JavaUnavailableError, resolve

from longpoll_client.produce.message_ids import MessageIds
from longpoll_runtime.real import RealRuntime

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]
HERE = Path(__file__).parent
RUN_S = 60.0


@pytest.mark.parametrize("version", VERSIONS)
def test_java_reads_time_address_and_process_of_our_ids(version: str, tmp_path: Path) -> None:
    """`getNearlyTimeFromID`, `getIPStrFromID` and `getPidFromID`, as `mqadmin` asks them."""
    try:
        class_path = resolve(tmp_path, version)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA NOT TRIED: {error}")
    runtime = RealRuntime()
    before_ms = runtime.unix_ms()
    made = MessageIds(runtime).new(3)
    after_ms = runtime.unix_ms()

    command = ["java", "-Xmx128m", "-cp", class_path, str(HERE / "java" / "ReadId.java"), *made]
    output = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=True).stdout
    told = [line.split()[1:] for line in output.splitlines() if line.startswith("ID ")]

    assert len(told) == 3
    for sent_ms, address, process in told:
        assert before_ms <= int(sent_ms) <= after_ms
        assert ipaddress.ip_address(address).packed == runtime.identity()[:4]
        assert int(process) == os.getpid() % 65_536
