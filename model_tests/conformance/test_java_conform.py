"""The real Java brokers pass every clause that applies to them, and fail those of the other version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from model_tests.conformance.java_broker import VERSIONS, JavaBroker, JavaUnavailableError, resolve, running

from longpoll.cli import main

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]
POLICY = {"4.9.7": "rocketmq-4.9", "5.4.0": "rocketmq-5", "5.5.0": "rocketmq-5"}
AGAIN = ("--only=PULL-READ-*", "--only=SEND-*", "--only=OFFSET-*")
ALSO = pytest.param("5.4.0", marks=pytest.mark.long)
"""It is held to what 5.5.0 was recorded to answer."""


def conform(broker: JavaBroker, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what the command tells in JSON."""
    places = ["--broker={}:{}".format(*broker.address), "--name-server={}:{}".format(*broker.name_server)]
    done = CliRunner().invoke(main, ["conform", *places, *words, "--json"])
    assert done.stdout, done.output
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("version", [*VERSIONS, ALSO])
def test_the_java_broker_passes_its_own_clauses(version: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All of them, and some again on the same store; asked for the other version's answers it fails."""
    try:
        class_path = resolve(tmp_path_factory.mktemp("jars"), version)
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    with running(class_path, tmp_path_factory.mktemp("java") / "home") as broker:
        for words, least in (((), 100), (AGAIN, 20)):
            code, told = conform(broker, "--policy", POLICY[version], *words)
            failed = {each["vector"]: each["why"] for each in told["results"] if each["outcome"] == "FAIL"}
            assert failed == {}
            assert code == 0
            assert told["counts"]["PASS"] >= least
        _code, told = conform(broker, "--only", "LOCK-3")
        assert (told["policy"], told["policy_chosen"]["by"]) == (POLICY[version], "version")
        other = next(each for each in VERSIONS if POLICY[each] != POLICY[version])
        code, told = conform(broker, "--policy", POLICY[other], "--only", "PULL-CHECK-*")
        assert code == 1
        assert told["clauses"]["PULL-CHECK-8"] == "FAIL"
