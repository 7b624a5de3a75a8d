"""The real Java brokers answer pulls by heartbeat as the script of `model_tests/service` has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_tests.conformance.java_broker import VERSIONS, JavaUnavailableError, resolve, running
from model_tests.service.subscription_script import play

from longpoll_broker.testing.raw_client import RawClient

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", [VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.long)])
def test_heartbeats_count_in_java_as_in_the_script(version: str, tmp_path: Path) -> None:
    """Every step."""
    try:
        class_path = resolve(tmp_path, version)
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    with (
        running(class_path, tmp_path / "home", settings="enablePropertyFilter=true") as broker,
        RawClient(broker.address) as client,
    ):
        assert play(client) == []
