"""Eight random schedules of failures with our broker, three minutes each and all at once.

Brokers stop, die and restart; networks reset connections, slow them down, drop their data or leave them half-open; name
servers disappear or hang; members join, leave and are killed. Three kinds of senders send all the time.
`docs/client.md` has the results; `test_requests_java` tests Java's brokers and members.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from model_tests.client.failing.play import LENGTH_S, at_once, draw, ours, said

COUNT = 8
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_500), pytest.mark.whole_machine]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Discard the client's log during the failures."""
    caplog.set_level(logging.ERROR, "longpoll_client")


def test_nothing_is_lost_or_stuck_whatever_fails(tmp_path: Path) -> None:
    """Every acknowledged message is consumed, in order if requested, and each repeated delivery has a cause."""
    found = at_once([draw(seed, LENGTH_S) for seed in range(COUNT)], ours, tmp_path)
    for played in found:
        print(said(played))  # noqa: T201 - the figures that the test is run for
    assert {played.plan.seed: played.faults() for played in found} == {played.plan.seed: [] for played in found}
    assert all(played.report.acknowledged > 500 for played in found)
    assert all(played.events > 1_000 for played in found)
