"""The load and the race of `verify` on brokers, and the end of a broker whose parent is killed."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import pytest
from model_tests.conform.relay import Asked, Fault, Relay, Told, again, field_of, plus, recoded
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.ports import closed_port
from model_tests.support.spec.cases import quick_if
from model_tests.verification.test_foreign import babbling, closing, finding, job_for, silent
from model_tests.verification.test_foreign import said as judged_as

from longpoll.options.values import RACE_S
from longpoll.verification import races, under_load
from longpoll.verification import stages as verify
from longpoll.verification.broker_process import ServedBroker
from longpoll.verification.limits import Limits, declared, limits_of
from longpoll.verification.report import Row
from longpoll.verification.under_load import Loaded, Verdicts, see
from longpoll.wire.load import LoadPlan, LoadReport
from longpoll.wire.race import QUEUE_IDS, Delivery, PullTiming, RacePlan, RaceReport, RaceTopic, prepare, race
from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.hold.hold_service import HoldService
from longpoll_client.errors import ClientError
from longpoll_conform import capabilities
from longpoll_conform.clauses import SEEN
from longpoll_conform.connection import Address
from longpoll_conform.suite import Outcome
from longpoll_conform.vectors import recorded
from longpoll_judge.contract.result import FindingVerdict, Follow
from longpoll_judge.contract.result import Result as Judged
from longpoll_judge.run import pipeline
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime.host_pauses import HostPauseWatch
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy, preset

SMALL = StoreConfig(commit_log_file_size=1 << 24)
REGRESSES, IS_TOLD = "load-commit-never-regresses", "load-commit-is-told"
OF_LOAD = tuple(name for name in SEEN if name.startswith("load-"))
LATE_S = 3.0
COMMITS = 1
"""The flag of a pull that commits an offset."""
HELD = 2
"""The flag of a pull that the broker may hold."""
Outcomes = Mapping[str, Outcome]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    store = str(tmp_path_factory.mktemp("good") / "store")
    with Broker.start(RealRuntime(), store, policy=STRICT, store_config=SMALL) as broker:
        yield broker


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_load, "LoadPlan", partial(LoadPlan, message_count=400, queue_count=4))
    monkeypatch.setattr(races, "DELIVERIES_MIN", 20)


def seen(address: Address, directory: Path, *names: str, policy: Policy = STRICT) -> Outcomes:
    loaded = Loaded(RealRuntime(), address, f"seen-{directory.name}", declared(policy), directory / "history", 0.3)
    return {result.vector.id: result.outcome for result in see(loaded, names or SEEN)}


def seen_in_time(address: Address, directory: Path, wanted: Outcomes) -> Outcomes:
    """Return the outcomes of a load.

    If a busy machine leaves the wanted outcomes unknown, the load runs up to three times.
    """
    outcomes: Outcomes = {}
    for number in range(3):
        place = directory / f"{directory.name}-{number}"
        place.mkdir()
        outcomes = seen(address, place, *wanted)
        if not any(outcomes[name] == "UNTESTED" != wanted[name] for name in wanted):
            break
    return outcomes


def late(every: int) -> Fault:
    def fault(asked: Asked, command: dict[str, Any], frame: bytes) -> Told | None:
        fields = asked.command.get("extFields") or {}
        if asked.command.get("code") != 11 or not int(fields.get("sysFlag", 0)) & HELD or command["code"] != 0:
            return None
        asked.relay.kept["count"] = asked.relay.kept.get("count", 0) + 1
        return [(LATE_S, frame)] if asked.relay.kept["count"] % every == 0 else None

    return fault


@pytest.mark.usefixtures("small")
def test_a_good_broker_passes(good: Broker, tmp_path: Path) -> None:
    wanted: Outcomes = dict.fromkeys(SEEN, "PASS")

    assert seen_in_time(good.address, tmp_path, wanted) == wanted


@pytest.mark.usefixtures("small")
def test_an_injected_fault_fails_its_clause(good: Broker, tmp_path: Path) -> None:
    """A load against a faulty proxy reports the violated clause; `conform.faulty_brokers` has further faults."""
    with Relay(good.address, late(40)) as relay:
        outcomes = seen(relay.address, tmp_path, "load-no-lost-wakeup", "load-answered-once")

    assert relay.spoiled
    assert outcomes == {"load-no-lost-wakeup": "FAIL", "load-answered-once": "PASS"}


Request = Callable[[dict[str, Any]], bytes | None]
UNSPOILED: Fault = lambda _asked, _command, _frame: None  # noqa: E731 - a fault is a function, and this one changes nothing


def regresses(asked: Asked, command: dict[str, Any], _frame: bytes) -> Told | None:
    """Inject a fault: a query of an offset always gets the first offset that the group committed, not a later one."""
    fields = command["extFields"] or {}
    if asked.command.get("code") != 14 or fields.get("offset", "0") == "0":
        return None
    place = ",".join(asked.command["extFields"][name] for name in ("consumerGroup", "topic", "queueId"))
    first = asked.relay.kept.setdefault(place, fields["offset"])
    return [(0.0, again(command, extFields={**fields, "offset": first}))] if first != fields["offset"] else None


def forgotten(command: dict[str, Any]) -> bytes | None:
    """Clear the commit flag of a pull, and send a separate commit to another group: no commit has an effect."""
    fields = dict(command["extFields"] or {})
    if command["code"] == 11 and int(fields["sysFlag"]) & COMMITS:
        return again(command, extFields={**fields, "sysFlag": str(int(fields["sysFlag"]) & ~COMMITS)})
    if command["code"] == 15:
        return again(command, extFields={**fields, "consumerGroup": f"not-{fields['consumerGroup']}"})
    return None


NOTHING_TOLD: Final[Outcomes] = {IS_TOLD: "FAIL", REGRESSES: "UNTESTED"}
"""The outcomes if the broker answers no offset query, so that the load cannot see an offset go back."""
OF_COMMITS: Final[Mapping[str, tuple[Fault, Request | None, Outcomes]]] = {
    "regresses": (regresses, None, {REGRESSES: "FAIL"}),
    "forgotten": (UNSPOILED, forgotten, {REGRESSES: "FAIL"}),
    "told more": (field_of(14, "offset", plus(1_000)), None, {IS_TOLD: "FAIL"}),
    "told none": (recoded(14, 0, 22), None, NOTHING_TOLD),
    "no such code": (recoded(14, 0, 77), None, NOTHING_TOLD),
    "no such code of a commit": (recoded(15, 0, 77), None, {IS_TOLD: "FAIL"}),
    "unknown to the name server": (recoded(14, 0, 3), None, {REGRESSES: "UNIMPLEMENTED", IS_TOLD: "UNIMPLEMENTED"}),
    "an error": (recoded(14, 0, 1), None, {REGRESSES: "UNTESTED", IS_TOLD: "UNTESTED"}),
}
"""Name of a fault -> (fault in answers, fault in requests, outcomes that the load must report)."""


@pytest.mark.parametrize("name", quick_if(OF_COMMITS, lambda name: name == "regresses"))
@pytest.mark.usefixtures("small")
def test_a_fault_of_a_committed_offset_fails_its_clause_alone(name: str, good: Broker, tmp_path: Path) -> None:
    fault, request_, expected = OF_COMMITS[name]
    wanted: Outcomes = {**dict.fromkeys(OF_LOAD, "PASS"), **expected}
    relay = Relay(good.address, fault, request_ or (lambda _command: None))
    try:
        outcomes = seen_in_time(relay.address, tmp_path, wanted)
    finally:
        relay.close()

    assert relay.spoiled
    assert outcomes == wanted


@pytest.mark.parametrize(("verdict", "outcome"), [("violated", "FAIL"), ("unknown", "UNTESTED")])
def test_a_clause_fails_only_by_its_own_finding(verdict: FindingVerdict, outcome: Outcome) -> None:
    """A dropped answer may violate one property, while another property that follows from it is only unknown."""
    follow = Follow(
        property="commit_is_told", clause="commit.told.some", verdict=verdict, topic="T", queue=3, count=1,
        requests=["2-7"], why="no offset came",
    )  # fmt: skip
    cause = msgspec.structs.replace(finding("answered_by_deadline"), clause="pull.answered", follows=[follow])
    judged = judged_as("invalid", cause)
    report = LoadReport(1, 1, 1, 0, 1.0, [], [], told_count=1)
    verdicts = Verdicts(declared(STRICT), limits_of(0), report, judged, judged, {})

    result = verdicts.result(IS_TOLD)
    assert (result.outcome, "no offset came" in result.why) == (outcome, True)
    assert [each.where for each in result.differences] == ["T, queue 3, request 2-7"] * (outcome == "FAIL")


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_a_declared_delay_is_non_strict(good: Broker, tmp_path: Path) -> None:
    """A wake that is less than the scan's period late is only non-strict, if the broker is declared as 4.9."""
    relay = Relay(good.address, late(40))
    try:
        outcomes = seen(relay.address, tmp_path, "load-no-lost-wakeup", policy=ROCKETMQ_4_9)
    finally:
        relay.close()

    assert outcomes == {"load-no-lost-wakeup": "NON-STRICT"}


@pytest.mark.usefixtures("small")
def test_the_row_of_verify_names_the_first_clause_that_fails(
    good: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [vector for vector in recorded("4.9.7") if vector.id in {"pull-000", "lock-358"}]
    monkeypatch.setattr(verify, "recorded", lambda _version: some)
    monkeypatch.setattr(capabilities, "KNOWN_S", 0.1)
    monkeypatch.setattr(capabilities, "HELD_MS", 400)

    def row(address: Address, policy: str = "strict") -> Row:
        job = job_for(address, tmp_path, declared(preset(policy)))
        (found,) = verify.conversations(job, address, (address[0], 9876), lambda _done, _all: None)
        return found

    relay = Relay(good.address, field_of(11, "maxOffset", plus(1)))
    try:
        spoiled = row(relay.address)
    finally:
        relay.close()

    fine = row(good.address)
    assert (fine.outcome, fine.detail) == ("ok", "2 clauses: 2 PASS")
    assert spoiled.outcome == "violated"
    assert "2 clauses: 1 FAIL, 1 PASS; first PULL-READ-1 (pull-000): response.extFields.maxOffset" in spoiled.detail
    with closed_port() as nobody:
        assert row(nobody).outcome == "unknown"
    assert row(good.address, "rocketmq-lmq").outcome == "skipped"


@pytest.mark.long
@pytest.mark.usefixtures("small")
def test_a_record_with_a_gap_passes_no_clause(good: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pipeline.judge

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


@pytest.mark.usefixtures("small")
def test_an_unreachable_broker_is_untested(tmp_path: Path) -> None:
    with closed_port() as address:
        results = see(Loaded(RealRuntime(), address, "gone", declared(STRICT), tmp_path / "history", 0.1), SEEN)

    assert {result.outcome for result in results} == {"UNTESTED"}
    assert all("the load could not run" in result.why for result in results)


@pytest.mark.usefixtures("small")
def test_without_the_judge_the_conversations_are_still_replayed(good: Broker) -> None:
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


BUSY_MS = 1_000
"""The delay of a correct broker on a machine that is busy with other tests, in milliseconds."""
LIMITS = Limits(BUSY_MS, BUSY_MS)
FOUR = RaceTopic("T", dict.fromkeys(range(4), 1), {})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(races, "DELIVERIES_MIN", 20)
    monkeypatch.setattr(races, "PATIENCE_MS", 200.0)


@contextmanager
def serving(directory: Path) -> Iterator[Broker]:
    with Broker.start(RealRuntime(), str(directory / "store"), policy=STRICT) as broker:
        yield broker


def raced(broker: Broker, seconds: float) -> races.Told:
    return races.races(
        RealRuntime(), broker.address, f"T-{uuid.uuid4().hex}", seconds, lambda _done, _all: None,
        known=declared(STRICT), limits=LIMITS,
    )  # fmt: skip


# -- races over real sockets -----------------------------------------------------------------------------------------


def test_a_race_passes_a_good_broker_and_finds_a_wake_of_the_wrong_queue(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the broker looks in another queue for pulls of queues above 7, the race reports the first lost wakeup."""
    honest = HoldService.notify

    def astray(self: HoldService, key: tuple[str, int], *told: object) -> None:
        honest(self, (key[0], key[1] & 7), *told)  # type: ignore[arg-type] # the rest is handed on

    with serving(tmp_path) as broker:
        assert raced(broker, 0.2).outcome == "ok"
    with serving(tmp_path / "planted") as broker:
        monkeypatch.setattr(HoldService, "notify", astray)
        # A host pause would excuse a late delivery, but a lost wakeup stays lost on a busy host too.
        monkeypatch.setattr(HostPauseWatch, "stalled_ms", lambda *_interval: 0.0)
        # On a busy host a short race has few deliveries, so every pull waits and the race needs no overtaking pulls.
        monkeypatch.setattr(PullTiming, "draw", lambda *_: -2.0)
        monkeypatch.setattr(races, "ALONE_MS", 0.0)
        row = raced(broker, 0.1)

    assert row.outcome == "violated", row
    first = row.detail.partition("the first: queue ")[2]
    assert int(first.partition(",")[0]) > 7
    assert "its send acknowledged at" in first
    assert "pull asked at" in first


@pytest.mark.long
@pytest.mark.parametrize(
    ("knobs", "is_found"),
    [(("recheck_after_hold=none", "notify=dispatcher_poll"), True), (("notify=dispatcher_poll",), False)],
    ids=["no recheck", "as it is"],
)
def test_a_lost_wakeup_is_found_in_the_default_time(knobs: tuple[str, ...], is_found: bool, tmp_path: Path) -> None:
    """Within five runs the race finds a lost wakeup, if a dispatcher thread notifies and no check follows the hold."""
    found = []
    for number in range(5):
        options = ["--policy=strict", *(f"--knob={knob}" for knob in knobs)]
        with ServedBroker(tmp_path / str(number), None, *options) as served:
            row = races.races(
                RealRuntime(), served.address, "T", RACE_S, lambda _done, _all: None, known=declared(STRICT),
                limits=LIMITS, process_id=served.process_id, seed=number,
            )  # fmt: skip
        found.append(row.outcome == "violated")
        if any(found):
            break

    assert any(found) == is_found


@pytest.mark.long
def test_a_declared_loss_is_counted_and_violates_nothing(tmp_path: Path) -> None:
    with ServedBroker(tmp_path / "store", None, "--policy=rocketmq-4.9") as served:
        row = races.races(
            RealRuntime(), served.address, "T", 20.0, lambda _done, _all: None, known=declared(ROCKETMQ_4_9),
            limits=LIMITS, process_id=served.process_id,
        )  # fmt: skip

    assert row.outcome == "ok", row.detail
    assert "as the policy declares (no_lost_wakeup (a, b, slave)): within" in row.detail


# -- races against fake brokers --------------------------------------------------------------------------------------


def of_eight(peer: Peer, request: Command) -> None:
    fields = request.ext_fields or {}
    if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
        peer.answer(request, 3)
    elif request.code == RequestCode.SEND_MESSAGE_V2:
        is_there = int(fields["e"]) < 8
        peer.answer(request, 0 if is_there else 29, {"queueOffset": "5"} if is_there else None)
    else:
        peer.answer(request, 0)


def test_the_race_uses_the_queues_that_the_broker_accepts() -> None:
    """Queue ids that the broker refuses are skipped and reported; if it accepts no message, the reason is given."""
    with ScriptedServer(of_eight) as server:
        found = prepare(RealRuntime(), (server.host, server.port), "T", QUEUE_IDS)
    assert dict(found.first_offsets) == dict.fromkeys(range(8), 6)
    assert str(found).startswith(f"8 queues (not {', '.join(map(str, QUEUE_IDS[8:]))[:20]}")
    assert "code 29" in str(found)

    with (
        ScriptedServer(lambda peer, request: peer.answer(request, 17)) as server,
        pytest.raises(ClientError, match="no message can be sent to T: code 17"),
    ):
        prepare(RealRuntime(), (server.host, server.port), "T", (0, 9))


def answer_twice(peer: Peer, request: Command) -> None:
    peer.answer(request, 0)
    peer.answer(request, 0)


def refusing(peer: Peer, request: Command) -> None:
    peer.answer(request, 16 if request.code == RequestCode.SEND_MESSAGE_V2 else 19)


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (answer_twice, "was answered twice"),
        (refusing, "send of queue 0: code 16"),
        (closing, "closed the connection"),
        (babbling, ""),
        (silent, "was not answered for"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_reason_for_an_incomplete_race_is_reported(handler: object, said: str) -> None:
    plan = RacePlan("T", 0.2, queue_count=1, patience_ms=50.0)
    with ScriptedServer(handler) as server:  # type: ignore[arg-type] # one of the above
        report = race((server.host, server.port), plan)

    assert report.trouble is not None
    assert said in report.trouble
    assert races.told(report, FOUR, declared(STRICT), LIMITS).outcome == "unknown"


# -- the outcomes of a race ------------------------------------------------------------------------------------------


def report_of(
    *delays_ms: float, overtaken: int = 1_000, stalled_ms: float = 0.0, delivered: int = 10_000
) -> RaceReport:
    late = tuple(Delivery(9, 3, delay, stalled_ms, overtaken, 7.0, 8.0, 8.0 + delay) for delay in delays_ms)
    return RaceReport(delivered, late, 50.0)


def test_a_declared_delay_is_counted_and_a_longer_one_is_a_violation() -> None:
    """Policy 4.9 may lose a wake until its scan, and strict may not. No policy permits a delay of seven seconds."""
    old, ours = declared(ROCKETMQ_4_9), declared(STRICT)
    lost, lost_for_long = report_of(2_000, 4_000), report_of(2_000, 7_000)

    told = races.told(lost, FOUR, old, LIMITS)
    assert (told.outcome, told.is_declared) == ("ok", True)
    assert "2 over 1000 ms late (200 of a million), the latest by 4,000 ms" in told.detail
    assert "no_lost_wakeup (a, b, slave)" in told.detail
    told = races.told(lost_for_long, FOUR, old, LIMITS)
    assert told.outcome == "violated"
    assert "1 later than promised, the first: queue 9, offset 3: its send acknowledged at 7.0 ms" in told.detail
    assert races.told(lost, FOUR, ours, LIMITS).outcome == "violated"
    assert races.told(report_of(900), FOUR, ours, LIMITS).outcome == "ok"


def test_a_pause_of_the_host_is_no_violation() -> None:
    """If no client was served during a late delivery, the host may be the cause, unless the delay is extreme."""
    ours = declared(STRICT)

    assert races.told(report_of(2_000, stalled_ms=1_500), FOUR, ours, LIMITS).outcome == "ok"
    assert races.told(report_of(1_500, overtaken=2), FOUR, ours, LIMITS).outcome == "ok"
    assert races.told(report_of(2_500, overtaken=2), FOUR, ours, LIMITS).outcome == "violated"


def test_a_race_that_shows_little_is_unknown() -> None:
    ours, whole = declared(STRICT), report_of()
    slow = limits_of(1_500)
    cases = (
        (attrs.evolve(whole, delivered_count=races.DELIVERIES_MIN - 1), LIMITS, "fewer than"),
        (attrs.evolve(whole, trouble="it broke"), LIMITS, "ended early: it broke"),
        (attrs.evolve(whole, unheld_count=2_000), LIMITS, "instead of holding"),
        (whole, slow, "host was too slow"),
    )

    assert races.told(whole, FOUR, ours, LIMITS).outcome == "ok"
    for report, limits, said in cases:
        told = races.told(report, FOUR, ours, limits)
        assert (told.outcome, said in told.detail) == ("unknown", True), told.detail
    assert races.told(whole, FOUR, declared(ROCKETMQ_4_9), slow).outcome == "ok"


def test_most_pulls_arrive_together_with_their_message() -> None:
    sequence = random.Random(5)
    aim = PullTiming(gap_ms=1.5)
    for _ in range(4_000):
        gap_ms = aim.draw(sequence)
        # The time from the write of the message until it is visible and reported.
        seen_ms = 6.0 + sequence.uniform(-1, 1)
        answered_ms = max(seen_ms, gap_ms + 1.0 + sequence.uniform(-0.3, 0.3))
        aim.learn(0.0, gap_ms, answered_ms)
    drawn = [aim.draw(sequence) for _ in range(1_000)]

    assert abs(aim.middle_ms - 5.0) < 0.7
    assert sum(abs(gap - aim.middle_ms) < 1 for gap in drawn) > 400
    assert min(drawn) < aim.middle_ms - 1
    assert max(drawn) > aim.middle_ms + 1


PARENT = """
import subprocess, sys
from pathlib import Path
from longpoll.verification import broker_process
broker = broker_process.ServedBroker(Path(sys.argv[1]), None)
print(broker._process.pid, flush=True)
sys.stdin.read()
"""
"""A script that starts a broker as `verify` does, prints the broker's process id, and waits."""


@contextmanager
def killed_parent(store: Path) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        descriptor = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.send_signal(signal.SIGKILL)
            parent.wait()
            yield descriptor
        finally:
            if not has_ended(descriptor, 0):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)


def has_ended(descriptor: int, within_s: float) -> bool:
    return bool(select.select([descriptor], [], [], within_s)[0])


def test_the_broker_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with killed_parent(store) as descriptor:
        assert has_ended(descriptor, PATIENCE_S)
    assert not (store / "abort").exists()
