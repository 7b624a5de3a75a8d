"""The races' row: red for wakes that are lost, green for who loses none, and unknown where little was seen."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from longpoll.racing.aim import Aim
from longpoll.racing.load import race
from longpoll.racing.plan import QUEUE_IDS, Delivery, RacePlan, RaceReport
from longpoll.racing.topic import RaceTopic, prepare
from longpoll.verification import races
from longpoll.verification.declared import declared, limits_of
from longpoll.verification.served import ServedBroker
from longpoll_broker.broker import Broker
from longpoll_broker.service.pull.hold_service import HoldService
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client.errors import ClientError
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT

BUSY_MS = 1_000
"""What a machine busy with other tests may delay a good broker."""
TRIES = 5
LIMITS = limits_of(0, wake_ms=BUSY_MS, late_ms=BUSY_MS)
FOUR = RaceTopic("T", dict.fromkeys(range(4), 1), {})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races that say something after few deliveries, and wait little for those that are lost."""
    monkeypatch.setattr(races, "DELIVERIES_MIN", 20)
    monkeypatch.setattr(races, "PATIENCE_MS", 200.0)


@contextmanager
def serving(directory: Path) -> Iterator[Broker]:
    """Our own broker, in this process."""
    with Broker.start(RealRuntime(), str(directory / "store"), policy=STRICT) as broker:
        yield broker


def raced(broker: Broker, seconds: float) -> races.Told:
    """What a short race shows."""
    return races.races(
        RealRuntime(), broker.address, f"T-{uuid.uuid4().hex}", seconds, lambda _done, _all: None,
        known=declared(STRICT), limits=lambda: LIMITS,
    )  # fmt: skip


# -- on sockets ------------------------------------------------------------------------------------------------------


def test_a_good_broker_loses_no_wake_and_a_wake_of_the_wrong_queue_is_found(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: who waits for a queue above 7 is looked for in another one, with the evidence of the first who waits."""
    honest = HoldService.notify

    def astray(self: HoldService, key: tuple[str, int], *told: object) -> None:
        honest(self, (key[0], key[1] & 7), *told)  # type: ignore[arg-type] # the rest is handed on

    with serving(tmp_path) as broker:
        assert raced(broker, 0.2).outcome == "ok"
    with serving(tmp_path / "planted") as broker:
        monkeypatch.setattr(HoldService, "notify", astray)
        # A machine that stands still excuses what came late meanwhile.
        row = next((row for _ in range(TRIES) if (row := raced(broker, 0.1)).outcome == "violated"), None)

    assert row is not None
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
    """A broker whose dispatcher is a thread of its own and which does not look after the hold: one try of five."""
    found = []
    for number in range(5):
        options = ["--policy=strict", *(f"--knob={knob}" for knob in knobs)]
        with ServedBroker(tmp_path / str(number), None, *options) as served:
            row = races.races(
                RealRuntime(), served.address, "T", races.RACE_S, lambda _done, _all: None, known=declared(STRICT),
                limits=lambda: LIMITS, process_id=served.process_id, seed=number,
            )  # fmt: skip
        found.append(row.outcome == "violated")
        if any(found):
            break

    assert any(found) == is_found


@pytest.mark.long
def test_a_declared_loss_is_counted_and_violates_nothing(tmp_path: Path) -> None:
    """4.9 under its own policy: what the scan finds is within the scan's period."""
    with ServedBroker(tmp_path / "store", None, "--policy=rocketmq-4.9") as served:
        row = races.races(
            RealRuntime(), served.address, "T", 20.0, lambda _done, _all: None, known=declared(ROCKETMQ_4_9),
            limits=lambda: LIMITS, process_id=served.process_id,
        )  # fmt: skip

    assert row.outcome == "ok", row.detail
    assert "as the policy declares (no_lost_wakeup (a, b)): within" in row.detail


# -- brokers that are not ours ---------------------------------------------------------------------------------------


def of_eight(peer: Peer, request: Command) -> None:
    """Make no topics, and take messages for eight queues: the first is at offset 5."""
    fields = request.ext_fields or {}
    if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
        peer.answer(request, 3)
    elif request.code == RequestCode.SEND_MESSAGE_V2:
        is_there = int(fields["e"]) < 8
        peer.answer(request, 0 if is_there else 29, {"queueOffset": "5"} if is_there else None)
    else:
        peer.answer(request, 0)


def test_a_topic_has_the_queues_that_the_broker_gives_it() -> None:
    """Ids beyond them are left out and told; where no message is taken at all, one sentence says how it was refused."""
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


def twice(peer: Peer, request: Command) -> None:
    """Answer everything twice."""
    peer.answer(request, 0)
    peer.answer(request, 0)


def refusing(peer: Peer, request: Command) -> None:
    """Take no message."""
    peer.answer(request, 16 if request.code == RequestCode.SEND_MESSAGE_V2 else 19)


def closing(peer: Peer, _request: Command) -> None:
    """Close the connection at the first request."""
    peer.close()


def babbling(peer: Peer, _request: Command) -> None:
    """Send what is no frame."""
    peer.send_bytes(b"\x00\x00\x00\x10nonsense-nonsense")


def silent(_peer: Peer, _request: Command) -> None:
    """Say nothing."""


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (twice, "was answered twice"),
        (refusing, "send of queue 0: code 16"),
        (closing, "closed the connection"),
        (babbling, ""),
        (silent, "was not answered for"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cuts_a_race_short_is_told(handler: object, said: str) -> None:
    """It convicts nobody by itself, and ends with what was seen by then."""
    plan = RacePlan("T", 0.2, queue_count=1, patience_ms=50.0)
    with ScriptedServer(handler) as server:  # type: ignore[arg-type] # one of the above
        report = race((server.host, server.port), plan)

    assert report.trouble is not None
    assert said in report.trouble
    assert races.told(report, FOUR, declared(STRICT), LIMITS).outcome == "unknown"


# -- what is made of a race ------------------------------------------------------------------------------------------


def report_of(
    *delays_ms: float, overtaken: int = 1_000, stalled_ms: float = 0.0, delivered: int = 10_000
) -> RaceReport:
    """A race of ten thousand deliveries in which these came late."""
    late = tuple(Delivery(9, 3, delay, stalled_ms, overtaken, 7.0, 8.0, 8.0 + delay) for delay in delays_ms)
    return RaceReport(delivered, late, 50.0)


def test_what_a_policy_declares_is_counted_and_what_is_later_convicts() -> None:
    """4.9 may lose a wake until its scan; strict may not; and no scan takes seven seconds."""
    old, ours = declared(ROCKETMQ_4_9), declared(STRICT)
    lost, lost_for_long = report_of(2_000, 4_000), report_of(2_000, 7_000)

    told = races.told(lost, FOUR, old, LIMITS)
    assert (told.outcome, told.is_declared) == ("ok", True)
    assert "2 over 1000 ms late (200 of a million), the latest by 4,000 ms" in told.detail
    assert "no_lost_wakeup (a, b)" in told.detail
    told = races.told(lost_for_long, FOUR, old, LIMITS)
    assert told.outcome == "violated"
    assert "1 later than promised, the first: queue 9, offset 3: its send acknowledged at 7.0 ms" in told.detail
    assert races.told(lost, FOUR, ours, LIMITS).outcome == "violated"
    assert races.told(report_of(900), FOUR, ours, LIMITS).outcome == "ok"


def test_a_machine_that_stands_still_accuses_nobody() -> None:
    """What is late while nobody else was served may be the machine's, unless it is late by far."""
    ours = declared(STRICT)

    assert races.told(report_of(2_000, stalled_ms=1_500), FOUR, ours, LIMITS).outcome == "ok"
    assert races.told(report_of(1_500, overtaken=2), FOUR, ours, LIMITS).outcome == "ok"
    assert races.told(report_of(2_500, overtaken=2), FOUR, ours, LIMITS).outcome == "violated"


def test_a_race_that_shows_little_is_unknown() -> None:
    """Few deliveries, one that was cut short, a broker that does not hold, and echoes of over a second."""
    ours, whole = declared(STRICT), report_of()
    slow = limits_of(1_500, wake_ms=None, late_ms=None)
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


def test_pulls_are_aimed_at_the_moment_of_their_message() -> None:
    """Whatever a wake and a trip take, most pulls are written where both end together; some are not."""
    sequence = random.Random(5)
    aim = Aim(gap_ms=1.5)
    for _ in range(4_000):
        gap_ms = aim.draw(sequence)
        seen_ms = 6.0 + sequence.uniform(-1, 1)  # from its writing, to be visible and told
        answered_ms = max(seen_ms, gap_ms + 1.0 + sequence.uniform(-0.3, 0.3))
        aim.learn(0.0, gap_ms, answered_ms)
    drawn = [aim.draw(sequence) for _ in range(1_000)]

    assert abs(aim.middle_ms - 5.0) < 0.7
    assert sum(abs(gap - aim.middle_ms) < 1 for gap in drawn) > 400
    assert min(drawn) < aim.middle_ms - 1
    assert max(drawn) > aim.middle_ms + 1
