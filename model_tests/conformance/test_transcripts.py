"""Our broker gives the answers that were recorded from Apache RocketMQ 4.9.7 and 5.5.0, in each profile.

The recordings are the vectors that `longpoll_conform` plays. The deliberate differences of strict are listed with
reasons in `longpoll_conform.capabilities` and `docs/conformance.md`. The test also fails if a vector that is listed as
different passes.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from model_tests.support.spec.cases import quick_if

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.hold import pull as pull_core
from longpoll_broker.store.messages import GetStatus
from longpoll_conform.capabilities import intended_difference, is_of_the_scan
from longpoll_conform.compare import compare
from longpoll_conform.play import Place, play
from longpoll_conform.vectors import RECORDED_AS, Vector, recorded
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

ROOT: Final = Path(__file__).parents[2]
STORE: Final = ROOT / "model_tests" / "store" / "golden" / "store-4.9.7-clean.tar.xz"
POLICIES: Final = {policy.name: policy for policy in (ROCKETMQ_4_9, ROCKETMQ_5, STRICT)}
VERSIONS: Final = {ROCKETMQ_4_9.name: "4.9.7", ROCKETMQ_5.name: "5.5.0", STRICT.name: "4.9.7"}
"""Policy -> the version of its recordings."""
PROFILES: Final = {
    "default": BrokerConfig(),
    "sql": BrokerConfig(property_filter=True),
    "strict": BrokerConfig(auto_create_topic=False, auto_create_subscription_group=False),
    "nolongpoll": BrokerConfig(long_polling=False),
    "unreadable": BrokerConfig(permission=2),
    "store": BrokerConfig(),
}
"""Profile -> the broker's settings, as named in the recordings' README."""
RECORDED_AT_MS: Final = 1_795_247_471_836
"""The store time of the last recorded message."""
QUICK_MS: Final = 1500
"""A case is quick if it waits for less than this time, in ms."""
FURTHER_TRIES: Final = 2
"""How often a case that differs is played again on its own, because a busy machine may delay an answer."""
JOBS: Final = {True: 8, False: 40}
"""The number of cases played at once, for quick cases (True) and for slow ones. Slow cases mostly wait, so more of them
run at once."""


CASES: Final = {version: recorded(version) for version in sorted(set(VERSIONS.values()))}


def chosen(policy: str, profile: str, *, quick: bool) -> list[Vector]:
    """Return a profile's vectors, for strict without those that the recorder marked as answered by the scan."""
    scans = POLICIES[policy].expiry == "scan"
    return [
        vector
        for vector in CASES[VERSIONS[policy]]
        if vector.profile == profile and (vector.wait_ms < QUICK_MS) == quick and (scans or not is_of_the_scan(vector))
    ]


class RecordedClock(RealRuntime):
    """A clock that shows the time of the recordings, because the recorded store has messages delayed by two hours."""

    def __init__(self) -> None:
        super().__init__()
        self._behind_ms = super().unix_ms() - RECORDED_AT_MS

    def unix_ms(self) -> int:
        return super().unix_ms() - self._behind_ms


def start(policy: Policy, profile: str, directory: Path) -> Broker:
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


def replay(
    policy: str, profile: str, directory: Path, cases: list[Vector], jobs: int, *, further_tries: int = FURTHER_TRIES
) -> dict[str, list[str]]:
    with start(POLICIES[policy], profile, directory / "all") as broker:
        ask = asker_of(broker)
        with ThreadPoolExecutor(jobs) as pool:
            found = {case.id: texts for case, texts in zip(cases, pool.map(ask, cases), strict=True) if texts}
    known = intended_difference(policy)
    for case in cases:
        tries = 0 if case.profile == "store" or case.id in known else further_tries
        while case.id in found and tries:
            # These cases run one at a time with a new broker each, because earlier sends would change the answers.
            with start(POLICIES[policy], profile, directory / f"{case.id}-{tries}") as broker:
                found[case.id] = asker_of(broker)(case)
            tries -= 1
            if not found[case.id]:
                del found[case.id]
    return found


def asker_of(broker: Broker) -> Callable[[Vector], list[str]]:
    place = Place(broker.address, broker.name_server_address)

    def differences(vector: Vector) -> list[str]:
        played = play(vector, place)
        return [str(each) for each in compare(vector.case, played.case, RECORDED_AS, played.variables)]

    return differences


def assert_as_listed(known: Iterable[str], cases: list[Vector], found: dict[str, list[str]]) -> None:
    """Assert that exactly the listed cases differ."""
    listed = set(known) & {case.id for case in cases}
    wrong = "\n".join(f"{name}: {texts[:6]}" for name, texts in found.items() if name not in listed)
    assert not wrong, f"these answers are not the Java broker's:\n{wrong}"
    assert listed <= set(found), (
        f"these answers are equal now, remove them from the list: {sorted(listed - set(found))}"
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("profile", quick_if(PROFILES, lambda profile: profile != "sql"))
def test_immediate_answers_equal_those_of_the_real_broker(policy: str, profile: str, tmp_path: Path) -> None:
    cases = chosen(policy, profile, quick=True)
    if not cases:
        assert (policy, profile) == (ROCKETMQ_5.name, "store"), "5.5.0 alone was recorded without a store"
        return
    found = replay(policy, profile, tmp_path, cases, 1 if profile == "store" else JOBS[True])

    assert_as_listed(intended_difference(policy), cases, found)


@pytest.mark.long
@pytest.mark.parametrize("profile", ["default", "nolongpoll", "sql"])
@pytest.mark.parametrize("policy", POLICIES)
def test_held_pulls_are_answered_as_by_the_real_broker(policy: str, profile: str, tmp_path: Path) -> None:
    cases = chosen(policy, profile, quick=False)
    found = replay(policy, profile, tmp_path, cases, JOBS[False])

    assert_as_listed(intended_difference(policy), cases, found)


@pytest.mark.parametrize("policy", [ROCKETMQ_4_9.name, ROCKETMQ_5.name])
def test_every_case_belongs_to_a_test(policy: str) -> None:
    """Each recorded case belongs to one of the profiles above, and no list names a missing case."""
    cases = CASES[VERSIONS[policy]]
    asked = {
        case.id for profile in PROFILES for quick in (True, False) for case in chosen(policy, profile, quick=quick)
    }
    ids = {case.id for case in cases}
    assert asked == ids
    assert len(cases) == {"4.9.7": 355, "5.5.0": 327}[VERSIONS[policy]]
    slow = {case.profile for case in cases if case.wait_ms >= QUICK_MS}
    assert slow <= {"default", "nolongpoll", "sql"}


def test_the_page_lists_each_intended_difference_of_strict() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text()
    assert dict(re.findall(r"^\| `([a-z]+-\d+)` \| (.+?) \|$", text, re.MULTILINE)) == {
        name: meant.why for name, meant in intended_difference(STRICT.name).items()
    }
    assert set(intended_difference(STRICT.name)) <= {case.id for case in CASES[VERSIONS[STRICT.name]]}


def test_a_wrong_code_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that answers PULL_OFFSET_MOVED instead of "no match" differs from the recording in each case."""
    cases = [case for case in chosen("strict", "default", quick=True) if case.id.startswith("pull-")]
    monkeypatch.setitem(pull_core._CODES, GetStatus.NO_MATCHED_MESSAGE, 21)
    found = replay("strict", "default", tmp_path, cases, JOBS[True], further_tries=0)

    assert found
    with pytest.raises(AssertionError, match="not the Java broker's"):
        assert_as_listed(intended_difference("strict"), cases, found)
