"""Independent programs in Go, Rust, Java and JavaScript play the vectors.

Each vector passes with our broker and with the real Java brokers, and fails behind a relay that injects a fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from model_tests.conform.relay import Relay
from model_tests.conform.test_faults import CONTROL, FAULTS
from model_tests.conformance.java_broker import VERSIONS, running
from model_tests.conformance.test_transcripts import start
from model_tests.peers.real_clients import ClientUnavailableError
from model_tests.peers.vectors.runners import RUNNERS, Outcome, Place, at_once, play, play_until_steady
from model_tests.support.broker.brokers import wait_until
from model_tests.support.java import class_path_of
from model_tests.support.spec.cases import quick_if

from longpoll_broker.broker import Broker
from longpoll_client import Admin
from longpoll_conform.export import write
from longpoll_conform.vectors import recorded
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, Policy

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]
USUAL: Final = frozenset({"auto-create", "long-polling", "readable", "name-server", "scan"})
PROFILES: Final[Mapping[str, frozenset[str]]] = {
    "sql": USUAL | {"sql92"},
    "default": USUAL,
    "strict": USUAL - {"auto-create"},
    "nolongpoll": USUAL - {"long-polling"},
    "unreadable": USUAL - {"readable"},
}
Commands = Mapping[str, list[str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str] | str]:
    """Runner -> its command, or the reason why it cannot run here."""
    found: dict[str, list[str] | str] = {}
    for name, make in RUNNERS.items():
        try:
            found[name] = make(tmp_path_factory.mktemp(name))
        except ClientUnavailableError as error:
            found[name] = str(error)
    return found


@pytest.fixture(scope="module")
def commands(made: Mapping[str, list[str] | str]) -> Commands:
    return {name: command for name, command in made.items() if isinstance(command, list)}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    directory = tmp_path_factory.mktemp("vectors")
    write(directory, "1")
    return {version: directory / f"rocketmq-{version}.jsonl" for version in VERSIONS}


@pytest.fixture(scope="module")
def patient(vectors: Mapping[str, Path]) -> Path:
    """Return the vectors of 4.9.7, without time limits for those that no fault affects, as the machine may be busy."""
    path = vectors["4.9.7"].with_name("patient.jsonl")
    read = [json.loads(line) for line in vectors["4.9.7"].read_text("utf-8").splitlines()]
    for vector in read:
        for step in vector["steps"] if vector["id"] in CONTROL else ():
            step.pop("notAfterMs", None)
    path.write_text("".join(f"{json.dumps(vector)}\n" for vector in read), "utf-8")
    return path


@pytest.mark.parametrize("name", RUNNERS)
def test_each_runner_can_be_built(name: str, made: Mapping[str, list[str] | str]) -> None:
    if isinstance(made[name], str):
        pytest.skip(f"the runner in {name} is not tested here: {made[name]}")
    assert made[name]


def assert_all_pass(outcomes: Mapping[str, Outcome], asked: Collection[str]) -> None:
    for name, outcome in outcomes.items():
        assert outcome.failed == {}, name
        assert outcome.code == 0, (name, outcome.summary)
        assert outcome.passed | set(outcome.skipped) == set(asked), name
        assert all(why.startswith("the broker is not: ") for why in outcome.skipped.values()), name
    assert len({outcome.passed for outcome in outcomes.values()}) == 1


@pytest.mark.parametrize("policy", [ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
def test_our_broker_passes(policy: Policy, commands: Commands, vectors: Mapping[str, Path], tmp_path: Path) -> None:
    """With each profile's settings our broker passes every vector that needs no other broker's store."""
    version = {ROCKETMQ_4_9.name: "4.9.7", ROCKETMQ_5.name: "5.5.0"}[policy.name]
    left = {vector.id for vector in recorded(version)}
    for profile, has in PROFILES.items():
        with start(policy, profile, tmp_path / profile) as broker:
            place = Place(broker.address, broker.name_server_address, "broker-a", "DefaultCluster", has)
            tasks = {
                name: partial(play_until_steady, command, vectors[version], place, left)
                for name, command in commands.items()
            }
            outcomes = at_once(tasks)
        assert_all_pass(outcomes, left)
        left -= frozenset[str]().union(*(outcome.passed for outcome in outcomes.values()))

    assert left == {vector.id for vector in recorded(version) if vector.profile == "store"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_java_broker_passes(
    version: str, commands: Commands, vectors: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The broker passes the vectors of its version, including SQL92. The runners run one after another."""
    class_path = class_path_of(tmp_path_factory.mktemp("jars"), version)
    home = tmp_path_factory.mktemp("java") / "home"
    whole = {vector.id for vector in recorded(version)}
    with running(class_path, home, settings="enablePropertyFilter=true") as broker:
        with Admin("{}:{}".format(*broker.name_server)) as admin:
            # If a Java broker's first registration is lost, it registers again after 30 s.
            wait_until(lambda: bool(admin.masters()))
        place = Place(broker.address, broker.name_server, "java-broker", "DefaultCluster", PROFILES["sql"])
        outcomes = {
            name: play_until_steady(command, vectors[version], place, whole) for name, command in commands.items()
        }
    assert_all_pass(outcomes, whole)
    assert {len(outcome.skipped) for outcome in outcomes.values()} == {{"4.9.7": 43, "5.5.0": 15}[version]}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start(ROCKETMQ_4_9, "default", tmp_path_factory.mktemp("good") / "store") as broker:
        yield broker


QUICK: Final = [name for number, name in enumerate(FAULTS) if number % 16 == 0 and not FAULTS[name].is_slow]


@pytest.mark.parametrize("name", quick_if(FAULTS, lambda name: name in QUICK))
def test_an_injected_fault_fails_in_every_runner(name: str, good: Broker, commands: Commands, patient: Path) -> None:
    planted = FAULTS[name]
    relay = Relay(good.address, planted.fault, planted.request)
    try:
        place = Place(relay.address, good.name_server_address, "broker-a", "DefaultCluster", USUAL)
        only = (*planted.names, *CONTROL)
        tasks = {runner: partial(play, command, patient, place, only) for runner, command in commands.items()}
        outcomes = at_once(tasks)
    finally:
        relay.close()

    for runner, outcome in outcomes.items():
        assert set(outcome.failed) == set(planted.names), (runner, outcome)
        assert outcome.passed == set(CONTROL), runner
        assert outcome.code == 1, runner
        assert all(outcome.failed.values()), runner
    assert outcomes


def test_an_unreachable_broker_fails_every_vector(commands: Commands, vectors: Mapping[str, Path]) -> None:
    nowhere = ("127.0.0.1", 1)
    place = Place(nowhere, nowhere, "broker-a", "DefaultCluster", USUAL)
    outcomes = {name: play(command, vectors["4.9.7"], place, CONTROL) for name, command in commands.items()}

    for outcome in outcomes.values():
        assert (set(outcome.failed), outcome.code) == (set(CONTROL), 1)
        assert re.fullmatch("0 passed, 2 failed, 0 skipped", outcome.summary)
