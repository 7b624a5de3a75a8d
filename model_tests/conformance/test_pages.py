"""Each published page of clauses agrees with a run against its broker."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from model_tests.conformance import rust_broker
from model_tests.conformance.java_broker import running
from model_tests.conformance.rust_broker import VERSION, RustBroker, RustUnavailableError, built
from model_tests.support.java import class_path_of

from longpoll.cli import main
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_conform.clauses import BY_ID, BY_VECTOR
from longpoll_conform.connection import Address
from longpoll_conform.known_failures import chosen
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import preset

PAGES: Final = Path(__file__).parents[2] / "docs" / "conformance"
POLICIES: Final[Mapping[str, str]] = {
    "rocketmq-4.9.7": "rocketmq-4.9",
    "rocketmq-5.5.0": "rocketmq-5",
    "longpoll-strict": "strict",
    "longpoll-rocketmq-4.9": "rocketmq-4.9",
}
"""Page -> the policy of the command that printed the page."""
ROW: Final = re.compile(r"^│ ([A-Z]+(?:-[A-Z]+)?-\d+) +│ ([A-Z-]+) +│", re.MULTILINE)
UNTESTED: Final = re.compile(r"^│ ((?:[A-Z]+(?:-[A-Z]+)?-\d+ )+) *│", re.MULTILINE)
"""Matches a row of a page's last table, which lists untested clauses by reason."""
COUNTS: Final = re.compile(
    r"^(\d+) clauses tested: (.*); (\d+) more (?:is|are) UNTESTED and not counted$", re.MULTILINE
)
BY_CHANCE: Final = {"RUN-1", "RUN-2", "RUN-6", "RUN-11"}
"""Clauses about races that policies other than strict permit, so a run may or may not show the race."""

TOO_BUSY: Final = "the host was too slow to measure promptness"


def outcomes_of(name: str) -> Mapping[str, str]:
    """Clause -> outcome on a page. A clause that is in no table has passed."""
    text, _, untested = (PAGES / f"{name}.txt").read_text(encoding="utf-8").partition("UNTESTED, not counted\n")
    vectors, seen = chosen(POLICIES[name], (), (), None)
    ids = {BY_VECTOR[each.id].id for each in vectors} | {BY_VECTOR[each].id for each in seen}
    skipped = " ".join(UNTESTED.findall(untested)).split()
    return dict.fromkeys(ids, "PASS") | dict(ROW.findall(text)) | dict.fromkeys(skipped, "UNTESTED")


def told(address: Address, name_server: Address, policy: str) -> Mapping[str, str]:
    """Return the outcome of every clause that the command tests, except clauses that a slow host leaves untested."""
    places = [f"--broker={address[0]}:{address[1]}", f"--name-server={name_server[0]}:{name_server[1]}"]
    done = CliRunner().invoke(main, ["conform", *places, f"--policy={policy}", "--json"])
    assert done.stdout, done.output
    answer = json.loads(done.stdout)
    unseen = {each["clause"] for each in answer["results"] if each["why"].startswith(TOO_BUSY)}
    assert unseen <= {"RUN-1", "RUN-2"}
    return {clause: outcome for clause, outcome in answer["clauses"].items() if clause not in unseen}


def without_chance(outcomes: Mapping[str, str], name: str) -> Mapping[str, str]:
    """The outcomes with permitted races counted as passed."""
    is_declared = POLICIES[name] != "strict"
    return {
        clause: "PASS" if is_declared and clause in BY_CHANCE and outcome == "NON-STRICT" else outcome
        for clause, outcome in outcomes.items()
    }


@pytest.mark.parametrize("name", POLICIES)
def test_a_page_counts_what_it_lists(name: str) -> None:
    """The counts match the current clauses, no clause fails, and the index links the page."""
    text = (PAGES / f"{name}.txt").read_text(encoding="utf-8")
    outcomes = outcomes_of(name)

    assert outcomes.keys() <= BY_ID.keys()
    ((tested, counted, untested),) = COUNTS.findall(text)
    counts = {kind: int(count) for count, kind in map(str.split, counted.split(", "))}
    assert counts | {"UNTESTED": int(untested)} == Counter(outcomes.values())
    assert int(tested) == sum(counts.values())
    assert "FAIL" not in outcomes.values()
    assert f"({name}.txt)" in (PAGES / "README.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["longpoll-strict", "longpoll-rocketmq-4.9"])
def test_our_broker_matches_its_page(name: str, tmp_path: Path) -> None:
    policy = preset(POLICIES[name])
    config = BrokerConfig(property_filter=True)
    with Broker.start(RealRuntime(), str(tmp_path / "store"), policy=policy, config=config) as broker:
        found = told(broker.address, broker.name_server_address, POLICIES[name])

    expected = {clause: outcome for clause, outcome in outcomes_of(name).items() if clause in found}
    assert len(expected) >= len(outcomes_of(name)) - 2
    assert without_chance(found, name) == without_chance(expected, name)


@pytest.mark.peers
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["rocketmq-4.9.7", "rocketmq-5.5.0"])
def test_the_java_broker_matches_its_page(name: str, tmp_path: Path) -> None:
    class_path = class_path_of(tmp_path, name.removeprefix("rocketmq-"))
    with running(class_path, tmp_path / "home", settings="enablePropertyFilter=true") as broker:
        found = told(broker.address, broker.name_server, POLICIES[name])

    expected = {clause: outcome for clause, outcome in outcomes_of(name).items() if clause in found}
    assert len(expected) >= len(outcomes_of(name)) - 2
    assert without_chance(found, name) == without_chance(expected, name)


RUNS: Final = 5
RUST_BY_CHANCE: Final = frozenset({"load-no-lost-wakeup"})
"""A clause whose failure the load reports only in some runs.

This failure has the same cause as the failure of `load-answer-is-right`, so the page omits it."""
PAGE: Final = Path(__file__).parents[2] / "docs" / "conformance" / f"rocketmq-rust-{VERSION}.txt"


def conform(broker: RustBroker, *words: str) -> tuple[int, dict[str, Any]]:
    places = ["--broker={}:{}".format(*broker.address), "--name-server={}:{}".format(*broker.name_server)]
    words = (*places, "--policy=rocketmq-5", f"--start={broker.start}", *words, "--json")
    done = CliRunner().invoke(main, ["conform", *words])
    assert done.stdout, done.output
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.peers
@pytest.mark.long
@pytest.mark.timeout(6000)
def test_the_rust_broker_differs_as_published(tmp_path: Path) -> None:
    try:
        programs = built()
    except RustUnavailableError as error:
        pytest.skip(f"THE RUST BROKER IS NOT TRIED: {error}")
    listed = {line.split()[0] for line in PAGE.read_text().splitlines() if line and not line.startswith("#")}
    for number in range(RUNS):
        with rust_broker.running(programs, tmp_path / str(number)) as broker:
            code, told = conform(broker, f"--known={PAGE}")
        failed = {each["vector"] for each in told["results"] if each["outcome"] == "FAIL"}
        unserved = [each["vector"] for each in told["results"] if "stopped answering" in each["why"]]

        assert failed - RUST_BY_CHANCE == listed, told["silenced_by"]
        assert unserved == []
        assert code == (1 if failed & RUST_BY_CHANCE else 0)
