"""What `longpoll conform` sees of a whole run: a good broker passes, and each planted fault fails its clause."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from model_tests.conform.relay import Asked, Fault, Relay, Told, again, field_of, plus, recoded

from longpoll.verification import conversations, races, under_load
from longpoll.verification.declared import declared
from longpoll.verification.page import Row
from longpoll.verification.under_load import Loaded, see
from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.testing.load import LoadPlan
from longpoll_conform import capabilities
from longpoll_conform.clauses import SEEN
from longpoll_conform.line import Address
from longpoll_conform.suite import Outcome
from longpoll_conform.vectors import recorded
from longpoll_judge.contract.result import Result as Judged
from longpoll_judge.run import job
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy
from longpoll_spec.testing.cases import quick_if

SMALL = StoreConfig(commit_log_file_size=1 << 24)
REGRESSES, IS_TOLD = "load-commit-never-regresses", "load-commit-is-told"
OF_LOAD = tuple(name for name in SEEN if name.startswith("load-"))
LATE_S = 3.0
COMMITS = 1
"""The bit of a pull that commits."""
HELD = 2
"""The bit of a pull that may be held."""
Outcomes = Mapping[str, Outcome]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that passes."""
    store = str(tmp_path_factory.mktemp("good") / "store")
    with Broker.start(RealRuntime(), store, policy=STRICT, store_config=SMALL) as broker:
        yield broker


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of a few hundred messages, and a race that says something after few deliveries."""
    monkeypatch.setattr(under_load, "LoadPlan", partial(LoadPlan, message_count=400, queue_count=4))
    monkeypatch.setattr(races, "DELIVERIES_MIN", 20)


def seen(address: Address, directory: Path, *names: str, policy: Policy = STRICT) -> Outcomes:
    """The outcome of each."""
    loaded = Loaded(RealRuntime(), address, f"seen-{directory.name}", declared(policy), directory / "history", 0.3)
    return {result.vector.id: result.outcome for result in see(loaded, names or SEEN)}


def seen_in_time(address: Address, directory: Path, wanted: Outcomes) -> Outcomes:
    """The outcomes of a load; of another one where a busy machine has let it say nothing of what is wanted, up to 3."""
    outcomes: Outcomes = {}
    for number in range(3):
        place = directory / f"{directory.name}-{number}"
        place.mkdir()
        outcomes = seen(address, place, *wanted)
        if not any(outcomes[name] == "UNTESTED" != wanted[name] for name in wanted):
            break
    return outcomes


def late(every: int) -> Fault:
    """Of the pulls that were held some are answered seconds later."""

    def fault(asked: Asked, command: dict[str, Any], frame: bytes) -> Told | None:
        fields = asked.command.get("extFields") or {}
        if asked.command.get("code") != 11 or not int(fields.get("sysFlag", 0)) & HELD or command["code"] != 0:
            return None
        asked.relay.kept["count"] = asked.relay.kept.get("count", 0) + 1
        return [(LATE_S, frame)] if asked.relay.kept["count"] % every == 0 else None

    return fault


def twice(asked: Asked, _command: dict[str, Any], frame: bytes) -> Told | None:
    """Every pull is answered twice."""
    return [(0.0, frame), (0.0, frame)] if asked.command.get("code") == 11 else None


def test_a_good_broker_passes(good: Broker, tmp_path: Path) -> None:
    """All that the load asks, and the race."""
    wanted: Outcomes = dict.fromkeys(SEEN, "PASS")

    assert seen_in_time(good.address, tmp_path, wanted) == wanted


@pytest.mark.parametrize(
    ("fault", "broken", "untouched"),
    [
        pytest.param(late(40), "load-no-lost-wakeup", "load-answered-once", id="late"),
        pytest.param(twice, "load-answered-once", "load-send-is-kept", id="twice", marks=pytest.mark.long),
        pytest.param(
            field_of(11, "nextBeginOffset", plus(1)),
            "load-answer-is-right",
            "load-answered-once",
            id="next offset",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_planted_fault_fails_its_clause(
    fault: Fault, broken: str, untouched: str, good: Broker, tmp_path: Path
) -> None:
    """And not one that it has nothing to do with."""
    relay = Relay(good.address, fault)
    try:
        outcomes = seen(relay.address, tmp_path, broken, untouched)
    finally:
        relay.close()

    assert relay.spoiled
    assert outcomes == {broken: "FAIL", untouched: "PASS"}


Request = Callable[[dict[str, Any]], bytes | None]
UNSPOILED: Fault = lambda _asked, _command, _frame: None  # noqa: E731 - a fault is a function, and this one is none


def regresses(asked: Asked, command: dict[str, Any], _frame: bytes) -> Told | None:
    """A group is told the first offset that it was told of a queue, whatever it has committed since."""
    fields = command["extFields"] or {}
    if asked.command.get("code") != 14 or fields.get("offset", "0") == "0":
        return None
    place = ",".join(asked.command["extFields"][name] for name in ("consumerGroup", "topic", "queueId"))
    first = asked.relay.kept.setdefault(place, fields["offset"])
    return [(0.0, again(command, extFields={**fields, "offset": first}))] if first != fields["offset"] else None


def forgotten(command: dict[str, Any]) -> bytes | None:
    """Commits come to nothing: a pull's bit is taken off, and what a group commits by itself is put down to another."""
    fields = dict(command["extFields"] or {})
    if command["code"] == 11 and int(fields["sysFlag"]) & COMMITS:
        return again(command, extFields={**fields, "sysFlag": str(int(fields["sysFlag"]) & ~COMMITS)})
    if command["code"] == 15:
        return again(command, extFields={**fields, "consumerGroup": f"not-{fields['consumerGroup']}"})
    return None


def forgotten_at_times() -> Request:
    """Three of four commits come to nothing."""
    count = itertools.count()
    return lambda command: forgotten(command) if next(count) % 4 else None


NOTHING_TOLD: Final[Outcomes] = {IS_TOLD: "FAIL", REGRESSES: "UNTESTED"}
"""Who is told no offset is told none below another."""
OF_COMMITS: Final[Mapping[str, tuple[Fault, Request | None, Outcomes]]] = {
    "regresses": (regresses, None, {REGRESSES: "FAIL"}),
    "forgotten": (UNSPOILED, forgotten, {REGRESSES: "FAIL"}),
    "told more": (field_of(14, "offset", plus(1_000)), None, {IS_TOLD: "FAIL"}),
    "told none": (recoded(14, 0, 22), None, NOTHING_TOLD),
    "no such code": (recoded(14, 0, 77), None, NOTHING_TOLD),
    "no such code of a commit": (recoded(15, 0, 77), None, {IS_TOLD: "FAIL"}),
    "forgotten at times": (UNSPOILED, forgotten_at_times(), {REGRESSES: "FAIL"}),
    "unknown to the name server": (recoded(14, 0, 3), None, {REGRESSES: "UNIMPLEMENTED", IS_TOLD: "UNIMPLEMENTED"}),
    "an error": (recoded(14, 0, 1), None, {REGRESSES: "UNTESTED", IS_TOLD: "UNTESTED"}),
}
"""What is done to answers, and to requests; and what follows of it."""


@pytest.mark.parametrize("name", quick_if(OF_COMMITS, lambda name: name in {"regresses", "told none"}))
def test_a_fault_of_a_committed_offset_fails_its_clause_alone(name: str, good: Broker, tmp_path: Path) -> None:
    """Whatever else the load shows passes."""
    fault, request_, expected = OF_COMMITS[name]
    wanted: Outcomes = {**dict.fromkeys(OF_LOAD, "PASS"), **expected}
    relay = Relay(good.address, fault, request_ or (lambda _command: None))
    try:
        outcomes = seen_in_time(relay.address, tmp_path, wanted)
    finally:
        relay.close()

    assert relay.spoiled
    assert outcomes == wanted


def test_what_a_policy_declares_is_non_strict(good: Broker, tmp_path: Path) -> None:
    """A wake that is late by less than the scan's period, of a broker that is meant to be RocketMQ 4.9."""
    relay = Relay(good.address, late(40))
    try:
        outcomes = seen(relay.address, tmp_path, "load-no-lost-wakeup", policy=ROCKETMQ_4_9)
    finally:
        relay.close()

    assert outcomes == {"load-no-lost-wakeup": "NON-STRICT"}


def test_the_row_of_verify_names_the_first_clause_that_fails(good: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Good, spoiled, gone, and of a policy that nobody recorded."""
    some = [vector for vector in recorded("4.9.7") if vector.id in {"pull-000", "lock-358"}]
    monkeypatch.setattr(conversations, "recorded", lambda _version: some)
    monkeypatch.setattr(capabilities, "KNOWN_S", 0.1)
    monkeypatch.setattr(capabilities, "HELD_MS", 400)

    def row(address: Address, policy: str = "strict") -> Row:
        (found,) = conversations.conversations(address, None, policy, lambda _done, _all: None, scans=False)
        return found

    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = server.getsockname()[:2]
    relay = Relay(good.address, field_of(11, "maxOffset", plus(1)))
    try:
        spoiled = row(relay.address)
    finally:
        relay.close()

    fine = row(good.address)
    assert (fine.outcome, fine.detail) == ("ok", "2 clauses: 2 PASS")
    assert spoiled.outcome == "violated"
    assert "2 clauses: 1 FAIL, 1 PASS; first PULL-READ-1 (pull-000): response.extFields.maxOffset" in spoiled.detail
    assert row(nobody).outcome == "unknown"
    assert row(good.address, "rocketmq-lmq").outcome == "skipped"


def test_a_record_with_a_hole_passes_nothing(good: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event in the midst of it is lost: who knows what it told."""
    honest = job.judge

    def judge(sources: list[Path], **more: Any) -> Judged:
        part = next(sources[0].rglob("part-*"))
        lines = part.read_bytes().splitlines(keepends=True)
        part.write_bytes(b"".join(lines[: len(lines) // 2] + lines[len(lines) // 2 + 1 :]))
        return honest(sources, **more)

    monkeypatch.setattr(under_load, "judge", judge)
    loaded = Loaded(RealRuntime(), good.address, "holes", declared(STRICT), tmp_path / "history", 0)
    results = see(loaded, [name for name in SEEN if name.startswith("load-") and name != under_load.DELIVERED])

    assert results
    assert {result.outcome for result in results} <= {"UNTESTED", "FAIL"}
    assert any("the record has holes" in result.why for result in results)


def test_a_broker_that_is_not_there_is_untested(tmp_path: Path) -> None:
    """With the reason, and no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    results = see(Loaded(RealRuntime(), address, "gone", declared(STRICT), tmp_path / "history", 0.1), SEEN)

    assert {result.outcome for result in results} == {"UNTESTED"}
    assert all("the load could not run" in result.why for result in results)


def test_without_the_judge_conversations_are_asked_all_the_same(good: Broker) -> None:
    """And what needs it says which extra brings it."""
    words = ["conform", "--broker={}:{}".format(*good.address), "--has=long-polling", "--only=RUN-*", "--only=LOCK-3"]
    text = "import sys; sys.modules['pyarrow'] = None; from longpoll.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", text, *words, "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    told = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert told["clauses"]["LOCK-3"] == "PASS"
    assert told["counts"]["UNTESTED"] == len(SEEN)
    assert all("longpoll[judge]" in each["why"] for each in told["results"] if each["vector"] in SEEN)


def test_the_judges_extra_is_all_that_it_needs() -> None:
    """Not what the property suite is made with."""
    text = "import sys; sys.modules['hypothesis'] = sys.modules['z3'] = None; import longpoll.verification.under_load"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
