"""Unchanged Java brokers follow runs of the specification: each finding of docs/findings.md, on two versions."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from model_tests.java.findings import SHOWN_4, SHOWN_5, token_of
from model_tests.support.spec.cases import quick_if

from longpoll.cli import main
from longpoll_java.breakpoints import Arrival, Breakpoints
from longpoll_java.broker import JavaBroker, started
from longpoll_java.byteman_rules import SCAN_MS, refused_rule, rules_of
from longpoll_java.errors import JavaUnavailableError
from longpoll_java.jars import Jars, resolved
from longpoll_java.replay import Played, play
from longpoll_java.schedule import schedule_of, with_after
from longpoll_java.violations import shown_by
from longpoll_simulation.refinement import under
from longpoll_spec.engines.tokens import replay
from longpoll_spec.model import Trace
from longpoll_spec.policy import preset
from longpoll_spec.render.java_breakpoints import breakpoints_of, presets_of

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]
VERSIONS = ("4.9.7", "5.5.0")
TRIES = 20
AS_SHIPPED = 2
"""The number of replays of a finding with the default scan of 5 s."""
QUICK_SCAN_MS = 1_000


def jars_of(version: str) -> Jars:
    try:
        return resolved(version)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA BROKER NOT TRIED: {error}")


@pytest.fixture(scope="module", params=VERSIONS)
def broker(request: pytest.FixtureRequest) -> Iterator[JavaBroker]:
    jars = jars_of(str(request.param))
    with Breakpoints() as stage, JavaBroker(jars, stage) as running:
        yield running


def trace_for(version: str, policy: str, name: str) -> Trace:
    trace = replay(token_of(policy, name))
    if policy in presets_of(version):
        return trace
    changed, cannot = under(preset(presets_of(version)[0]), trace)
    assert cannot is None
    return Trace(changed.model, changed.steps, name)


def played(broker: JavaBroker, policy: str, name: str, scan_ms: int = SCAN_MS) -> Played:
    version = broker.jars.version
    trace = trace_for(version, policy, name)
    gates = breakpoints_of(version, lmq=policy == "rocketmq-lmq")
    return play(broker, with_after(schedule_of(trace, gates, scan_ms), shown_by(trace)))


def assert_shown(done: Played) -> None:
    assert (done.cannot, done.otherwise) == ("", "")
    assert done.is_whole
    assert done.broken
    assert done.shown


@pytest.mark.parametrize("version", [*VERSIONS, "5.4.0"])
@pytest.mark.parametrize("lmq", [False, True])
def test_every_breakpoint_is_in_the_jars(version: str, lmq: bool, tmp_path: Path) -> None:
    jars = jars_of(version)
    script = tmp_path / "gates.btm"
    script.write_text(rules_of(breakpoints_of(version, lmq=lmq)))
    assert refused_rule(jars, script) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        ("METHOD suspendPullRequest\n", "METHOD suspend\n", "hold"),
        ("gate.openStream()", "gate.openStream(", "read"),
    ],
    ids=["method", "text"],
)
def test_a_rule_that_does_not_fit_a_folder_s_jars_is_reported(right: str, wrong: str, rule: str) -> None:
    """The error comes before a broker starts, because the agent would silently ignore some rules that do not match."""
    script = rules_of(breakpoints_of("4.9.7", lmq=False)).replace(right, wrong, 1)
    jars = attrs.evolve(jars_of("4.9.7"), as_published=False)
    with (
        Breakpoints() as stage,
        pytest.raises(JavaUnavailableError, match=f"differ from the published ones: the rule {rule} does not match"),
    ):
        JavaBroker(jars, stage, script=script)


@pytest.mark.parametrize("name", ["lost_by_hold", "lost_by_keep"])
def test_lost_wakeups_happen_on_shipped_brokers(broker: JavaBroker, name: str) -> None:
    """In findings (a) and (b) the message is readable, but only the next scan answers the pull."""
    assert_shown(played(broker, "rocketmq-4.9", name))


def test_pull_request_7359_fixes_one_lost_wakeup_and_leaves_another() -> None:
    """With a rule that adds the recheck after the insert, (a) is answered at once, and (b) still loses its wake."""
    jars = jars_of("4.9.7")
    with Breakpoints() as stage, started(jars, stage, lmq=False, slave=False, rechecks=True) as running:
        rechecked: list[int] = []
        stage.seen = Seen(rechecked)
        mended = played(running, "rocketmq-4.9", "lost_by_hold")
        assert re.search(r"pull 0 is answered \(code 0\), but the specification leaves it unanswered", mended.otherwise)
        assert not mended.broken
        assert len(rechecked) == 1
        left = played(running, "rocketmq-4.9", "lost_by_keep")
        assert_shown(left)
        assert len(rechecked) == 2


class Seen(list[Arrival]):
    """The arrivals at breakpoints in a replay. The requests of rechecks are also appended to a second list."""

    def __init__(self, rechecked: list[int]) -> None:
        super().__init__()
        self._rechecked = rechecked

    def append(self, arrival: Arrival) -> None:
        if arrival.gate == "recheck":
            self._rechecked.append(arrival.request)
        super().append(arrival)


def test_an_older_commit_overwrites_a_newer_one_on_shipped_brokers(broker: JavaBroker) -> None:
    """Each version shows finding (h), with the token of its own policy."""
    policy = presets_of(broker.jars.version)[0]
    assert_shown(played(broker, policy, "commit_never_regresses"))


def test_the_command_prints_specified_and_observed_steps() -> None:
    jars_of("4.9.7")
    token = token_of("rocketmq-4.9", "commit_never_regresses")
    done = CliRunner().invoke(main, ["explain", token, "--on", "java-4.9.7", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["token"], told["on"], told["verdict"]) == (token, "java-4.9.7", "followed")
    assert [step["action"] for step in told["steps"]][-2:] == ["hold(0)", "commit_pulled(0)"]
    assert len(told["steps"]) == 9
    assert told["promised"][0].startswith("commit_never_regresses: ")
    assert told["seen"] == ["the group's offset is 0"]


def test_a_fixed_version_does_not_show_the_finding(broker: JavaBroker) -> None:
    """In finding (l) the scan of 5.5.0 skips the queue that raises, so the replay shows no violation."""
    if broker.jars.version.startswith("4"):
        pytest.skip("4.9.7 has the finding: its long test shows it")
    done = played(broker, "rocketmq-4.9", "round_is_whole")
    assert done.is_whole
    assert not done.broken


def test_exported_files_run_by_themselves(tmp_path: Path) -> None:
    jars_of("5.5.0")
    token = token_of("rocketmq-5", "commit_never_regresses")
    done = CliRunner().invoke(main, ["export", "--to", "byteman", token, str(tmp_path / "out"), "--on", "java-5.5.0"])
    assert done.exit_code == 0, done.output
    lines = (tmp_path / "out" / "README.md").read_text().splitlines()
    commands = [line.split() for line in lines if line.startswith(("mvn ", "java "))]
    assert [command[0] for command in commands] == ["mvn", "java"]
    fetched, ran = [run(command, tmp_path / "out") for command in commands]
    assert fetched.returncode == 0, fetched.stdout
    assert ran.returncode == 0, ran.stdout
    assert "the group's offset is 0" in ran.stdout
    schedule = tmp_path / "out" / "schedule.txt"
    schedule.write_text(schedule.read_text().replace("offset slot=0 number=0", "offset slot=0 number=1"))
    planted = subprocess.run(
        commands[1], cwd=tmp_path / "out", capture_output=True, text=True, timeout=300, check=False
    )
    assert planted.returncode == 1
    assert "OTHERWISE" in planted.stdout


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
    )


OTHER_RUNS = {
    "answered_after_wake": "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKzYW5zd2VyZWRfYWZ0ZXJfd2FrZc4QKXN6lwACBAYBCAm70afU",
    "answered_not_found": "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKyYW5zd2VyZWRfbm90X2ZvdW5kzhApc3qXAgQGEhIMDeM78kM",
    "bucket_in_two_lists": "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKzYnVja2V0X2luX3R3b19saXN0c84QKXN6nAACBAYSEgMMBQcBCFTEwAU",
    "inserted_beside_another": "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQK3aW5zZXJ0ZWRfYmVzaWRlX2Fub3RoZXLOEClzepUCAwUEBusH7UI",
    "queues_walked_at_once": "lp1.maxyb2NrZXRtcS00LjmQlAIBAQK1cXVldWVzX3dhbGtlZF9hdF9vbmNlzlS14PKWABoaAgwTAgGQZN4uGg",
    "refused_alone": "lp1.lqxyb2NrZXRtcS00LjmQlAIBAQKtcmVmdXNlZF9hbG9uZc4QKXN6lwACBAYBCAm_0rpM",
}
"""Runs of rocketmq-4.9 that break no property. Each run reaches an interesting state."""


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_runs_without_a_violation_are_followed(broker: JavaBroker, name: str) -> None:
    """The runs contain two requests in a bucket, two concurrent traversals, a refusal, a wake, and an empty answer."""
    trace = replay(OTHER_RUNS[name])
    version = broker.jars.version
    if version.startswith("5"):
        trace, cannot = under(preset("rocketmq-5"), trace)
        assert cannot is None
    gates = breakpoints_of(version)
    done = play(broker, with_after(schedule_of(trace, gates), shown_by(trace)))
    assert (done.cannot, done.otherwise) == ("", "")
    assert done.is_whole


TOLD = (
    "recheck_after_hold=before_lock", "recheck_after_hold=in_lock", "recheck_after_hold=after_insert",
    "recheck_after_keep=true", "empty_shortcut=true",
)  # fmt: skip
"""Changed knobs that contradict the recorded steps of a broker."""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_steps_of_a_broker_follow_its_specification(version: str, tmp_path: Path) -> None:
    """Ten thousand steps under a load form a run of the broker's policy, but not of a policy with a changed knob."""
    jars_of(version)
    steps = tmp_path / "steps"
    told = recorded(version, steps, 1_500, 8, 11)
    assert told["steps"] > 10_000
    assert told["policy"] == presets_of(version)[0]
    assert judged(steps) == ("valid", told["steps"])
    # Each check takes seconds and a knob means the same in both versions, so 5.5.0 is checked with one knob only.
    for knob in TOLD if version == VERSIONS[0] else TOLD[:1]:
        with_knob(steps, f"{told['policy']}+{knob}")
        assert judged(steps)[0] == "invalid"


@pytest.mark.parametrize("version", quick_if(VERSIONS, lambda version: version == "4.9.7"))
def test_steps_with_random_delays_follow_the_specification(version: str, tmp_path: Path) -> None:
    """With random delays at the breakpoints and a scan every two seconds, the steps form a run of the specification."""
    jars_of(version)
    delayed = tmp_path / "delayed"
    recorded(version, delayed, 500, 4, 4, "--delayed-percent", "10", "--scan-ms", "2000", "--seed", "7")
    assert judged(delayed)[0] == "valid"


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_a_million_steps_follow_the_specification(version: str, tmp_path: Path) -> None:
    """A million steps with deadlines form a run of the policy, but not of a policy with a recheck after the hold."""
    jars_of(version)
    steps = tmp_path / "steps"
    told = recorded(version, steps, 115_000, 64, 21)
    print(f"{version}: {told}")  # noqa: T201 - the figures that the test is run for
    assert told["steps"] >= 10**6
    assert judged(steps) == ("valid", told["steps"])
    with_knob(steps, f"{told['policy']}+recheck_after_hold=after_insert")
    assert judged(steps)[0] == "invalid"


def recorded(version: str, directory: Path, messages: int, queues: int, rest_s: int, *more: str) -> dict[str, Any]:
    words = ["observe", "--inside", f"java-{version}", "--messages", messages, "--queues", queues, "--json"]
    words += ["--rest-s", rest_s, *more]
    done = CliRunner().invoke(main, [*map(str, words), "--record", str(directory)])
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def judged(directory: Path) -> tuple[str, int]:
    done = CliRunner().invoke(main, ["judge", str(directory), "--engine", "local", "--json"])
    told = json.loads(done.stdout)
    return told["verdict"], told["judged"]["follows_the_law"]


def with_knob(directory: Path, policy: str) -> None:
    meta = directory / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "policy": policy}))


@pytest.fixture(scope="module")
def scanning(request: pytest.FixtureRequest) -> Iterator[tuple[JavaBroker, int]]:
    version, scan_ms = request.param
    jars = jars_of(version)
    with Breakpoints() as stage, started(jars, stage, lmq=False, slave=False, scan_ms=scan_ms) as running:
        yield running, scan_ms


EVERY_TIME = [(version, scan_ms) for version in VERSIONS for scan_ms in (SCAN_MS, QUICK_SCAN_MS)]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SHOWN_4 if name != "answered_on_stop"])
@pytest.mark.parametrize(
    "scanning", EVERY_TIME, indirect=True, ids=lambda each: "-".join(map(str, each)), scope="module"
)
def test_every_finding_is_shown_every_time(scanning: tuple[JavaBroker, int], name: str) -> None:
    """All twenty replays show the finding: two with the default scan, and eighteen with a scan every second."""
    running, scan_ms = scanning
    if running.jars.version.startswith("5") and name not in SHOWN_5:
        pytest.skip("not by this token on 5.5.0")
    for _ in range(AS_SHIPPED if scan_ms == SCAN_MS else TRIES - AS_SHIPPED):
        assert_shown(played(running, "rocketmq-4.9", name, scan_ms))


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_a_stopping_broker_leaves_a_pull_unanswered_every_time(version: str) -> None:
    jars = jars_of(version)
    for _ in range(TRIES):
        with Breakpoints() as stage, JavaBroker(jars, stage) as running:
            assert_shown(played(running, "rocketmq-4.9", "answered_on_stop"))


@pytest.mark.long
@pytest.mark.parametrize("scan_ms", [SCAN_MS, QUICK_SCAN_MS])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_orphan_is_shown_every_time(version: str, scan_ms: int) -> None:
    jars = jars_of(version)
    with Breakpoints() as stage, started(jars, stage, lmq=True, slave=False, scan_ms=scan_ms) as running:
        for _ in range(AS_SHIPPED if scan_ms == SCAN_MS else TRIES - AS_SHIPPED):
            assert_shown(played(running, "rocketmq-lmq", "no_orphan", scan_ms))


@pytest.mark.long
def test_a_traversal_breaks_off_every_time() -> None:
    """Finding (m) needs a slave of 5.5.0 that acts as master, the slave's master, and this test as the name server."""
    jars = jars_of("5.5.0")
    with Breakpoints() as stage, started(jars, stage, lmq=False, slave=True) as running:
        for _ in range(TRIES):
            assert_shown(played(running, "rocketmq-5", "return_is_whole"))
