"""Sixteen random schedules of failures with Java's members, eight with each version: six brokers are Java's, two ours.

As `model_tests/client/failing/test_schedules`. What Java's members are given again they do not explain, so a member of
theirs may be given a message twice after any failure. And Java's brokers let a pull put an older offset over a newer
commit (finding h), of which the judge convicts them now and then, rightly.
"""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path

import attrs
import pytest
from model_tests.client.failing.members import Java
from model_tests.client.failing.plan import Plan, draw
from model_tests.client.failing.play import Setting
from model_tests.client.failing.run import JAVA_LATE_MS, LENGTH_S, at_once, ours, said
from model_tests.client.failing.servers import JavaServer
from model_tests.conformance.java_broker import VERSIONS, JavaUnavailableError, resolve

JAVA_BROKERS, OUR_BROKERS = 6, 2
SEEDS: dict[str, int] = dict(zip(VERSIONS, (100, 200), strict=True))
"""The first seed of each version."""
KNOWN = frozenset({"commit.told.least"})
"""What Java's brokers are convicted of, in a run of some minutes with members that come and go."""
MEMBER = Path(__file__).parent / "java" / "Member.java"
pytestmark = [
    pytest.mark.long,
    pytest.mark.peers,
    pytest.mark.timeout(1_500),
    pytest.mark.whole_machine,
]


def compiled(version: str, directory: Path) -> tuple[str, Java]:
    """The class path of a version's broker, and how its members are started; raises JavaUnavailableError."""
    class_path = resolve(directory, version)
    command = ["javac", "-cp", class_path, "-d", str(directory), str(MEMBER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return class_path, Java(f"{class_path}:{directory}", directory)


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_lost_or_stuck_whatever_fails(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In groups of which some members are Java's: everything acknowledged is consumed, and in order where asked for."""
    caplog.set_level(logging.ERROR, "longpoll_client")
    try:
        class_path, java = compiled(version, tmp_path)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA NOT TRIED: {error}")
    first = SEEDS[version]

    def setting(plan: Plan, home: Path) -> Setting:
        made = attrs.evolve(ours(plan, home), java=java)
        if plan.seed < first + JAVA_BROKERS:
            made = attrs.evolve(made, server=JavaServer(home, class_path), late_ms=JAVA_LATE_MS, known=KNOWN)
        return made

    found = at_once([draw(first + number, LENGTH_S) for number in range(JAVA_BROKERS + OUR_BROKERS)], setting, tmp_path)
    for played in found:
        print(said(played))  # noqa: T201 - the figures that the test is run for
    assert {played.plan.seed: played.faults() for played in found} == {played.plan.seed: [] for played in found}
    assert all(played.report.acknowledged > 500 for played in found)
