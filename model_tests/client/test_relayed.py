"""A producer and a group live through what a network does to them: resets, slowness, black holes, half-open links."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_tests.client.relay import FAULTS, PART, Fault, RelayedCluster, check, live_through

from longpoll_broker.broker import Broker
from longpoll_broker.testing import client_scenarios as stories
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_client.consume.puller import Puller
from longpoll_runtime.real import RealRuntime

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize("is_orderly", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost_and_sends_are_back_soon(tmp_path: Path, fault: Fault, is_orderly: bool) -> None:
    """With our broker."""
    with (
        Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker,
        RelayedCluster(broker.address, broker.name_server_address) as cluster,
    ):
        report = live_through(cluster, fault, is_orderly=is_orderly)
        print(f"{fault}, {'orderly' if is_orderly else 'concurrent'}: {report}")  # noqa: T201 - the figure
        check(report)
        assert report.acknowledged == 3 * PART


def test_planted_a_pull_that_is_not_asked_again_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reset a queue would stand still."""
    monkeypatch.setattr(Puller, "_failed", lambda _self, _error, _retry_s, _turn: None)
    monkeypatch.setattr(stories, "PATIENCE_S", 12.0)
    with (
        Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker,
        RelayedCluster(broker.address, broker.name_server_address) as cluster,
        pytest.raises(AssertionError, match="every acknowledged message"),
    ):
        live_through(cluster, "reset", is_orderly=False)
