"""The kit finds each fault of a service with default settings, and no violation of a correct service.

The faults are those of public reports on Redis, NATS, Kafka, SQS clones, Consul, Telegram and other services. Time is
virtual, so waiting for 30 s takes no real time and a busy machine changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import settings
from model_tests.kit import services
from model_tests.kit.services import (
    NEVER_MS,
    Able,
    Acknowledged,
    Confirmed,
    Feed,
    InMemory,
    Leased,
    Limited,
    Newest,
    Pool,
    TakeQueue,
    TellsNewest,
)
from model_tests.kit.virtual import SOME, exercise, in_world, machine

from longpoll_kit.errors import HINTS
from longpoll_kit.run import KitReport
from longpoll_kit.subject import LongPollSubject, wait_of
from longpoll_runtime import Runtime

Making = Callable[[Runtime], LongPollSubject]


def of(kind: Callable[..., Feed], subject: Callable[..., LongPollSubject] = InMemory, **parameters: Any) -> Making:
    """Return a maker of subjects for a service; parameters in capitals belong to the subject."""
    own = {name: value for name, value in parameters.items() if name.islower()}
    declared = {name.lower(): value for name, value in parameters.items() if not name.islower()}
    return lambda runtime: subject(kind(runtime, **own), **declared)


LOST: Final = {"no_lost_wakeup"}
LATE: Final = {"answered_by_deadline"}
EARLY: Final = {"not_early"}
GONE: Final = {"nothing_lost"}
TWICE: Final = {"answered_once"}
able = partial(of, Feed, Able, beats=100)
leased = partial(of, Leased, Acknowledged, REDELIVERY_MS=200)
FAULTS: Final[dict[str, tuple[set[str], Making]]] = {
    "a message wakes one": (LOST, of(Feed, wakes=1)),
    "a message wakes none": (LOST, of(Feed, wakes=0)),
    "a message wakes the first eight": (LOST, of(Feed, wakes=8)),
    "a wait of twice its time": (LATE, of(Feed, holds=lambda ms: 2 * ms)),
    "a wait of half its time": (EARLY, of(Feed, holds=lambda ms: ms // 2)),
    "1 ms never ends": (LATE, of(Feed, holds=lambda ms: NEVER_MS if ms == 1 else ms)),
    "0 never ends": (LATE, of(Feed, holds=lambda ms: ms or NEVER_MS)),
    "a proxy cuts silence after 5 s": (EARLY, of(Feed, holds=lambda ms: min(ms, 5_000))),
    "a proxy cuts silence after 25 s": (EARLY, of(Feed, holds=lambda ms: min(ms, 25_000))),
    "woken for nothing, it waits again": (LATE, of(services.WaitsAgain)),
    "a position behind the end hangs": (LATE, of(services.HangsBehindTheEnd)),
    "anything ends a wait": (EARLY, of(services.GivesUpOnOthers)),
    "the first message twice": (TWICE, of(Feed, gives=lambda found: found[:1] + found)),
    "one before the position": ({"in_order", *TWICE}, of(services.BeginsOneBefore)),
    "one is left out": (GONE, of(Feed, gives=lambda found: found[::2] if len(found) == 3 else found)),
    "queues are mixed": ({"right_messages"}, of(Feed, names=lambda queue: f"{queue[:-1]}0")),
    "text is read in another encoding": (
        {"right_messages"},
        of(Feed, keeps=lambda body: body.decode("latin-1").encode()),
    ),
    "publishes at the same time lose one": (GONE, of(services.LosesAtOnce)),
    "publishes at the same time lose one of those to take": ({*GONE, *LOST, *EARLY}, of(services.TakesAtOnce)),
    "the newest poll is served first": (
        {"served_in_turn"},
        of(services.NewestPollFirst, SERVES_LONGEST_WAITING=True),
    ),
    "visible after 30 ms, undeclared": ({*GONE, *LOST}, of(services.VisibleLater)),
    "spaces are cut off": ({"right_messages"}, of(Feed, keeps=bytes.strip)),
    "an idle queue is forgotten": ({*GONE, *LOST, "in_order"}, of(services.ForgetsIdle)),
    "bodies are cut": ({"right_messages"}, of(Feed, keeps=lambda body: body[: 1 << 15])),
    "a restart forgets": ({"kept_by_restart"}, of(services.ForgetsOnRestart)),
    "a cancelled poll takes": ({*GONE, "kept_by_restart", "cancelled_is_over"}, of(services.TakesAfterCancel)),
    "a cancelled poll is served": ({"cancelled_is_over"}, of(services.ServesAfterCancel)),
    "a cancel drops": ({*GONE, "kept_by_restart"}, of(services.DropsAtCancel)),
    "two are given one message": (TWICE, of(services.GivesToAll)),
    "any order": ({"in_order"}, of(services.AnyOrder)),
    "the newest first": ({"in_order"}, of(services.NewestFirst)),
    "nothing, where there is much": ({*EARLY, *GONE}, of(services.AnswersNothingAtTimes)),
    "room for 128 unread messages": (GONE, of(services.DropsWhatIsBuffered)),
    "taken beyond an answer's size": (GONE, of(services.TakesMoreThanItGives)),
    "dropped at the deadline": ({*LOST, *GONE}, of(services.DropsAtTheDeadline)),
    "dropped before the deadline": ({*LOST, *GONE}, of(services.DropsBeforeTheDeadline, CLIENT_ENDS_WAIT=True)),
    "room for 10, others are sent away": (EARLY, of(Limited)),
    "room for 32, others are sent away": (EARLY, of(Limited, most=32)),
    "room for 64, others are forgotten": (LATE, of(Limited, most=64, beyond_ms=NEVER_MS)),
    "ten threads": ({*LATE, *LOST, *GONE}, of(Pool)),
    "ten threads, for publishes too": ({*LATE, *LOST}, of(Pool, is_shared=True)),
    "whole seconds, undeclared": (EARLY, of(Feed, holds=lambda ms: ms // 1000 * 1000)),
    "an old value": (GONE, of(services.TellsOld, Newest, SEMANTICS="newest")),
    "an answer confirms more": ({*GONE, *LOST, *EARLY}, of(Confirmed, more=1, SEMANTICS="confirming")),
    "never given again": ({"given_again"}, leased(lease_ms=3_600_000)),
    "given again at once": (TWICE, leased(lease_ms=0)),
    "twice in one answer": (TWICE, leased(gives=lambda found: found * 2)),
    "given again though acknowledged": (TWICE, leased(forgets=True)),
    "given again, undeclared": (TWICE, leased(lease_ms=0, REDELIVERY_MS=None)),
    "of several queues the first is looked at": (LOST, able(LOOKS_AT=1)),
    "of several queues none is waited for": (EARLY, of(Feed, services.EndsSeveralEarly, beats=100)),
    "of several queues, and of another": ({"right_messages"}, of(Feed, services.AddsToSeveral, beats=100)),
    "of a key the newest first": ({"in_order"}, of(services.NewestOfKeyFirst, services.Keyed)),
    "kept for a client that stopped polling": (LOST, of(services.KeepsForTheGone)),
    "a deleted queue's polls wait on": ({"deleted_is_over"}, of(services.DeletesQuietly, Able, beats=100)),
    "a deleted queue's polls hang": (LATE, of(services.HangsAtDeletion, Able, beats=100, ENDS_AT_DELETION=False)),
    "no heartbeats": ({"heartbeats"}, able(beats=0)),
    "heartbeats, a little too rare": ({"heartbeats"}, able(beats=356)),
    "heartbeats at half the rate": ({"heartbeats"}, able(beats=800)),
}
"""A service with a fault -> the properties that may be reported first."""
FEWER: Final = "room for 64, declared"
RIGHT: Final[dict[str, Making]] = {
    FEWER: of(Limited, most=64, POLLS_MAX=56),
    "dropped at the deadline, by the client": of(services.DropsAtTheDeadline, CLIENT_ENDS_WAIT=True),
    "read by offset": of(Feed),
    "taken": of(TakeQueue),
    "the newest poll is served first": of(services.NewestPollFirst),
    "visible after 30 ms": of(services.VisibleLater, VISIBLE_MS=50),
    "whole seconds": of(Feed, holds=lambda ms: ms // 1000 * 1000, WAIT_UNIT_MS=1_000),
    "0 is for ever": of(Feed, holds=lambda ms: ms or NEVER_MS, WAIT_MIN_MS=1),
    "a second at most": of(Feed, holds=lambda ms: min(ms, 1_000), WAIT_MAX_MS=1_000),
    "any order": of(services.AnyOrder, ORDER="none"),
    "of each key in order": of(services.OfKeys, services.Keyed),
    "the newest alone": of(TellsNewest, Newest, SEMANTICS="newest"),
    "a position confirms": of(Confirmed, SEMANTICS="confirming"),
    "given again": leased(),
    "everything": able(),
    "everything, taken": of(TakeQueue, Able, beats=100),
    "a deleted queue's polls wait on": of(services.DeletesQuietly, Able, beats=100, ENDS_AT_DELETION=False),
    "heartbeats, more often": able(beats=20),
    "small bodies": of(Feed, keeps=lambda body: body[:1_000], BODY_MAX=1_000),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    """The report names the property, and lists the steps and events that lead to the violation."""
    properties, make = FAULTS[name]
    report = exercise(make, SOME, silence_ms=30_000)

    assert (report.verdict, report.property in properties) == ("invalid", True), report
    assert report.steps
    assert report.timeline


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_service_is_valid(name: str) -> None:
    report = exercise(RIGHT[name], settings(SOME, max_examples=5), silence_ms=30_000)

    assert (report.verdict, report.late, report.excused) == ("valid", 0, 0), report
    count = 56 if name == FEWER else 200
    assert report.axes["polls at once"] == f"{count} woken, {count} to their deadlines"


@pytest.mark.parametrize("name", ["read by offset", "taken", "everything"])
def test_a_correct_service_is_valid_under_random_schedules(name: str) -> None:
    report = exercise(RIGHT[name], settings(SOME, max_examples=6), seed=1, polls_max=12, burst=20)

    assert report.property == "", report


def test_every_property_is_found_broken() -> None:
    """The property `holds` depends on a setting and has its own test."""
    assert set().union(*(properties for properties, _make in FAULTS.values())) | {"holds"} == HINTS.keys()


@pytest.mark.parametrize(
    ("holds", "prop"),
    [(lambda ms: ms // 2, ""), (lambda _ms: 0, "holds")],
)
def test_a_service_may_answer_early_if_its_user_allows_it(holds: Callable[[int], int], prop: str) -> None:
    """The service must still hold a poll, answer with an available message, and wake a poll for a new message."""
    early = partial(exercise, chosen=SOME, may_answer_early=True)

    assert early(of(Feed, holds=holds)).property == prop
    assert early(of(Feed, wakes=1)).property == "no_lost_wakeup"
    assert early(of(services.AnswersNothingAtTimes)).property == "nothing_lost"


def test_a_wait_is_rounded_up_to_an_accepted_value() -> None:
    subject = InMemory(wait_unit_ms=1_000, wait_min_ms=1, wait_max_ms=3_000)
    waits_ms = [wait_of(subject, wait_ms) for wait_ms in (0, 1, 1_000, 1_001, 60_000)]

    assert waits_ms == [1_000, 1_000, 1_000, 2_000, 3_000]
    assert [wait_of(InMemory(), wait_ms) for wait_ms in (0, 1, 60_000)] == [0, 1, 60_000]


def test_a_message_of_another_queue_comes_when_a_poll_is_held() -> None:
    """The message is published halfway through the poll, when the service certainly holds it."""

    def main(runtime: Runtime) -> int:
        mine = machine(of(Feed), runtime)()
        mine.wait(queue=0, timeout_ms=1_000)
        (message,), (ask, *_others) = mine.example.queues[-1].messages, mine.example._asks
        mine.teardown()
        after_ns: int = message.begun_ns - ask.begun_ns
        return after_ns

    assert in_world(main) >= 500_000_000


@pytest.mark.parametrize(
    ("takes_s", "verdict", "burst"),
    [(0.5, "valid", "12 messages"), (0.9, "valid", "7 messages"), (2.0, "unknown", "not shown")],
)
def test_a_slow_service_has_its_verdict_in_time(takes_s: float, verdict: str, burst: str) -> None:
    """An axis begins only while there is time. The report names omitted axes, and bursts have fewer messages."""

    def main(runtime: Runtime) -> tuple[float, KitReport]:
        slow = of(services.Slow, takes_s=takes_s, WAIT_UNIT_MS=1_000)
        begun_ns = runtime.monotonic_ns()
        report = machine(slow, runtime, silence_ms=30_000).exercise(SOME, 14, seconds=60)
        return (runtime.monotonic_ns() - begun_ns) / 1e9, report

    took_s, report = in_world(main)

    assert took_s < 90, report
    assert report.verdict == verdict, report
    assert report.axes["polls at once"].endswith(" (no further, because the time for this axis was over)")
    assert report.axes["burst"].startswith(burst)
    assert ("no time was left for " in report.why) == (verdict == "unknown")
