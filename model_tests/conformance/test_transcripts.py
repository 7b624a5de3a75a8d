"""What Apache RocketMQ 4.9.7 and 5.5.0 were recorded to answer, asked of our broker: every case, each profile.

`golden/` holds the recordings and the scripts that replay them, as they were made. Where strict differs on purpose the
case stands with its reason in `docs/strict-differs.md`; a listed case that has become equal is as wrong as an unlisted
one that is not.
"""

from __future__ import annotations

import importlib
import json
import lzma
import re
import sys
import tarfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.core import pull as pull_core
from longpoll_broker.core.read import GetStatus
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = Path(__file__).parent / "golden"
STORE: Final = ROOT / "model_tests" / "store" / "golden" / "store-4.9.7-clean.tar.xz"
POLICIES: Final = {policy.name: policy for policy in (ROCKETMQ_4_9, ROCKETMQ_5, STRICT)}
VERSIONS: Final = {ROCKETMQ_4_9.name: "4.9.7", ROCKETMQ_5.name: "5.5.0", STRICT.name: "4.9.7"}
"""Whose recordings a policy is held to."""
PROFILES: Final = {
    "default": BrokerConfig(),
    "sql": BrokerConfig(property_filter=True),
    "strict": BrokerConfig(auto_create_topic=False, auto_create_subscription_group=False),
    "nolongpoll": BrokerConfig(long_polling=False),
    "unreadable": BrokerConfig(permission=2),
    "store": BrokerConfig(),
}
"""The broker's settings of each profile, as the recordings' README names them."""
RECORDED_AS: Final = {"brokerName": "broker-a", "cluster": "DefaultCluster"}
RECORDED_AT_MS: Final = 1_795_247_471_836
"""When the last message of the recordings was stored."""
QUICK_MS: Final = 1500
"""A case is quick when its own waits and sleeps are shorter than this."""
FURTHER_TRIES: Final = 2
"""A differing case is tried again alone: on a busy machine an answer may miss its recorded window of time."""
JOBS: Final = {True: 8, False: 40}
"""Cases replayed at once; the slow ones only wait."""


def load_engine() -> Any:
    """The recorder's own replay script, which imports its neighbour by its bare name."""
    sys.path.insert(0, str(GOLDEN))
    try:
        return importlib.import_module("engine")
    finally:
        sys.path.remove(str(GOLDEN))


ENGINE: Final = load_engine()


def load_cases(version: str) -> list[dict[str, Any]]:
    """Every case recorded from one version."""
    text = lzma.decompress((GOLDEN / f"transcripts-{version}.jsonl.xz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


CASES: Final = {version: load_cases(version) for version in sorted(set(VERSIONS.values()))}


def waits_ms(case: dict[str, Any]) -> int:
    """How long a case takes by its own account: sleeps, recorded holds, and silence that is waited for."""
    steps = [*case.get("setup", []), *case.get("during", []), *case.get("after", [])]
    total: int = sum(step.get("sleep_ms", 0) + step.get("held_ms", 0) for step in steps)
    total += max((step.get("at_ms", 0) for step in steps), default=0)
    total += case.get("held_ms") or 0
    return total + (case.get("wait_ms", 10_000) if case["response"] is None else 0)


def chosen(policy: str, profile: str, *, quick: bool) -> list[dict[str, Any]]:
    """The cases of a profile; under strict without those that the recorder marked as answered by the scan."""
    return [
        case
        for case in CASES[VERSIONS[policy]]
        if case["profile"] == profile
        and (waits_ms(case) < QUICK_MS) == quick
        and not (policy == STRICT.name and case.get("depends") == "scan")
    ]


def not_equal(policy: str) -> dict[str, str]:
    """Why a policy answers a case differently on purpose, by id; only strict does."""
    if policy != STRICT.name:
        return {}
    text = (ROOT / "docs" / "strict-differs.md").read_text()
    return dict(re.findall(r"^\| `([a-z]+-\d+)` \| (.+?) \|$", text, re.MULTILINE))


class RecordedClock(RealRuntime):
    """The time of day of the recordings: the recorded store has messages that wait for two hours."""

    def __init__(self) -> None:
        super().__init__()
        self._behind_ms = super().unix_ms() - RECORDED_AT_MS

    def unix_ms(self) -> int:
        """The recordings' time of day, going on."""
        return super().unix_ms() - self._behind_ms


def start(policy: Policy, profile: str, directory: Path) -> Broker:
    """A broker as the recorded one was set up."""
    store_config = StoreConfig(commit_log_file_size=64 * 1024 * 1024)
    if profile == "store":
        with tarfile.open(STORE) as archive:
            archive.extractall(directory, filter="data")
        (directory,) = directory.iterdir()
        store_config = StoreConfig(
            commit_log_file_size=65_536,
            consume_queue_file_size=2000,
            index_slot_count=400,
            index_entry_count=1000,
            message_size_max=65_536,
        )
    return Broker.start(
        RecordedClock(), str(directory), policy=policy, config=PROFILES[profile], store_config=store_config
    )


def replay(policy: str, profile: str, directory: Path, cases: list[dict[str, Any]], jobs: int) -> dict[str, list[str]]:
    """The differences of each case that differs, by id."""
    with start(POLICIES[policy], profile, directory / "all") as broker:
        ask = asker_of(broker, policy)
        with ThreadPoolExecutor(jobs) as pool:
            found = {case["id"]: texts for case, texts in zip(cases, pool.map(ask, cases), strict=True) if texts}
    known = not_equal(policy)
    for case in cases:
        tries = 0 if case["profile"] == "store" or case["id"] in known else FURTHER_TRIES
        while case["id"] in found and tries:
            # One at a time, and each of a new broker: the one before has what was sent to it already.
            with start(POLICIES[policy], profile, directory / f"{case['id']}-{tries}") as broker:
                found[case["id"]] = asker_of(broker, policy)(case)
            tries -= 1
            if not found[case["id"]]:
                del found[case["id"]]
    return found


def asker_of(broker: Broker, policy: str) -> Callable[[dict[str, Any]], list[str]]:
    """Replays a case to a broker; what differs."""
    runner = ENGINE.Runner("{}:{}".format(*broker.address), "{}:{}".format(*broker.name_server_address))
    runner.discover()

    def differences(case: dict[str, Any]) -> list[str]:
        hard, _soft = ENGINE.compare(case, runner.run(case), RECORDED_AS, runner.env)
        # Texts are not compared, and strict's own answers may say more than Java's.
        return [text for text in hard if policy != STRICT.name or "remarkSet" not in text]

    return differences


def assert_as_listed(known: Iterable[str], cases: list[dict[str, Any]], found: dict[str, list[str]]) -> None:
    """Exactly the known ones among these cases differ."""
    listed = set(known) & {case["id"] for case in cases}
    wrong = "\n".join(f"{name}: {texts[:6]}" for name, texts in found.items() if name not in listed)
    assert not wrong, f"these answers are not the Java broker's:\n{wrong}"
    assert listed <= set(found), f"these have become equal, take them off the list: {sorted(listed - set(found))}"


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("policy", POLICIES)
def test_answers_at_once_as_the_real_broker_does(policy: str, profile: str, tmp_path: Path) -> None:
    """Every case without a long wait is answered as the Java broker was recorded to answer it, but for those listed."""
    cases = chosen(policy, profile, quick=True)
    if not cases:
        assert (policy, profile) == (ROCKETMQ_5.name, "store"), "only 5.5.0 was recorded without a store"
        return
    found = replay(policy, profile, tmp_path, cases, 1 if profile == "store" else JOBS[True])

    assert_as_listed(not_equal(policy), cases, found)


@pytest.mark.long
@pytest.mark.parametrize("profile", ["default", "nolongpoll", "sql"])
@pytest.mark.parametrize("policy", POLICIES)
def test_holds_as_the_real_broker_does(policy: str, profile: str, tmp_path: Path) -> None:
    """The cases that wait, for a deadline, a scan or a delayed message, too."""
    cases = chosen(policy, profile, quick=False)
    found = replay(policy, profile, tmp_path, cases, JOBS[False])

    assert_as_listed(not_equal(policy), cases, found)


@pytest.mark.parametrize("policy", [ROCKETMQ_4_9.name, ROCKETMQ_5.name])
def test_every_case_belongs_to_a_test(policy: str) -> None:
    """Quick or long, each recorded case is in one of the profiles above; and no list names a case that is not."""
    cases = CASES[VERSIONS[policy]]
    asked = {
        case["id"] for profile in PROFILES for quick in (True, False) for case in chosen(policy, profile, quick=quick)
    }
    ids = {case["id"] for case in cases}
    assert asked == ids
    assert len(cases) == {"4.9.7": 240, "5.5.0": 212}[VERSIONS[policy]]
    slow = {case["profile"] for case in cases if waits_ms(case) >= QUICK_MS}
    assert slow <= {"default", "nolongpoll", "sql"}


def test_the_list_of_strict_names_cases() -> None:
    """What strict answers differently is recorded."""
    assert set(not_equal(STRICT.name)) <= {case["id"] for case in CASES[VERSIONS[STRICT.name]]}


def test_a_wrong_code_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers "moved" where nothing matched differs from the recording, case by case."""
    cases = [case for case in chosen("strict", "default", quick=True) if case["id"].startswith("pull-")]
    monkeypatch.setitem(pull_core._CODES, GetStatus.NO_MATCHED_MESSAGE, 21)
    found = replay("strict", "default", tmp_path, cases, JOBS[True])

    assert found
    with pytest.raises(AssertionError, match="not the Java broker's"):
        assert_as_listed(not_equal("strict"), cases, found)


def test_a_listed_case_that_is_equal_is_seen() -> None:
    """The lists only shrink: who makes a case equal takes it off."""
    with pytest.raises(AssertionError, match="take them off"):
        assert_as_listed({"pull-002"}, [{"id": "pull-002"}], {})
