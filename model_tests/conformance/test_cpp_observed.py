"""The real C++-core client led through the proxy by its name server, and the history of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from longpoll.verification.real_client import run_real_client, why_missing
from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_judge.run.job import judge
from longpoll_observe import Observer
from longpoll_runtime.real import RealRuntime

COUNT, SINGLE_COUNT = 1000, 10
ALLOWED_MS = 1_000.0


@pytest.mark.peers
@pytest.mark.skipif(why_missing() is not None, reason=f"REAL CLIENT NOT TRIED: {why_missing()}")
def test_a_real_client_does_not_notice_and_is_seen(tmp_path: Path) -> None:
    """Only the name server's address is the proxy's; every message passes it once, and the verdict is valid."""
    history = tmp_path / "history"
    with (
        Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker,
        Observer.start(
            RealRuntime(), brokers=[], name_server=broker.name_server_address, record_directory=str(history)
        ) as proxy,
    ):
        assert proxy.name_server_address is not None
        report = run_real_client("{}:{}".format(*proxy.name_server_address), count=COUNT, single_count=SINGLE_COUNT)
        (seen,) = proxy.totals.values()
        assert seen.unreadable == 0
    assert report.is_right, report
    result = judge([history], engine="local", wake_ms=ALLOWED_MS, late_ms=ALLOWED_MS)
    print(result.verdict, result.events, result.latency, result.gaps)  # noqa: T201 - the figures the test is run for
    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    acknowledged = sum(part.read_bytes().count(b'"message_acknowledged"') for part in history.glob("part-*.ndjson"))
    assert acknowledged == COUNT + SINGLE_COUNT
