"""The listed clauses report each broker fault, and a correct broker fails no clause."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from model_tests.conform.faulty_brokers import FAULTS, faults, relay_of
from model_tests.conform.relay import Fault, Latency, Relay, answers, recoded, running, whole
from model_tests.support.spec.cases import quick_if

from longpoll.cli import main
from longpoll.verification import under_load
from longpoll.verification.broker_process import ServedBroker
from longpoll.verification.limits import declared
from longpoll.verification.under_load import Loaded
from longpoll.wire.load import LoadPlan, drive
from longpoll_broker.broker import Broker
from longpoll_conform import holds
from longpoll_conform.clauses import BY_ID, BY_VECTOR, CAPABILITIES, POLLS
from longpoll_conform.connection import TOO_SLOW, Echo
from longpoll_conform.holds import Crowd
from longpoll_conform.play import Place
from longpoll_conform.suite import Outcome, Suite
from longpoll_conform.vectors import recorded
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

RARE: Final = 60
"""A rare fault changes one of 60 answers in these tests, and one of a thousand answers in a default run."""
SHARP: Final = ("ends holds 300 ms early", "ends holds 300 ms late")
"""Faults that shift a deadline by less than the period of a deadline scan, so they are tested on a broker without a
scan."""
SMALL: Final = Crowd(rounds=2, wakes=160, deadlines=200)
FEW: Final = Crowd(rounds=2, wakes=20, deadlines=25)
DELAY_S: Final = 0.2
PAGE: Final = Path(__file__).parents[2] / "docs" / "conformance.md"
LIMIT_S: Final = 900
"""Time limit of a run in seconds; its conversations may take eight minutes."""
CORRECT: Final[Mapping[str, float]] = {"": 0.0, "far away": DELAY_S}
"""Name of a correct broker -> the delay of each of its frames."""


def of(area: str) -> list[str]:
    return [name for name, faulty in faults().items() if faulty.clauses[0].startswith(area)]


IN_LOAD: Final = of("RUN")
IN_CONVERSATIONS: Final = [name for name in FAULTS if name not in {*of("POLL"), *IN_LOAD}]


@contextmanager
def relayed(name: str, broker: Broker) -> Iterator[Relay]:
    nothing = partial(Relay, broker.address, lambda *_: None)
    made = nothing(delay_s=CORRECT[name]) if name in CORRECT else relay_of(name, broker.address, RARE)
    with made as relay:
        yield relay


@pytest.fixture(scope="module")
def brokers() -> Iterator[Mapping[bool, Broker]]:
    """Start two brokers. `True` maps to one that scans for deadlines every 5 s, and `False` to one without a scan."""
    with running(ROCKETMQ_5) as scanning, running(STRICT) as exact:
        yield {True: scanning, False: exact}


@pytest.fixture(scope="module")
def polls(brokers: Mapping[bool, Broker]) -> Mapping[str, Mapping[str, tuple[Outcome, str]]]:
    """Fault -> the results of the clauses about long polling. The faults run in parallel, because holds take long."""

    def see(name: str) -> Mapping[str, tuple[Outcome, str]]:
        scans, wanted = (False, POLLS[-1:]) if name in SHARP else (True, POLLS)
        with relayed(name, brokers[scans]) as relay, closing(Echo(relay.address)) as echo:
            place, run = Place(relay.address, relay.address), name.replace(" ", "-").replace(",", "")
            is_rare = "one of" in name or name in CORRECT
            results = holds.see(place, run, wanted, echo, scans=scans, crowd=SMALL if is_rare else FEW)
        assert [result.vector.id for result in results] == list(wanted)
        return {result.vector.id: (result.outcome, result.why) for result in results}

    alone = (*SHARP, *CORRECT)
    names = [name for name in of("POLL") if name not in alone]
    with ThreadPoolExecutor(len(names)) as pool:
        found = dict(zip(names, pool.map(see, names), strict=True))
        return found | dict(zip(alone, pool.map(see, alone), strict=True))


# These tests share a worker, because otherwise each worker would wait for all the holds again.
@pytest.mark.xdist_group("holds")
@pytest.mark.parametrize("name", of("POLL"))
def test_a_fault_of_long_polling_fails_its_clause(
    name: str, polls: Mapping[str, Mapping[str, tuple[Outcome, str]]]
) -> None:
    failed = {BY_VECTOR[vector].id for vector, (outcome, _why) in polls[name].items() if outcome == "FAIL"}
    assert failed & set(faults()[name].clauses), "\n".join(map(str, polls[name].values()))


@pytest.mark.xdist_group("holds")
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_broker_fails_no_clause(name: str, polls: Mapping[str, Mapping[str, tuple[Outcome, str]]]) -> None:
    """A distant broker fails no clause. A clause that needs a faster machine is reported as untested."""
    for outcome, why in polls[name].values():
        assert outcome == "PASS" or (outcome == "UNTESTED" and why.startswith(TOO_SLOW)), why


@pytest.mark.parametrize("name", IN_CONVERSATIONS)
def test_a_fault_in_conversations_fails_its_clause(name: str, brokers: Mapping[bool, Broker]) -> None:
    clauses = faults()[name].clauses
    wanted = {vector for clause in clauses for vector in BY_ID[clause].vectors}
    vectors = [vector for vector in recorded("5.5.0") if vector.id in wanted]
    found = {}
    for fault in ("", name):
        with relayed(fault, brokers[True]) as relay:
            place = Place(relay.address, brokers[True].name_server_address)
            suite = Suite(place, "rocketmq-5", f"{FAULTS.index(name)}{fault[:1]}", makes_smaller=False)
            suite.capabilities = set(CAPABILITIES) - {"sql92", "golden-store"}
            found[fault] = {result.clause.id for result in suite.run(vectors) if result.outcome == "FAIL"}

    assert found[""] == set()
    assert found[name]


@pytest.mark.parametrize("name", quick_if(IN_LOAD, lambda name: "never" in name))
def test_a_fault_under_load_fails_its_clause(
    name: str, brokers: Mapping[bool, Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_load, "LoadPlan", partial(LoadPlan, message_count=240, queue_count=4))
    names = [vector for clause in faults()[name].clauses for vector in BY_ID[clause].vectors]
    with relayed(name, brokers[True]) as relay:
        topic = f"longpoll-conform-{FAULTS.index(name)}"
        loaded = Loaded(RealRuntime(), relay.address, topic, declared(ROCKETMQ_5), tmp_path / "history", 0.0)
        results = under_load.see(loaded, names)

    assert relay.spoiled
    assert "FAIL" in {result.outcome for result in results}, [result.why for result in results]


def test_the_headline_reports_a_broker_that_does_not_poll(brokers: Mapping[bool, Broker]) -> None:
    """All failures of a broker that does not poll become one entry; their bytes are printed on request."""
    with relayed("never holds", brokers[True]) as relay:
        addresses = (("broker", relay.address), ("name-server", brokers[True].name_server_address))
        words = ["conform", *(f"--{name}={host}:{port}" for name, (host, port) in addresses), "--only=POLL-1"]
        shown, with_bytes = CliRunner().invoke(main, words), CliRunner().invoke(main, [*words, "--hex"])

    assert (shown.exit_code, with_bytes.exit_code) == (1, 1), shown.output + with_bytes.output
    assert "this broker does not long-poll; 1 of 1 clauses failed" in shown.output
    assert "1 more differ in the same way: poll-holds-15000" in shown.output
    assert "7b22636f" not in shown.output
    assert "7b22636f" in with_bytes.output


def test_a_broker_without_pops_is_not_tested(brokers: Mapping[bool, Broker]) -> None:
    """The clauses about pops are counted apart, with the reason, and none of them passes."""
    place = "--broker={}:{}".format(*brokers[True].address)
    done = CliRunner().invoke(main, ["conform", place, "--has=long-polling", "--only=POP-*", "--json"])
    told = json.loads(done.stdout)

    assert (done.exit_code, told["tested"], told["counts"]["UNTESTED"]) == (3, 0, 9)
    why = "the broker does not serve pops: it answers request 200050 with 3 (not supported)"
    assert {each["why"] for each in told["results"]} == {why}


# -- slow machines, and silent brokers -------------------------------------------------------------------------------


LATE: Final = whole(11, lambda frame: [(1.2, frame)])
OTHER: Final = recoded(11, 0, 1)


@pytest.mark.parametrize(
    ("fault", "worst_ms", "outcome"),
    [(LATE, 0.0, "FAIL"), (LATE, 400.0, "UNTESTED"), (OTHER, 400.0, "FAIL"), (None, 400.0, "PASS")],
    ids=["late", "late beside a late echo", "wrong beside a late echo", "right beside a late echo"],
)
def test_a_late_answer_fails_only_if_the_machine_is_fast(
    fault: Fault | None, worst_ms: float, outcome: Outcome, brokers: Mapping[bool, Broker]
) -> None:
    """On a slow machine a late answer makes a vector untested, and a wrong code still makes it fail."""
    vectors = [vector for vector in recorded("5.5.0") if vector.id in {"pull-010", "lock-358"}]
    with Relay(brokers[True].address, fault or (lambda *_: None)) as relay:
        place = Place(relay.address, brokers[True].name_server_address)
        run = f"{outcome}{worst_ms:.0f}{fault is OTHER}"
        suite = Suite(place, "rocketmq-5", run, echo=Latency(worst_ms), makes_smaller=False)
        suite.capabilities = set(CAPABILITIES)
        results = {result.vector.id: result for result in suite.run(vectors)}

    assert (results["pull-010"].outcome, results["lock-358"].outcome) == (outcome, "PASS")
    if outcome == "UNTESTED":
        assert re.match(f"{TOO_SLOW}: the smallest request took 400 ms; run it again", results["pull-010"].why)


def test_the_wait_for_a_missing_answer_ends(brokers: Mapping[bool, Broker]) -> None:
    """After three vectors without an answer, the group's other vectors are untested and name the first vector."""
    wanted = [vector for vector in recorded("5.5.0") if vector.id.startswith("offset-28") or vector.id == "lock-358"]
    with Relay(brokers[True].address, answers(14, lambda command: {**command, "opaque": -5})) as relay:
        place = Place(relay.address, brokers[True].name_server_address)
        suite = Suite(place, "rocketmq-5", "silent", makes_smaller=False)
        suite.capabilities = set(CAPABILITIES)
        results = suite.run(wanted)

    assert [result.outcome for result in results] == ["FAIL"] * 3 + ["UNTESTED"] * (len(wanted) - 4) + ["PASS"]
    assert f"the broker never answers request 14: see {wanted[0].id}" == results[-2].why


def test_a_load_stops_sending_in_time(brokers: Mapping[bool, Broker]) -> None:
    """A distant broker gets fewer messages, and all of them are delivered."""
    report = drive(RealRuntime(), brokers[True].address, LoadPlan("T-short", 100_000, queue_count=2, send_s=0.2))

    assert 0 < report.sent_count < 100_000
    assert (report.problems, report.troubles) == ([], [])


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)
@pytest.mark.parametrize("name", FAULTS)
def test_a_default_run_finds_each_fault(name: str, policy: Policy, tmp_path: Path) -> None:
    with (
        ServedBroker(tmp_path / "store", None, f"--policy={policy.name}") as served,
        relay_of(name, served.address) as relay,
    ):
        places = "--broker={}:{}".format(*relay.address), f"--name-server={served.name_server}"
        words = [sys.executable, "-m", "longpoll", "conform", *places, "--json", f"--policy={policy.name}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    told = json.loads(done.stdout)

    assert done.returncode == 1, done.stderr
    assert {clause for clause in faults()[name].clauses if told["clauses"][clause] == "FAIL"}


def test_the_page_has_each_fault_with_its_clauses() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ((?:`[A-Z0-9-]+`(?:, )?)+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)

    assert [(name, tuple(re.findall(r"`([^`]+)`", clauses))) for name, clauses in rows] == [
        (name, faulty.clauses) for name, faulty in faults().items()
    ]
