"""The kit finds faults of a service, names the broken property, and passes correct services."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any, Final

import pytest
from hypothesis import Phase, settings
from model_tests.kit import broken_http, services
from model_tests.kit.http_service import HttpService, HttpSubject
from model_tests.kit.services import Feed, InMemory, TakeQueue
from model_tests.support.spec.cases import quick_if

import longpoll
from longpoll_kit.run import KitReport
from longpoll_runtime.host_pauses import HostPauseWatch

GOOD: Final = settings(max_examples=6, stateful_step_count=15, database=None)
BAD: Final = settings(max_examples=60, stateful_step_count=15, database=None, phases=(Phase.generate,))
SEED: Final = 14
IMPATIENT: Final = {"wake_ms": 200, "late_ms": 150, "long_ms": 500}
"""These limits find a faulty service sooner."""
TIMED: Final = {"no_lost_wakeup", "answered_by_deadline"}
"""Properties whose violation a host pause excuses."""
PATIENT: Final = {"wake_ms": 3_000, "late_ms": 3_000, "long_ms": 3_500}
"""A machine that is busy with other tests delays a correct one."""

FAULTS: Final = {
    services.LooksThenWaits: {"no_lost_wakeup"},
    services.NotifiesThenAppends: {"no_lost_wakeup"},
    services.WakesOne: {"no_lost_wakeup"},
    services.NeverWakes: {"no_lost_wakeup"},
    services.Late: {"answered_by_deadline"},
    services.Early: {"not_early"},
    services.GivesUpOnOthers: {"not_early"},
    services.BeginsOneBefore: {"in_order", "answered_once"},
    services.RepeatsItself: {"answered_once"},
    services.LeavesOneOut: {"nothing_lost"},
    services.MixesQueues: {"right_messages"},
    services.ForgetsOnRestart: {"kept_by_restart"},
    services.TakesAfterCancel: {"nothing_lost", "kept_by_restart", "cancelled_is_over"},
    services.DropsAtCancel: {"nothing_lost", "kept_by_restart"},
    services.GivesToAll: {"answered_once"},
    services.TakesLastFirst: {"in_order"},
    services.AnswersNothingAtTimes: {"not_early", "nothing_lost"},
    services.NeverEndsAMillisecond: {"answered_by_deadline"},
    services.DropsWhatIsBuffered: {"nothing_lost"},
    services.TakesMoreThanItGives: {"nothing_lost"},
    services.CutsBodies: {"right_messages"},
}
"""A service with a fault -> the properties by which it may be found first."""

QUICK: Final = {
    services.WakesOne,
    services.Early,
    services.RepeatsItself,
    services.LeavesOneOut,
    services.MixesQueues,
    services.DropsWhatIsBuffered,
    services.CutsBodies,
    services.Late,
}
"""One of each kind that no other test has; the others say the same of a fault that is like it.

`GivesToAll` is not among them: it needs two threads to meet between two calls, and a slow machine misses that.
"""


def machine(subject: Any, **attributes: Any) -> type[longpoll.LongPollMachine]:
    """A machine of a subject, as a user derives one."""
    return type("Mine", (longpoll.LongPollMachine,), {"subject": staticmethod(subject), **attributes})


@contextmanager
def served(feed: Feed) -> Iterator[HttpService]:
    service = HttpService(feed)
    try:
        yield service
    finally:
        service.stop()


def exercise(service: type[Feed], chosen: settings, **attributes: Any) -> KitReport:
    """The kit's report on a service in memory."""
    return machine(lambda: InMemory(service()), **attributes).exercise(chosen, SEED)


def excuse_nothing(patch: pytest.MonkeyPatch) -> None:
    """Make the kit ignore host pauses, so that a busy host hides no fault."""
    patch.setattr(HostPauseWatch, "stalled_ms", lambda *_interval: 0.0)


def limits_for(patch: pytest.MonkeyPatch, properties: set[str]) -> dict[str, int]:
    """Limits within which a busy host neither hides these properties' violation nor causes another."""
    if properties & TIMED:
        excuse_nothing(patch)
        return IMPATIENT if "no_lost_wakeup" in properties else {**IMPATIENT, "wake_ms": 3_000}
    return IMPATIENT


@pytest.mark.parametrize("service", [Feed, pytest.param(TakeQueue, marks=pytest.mark.long)])
def test_a_correct_service_is_valid(service: type[Feed]) -> None:
    """With all that its subject can do seen, and told in numbers."""
    report = exercise(service, GOOD, **PATIENT)

    assert report.verdict == "valid", report
    assert report.left_out == ("answered_again",)
    assert min(report.counts.values()) > 0


@pytest.mark.parametrize("service", quick_if(FAULTS, QUICK.__contains__), ids=lambda fault: fault.__name__)
def test_each_fault_is_found(service: type[Feed], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit names the property that the fault breaks, and the steps that lead there."""
    report = exercise(service, BAD, **limits_for(monkeypatch, FAULTS[service]))

    assert report.verdict == "invalid", report
    assert report.property in FAULTS[service], report
    assert report.steps


def test_a_correct_service_behind_http_is_valid() -> None:
    """Over real connections, with polls held while others are sent."""
    with served(TakeQueue()) as service:
        report = machine(lambda: HttpSubject(service), **PATIENT).exercise(
            settings(GOOD, max_examples=4, stateful_step_count=10), SEED
        )

    assert report.verdict == "valid", report
    assert set(report.left_out) == {"answered_again", "restart"}


def test_a_broken_service_of_sixty_lines_turns_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit finds a lost wakeup behind HTTP, between a look and the wait."""
    excuse_nothing(monkeypatch)
    with ThreadingHTTPServer(("127.0.0.1", 0), broken_http.Handler) as server:

        class Feed(broken_http.Feed):
            port = server.server_address[1]

        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            report = machine(Feed, **IMPATIENT).exercise(BAD, SEED)
        finally:
            server.shutdown()
            thread.join()

    assert (report.verdict, report.property) == ("invalid", "no_lost_wakeup"), report
