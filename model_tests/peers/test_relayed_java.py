"""The same faults between the Python client and the real Java brokers 4.9.7 and 5.5.0."""

from __future__ import annotations

import pytest
from model_tests.client.relay import FAULTS, PART, Fault, RelayedCluster, check, live_through
from model_tests.conformance.java_broker import JavaBroker
from model_tests.peers import test_stories_java as java_stories

from longpoll_spec.testing.cases import quick_if

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]


java_broker = java_stories.java_broker
name_server = java_stories.name_server


@pytest.mark.parametrize("is_orderly", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", quick_if(FAULTS, lambda fault: fault in {"reset", "half-open"}))
def test_nothing_is_lost_and_sends_are_back_soon(
    java_broker: JavaBroker, name_server: str, fault: Fault, is_orderly: bool
) -> None:
    """As with our own broker, once the name server knows it."""
    assert name_server
    with RelayedCluster(java_broker.address, java_broker.name_server) as cluster:
        report = live_through(cluster, fault, is_orderly=is_orderly)
        print(f"{fault}, {'orderly' if is_orderly else 'concurrent'}: {report}")  # noqa: T201 - the figure
        check(report)
        assert report.acknowledged == 3 * PART
