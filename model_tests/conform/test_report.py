"""`longpoll conform` from outside: exit codes, what is shown of a failure, reports, and a gate that sees changes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result
from model_tests.conform.relay import Relay, answers, field_of, plus
from model_tests.support.ports import closed_port
from model_tests.verification.test_hostile_calls import UNSEEN

from longpoll.cli import main
from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_conform.clauses import CLAUSES
from longpoll_conform.connection import Address
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import STRICT

SMALL = StoreConfig(commit_log_file_size=1 << 24)
SOME = ("--only", "PULL-READ-*", "--only", "LOCK-*")
FEW = ("--only", "PULL-READ-1", "--only", "PULL-READ-2", "--only", "LOCK-3")
HOSTILE = "\x1b[31m\u202e<b>[red]\x07"


@pytest.fixture(scope="module")
def good() -> Iterator[Broker]:
    with (
        tempfile.TemporaryDirectory() as store,
        Broker.start(RealRuntime(), store, policy=STRICT, store_config=SMALL) as broker,
    ):
        yield broker


@pytest.fixture
def spoiled(good: Broker) -> Iterator[Address]:
    """The same one, whose end of a queue is one too far."""
    relay = Relay(good.address, field_of(11, "maxOffset", plus(1)))
    yield relay.address
    relay.close()


def conform(broker: Address, good: Broker, *words: str) -> Result:
    places = [f"--broker={broker[0]}:{broker[1]}", "--name-server={}:{}".format(*good.name_server_address)]
    places.append("--has=long-polling")
    return CliRunner().invoke(main, ["conform", *places, *words])


def test_a_good_broker_passes_twice(good: Broker) -> None:
    """On the same store, by names of each run; and where nothing failed the exit code is 0."""
    for _ in range(2):
        done = conform(good.address, good, *SOME, "--json")
        told = json.loads(done.stdout)
        assert done.exit_code == told["exit_code"] == 0, done.output
        assert told["counts"]["FAIL"] == 0
        assert told["counts"]["PASS"] == 11
        assert "long-polling" in told["capabilities"]
        assert "sql92" not in told["capabilities"]


def test_a_failure_is_shown_with_its_bytes(good: Broker, spoiled: Address) -> None:
    """The clause, expected and actual bytes, and the minimal conversation decoded and in hexadecimal."""
    done = conform(spoiled, good, "--only", "pull-004")

    assert done.exit_code == 1
    assert "FAIL PULL-READ-2 pull-004" in done.stdout
    assert "response.extFields.maxOffset" in done.stdout
    assert 'expected "1"' in done.stdout
    assert 'got      "2"' in done.stdout
    assert "main > request 11" in done.stdout
    assert "steps of the vector are left out" in done.stdout
    assert b"JSON".hex() in done.stdout.replace(" ", "")
    assert "the broker closed" not in done.stdout


def test_reports_say_the_same(good: Broker, spoiled: Address, tmp_path: Path) -> None:
    """JUnit, pages and JSON: as many failures, each vector once."""
    words = (*FEW, f"--junit={tmp_path / 'junit.xml'}", f"--pages={tmp_path / 'pages'}", "--json")
    told = json.loads(conform(spoiled, good, *words).stdout)
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


def test_a_gate_goes_red_on_change_only(good: Broker, spoiled: Address, tmp_path: Path) -> None:
    """Known failures are green; a new one is red, and so is one that fails no more."""
    known = tmp_path / "known.txt"
    first = conform(spoiled, good, *FEW, f"--write-known={known}")
    same = conform(spoiled, good, *FEW, f"--known={known}")
    mended = conform(good.address, good, *FEW, f"--known={known}", "--json")
    known.write_text("PULL-READ-1  # a clause may be named as well\n\n# nothing else\n")
    new = conform(spoiled, good, *FEW, f"--known={known}", "--json")

    assert (first.exit_code, same.exit_code, mended.exit_code, new.exit_code) == (1, 0, 1, 1)
    assert json.loads(mended.stdout)["changed"]["mended"]
    assert json.loads(new.stdout)["changed"]["new"]
    assert "pull-000" not in json.loads(new.stdout)["changed"]["new"]


def test_what_a_broker_says_steers_nothing(good: Broker, tmp_path: Path) -> None:
    """Texts of an answer in the terminal, in pages and in XML."""

    def remarked(command: dict[str, Any]) -> dict[str, Any]:
        return {**command, "remark": HOSTILE, "extFields": {**(command["extFields"] or {}), HOSTILE: HOSTILE}}

    relay = Relay(good.address, answers(11, remarked))
    try:
        words = ("--only", "pull-004", f"--pages={tmp_path}", f"--junit={tmp_path / 'x.xml'}")
        done = conform(relay.address, good, *words)
    finally:
        relay.close()
    texts = [done.stdout, (tmp_path / "pull-004.html").read_text(), (tmp_path / "x.xml").read_text()]

    assert done.exit_code == 1
    assert [UNSEEN.search(text) for text in texts] == [None] * 3
    assert "<b>" not in texts[1]


def test_a_stranger_on_the_port_is_a_sentence(good: Broker) -> None:
    with closed_port() as address:
        done = conform(address, good, *SOME)

    assert done.exit_code == 2
    assert "cannot connect to" in done.stderr
    assert "--start" in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "rocketmq-lmq"), "policy with recorded answers"),
        (("--only", "nothing"), "--clauses lists them"),
        (("--start", ""), "--start needs a command"),
        (("--start", "/no/such/broker"), "cannot be run"),
        (("--start", f"{sys.executable} -c pass"), "before the broker answered"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], said: str, good: Broker) -> None:
    """Exit code 2, and what to do."""
    with closed_port() as address:
        done = conform(address, good, *words)

    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_clauses_are_listed() -> None:
    """All of them, without a broker."""
    done = CliRunner().invoke(main, ["conform", "--clauses"], env={"COLUMNS": "200"})

    assert done.exit_code == 0
    assert all(clause.id in done.stdout for clause in CLAUSES)


@contextlib.contextmanager
def starting(store: Path) -> Iterator[tuple[Address, list[str]]]:
    """Where a broker will listen, and the options that start it there."""
    with closed_port() as broker, closed_port() as names:
        listen, name_server = ("{}:{}".format(*each) for each in (broker, names))
        serve = f"{sys.executable} -m longpoll serve --store {store} --listen {listen} --name-server {name_server}"
        yield broker, [f"--broker={listen}", f"--name-server={name_server}", "--start", serve]


def test_a_broker_is_started_and_ended(tmp_path: Path) -> None:
    """By its command, with what it started; the port is free afterwards."""
    with starting(tmp_path) as (address, words):
        done = CliRunner().invoke(main, ["conform", *words, "--only=LOCK-*", "--json"])

        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["counts"]["PASS"] == 3
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_was_started(number: int, tmp_path: Path) -> None:
    """In the middle of a run: the answer is unknown, and no broker is left."""
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


def test_a_badge_counts_the_clauses_that_could_be_tested(good: Broker, spoiled: Address) -> None:
    """Green, red with one that fails, grey where nothing is known; hyphens are written twice."""
    untested = "--only=STORE-*"
    fine, broken, nothing = (
        json.loads(conform(address, good, *words, "--json").stdout)["badge"]
        for address, words in ((good.address, SOME), (spoiled, SOME), (good.address, (untested,)))
    )

    assert fine == (
        "![conform strict: 11 of 11 clauses](https://img.shields.io/badge/conform_strict-11_of_11_clauses-brightgreen)"
    )
    assert broken.endswith("_of_11_clauses-red)")
    assert nothing.endswith("0_of_0_clauses-lightgrey)")
    shown = conform(good.address, good, "--only=LOCK-3", "--policy=strict-clone")
    assert shown.stdout.rstrip().endswith("badge/conform_strict--clone-1_of_1_clauses-brightgreen)")
