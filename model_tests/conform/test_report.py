"""`longpoll conform` as a command: the policy for a version, exit codes, reports, and a gate for changes."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result
from model_tests.conform.relay import Relay, answers, field_of, plus, running
from model_tests.support.ports import closed_port
from model_tests.verification.test_hostile_calls import UNSEEN

from longpoll.cli import main
from longpoll.commands.conform import show
from longpoll.output import Exit
from longpoll_broker.broker import Broker
from longpoll_conform.capabilities import DEFAULT, RUNTIME_INFO, How, find, given, health, identify
from longpoll_conform.clauses import CLAUSES
from longpoll_conform.connection import Address
from longpoll_conform.play import Place
from longpoll_conform.suite import Outcome, Seen, Suite
from longpoll_conform.suite import Result as OfVector
from longpoll_spec.policy import STRICT, policy_named

DIFFERENT: Final = ("--only=ROUTE-4", "--only=PULL-HOLD-4")


def conform(broker: Address, names: Address, *words: str) -> Result:
    places = [f"--broker={broker[0]}:{broker[1]}", f"--name-server={names[0]}:{names[1]}", "--has=long-polling"]
    return CliRunner().invoke(main, ["conform", *places, *words])


@pytest.mark.parametrize(
    ("name", "preset", "knobs"),
    [
        ("strict", "strict", ()),
        ("strict-clone", "strict-clone", ()),
        ("rocketmq-4.9", "rocketmq-4.9", ()),
        ("rocketmq-5", "rocketmq-5", ()),
        ("rocketmq-lmq", "rocketmq-5", ()),
        ("rocketmq-5+expiry=own_deadline", "rocketmq-5", ("expiry=own_deadline",)),
    ],
)
def test_our_broker_is_tested_against_its_own_policy(name: str, preset: str, knobs: tuple[str, ...]) -> None:
    """A policy without recordings is compared with the recorded version that it claims to be."""
    with running(policy_named(name)) as broker:
        found = identify(Place(broker.address, broker.name_server_address))
    assert (found.policy, found.knobs) == (preset, knobs)
    assert found.how == ("version" if name == "rocketmq-lmq" else "policy")


def _reports(version: int, table: Mapping[str, str] | bytes, code: int = 0) -> Mapping[str, Any]:
    body = table if isinstance(table, bytes) else json.dumps({"table": table}).encode()
    return {"code": code, "version": version, "body": body}


@pytest.mark.parametrize(
    ("answer", "policy", "how", "why"),
    [
        (_reports(407, {"brokerVersionDesc": "V4_9_7"}), "rocketmq-4.9", "version", "reports version V4_9_7"),
        (_reports(407, {"brokerVersionDesc": "V5_4_0"}), "rocketmq-5", "version", "reports version V5_4_0"),
        (_reports(0, {"brokerVersionDesc": "5.3.3"}), "rocketmq-5", "version", "reports version 5.3.3"),
        (_reports(0, {"brokerVersionDesc": "V4_3_2"}), "rocketmq-4.9", "version", "nearest recorded version"),
        (_reports(0, {"brokerVersionDesc": "V6_0_0"}), "rocketmq-5", "version", "nearest recorded version"),
        (_reports(407, {"longpollPolicy": "of-tomorrow"}), "rocketmq-4.9", "version", "version number 407"),
        (_reports(407, {"longpollPolicy": "strict+of_tomorrow=x"}), "rocketmq-4.9", "version", "version number 407"),
        (_reports(407, b"", 3), "rocketmq-4.9", "version", "version number 407, which is older than 5.0"),
        (_reports(513, b"", 16), "rocketmq-5", "version", "version number 513, which is 5.0 or newer"),
        (_reports(411, b"{", 0), "rocketmq-4.9", "version", "older than 5.0"),
        (_reports(412, b"[]", 0), "rocketmq-5", "version", "5.0 or newer"),
        (_reports(0, b'{"table": 7}'), DEFAULT, "default", "reports no version, and this is the default"),
        (_reports(0, {"brokerVersionDesc": "mine\x1b[31m"}), DEFAULT, "default", "an unknown version, 'mine"),
    ],
)
def test_the_version_decides_which_recordings_are_used(
    answer: Mapping[str, Any], policy: str, how: How, why: str, rocketmq: Broker
) -> None:
    """The broker's name, or the version in an answer's header, chooses the recordings; the report says which one."""
    with Relay(rocketmq.address, answers(RUNTIME_INFO, lambda command: {**command, **answer})) as relay:
        found = identify(Place(relay.address, rocketmq.name_server_address))
        done = conform(relay.address, rocketmq.name_server_address, "--only=LOCK-3")

    assert (found.policy, found.how) == (policy, how)
    assert why in found.why
    assert f"policy: {policy}, because " in done.stdout
    assert why in done.stdout


def test_a_faithful_broker_passes_without_a_policy(rocketmq: Broker) -> None:
    places = rocketmq.address, rocketmq.name_server_address
    own, other = conform(*places, *DIFFERENT), conform(*places, *DIFFERENT, "--policy=strict", "--knob=take=in_place")
    told = json.loads(conform(*places, *DIFFERENT, "--json").stdout)

    assert own.exit_code == 0, own.output
    assert own.stdout.startswith("verdict: no clause failed\n2 clauses tested: 2 PASS\n")
    assert "policy: rocketmq-4.9, because the broker reports that it runs policy rocketmq-4.9" in own.stdout
    assert "--policy NAME chooses another" in own.stdout
    assert "--policy NAME chooses another" in own.stderr
    assert (other.exit_code, other.stdout.splitlines()[0]) == (1, "verdict: 2 of 2 clauses failed")
    assert "policy: strict with take=in_place, because --policy names it\n" in other.stdout
    assert "runs policy rocketmq-4.9: without --policy it is compared with rocketmq-4.9" in other.stderr
    assert told["policy"] == "rocketmq-4.9"
    assert told["policy_chosen"] == {
        "by": "policy",
        "why": "the broker reports that it runs policy rocketmq-4.9",
        "version": "V4_9_7",
    }


@pytest.mark.parametrize(("code", "is_created"), [(0, True), (10, True), (12, True), (17, False), (1, False)])
def test_a_send_that_is_stored_late_creates_its_topic(code: int, is_created: bool, rocketmq: Broker) -> None:
    """An answer about a slow disk or slave means neither a missing feature nor a broker that stopped answering."""
    with Relay(rocketmq.address, answers(310, lambda command: {**command, "code": code})) as relay:
        place = Place(relay.address, rocketmq.name_server_address)
        found, sent = find(place, f"late{code}", {"long-polling"}), health(place, f"late{code}")[1]

    assert ("auto-create" in found, sent == 0) == (is_created, is_created)


def test_bugs_of_rocketmq_have_their_own_section(rocketmq: Broker) -> None:
    """The section lists whether the broker has each bug; untested clauses do not count in the total."""
    words = (*DIFFERENT, "--only=STORE-*", "--json")
    told = json.loads(conform(rocketmq.address, rocketmq.name_server_address, *words).stdout)
    with running(STRICT) as strict:
        shown = conform(strict.address, strict.name_server_address, *words[:-1]).stdout

    assert [(each["clause"], each["is_there"]) for each in told["rocketmq_bugs"]] == [("ROUTE-4", True)]
    assert (told["tested"], told["counts"]["PASS"], told["counts"]["UNTESTED"]) == (2, 2, 4)
    assert "2 clauses tested: 2 NON-STRICT; 4 more are UNTESTED and not counted" in shown
    differences, bugs, untested = (part for part in shown.split("\n\n") if "━" in part)
    assert "Differences from RocketMQ" in differences
    assert "PULL-HOLD-4" in differences
    assert "ROUTE-4" not in differences
    assert "RocketMQ's own bugs" in bugs
    assert "does not have it" in bugs
    assert "STORE-1 STORE-2 STORE-3 STORE-4" in untested


def test_a_failure_under_load_names_the_command_for_its_events(capsys: pytest.CaptureFixture[str]) -> None:
    suite = Suite(Place(("127.0.0.1", 1), ("127.0.0.1", 1)), "strict", "run")
    clause = next(each for each in CLAUSES if each.id == "RUN-2")
    for outcome in get_args(Outcome):
        show(suite, [OfVector(Seen(clause.vectors[0], "t"), clause, outcome, "late")], given("strict"), Exit.OK, None)
        said = capsys.readouterr().out
        assert ("next: repeat with --history DIRECTORY, then longpoll judge DIRECTORY" in said) == (outcome == "FAIL")


SOME = ("--only", "PULL-READ-*", "--only", "LOCK-*")
FEW = ("--only", "PULL-READ-1", "--only", "PULL-READ-2", "--only", "LOCK-3")
HOSTILE = "\x1b[31m\u202e<b>[red]\x07"


@pytest.fixture(scope="module")
def good() -> Iterator[Broker]:
    with running(STRICT) as broker:
        yield broker


@pytest.fixture
def spoiled(good: Broker) -> Iterator[Address]:
    with Relay(good.address, field_of(11, "maxOffset", plus(1))) as relay:
        yield relay.address


def test_a_correct_broker_passes_twice(good: Broker) -> None:
    """Each run uses new names, and without a failure the exit code is 0."""
    for _ in range(2):
        done = conform(good.address, good.name_server_address, *SOME, "--json")
        told = json.loads(done.stdout)
        assert done.exit_code == told["exit_code"] == 0, done.output
        assert told["counts"]["FAIL"] == 0
        assert told["counts"]["PASS"] == 11
        assert "long-polling" in told["capabilities"]
        assert "sql92" not in told["capabilities"]


def test_a_failure_is_shown_with_its_bytes(good: Broker, spoiled: Address) -> None:
    done = conform(spoiled, good.name_server_address, "--only", "pull-004", "--hex")

    assert done.exit_code == 1
    assert "FAIL PULL-READ-2 pull-004" in done.stdout
    assert "response.extFields.maxOffset" in done.stdout
    assert 'expected "1"' in done.stdout
    assert 'got      "2"' in done.stdout
    assert "main > request 11" in done.stdout
    assert "steps of the vector are left out" in done.stdout
    assert b"JSON".hex() in done.stdout.replace(" ", "")
    assert "the broker closed" not in done.stdout


def test_all_reports_have_the_same_failures(good: Broker, spoiled: Address, tmp_path: Path) -> None:
    words = (*FEW, f"--junit={tmp_path / 'junit.xml'}", f"--pages={tmp_path / 'pages'}", "--json")
    told = json.loads(conform(spoiled, good.name_server_address, *words).stdout)
    failed = {each["vector"] for each in told["results"] if each["outcome"] == "FAIL"}
    document = ET.parse(tmp_path / "junit.xml").getroot()  # noqa: S314 - our own
    index = (tmp_path / "pages" / "index.html").read_text()

    assert failed
    cases = list(document.iter("testcase"))
    assert {each.get("name", "").split()[0] for each in cases if each.find("failure") is not None} == failed
    assert len(cases) == len(told["results"])
    assert {path.stem for path in (tmp_path / "pages").glob("*-*.html")} == failed
    assert all(f"href='{vector}.html'" in index for vector in failed)
    assert "maxOffset" in (tmp_path / "pages" / f"{min(failed)}.html").read_text()


def test_a_gate_fails_only_on_a_change(good: Broker, spoiled: Address, tmp_path: Path) -> None:
    """A known failure passes the gate. A new failure fails the gate, and so does a known failure that passes now."""
    known = tmp_path / "known.txt"
    first = conform(spoiled, good.name_server_address, *FEW, f"--write-known={known}")
    same = conform(spoiled, good.name_server_address, *FEW, f"--known={known}")
    mended = conform(good.address, good.name_server_address, *FEW, f"--known={known}", "--json")
    known.write_text("PULL-READ-1  # a clause may be named as well\n\n# nothing else\n")
    new = conform(spoiled, good.name_server_address, *FEW, f"--known={known}", "--json")

    assert (first.exit_code, same.exit_code, mended.exit_code, new.exit_code) == (1, 0, 1, 1)
    assert json.loads(mended.stdout)["changed"]["mended"]
    assert json.loads(new.stdout)["changed"]["new"]
    assert "pull-000" not in json.loads(new.stdout)["changed"]["new"]


def test_texts_of_a_broker_are_escaped(good: Broker, tmp_path: Path) -> None:
    """Texts of an answer are escaped in the terminal, in pages and in XML."""

    def remarked(command: dict[str, Any]) -> dict[str, Any]:
        return {**command, "remark": HOSTILE, "extFields": {**(command["extFields"] or {}), HOSTILE: HOSTILE}}

    with Relay(good.address, answers(11, remarked)) as relay:
        words = ("--only", "pull-004", f"--pages={tmp_path}", f"--junit={tmp_path / 'x.xml'}")
        done = conform(relay.address, good.name_server_address, *words)
    texts = [done.stdout, (tmp_path / "pull-004.html").read_text(), (tmp_path / "x.xml").read_text()]

    assert done.exit_code == 1
    assert [UNSEEN.search(text) for text in texts] == [None] * 3
    assert "<b>" not in texts[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (SOME, "cannot connect to .* --start"),
        (("--policy", "rocketmq-lmq"), "policy with recorded answers"),
        (("--only", "nothing"), "--clauses lists them"),
        (("--start", ""), "--start needs a command"),
        (("--start", "/no/such/broker"), "cannot be run"),
        (("--start", f"{sys.executable} -c pass"), "before the broker answered"),
    ],
)
def test_a_usage_error_is_one_sentence(words: tuple[str, ...], said: str, good: Broker) -> None:
    with closed_port() as address:
        done = conform(address, good.name_server_address, *words)

    assert done.exit_code == 2, done.output
    assert re.search(said, " ".join(done.stderr.split()))
    assert "Traceback" not in done.output


def test_clauses_are_listed() -> None:
    done = CliRunner().invoke(main, ["conform", "--clauses"], env={"COLUMNS": "200"})

    assert done.exit_code == 0
    assert all(clause.id in done.stdout for clause in CLAUSES)


@contextlib.contextmanager
def starting(store: Path) -> Iterator[tuple[Address, list[str]]]:
    with closed_port() as broker, closed_port() as names:
        listen, name_server = ("{}:{}".format(*each) for each in (broker, names))
        serve = f"{sys.executable} -m longpoll serve --store {store} --listen {listen} --name-server {name_server}"
        yield broker, [f"--broker={listen}", f"--name-server={name_server}", "--start", serve]


def test_a_broker_is_started_and_ended(tmp_path: Path) -> None:
    """The command starts the broker and ends it with its child processes; afterwards the port is free."""
    with starting(tmp_path) as (address, words):
        done = CliRunner().invoke(main, ["conform", *words, "--only=LOCK-*", "--json"])

        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["counts"]["PASS"] == 3
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_started_broker(number: int, tmp_path: Path) -> None:
    """After a signal in the middle of a run the result is unknown, and no broker process is left."""
    with starting(tmp_path) as (address, words):
        command = subprocess.Popen(
            [sys.executable, "-m", "longpoll", "conform", *words], stderr=subprocess.PIPE, text=True
        )
        try:
            answered = None
            while answered is None:
                with contextlib.suppress(OSError):
                    answered = socket.create_connection(address, 5)
            answered.close()
            command.send_signal(number)
            _out, said = command.communicate(timeout=60)
        finally:
            command.kill()

        assert command.returncode == 3
        assert "unknown" in said
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)
