"""Eight random schedules of failures with our broker, three minutes each and all at once; and injected faults.

Brokers stop, die and restart; networks reset, slow down, swallow and half-open connections; name servers disappear or
hang; members join, leave and are killed. Three kinds of senders go on meanwhile. `docs/client.md` has the results;
`test_requests_java` tests Java's brokers and members.
"""

from __future__ import annotations

import logging
from pathlib import Path

import attrs
import pytest
from model_tests.client.failing.play import LENGTH_S, Event, Plan, Setting, at_once, draw, ours, said

COUNT = 8
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_500), pytest.mark.whole_machine]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Discard the client's log during the failures."""
    caplog.set_level(logging.ERROR, "longpoll_client")


def test_nothing_is_lost_or_stuck_whatever_fails(tmp_path: Path) -> None:
    """Everything acknowledged is consumed, in order where that was asked for, and what comes again has a cause."""
    found = at_once([draw(seed, LENGTH_S) for seed in range(COUNT)], ours, tmp_path)
    for played in found:
        print(said(played))  # noqa: T201 - the figures that the test is run for
    assert {played.plan.seed: played.faults() for played in found} == {played.plan.seed: [] for played in found}
    assert all(played.report.acknowledged > 500 for played in found)
    assert all(played.events > 1_000 for played in found)


EVENTS = (
    Event(2.0, "names refuse", 26.0),
    Event(2.5, "reset", 1.0),
    Event(12.0, "die", pick=0),
    Event(13.0, "join", pick=1),
    Event(24.0, "reset", 1.0),
    Event(30.0, "half-open"),
)
"""A short schedule; its name server is back only long after its broker is."""
SHORT_S = 33.0
DRAIN_S = 15.0
PLANTED = {
    "-": "",
    "a pull that failed is not asked again": "stuck",
    "a half-open connection is kept": "stuck",
    "more is stored than was consumed": "stuck",
    "messages are given twice": "unexplained",
    "a failed send forgets its route": "was back after",
    "what failed is not sent again": "nothing was told",
    "a lost answer counts as one": "lost",
}
"""By fault of a client, what is said of it; nothing of a client without one."""


def test_planted_faults_are_seen(tmp_path: Path) -> None:
    """Each in a schedule of half a minute in which a client without fault loses nothing."""
    plans = [Plan(seed, SHORT_S, EVENTS) for seed in range(len(PLANTED))]
    names = list(PLANTED)

    def setting(plan: Plan, home: Path) -> Setting:
        return attrs.evolve(ours(plan, home), planted=names[plan.seed], is_orderly=False, drain_s=DRAIN_S)

    for name, played in zip(names, at_once(plans, setting, tmp_path), strict=True):
        print(name, played.faults())  # noqa: T201 - what is said of each
        if name == "-":
            assert played.faults() == []
        else:
            assert any(PLANTED[name] in fault for fault in played.faults()), (name, said(played))
