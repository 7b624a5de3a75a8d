"""`longpoll conform` without `--policy` holds a broker to the preset that its version calls for, and says why."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result
from model_tests.conform.relay import Relay, answers

from longpoll.cli import main
from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_conform.capabilities import DEFAULT, RUNTIME_INFO, How, identify
from longpoll_conform.connection import Address
from longpoll_conform.play import Place
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, policy_named

SMALL: Final = StoreConfig(commit_log_file_size=1 << 24)
DIFFERENT: Final = ("--only=ROUTE-4", "--only=PULL-HOLD-4")
"""Clauses that strict and RocketMQ 4.9.7 answer differently."""


@pytest.fixture(scope="module")
def rocketmq() -> Iterator[Broker]:
    """A broker of ours that behaves as RocketMQ 4.9.7."""
    with (
        tempfile.TemporaryDirectory() as store,
        Broker.start(RealRuntime(), store, policy=ROCKETMQ_4_9, store_config=SMALL) as broker,
    ):
        yield broker


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
def test_a_broker_of_ours_is_held_to_its_own_policy(name: str, preset: str, knobs: tuple[str, ...]) -> None:
    """A policy without recordings is held to the recorded version that it claims to be."""
    with (
        tempfile.TemporaryDirectory() as store,
        Broker.start(RealRuntime(), store, policy=policy_named(name), store_config=SMALL) as broker,
    ):
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
def test_the_version_decides(answer: Mapping[str, Any], policy: str, how: How, why: str, rocketmq: Broker) -> None:
    """By its name, else by the number in the header of the answer; and the default is named."""
    relay = Relay(rocketmq.address, answers(RUNTIME_INFO, lambda command: {**command, **answer}))
    try:
        found = identify(Place(relay.address, rocketmq.name_server_address))
        done = conform(relay.address, rocketmq.name_server_address, "--only=LOCK-3")
    finally:
        relay.close()

    assert (found.policy, found.how) == (policy, how)
    assert why in found.why
    assert f"policy: {policy}, because " in done.stdout
    assert why in done.stdout


def test_a_faithful_broker_passes_without_a_policy(rocketmq: Broker) -> None:
    """The first example of the help; held to another policy the same broker fails, and the result says why."""
    places = rocketmq.address, rocketmq.name_server_address
    own, other = conform(*places, *DIFFERENT), conform(*places, *DIFFERENT, "--policy=strict")
    told = json.loads(conform(*places, *DIFFERENT, "--json").stdout)

    assert own.exit_code == 0, own.output
    assert own.stdout.startswith("verdict: no clause failed\n2 clauses tested: 2 PASS\n")
    assert "policy: rocketmq-4.9, because the broker reports that it runs policy rocketmq-4.9" in own.stdout
    assert "--policy NAME chooses another" in own.stdout
    assert "--policy NAME chooses another" in own.stderr
    assert (other.exit_code, other.stdout.splitlines()[0]) == (1, "verdict: 2 of 2 clauses failed")
    assert "runs policy rocketmq-4.9: without --policy it is compared with rocketmq-4.9" in other.stderr
    assert told["policy"] == "rocketmq-4.9"
    assert told["policy_chosen"] == {
        "by": "policy",
        "why": "the broker reports that it runs policy rocketmq-4.9",
        "version": "V4_9_7",
    }


def test_bugs_of_rocketmq_have_a_section_of_their_own(rocketmq: Broker) -> None:
    """Whether the broker has one, apart from what differs; clauses that were not tested are not in the denominator."""
    words = (*DIFFERENT, "--only=STORE-*", "--json")
    told = json.loads(conform(rocketmq.address, rocketmq.name_server_address, *words).stdout)
    with (
        tempfile.TemporaryDirectory() as store,
        Broker.start(RealRuntime(), store, store_config=SMALL) as strict,
    ):
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
